"""What an entry point of emitted Metal source takes: buffers by number, the scalars of its uniform block and where they lie.

There is no reflection of Metal source, and none is needed: the compiler writes every parameter with its attribute.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

from splat_py.errors import BindingError

_PARAMETER = re.compile(r"(?P<type>.*?)\s*(?P<name>\w+)\s*\[\[(?P<attribute>\w+)(?:\((?P<index>\d+)\))?\]\]")
_FIELD = re.compile(r"^\s*(?:\w+ )?(\w+\*?) (\w+);", re.MULTILINE)
# Metal's uniform blocks have the layout of C's structures.
FORMATS = {"uint": "I", "int": "i", "float": "f", "bool": "?", "uint2": "Q"}


class Parameter(NamedTuple):
    """One of an entry point's."""

    type: str
    # As in the Slang source, without the number that makes it unique here.
    name: str
    # `buffer`, or what the thread is told of itself.
    attribute: str
    # Metal's, of a buffer; else -1.
    number: int


@dataclass(frozen=True)
class MetalParameters:
    """The parameters of an entry point.

    Args:
        entry: what errors call it.
        uniforms: names and types of the fields of the structure behind the buffer `params`.
        pointers: names of the buffers whose addresses are in the structure behind the buffer `globalParams`.
    """

    entry: str
    parameters: list[Parameter]
    uniforms: list[tuple[str, str]]
    pointers: list[str]

    @classmethod
    def of(cls, source: str, entry: str) -> MetalParameters:
        """Those of `[[kernel]] void <entry>(…)` in `source`."""
        matches = [match for match in map(_PARAMETER.fullmatch, _parameters(source, entry)) if match]
        parameters = [Parameter(m["type"], stem(m["name"]), m["attribute"], int(m["index"] or -1)) for m in matches]
        uniforms = _block(source, parameters, "params", set(FORMATS))
        pointers = [name for name, _ in _block(source, parameters, "globalParams", {"device*"})]
        return cls(entry, parameters, uniforms, pointers)

    @cached_property
    def buffers(self) -> dict[str, int]:
        """Metal's number of each buffer, `params` and `globalParams` among them."""
        return {parameter.name: parameter.number for parameter in self.parameters if parameter.attribute == "buffer"}

    def pack(self, uniforms: Mapping[str, Any], unset: int = 0) -> bytes:
        """The uniform block.

        Args:
            unset: what the bytes of those that are not given hold.

        Raises:
            BindingError: the block has no such uniform.
        """
        return pack_uniforms(self.entry, self.uniforms, uniforms, unset)


def pack_uniforms(entry: str, fields: list[tuple[str, str]], uniforms: Mapping[str, Any], unset: int = 0) -> bytes:
    """A block of `fields`, names and types, in the layout of C's structures; otherwise as `MetalParameters.pack`."""
    places, size = _layout(tuple(fields))
    unknown = uniforms.keys() - places.keys()
    if unknown:
        raise BindingError(f"{entry}: params has no {', '.join(sorted(unknown))}")
    block = bytearray([unset]) * size
    for name, value in uniforms.items():
        kind, offset = places[name]
        struct.pack_into(kind, block, offset, value.x | value.y << 32 if kind == "Q" else value)
    return bytes(block)


@cache
def _layout(fields: tuple[tuple[str, str], ...]) -> tuple[dict[str, tuple[str, int]], int]:
    """Format and offset of each field, and bytes in all: a training step packs more than a hundred blocks."""
    formats = "".join(FORMATS[kind] for _, kind in fields)
    ends = [struct.calcsize(formats[: i + 1]) for i in range(len(formats))]
    places = {name: (kind, end - struct.calcsize(kind)) for (name, _), kind, end in zip(fields, formats, ends, strict=True)}
    return places, struct.calcsize(formats + "0Q" * ("Q" in formats))


def stem(name: str) -> str:
    """A name as in the Slang source, without the number that makes it unique in what is emitted."""
    return re.sub(r"_\d+$", "", name)


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


def _block(source: str, parameters: list[Parameter], block: str, known: set[str]) -> list[tuple[str, str]]:
    """Names and types of the fields of the structure behind a buffer; of no others than `known` types."""
    for parameter in parameters:
        if parameter.name == block:
            kind = parameter.type.split()[0]
            body = re.search(rf"^struct {kind}\s*\{{(.*?)^\}};", source, re.MULTILINE | re.DOTALL)
            assert body, f"no structure {kind}"
            fields = [(stem(name), field) for field, name in _FIELD.findall(body[1])]
            assert all(field in known for _, field in fields), f"an unexpected field in {kind}"
            return fields
    return []
