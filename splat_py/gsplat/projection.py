"""gsplat's `fully_fused_projection` over our first stage."""

from __future__ import annotations

import math

from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gpu.autograd import opaque
from splat_py.gpu.device import Operator, device_for
from splat_py.gsplat.checks import check_camera_model, leading
from splat_py.splats.cameras import CAMERA_MODELS
from splat_py.splats.data import Settings
from splat_py.splats.project import project
from splat_py.splats.tensors import check_shape, check_tensors

# Without opacities gsplat's radii are 3.33 standard deviations. This opacity gives ours that: the ellipse on which α is 1/255,
# with its margin for rounding (slang/splat/footprint.slang).
_OPAQUE = math.exp((3.33**2 - 1e-4) / 2.0002) / 255
_MIN_COMPENSATION = 1e-3


@opaque
def fully_fused_projection(
    means: Tensor,
    covars: Tensor | None,
    quats: Tensor | None,
    scales: Tensor | None,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    eps2d: float = 0.3,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    packed: bool = False,
    sparse_grad: bool = False,
    calc_compensations: bool = False,
    camera_model: str = "pinhole",
    opacities: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """Gaussians → splats of C cameras, by EWA projection (Zwicker et al. 2001).

    Differentiable in means, covars, quats, scales, viewmats and Ks. Everything of a culled splat is zero.

    Args:
        means: [..., N, 3] world units.
        covars: [..., N, 6] upper triangles xx, xy, xz, yy, yz, zz; or None, with
        quats, scales: [..., N, 4] (w, x, y, z), normalised here, and [..., N, 3] standard deviations.
        viewmats: [..., C, 4, 4] world → camera.
        Ks: [..., C, 3, 3] intrinsics in pixels.
        width, height: of the images, pixels.
        eps2d: variance added to every splat, pixel².
        near_plane, far_plane: camera depths between which Gaussians are seen.
        radius_clip: splats that reach no further than this many pixels are culled.
        packed: only splats that are not culled.
        sparse_grad: with `packed`: gradients of means, covars, quats and scales are sparse (COO).
        calc_compensations: also √(det Σ / det (Σ + eps2d)), for antialiasing (Yu et al. 2024).
        camera_model: "pinhole", "ortho" or "fisheye".
        opacities: [..., N]: radii, and what is culled, are then those of splats with these opacities, dimmed by compensations,
            where α = 1/255; otherwise radii are 3.33 standard deviations. They have no gradient.

    Returns:
        radii int32 [..., C, N, 2] (0 where culled), means2d [..., C, N, 2], depths [..., C, N], conics [..., C, N, 3] and
        compensations [..., C, N], None unless asked for. Packed: whose each splat is, batch_ids, camera_ids and gaussian_ids
        int64 [nnz], and then the same with nnz in the place of ..., C, N.

    Raises:
        SplatError: an argument has the wrong shape, dtype or device.
    """
    check_camera_model(camera_model)
    check_tensors(
        {
            "means": means,
            "covars": covars,
            "quats": quats,
            "scales": scales,
            "viewmats": viewmats,
            "Ks": Ks,
            "opacities": opacities,
        }
    )
    *batch, count = leading("means", means, 3)
    check_shape("viewmats", viewmats, (*batch, "C", 4, 4))
    cameras = viewmats.shape[-3]
    check_shape("Ks", Ks, (*batch, cameras, 3, 3))
    if covars is not None:
        check_shape("covars", covars, (*batch, count, 6))
        quats = scales = None
    elif quats is None or scales is None:
        raise SplatError("covars is missing, and so are quats or scales; give covars or both of the others")
    else:
        check_shape("quats", quats, (*batch, count, 4))
        check_shape("scales", scales, (*batch, count, 3))
    if sparse_grad and not packed:
        raise SplatError("sparse_grad needs packed=True, as only then it is known which Gaussians have a gradient")
    if opacities is None:
        effective = means.new_full((*batch, count), _OPAQUE)
    else:
        check_shape("opacities", opacities, (*batch, count))
        effective = opacities.detach()

    device = device_for(means)
    device.require(Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD)
    settings = Settings(
        device.tuning.tile_size,
        antialiased=calc_compensations and opacities is not None,
        camera_model=CAMERA_MODELS[camera_model],
        blur=eps2d,
        near=near_plane,
        far=far_plane,
        radius_clip=radius_clip,
        native_atomics=device.native_float_atomics,
    )
    splats = project(
        means,
        quats,
        scales,
        effective,
        viewmats,
        Ks,
        width,
        height,
        settings,
        covars=covars,
        packed=packed,
        sparse_grad=sparse_grad,
        device=device,
    )
    gaussian_ids, image_ids = splats.gaussian_ids, splats.image_ids
    compensations = None
    if calc_compensations and opacities is not None:
        before = effective[..., None, :] if gaussian_ids is None else effective.flatten()[gaussian_ids]
        # What is fainter is culled.
        compensations = splats.opacities / before.clamp(min=1 / 255)
    elif calc_compensations:
        # det (Σ - eps2d) / det Σ, from Σ's inverse.
        a, b, c = splats.conics.unbind(-1)
        ratio = 1 - eps2d * (a + c) + eps2d**2 * (a * c - b * b)
        compensations = ratio.clamp(min=_MIN_COMPENSATION**2).sqrt() * (splats.radii > 0).all(-1)
    results = splats.radii, splats.means2d, splats.depths, splats.conics, compensations
    if gaussian_ids is None or image_ids is None:
        return results
    return image_ids // cameras, image_ids % cameras, gaussian_ids % max(count, 1), *results
