"""SPZ of Niantic, versions 1 to 4: a header and a column for each property, quantised (github.com/nianticlabs/spz).

Positions are fixed-point numbers of 24 bits, opacities and rgb bytes, log scales bytes in steps of 1/16, rotations x y z in
bytes (version 2) or three of four components in ten bits each (3, 4), harmonics bytes of which only the upper bits count. Axes
are right, up, back; those of a PLY are right, down, front. Up to version 3 all is one gzip stream, in version 4 each column is
one of zstd.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.scene.formats.packing import drop_largest, logits_of, normalized, opacities_of, restore_largest, to_levels
from splat_py.scene.harmonics import rotate_harmonics
from splat_py.scene.ply import Float32Array, GaussianArrays

VERSIONS = (2, 3, 4)
DEFAULT_VERSION = 3
# What a byte holds of them, in steps of 1/16.
LOG_SCALES = (-10.0, 255 / 16 - 10)
_MAGIC = 0x5053474E
_HEADER, _HEADER_4 = struct.Struct("<IIIBBBx"), struct.Struct("<IIIBBBBI12x")
_ANTIALIASED = 1
_COEFFICIENTS = {0: 1, 1: 4, 2: 9, 3: 16, 4: 25}
# Half a turn about x: from right, down, front to right, up, back, and the other way round.
_FLIP = np.array([1.0, -1.0, -1.0])
# Of how many colours a byte is, and how far positions are resolved at least where they are small.
_COLOR_SCALE, _MOST_FRACTION_BITS = 0.15, 16
# A file that unpacks to more than this many times its size, and to more than a little, is no scene's.
_MOST_RATIO, _LITTLE = 64, 1 << 24
# Bits of a harmonic's byte, of degree 1 and above it, that are kept: fewer compress better. Niantic's writer keeps 5 and 4, too
# few for captures (docs/files.md).
_SH_BITS = (6, 5)


def require_version(version: int) -> None:
    """Raise SplatError for one that is not written."""
    if version not in VERSIONS:
        raise SplatError(f"the version of SPZ is {version}; use 2, 3 or 4")


def encode(gaussians: GaussianArrays, version: int = DEFAULT_VERSION) -> bytes:
    """The file of Gaussians.

    Raises:
        SplatError: another version, positions beyond 2²³, or version 4 without the package that compresses it.
    """
    require_version(version)
    count, farthest = len(gaussians.means), float(np.abs(gaussians.means).max(initial=1e-9))
    bits = min(_MOST_FRACTION_BITS, int(np.floor(np.log2(((1 << 23) - 1) / farthest))))
    if bits < 0:
        raise SplatError(f"a Gaussian is at {farthest:g}; SPZ has positions below {1 << 23:,}, scale or crop the scene first")
    fixed = np.rint(gaussians.means.astype(np.float64) * _FLIP * (1 << bits)).astype("<i4")
    rgb = gaussians.sh[:, 0].astype(np.float64) * _COLOR_SCALE + 0.5
    columns = [
        fixed.view(np.uint8).reshape(count, 3, 4)[:, :, :3],
        to_levels(opacities_of(gaussians.logit_opacities), 255).astype(np.uint8),
        to_levels(rgb, 255).astype(np.uint8),
        np.clip(np.rint((gaussians.log_scales - LOG_SCALES[0]) * 16), 0, 255).astype(np.uint8),
        _rotations(gaussians.quats, version),
        _harmonics(gaussians.sh),
    ]
    degree = int(np.sqrt(gaussians.sh.shape[1])) - 1
    parts = [np.ascontiguousarray(column).tobytes() for column in columns]
    numbers = (_MAGIC, version, count, degree, bits, _ANTIALIASED * gaussians.antialiased)
    if version < 4:
        # No time of writing: the same scene gives the same file.
        packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
        return packer.compress(_HEADER.pack(*numbers) + b"".join(parts)) + packer.flush()
    packer = _zstandard().ZstdCompressor(level=12)
    streams = [(packer.compress(part), len(part)) for part in parts if part]
    contents = b"".join(struct.pack("<QQ", len(stream), size) for stream, size in streams)
    header = _HEADER_4.pack(*numbers, len(streams), _HEADER_4.size)
    return header + contents + b"".join(stream for stream, _ in streams)


def decode(data: bytes) -> GaussianArrays:
    """The Gaussians of a file.

    Raises:
        ValueError, struct.error, zlib.error: it is cut off, or something else.
        SplatError: it is of version 4, and the package that reads it is missing.
    """
    magic, version, count, degree, bits, flags = _HEADER.unpack(_unpacked(data, _HEADER.size))
    if magic != _MAGIC or version not in (1, *VERSIONS):
        raise ValueError("it does not begin as versions 1 to 4 do")
    if degree not in _COEFFICIENTS or bits > 30:
        raise ValueError(f"it says that its harmonics are of degree {degree} and its positions have {bits} bits of fractions")
    rest = _COEFFICIENTS[degree] - 1
    sizes = [count * size for size in (6 if version == 1 else 9, 1, 3, 3, 4 if version > 2 else 3, 3 * rest)]
    if sum(sizes) > max(_LITTLE, _MOST_RATIO * len(data)):
        raise ValueError(f"{count:,} Gaussians in {len(data):,} bytes")
    if version == 4:
        parts = _streams(data, [size for size in sizes if size])
    else:
        body = _unpacked(data, _HEADER.size + sum(sizes))
        ends = _HEADER.size + np.cumsum([0, *sizes])
        parts = [body[a:b] for a, b in itertools.pairwise(ends)]
    positions, opacities, colors, scales, rotations, harmonics = (
        np.frombuffer(part, np.uint8) for part in (*parts, *[b""] * (6 - len(parts)))
    )
    if version == 1:
        means = positions.view("<f2").astype(np.float64).reshape(count, 3)
    else:
        wide = np.zeros((count, 3, 4), np.uint8)
        wide[:, :, 1:] = positions.reshape(count, 3, 3)
        # In the upper bytes, shifting down keeps the sign.
        means = (wide.view("<i4")[..., 0] >> 8) / float(1 << bits)
    base = ((colors.reshape(count, 3) / 255 - 0.5) / _COLOR_SCALE).astype(np.float32)
    # Only degrees up to 3 are drawn here.
    higher = ((harmonics.reshape(count, rest, 3) - 128.0) / 128).astype(np.float32)[:, :15]
    return GaussianArrays(
        means=(means * _FLIP).astype(np.float32),
        quats=_quats(rotations.reshape(count, 4 if version > 2 else 3), version),
        log_scales=(scales.reshape(count, 3) / 16 + LOG_SCALES[0]).astype(np.float32),
        logit_opacities=logits_of(opacities / 255),
        sh=rotate_harmonics(np.concatenate([base[:, None], higher], 1), np.diag(_FLIP)),
        antialiased=bool(flags & _ANTIALIASED),
    )


def _unpacked(data: bytes, size: int) -> bytes:
    """The first bytes of what a file holds, in gzip or as it is."""
    if data[:2] == b"\x1f\x8b":
        data = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(data, size)
    if len(data) < size:
        raise ValueError("it is cut off")
    return data[:size]


def _rotations(quats: Float32Array, version: int) -> NDArray[np.uint8]:
    """[N, 3] or [N, 4] bytes."""
    flipped = normalized(quats)[:, [1, 2, 3, 0]] * [*_FLIP, 1]
    if version == 2:
        flipped *= np.where(flipped[:, 3:] < 0, -1, 1)
        return to_levels(flipped[:, :3] / 2 + 0.5, 255).astype(np.uint8)
    # The components' order is x y z w here; normalising is no longer needed, and would be of another order.
    largest, others = drop_largest(flipped)
    word: NDArray[Any] = largest.astype(np.uint32)
    for axis in range(3):
        word = word << 10 | (others[:, axis] < 0).astype(np.uint32) << 9 | to_levels(np.abs(others[:, axis]), 511)
    return word.astype("<u4").view(np.uint8).reshape(len(quats), 4)


def _quats(rotations: NDArray[np.uint8], version: int) -> Float32Array:
    """The inverse of `_rotations`, w x y z [N, 4]."""
    if version < 3:
        xyz = rotations / 127.5 - 1
        xyzw = np.concatenate([xyz, np.sqrt(np.maximum(0, 1 - (xyz**2).sum(1, keepdims=True)))], 1)
    else:
        word = np.ascontiguousarray(rotations).view("<u4")[:, 0]
        fields = np.stack([word >> 20, word >> 10, word], 1) & 1023
        xyzw = restore_largest(word >> 30, (fields & 511) / 511 * np.where(fields >> 9, -1, 1))
    return normalized((xyzw * [*_FLIP, 1])[:, [3, 0, 1, 2]]).astype(np.float32)


def _harmonics(sh: Float32Array) -> NDArray[np.uint8]:
    """[N, K - 1, 3] bytes, with steps of 1/32 of degree 1, of 1/16 above."""
    higher = rotate_harmonics(sh, np.diag(_FLIP))[:, 1:]
    bits = np.where(np.arange(higher.shape[1]) < 3, *_SH_BITS)[None, :, None]
    step = 1 << (8 - bits)
    levels = np.floor((np.rint(higher * 128.0) + 128 + step // 2) / step) * step
    return np.clip(levels, 0, 255).astype(np.uint8)


def _streams(data: bytes, sizes: list[int]) -> list[bytes]:
    """What the zstd streams of version 4 hold."""
    *_, streams, contents = _HEADER_4.unpack(data[: _HEADER_4.size])
    if streams != len(sizes) or not _HEADER_4.size <= contents <= len(data):
        raise ValueError(f"it says that it has {streams} streams")
    unpacker, at, parts = _zstandard().ZstdDecompressor(), contents + 16 * streams, []
    for i, size in enumerate(sizes):
        packed, unpacked = struct.unpack_from("<QQ", data, contents + 16 * i)
        if unpacked != size or packed > len(data) - at:
            raise ValueError(f"stream {i} has another size")
        try:
            part = unpacker.stream_reader(data[at : at + packed]).read(size)
        except _zstandard().ZstdError as error:
            raise ValueError(f"stream {i}: {error}") from error
        if len(part) != size:
            raise ValueError(f"stream {i} is cut off")
        parts.append(part)
        at += packed
    return parts


def _zstandard():  # type: ignore[no-untyped-def]  # a module
    try:
        import zstandard
    except ImportError as error:
        raise SplatError("SPZ of version 4 needs a package more: pip install 'slang-splat[files]'") from error
    return zstandard
