"""Ways to damage a file that leave most of it intact: bytes, lines of text, values of JSON, tensors."""

import copy
import json
import re
import struct
from random import Random
from typing import Any

import numpy as np

# Numbers at which parsers and sizes go wrong.
_POWERS = (8, 16, 31, 32, 63, 64)
INTEGERS = (0, 1, -1, 2, 127, 10**5, 10**9, *(2**k - 1 for k in _POWERS), *(2**k for k in _POWERS))
NUMBERS = (*INTEGERS, 0.5, -0.0, 1e-40, 1e-9, 1e9, 1e30, -1e30, 1e308, 10**400, float("nan"), float("inf"), -float("inf"))
VALUES = (
    *NUMBERS,
    None,
    True,
    "",
    "auto",
    "true; export static const int X = 1",
    "../../../etc/passwd",
    "/",
    "\0",
    "\ud800",
    "é" * 300,
    "[bold]x",
    [],
    [[]],
    {},
    {"a": 1},
)
WORDS = (b"", b"-", b"nan", b"char", b"list uchar int", b"OPENCV", b"\xff\xfe", b"x" * 300)
_NUMBER = re.compile(rb"-?\d+\.?\d*(?:e-?\d+)?")


def damaged_bytes(data: bytes, random: Random) -> bytes:
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        data = random.choice((_flip, _cut, _insert, _repeat, _set_integer))(data, random)
    return data


def _flip(data: bytes, random: Random) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _cut(data: bytes, random: Random) -> bytes:
    first, last = sorted(random.randrange(len(data) + 1) for _ in range(2))
    return random.choice((data[:first], data[:first] + data[min(last, first + 16) :]))


def _insert(data: bytes, random: Random) -> bytes:
    at = random.choice((random.randrange(len(data) + 1), len(data)))
    return data[:at] + random.randbytes(random.choice((1, 2, 8, 200))) + data[at:]


def _repeat(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[: at + random.randrange(64)] + data[at:]


def _set_integer(data: bytes, random: Random) -> bytes:
    code, size = random.choice((("B", 1), ("H", 2), ("I", 4), ("Q", 8)))
    at = random.randrange(len(data) + 1)
    value = random.choice(INTEGERS) % (1 << 8 * size)
    return data[:at] + struct.pack(random.choice("<>") + code, value) + data[at + size :]


def damaged_text(data: bytes, random: Random) -> bytes:
    kind = random.randrange(5)
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    if kind == 0:
        return damaged_bytes(data, random)
    if kind == 1:
        lines[at : at + 1] = random.choice(([], [lines[at]] * 2, [random.choice(lines)]))
    elif kind == 2:
        words = lines[at].split(b" ")
        words[random.randrange(len(words))] = random.choice(WORDS)
        lines[at] = b" ".join(words)
    else:
        numbers = list(_NUMBER.finditer(data))
        if numbers:
            number = random.choice(numbers)
            return data[: number.start()] + str(random.choice(NUMBERS)).encode() + data[number.end() :]
    return b"\n".join(lines)


def damaged_json(content: Any, random: Random) -> bytes:
    """A value replaced, removed, repeated or moved; sometimes the text around it damaged, or nested deeply."""
    text = json.dumps(damaged_value(content, random)).encode()
    kind = random.randrange(20)
    if kind == 0:
        return damaged_bytes(text, random)
    if kind == 1:
        return text.replace(b"1", b"[" * random.choice((10, 100_000)), 1)
    return text


def damaged_value(content: Any, random: Random) -> Any:
    """A copy in which one to three values, anywhere in it, are changed."""
    content = copy.deepcopy(content)
    for _ in range(random.choice((1, 1, 2, 3))):
        places = list(_places(content))
        if not places:
            return copy.deepcopy(random.choice(VALUES))
        parent, key = random.choice(places)
        kind = random.randrange(8)
        if kind == 0:
            del parent[key]
        elif kind == 1 and isinstance(parent, dict):
            parent[random.choice(("more", "", "w", "steps"))] = parent.pop(key)
        elif kind == 1:
            parent.append(copy.deepcopy(parent[key]))
        elif kind == 2:
            parent[key] = random.choice(([parent[key]], {"a": parent[key]}, str(parent[key])))
        else:
            parent[key] = copy.deepcopy(random.choice(VALUES))
    return content


def _places(content: Any) -> Any:
    """(parent, key) of every value below."""
    if isinstance(content, dict | list):
        for key in list(content) if isinstance(content, dict) else range(len(content)):
            yield content, key
            yield from _places(content[key])


def damaged_arrays(arrays: dict[str, np.ndarray], random: Random) -> dict[str, np.ndarray]:
    """The arrays with one of another shape or type, with NaN or infinity, under another name, or absent."""
    arrays = dict(arrays)
    name = random.choice(list(arrays))
    values = arrays[name]
    kind = random.randrange(7)
    if kind == 0:
        del arrays[name]
    elif kind == 1:
        arrays[random.choice(("more", "params", "means.m"))] = arrays.pop(name)
    elif kind == 2:
        arrays[name] = values.astype(random.choice(("f2", "f8", "i4", "u1", "i8", "?")))
    elif kind == 3:
        arrays[name] = np.ascontiguousarray(values[: random.randrange(len(values))])
    elif kind == 4:
        arrays[name] = np.repeat(values, 2, axis=random.randrange(values.ndim))
    elif kind == 5:
        arrays[name] = values.reshape(random.choice(((-1,), (1, -1), (-1, 1, 1))))
    else:
        arrays[name] = values.copy()
        with np.errstate(over="ignore"):
            limits = np.iinfo(values.dtype) if values.dtype.kind in "iu" else None
            number = random.choice((limits.min, 3, limits.max) if limits else (np.nan, np.inf, -1.0, 1e30, 3.4e38))
            arrays[name].reshape(-1)[random.randrange(values.size)] = number
    return arrays
