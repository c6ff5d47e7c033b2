"""slang/splat/grid_field.slang, field.slang, path_replay.slang and ray_gradients.slang, on a grid in a tensor.

On any ray, the field samples the right values and adds its whole gradient; tests/volume has the renderer's own grids.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slangpy as spy

import tests.reference as ref
from splat_py import shaders
from tests.shaders.kernels import tensor
from tests.shaders.oracle import Array, float32, unit
from tests.shaders.test_segment import BOX, COUNT, DIRECTIONS, ORIGINS
from tests.shaders.test_volume import OFFSETS, weights
from tests.volume import reference as volume_ref
from tests.volume.reference import Field

MODULE = shaders.load(Path(__file__).with_name("voxel_grid.slang"))
SIZE = (4, 5, 3)
K = 4
STEPS_PER_UNIT = 12.0
RNG = np.random.default_rng(50)
FIELD = Field(float32(RNG.uniform(-1, 5, SIZE)), float32(RNG.normal(0, 0.8, (*SIZE, K, 3))), BOX, float32(RNG.uniform(size=3)))
ROWS = np.concatenate([FIELD.density.reshape(-1, 1), FIELD.sh.reshape(-1, 3 * K)], axis=1)


def grid_of(rows: Array, size: tuple[int, ...] = SIZE) -> tuple[dict[str, Any], spy.Tensor]:
    """The shader's grid of rows [X · Y · Z, 1 + 3 K], and the gradients that it adds to."""
    gradients = tensor(np.zeros(rows.size))
    return {"rows": tensor(rows), "size": size, "gradients": gradients, "basis": np.zeros(K)}, gradients


def around(points: Array) -> tuple[Any, Array]:
    """Indices and weights [N, 8] of the voxels whose centres surround points [N, 3]."""
    base = np.floor(points - 0.5).astype(int)
    voxels = np.clip(base[:, None] + OFFSETS, 0, np.array(SIZE) - 1)
    return np.ravel_multi_index(tuple(np.moveaxis(voxels, -1, 0)), SIZE), weights(points - 0.5 - base)


@pytest.mark.parametrize("replays", [False, True])
def test_query(replays: bool) -> None:
    positions, directions = RNG.uniform(size=(80, 3)), unit(RNG.normal(size=(80, 3)))
    actual = MODULE.queryGrid(grid_of(ROWS)[0], positions, directions, replays)

    index, shares = around(np.clip(positions * SIZE, 0.5, np.array(SIZE) - 0.5))
    between = np.einsum("nc,ncr->nr", shares, ROWS[index])
    basis = ref.sh_basis(directions, 1)
    wanted = np.concatenate([between[:, :1], np.einsum("nk,nkr->nr", basis, between[:, 1:].reshape(-1, K, 3))], axis=1)
    np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-4)


def test_corners() -> None:
    """Voxels and weights are those of the cell in either order; with parity, slot i holds a voxel of i's parity."""
    rng = np.random.default_rng(44)
    base, fraction = rng.integers(0, np.array(SIZE) - 1, (50, 3)), rng.uniform(size=(50, 3))
    plain, by_parity = (np.array(MODULE.cornersAround(SIZE, base, fraction, order)) for order in (False, True))
    voxels = base[:, None] + OFFSETS
    np.testing.assert_array_equal(plain[..., 0], np.ravel_multi_index(tuple(np.moveaxis(voxels, -1, 0)), SIZE))
    np.testing.assert_allclose(plain[..., 1], weights(fraction), atol=1e-6)
    found = np.stack(np.unravel_index(by_parity[..., 0].astype(int), SIZE), axis=-1)
    np.testing.assert_array_equal(found % 2, np.broadcast_to(OFFSETS, found.shape))
    order = np.argsort(by_parity[..., 0], axis=1), np.argsort(plain[..., 0], axis=1)
    np.testing.assert_allclose(
        np.take_along_axis(by_parity, order[0][..., None], 1), np.take_along_axis(plain, order[1][..., None], 1), atol=1e-6
    )


