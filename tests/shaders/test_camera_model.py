"""slang/splat/camera_model.slang: the interface, and the pinhole camera through it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tests.shaders.camera_models import IMAGE, along, check_axes, check_project, pinhole

RNG = np.random.default_rng(52)
POINTS = along(np.array([0.0, 1, 5, 10, 20, 30, 40, 80] * 5), RNG.uniform(0, 360, 40), np.exp(RNG.uniform(-2, 2, 40)))


def _clamped(focal: Tensor, principal: Tensor, t: Tensor) -> Tensor:
    """1.3 times the field of view bounds x/z and y/z."""
    size = torch.tensor([IMAGE["width"], IMAGE["height"]], dtype=torch.float64)
    low, high = (-0.15 * size - principal) / focal, (1.15 * size - principal) / focal
    return torch.cat([torch.minimum(torch.maximum(t[:2] / t[2], low), high) * t[2], t[2:]])


def test_pinhole() -> None:
    check_project("Pinhole", pinhole, POINTS)


def test_pinhole_axes_inside_and_outside_the_clamp() -> None:
    check_axes("Pinhole", pinhole, POINTS, linearised_at=_clamped)
