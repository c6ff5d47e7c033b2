"""Quantised formats: .splat and .ksplat of two web viewers, and Niantic's SPZ.

.splat, the format of antimatter15's viewer (github.com/antimatter15/splat), has 32 bytes a Gaussian and no header: position and
standard deviations as float32, rgb and opacity as bytes, and the rotation w x y z as bytes 128 + 128 q. Colours do not depend
on the direction.

.ksplat, the format of mkkellogg's GaussianSplats3D (github.com/mkkellogg/GaussianSplats3D, KSplatLoader and SplatBuffer), has a
header of 4,096 bytes, one of 1,024 for each section, then the sections. Level 0 stores float32; level 1 stores positions as
16-bit numbers relative to the centre of their bucket and the rest as float16; level 2 stores harmonics as bytes between two
bounds. Colours and opacities are always bytes. Harmonics run band by band, in each channel by channel. The viewer supports
degree 2 at most, so no higher degree is written.

SPZ, versions 1 to 4 (github.com/nianticlabs/spz), has a header and a column for each property: positions as 24-bit fixed-point
numbers, opacities and rgb as bytes, log scales as bytes in steps of 1/16, rotations as x y z in bytes (version 2) or three of
four components in ten bits each (3, 4), harmonics as bytes with only the upper bits in use. Axes are right, up, back; a PLY has
right, down, front. Up to version 3 the file is one gzip stream; in version 4 each column is a zstd stream.
"""

import itertools
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splat_py.base.errors import SplatError
from splat_py.scene.formats import packing
from splat_py.scene.formats.packing import Float32Array, StoredGaussians
from splat_py.scene.similarity import rotate_harmonics

_ROW = np.dtype([("mean", "<f4", 3), ("scale", "<f4", 3), ("color", "u1", 3), ("opacity", "u1"), ("quat", "u1", 4)])
SPZ_VERSIONS = (2, 3, 4)
SPZ_DEFAULT_VERSION = 3
# The log scales that a byte covers, in steps of 1/16.
SPZ_LOG_SCALES = (-10.0, 255 / 16 - 10)
_MAGIC = 0x5053474E
_SPZ_HEADER, _SPZ_HEADER_4 = struct.Struct("<IIIBBBx"), struct.Struct("<IIIBBBBI12x")
_ANTIALIASED = 1
# Half a turn about x, which swaps right, down, front and right, up, back.
_FLIP = np.array([1.0, -1.0, -1.0])
# The scale of a colour in its byte, and the most fraction bits of a position.
_COLOR_SCALE, _MOST_FRACTION_BITS = 0.15, 16
# A file unpacks to at most this multiple of its size.
_MOST_RATIO = 64
# Bits of a harmonic of degree 1, and of higher degrees; Niantic's writer keeps 5 and 4, too few for captures (docs/files.md).
_SH_BITS = (6, 5)


def encode_splat(gaussians: StoredGaussians) -> bytes:
    rows = np.zeros(len(gaussians.means), _ROW)
    rows["mean"] = gaussians.means
    rows["scale"] = gaussians.scales
    rows["color"] = packing.to_levels(gaussians.colors, 255)
    rows["opacity"] = packing.to_levels(gaussians.opacities, 255)
    rows["quat"] = np.clip(np.rint(packing.normalized(gaussians.quats) * 128 + 128), 0, 255)
    return rows.tobytes()


def decode_splat(data: bytes) -> StoredGaussians:
    if len(data) % _ROW.itemsize:
        raise ValueError(f"its {len(data)} bytes are not a multiple of {_ROW.itemsize}")
    rows = np.frombuffer(data, _ROW)
    return StoredGaussians(
        means=rows["mean"].astype(np.float32),
        quats=packing.normalized(rows["quat"].astype(np.float64) / 128 - 1).astype(np.float32),
        log_scales=packing.log_scales_of(rows["scale"]),
        logit_opacities=packing.logits_of(rows["opacity"] / 255),
        sh=packing.base_of(rows["color"] / 255).astype(np.float32)[:, None],
    )


