"""slang/splat/ray_splat.slang: what a camera makes of surfels and Gaussians, and the footprints that they share."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from splat_py import shaders
from splat_py.shaders import footprint
from splat_py.shaders import ray_splat as shader
from tests.shaders.oracle import Array, assert_value
from tests.shaders.test_footprint import visited
from tests.splats.comparison import assert_close
from tests.splats.ray_rendering import box_centres, rotations

COUNT = 40
RNG = np.random.default_rng(65)
FIELDS = ("mean", "quat", "scale")


def inputs() -> tuple[dict[str, Array], dict[str, Array]]:
    """Gaussians before a camera that is turned and moved."""
    quat = RNG.normal(size=4)
    gaussians = {
        "mean": RNG.uniform(-1, 1, (COUNT, 3)),
        "quat": RNG.normal(size=(COUNT, 4)),
        "scale": RNG.uniform(0.05, 0.4, (COUNT, 3)),
        "opacity": np.ones(COUNT),
    }
    camera = {
        "rotation": rotations(torch.tensor(quat)[None])[0].numpy(),
        "translation": np.array([0.1, -0.2, 4.0]),
        "focal": np.array([60.0, 70.0]),
        "principal": np.array([20.0, 26.0]),
        "radial": np.zeros(3),
        "radialMore": np.zeros(3),
        "tangential": np.zeros(2),
        "thinPrism": np.zeros(4),
    }
    return gaussians, camera


def reference(kind: str, g: dict[str, torch.Tensor], camera: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    turn, focal, principal = camera["rotation"], camera["focal"], camera["principal"]
    mean = g["mean"] @ turn.T + camera["translation"]
    frames = turn @ rotations(g["quat"])
    z = mean[:, 2:]
    if kind == "RayGaussian":
        white = frames.mT / g["scale"][:, :, None]
        u, v, w = (white @ mean[:, :, None])[..., 0], white[..., 0] * z / focal[0], white[..., 1] * z / focal[1]
        return {"mean": focal * mean[:, :2] / z + principal, "depth": z[:, 0], "u": u, "v": v, "w": w, "normal": 0 * mean}
    axes = frames[:, :, :2] * g["scale"][:, None, :2]
    K = torch.diag(torch.cat([focal, torch.ones(1).double()]))
    K[:2, 2] = principal
    u, v, w = (K @ torch.cat([axes, mean[:, :, None]], 2)).unbind(1)
    normal = frames[:, :, 2] * torch.where((frames[:, :, 2] * mean).sum(-1, keepdim=True) < 0, 1.0, -1.0)
    return {"mean": box_centres(mean, axes, K), "depth": z[:, 0], "u": u, "v": v, "w": w, "normal": normal}


@pytest.mark.parametrize("kind", ["Surfel", "RayGaussian"])
def test_projection(kind: str) -> None:
    """Values, and the gradient of every number of the Gaussian and of the camera."""
    gaussians, camera = inputs()
    function = shader.projectForRays[kind]
    g = {name: torch.tensor(array, requires_grad=True) for name, array in gaussians.items()}
    # A camera of each Gaussian's own: their gradients do not add up.
    cameras = {name: np.broadcast_to(array, (COUNT, *array.shape)).copy() for name, array in camera.items()}
    expected = reference(kind, g, {name: torch.tensor(array) for name, array in camera.items()})
    assert_value(function(gaussians, cameras), {name: tensor.detach().numpy() for name, tensor in expected.items()}, rtol=1e-4)
    v = {name: RNG.normal(size=tensor.shape) for name, tensor in expected.items()}
    sum((expected[name] * torch.tensor(v[name])).sum() for name in v).backward()
    v_gaussians, v_cameras = shaders.gradients(function, v, gaussians, cameras)
    for name in FIELDS:
        assert_close(name, np.asarray(v_gaussians[name], float), g[name].grad.numpy())
    one = {name: torch.tensor(camera[name], requires_grad=True) for name in ("rotation", "translation", "focal", "principal")}
    again = reference(kind, {name: tensor.detach() for name, tensor in g.items()}, one)
    sum((again[name] * torch.tensor(v[name])).sum() for name in v).backward()
    for name, tensor in one.items():
        assert_close(name, np.asarray(v_cameras[name], float).sum(0), tensor.grad.numpy())


def test_shape() -> None:
    splat = {name: RNG.normal(size=(5, size)) for name, size in (("mean", 2), ("u", 3), ("v", 3), ("w", 3), ("normal", 3))}
    expected = np.concatenate([splat[name] for name in "uvw"], 1)
    assert_value(shader.shapeOf(splat | {"depth": np.ones(5)}), expected)


def test_footprints() -> None:
    mean = np.full((1, 2), 20.0)
    assert visited(shader.anywhere(mean), 8).all() and not visited(shader.nowhere(mean), 8).any()
    # Half a covariance's diagonal is an ellipse's extent squared; the margin is a tenth of a pixel, squared.
    f = shader.ellipseAround(mean, np.array([[1.0, 2.0]]), np.array([[25.0, 3.0, 9.0]]))
    assert_value(f["mean"], [[21.0, 22.0]])
    assert_value(footprint.extent(f), np.sqrt([[25.0139, 9.0139]]), rtol=1e-4)
