"""The parameters of an entry point of emitted Metal source: buffers by number, and the layout of blocks of numbers.

Metal source has no reflection, and needs none: the compiler writes every parameter with its attribute.
"""

import ctypes
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

_PARAMETER = re.compile(r"(?:,\s*)?(?P<type>.*?)\s*(?P<name>\w+)\s*\[\[(?P<attribute>\w+)(?:\((?P<index>\d+)\))?\]\]")
_FIELD = re.compile(r"^\s*(\S.*?)\s*(\**)\s*(\w+);", re.MULTILINE)
# A uint2 is as large and aligned as a pointer.
_POINTER, _UINT2 = ctypes.c_void_p, ctypes.c_uint64
_NUMBERS: dict[str, Any] = {
    "uint": ctypes.c_uint32,
    "int": ctypes.c_int32,
    "float": ctypes.c_float,
    "bool": ctypes.c_bool,
    "uint2": _UINT2,
}


@dataclass(frozen=True)
class Block:
    """A structure in a buffer, laid out as in C: its bytes, and the type and the offset of each number and pointer. The fields
    of inner structures are named `struct_field`."""

    size: int
    fields: dict[str, tuple[Any, int]]

    @property
    def pointers(self) -> list[str]:
        """Names of buffers whose addresses are in the block."""
        return [name for name, (kind, _) in self.fields.items() if kind is _POINTER]

    def pack(self, values: Mapping[str, Any], unset: int = 0) -> bytes:
        """Pack the given fields, pointers as addresses. The bytes of other fields are `unset`."""
        block = bytearray([unset]) * self.size
        for name, (kind, offset) in self.fields.items():
            if name in values:
                value = values[name]
                struct.pack_into(kind._type_, block, offset, value.x | value.y << 32 if kind is _UINT2 else value)
        return bytes(block)


def _layout(source: str, structure: str) -> type[ctypes.Structure]:
    """A structure that emitted source declares."""
    body = re.search(rf"^struct {structure}\s*\{{(.*?)^\}};", source, re.MULTILINE | re.DOTALL)
    assert body, f"no structure {structure}"
    fields = [
        (stem(name), _POINTER if stars or kind.endswith("*") else _NUMBERS.get(kind) or _layout(source, kind))
        for kind, stars, name in _FIELD.findall(body[1])
    ]
    return type(structure, (ctypes.Structure,), {"_fields_": fields})


def _flattened(layout: type[ctypes.Structure]) -> dict[str, tuple[Any, int]]:
    """`Block.fields` of a structure."""
    found: dict[str, tuple[Any, int]] = {}
    for name, kind, *_ in layout._fields_:
        offset = getattr(layout, name).offset
        if issubclass(kind, ctypes.Structure):
            found |= {f"{name}_{field}": (inner, offset + at) for field, (inner, at) in _flattened(kind).items()}
        else:
            found[name] = kind, offset
    return found


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
        written = re.search(rf"\[\[kernel\]\] void {entry}\((.*?)\)\s*\{{", source, re.DOTALL)
        assert written, f"no kernel {entry}"
        found = _PARAMETER.finditer(written[1])
        parameters = [Parameter(m["type"], stem(m["name"]), m["attribute"], int(m["index"] or -1)) for m in found]
        blocks = [p for p in parameters if p.name in ("params", "globalParams")]
        layouts = {block.name: _layout(source, block.type.split()[0]) for block in blocks}
        return cls(parameters, {name: Block(ctypes.sizeof(layout), _flattened(layout)) for name, layout in layouts.items()})

    @cached_property
    def buffers(self) -> dict[str, int]:
        """Metal's number of each buffer, including those of blocks."""
        return {parameter.name: parameter.number for parameter in self.parameters if parameter.attribute == "buffer"}


def stem(name: str) -> str:
    """A name as in the Slang source, without the emitted numeric suffix."""
    return re.sub(r"_\d+$", "", name).removeprefix("globalParams_")
