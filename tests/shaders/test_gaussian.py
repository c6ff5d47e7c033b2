"""slang/splat/gaussian.slang."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py.shaders import gaussian as shader
from tests.reference.gaussian import covariances, rotations
from tests.shaders.oracle import assert_like, assert_value

COUNT = 40
RNG = np.random.default_rng(2)
# Quaternions of any length, some nearly degenerate or with one component.
QUATS = RNG.normal(size=(COUNT, 4)) * np.exp(RNG.uniform(-1, 1, (COUNT, 1)))
QUATS[:4] = np.diag([1, 2, -1, 0.5])
QUATS[4:6] = [[3e-2, -2e-2, 1e-2, 5e-2], [1e2, 0, -1e2, 2e2]]
# From needles (1000 : 1) to pancakes.
SCALES = np.exp(RNG.uniform(np.log(1e-3), 0, (COUNT, 3)))
SIGMA = {"diagonal": RNG.normal(size=(COUNT, 3)), "others": RNG.normal(size=(COUNT, 3))}


@pytest.mark.parametrize("quat", [[0.0, 0, 0, 0], [1e-9, 0, 0, -1e-9], [1e-5, 2e-5, 0, -1e-5]])
def test_rotation_of_a_vanishing_quaternion_is_finite(quat: list[float]) -> None:
    quats, v = torch.tensor([quat], dtype=torch.float64, requires_grad=True), RNG.normal(size=(1, 3, 3))
    expected = rotations(quats)
    assert_value(shader.quatToRotation([quat]), expected.detach())
    (v_quat,) = shader.quatToRotation.gradients(v, [quat])
    (wanted,) = torch.autograd.grad(expected, quats, torch.from_numpy(v))
    np.testing.assert_allclose(v_quat, wanted, rtol=1e-4, atol=1e-6 * max(1.0, float(wanted.abs().max())))


def matrices(sigma: dict[str, Tensor]) -> Tensor:
    return torch.cat([sigma["diagonal"], sigma["others"]], 1)[:, [0, 3, 4, 3, 1, 5, 4, 5, 2]].reshape(-1, 3, 3)


STORED = {"mean": RNG.normal(size=(COUNT, 3)), "quat": QUATS, "scale": np.log(SCALES), "opacity": RNG.normal(size=COUNT)}


# Functions of the module, what they compute, and arguments.
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "sigmoid": (torch.sigmoid, [np.array([-90.0, -20, -3, -0.5, 0, 0.5, 3, 20, 90])]),
    "activate": (lambda raw: raw | {"scale": raw["scale"].exp(), "opacity": raw["opacity"].sigmoid()}, [STORED]),
    "quatToRotation": (rotations, [QUATS]),
    "covarianceRoot": (lambda quats, scales: rotations(quats) * scales[:, None], [QUATS, SCALES]),
    "covariance": (covariances, [QUATS, SCALES]),
    "times": (lambda sigma, x: (matrices(sigma) @ x[:, :, None])[..., 0], [SIGMA, RNG.normal(size=(COUNT, 3))]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name: str) -> None:
    assert_like(getattr(shader, name), *FUNCTIONS[name])


def test_cofactors() -> None:
    def f(sigma: dict[str, Tensor]) -> dict[str, Tensor]:
        full = matrices(sigma)
        c = torch.linalg.inv(full) * torch.linalg.det(full)[:, None, None]
        return {"diagonal": c.diagonal(dim1=1, dim2=2), "others": c[:, [0, 0, 1], [1, 2, 2]]}

    assert_like(shader.cofactors, f, [SIGMA], value=(1e-5, 1e-5), atol=1e-5)
    # Singular matrices: n nᵀ for a plane with the normal n, and zero for a line.
    flat = shader.cofactors({"diagonal": [4.0, 9.0, 0.0], "others": [0.0, 0.0, 0.0]})
    assert_value(flat, {"diagonal": [0, 0, 36], "others": [0, 0, 0]})
    needle = shader.cofactors({"diagonal": [1.0, 4.0, 9.0], "others": [2.0, 3.0, 6.0]})
    assert_value(needle, {"diagonal": [0, 0, 0], "others": [0, 0, 0]})
