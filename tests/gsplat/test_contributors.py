"""The Gaussians that each pixel blends, against a loop over all of them in float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from splat_py import gsplat
from tests.refusals import refused

WIDTH, HEIGHT, IMAGES, COUNT = 21, 13, 2, 40


def splats_of(seed: int) -> dict[str, Any]:
    """Splats of both images, some of them opaque, and their lists for tiles of 4."""
    rng = np.random.default_rng(seed)

    def tensor(values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32)

    means2d = tensor(rng.uniform(0, 1, (IMAGES, COUNT, 2)) * [WIDTH, HEIGHT])
    conics = tensor(rng.uniform([0.02, -0.01, 0.02], [0.2, 0.01, 0.2], (IMAGES, COUNT, 3)))
    opacities = tensor(rng.choice([0.2, 0.6, 0.99], (IMAGES, COUNT)))
    radii = torch.full((IMAGES, COUNT, 2), 40, dtype=torch.int32)
    depths = tensor(rng.uniform(1, 9, (IMAGES, COUNT)))
    columns, rows = math.ceil(WIDTH / 4), math.ceil(HEIGHT / 4)
    _, keys, ids = gsplat.isect_tiles(means2d, radii, depths, 4, columns, rows)
    return {
        "arrays": (means2d, conics, opacities),
        "lists": (gsplat.isect_offset_encode(keys, IMAGES, columns, rows), ids, WIDTH, HEIGHT, 4),
        "depths": depths,
    }


def expected(splats: dict[str, Any]) -> tuple[list[list[int]], list[list[float]]]:
    """By pixel: what it blends, front to back, and the weights."""
    means2d, conics, opacities = (part.double().numpy() for part in splats["arrays"])
    found, weights = [], []
    for image in range(IMAGES):
        order = np.argsort(splats["depths"][image].numpy(), kind="stable")
        for y in range(HEIGHT):
            for x in range(WIDTH):
                T, ids, shares = 1.0, [], []
                for n in order:
                    dx, dy = np.array([x + 0.5, y + 0.5]) - means2d[image, n]
                    a, b, c = conics[image, n]
                    alpha = min(0.999, opacities[image, n] * np.exp(-0.5 * (a * dx * dx + c * dy * dy) - b * dx * dy))
                    if alpha < 1 / 255:
                        continue
                    if T * (1 - alpha) <= 1e-4:
                        break
                    ids.append(int(n))
                    shares.append(alpha * T)
                    T *= 1 - alpha
                found.append(ids)
                weights.append(shares)
    return found, weights


@pytest.mark.parametrize("packed", [False, True])
def test_against_float64(packed: bool) -> None:
    splats = splats_of(1)
    arrays = splats["arrays"]
    if packed:
        arrays = tuple(part.flatten(0, 1) for part in arrays)
    ids, weights = expected(splats)
    first = [COUNT * (pixel // (WIDTH * HEIGHT)) * packed for pixel in range(len(ids))]
    shape = IMAGES, HEIGHT, WIDTH
    counts, alphas = gsplat.rasterize_num_contributing_gaussians(*arrays, *splats["lists"])
    assert counts.dtype == torch.int32 and counts.shape == shape
    assert counts.flatten().tolist() == [len(one) for one in ids] and counts.max() > 5
    np.testing.assert_allclose(alphas.flatten(), [sum(one) for one in weights], atol=1e-5)

    found, shares = gsplat.rasterize_contributing_gaussian_ids(*arrays, *splats["lists"], counts)
    assert found.dtype == torch.int32 and found.shape == shares.shape == (*shape, int(counts.max()))
    for pixel, (one, its) in enumerate(zip(found.flatten(0, 2).tolist(), shares.flatten(0, 2).tolist(), strict=True)):
        count = len(ids[pixel])
        assert one == [first[pixel] + n for n in ids[pixel]] + [-1] * (len(one) - count)
        np.testing.assert_allclose(its, weights[pixel] + [0.0] * (len(its) - count), atol=1e-5)

    for most in (2, 60):
        found, shares = gsplat.rasterize_top_contributing_gaussian_ids(*arrays, *splats["lists"], most)
        assert found.shape == shares.shape == (*shape, most)
        for pixel, one in enumerate(found.flatten(0, 2).tolist()):
            largest = sorted(np.argsort(weights[pixel], kind="stable")[::-1][:most])
            assert one[: len(largest)] == [first[pixel] + ids[pixel][i] for i in largest]
            assert set(one[len(largest) :]) <= {-1}


def test_fewer_than_there_are() -> None:
    """Only as many as the counts say; none of no Gaussians."""
    splats = splats_of(2)
    counts, _ = gsplat.rasterize_num_contributing_gaussians(*splats["arrays"], *splats["lists"])
    some, _ = gsplat.rasterize_contributing_gaussian_ids(*splats["arrays"], *splats["lists"], counts.clamp(max=1))
    assert some.shape[-1] == 1 and torch.equal(some[..., 0] >= 0, counts > 0)
    offsets = torch.zeros(1, 2, 2, dtype=torch.int32)
    nothing = torch.empty(1, 0, 2), torch.empty(1, 0, 3), torch.empty(1, 0), offsets, torch.empty(0, dtype=torch.int32), 8, 8, 4
    counts, alphas = gsplat.rasterize_num_contributing_gaussians(*nothing)
    assert not counts.any() and not alphas.any()
    assert gsplat.rasterize_contributing_gaussian_ids(*nothing, counts)[0].shape == (1, 8, 8, 0)


def test_errors() -> None:
    splats = splats_of(3)
    means2d, conics, opacities = splats["arrays"]
    count = gsplat.rasterize_num_contributing_gaussians
    refused(r"conics has shape \[2, 39, 3\]", count, means2d, conics[:, 1:], opacities, *splats["lists"])
    refused(r"opacities has shape \[2, 39\]", count, means2d, conics, opacities[:, 1:], *splats["lists"])
    offsets, *rest = splats["lists"]
    refused("isect_offsets", count, means2d, conics, opacities, offsets[:, :, 1:], *rest)
    listed = gsplat.rasterize_contributing_gaussian_ids
    refused("num_contributing_gaussians has shape", listed, *splats["arrays"], *splats["lists"], torch.zeros(2, 3, 3))
    refused("at least 1", gsplat.rasterize_top_contributing_gaussian_ids, *splats["arrays"], *splats["lists"], 0)
