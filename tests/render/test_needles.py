"""Needles without the low-pass filter: at `eps2d=0` only the determinant's guard keeps conics finite."""

from dataclasses import replace

import numpy as np
import pytest

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
