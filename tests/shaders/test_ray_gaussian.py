"""slang/splat/ray_gaussian.slang: σ along a ray from nine numbers, and bounds that miss nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from splat_py.shaders import ray_splat, shape
from tests.shaders.oracle import Array, assert_gradients, assert_value, pullback
from tests.shaders.test_footprint import CENTRES, SIDE, per_tile, visited
from tests.splats.ray_rendering import rotations

FOCAL, PRINCIPAL = np.array([60.0, 70.0]), np.array([20.0, 26.0])


def gaussians(count: int, nearest: float) -> dict[str, Array]:
    """In camera space, `nearest` times as far away as their largest standard deviation, or more; any shape down to needles."""
    rng = np.random.default_rng(62)
    depth = rng.uniform(1, 4, count)
    at = rng.uniform(-0.2 * SIDE, 1.2 * SIDE, (count, 2))
    mean = np.concatenate([(at - PRINCIPAL) / FOCAL, np.ones((count, 1))], 1) * depth[:, None]
    scale = np.minimum(np.exp(rng.uniform(np.log(1e-3), np.log(1.5), (count, 3))), depth[:, None] / nearest)
    arrays = {"mean": mean, "quat": rng.normal(size=(count, 4)), "scale": scale, "opacity": np.ones(count)}
    return {name: array.astype(np.float32).astype(float) for name, array in arrays.items()}


def projected(g: dict[str, Array]) -> tuple[Array, Array]:
    """Means on the image and the nine numbers, by the shader."""
    camera = {"rotation": np.eye(3), "translation": np.zeros(3), "focal": FOCAL, "principal": PRINCIPAL}
    camera |= {"radial": np.zeros(3), "radialMore": np.zeros(3), "tangential": np.zeros(2), "thinPrism": np.zeros(4)}
    splat = ray_splat.projectForRays["RayGaussian"](g, camera)
    return splat["mean"].astype(float), np.concatenate([splat[name] for name in "uvw"], 1).astype(float)


def sigmas(g: dict[str, Array], pixels: Array) -> Array:
    """[N, ...] from the definition: the least distance from a ray, of pixels [..., 2]."""
    white = rotations(torch.tensor(g["quat"])).numpy().swapaxes(1, 2) / g["scale"][:, :, None]
    centre = np.einsum("nij,nj->ni", white, g["mean"])
    rays = np.concatenate([(pixels - PRINCIPAL) / FOCAL, np.ones_like(pixels[..., :1])], -1)
    direction = np.einsum("nij,...j->n...i", white, rays)
    centre = centre.reshape(len(centre), *[1] * (pixels.ndim - 1), 3)
    nearest = np.maximum(np.sum(centre * direction, -1) / np.sum(direction**2, -1), 0)
    return np.sum((nearest[..., None] * direction - centre) ** 2, -1)


def test_sigma() -> None:
    """The value, and the gradient of each number."""
    g = gaussians(150, nearest=1.5)
    mean, numbers = projected(g)
    rng = np.random.default_rng(63)
    pixels = np.floor(mean + rng.normal(size=mean.shape) * 5) + 0.5
    expected = np.array([sigmas({k: a[i : i + 1] for k, a in g.items()}, pixels[i])[0] for i in range(len(mean))])
    keep = expected < 100
    mean, numbers, pixels, expected = mean[keep], numbers[keep], pixels[keep], expected[keep]
    assert keep.sum() > 40
    sigma = shape.sigmaOf[9, "RayGaussian"]
    assert_value(sigma(mean, numbers, pixels), expected, rtol=1e-3, atol=1e-3)

    def sigma_of(mean: Array, numbers: Array) -> Array:
        a, x, y = numbers[:, :3], numbers[:, 3:6], numbers[:, 6:]
        ray = a + x * (pixels - mean)[:, :1] + y * (pixels - mean)[:, 1:]
        moment = np.cross(a, ray)
        return np.sum(moment * moment, 1) / np.sum(ray * ray, 1)

    v = rng.normal(size=len(mean))
    expected_gradients = [*pullback(sigma_of, v, mean, numbers), None]
    largest = max(float(np.abs(gradient).max()) for gradient in expected_gradients[:2])
    assert_gradients(sigma, v, [mean, numbers, pixels], expected_gradients, rtol=1e-3, atol=1e-4 * largest)


@pytest.mark.parametrize("nearest", [0.3, 3.0, 20.0])
def test_no_visible_pixel_is_missed(nearest: float) -> None:
    """Also of Gaussians around the camera."""
    g = gaussians(300, nearest)
    mean, numbers = projected(g)
    sigma_max = np.random.default_rng(64).uniform(0.1, 11.1, len(mean))
    f = shape.boundsOf[9, "RayGaussian"](mean, numbers, sigma_max)
    visible = sigmas(g, np.stack(np.meshgrid(CENTRES, CENTRES), -1)) <= sigma_max[:, None, None]
    assert visible.any((1, 2)).mean() > 0.3
    for tile in (4, 8, 16):
        needed, seen = per_tile(visible, tile), visited(f, tile)
        assert not np.any(needed & ~seen)
        if nearest == 20.0:
            assert np.sum(seen & ~needed) < 0.2 * np.sum(seen)
