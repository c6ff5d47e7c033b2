"""Camera models in torch's float64, their Jacobians by torch: what the shaders' cameras are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splat_py.shaders import camera_model as shader
from tests.shaders.oracle import Array, assert_gradients, assert_value

IMAGE = {"width": 37, "height": 53}
# Pixel coordinates [2] of a point [3] in camera space, from focal lengths [2] and principal point [2].
Project = Callable[[Tensor, Tensor, Tensor], Tensor]


def pinhole(focal: Tensor, principal: Tensor, t: Tensor) -> Tensor:
    return focal * t[:2] / t[2] + principal


def orthographic(focal: Tensor, principal: Tensor, t: Tensor) -> Tensor:
    return focal * t[:2] + principal


def fisheye(focal: Tensor, principal: Tensor, t: Tensor) -> Tensor:
    """Equidistant, by a series near the axis: θ / r = (1 - q²/3 + q⁴/5 - …) / z with q = r/z."""
    squared = t[0] ** 2 + t[1] ** 2
    near_axis = squared < 1e-4 * t[2] ** 2
    q2 = torch.where(near_axis, squared, 0.0) / t[2] ** 2
    series = (1 - q2 / 3 + q2**2 / 5 - q2**3 / 7 + q2**4 / 9) / t[2]
    radius = torch.where(near_axis, 1.0, squared).sqrt()
    ratio = torch.where(near_axis, series, torch.atan2(radius, t[2]) / radius)
    return focal * t[:2] * ratio + principal


def cameras(rng: np.random.Generator, count: int) -> dict[str, Array]:
    """Numbers that float32 has, one camera a row."""
    fields = {
        "rotation": np.linalg.qr(rng.normal(size=(count, 3, 3)))[0],
        "translation": rng.normal(size=(count, 3)),
        "focal": rng.uniform(25, 45, (count, 2)),
        "principal": rng.normal((18.5, 26.5), size=(count, 2)),
    }
    return {name: field.astype(np.float32).astype(float) for name, field in fields.items()}


def check_project(name: str, project: Project, t: Array) -> None:
    """Values, and the gradient of every scalar, of `Model.project`."""
    rng = np.random.default_rng(50)
    t = t.astype(np.float32).astype(float)
    camera = cameras(rng, len(t))
    v = rng.normal(size=(len(t), 2))
    inputs = [torch.tensor(x, requires_grad=True) for x in (camera["focal"], camera["principal"], t)]
    expected = torch.func.vmap(project)(*inputs)
    v_focal, v_principal, v_t = (g.numpy() for g in torch.autograd.grad(expected, inputs, torch.tensor(v)))
    through = shader.projectThrough[name]
    assert_value(through(camera, t), expected.detach().numpy())
    v_camera = {"principal": v_principal} | ({"focal": v_focal} if v_focal.any() else {})
    assert_gradients(through, v, [camera, t], [v_camera, v_t])


def check_axes(
    name: str, project: Project, t: Array, *, linearised_at: Callable[..., Tensor] | None = None, uses_t: bool = True
) -> None:
    """Values, and the gradient of every scalar, of `Model.projectAxes`: the Jacobian of `project`, times a matrix.

    Args:
        linearised_at: the point of the Jacobian, of focal, principal and t; by default t.
        uses_t: whether the Jacobian depends on the principal point or t at all.
    """
    rng = np.random.default_rng(51)
    t = t.astype(np.float32).astype(float)
    camera, axes = cameras(rng, len(t)), rng.normal(size=(len(t), 3, 3)).astype(np.float32).astype(float)
    v = rng.normal(size=(len(t), 2, 3))

    def f(focal: Tensor, principal: Tensor, point: Tensor, matrix: Tensor) -> Tensor:
        at = point if linearised_at is None else linearised_at(focal, principal, point)
        jacobian = torch.func.jacfwd(project, argnums=2)(focal, principal, at)
        return jacobian @ matrix

    inputs = [torch.tensor(x, requires_grad=True) for x in (camera["focal"], camera["principal"], t, axes)]
    expected = torch.func.vmap(f)(*inputs)
    # Each row counts as much as any other, however near the camera.
    size = expected.detach().abs().amax((1, 2), keepdim=True)
    v = v / size.numpy()
    gradients = torch.autograd.grad(expected, inputs, torch.tensor(v), allow_unused=True)
    v_focal, v_principal, v_t, v_axes = (None if g is None else g.numpy() for g in gradients)
    through = shader.projectAxesThrough[name]
    arguments: list[Any] = [camera, t, axes, IMAGE]
    actual = through(*arguments)
    assert_value(np.stack([actual["x"], actual["y"]], 1) / size.numpy(), (expected / size).detach().numpy())
    v_camera = {"focal": v_focal}
    if v_principal is not None and v_principal.any():
        v_camera["principal"] = v_principal
    weights = {"x": v[:, 0], "y": v[:, 1]}
    if uses_t:
        assert_gradients(through, weights, arguments, [v_camera, v_t, v_axes, None])
    else:
        got = through.gradients(weights, *arguments)
        assert not np.any(got[1])
        assert_value(got[0]["focal"], v_focal, rtol=1e-4)
        assert_value(got[2], v_axes, rtol=1e-4)


def along(angles: Array, azimuths: Array, distances: Array) -> Array:
    """Points [N, 3] at so many degrees from the optical axis."""
    angle, azimuth = np.radians(angles), np.radians(azimuths)
    directions = [np.sin(angle) * np.cos(azimuth), np.sin(angle) * np.sin(azimuth), np.cos(angle)]
    return np.stack(directions, -1) * distances[:, None]
