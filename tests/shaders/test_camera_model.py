"""slang/splat/camera_model.slang: the interface, and the pinhole camera through it."""

from __future__ import annotations

import numpy as np

from tests.shaders.camera_models import IMAGE, along, check_axes, check_project, clamped, pinhole

RNG = np.random.default_rng(52)
POINTS = along(np.array([0.0, 1, 5, 10, 20, 30, 40, 80] * 5), RNG.uniform(0, 360, 40), np.exp(RNG.uniform(-2, 2, 40)))


def test_pinhole() -> None:
    check_project("Pinhole", pinhole, POINTS)


def test_pinhole_axes_inside_and_outside_the_clamp() -> None:
    check_axes("Pinhole", pinhole, POINTS, linearised_at=lambda f, p, t, lens: clamped(f, p, t, 0 * lens, **IMAGE))
