"""A whole render in torch's float64, differentiated by torch: splats that rays meet in space, every ray with every splat."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.reference.gaussian import rotations as rotations
from tests.render.torch_rendering import MIN_ALPHA, blend

# Variance of the low-pass filter, pixel².
VARIANCE = 0.5


@dataclass(frozen=True)
class Rendered:
    """The images of one camera, in float64."""

    image: Tensor  # [H, W, D]
    alpha: Tensor  # [H, W, 1]
    normals: Tensor  # [H, W, 3] in the world
    distortion: Tensor  # [H, W, 1]
    median: Tensor  # [H, W, 1]
    # Pixels [H, W] in which float32 may decide differently.
    untrusted: Tensor


def box_centres(mean: Tensor, axes: Tensor, K: Tensor) -> Tensor:
    """Centres [N, 2] of upright boxes around the images of ellipses: means [N, 3] and half axes [N, 3, 2] in camera space."""
    # x = (a cos φ + b sin φ + c) / (p cos φ + q sin φ + r) ranges between the roots of a quadratic; the centre is their mean.
    depth, depths = mean[:, 2:], axes[:, 2]
    centres = []
    for row in (0, 1):
        along = K[row, row] * axes[:, row] + K[row, 2] * depths
        middle = K[row, row] * mean[:, row] + K[row, 2] * mean[:, 2]
        centres.append((middle * depth[:, 0] - (along * depths).sum(-1)) / (depth[:, 0] ** 2 - (depths**2).sum(-1)))
    return torch.stack(centres, -1)


def on_planes(mean: Tensor, frames: Tensor, scales: Tensor, rays: Tensor, pixels: Tensor, K: Tensor) -> tuple[Tensor, Tensor]:
    """σ [H, W, N] of surfels, and pixels in which float32 may swap the filter and the plane."""
    # Solves λ ray = mean + axes (s, t) directly: the gradient of a rotation is that of nine independent numbers.
    axes = frames[:, :, :2] * scales[:, None, :2]
    shape = (*rays.shape[:2], len(mean))
    system = torch.cat([rays[:, :, None, :, None].expand(*shape, 3, 1), -axes.expand(*shape, 3, 2)], -1)
    along, *local = torch.linalg.solve(system, mean.expand(*shape, 3)).unbind(-1)
    plane = local[0] ** 2 + local[1] ** 2
    image = (pixels[:, :, None] - box_centres(mean, axes, K)).square().sum(-1) / VARIANCE
    return torch.where((along > 0) & (plane < image), plane, image), (plane / image - 1).abs()


def beside_rays(mean: Tensor, frames: Tensor, scales: Tensor, rays: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    """σ [H, W, N] of Gaussians: the least squared distance of the mean from the ray, in front of the camera."""
    white = frames.mT / scales[:, :, None]
    centre = torch.einsum("nij,nj->ni", white, mean)
    direction = torch.einsum("nij,hwj->hwni", white, rays)
    distance = beyond_origin(centre, direction)
    return distance, torch.ones_like(distance)


def beyond_origin(centre: Tensor, direction: Tensor) -> Tensor:
    """Squared distances of points [..., 3] from rays that begin at 0; 1e9 for rays that lead away."""
    nearest = (centre * direction).sum(-1) / direction.square().sum(-1)
    return torch.where(nearest > 0, (nearest[..., None] * direction - centre).square().sum(-1), 1e9)


def of_pixels(static: Callable[[Tensor], Tensor], width: int, height: int, start: Callable[[Tensor], Tensor]) -> Tensor:
    """Unit vectors [H, W, 3] that a camera's function maps to pixel centres, by Newton's method from `start`; zero if there is
    none."""
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    pixels = torch.stack([x, y], -1).double().flatten(0, 1)

    def error(t: Tensor, pixel: Tensor) -> Tensor:
        return torch.cat([static(t) - pixel, t.dot(t)[None] - 1])

    t = torch.nn.functional.normalize(start(pixels).detach(), dim=-1)
    for _ in range(30):
        jacobian = torch.func.vmap(torch.func.jacfwd(error))(t, pixels).detach()
        # The last step has the derivatives of the implicit function.
        t = t.detach() - torch.linalg.solve(jacobian, torch.func.vmap(error)(t.detach(), pixels))
    found = torch.func.vmap(error)(t, pixels).abs().amax(-1, keepdim=True) < 1e-9
    assert found.float().mean() > 0.9
    return torch.where(found, t, 0.0).unflatten(0, (height, width))


def along(origins: Tensor, directions: Tensor) -> Callable[..., tuple[Tensor, Tensor]]:
    """`beside_rays` for rays [H, W, 3] of any camera."""

    def sigmas(mean: Tensor, frames: Tensor, scales: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        white = frames.mT / scales[:, :, None]
        centre = torch.einsum("nij,hwnj->hwni", white, mean - origins[:, :, None])
        exists = directions.any(-1, keepdim=True)
        direction = torch.einsum("nij,hwj->hwni", white, torch.where(exists, directions, 1.0))
        distance = torch.where(exists, beyond_origin(centre, direction), 1e9)
        return distance, torch.ones_like(distance)

    return sigmas


def hits(origins: Tensor, directions: Tensor) -> Callable[..., tuple[Tensor, Tensor]]:
    """Normals [H, W, N, 3], turned towards rays of any camera, and distances [H, W, N] to the points of least σ."""

    def channels(mean: Tensor, frames: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
        precision = frames @ (frames.mT / scales[:, :, None] ** 2)
        weighted = torch.einsum("nij,hwj->hwni", precision, directions)
        ahead = (weighted * (mean - origins[:, :, None])).sum(-1)
        across = (weighted * directions[:, :, None]).sum(-1)
        side = torch.einsum("hwi,ni->hwn", directions, frames[:, :, 2]).sign()
        return -side[..., None] * frames[:, :, 2], torch.where(across > 0, ahead, 0.0).clamp(min=0) / across.clamp(min=1e-9)

    return channels


def render(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    features: Tensor,
    viewmat: Tensor,
    K: Tensor,
    width: int,
    height: int,
    *,
    sigmas: Callable[..., tuple[Tensor, Tensor]] = on_planes,
    hits: Callable[..., tuple[Tensor, Tensor]] | None = None,
    background: Tensor | None = None,
    depths: Tensor | None = None,
    max_alpha: float = 0.999,
    margin: float = 1e-4,
) -> Rendered:
    """Render means [N, 3], quats [N, 4], scales [N, 3], opacities [N] and features [N, D], all in front of the camera; features
    may also be those at each pixel, [H, W, N, D]."""
    turn = viewmat[:3, :3]
    mean = means @ turn.T + viewmat[:3, 3]
    frames = turn @ rotations(quats)
    normal = frames[:, :, 2] * torch.where((frames[:, :, 2] * mean).sum(-1, keepdim=True) < 0, 1.0, -1.0)
    depths = mean[:, 2] if depths is None else depths
    order = depths.argsort()

    y, x = torch.meshgrid(torch.arange(height).to(means) + 0.5, torch.arange(width).to(means) + 0.5, indexing="ij")
    rays = torch.stack([(x - K[0, 2]) / K[0, 0], (y - K[1, 2]) / K[1, 1], torch.ones_like(x)], -1)
    sigma, undecided = sigmas(mean, frames, scales, rays, torch.stack([x, y], -1), K)

    raw = (opacities * torch.exp(-0.5 * sigma))[..., order]
    alphas, before, unstopped, final_T, near = blend(raw, max_alpha, margin)
    near.append((unstopped - 0.5).abs() < margin)
    near.append((undecided < margin)[..., order] & (raw > MIN_ALPHA))
    weights = alphas * before

    sorted_depths = depths[order]
    apart = (sorted_depths[:, None] - sorted_depths).tril()
    distortion = 2 * torch.einsum("hwi,ij,hwj->hw", weights, apart, weights)
    counts = torch.where((alphas > 0) & (before > 0.5), torch.arange(1, len(order) + 1), 0).amax(-1)
    median = torch.where(counts > 0, sorted_depths[(counts - 1).clamp(min=0)], 0.0)
    image = (weights[..., None, :] @ features[..., order, :])[..., 0, :]
    if background is not None:
        image = image + final_T * background
    normals = (weights @ normal[order]) @ torch.linalg.inv(viewmat)[:3, :3].T
    if hits is not None:
        turned, distances = hits(mean, frames, scales)
        normals = torch.einsum("hwn,hwni->hwi", weights, turned[:, :, order]) @ turn
        image = torch.cat([image, (weights * distances[..., order]).sum(-1, keepdim=True)], -1)
    return Rendered(
        image,
        1 - final_T,
        normals,
        distortion[..., None],
        median[..., None],
        torch.stack(near).any(0).any(-1),
    )