_HEADER_BYTES, _SECTION_BYTES = 4096, 1024
# Version (2), sections (maximum, actual), Gaussians (maximum, actual), level, the scene's centre, the harmonics' bounds.
_HEADER = struct.Struct("<BBxxIIIIHxx3f2f")
# Gaussians (actual, maximum, per bucket), buckets, block side, bytes of a centre, range, bytes; full, partial buckets; degree.
_SECTION = struct.Struct("<IIIIfHxxIIIIHxx")
_BUCKET, _RANGE, _BLOCKS = 256, 32767, 64
_SH_BOUNDS = (-1.5, 1.5)
# The smallest and the largest standard deviation in float16.
_LEAST_SCALE, _MOST_SCALE = 2.0**-24, 65504.0
KSPLAT_LOG_SCALES = (float(np.log(_LEAST_SCALE)), float(np.log(_MOST_SCALE)))


def _row(level: int, harmonics: int) -> np.dtype:
    number = "<f2" if level else "<f4"
    mean, sh = ("<u2" if level else "<f4"), ("<f4", "<f2", "u1")[level]
    return np.dtype([("mean", mean, 3), ("scale", number, 3), ("quat", number, 4), ("color", "u1", 4), ("sh", sh, harmonics)])


def encode_ksplat(gaussians: StoredGaussians) -> bytes:
    """Encode Gaussians as a .ksplat of level 1."""
    sh = gaussians.sh[:, :9]
    means = gaussians.means.astype(np.float64)
    lowest, highest = (f(means, 0) if len(means) else np.zeros(3) for f in (np.min, np.max))
    side = max(float((highest - lowest).max()) / _BLOCKS, 1e-6)
    order, sizes, centers = _buckets(means, lowest, side)
    full = int((sizes == _BUCKET).sum())
    harmonics = _band_order(sh.shape[1] - 1)
    rows = np.zeros(len(order), _row(1, len(harmonics)))
    offsets = (means[order] - np.repeat(centers, sizes, 0)) / (side / 2) * _RANGE
    rows["mean"] = np.clip(np.rint(offsets) + _RANGE, 0, 2 * _RANGE + 1)
    with np.errstate(over="ignore"):
        rows["scale"] = np.clip(np.exp(gaussians.log_scales[order]), _LEAST_SCALE, _MOST_SCALE)
    rows["quat"] = packing.normalized(gaussians.quats[order])
    rows["color"][:, :3] = packing.to_levels(gaussians.colors[order], 255)
    rows["color"][:, 3] = packing.to_levels(gaussians.opacities[order], 255)
    rows["sh"] = np.clip(sh[order, 1:].reshape(len(order), len(harmonics))[:, harmonics], -_MOST_SCALE, _MOST_SCALE)
    count, degree = len(order), int(np.sqrt(sh.shape[1])) - 1
    header = _HEADER.pack(0, 1, 1, 1, count, count, 1, *(float(x) for x in (lowest + highest) / 2), *_SH_BOUNDS)
    partial = len(sizes) - full
    size = 4 * partial + 12 * len(sizes) + rows.nbytes
    section = _SECTION.pack(count, count, _BUCKET, len(sizes), side, 12, _RANGE, size, full, partial, degree)
    contents = sizes[full:].astype("<u4"), centers.astype("<f4"), rows
    heads = header.ljust(_HEADER_BYTES, b"\0") + section.ljust(_SECTION_BYTES, b"\0")
    return heads + b"".join(part.tobytes() for part in contents)


