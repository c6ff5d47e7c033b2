"""Moving cameras and the unscented transform in torch's float64: from their definitions, differentiated by torch."""

from collections.abc import Callable

import torch
from torch import Tensor

from tests.reference.gaussian import cross_matrix, rotations
from tests.render.torch_rendering import Projected

# The axis along which rows or columns are read, and True if it is read from its end.
SHUTTERS = {
    "ROLLING_TOP_TO_BOTTOM": (1, False),
    "ROLLING_LEFT_TO_RIGHT": (0, False),
    "ROLLING_BOTTOM_TO_TOP": (1, True),
    "ROLLING_RIGHT_TO_LEFT": (0, True),
}
Camera = Callable[[Tensor], tuple[Tensor, Tensor]]


def log(rotation: Tensor) -> Tensor:
    """The vector of a rotation by less than half a turn; for small angles by the arctangent's series."""
    s = torch.stack([rotation[2, 1] - rotation[1, 2], rotation[0, 2] - rotation[2, 0], rotation[1, 0] - rotation[0, 1]]) / 2
    squared, cosine = s.dot(s), (rotation.trace() - 1) / 2
    if squared < 1e-6 and cosine > 0:
        tangent2 = squared / cosine**2
        return s * (1 - tangent2 / 3 + tangent2**2 / 5) / cosine
    return s * torch.atan2(squared.sqrt(), cosine) / squared.sqrt()


def between(first: Tensor, last: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Interpolate two poses [4, 4]: a function of time that returns rotation and translation."""
    turn = log(last[:3, :3] @ first[:3, :3].T)
    angle, axes = turn.norm(), cross_matrix(turn / turn.norm())
    start, sine, cosine = first[:3, :3], axes @ first[:3, :3], axes @ axes @ first[:3, :3]

    def at(time: Tensor) -> tuple[Tensor, Tensor]:
        rotation = start + (angle * time).sin() * sine + (1 - (angle * time).cos()) * cosine
        return rotation, first[:3, 3] * (1 - time) + last[:3, 3] * time

    return at


def moved(first: Tensor, last: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """A function of time and world point [3] that returns the point in camera space."""
    pose = between(first, last)

    def at(time: Tensor, p: Tensor) -> Tensor:
        rotation, translation = pose(time)
        return rotation @ p + translation

    return at


def rolling(static: Callable[[Tensor], Tensor], first: Tensor, last: Tensor, shutter: str, width: int, height: int) -> Camera:
    """World point [3] → pixel [2] and point in camera space, at the time at which the pixel's row is read."""
    axis, backwards = SHUTTERS[shutter]
    at = moved(first, last)

    def camera(p: Tensor) -> tuple[Tensor, Tensor]:
        time = torch.tensor(0.5).double()
        # Each step reduces the error by the ratio of the rows' speed to the point's.
        for _ in range(10):
            time = (static(at(time, p))[axis] - 0.5) / ((width, height)[axis] - 1)
            time = (1 - time if backwards else time).clamp(-0.5, 1.5)
        return static(at(time, p)), at(time, p)

    return camera


def in_whole_rows(
    static: Callable[[Tensor], Tensor], first: Tensor, last: Tensor, shutter: str, size: tuple[int, int], margin: float
) -> Camera:
    """`rolling` as gsplat has it: at the time of the whole row that the point lies in. Steps begin at the first pose, or at the
    last if the first does not see the point; if neither does, it stays there. Points are in the space of the camera halfway."""
    axis, backwards = SHUTTERS[shutter]
    at = moved(first, last)

    def is_seen(t: Tensor) -> Tensor:
        part = static(t) / torch.tensor(size)
        return (part >= -margin).all() & (part < 1 + margin).all() & (t[2] > 0)

    def camera(p: Tensor) -> tuple[Tensor, Tensor]:
        zero, one = 0 * p[0], 0 * p[0] + 1
        first_sees, last_sees = is_seen(at(zero, p)), is_seen(at(one, p))
        time = torch.where(first_sees, zero, one)
        for _ in range(10):
            time = static(at(time, p))[axis].floor() / (size[axis] - 1)
            time = torch.where(first_sees | last_sees, 1 - time if backwards else time, one)
        return static(at(time, p)), at(one / 2, p)

    return camera


def still(static: Callable[[Tensor], Tensor], viewmat: Tensor) -> Camera:
    def camera(p: Tensor) -> tuple[Tensor, Tensor]:
        t = viewmat[:3, :3] @ p + viewmat[:3, 3]
        return static(t), t

    return camera


def project_by_jacobian(camera: Camera, means: Tensor, sigma: Tensor) -> Projected:
    """Project by the Jacobian of world point → pixel."""
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
    seen: Callable[[Tensor], Tensor] = lambda points: torch.ones_like(points[..., 0], dtype=torch.bool),
    extended: bool = False,
) -> Projected:
    """Weighted means and covariances of seven points (Wan and van der Merwe 2000, eq. 15).

    Args:
        around: width in pixels of the whole horizon.
        distances: return distances as depths.
        seen: True for points [..., 3] in camera space where the camera's function is defined, as at all seven it must be;
            or with `extended` at one that is on the image.
    """
    lam = alpha**2 * (3 + kappa) - 3
    weight, first = 0.5 / (3 + lam), lam / (3 + lam)
    weights = torch.tensor([first] + [weight] * 6).double()
    weights_covariance = torch.tensor([first + 1 - alpha**2 + beta] + [weight] * 6).double()
    # Columns of R, times standard deviations.
    steps = (3 + lam) ** 0.5 * (rotations(quats) * scales[:, None, :]).mT
    at = means[:, None] + torch.cat([0 * steps[:, :1], steps, -steps], 1)
    pixels, points = (part.unflatten(0, (-1, 7)) for part in torch.func.vmap(camera)(at.flatten(0, 1)))
    turns = ((pixels[..., 0] - pixels[:, :1, 0]) / around).round().detach()
    pixels = torch.stack([pixels[..., 0] - turns * around, pixels[..., 1]], -1)
    middle = torch.einsum("k,nki->ni", weights, pixels)
    d = pixels - middle[:, None]
    sharp = torch.einsum("k,nki,nkj->nij", weights_covariance, d, d)
    depths = points[:, 0].norm(dim=-1) if distances else points[:, 0, 2]
    size = torch.tensor([width, height])
    inside = ((pixels >= -margin * size) & (pixels < (1 + margin) * size)).all(-1)
    if extended:
        return Projected(middle, sharp, depths, (inside & seen(points)).any(1))
    return Projected(middle, sharp, depths, (inside.all(1) if require_all else inside.any(1)) & seen(points).all(1))
