"""gsplat's first stages on top of splat_py's: Gaussians and surfels → splats, spherical harmonics → colours."""

import math
from typing import Any

import torch
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.gpu.autograd import graph_break
from splat_py.gpu.tensors import as_tensor, check_shape, check_tensors
from splat_py.gsplat.checks import check_camera_model, device_to_differentiate, leading
from splat_py.gsplat.version import is_1_5
from splat_py.render.cameras import CAMERA_MODELS
from splat_py.render.options import Options
from splat_py.render.project import project
from splat_py.render.shade import shade_channels
from splat_py.render.splats import ProjectedSplats

# Without opacities gsplat's radii are 3.33 standard deviations. This opacity gives splat_py's the same: its ellipse is where
# α = 1/255, with a margin for rounding (slang/splat/footprint.slang).
_OPAQUE = math.exp((3.33**2 - 1e-4) / 2.0002) / 255
# gsplat 1.5.3 has no lower limit; a small one keeps the square root's slope finite.
_LEAST_COMPENSATION = 1e-6
# The harmonic of degree 0.
_Y_0 = 0.5 / math.sqrt(math.pi)


@graph_break
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
    """Project Gaussians to splats of C cameras by EWA projection (Zwicker et al. 2001).

    Differentiable in means, covars, quats, scales, viewmats and Ks. All values of a culled splat are zero. SplatError if an
    argument has the wrong shape, dtype or device. Arguments not listed here are those of `splat_py.rasterization`.

    Args:
        covars: [..., N, 6] upper triangles xx, xy, xz, yy, yz, zz; if None, quats and scales are required.
        packed: return only splats that are not culled.
        calc_compensations: also return √(det Σ / det (Σ + eps2d)), for antialiasing (Yu et al. 2024).
        camera_model: "pinhole", "ortho" or "fisheye".
        opacities: [..., N], dimmed by compensations: radii and culling then follow from where α = 1/255; otherwise radii are
            3.33 standard deviations. They have no gradient.

    Returns:
        radii int32 [..., C, N, 2] (0 if culled), means2d [..., C, N, 2], depths [..., C, N], conics [..., C, N, 3] and
        compensations [..., C, N], or None without `calc_compensations`. Packed: first the indices of each splat, batch_ids,
        camera_ids and gaussian_ids, int64 [nnz]; in gsplat 1.6 (`splat_py.gsplat.use`) the first row of each camera, int32
        [B C + 1]; then the same results with nnz instead of ..., C, N.
    """
    check_camera_model(camera_model)
    shapes = {"quats": quats, "scales": scales}
    check_tensors({"means": means, "covars": covars, **shapes, "viewmats": viewmats, "Ks": Ks, "opacities": opacities})
    batch, count, cameras = _check_scenes(means, viewmats, Ks, packed, sparse_grad)
    if covars is not None:
        check_shape("covars", covars, (*batch, count, 6))
        quats = scales = None
    elif quats is None or scales is None:
        raise SplatError("covars is missing, and quats or scales too; give covars, or quats and scales")
    else:
        check_shape("quats", quats, (*batch, count, 4))
        check_shape("scales", scales, (*batch, count, 3))
    if opacities is not None:
        check_shape("opacities", opacities, (*batch, count))
    options = {"camera_model": CAMERA_MODELS[camera_model], **Options.same_named(locals())}
    gaussians, seen = (means, quats, scales, opacities), (viewmats, Ks, width, height)
    splats, compensations = project_gaussians(*gaussians, *seen, calc_compensations, options, covars=covars)
    return *_ids_of(splats, count, cameras), splats.radii, splats.means2d, splats.depths, splats.conics, compensations


def project_gaussians(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    opacities: Tensor | None,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    calc_compensations: bool,
    options: dict[str, Any],
    **others: Any,
) -> tuple[ProjectedSplats, Tensor | None]:
    """Splats and their compensations, None unless asked for. Opacities have no gradient."""
    device = device_to_differentiate(means)
    before = means.new_full(means.shape[:-1], _OPAQUE) if opacities is None else opacities.detach()
    options = {"antialiased": calc_compensations, "undimmed_reach": calc_compensations and opacities is None, **options}
    if is_1_5():
        options["least_compensation"] = _LEAST_COMPENSATION
    chosen = Options.on(device, **options)
    splats = project(means, quats, scales, before, viewmats, Ks, width, height, chosen, device=device, **others)
    if not calc_compensations:
        return splats, None
    gaussian_ids = splats.gaussian_ids
    before = before[..., None, :] if gaussian_ids is None else before.flatten()[gaussian_ids]
    # Splats with opacities below 1/255 are culled.
    return splats, splats.opacities / before.clamp(min=1 / 255)


