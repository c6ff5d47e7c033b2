"""The parameters of an entry point of emitted Metal source: buffers by number, and blocks of numbers and where they lie.

There is no reflection of Metal source, and none is needed: the compiler writes every parameter with its attribute.
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

    # As C has it, a pointer's with a star.
    type: str
    offset: int


@dataclass(frozen=True)
class Block:
    """A structure behind a buffer, in the layout of C's. The fields of a structure in it are named `struct_field`."""

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
        """The block with these of its fields, pointers as addresses. The bytes of others hold `unset`."""
        block = bytearray([unset]) * self.size
        for name, (kind, offset) in self.fields.items():
            if name in values:
                value = values[name]
                number = value.x | value.y << 32 if kind == "uint2" else value
                struct.pack_into("Q" if kind.endswith("*") else _FORMATS[kind], block, offset, number)
        return bytes(block)


def _lay_out(source: str, structure: str, prefix: str, offset: int, fields: dict[str, Field]) -> tuple[int, int]:
    """Add the fields of a structure that begins at `offset`; where it ends, and its alignment."""
    body = re.search(rf"^struct {structure}\s*\{{(.*?)^\}};", source, re.MULTILINE | re.DOTALL)
    assert body, f"no structure {structure}"
    end, alignment = offset, 1
    for kind, stars, name in _FIELD.findall(body[1]):
        name = prefix + stem(name)
        if not stars and not kind.endswith("*") and kind not in _FORMATS:
            # The inner structure's own alignment is known once its fields are: they are laid out twice.
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
    """One of an entry point's."""

    type: str
    # As in the Slang source, without the number that makes it unique here; of a struct's field, `struct_field`.
    name: str
    # `buffer`, or what the thread is told of itself.
    attribute: str
    # Metal's, of a buffer; else -1.
    number: int


@dataclass(frozen=True)
class MetalParameters:
    """The parameters of an entry point."""

    parameters: list[Parameter]
    # By the names of the buffers that hold them: `params`, and `globalParams` for globals that are no buffers.
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
        """Metal's number of each buffer, those of blocks among them."""
        return {parameter.name: parameter.number for parameter in self.parameters if parameter.attribute == "buffer"}


def stem(name: str) -> str:
    """A name as in the Slang source, without the number that makes it unique in what is emitted."""
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
