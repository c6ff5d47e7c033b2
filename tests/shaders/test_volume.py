"""slang/splat/volume.slang, voxel_grid.slang and constructed_scalar.slang, whose derivative is the replay's closed form."""

import numpy as np
import pytest
import torch
from torch import Tensor

import tests.reference as ref
from splat_py import shaders
from splat_py.shaders import constructed_scalar, voxel_grid
from splat_py.shaders import volume as shader
from tests.shaders.oracle import Array, assert_gradients, assert_like, assert_value, float32, pullback, unit
from tests.volume.reference import chord

COUNT = 60
RNG = np.random.default_rng(43)
BOX = np.array([[-1.0, -0.5, 0.25], [0.5, 1.0, 2.0]])
CORNERS = RNG.uniform(-1.5, 2, (COUNT, 8, 4))
FRACTIONS = RNG.uniform(size=(COUNT, 3))


# Corner i lies at 1 in x if i & 1, in y if i & 2, in z if i & 4.
OFFSETS = np.array([[i & 1, i >> 1 & 1, i >> 2] for i in range(8)])


def weights(fractions: Array) -> Array:
    """Weights [N, 8] of a cell's corners."""
    return np.where(OFFSETS == 1, fractions[:, None], 1 - fractions[:, None]).prod(-1)


def interpolated(corners: Array, fractions: Array = FRACTIONS) -> Array:
    return np.einsum("nc,ncr->nr", weights(fractions), corners)


def test_intersect_box() -> None:
    """Rays from outside and inside, past the box, along axes and on its edges."""
    origins = RNG.uniform(-3, 3, (COUNT, 3))
    origins[:20] = RNG.uniform(*BOX, (20, 3))
    directions = RNG.normal(size=(COUNT, 3))
    directions[20:40] = BOX.mean(0) - origins[20:40]
    directions[40:46] = np.concatenate([np.eye(3), -np.eye(3)])
    origins[40:46] = BOX.mean(0) - 4 * directions[40:46]
    directions[-1], origins[-1] = (0, 0, 1), (5, 0, 0)
    origins, directions = float32(origins), float32(unit(directions))
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


@pytest.mark.parametrize("coefficients", [1, 4, 9])
def test_eval_voxel(coefficients: int) -> None:
    basis = ref.sh_basis(unit(RNG.normal(size=(COUNT, 3))), int(coefficients**0.5) - 1)

    def f(voxel: dict[str, Tensor], basis: Tensor) -> Tensor:
        return torch.cat([voxel["density"][:, None], torch.einsum("nk,nkr->nr", basis, voxel["sh"])], 1)

    voxel = {"density": RNG.normal(size=COUNT), "sh": RNG.normal(size=(COUNT, coefficients, 3))}
    assert_like(shader.evalVoxel[coefficients], f, [voxel, basis])


def test_interpolate() -> None:
    v = RNG.normal(size=(COUNT, 4))
    v_corners, v_fractions = pullback(interpolated, v, CORNERS, FRACTIONS)
    for function, expected in ((shader.interpolate, [v_corners, None]), (shader.interpolateAt, [None, v_fractions])):
        assert_value(function(CORNERS, FRACTIONS), interpolated(CORNERS))
        assert_gradients(function, v, [CORNERS, FRACTIONS], expected)
    # At a corner, the value is that of the corner.
    assert_value(shader.interpolate(np.tile(CORNERS[:1], (8, 1, 1)), OFFSETS), CORNERS[0])


def test_activate() -> None:
    """Both clamps stop gradients."""

    def f(raw: Tensor) -> dict[str, Tensor]:
        shifted = raw + torch.tensor([0, 0.5, 0.5, 0.5])
        assert (shifted < 0).any(0).all() and (shifted > 0).any(0).all() and shifted.abs().min() > 1e-4
        return {"density": shifted[:, 0].relu(), "color": shifted[:, 1:].relu()}

    assert_like(shader.activate, f, [interpolated(CORNERS)])


def test_to_voxels() -> None:
    """Positions beyond the outermost centres get no gradient along that axis."""
    size = np.array([3, 6, 7])
    grid = voxel_grid.gridGeometry({"low": BOX[0], "high": BOX[1]}, size)
    per_unit = size / (BOX[1] - BOX[0])

    def f(positions: Tensor) -> Tensor:
        u = (positions - torch.from_numpy(BOX[0])) * torch.from_numpy(per_unit)
        inside = (u > 0.5) & (u < torch.from_numpy(size) - 0.5)
        assert inside.any(0).all() and not inside.all(0).any()
        return u.clamp(torch.tensor(0.5), torch.from_numpy(size) - 0.5)

    assert_like(voxel_grid.toVoxels, f, [RNG.uniform(BOX[0] - 0.2, BOX[1] + 0.2, (COUNT, 3))], [grid], value=(1e-5, 1e-5))


