"""A whole render in torch's float64, differentiated by torch: an oracle for features that the NumPy reference lacks.

Written from the definitions: torch computes a camera's Jacobian and a covariance's inverse, and every pixel evaluates every
splat.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.reference.gaussian import covariances as covariances
from tests.shaders.camera_models import clamped, equirectangular, fisheye, opencv_pinhole, orthographic, pinhole

MODELS = {"pinhole": pinhole, "ortho": orthographic, "fisheye": fisheye, "equirectangular": equirectangular}
LENS_MODELS = {"pinhole": opencv_pinhole, "fisheye": fisheye}
EPS2D, MIN_ALPHA, MIN_T, MIN_COMPENSATION = 0.3, 1 / 255, 1e-4, 0.005


@dataclass(frozen=True)
class Rendered:
    """One camera's image, in float64."""

    image: Tensor  # [H, W, D]
    alpha: Tensor  # [H, W, 1]
    # Pixels [H, W] in which float32 may decide differently: near the least α, the largest α or the least transmittance.
    untrusted: Tensor


@dataclass(frozen=True)
class Projected:
    """Gaussians on a camera's image plane."""

    means2d: Tensor  # [N, 2]
    sharp: Tensor  # [N, 2, 2] covariances without the filter
    depths: Tensor  # [N]
    visible: Tensor  # [N]


def project(
    means: Tensor, sigma: Tensor, viewmat: Tensor, K: Tensor, width: int, height: int, camera_model: str, lens: Tensor | None
) -> Projected:
    """Project by a camera's Jacobian."""
    model = (MODELS if lens is None else LENS_MODELS)[camera_model]
    focal, principal = torch.stack([K[0, 0], K[1, 1]]), K[:2, 2]
    lens = torch.zeros(12).to(means) if lens is None else lens

    def pixel(t: Tensor) -> Tensor:
        return model(focal, principal, t, lens)

    points = means @ viewmat[:3, :3].T + viewmat[:3, 3]
    depths = points.norm(dim=-1) if camera_model == "equirectangular" else points[:, 2]
    at = points
    if camera_model == "pinhole":
        at = torch.stack([clamped(focal, principal, t, lens, width, height) for t in points])
    means2d = torch.stack([pixel(t) for t in points])
    jacobian = torch.func.vmap(torch.func.jacfwd(pixel))(at)
    transform = jacobian @ viewmat[:3, :3]
    sharp = transform @ sigma @ transform.mT
    return Projected(means2d, sharp, depths, torch.ones_like(depths, dtype=torch.bool))


def blend(raw: Tensor, max_alpha: float, margin: float) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    """α, T before each splat, and T behind it without the stop, [H, W, N] by depth; the last T; and distances to thresholds."""
    alphas = raw.clamp(max=max_alpha)
    alphas = torch.where(alphas < MIN_ALPHA, 0.0, alphas)
    unstopped = (1 - alphas).cumprod(-1)
    near = [(value / limit - 1).abs() < margin for value, limit in ((raw, MIN_ALPHA), (raw, max_alpha), (unstopped, MIN_T))]
    alphas = torch.where((unstopped <= MIN_T).cummax(-1).values, 0.0, alphas)
    after = (1 - alphas).cumprod(-1)
    return alphas, torch.cat([torch.ones_like(after[..., :1]), after[..., :-1]], -1), unstopped, after[..., -1:], near


def render(
    means: Tensor,
    sigma: Tensor,
    opacities: Tensor,
    features: Tensor,
    viewmat: Tensor,
    K: Tensor,
    width: int,
    height: int,
    *,
    camera_model: str,
    lens: Tensor | None = None,
    background: Tensor | None = None,
    antialiased: bool = False,
    max_alpha: float = 0.999,
    with_depth: bool = False,
    margin: float = 1e-4,
    falloff: Callable[[Tensor, Tensor], Tensor] = lambda sigma, order: torch.exp(-0.5 * sigma),
    falloff2d: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
    projected: Projected | None = None,
) -> Rendered:
    """Render means [N, 3], covariances [N, 3, 3], opacities [N], features [N, D], all in front of the camera. A lens is [12].

    Args:
        projected: replaces the camera's projection; `viewmat` and `K` are then ignored.
        falloff: a function of σ [H, W, N] and the order of the Gaussians.
        falloff2d: replaces it; a function of Δ [H, W, N, 2], inverse covariances [N, 2, 2] and the order.
    """
    if projected is None:
        projected = project(means, sigma, viewmat, K, width, height, camera_model, lens)
    means2d, sharp, depths, visible = projected.means2d, projected.sharp, projected.depths, projected.visible
    opacities = torch.where(visible, opacities, 0.0)
    blurred = sharp + EPS2D * torch.eye(2).to(means)
    inverse = torch.linalg.inv(blurred)
    if antialiased:
        ratio = torch.linalg.det(sharp) / torch.linalg.det(blurred)
        opacities = opacities * ratio.clamp(min=MIN_COMPENSATION**2).sqrt()
    if with_depth:
        features = torch.cat([features, depths[:, None]], -1)

    order = depths.argsort()
    y, x = torch.meshgrid(torch.arange(height).to(means) + 0.5, torch.arange(width).to(means) + 0.5, indexing="ij")
    d = torch.stack([x, y], -1)[:, :, None] - means2d[order]
    if falloff2d:
        faded = falloff2d(d, inverse[order], order)
    else:
        faded = falloff(torch.einsum("hwni,nij,hwnj->hwn", d, inverse[order], d), order)
    raw = opacities[order] * faded
    alphas, before, _, final_T, near = blend(raw, max_alpha, margin)
    image = alphas * before @ features[order]
    if background is not None:
        image = image + final_T * background
    return Rendered(image, 1 - final_T, torch.stack(near).any(0).any(-1))
