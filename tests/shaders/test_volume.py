"""slang/splat/volume.slang."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tests.reference as ref
from splat_py import shaders
from splat_py.shaders import volume as shader
from tests.shaders.oracle import Array, assert_gradients, assert_value, pullback
from tests.volume.reference import chord

GRID = shaders.load(Path(__file__).with_name("voxel_grid.slang"))
COUNT = 60
RNG = np.random.default_rng(43)
BOX = np.array([[-1.0, -0.5, 0.25], [0.5, 1.0, 2.0]])
CORNERS = RNG.uniform(-1.5, 2, (COUNT, 8, 4))
FRACTIONS = RNG.uniform(size=(COUNT, 3))


def weights(fractions: Array) -> Array:
    """[N, 8]: corner i lies at 1 in x if i & 1, in y if i & 2, in z if i & 4."""
    at_one = np.array([[i & 1, i >> 1 & 1, i >> 2] for i in range(8)])
    return np.where(at_one == 1, fractions[:, None], 1 - fractions[:, None]).prod(-1)


def interpolated(corners: Array, fractions: Array = FRACTIONS) -> Array:
    return np.einsum("nc,ncr->nr", weights(fractions), corners)


def test_intersect_box() -> None:
    """From outside and inside, past it, along axes and on its edges."""
    origins = RNG.uniform(-3, 3, (COUNT, 3))
    origins[:20] = RNG.uniform(*BOX, (20, 3))
    directions = RNG.normal(size=(COUNT, 3))
    directions[20:40] = BOX.mean(0) - origins[20:40]
    directions[40:46] = np.concatenate([np.eye(3), -np.eye(3)])
    origins[40:46] = BOX.mean(0) - 4 * directions[40:46]
    directions[-1], origins[-1] = (0, 0, 1), (5, 0, 0)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    origins, directions = (a.astype(np.float32).astype(float) for a in (origins, directions))
    actual = shader.intersectBox(origins, directions, {"low": BOX[0], "high": BOX[1]})
    hits = 0
    for ray, (near, far) in enumerate(actual):
        expected = chord(origins[ray], directions[ray], BOX)
        assert (far > near) == (expected[1] > expected[0]), ray
        if far > near:
            np.testing.assert_allclose((near, far), expected, rtol=1e-5, atol=1e-5)
            hits += 1
    assert 46 <= hits < COUNT
    assert np.isfinite(actual).all()


def test_clamped_to_voxels() -> None:
    """Positions beyond the outermost centres get no gradient along that axis."""
    low, per_unit, size = BOX[0], np.array([2.0, 4, 3]), np.array([3.0, 6, 5])
    positions = RNG.uniform(BOX[0] - 0.2, BOX[1] + 0.2, (COUNT, 3))
    u = (positions - low) * per_unit
    inside = (u > 0.5) & (u < size - 0.5)
    assert inside.any(0).all() and not inside.all(0).any()
    arguments = [positions, low, per_unit, size]
    assert_value(shader.clampedToVoxels(*arguments), np.clip(u, 0.5, size - 0.5), atol=1e-5)
    v = RNG.normal(size=(COUNT, 3))
    assert_gradients(shader.clampedToVoxels, v, arguments, [v * per_unit * inside, None, None, None])
    assert_value(shader.clampedToVoxels_bwd(*arguments, v), v * per_unit * inside)


def test_cell() -> None:
    u = RNG.uniform(-0.5, 9, (COUNT, 3))
    u[:4] = [[0, 0.25, 0.5], [1, 1.5, 2], [-0.5, 8.75, 7.5], [0.75, 3, 4.25]]
    u = u.astype(np.float32).astype(float)
    base = np.floor(u - 0.5)
    actual = GRID.cellAround(u)
    np.testing.assert_array_equal(actual["base"], base)
    np.testing.assert_allclose(actual["fraction"], u - 0.5 - base, atol=1e-6)


@pytest.mark.parametrize("coefficients", [1, 4, 9])
def test_eval_voxel(coefficients: int) -> None:
    directions = RNG.normal(size=(COUNT, 3))
    basis = ref.sh_basis(directions / np.linalg.norm(directions, axis=1, keepdims=True), int(coefficients**0.5) - 1)
    voxel = {"density": RNG.normal(size=COUNT), "sh": RNG.normal(size=(COUNT, coefficients, 3))}
    expected = np.concatenate([voxel["density"][:, None], np.einsum("nk,nkr->nr", basis, voxel["sh"])], axis=1)
    function = shader.evalVoxel[coefficients]
    assert_value(function(voxel, basis), expected)
    v = RNG.normal(size=(COUNT, 4))
    wanted = {"density": v[:, 0], "sh": basis[:, :, None] * v[:, None, 1:]}
    assert_gradients(function, v, [voxel, basis], [wanted, None])


def test_interpolate() -> None:
    assert_value(shader.interpolate(CORNERS, FRACTIONS), interpolated(CORNERS))
    v = RNG.normal(size=(COUNT, 4))
    v_corners, v_fractions = pullback(interpolated, v, CORNERS, FRACTIONS)
    assert_gradients(shader.interpolate, v, [CORNERS, FRACTIONS], [v_corners, None])
    assert_value(shader.interpolateAt(CORNERS, FRACTIONS), interpolated(CORNERS))
    assert_gradients(shader.interpolateAt, v, [CORNERS, FRACTIONS], [None, v_fractions])
    # In the middle of a corner it is that corner.
    at_one = np.array([[i & 1, i >> 1 & 1, i >> 2] for i in range(8)], float)
    assert_value(shader.interpolate(np.tile(CORNERS[:1], (8, 1, 1)), at_one), CORNERS[0])


def test_activate() -> None:
    """Both clamps stop gradients."""
    raw = interpolated(CORNERS)
    shifted = raw + np.array([0, 0.5, 0.5, 0.5])
    assert (shifted < 0).any(0).all() and (shifted > 0).any(0).all() and np.abs(shifted).min() > 1e-4
    expected = {"density": np.maximum(shifted[:, 0], 0), "color": np.maximum(shifted[:, 1:], 0)}
    assert_value(shader.activate(raw), expected)
    v = RNG.normal(size=(COUNT, 4))
    assert_gradients(shader.activate, {"density": v[:, 0], "color": v[:, 1:]}, [raw], [np.where(shifted > 0, v, 0)])
