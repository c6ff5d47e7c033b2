"""The parameters of an entry point of emitted Metal source: buffers by number, and the layout of blocks of numbers.

Metal source has no reflection, and needs none: the compiler writes every parameter with its attribute.
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

_PARAMETER = re.compile(r"(?P<type>.*?)\s*(?P<name>\w+)\s*\[\[(?P<attribute>\w+)(?:\((?P<index>\d+)\))?\]\]")
_FIELD = re.compile(r"^\s*(\S.*?)\s*(\**)\s*(\w+);", re.MULTILINE)
_FORMATS = {"uint": "I", "int": "i", "float": "f", "bool": "?", "uint2": "Q"}


class Field(NamedTuple):
    """A number or a pointer in a block."""

    # The C type, with a star for a pointer.
    type: str
    offset: int


@dataclass(frozen=True)
class Block:
    """A structure in a buffer, laid out as in C. The fields of inner structures are named `struct_field`."""

    fields: dict[str, Field]
    size: int

    @classmethod
    def of(cls, source: str, structure: str) -> Self:
        fields: dict[str, Field] = {}
        size, _ = _lay_out(source, structure, "", 0, fields)
        return cls(fields, size)

    @property
    def pointers(self) -> list[str]:
        """Names of buffers whose addresses are in the block."""
        return [name for name, field in self.fields.items() if field.type.endswith("*")]

    def pack(self, values: Mapping[str, Any], unset: int = 0) -> bytes:
        """Pack the given fields, pointers as addresses. The bytes of other fields are `unset`."""
        block = bytearray([unset]) * self.size
        for name, (kind, offset) in self.fields.items():
            if name in values:
                value = values[name]
                number = value.x | value.y << 32 if kind == "uint2" else value
                struct.pack_into("Q" if kind.endswith("*") else _FORMATS[kind], block, offset, number)
        return bytes(block)


def _lay_out(source: str, structure: str, prefix: str, offset: int, fields: dict[str, Field]) -> tuple[int, int]:
    """Add the fields of a structure that begins at `offset`; return its end and its alignment."""
    body = re.search(rf"^struct {structure}\s*\{{(.*?)^\}};", source, re.MULTILINE | re.DOTALL)
    assert body, f"no structure {structure}"
    end, alignment = offset, 1
    for kind, stars, name in _FIELD.findall(body[1]):
        name = prefix + stem(name)
        if not stars and not kind.endswith("*") and kind not in _FORMATS:
            # The inner structure's alignment is known only after its fields, so they are laid out twice.
            _, align = _lay_out(source, kind, f"{name}_", 0, {})
            end, _ = _lay_out(source, kind, f"{name}_", -(-end // align) * align, fields)
        else:
            kind += stars
            align = 8 if kind.endswith("*") else struct.calcsize(_FORMATS[kind])
            at = -(-end // align) * align
            fields[name] = Field(kind, at)
            end = at + align
        alignment = max(alignment, align)
    return -(-end // alignment) * alignment, alignment


class Parameter(NamedTuple):
    """A parameter of an entry point."""

    type: str
    # As in the Slang source, without the emitted numeric suffix; a struct's field is `struct_field`.
    name: str
    # `buffer`, or the name of a built-in value such as a thread's index.
    attribute: str
    # Metal's number of a buffer; else -1.
    number: int


@dataclass(frozen=True)
class MetalParameters:
    """The parameters of an entry point."""

    parameters: list[Parameter]
    # By the name of the block's buffer: `params`, and `globalParams` for globals other than buffers.
    blocks: dict[str, Block]

    @classmethod
    def of(cls, source: str, entry: str) -> Self:
        """The parameters of `[[kernel]] void <entry>(…)` in `source`."""
        matches = [match for match in map(_PARAMETER.fullmatch, _parameters(source, entry)) if match]
        parameters = [Parameter(m["type"], stem(m["name"]), m["attribute"], int(m["index"] or -1)) for m in matches]
        blocks = {p.name: Block.of(source, p.type.split()[0]) for p in parameters if p.name in ("params", "globalParams")}
        return cls(parameters, blocks)

    @cached_property
    def buffers(self) -> dict[str, int]:
        """Metal's number of each buffer, including those of blocks."""
        return {parameter.name: parameter.number for parameter in self.parameters if parameter.attribute == "buffer"}


def stem(name: str) -> str:
    """A name as in the Slang source, without the emitted numeric suffix."""
    return re.sub(r"_\d+$", "", name).removeprefix("globalParams_")


def _parameters(source: str, entry: str) -> list[str]:
    """The parameters of a kernel, each as it is written."""
    start = source.index(f"[[kernel]] void {entry}(") + len(f"[[kernel]] void {entry}(")
    parameters, depth, current = [], 0, ""
    for character in source[start:]:
        depth += (character in "([<{") - (character in ")]>}")
        if depth < 0 or (character == "," and depth == 0):
            parameters.append(current.strip())
            current = ""
            if depth < 0:
                break
        else:
            current += character
    return [parameter for parameter in parameters if parameter]
