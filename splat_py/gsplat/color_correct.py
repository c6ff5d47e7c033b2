"""gsplat's color_correct: evaluation here uses it too."""

from __future__ import annotations

from splat_py.splats.color_correction import color_correct_affine, color_correct_quadratic

__all__ = ["color_correct_affine", "color_correct_quadratic"]
