"""The facts of a SPIR-V module that a pipeline's layout needs."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

_OP_SOURCE, _OP_EXECUTION_MODE, _OP_CAPABILITY, _OP_VARIABLE, _OP_DECORATE = 3, 16, 17, 59, 71
_LOCAL_SIZE, _BINDING, _DESCRIPTOR_SET = 17, 33, 34
_UNIFORM, _STORAGE_BUFFER = 2, 12
_ATOMIC_FLOAT32_ADD = 6033


class Binding(NamedTuple):
    set: int
    binding: int
    uniform: bool


def instructions(code: bytes) -> Iterator[tuple[int, list[int]]]:
    """Operation and operands of each instruction, after the five words of the header."""
    words = np.frombuffer(code, np.uint32)
    assert words[0] == 0x07230203, "not SPIR-V"
    position = 5
    while position < words.size:
        length, operation = int(words[position]) >> 16, int(words[position]) & 0xFFFF
        yield operation, words[position + 1 : position + length].tolist()
        position += length


def bindings(code: bytes) -> list[Binding]:
    places: dict[int, dict[int, int]] = {}
    storage: dict[int, int] = {}
    for operation, operands in instructions(code):
        if operation == _OP_DECORATE and operands[1] in (_BINDING, _DESCRIPTOR_SET):
            places.setdefault(operands[0], {})[operands[1]] = operands[2]
        elif operation == _OP_VARIABLE:
            storage[operands[1]] = operands[2]
    assert all(storage[name] in (_UNIFORM, _STORAGE_BUFFER) for name in places), "binds more than buffers"
    return [Binding(at[_DESCRIPTOR_SET], at[_BINDING], storage[name] == _UNIFORM) for name, at in places.items()]


def adds_floats_atomically(code: bytes) -> bool:
    return any(operation == _OP_CAPABILITY and operands[0] == _ATOMIC_FLOAT32_ADD for operation, operands in instructions(code))


def group_size(code: bytes) -> int:
    for operation, operands in instructions(code):
        if operation == _OP_EXECUTION_MODE and operands[1] == _LOCAL_SIZE:
            return operands[2] * operands[3] * operands[4]
    raise AssertionError("nothing says how many threads a workgroup has")


def without_language(code: bytes) -> bytes:
    """The module with an unknown source language, as validators of 2023 do not know Slang."""
    words = np.frombuffer(code, np.uint32).copy()
    position = 5
    while position < words.size:
        if words[position] & 0xFFFF == _OP_SOURCE:
            words[position + 1] = 0
        position += int(words[position]) >> 16
    return words.tobytes()
