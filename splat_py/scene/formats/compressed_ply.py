"""Compressed PLY of PlayCanvas and SuperSplat: 16 bytes a Gaussian, relative to the bounds of its chunk, and one a harmonic.

An element `chunk` has the least and the largest position, log scale and rgb of 256 Gaussians, an element `vertex` four words:
position and scale in 11, 10 and 11 bits, the rotation without its largest component in 2 + 3 · 10, rgb and opacity in 8 each.
An element `sh` has f_rest_*, from -4 to 4, channel by channel (developer.playcanvas.com, "Compressed PLY").
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from plyfile import PlyData, PlyElement

from splat_py.scene.formats.packing import (
    base_of,
    colors_of,
    drop_largest,
    logits_of,
    morton_order,
    opacities_of,
    restore_largest,
    to_levels,
)
from splat_py.scene.ply import Float32Array, GaussianArrays

_CHUNK = 256
_WORDS = ("packed_position", "packed_rotation", "packed_scale", "packed_color")
_SH_RANGE = 8.0
# Beyond these, scales would only widen a chunk's bounds.
LOG_SCALES = (-20.0, 20.0)
_COUNTS = (0, 9, 24, 45)


def _bounds_of(kind: str) -> list[str]:
    """Names of the properties with a chunk's least and largest values of positions (""), "scale_" or colours ("color")."""
    axes = "rgb" if kind == "color" else "xyz"
    prefix = "" if kind == "color" else kind
    return [f"{end}_{prefix}{axis}" for end in ("min", "max") for axis in axes]


def encode(gaussians: GaussianArrays) -> PlyData:
    """The file of Gaussians, in an order that keeps chunks small."""
    order = morton_order(gaussians.means)
    count, chunks = len(order), -(-len(order) // _CHUNK)
    words = np.zeros(count, [(name, "<u4") for name in _WORDS])
    table = np.zeros(chunks, [(name, "<f4") for kind in ("", "scale_", "color") for name in _bounds_of(kind)])
    colors = colors_of(gaussians.sh)[order]
    scales = np.clip(gaussians.log_scales[order], *LOG_SCALES)
    within = {kind: _within_chunks(table, kind, v) for kind, v in (("", gaussians.means[order]), ("scale_", scales))}
    for word, kind in (("packed_position", ""), ("packed_scale", "scale_")):
        x, y, z = (to_levels(within[kind][:, i], levels) for i, levels in enumerate((2047, 1023, 2047)))
        words[word] = x << 21 | y << 11 | z
    largest, others = drop_largest(gaussians.quats[order])
    a, b, c = to_levels(others / 2 + 0.5, 1023).T
    words["packed_rotation"] = largest.astype(np.uint32) << 30 | a << 20 | b << 10 | c
    rgb = to_levels(_within_chunks(table, "color", colors), 255)
    opacity = to_levels(opacities_of(gaussians.logit_opacities[order]), 255)
    words["packed_color"] = rgb[:, 0] << 24 | rgb[:, 1] << 16 | rgb[:, 2] << 8 | opacity
    elements = [PlyElement.describe(table, "chunk"), PlyElement.describe(words, "vertex")]
    rest = 3 * (gaussians.sh.shape[1] - 1)
    if rest:
        higher = gaussians.sh[order, 1:].transpose(0, 2, 1).reshape(count, rest)
        levels = np.clip(np.floor((higher / _SH_RANGE + 0.5) * 256), 0, 255).astype(np.uint8)
        row = np.dtype([(f"f_rest_{i}", "u1") for i in range(rest)])
        elements.append(PlyElement.describe(levels.view(row).reshape(count), "sh"))
    return PlyData(elements, byte_order="<")


def _within_chunks(table: NDArray[np.void], kind: str, values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Where values [N, 3] are between their chunk's bounds, 0 to 1; the bounds go into `table`."""
    starts = np.arange(0, len(values), _CHUNK)
    low, high = (f.reduceat(values.astype(np.float32), starts) if len(values) else values for f in (np.minimum, np.maximum))
    for names, bounds in zip((_bounds_of(kind)[:3], _bounds_of(kind)[3:]), (low, high), strict=True):
        for axis, name in enumerate(names):
            table[name] = bounds[:, axis]
    chunk = np.arange(len(values)) // _CHUNK
    extent = (high.astype(np.float64) - low)[chunk]
    return np.where(extent > 0, (values - low.astype(np.float64)[chunk]) / np.where(extent > 0, extent, 1), 0)


def decode(ply: PlyData) -> GaussianArrays:
    """The Gaussians of a file with an element `chunk`.

    Raises:
        ValueError, KeyError: what the format has is missing or of another kind.
    """
    table, words = ply["chunk"].data, ply["vertex"].data
    count = len(words)
    if len(table) != -(-count // _CHUNK):
        raise ValueError(f"{count} Gaussians have {len(table)} chunks")
    for name in _WORDS:
        if words.dtype[name] != np.uint32:
            raise ValueError(f"{name} is no uint")
    chunk = np.arange(count) // _CHUNK

    def between(kind: str, where: NDArray[np.float64]) -> Float32Array:
        low, high = (
            np.stack([table[n].astype(np.float64) for n in names], 1)[chunk]
            for names in (_bounds_of(kind)[:3], _bounds_of(kind)[3:])
        )
        with np.errstate(invalid="ignore", over="ignore"):
            return (low * (1 - where) + high * where).astype(np.float32)

    def three(word: NDArray[np.uint32]) -> NDArray[np.float64]:
        return np.stack([(word >> 21) / 2047, (word >> 11 & 1023) / 1023, (word & 2047) / 2047], 1)

    rotation, color = words["packed_rotation"], words["packed_color"]
    rgb = np.stack([color >> 24, color >> 16 & 255, color >> 8 & 255], 1) / 255
    if "min_r" in (table.dtype.names or ()):
        rgb = between("color", rgb).astype(np.float64)
    others = np.stack([rotation >> 20 & 1023, rotation >> 10 & 1023, rotation & 1023], 1) / 1023 * 2 - 1
    return GaussianArrays(
        means=between("", three(words["packed_position"])),
        quats=restore_largest(rotation >> 30, others),
        log_scales=between("scale_", three(words["packed_scale"])),
        logit_opacities=logits_of((color & 255) / 255),
        sh=np.concatenate([base_of(rgb).astype(np.float32)[:, None], _higher(ply, count)], 1),
    )


def _higher(ply: PlyData, count: int) -> Float32Array:
    """Coefficients from degree 1, [N, K - 1, 3]."""
    if "sh" not in ply:
        return np.zeros((count, 0, 3), np.float32)
    rows = ply["sh"].data
    rest = len(rows.dtype.names or ())
    if len(rows) != count or rest not in _COUNTS:
        raise ValueError(f"{len(rows)} rows of {rest} harmonics go with {count} Gaussians")
    columns = [rows[f"f_rest_{i}"] for i in range(rest)]
    if any(column.dtype != np.uint8 for column in columns):
        raise ValueError("harmonics are no bytes")
    levels = np.stack(columns, 1) if columns else np.zeros((count, 0), np.uint8)
    # The lowest and highest level are the range's ends, those between the middles of theirs.
    share = np.where(levels == 0, 0.0, np.where(levels == 255, 1.0, (levels + 0.5) / 256))
    return ((share - 0.5) * _SH_RANGE).astype(np.float32).reshape(count, 3, rest // 3).transpose(0, 2, 1)
