"""Splats beyond the image whose rims reach its first and last pixels: none of them is culled."""

from dataclasses import replace

import numpy as np

import tests.reference as ref
from tests.render.comparison import Case, camera_of, check, rounded, scene_of

WIDTH, HEIGHT, COUNT = 37, 29, 160


def test_rims_on_the_outermost_pixels() -> None:
    """On all four sides, means lie less than a splat's rounded-up extent beyond the outermost pixel centres."""
    rng = np.random.default_rng(22)
    camera = replace(camera_of(rng, WIDTH, HEIGHT), viewmat=np.eye(4))
    focal, principal, size = np.diag(camera.K)[:2], camera.K[:2, 2], np.array([WIDTH, HEIGHT])
    rows, axis, is_far = np.arange(COUNT), np.arange(COUNT) % 2, np.arange(COUNT) % 4 < 2
    pixels = rng.integers(1, size - 1, (COUNT, 2)) + 0.5
    pixels[rows, axis] = np.where(is_far, size[axis] - 0.5, 0.5)
    depth = np.linspace(3, 5, COUNT)[:, None]
    scales = np.repeat(rng.uniform(0.3, 1.0, (COUNT, 1)) * depth / focal.mean(), 3, axis=1)
    quats, opacities = np.tile([1.0, 0, 0, 0], (COUNT, 1)), rng.uniform(0.3, 1.0, COUNT)

    def means() -> np.ndarray:
        return np.concatenate([(pixels - principal) / focal, np.ones((COUNT, 1))], axis=1) * depth

    a, b, c = ref.project(means(), quats, scales, opacities, camera.viewmat, camera.K, WIDTH, HEIGHT).conics.T
    variance = np.stack([c, a], axis=1)[rows, axis] / (a * c - b * b)
    extent = np.sqrt(2 * np.log(255 * opacities) * variance)
    pixels[rows, axis] += np.where(is_far, 0.97, -0.97) * extent
    # These extents end within the outermost pixel even when rounded up.
    assert (np.ceil(extent) - 0.97 * extent < 0.5).sum() > COUNT / 4
    arrays = (means(), quats, scales, opacities, scene_of(rng, COUNT).colors)
    meta = check(Case(ref.Scene(*map(rounded, arrays)), [camera], margin=1e-3), rng)
    assert (meta["radii"] > 0).all()