def _buckets(
    means: NDArray[np.float64], lowest: NDArray[np.float64], side: float
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """Sort Gaussians by grid block into buckets of up to 256. Returns their order [N] and the buckets' sizes and centres."""
    cells = np.floor((means - lowest) / side).astype(np.int64)
    blocks, block, counts = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(block.reshape(-1), kind="stable")
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    # The bucket of each Gaussian in that order, partial buckets last.
    own = block.reshape(-1)[order]
    partial = rank // _BUCKET >= counts[own] // _BUCKET
    bucket = np.stack([partial, own, rank // _BUCKET], 1)
    kinds, sizes = np.unique(bucket, axis=0, return_counts=True)
    centers = lowest + (blocks[kinds[:, 1]] + 0.5) * side
    return order[np.lexsort((bucket[:, 2], bucket[:, 1], bucket[:, 0]))], sizes, centers


def decode_ksplat(data: bytes) -> StoredGaussians:
    """The Gaussians of a .ksplat of any level."""
    major, minor, sections, _, _, total, level, *_, low, high = _HEADER.unpack_from(data)
    if major != 0 or minor < 1 or level > 2 or sections > 4096:
        raise ValueError(f"its version is {major}.{minor} and its level {level}")
    # Older files without bounds have zeros here.
    bounds = low or _SH_BOUNDS[0], high or _SH_BOUNDS[1]
    at, parts = _HEADER_BYTES + sections * _SECTION_BYTES, []
    for i in range(sections):
        part, at = _read_section(data, at, _HEADER_BYTES + i * _SECTION_BYTES, level, bounds)
        parts.append(part)
    count = sum(len(part.means) for part in parts)
    if count != total or not parts:
        raise ValueError(f"its sections hold {count:,} of {total:,} Gaussians")
    return packing.joined(parts)


def _read_section(data: bytes, at: int, header: int, level: int, bounds: tuple[float, float]) -> tuple[StoredGaussians, int]:
    """The Gaussians of the section at `at`, whose header is at `header`, and the position of the next section."""
    count, most, bucket, buckets, side, center_bytes, levels, _, full, partial, degree = _SECTION.unpack_from(data, header)
    if degree > 3 or count > most or (buckets and center_bytes != 12):
        raise ValueError(f"a section claims {count:,} Gaussians with harmonics of degree {degree}")
    harmonics = _band_order((degree + 1) ** 2 - 1)
    row = _row(level, len(harmonics))
    start = at + 4 * partial + center_bytes * buckets
    end = start + row.itemsize * most
    if end > len(data):
        raise ValueError("it is cut off")
    rows = np.frombuffer(data, row, count, start)
    means = rows["mean"].astype(np.float64)
    if level:
        sizes = np.frombuffer(data, "<u4", partial, at).astype(np.int64)
        sizes = np.concatenate([np.full(full, bucket), sizes]) if full <= buckets else sizes
        if len(sizes) != buckets or sizes.max(initial=0) > len(data):
            raise ValueError("a section's buckets do not match its header")
        centers = np.frombuffer(data, "<f4", 3 * buckets, at + 4 * partial).reshape(-1, 3)
        ends = np.cumsum(sizes)
        if count > ends.max(initial=0):
            raise ValueError("a section has Gaussians without a bucket")
        levels = levels or _RANGE
        own = np.searchsorted(ends, np.arange(count), side="right")
        means = centers[own] + (means - levels) * (side / 2 / levels)
    sh = rows["sh"].astype(np.float32)
    if level == 2:
        sh = (bounds[0] + sh / 255 * (bounds[1] - bounds[0])).astype(np.float32)
    base = packing.base_of(rows["color"][:, :3] / 255).astype(np.float32)
    higher = sh[:, np.argsort(harmonics)].reshape(len(sh), len(harmonics) // 3, 3)
    with np.errstate(over="ignore", invalid="ignore"):
        return StoredGaussians(
            means=means.astype(np.float32),
            quats=packing.normalized(rows["quat"]).astype(np.float32),
            log_scales=packing.log_scales_of(rows["scale"].astype(np.float32)),
            logit_opacities=packing.logits_of(rows["color"][:, 3] / 255),
            sh=np.concatenate([base[:, None], higher], 1),
        ), end


def _band_order(coefficients: int) -> NDArray[np.intp]:
    """Indices into flattened coefficients [K - 1, 3] in the file's order: band by band, each channel by channel."""
    bands = np.split(np.arange(3 * coefficients).reshape(coefficients, 3), [3, 8])
    return np.concatenate([band.T.ravel() for band in bands])


def require_version(version: int) -> None:
    """Raise SplatError unless this version of SPZ can be written."""
    if version not in SPZ_VERSIONS:
        raise SplatError(f"the SPZ version is {version}; use 2, 3 or 4")


def encode_spz(gaussians: StoredGaussians, version: int = SPZ_DEFAULT_VERSION) -> bytes:
    require_version(version)
    count, farthest = len(gaussians.means), float(np.abs(gaussians.means).max(initial=1e-9))
    bits = min(_MOST_FRACTION_BITS, int(np.floor(np.log2(((1 << 23) - 1) / farthest))))
    if bits < 0:
        raise SplatError(f"a Gaussian is at {farthest:g}; SPZ holds positions below {1 << 23:,}, scale or crop the scene first")
    fixed = np.rint(gaussians.means.astype(np.float64) * _FLIP * (1 << bits)).astype("<i4")
    rgb = gaussians.sh[:, 0].astype(np.float64) * _COLOR_SCALE + 0.5
    columns = [
        fixed.view(np.uint8).reshape(count, 3, 4)[:, :, :3],
        packing.to_levels(gaussians.opacities, 255).astype(np.uint8),
        packing.to_levels(rgb, 255).astype(np.uint8),
        np.clip(np.rint((gaussians.log_scales - SPZ_LOG_SCALES[0]) * 16), 0, 255).astype(np.uint8),
        _rotations(gaussians.quats, version),
        _harmonics(gaussians.sh),
    ]
    degree = int(np.sqrt(gaussians.sh.shape[1])) - 1
    parts = [np.ascontiguousarray(column).tobytes() for column in columns]
    numbers = (_MAGIC, version, count, degree, bits, _ANTIALIASED * gaussians.antialiased)
    if version < 4:
        # No timestamp: the same scene gives the same file.
        packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
        return packer.compress(_SPZ_HEADER.pack(*numbers) + b"".join(parts)) + packer.flush()
    packer = _zstandard().ZstdCompressor(level=12)
    streams = [(packer.compress(part), len(part)) for part in parts if part]
    contents = b"".join(struct.pack("<QQ", len(stream), size) for stream, size in streams)
    header = _SPZ_HEADER_4.pack(*numbers, len(streams), _SPZ_HEADER_4.size)
    return header + contents + b"".join(stream for stream, _ in streams)


def decode_spz(data: bytes) -> StoredGaussians:
    magic, version, count, degree, bits, flags = _SPZ_HEADER.unpack(_unpacked(data, _SPZ_HEADER.size))
    if magic != _MAGIC or version not in (1, *SPZ_VERSIONS):
        raise ValueError("it does not begin like SPZ of version 1 to 4")
    if degree > 4 or bits > 30:
        raise ValueError(f"its harmonics are of degree {degree} and its positions have {bits} fraction bits")
    rest = (degree + 1) ** 2 - 1
    sizes = [count * size for size in (6 if version == 1 else 9, 1, 3, 3, 4 if version > 2 else 3, 3 * rest)]
    packing.require_room(count, 11 + 3 * (rest + 1), len(data), sum(sizes) / max(count, 1) / _MOST_RATIO)
    if version == 4:
        parts = _streams(data, [size for size in sizes if size])
    else:
        body = _unpacked(data, _SPZ_HEADER.size + sum(sizes))
        ends = _SPZ_HEADER.size + np.cumsum([0, *sizes])
        parts = [body[a:b] for a, b in itertools.pairwise(ends)]
    positions, opacities, colors, scales, rotations, harmonics = (
        np.frombuffer(part, np.uint8) for part in (*parts, *[b""] * (6 - len(parts)))
    )
    if version == 1:
        means = positions.view("<f2").astype(np.float64).reshape(count, 3)
    else:
        wide = np.zeros((count, 3, 4), np.uint8)
        wide[:, :, 1:] = positions.reshape(count, 3, 3)
        # The value sits in the upper bytes, so the shift extends the sign.
        means = (wide.view("<i4")[..., 0] >> 8) / float(1 << bits)
    base = ((colors.reshape(count, 3) / 255 - 0.5) / _COLOR_SCALE).astype(np.float32)
    # The rasteriser supports degrees up to 3.
    higher = ((harmonics.reshape(count, rest, 3) - 128.0) / 128).astype(np.float32)[:, :15]
    return StoredGaussians(
        means=(means * _FLIP).astype(np.float32),
        quats=_quats(rotations.reshape(count, 4 if version > 2 else 3), version),
        log_scales=(scales.reshape(count, 3) / 16 + SPZ_LOG_SCALES[0]).astype(np.float32),
        logit_opacities=packing.logits_of(opacities / 255),
        sh=rotate_harmonics(np.concatenate([base[:, None], higher], 1), np.diag(_FLIP)),
        antialiased=bool(flags & _ANTIALIASED),
    )


def _unpacked(data: bytes, size: int) -> bytes:
    """The first `size` bytes of a file's contents, unpacked if they are gzip."""
    if data[:2] == b"\x1f\x8b":
        data = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(data, size)
    if len(data) < size:
        raise ValueError("it is cut off")
    return data[:size]


def _rotations(quats: Float32Array, version: int) -> NDArray[np.uint8]:
    """Pack rotations into bytes, [N, 3] in version 2, otherwise [N, 4]."""
    flipped = packing.normalized(quats)[:, [1, 2, 3, 0]] * [*_FLIP, 1]
    if version == 2:
        flipped *= np.where(flipped[:, 3:] < 0, -1, 1)
        return packing.to_levels(flipped[:, :3] / 2 + 0.5, 255).astype(np.uint8)
    # The order is x y z w here, as SPZ numbers the components.
    largest, others = packing.drop_largest(flipped)
    word: NDArray[Any] = largest.astype(np.uint32)
    for axis in range(3):
        word = word << 10 | (others[:, axis] < 0).astype(np.uint32) << 9 | packing.to_levels(np.abs(others[:, axis]), 511)
    return word.astype("<u4").view(np.uint8).reshape(len(quats), 4)


def _quats(rotations: NDArray[np.uint8], version: int) -> Float32Array:
    """The inverse of `_rotations`, w x y z [N, 4]."""
    if version < 3:
        xyz = rotations / 127.5 - 1
        xyzw = np.concatenate([xyz, np.sqrt(np.maximum(0, 1 - (xyz**2).sum(1, keepdims=True)))], 1)
    else:
        word = np.ascontiguousarray(rotations).view("<u4")[:, 0]
        fields = np.stack([word >> 20, word >> 10, word], 1) & 1023
        xyzw = packing.restore_largest(word >> 30, (fields & 511) / 511 * np.where(fields >> 9, -1, 1))
    return packing.normalized((xyzw * [*_FLIP, 1])[:, [3, 0, 1, 2]]).astype(np.float32)


def _harmonics(sh: Float32Array) -> NDArray[np.uint8]:
    """Pack harmonics from degree 1 into bytes [N, K - 1, 3], in steps of 1/32 for degree 1 and 1/16 above."""
    higher = rotate_harmonics(sh, np.diag(_FLIP))[:, 1:]
    bits = np.where(np.arange(higher.shape[1]) < 3, *_SH_BITS)[None, :, None]
    step = 1 << (8 - bits)
    levels = np.floor((np.rint(higher * 128.0) + 128 + step // 2) / step) * step
    return np.clip(levels, 0, 255).astype(np.uint8)


def _streams(data: bytes, sizes: list[int]) -> list[bytes]:
    *_, streams, contents = _SPZ_HEADER_4.unpack(data[: _SPZ_HEADER_4.size])
    if streams != len(sizes) or not _SPZ_HEADER_4.size <= contents <= len(data):
        raise ValueError(f"it claims {streams} streams")
    unpacker, at, parts = _zstandard().ZstdDecompressor(), contents + 16 * streams, []
    for i, size in enumerate(sizes):
        packed, unpacked = struct.unpack_from("<QQ", data, contents + 16 * i)
        if unpacked != size or packed > len(data) - at:
            raise ValueError(f"stream {i} has a wrong size")
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
        raise SplatError("SPZ version 4 needs another package: pip install 'slang-splat[files]'") from error
    return zstandard
