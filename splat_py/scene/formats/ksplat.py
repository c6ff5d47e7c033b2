""".ksplat of mkkellogg's GaussianSplats3D (github.com/mkkellogg/GaussianSplats3D, KSplatLoader and SplatBuffer).

A header of 4,096 bytes, one of 1,024 for each section, then the sections. Of compression level 0 all is float32, of 1 positions
are 16-bit numbers relative to the centre of their bucket and the rest is float16, of 2 harmonics are bytes between two bounds.
Colours and opacities are bytes always. Harmonics have a band after the other, and in each channel by channel. Its viewer knows
them up to degree 2, so we write no more.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splat_py.scene.formats.dot_splat import log_scales_of
from splat_py.scene.formats.packing import base_of, colors_of, joined, logits_of, normalized, opacities_of, to_levels
from splat_py.scene.ply import Float32Array, GaussianArrays

_HEADER_BYTES, _SECTION_BYTES = 4096, 1024
# Versions, sections (most, are), Gaussians (most, are), level, then the scene's centre and the harmonics' bounds.
_HEADER = struct.Struct("<BBxxIIIIHxx3f2f")
# Gaussians (are, most), of a bucket, buckets, block's side, bytes of a centre, range, bytes; full, partial buckets; degree.
_SECTION = struct.Struct("<IIIIfHxxIIIIHxx")
_COUNTS = {0: 0, 1: 9, 2: 24, 3: 45}
_BANDS = (3, 5, 7)
_BUCKET, _RANGE, _BLOCKS = 256, 32767, 64
_MOST_SECTIONS = 1 << 12
_WRITTEN_COEFFICIENTS = 9
_SH_BOUNDS = (-1.5, 1.5)
# Of deviations, those of float16.
_LEAST_SCALE, _MOST_SCALE = 2.0**-24, 65504.0
LOG_SCALES = (float(np.log(_LEAST_SCALE)), float(np.log(_MOST_SCALE)))


def _row(level: int, harmonics: int) -> np.dtype:
    """Of a Gaussian."""
    number = "<f2" if level else "<f4"
    mean, sh = ("<u2" if level else "<f4"), ("<f4", "<f2", "u1")[level]
    return np.dtype([("mean", mean, 3), ("scale", number, 3), ("quat", number, 4), ("color", "u1", 4), ("sh", sh, harmonics)])


@dataclass(frozen=True)
class _Section:
    """A section's header, in its order."""

    count: int
    most: int
    bucket: int
    buckets: int
    side: float
    center_bytes: int
    levels: int
    bytes: int
    full: int
    partial: int
    degree: int


def encode(gaussians: GaussianArrays) -> bytes:
    """The file of Gaussians, of level 1."""
    sh = gaussians.sh[:, :_WRITTEN_COEFFICIENTS]
    means = gaussians.means.astype(np.float64)
    lowest, highest = (f(means, 0) if len(means) else np.zeros(3) for f in (np.min, np.max))
    side = max(float((highest - lowest).max()) / _BLOCKS, 1e-6)
    order, sizes, centers = _buckets(means, lowest, side)
    full = int((sizes == _BUCKET).sum())
    rows = np.zeros(len(order), _row(1, 3 * (sh.shape[1] - 1)))
    offsets = (means[order] - np.repeat(centers, sizes, 0)) / (side / 2) * _RANGE
    rows["mean"] = np.clip(np.rint(offsets) + _RANGE, 0, 2 * _RANGE + 1)
    with np.errstate(over="ignore"):
        rows["scale"] = np.clip(np.exp(gaussians.log_scales[order]), _LEAST_SCALE, _MOST_SCALE)
    rows["quat"] = normalized(gaussians.quats[order])
    rows["color"][:, :3] = to_levels(colors_of(gaussians.sh)[order], 255)
    rows["color"][:, 3] = to_levels(opacities_of(gaussians.logit_opacities[order]), 255)
    rows["sh"] = np.clip(_by_bands(sh[order, 1:]), -_MOST_SCALE, _MOST_SCALE)
    count, degree = len(order), int(np.sqrt(sh.shape[1])) - 1
    header = _HEADER.pack(0, 1, 1, 1, count, count, 1, *(float(x) for x in (lowest + highest) / 2), *_SH_BOUNDS)
    partial = len(sizes) - full
    size = 4 * partial + 12 * len(sizes) + rows.nbytes
    section = _SECTION.pack(count, count, _BUCKET, len(sizes), side, 12, _RANGE, size, full, partial, degree)
    return b"".join(
        (
            header.ljust(_HEADER_BYTES, b"\0"),
            section.ljust(_SECTION_BYTES, b"\0"),
            sizes[full:].astype("<u4").tobytes(),
            centers.astype("<f4").tobytes(),
            rows.tobytes(),
        )
    )


