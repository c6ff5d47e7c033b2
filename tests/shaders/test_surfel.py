"""slang/splat/surfel.slang: σ where a ray meets a plane, the ray transform, and bounds that miss nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from splat_py import shaders
from splat_py.shaders import shape as shape_shader
from tests.shaders.oracle import Array, assert_gradients, assert_value, pullback
from tests.shaders.test_footprint import CENTRES, SIDE, per_tile, visited
from tests.splats.surfel_rendering import box_centres, rotations

RNG = np.random.default_rng(51)
FOCAL = np.array([60.0, 70.0])
PRINCIPAL = np.array([0.4 * SIDE, 0.55 * SIDE])


def ray_transforms(count: int, *, nearest: float, oblique: bool = False) -> tuple[Array, Array]:
    """T [N, 9] and box centres [N, 2] of surfels `nearest` times as far away as they reach towards the camera, or more."""
    rng = np.random.default_rng(52)
    depth = rng.uniform(1, 4, count)
    at = rng.uniform(-0.2 * SIDE, 1.2 * SIDE, (count, 2))
    mean = np.concatenate([(at - PRINCIPAL) / FOCAL, np.ones((count, 1))], 1) * depth[:, None]
    axes = rotations(torch.tensor(rng.normal(size=(count, 4)))).numpy()
    if oblique:
        # The line of sight lies in the plane, or almost.
        sight = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        axes[:, :, 0] = sight + rng.normal(size=(count, 3)) * 10.0 ** rng.uniform(-9, -2, (count, 1))
        axes[:, :, 1] = np.cross(sight, rng.normal(size=(count, 3)))
        axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    half = axes[:, :, :2] * np.exp(rng.uniform(np.log(0.01), np.log(1.5), (count, 1, 2)))
    half *= np.minimum(1, depth / nearest / np.linalg.norm(half[:, 2], axis=1))[:, None, None]
    K = np.array([[FOCAL[0], 0, PRINCIPAL[0]], [0, FOCAL[1], PRINCIPAL[1]], [0, 0, 1]])
    transforms = K @ np.concatenate([half, mean[:, :, None]], 2)
    centres = box_centres(torch.tensor(mean), torch.tensor(half), torch.tensor(K)).numpy()
    rounded = (a.astype(np.float32).astype(float) for a in (transforms.reshape(count, 9), centres))
    return next(rounded), next(rounded)


def sigma_of(mean: Array, shape: Array, pixel: Array) -> Array:
    """By solving T (s, t, 1) = depth (x, y, 1)."""
    T = shape.reshape(*shape.shape[:-1], 3, 3)
    homogeneous = np.concatenate([pixel, np.ones_like(pixel[..., :1])], -1)
    s, t, inverse = np.moveaxis(np.linalg.solve(T, homogeneous[..., None])[..., 0], -1, 0)
    filtered = 2 * np.sum((pixel - mean) ** 2, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        met = (s**2 + t**2) / inverse**2
    return np.where((inverse > 0) & (met < filtered), met, filtered)


def sigmas(mean: Array, shape: Array) -> Array:
    """[N, SIDE, SIDE] at all pixels."""
    pixels = np.stack(np.meshgrid(CENTRES, CENTRES), -1)
    size = (len(mean), SIDE, SIDE)
    each = (np.broadcast_to(a[:, None, None], (*size, a.shape[-1])) for a in (mean, shape))
    return sigma_of(*each, np.broadcast_to(pixels, (*size, 2)))


def test_sigma() -> None:
    """On the plane and through the filter: the value, and the gradient of each number."""
    shape, mean = ray_transforms(200, nearest=1.5)
    pixels = np.floor(mean + RNG.normal(size=mean.shape) * 4) + 0.5
    expected = sigma_of(mean, shape, pixels)
    filtered = 2 * np.sum((pixels - mean) ** 2, 1)
    clear = (np.abs(expected / filtered - 1) > 1e-3) | (expected == filtered)
    keep = clear & (expected < 50)
    assert 20 < np.sum(keep & (expected == filtered)) < np.sum(keep) - 50
    shape, mean, pixels, expected = shape[keep], mean[keep], pixels[keep], expected[keep]
    sigma = shape_shader.sigmaOf[9, "Surfel"]
    assert_value(sigma(mean, shape, pixels), expected, rtol=2e-3, atol=1e-3)
    v = RNG.normal(size=len(mean))
    v_mean, v_shape = pullback(lambda m, s: sigma_of(m, s, pixels), v, mean, shape)
    assert_gradients(sigma, v, [mean, shape, pixels], [v_mean, v_shape, None], rtol=2e-2, atol=2e-3 * np.abs(v_shape).max())


@pytest.mark.parametrize("oblique", [False, True], ids=["any", "oblique"])
@pytest.mark.parametrize("nearest", [1.05, 3.0, 20.0])
def test_no_visible_pixel_is_missed(nearest: float, oblique: bool) -> None:
    """Also of surfels that reach behind the camera, and of those whose plane is a line."""
    shape, mean = ray_transforms(300, nearest=nearest, oblique=oblique)
    sigma_max = np.random.default_rng(53).uniform(0.1, 11.1, len(mean))
    f = shape_shader.boundsOf[9, "Surfel"](mean, shape, sigma_max)
    visible = sigmas(mean, shape) <= sigma_max[:, None, None]
    assert visible.any((1, 2)).mean() > 0.5
    for tile in (4, 8, 16):
        needed = per_tile(visible, tile)
        seen = visited(f, tile)
        assert not np.any(needed & ~seen)
        # Of those whose plane is a line, most tiles see nothing: it passes between the pixels' centres.
        if nearest == 20.0 and not oblique:
            assert np.sum(seen & ~needed) < 0.05 * np.sum(seen)


def test_nothing_is_touched_by_what_is_nowhere() -> None:
    shape, mean = ray_transforms(50, nearest=3.0)
    f = shape_shader.boundsOf[9, "Surfel"](mean, shape, -1.0)
    assert not visited(f, 4).any()
    assert not shaders.footprint.touches(f, mean - 1, mean + 1).any()