def test_cell() -> None:
    u = RNG.uniform(-0.5, 9, (COUNT, 3))
    u[:4] = [[0, 0.25, 0.5], [1, 1.5, 2], [-0.5, 8.75, 7.5], [0.75, 3, 4.25]]
    u = float32(u)
    base = np.floor(u - 0.5)
    actual = voxel_grid.cellAt(u)
    np.testing.assert_array_equal(actual["base"], base)
    np.testing.assert_allclose(actual["fraction"], u - 0.5 - base, atol=1e-6)


SAMPLES = 200
DENSITY = RNG.uniform(0, 20, SAMPLES) * (RNG.uniform(size=SAMPLES) < 0.9)
COLOR = RNG.uniform(0, 1, (SAMPLES, 3))
STEP = RNG.uniform(0.01, 0.3, SAMPLES)
DISTANCE = RNG.uniform(0, 4, SAMPLES)
STATE = {
    "T": RNG.uniform(0, 1, SAMPLES),
    "R": RNG.normal(size=SAMPLES),
    "vColor": RNG.normal(size=(SAMPLES, 3)),
    "vDepth": RNG.normal(size=SAMPLES),
}
ARGUMENTS = [{"density": DENSITY, "color": COLOR}, STEP, DISTANCE, STATE]


def remaining(medium: dict[str, Tensor], step: Tensor, t: Tensor, state: dict[str, Tensor]) -> Tensor:
    """R_i as a function of the sample alone: its emission, and its transmission of a fixed rest."""
    density, color, T = medium["density"], medium["color"], state["T"]
    g = (state["vColor"] * color).sum(-1) + state["vDepth"] * t
    own = T * (1 - (-density * step).exp()) * g
    through = (density * step).detach()
    return own + (state["R"] - own.detach()) * (through - density * step).exp()


def test_value_and_derivative() -> None:
    """The value is the remainder for any sample, as its terms only matter for their derivatives."""
    assert_like(constructed_scalar.constructedScalar, remaining, ARGUMENTS, no_diff=[3], value=(1e-5, 2e-6), atol=1e-5)


def test_closed_form_is_the_automatic_derivative() -> None:
    """Equal for each sample, and to the contract: ∂/∂c = v w, ∂/∂σ = δ (T g - R)."""
    closed = constructed_scalar.constructedScalar_bwd(*ARGUMENTS)
    medium, step, t, state = shaders.gradients(constructed_scalar.constructedScalar, np.ones(SAMPLES), *ARGUMENTS)
    assert state is None or not any(np.any(value) for value in state.values() if value is not None)
    for name, automatic in (("density", medium["density"]), ("color", medium["color"]), ("step", step), ("t", t)):
        np.testing.assert_allclose(closed[name], automatic, rtol=1e-4, atol=1e-5, err_msg=name)
        assert np.count_nonzero(automatic) > SAMPLES / 2
    w = STATE["T"] * (1 - np.exp(-DENSITY * STEP))
    g = (STATE["vColor"] * COLOR).sum(1) + STATE["vDepth"] * DISTANCE
    np.testing.assert_allclose(closed["color"], STATE["vColor"] * w[:, None], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(closed["density"], STEP * (STATE["T"] * g - STATE["R"]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(closed["T"], STATE["T"] - w, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(closed["R"], STATE["R"] - w * g, rtol=1e-4, atol=1e-5)


def test_behind_something_opaque() -> None:
    """If nothing comes through in float32, both forms stay finite and equal."""
    arguments = [
        {"density": 1e6, "color": [0.2, 0.5, 0.9]},
        0.1,
        1.0,
        {"T": 0.5, "R": 0.3, "vColor": [1.0, 2, 3], "vDepth": 1.0},
    ]
    closed = constructed_scalar.constructedScalar_bwd(*arguments)
    medium, step, t, _ = shaders.gradients(constructed_scalar.constructedScalar, 1.0, *arguments)
    np.testing.assert_allclose(medium["density"], 0.1 * (0.5 * 4.9 * 0 - (0.3 - 0.5 * 4.9)), rtol=1e-5)
    for name, automatic in (("density", medium["density"]), ("color", medium["color"]), ("step", step), ("t", t)):
        np.testing.assert_allclose(closed[name], automatic, rtol=1e-5, err_msg=name)
