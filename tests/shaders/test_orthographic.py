"""slang/splat/orthographic.slang."""

from __future__ import annotations

import numpy as np

from tests.shaders.camera_models import check_axes, check_project, orthographic

POINTS = np.random.default_rng(53).normal(size=(40, 3)) * [3, 2, 10] + [0, 0, 4]


def test_orthographic() -> None:
    """Points behind the camera too, which are no worse than others."""
    check_project("Orthographic", orthographic, POINTS)


def test_orthographic_axes() -> None:
    check_axes("Orthographic", orthographic, POINTS, uses_t=False)