@graph_break
def fully_fused_projection_2dgs(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
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
) -> tuple[Tensor, ...]:
    """Project surfels to splats of C cameras (Huang et al. 2024).

    Differentiable in means, quats, scales, viewmats and Ks. All values of a culled splat are zero. Arguments as in
    `splat_py.rasterization_2dgs`; eps2d has no effect. SplatError if an argument has the wrong shape, dtype or device.

    Returns:
        radii int32 [..., C, N, 2] (0 if culled), means2d [..., C, N, 2], depths [..., C, N], ray transforms
        [..., C, N, 3, 3] and normals [..., C, N, 3] in camera space. Packed: first indices, as
        `fully_fused_projection` returns them.
    """
    check_tensors({"means": means, "quats": quats, "scales": scales, "viewmats": viewmats, "Ks": Ks})
    batch, count, cameras = _check_scenes(means, viewmats, Ks, packed, sparse_grad)
    check_shape("quats", quats, (*batch, count, 4))
    check_shape("scales", scales, (*batch, count, 3))
    device = device_to_differentiate(means)
    options = Options.on(device, primitive="GsplatSurfel", **Options.same_named(locals()))
    opaque = means.new_ones(*batch, count)
    splats = project(means, quats, scales, opaque, viewmats, Ks, width, height, options, device=device)
    results = splats.radii, splats.means2d, splats.depths, splats.conics.unflatten(-1, (3, 3)), splats.normals
    return *_ids_of(splats, count, cameras), *results


def _check_scenes(
    means: Tensor, viewmats: Tensor, Ks: Tensor, packed: bool, sparse_grad: bool
) -> tuple[tuple[int, ...], int, int]:
    """The batch dimensions, and the numbers of Gaussians and cameras of each scene, checked."""
    *batch, count = leading("means", means, 3)
    check_shape("viewmats", viewmats, (*batch, "C", 4, 4))
    cameras = viewmats.shape[-3]
    check_shape("Ks", Ks, (*batch, cameras, 3, 3))
    if sparse_grad and not packed:
        raise SplatError("sparse_grad needs packed=True, which lists the Gaussians with a gradient")
    return tuple(batch), count, cameras


def _ids_of(splats: ProjectedSplats, count: int, cameras: int) -> tuple[Tensor, ...]:
    """batch_ids, camera_ids and gaussian_ids [nnz] of packed splats, and in gsplat 1.6 the first row of each image; an empty
    tuple for others."""
    gaussian_ids, image_ids, offsets = splats.gaussian_ids, splats.image_ids, splats.ids.offsets
    if gaussian_ids is None or image_ids is None or offsets is None:
        return ()
    first = () if is_1_5() else (as_tensor(offsets, image_ids).view(torch.int32),)
    return image_ids // cameras, image_ids % cameras, gaussian_ids % max(count, 1), *first