def _buckets(
    means: NDArray[np.float64], lowest: NDArray[np.float64], side: float
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """Gaussians in blocks of a grid, up to 256 a bucket: their order [N], the buckets' sizes, full ones first, and centres."""
    cells = np.floor((means - lowest) / side).astype(np.int64)
    blocks, block, counts = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(block.reshape(-1), kind="stable")
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    # Of each Gaussian in the order, whether its bucket is full, and which it is.
    own = block.reshape(-1)[order]
    partial = rank // _BUCKET >= counts[own] // _BUCKET
    bucket = np.stack([partial, own, rank // _BUCKET], 1)
    kinds, sizes = np.unique(bucket, axis=0, return_counts=True)
    centers = lowest + (blocks[kinds[:, 1]] + 0.5) * side
    return order[np.lexsort((bucket[:, 2], bucket[:, 1], bucket[:, 0]))], sizes, centers


def decode(data: bytes) -> GaussianArrays:
    """The Gaussians of a file, of any level.

    Raises:
        ValueError, struct.error: it is cut off, or something else.
    """
    major, minor, sections, _, _, total, level, *_, low, high = _HEADER.unpack_from(data)
    if major != 0 or minor < 1 or level > 2 or sections > _MOST_SECTIONS:
        raise ValueError(f"it says that it is of version {major}.{minor} and level {level}")
    # Zero in files of before there were bounds.
    bounds = low or _SH_BOUNDS[0], high or _SH_BOUNDS[1]
    at, parts = _HEADER_BYTES + sections * _SECTION_BYTES, []
    for i in range(sections):
        section = _Section(*_SECTION.unpack_from(data, _HEADER_BYTES + i * _SECTION_BYTES))
        part, at = _read_section(data, at, section, level, bounds)
        parts.append(part)
    count = sum(len(part.means) for part in parts)
    if count != total or not parts:
        raise ValueError(f"its sections have {count:,} of {total:,} Gaussians")
    return joined(parts)


def _read_section(
    data: bytes, at: int, section: _Section, level: int, bounds: tuple[float, float]
) -> tuple[GaussianArrays, int]:
    """A section's Gaussians, and where the next one begins."""
    if section.degree not in _COUNTS or section.count > section.most or (section.buckets and section.center_bytes != 12):
        raise ValueError(f"a section says that it has {section.count:,} Gaussians with harmonics of degree {section.degree}")
    row = _row(level, _COUNTS[section.degree])
    start = at + 4 * section.partial + section.center_bytes * section.buckets
    end = start + row.itemsize * section.most
    if end > len(data):
        raise ValueError("it is cut off")
    rows = np.frombuffer(data, row, section.count, start)
    means = rows["mean"].astype(np.float64)
    if level:
        sizes = np.frombuffer(data, "<u4", section.partial, at).astype(np.int64)
        sizes = np.concatenate([np.full(section.full, section.bucket), sizes]) if section.full <= section.buckets else sizes
        if len(sizes) != section.buckets or sizes.max(initial=0) > len(data):
            raise ValueError("a section's buckets are others than it says")
        centers = np.frombuffer(data, "<f4", 3 * section.buckets, at + 4 * section.partial).reshape(-1, 3)
        ends = np.cumsum(sizes)
        if section.count > ends.max(initial=0):
            raise ValueError("a section has Gaussians in no bucket")
        levels = section.levels or _RANGE
        own = np.searchsorted(ends, np.arange(section.count), side="right")
        means = centers[own] + (means - levels) * (float(section.side) / 2 / levels)
    sh = rows["sh"].astype(np.float32)
    if level == 2:
        sh = (bounds[0] + sh / 255 * (bounds[1] - bounds[0])).astype(np.float32)
    base = base_of(rows["color"][:, :3] / 255).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return GaussianArrays(
            means=means.astype(np.float32),
            quats=normalized(rows["quat"]).astype(np.float32),
            log_scales=log_scales_of(rows["scale"].astype(np.float32)),
            logit_opacities=logits_of(rows["color"][:, 3] / 255),
            sh=np.concatenate([base[:, None], _from_bands(sh)], 1),
        ), end


def _by_bands(higher: Float32Array) -> Float32Array:
    """Coefficients [N, K - 1, 3] as the file has them, [N, 3 (K - 1)]."""
    parts, at = [], 0
    for band in _BANDS:
        part = higher[:, at : at + band].transpose(0, 2, 1)
        parts.append(part.reshape(len(higher), part.shape[1] * part.shape[2]))
        at += band
    return np.concatenate(parts, 1)


def _from_bands(flat: Float32Array) -> Float32Array:
    """The inverse of `_by_bands`."""
    parts, at = [np.zeros((len(flat), 0, 3), np.float32)], 0
    for band in _BANDS:
        if at < flat.shape[1]:
            parts.append(flat[:, at : at + 3 * band].reshape(len(flat), 3, band).transpose(0, 2, 1))
        at += 3 * band
    return np.concatenate(parts, 1)
