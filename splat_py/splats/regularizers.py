"""Regularisers of Gaussians in training (kernels/regularize.slang)."""

from __future__ import annotations

from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.splats.data import GaussianArrays


def record_regularizers(
    recorder: Recorder, raw: GaussianArrays, v_gaussians: GaussianArrays, opacity_reg: float, scale_reg: float
) -> None:
    """Add the gradient of opacity_reg · mean opacity + scale_reg · mean scale (Kheradmand et al. 2024), scales in world units.

    Args:
        raw: as the optimiser stores them.
    """
    if opacity_reg == 0 and scale_reg == 0:
        return
    recorder.stage("regularisers")
    recorder.dispatch(
        "regularize",
        "regularize",
        linear_groups(raw.count),
        {"gaussians": raw.count, "opacityWeight": opacity_reg / raw.count, "scaleWeight": scale_reg / (3 * raw.count)},
        {
            "logScales": raw.scales,
            "logits": raw.opacities,
            "vScales": v_gaussians.scales,
            "vOpacities": v_gaussians.opacities,
        },
    )
