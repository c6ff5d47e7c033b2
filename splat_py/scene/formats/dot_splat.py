""".splat: 32 bytes a Gaussian and no header, as antimatter15's viewer has them (github.com/antimatter15/splat).

Position and standard deviations as float32, rgb and opacity as bytes, and a rotation w x y z of bytes: 128 + 128 q. Colours do
not depend on the direction.
"""

from __future__ import annotations

import numpy as np

from splat_py.scene.formats.packing import base_of, colors_of, logits_of, normalized, opacities_of, to_levels
from splat_py.scene.ply import Float32Array, GaussianArrays

# Logarithms of deviations that are float32.
FLOAT32_LOGS = (float(np.log(np.finfo(np.float32).tiny)), float(np.log(np.finfo(np.float32).max)))
_ROW = np.dtype([("mean", "<f4", 3), ("scale", "<f4", 3), ("color", "u1", 3), ("opacity", "u1"), ("quat", "u1", 4)])


def encode(gaussians: GaussianArrays) -> bytes:
    """The file of Gaussians."""
    rows = np.zeros(len(gaussians.means), _ROW)
    rows["mean"] = gaussians.means
    rows["scale"] = scales_of(gaussians.log_scales)
    rows["color"] = to_levels(colors_of(gaussians.sh), 255)
    rows["opacity"] = to_levels(opacities_of(gaussians.logit_opacities), 255)
    rows["quat"] = np.clip(np.rint(normalized(gaussians.quats) * 128 + 128), 0, 255)
    return rows.tobytes()


def decode(data: bytes) -> GaussianArrays:
    """The Gaussians of a file.

    Raises:
        ValueError: it has no whole number of rows.
    """
    if len(data) % _ROW.itemsize:
        raise ValueError(f"{len(data)} bytes are no whole number of rows of {_ROW.itemsize}")
    rows = np.frombuffer(data, _ROW)
    return GaussianArrays(
        means=rows["mean"].astype(np.float32),
        quats=normalized(rows["quat"].astype(np.float64) / 128 - 1).astype(np.float32),
        log_scales=log_scales_of(rows["scale"]),
        logit_opacities=logits_of(rows["opacity"] / 255),
        sh=base_of(rows["color"] / 255).astype(np.float32)[:, None],
    )


def scales_of(log_scales: Float32Array) -> Float32Array:
    """Standard deviations, none above the largest float32."""
    with np.errstate(over="ignore"):
        return np.minimum(np.exp(log_scales), np.finfo(np.float32).max)


def log_scales_of(scales: np.ndarray) -> np.ndarray:
    """Natural logarithms of standard deviations as files have them: zero is the smallest number, below and NaN stay NaN."""
    with np.errstate(invalid="ignore"):
        return np.log(np.where(scales == 0, np.finfo(np.float32).tiny, scales).astype(np.float32))