@graph_break
def spherical_harmonics(
    degrees_to_use: int,
    means: Tensor | None = None,
    viewmats: Tensor | None = None,
    coeffs: Tensor | None = None,
    masks: Tensor | None = None,
    batch_ids: Tensor | None = None,
    camera_ids: Tensor | None = None,
    gaussian_ids: Tensor | None = None,
    viewmats_rs: Tensor | None = None,
    *,
    dirs: Tensor | None = None,
) -> Tensor:
    """Evaluate Σ Y_k(d) c_k in the directions from cameras to means, as gsplat 1.6 does; or, without viewmats, as 1.5.3 does:
    `spherical_harmonics(degrees_to_use, dirs, coeffs, masks=None)`. Differentiable in means, viewmats, dirs and coeffs.
    SplatError for a wrong shape, dtype, device or value.

    Args:
        degrees_to_use: 0 to 4.
        means: [..., N, 3] world units.
        viewmats: [..., C, 4, 4] world → camera.
        coeffs: [N, K, D], K ≥ (degrees_to_use + 1)²; further ones are ignored. float32 or float16. Packed [nnz, K, D]; for
            `dirs` [..., K, D].
        masks: bool; the result is zero where it is False. Its shape is that of the result without D.
        batch_ids, camera_ids, gaussian_ids: [nnz] each: the scene, camera and Gaussian of each row; all for packed coeffs.
        viewmats_rs: [..., C, 4, 4] at the last row of a rolling shutter; cameras are then midway between both.
        dirs: [..., 3] of any length above zero.

    Returns:
        [..., C, N, D]; packed [nnz, D]; for `dirs` [..., D].
    """
    if dirs is None and (coeffs is None or coeffs.dtype == torch.bool):
        dirs, coeffs, masks = means, viewmats, masks if coeffs is None else coeffs
    if dirs is None:
        given = {"means": means, "viewmats": viewmats, "viewmats_rs": viewmats_rs}
        check_tensors(given, needed=("means", "viewmats"))
        assert means is not None and viewmats is not None
        dirs = _directions(means, viewmats, viewmats_rs, batch_ids, camera_ids, gaussian_ids)
        if coeffs is not None and gaussian_ids is None:
            coeffs = coeffs.expand(*dirs.shape[:-2], *coeffs.shape)
    check_tensors({"dirs": dirs, "coeffs": coeffs}, halves=("coeffs",), needed=("dirs", "coeffs"))
    assert coeffs is not None
    batch = leading("dirs", dirs, 3)
    check_shape("coeffs", coeffs, (*batch, "K", "D"))
    *_, K, channels = coeffs.shape
    if channels == 0:
        raise SplatError("coeffs has no channels; give at least one")
    if degrees_to_use not in range(5):
        raise SplatError(f"degrees_to_use must be between 0 and 4, and is {degrees_to_use!r}")
    if (needed := (degrees_to_use + 1) ** 2) > K:
        raise SplatError(f"coeffs holds {K} coefficients, but degrees_to_use={degrees_to_use} needs {needed}")
    if masks is not None:
        check_shape("masks", masks, batch)
    count = math.prod(batch)
    # Treat directions as means seen from a camera at the origin; masked ones have radius 0.
    visible = (dirs.new_ones(count) if masks is None else masks.reshape(count)).to(torch.int32)
    colors = shade_channels(
        dirs.reshape(count, 3),
        coeffs.reshape(count, K, channels),
        torch.eye(4, device=dirs.device)[None],
        visible[None, :, None].expand(1, count, 2),
        degrees_to_use,
        as_color=False,
        device=device_to_differentiate(dirs),
    )
    return colors.reshape(*batch, channels)


def spherical_harmonics_l0(sh0: Tensor) -> Tensor:
    """The part of degree 0, [N, D], of coefficients [N, 1, D]. SplatError for a wrong shape."""
    check_shape("sh0", sh0, ("N", 1, "D"))
    return sh0[:, 0].float() * _Y_0


def spherical_harmonics_l1_plus(
    degrees_to_use: int,
    means: Tensor,
    viewmats: Tensor,
    shN: Tensor,
    masks: Tensor | None = None,
    batch_ids: Tensor | None = None,
    camera_ids: Tensor | None = None,
    gaussian_ids: Tensor | None = None,
    viewmats_rs: Tensor | None = None,
) -> Tensor:
    """`spherical_harmonics` of coefficients [N, K - 1, D] from degree 1 on."""
    check_shape("shN", shN, ("N", "K - 1", "D"))
    ids = batch_ids, camera_ids, gaussian_ids
    coeffs = torch.nn.functional.pad(shN, (0, 0, 1, 0))
    return spherical_harmonics(degrees_to_use, means, viewmats, coeffs, masks, *ids, viewmats_rs)


def _directions(means: Tensor, viewmats: Tensor, viewmats_rs: Tensor | None, *ids: Tensor | None) -> Tensor:
    """Directions from cameras to means, [..., C, N, 3], or with ids of scenes, cameras and Gaussians [nnz, 3]."""
    *batch, count = leading("means", means, 3)
    check_shape("viewmats", viewmats, (*batch, "C", 4, 4))
    cameras = viewmats.shape[-3]
    poses = [viewmats]
    if viewmats_rs is not None:
        check_shape("viewmats_rs", viewmats_rs, tuple(viewmats.shape))
        poses.append(viewmats_rs)
    # A pose maps its camera's centre -Rᵀt to 0.
    centres = [-(pose[..., :3, :3].mT @ pose[..., :3, 3:])[..., 0] for pose in poses]
    centre = sum(centres[1:], centres[0]) / len(centres)  # [..., C, 3]
    if all(index is None for index in ids):
        return means[..., None, :, :] - centre[..., None, :]
    if any(index is None for index in ids):
        raise SplatError("batch_ids, camera_ids and gaussian_ids belong together; give all three or none")
    scene, camera, gaussian = (index.long() for index in ids if index is not None)
    return means.reshape(-1, 3)[scene * count + gaussian] - centre.reshape(-1, 3)[scene * cameras + camera]
