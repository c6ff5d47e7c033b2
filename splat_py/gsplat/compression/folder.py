"""Reads folders of `PngCompression`, whoever wrote them: what a file says of its size is checked before it is allocated."""

from __future__ import annotations

import math
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import torch
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.files import parse_json, reason
from splat_py.scene.decoding import checked_size

# Ours are a few KiB.
_MOST_META_BYTES = 1 << 20
_MOST_RANK = 8
# Deflate stores at most this many bytes in one.
_MOST_RATIO = 1032
# What a parameter may be called: it becomes a file's name.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
_DTYPES = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool")
_RANKS = {"means": (3,), "scales": (3,), "quats": (4,), "opacities": (), "sh0": (1, 3)}


@dataclass(frozen=True)
class Entry:
    """What meta.json says of a parameter."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    # Of each channel, or one number for all; none where values are stored as they are.
    mins: NDArray[np.float32]
    maxs: NDArray[np.float32]
    bits: int

    def dequantize(self, steps: NDArray[np.integer], bits: int) -> NDArray[np.float32]:
        """Values of steps [..., C], or of any shape if there is one range for all."""
        share = steps.astype(np.float64) / (2**bits - 1)
        return (share * (self.maxs.astype(np.float64) - self.mins) + self.mins).astype(np.float32)


def read_entries(folder: Path) -> list[Entry]:
    """What meta.json lists.

    Raises:
        SplatError: it is missing or damaged, or describes what no scene has.
    """
    path = folder / "meta.json"
    try:
        if path.stat().st_size > _MOST_META_BYTES:
            raise ValueError(f"it is longer than {_MOST_META_BYTES} bytes")
        meta = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(meta, dict):
            raise ValueError("it is no dictionary")
        entries = [_entry(name, fields) for name, fields in meta.items()]
        if len({entry.shape[0] for entry in entries}) > 1:
            raise ValueError("parameters are of different numbers of Gaussians")
    except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise SplatError(f"{path} cannot be read ({reason(error)}); compress the scene again") from error
    return entries


def _entry(name: str, fields: dict[str, Any]) -> Entry:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:100]!r} is no parameter's name")
    shape, dtype = fields["shape"], fields["dtype"]
    whole = isinstance(shape, list) and all(type(side) is int and 0 <= side < 1 << 32 for side in shape)
    if not whole or not 1 <= len(shape) <= _MOST_RANK:
        raise ValueError(f"{name} has no shape")
    if dtype not in _DTYPES:
        raise ValueError(f"{name} has no type")
    if tuple(shape[1:]) != _RANKS.get(name, tuple(shape[1:])) or (name == "shN" and (len(shape), shape[-1]) != (3, 3)):
        raise ValueError(f"{name} has shape {shape}")
    quantised = name in (*_RANKS, "shN") and 0 not in shape
    count = 1 if name == "shN" else math.prod(shape[1:])
    mins, maxs = (_range(name, fields[key], count) if quantised else np.zeros(0, np.float32) for key in ("mins", "maxs"))
    bits = fields["quantization"] if quantised and name == "shN" else 8
    if type(bits) is not int or not 1 <= bits <= 8:
        raise ValueError(f"{name} has steps of {bits} bits")
    return Entry(name, tuple(shape), getattr(torch, dtype), mins, maxs, bits)


def _range(name: str, numbers: Any, count: int) -> NDArray[np.float32]:
    given = numbers if isinstance(numbers, list) else [numbers]
    if len(given) != count or any(type(x) not in (int, float) or not math.isfinite(x) for x in given):
        raise ValueError(f"{name} has no range")
    with np.errstate(over="ignore"):
        bounds = np.array(given, np.float32)
    if not np.isfinite(bounds).all():
        raise ValueError(f"{name} has a range beyond float32")
    return bounds


def read_picture(path: Path, entry: Entry) -> NDArray[np.uint8]:
    """A square PNG of a pixel a Gaussian, [N, C].

    Raises:
        SplatError: it is missing, damaged, or of another size than the parameter.
    """
    count, channels = entry.shape[0], math.prod(entry.shape[1:])
    side = math.isqrt(count)
    wanted = (side, side) if channels == 1 else (side, side, channels)
    try:
        data = path.read_bytes()
        checked_size(path, data)
        if side**2 != count or not data.startswith(b"\x89PNG"):
            raise ValueError("it is no PNG of a square number of Gaussians")
        found = iio.improps(data, plugin="pillow")
        if tuple(found.shape) != wanted or found.dtype != np.uint8:
            raise ValueError(f"it is {list(found.shape)} {found.dtype} and not {list(wanted)} uint8")
        pixels: NDArray[np.uint8] = iio.imread(data, plugin="pillow").reshape(count, channels)
    # Decoders raise what they like.
    except Exception as error:
        if isinstance(error, SplatError):
            raise
        raise SplatError(f"{path} cannot be read ({reason(error)}); compress the scene again") from error
    return pixels


def read_arrays(path: Path, shapes: dict[str, tuple[int | None, ...]], kinds: str = "fiub") -> list[NDArray]:
    """Arrays of an NPZ by their names and shapes, of which None may be anything.

    Args:
        kinds: NumPy's letters for the kinds of numbers that they may be.

    Raises:
        SplatError: it is missing, damaged, or holds something else.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return [_read_array(archive, name, shape, kinds) for name, shape in shapes.items()]
    # zipfile and NumPy let what they decode raise.
    except Exception as error:
        raise SplatError(f"{path} cannot be read ({reason(error)}); compress the scene again") from error


def _read_array(archive: zipfile.ZipFile, name: str, wanted: tuple[int | None, ...], kinds: str) -> NDArray:
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"{name} is not of NumPy's first format")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if len(shape) != len(wanted) or any(b not in (None, a) for a, b in zip(shape, wanted, strict=True)):
        raise ValueError(f"{name} is {list(shape)}")
    if dtype.kind not in kinds:
        raise ValueError(f"{name} is of type {dtype}")
    nbytes, most = math.prod(shape) * dtype.itemsize, _MOST_RATIO * Path(str(archive.filename)).stat().st_size
    if nbytes > most:
        raise ValueError(f"{name} is said to be of {nbytes} bytes, and the file is too short for that")
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