@pytest.mark.parametrize("stride", [0.1, 0.5, 1.0, 3.0])
def test_rays_in_all_directions(stride: float) -> None:
    """Rays go in all directions, across the grid and beyond its faces, with steps from a tenth of a voxel to three."""
    rng = np.random.default_rng(45)
    rays, count = 24, 9
    rows = rng.normal(size=(np.prod(SIZE), 1 + 3 * K))
    strides = stride * unit(rng.normal(size=(rays, 3)))
    strides[:3] = stride * np.eye(3)
    start = np.array(SIZE) / 2 - strides * count / 2 + rng.uniform(-1, 1, (rays, 3))
    directions = unit(strides)
    v = rng.normal(size=(rays, 4))
    grid, gradients = grid_of(rows)
    start, strides = float32(start), float32(strides)
    actual = MODULE.sumAlong(grid, start, strides, count, directions, v)

    points = start[:, None] + strides[:, None] * np.arange(count)[:, None]
    index, shares = (a.reshape(rays, count, 8) for a in around(points.reshape(-1, 3)))
    basis = ref.sh_basis(directions, 1)
    sh = rows[:, 1:].reshape(-1, K, 3)
    raw = np.concatenate([rows[index][..., :1], np.einsum("wk,wnckr->wncr", basis, sh[index])], axis=-1)
    np.testing.assert_allclose(actual, np.einsum("wnc,wncr->wr", shares, raw), rtol=1e-4, atol=2e-4)

    v_rows = np.concatenate([v[:, :1], (basis[:, :, None] * v[:, None, 1:]).reshape(rays, -1)], axis=1)
    expected = np.zeros_like(rows)
    np.add.at(expected, index, shares[..., None] * v_rows[:, None, None])
    np.testing.assert_allclose(gradients.to_numpy().reshape(rows.shape), expected, rtol=1e-4, atol=2e-4)
    assert np.count_nonzero(expected) > expected.size / 4


def test_nothing_is_pending_at_first() -> None:
    grid, gradients = grid_of(np.ones((8, 13)), (2, 2, 2))
    MODULE.sumAlong(grid, np.ones((4, 3)), np.ones((4, 3)), 0, [0, 0, 1], np.ones((4, 4)))
    assert not gradients.to_numpy().any()


@pytest.mark.parametrize("seed", [0, 5])
def test_march_and_replay(seed: int) -> None:
    """Results and gradients, also with jitter, which the replay repeats."""
    (grid, gradients), jitter = grid_of(ROWS), seed or None
    rays, sampling = np.array([ORIGINS, DIRECTIONS]), (STEPS_PER_UNIT, np.arange(COUNT), seed)
    result = MODULE.marchGrid(grid, *rays, FIELD.background, *sampling)
    color, T, depth = volume_ref.march(FIELD, *rays, STEPS_PER_UNIT, jitter)
    for name, wanted in (("color", color), ("T", T), ("depth", depth)):
        np.testing.assert_allclose(result[name], wanted, rtol=2e-5, atol=1e-5, err_msg=name)
    assert T.min() < 0.1 and T.max() == 1

    v = RNG.normal(size=(COUNT, 3)), RNG.normal(size=COUNT), RNG.normal(size=COUNT)
    found = MODULE.replayGrid(grid, *rays, *sampling, result, *v)
    expected = volume_ref.march_backward(FIELD, *rays, STEPS_PER_UNIT, *v, jitter)
    actual = gradients.to_numpy().reshape(ROWS.shape)
    atol = 2e-5 * float(np.abs(expected[1]).max())
    np.testing.assert_allclose(actual[:, 0].reshape(SIZE), expected[0], rtol=2e-4, atol=atol)
    np.testing.assert_allclose(actual[:, 1:].reshape(*SIZE, K, 3), expected[1], rtol=2e-4, atol=atol)
    np.testing.assert_allclose(found["background"].sum(axis=0), expected[2], rtol=1e-4)

    def losses(rays: Array) -> Array:
        results = volume_ref.march(FIELD, *rays, STEPS_PER_UNIT, jitter)
        return np.sum([(a * b).reshape(COUNT, -1).sum(1) for a, b in zip(results, v, strict=True)], axis=0)

    # The reference normalises directions, so gradients along them are left out.
    along = (found["direction"] * DIRECTIONS).sum(1, keepdims=True) * DIRECTIONS
    for which, of_rays in enumerate((found["origin"], found["direction"] - along)):
        steps = 1e-7 * np.eye(2)[which][:, None, None] * np.eye(3)[:, None, None]
        numeric = np.stack([(losses(rays + step) - losses(rays - step)) / 2e-7 for step in steps], 1)
        assert (np.abs(numeric) > 1e-3).any(0).all()
        assert (np.abs(of_rays - numeric) <= 3e-4 * np.maximum(np.abs(numeric).max(1, keepdims=True), 0.1)).all()
