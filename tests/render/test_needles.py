"""Needles without the low-pass filter: at `eps2d=0` only the determinant's guard keeps conics finite."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import splat_py as splat
import tests.reference as ref
from tests.render.comparison import Case, camera_of, check, rounded, scene_of

# An image so small that float32 resolves a needle's position to a thousandth of its thickness.
WIDTH, HEIGHT, COUNT = 9, 7, 30
# A needle's length in pixels. The guard clamps if length · thickness < 1e-3.
THICKNESS = 1e-2
LENGTHS = {"far below the guard": (3e-3, 0.03), "around the guard": (0.1, 0.6)}


def needles(length: str, rng: np.random.Generator) -> tuple[ref.Scene, ref.Camera]:
    """Horizontal and vertical needles through pixel centres: others miss the pixels, or are oblique, beyond float32."""
    camera = replace(camera_of(rng, WIDTH, HEIGHT), viewmat=np.eye(4))
    depth, focal = np.linspace(2, 5, COUNT)[:, None], np.diag(camera.K)[:2]
    low, high = np.log(LENGTHS[length])
    lengths = np.exp(rng.uniform(low, high, (COUNT, 1)))
    # Thickness in pixels: 1e-3 / length if the guard clamps.
    across = np.maximum(1e-3 / lengths, THICKNESS * lengths)
    pixels = rng.integers(0, (WIDTH, HEIGHT), (COUNT, 2)) + 0.5 + 0.5 * across * rng.normal(size=(COUNT, 2)).clip(-2, 2)
    means = np.concatenate([(pixels - camera.K[:2, 2]) / focal, np.ones((COUNT, 1))], axis=1) * depth
    angles = rng.integers(0, 2, COUNT) * np.pi / 4
    quats = np.stack([np.cos(angles), 0 * angles, 0 * angles, np.sin(angles)], axis=1) * rng.uniform(0.5, 2, (COUNT, 1))
    scales = lengths * depth / focal.mean() * [1, THICKNESS, THICKNESS]
    arrays = (means, quats, scales, rng.uniform(0.5, 1.0, COUNT), scene_of(rng, COUNT).colors)
    return ref.Scene(*(rounded(array) for array in arrays)), camera


@pytest.mark.parametrize("length", LENGTHS)
def test_needles(length: str) -> None:
    """Check images and every gradient. Antialiased needles lose more digits in float32 than these tolerances allow."""
    rng = np.random.default_rng(61)
    scene, camera = needles(length, rng)
    check(Case(scene, [camera], options={"eps2d": 0.0}, margin=1e-2, looser=100), rng)


@pytest.mark.parametrize(("long", "wide", "eps2d"), [(1000.0, 0.3, 0.3), (3.0, 1e-4, 0.0)])
def test_radii_of_an_oblique_needle(long: float, wide: float, eps2d: float) -> None:
    """Compare radii with those of the covariance in float64, which the determinant's guard may enlarge. Rounding errors of the
    conic would make the first needle longer by a sixth."""
    angle, focal = np.pi / 6, 10.0
    scales = torch.tensor([[long, wide, wide]]) / focal
    quats = torch.tensor([[np.cos(angle / 2), 0.0, 0.0, np.sin(angle / 2)]], dtype=torch.float32)
    K = torch.tensor([[[focal, 0.0, 32.0], [0.0, focal, 32.0], [0.0, 0.0, 1.0]]])
    gaussian = torch.tensor([[0.0, 0.0, 3.0]]), quats, scales, torch.ones(1), torch.ones(1, 3)
    how = {"camera_model": "ortho", "eps2d": eps2d, "packed": False}
    radii = splat.rasterization(*gaussian, torch.eye(4)[None], K, 64, 64, **how)[2]["radii"][0, 0]
    squared = np.array([np.cos(angle), np.sin(angle)]) ** 2
    variances = squared * long**2 + squared[::-1] * wide**2 + eps2d
    determinant = (long**2 + eps2d) * (wide**2 + eps2d)
    reach = np.sqrt(2 * np.log(255) * variances * max(1, 1e-6 / determinant))
    np.testing.assert_allclose(radii.numpy(), reach, rtol=1e-3, atol=1)
