"""Camera models in torch's float64, their Jacobians by torch: what the shaders' cameras are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splat_py.shaders import camera_model as shader
from tests.shaders.oracle import Array, assert_gradients, assert_value

# Of `Camera`, without distortion.
NO_LENS = {"radial": np.zeros(3), "radialMore": np.zeros(3), "tangential": np.zeros(2), "thinPrism": np.zeros(4)}
IMAGE = {"width": 37, "height": 53}
# Pixel coordinates [2] of a point [3] in camera space, from focal lengths [2], principal point [2] and a lens [12].
Project = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def pinhole(focal: Tensor, principal: Tensor, t: Tensor, lens: Tensor) -> Tensor:
    return focal * t[:2] / t[2] + principal


def orthographic(focal: Tensor, principal: Tensor, t: Tensor, lens: Tensor) -> Tensor:
    return focal * t[:2] + principal


def distorted(slope: Tensor, lens: Tensor) -> Tensor:
    """OpenCV's formula, (x/z, y/z) [2] → [2]."""
    x, y = slope
    k, (p1, p2), s = lens[:6], lens[6:8], lens[8:]
    powers = torch.stack([(x * x + y * y) ** i for i in range(4)])
    one = torch.ones(1).to(k)
    radial = (powers @ torch.cat([one, k[:3]])) / (powers @ torch.cat([one, k[3:]]))
    tangential = torch.stack([2 * p1 * x * y + p2 * (3 * x * x + y * y), p1 * (x * x + 3 * y * y) + 2 * p2 * x * y])
    return slope * radial + tangential + torch.stack([powers[1:3] @ s[:2], powers[1:3] @ s[2:]])


def opencv_pinhole(focal: Tensor, principal: Tensor, t: Tensor, lens: Tensor) -> Tensor:
    return focal * distorted(t[:2] / t[2], lens) + principal


def fisheye(focal: Tensor, principal: Tensor, t: Tensor, lens: Tensor) -> Tensor:
    """Kannala and Brandt's, by a series near the axis: θ / r = (1 - q²/3 + q⁴/5 - …) / z with q = r/z."""
    squared = t[0] ** 2 + t[1] ** 2
    near_axis = squared < 1e-4 * t[2] ** 2
    q2 = torch.where(near_axis, squared, 0.0) / t[2] ** 2
    series = (1 - q2 / 3 + q2**2 / 5 - q2**3 / 7 + q2**4 / 9) / t[2]
    radius = torch.where(near_axis, 1.0, squared).sqrt()
    ratio = torch.where(near_axis, series, torch.atan2(radius, t[2]) / radius)
    angle2 = ratio**2 * squared
    powers = torch.stack([angle2**i for i in range(5)])
    return focal * t[:2] * ratio * (powers @ torch.cat([torch.ones(1).to(lens), lens[:4]])) + principal


def equirectangular(focal: Tensor, principal: Tensor, t: Tensor, lens: Tensor) -> Tensor:
    """Longitude and latitude."""
    x, y, z = t
    return focal * torch.stack([torch.atan2(x, z), torch.atan2(y, (x * x + z * z).sqrt())]) + principal


def clamped(focal: Tensor, principal: Tensor, t: Tensor, lens: Tensor, width: int, height: int) -> Tensor:
    """Where a pinhole is linearised: 1.3 times the field of view bounds where the image is, and in proportion x/z and y/z."""
    size = torch.tensor([width, height]).to(t)
    slope = t[:2] / t[2]
    image = distorted(slope, lens)
    held = torch.minimum(torch.maximum(image, (-0.15 * size - principal) / focal), (1.15 * size - principal) / focal)
    shrunk = (image * held > 0) & (held.abs() < image.abs())
    safe = torch.where(shrunk, image, 1.0)
    slope = torch.where(shrunk, slope * held / safe, slope + held - image)
    return torch.cat([slope * t[2], t[2:]])


def lenses(rng: np.random.Generator, count: int, *, fisheye: bool = False) -> Array:
    """[N, 12]: all coefficients, or those of a fisheye; within half a unit of slope or angle they bend it by some per cent."""
    lens = rng.uniform(-1, 1, (count, 12)) * [0.2, 0.1, 0.05, 0.1, 0.05, 0.02, 0.03, 0.03, 0.02, 0.01, 0.02, 0.01]
    if fisheye:
        lens = np.pad(rng.uniform(-1, 1, (count, 4)) * [0.05, 0.01, 0.003, 0.001], ((0, 0), (0, 8)))
    return lens.astype(np.float32).astype(float)


def fields_of(lens: Array) -> dict[str, Array]:
    """[..., 12] as the shaders' struct has them."""
    names, ends = ("radial", "radialMore", "tangential", "thinPrism"), (3, 6, 8)
    return dict(zip(names, np.split(lens, ends, -1), strict=True))


