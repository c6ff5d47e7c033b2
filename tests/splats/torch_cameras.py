"""Cameras that move, and the unscented transform, in torch's float64: from their definitions, differentiated by torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.splats.torch_rendering import Projected, rotations

# The axis along which rows or columns are read, and whether from its end.
SHUTTERS = {
    "ROLLING_TOP_TO_BOTTOM": (1, False),
    "ROLLING_LEFT_TO_RIGHT": (0, False),
    "ROLLING_BOTTOM_TO_TOP": (1, True),
    "ROLLING_RIGHT_TO_LEFT": (0, True),
}
Camera = Callable[[Tensor], tuple[Tensor, Tensor]]


def log(rotation: Tensor) -> Tensor:
    """The vector of a rotation by less than half a turn, by the arctangent's series where that is small."""
    s = torch.stack([rotation[2, 1] - rotation[1, 2], rotation[0, 2] - rotation[2, 0], rotation[1, 0] - rotation[0, 1]]) / 2
    squared, cosine = s.dot(s), (rotation.trace() - 1) / 2
    if squared < 1e-6 and cosine > 0:
        tangent2 = squared / cosine**2
        return s * (1 - tangent2 / 3 + tangent2**2 / 5) / cosine
    return s * torch.atan2(squared.sqrt(), cosine) / squared.sqrt()


def cross_matrix(v: Tensor) -> Tensor:
    x, y, z = v
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero]).reshape(3, 3)


def pose_at(first: Tensor, last: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Rotation and translation between two poses [4, 4]."""
    turn = log(last[:3, :3] @ first[:3, :3].T)
    angle, axes = turn.norm(), cross_matrix(turn / turn.norm())
    rotation = torch.eye(3).to(turn) + (angle * time).sin() * axes + (1 - (angle * time).cos()) * axes @ axes
    return rotation @ first[:3, :3], first[:3, 3] * (1 - time) + last[:3, 3] * time


def rolling(static: Callable[[Tensor], Tensor], first: Tensor, last: Tensor, shutter: str, width: int, height: int) -> Camera:
    """World point [3] → pixel [2] and point in camera space, where the row that sees it is read."""
    axis, backwards = SHUTTERS[shutter]

    def at(time: Tensor, p: Tensor) -> Tensor:
        rotation, translation = pose_at(first, last, time)
        return rotation @ p + translation

    def camera(p: Tensor) -> tuple[Tensor, Tensor]:
        time = torch.tensor(0.5).double()
        # Each step is as many times nearer as the rows are faster than the point.
        for _ in range(15):
            time = (static(at(time, p))[axis] - 0.5) / ((width, height)[axis] - 1)
            time = (1 - time if backwards else time).clamp(-0.5, 1.5)
        return static(at(time, p)), at(time, p)

    return camera


def still(static: Callable[[Tensor], Tensor], viewmat: Tensor) -> Camera:
    def camera(p: Tensor) -> tuple[Tensor, Tensor]:
        t = viewmat[:3, :3] @ p + viewmat[:3, 3]
        return static(t), t

    return camera


def project_by_jacobian(camera: Camera, means: Tensor, sigma: Tensor) -> Projected:
    """That of world point to pixel."""
    pixels, points = torch.func.vmap(camera)(means)
    jacobian = torch.func.vmap(torch.func.jacfwd(lambda p: camera(p)[0]))(means)
    depths = points[:, 2]
    return Projected(pixels, jacobian @ sigma @ jacobian.mT, depths, torch.ones_like(depths, dtype=torch.bool))


def project_unscented(
    camera: Camera,
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    width: int,
    height: int,
    *,
    alpha: float = 0.1,
    beta: float = 2.0,
    kappa: float = 0.0,
    margin: float = 0.1,
    require_all: bool = True,
    around: float | Tensor = 1e9,
    distances: bool = False,
) -> Projected:
    """Weighted means and covariances of seven points (Wan and van der Merwe 2000, eq. 15).

    Args:
        around: pixels once around the horizon.
        distances: depths are distances.
    """
    lam = alpha**2 * (3 + kappa) - 3
    weight, first = 0.5 / (3 + lam), lam / (3 + lam)
    weights = torch.tensor([first] + [weight] * 6).double()
    weights_covariance = torch.tensor([first + 1 - alpha**2 + beta] + [weight] * 6).double()
    rotation = rotations(quats)
    results: dict[str, list[Any]] = {"means2d": [], "sharp": [], "depths": [], "visible": []}
    for mean, r, scale in zip(means, rotation, scales, strict=True):
        steps = (3 + lam) ** 0.5 * (r * scale).T
        pixels, points = zip(*(camera(mean + step) for step in (0 * mean, *steps, *-steps)), strict=True)
        pixel = torch.stack(pixels)
        pixel = pixel - torch.stack([((pixel[:, 0] - pixel[0, 0]) / around).round().detach() * around, 0 * pixel[:, 1]], -1)
        middle = weights @ pixel
        d = pixel - middle
        results["means2d"].append(middle)
        results["sharp"].append(torch.einsum("k,ki,kj->ij", weights_covariance, d, d))
        results["depths"].append(points[0].norm() if distances else points[0][2])
        size = torch.tensor([width, height])
        inside = ((pixel >= -margin * size) & (pixel < (1 + margin) * size)).all(-1)
        results["visible"].append(inside.all() if require_all else inside.any())
    return Projected(**{name: torch.stack(values) for name, values in results.items()})
