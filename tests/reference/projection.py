"""EWA projection (Zwicker et al. 2001): a 3D Gaussian → its pixel position, depth, conic and opacity.

The clamp. J is taken at t with x/z and y/z clamped to a frame 30 % of half the field of view wider than the image; the pixel
position is not clamped. Where the clamp is active, J still depends on z through 1/z, and on K through the limit.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.reference.arrays import Array, Mask
from tests.reference.gaussian import covariances

EPS2D = 0.3
NEAR = 0.01
FAR = 1e10
MIN_DETERMINANT = 1e-6
MIN_COMPENSATION = 2.5e-5  # bound of ρ², that is ρ ≥ 0.005


@dataclass(frozen=True)
class Projected:
    """The inputs of blending for every Gaussian. A culled one has zeros everywhere."""

    means2d: Array  # [N, 2] pixels
    depths: Array  # [N] z in the camera's frame
    conics: Array  # [N, 3] (a, b, c) of the inverse covariance [[a, b], [b, c]] in 1/pixel²
    opacities: Array  # [N], times the antialiasing compensation ρ if requested
    visible: Mask  # [N] near ≤ z ≤ far and everything finite


def limits(K: Tensor, width: int, height: int) -> tuple[Tensor, Tensor]:
    """The lower and the upper bounds [2] of x/z and y/z inside J."""
    focal, centre, side = K.diagonal()[:2], K[:2, 2], torch.tensor([width, height])
    margin = 0.3 * side / (2 * focal)
    return -(centre / focal + margin), (side - centre) / focal + margin


def frustum_limits(K: Array, width: int, height: int) -> Array:
    """`limits` of NumPy arrays as [2, 2]: rows x and y, columns the lower and the upper bound."""
    return torch.stack(limits(torch.tensor(K), width, height), -1).numpy()


def perspective_jacobian(t: Tensor, K: Tensor, width: int, height: int) -> Tensor:
    """J [N, 2, 3] = ∂(pixel)/∂t at camera-space points t [N, 3], clamped to `limits`."""
    focal, z = K.diagonal()[:2], t[:, 2:]
    slopes = torch.clamp(t[:, :2] / z, *limits(K, width, height))
    return torch.cat([torch.diag_embed(focal / z), (-focal * slopes / z)[..., None]], -1)


def conics(blurred: Tensor) -> Tensor:
    """(a, b, c) [N, 3] of the inverse of symmetric matrices [N, 2, 2], whose determinant is clamped to ≥ 1e-6."""
    adjugate = torch.stack([blurred[:, 1, 1], -blurred[:, 0, 1], blurred[:, 0, 0]], -1)
    return adjugate / determinants(blurred).clamp(min=MIN_DETERMINANT)[:, None]


def determinants(m: Tensor) -> Tensor:
    """Determinants [N] of [N, 2, 2]."""
    return m[:, 0, 0] * m[:, 1, 1] - m[:, 0, 1] * m[:, 1, 0]


def splats(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    viewmat: Tensor,
    K: Tensor,
    width: int,
    height: int,
    *,
    eps2d: float = EPS2D,
    antialiased: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Means2d [N, 2], depths [N], conics [N, 3] and opacities [N] of N Gaussians in one camera.

    Args:
        means [N, 3], quats [N, 4], scales [N, 3] (activated), opacities [N] (activated).
        viewmat [4, 4], K [3, 3], width and height in pixels.
        eps2d: added to the diagonal of the 2D covariance, pixel².
        antialiased: multiply the opacity by ρ = √max(det Σ₂ / det(Σ₂ + eps2d I), 2.5e-5) (the Mip filter of Yu et al. 2024).
    """
    t = means @ viewmat[:3, :3].T + viewmat[:3, 3]
    P = perspective_jacobian(t, K, width, height) @ viewmat[:3, :3]
    sharp = P @ covariances(quats, scales) @ P.mT
    blurred = sharp + eps2d * torch.eye(2)
    if antialiased:
        ratio = determinants(sharp) / determinants(blurred).clamp(min=MIN_DETERMINANT)
        opacities = opacities * ratio.clamp(min=MIN_COMPENSATION).sqrt()
    return K.diagonal()[:2] * t[:, :2] / t[:, 2:] + K[:2, 2], t[:, 2], conics(blurred), opacities


def project(
    means: Array,
    quats: Array,
    scales: Array,
    opacities: Array,
    viewmat: Array,
    K: Array,
    width: int,
    height: int,
    *,
    near: float = NEAR,
    far: float = FAR,
    eps2d: float = EPS2D,
    antialiased: bool = False,
) -> Projected:
    """`splats` of NumPy arrays, culled."""
    inputs = map(torch.tensor, (means, quats, scales, opacities, viewmat, K))
    means2d, depths, shapes, alphas = splats(*inputs, width, height, eps2d=eps2d, antialiased=antialiased)
    everything = torch.cat([means2d, depths[:, None], shapes, alphas[:, None]], -1)
    visible = everything.isfinite().all(-1) & (depths >= near) & (depths <= far)
    everything = torch.where(visible[:, None], everything, 0.0)
    return Projected(*(x.numpy() for x in (everything[:, :2], everything[:, 2], everything[:, 3:6], everything[:, 6], visible)))