def cameras(rng: np.random.Generator, count: int) -> dict[str, Array]:
    """Numbers that float32 has, one camera a row."""
    fields = {
        "rotation": np.linalg.qr(rng.normal(size=(count, 3, 3)))[0],
        "translation": rng.normal(size=(count, 3)),
        "focal": rng.uniform(25, 45, (count, 2)),
        "principal": rng.normal((18.5, 26.5), size=(count, 2)),
    }
    return {name: field.astype(np.float32).astype(float) for name, field in fields.items()}


def of_camera(gradients: tuple[Array | None, ...]) -> dict[str, Array]:
    """Those of focal, principal and lens that are not zero."""
    focal, principal, lens = gradients
    fields = {"focal": focal, "principal": principal} | (fields_of(lens) if lens is not None else {})
    return {name: field for name, field in fields.items() if field is not None and field.any()}


def check_project(name: str, project: Project, t: Array, lens: Array | None = None, *, atol: float = 1e-6) -> None:
    """Values, and the gradient of every scalar, of `Model.project`."""
    rng = np.random.default_rng(50)
    t = t.astype(np.float32).astype(float)
    camera, lens = cameras(rng, len(t)), np.zeros((len(t), 12)) if lens is None else lens
    v = rng.normal(size=(len(t), 2))
    inputs = [torch.tensor(x, requires_grad=True) for x in (camera["focal"], camera["principal"], t, lens)]
    expected = torch.func.vmap(project)(*inputs)
    found = torch.autograd.grad(expected, inputs, torch.tensor(v), allow_unused=True)
    v_focal, v_principal, v_t, v_lens = (None if g is None else g.numpy() for g in found)
    through, camera = shader.projectThrough[name], camera | fields_of(lens)
    assert_value(through(camera, t), expected.detach().numpy(), atol=atol)
    assert_gradients(through, v, [camera, t], [of_camera((v_focal, v_principal, v_lens)), v_t])


def check_axes(
    name: str,
    project: Project,
    t: Array,
    lens: Array | None = None,
    *,
    linearised_at: Callable[..., Tensor] | None = None,
    uses_t: bool = True,
    by_row: bool = False,
    atol: float = 1e-6,
) -> None:
    """Values, and the gradient of every scalar, of `Model.projectAxes`: the Jacobian of `project`, times a matrix.

    Args:
        linearised_at: the point of the Jacobian, of focal, principal, t and lens; by default t.
        uses_t: whether the Jacobian depends on the principal point or t at all.
        by_row: small components of a point's gradient are as exact as its largest, and no more.
    """
    rng = np.random.default_rng(51)
    t = t.astype(np.float32).astype(float)
    lens = np.zeros((len(t), 12)) if lens is None else lens
    camera, axes = cameras(rng, len(t)), rng.normal(size=(len(t), 3, 3)).astype(np.float32).astype(float)
    v = rng.normal(size=(len(t), 2, 3))

    def f(focal: Tensor, principal: Tensor, point: Tensor, lens: Tensor, matrix: Tensor) -> Tensor:
        at = point if linearised_at is None else linearised_at(focal, principal, point, lens)
        jacobian = torch.func.jacfwd(project, argnums=2)(focal, principal, at, lens)
        return jacobian @ matrix

    inputs = [torch.tensor(x, requires_grad=True) for x in (camera["focal"], camera["principal"], t, lens, axes)]
    expected = torch.func.vmap(f)(*inputs)
    # Each row counts as much as any other, however near the camera.
    size = expected.detach().abs().amax((1, 2), keepdim=True)
    v = v / size.numpy()
    gradients = torch.autograd.grad(expected, inputs, torch.tensor(v), allow_unused=True)
    v_focal, v_principal, v_t, v_lens, v_axes = (None if g is None else g.numpy() for g in gradients)
    if by_row:
        assert v_t is not None
        scale = 1 / np.abs(v_t).max(1)
        v, v_axes = (x * scale[:, None, None] for x in (v, v_axes))
        v_focal, v_t = (x * scale[:, None] for x in (v_focal, v_t))
    through = shader.projectAxesThrough[name]
    arguments: list[Any] = [camera | fields_of(lens), t, axes, IMAGE]
    actual = through(*arguments)
    assert_value(np.stack([actual["x"], actual["y"]], 1) / size.numpy(), (expected / size).detach().numpy())
    weights = {"x": v[:, 0], "y": v[:, 1]}
    if uses_t:
        wanted = [of_camera((v_focal, v_principal, v_lens)), v_t, v_axes, None]
        assert_gradients(through, weights, arguments, wanted, atol=atol)
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
