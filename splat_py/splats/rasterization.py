"""Differentiable Gaussian splatting for torch: one autograd function a stage, and `rasterization`, which chains them.

Tensors may live on the CPU, on MPS or on CUDA; what renders is the device of `splat_py.gpu.device`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gpu.accumulation import Accumulate, accumulation
from splat_py.gpu.autograd import opaque
from splat_py.gpu.device import Device, Operator, device_for
from splat_py.gpu.kernels import UserType
from splat_py.shaders import ShaderModule
from splat_py.splats.blended_features import blended_features, gather
from splat_py.splats.cameras import UnscentedTransform, camera_type, shutter_of
from splat_py.splats.colors import color_type
from splat_py.splats.data import Settings
from splat_py.splats.fill import fill
from splat_py.splats.meta import meta_of
from splat_py.splats.project import ProjectedSplats, project
from splat_py.splats.rasterize import MAX_CHANNELS, rasterize
from splat_py.splats.ray_splats import RAY_GAUSSIAN, project_inputs
from splat_py.splats.splat_types import SPLAT_INTERFACES
from splat_py.splats.tensors import check_tensors
from splat_py.splats.tiles import bin_tiles
from splat_py.splats.validation import (
    SPLATS,
    Inputs,
    Options,
    RenderMode,
    check_cameras,
    check_options,
    check_shapes,
    is_neutral,
    reject_unsupported,
    stack_params,
)
from splat_py.user_types import user_type

Backend = Literal["auto", "native", "portable"]


@opaque
def rasterization(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    opacities: Tensor,
    colors: Tensor | None,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    eps2d: float = 0.3,
    sh_degree: int | None = None,
    packed: bool = True,
    tile_size: int | None = None,
    backgrounds: Tensor | None = None,
    render_mode: RenderMode = "RGB",
    sparse_grad: bool = False,
    absgrad: bool = False,
    rasterize_mode: Literal["classic", "antialiased"] = "classic",
    channel_chunk: int = 32,
    distributed: bool = False,
    camera_model: Literal["pinhole", "ortho", "fisheye", "equirectangular"] | UserType | ShaderModule = "pinhole",
    segmented: bool = False,
    covars: Tensor | None = None,
    with_ut: bool = False,
    with_eval3d: bool = False,
    return_normals: bool = False,
    global_z_order: bool = True,
    rays: Any = None,
    radial_coeffs: Tensor | None = None,
    tangential_coeffs: Tensor | None = None,
    thin_prism_coeffs: Tensor | None = None,
    ftheta_coeffs: Any = None,
    lidar_coeffs: Any = None,
    external_distortion_coeffs: Any = None,
    rolling_shutter: Any = None,
    viewmats_rs: Tensor | None = None,
    ut_params: Any = None,
    extra_signals: Tensor | None = None,
    extra_signals_sh_degree: int | None = None,
    renderer_config: Any = None,
    *,
    backend: Backend = "auto",
    accumulate: Accumulate = "auto",
    max_alpha: float = 0.999,
    splat: str | UserType | ShaderModule = "Gaussian",
    params: Mapping[str, Tensor] | None = None,
    camera_params: Tensor | None = None,
    color: str | UserType | ShaderModule = "SphericalHarmonics",
    weights: Tensor | None = None,
    device: Device | str | None = None,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Render Gaussians from C cameras (Kerbl et al. 2023), with the signature and the conventions of gsplat 1.6 and 1.5.3.

    Differentiable in all tensors, once. They are float32 and on one torch device. Leading dimensions `...` are scenes, the same
    of all tensors. Coefficients and features, `colors`, may be float16: they then take half the memory on the device, which
    computes with float32 all the same, and their gradients become float16 when they are complete. Gaussians whose projection is
    not finite, or which lie nearer than `near_plane`, are culled and get a zero gradient.

    Args:
        means: [..., N, 3] centres, world units.
        quats: [..., N, 4] rotations (w, x, y, z), normalised here.
        scales: [..., N, 3] standard deviations > 0, world units.
        opacities: [..., N] between 0 and 1.
        colors: [..., N, D] or, for each camera, [..., C, N, D], of any D. With `sh_degree` spherical-harmonics coefficients:
            [..., N, K, D] or [..., C, N, K, D], or [N, K, D] of all scenes. None where `render_mode` has no colours.
        viewmats: [..., C, 4, 4] world → camera, camera axes +x right, +y down, +z forward (OpenCV).
        Ks: [..., C, 3, 3] intrinsics in pixels; pixel centres lie at +0.5. Skew is not supported and ignored.
        width, height: of the images, pixels.
        near_plane, far_plane: camera depths between which Gaussians are seen; near_plane > 0.
        radius_clip: splats that reach no further than this many pixels are skipped.
        eps2d: variance added to every splat, pixel².
        sh_degree: degree in use, 0 to 4, at most what K allows; None if `colors` are colours.
        packed: keep what is computed of a Gaussian and a camera only where it is visible: less memory for large scenes of which
            each camera sees a part. The images are the same to the last bit.
        tile_size: 4, 8 or 16 pixels; by default what suits the device.
        backgrounds: [..., C, D] (D as rendered, without depth); black by default.
        render_mode: colours ("RGB"), accumulated depth Σ w z ("D"), expected depth Σ w z / Σ w ("ED"), or both, depth last.
        sparse_grad: with `packed`: gradients of means, quats and scales are sparse (COO).
        absgrad: also leave Σ |∂L/∂mean2d| over pixels in `meta["means2d"].absgrad` (Ye et al. 2024); zeros before the backward
            pass.
        rasterize_mode: "antialiased" dims splats by what `eps2d` enlarges them (Yu et al. 2024).
        channel_chunk, segmented, renderer_config: of no effect on results, and ignored.
        camera_model: "pinhole", "ortho" (orthographic, focal lengths in pixels a world unit), "fisheye" (equidistant), or
            "equirectangular" (the whole sphere by longitude and latitude, focal lengths in pixels a radian, depths are
            distances; splats are cut off at the left and the right edge); or Slang of yours with a type that implements
            `ICameraModel` (slang/splat/camera_model.slang): `splat_py.shaders.source(text)`.
        radial_coeffs, tangential_coeffs, thin_prism_coeffs: distortion by OpenCV's formulas, also without `with_ut`. Of a
            pinhole [..., C, 6] or [..., C, 4] (k1 … k6), [..., C, 2] (p1, p2) and [..., C, 4] (s1 … s4); of a fisheye
            radial_coeffs [..., C, 4] (k1 … k4; Kannala and Brandt 2006). What lies so far from the axis that the lens would
            fold it back into the image is culled.
        covars: [..., N, 3, 3] covariances in the place of quats and scales; their upper triangles are read.
        with_ut, ut_params: project by the unscented transform (Wan and van der Merwe 2000; Wu et al. 2025) in the place of the
            Jacobian, with gsplat's `UnscentedTransformParameters`; not with covars.
        rolling_shutter, viewmats_rs: cameras read out row by row or column by column, from the first to the last of which they
            move from viewmats to viewmats_rs [..., C, 4, 4]; a `RollingShutterType` of gsplat's or of `splat_py.gsplat`.
        extra_signals: [..., N, E] or [..., C, N, E], blended as colours are, into `meta["render_extra_signals"]`; with
            `extra_signals_sh_degree` coefficients, Σ Y sh + ½ without a lower limit.
        with_eval3d: evaluate Gaussians where a pixel's ray comes nearest to their means, without projecting them (Wu et al.
            2025): exact however wide the view; `eps2d` and `with_ut` have no effect. Pinholes without a lens.
        backend: "native" and "auto" render, or raise where no device can; "portable" fills the image with one flat colour, the
            mean of what is given, anywhere (`splat_py.portable`).
        accumulate: how a Gaussian's gradients add up over pixels: "pixel", "wave", "group" (ever fewer atomic additions) or
            "pair" (none: a row for each pair of a tile and a Gaussian, summed in a fixed order, so that gradients are the same
            to the last bit from run to run; takes 4 · (6 + D) bytes a pair). "auto" is what suits the device, or "pair" under
            `torch.use_deterministic_algorithms(True)`.
        max_alpha: no splat hides more of what is behind it: 0.999 as in gsplat 1.5.3, or 0.99 as in 1.6.
        splat: how splats fade with the distance from their mean: "Gaussian"; "GeneralizedExponential", exp(-σ^β / 2) with
            params["beta"] (Hamdi et al. 2024); "BetaKernel", (1 - σ / 9)^(4 exp b) with params["b"] (Liu et al. 2025); or
            Slang of yours with a type that implements `IFalloff` (slang/splat/falloff.slang), or of any form `IFalloff2D`
            (slang/splat/falloff2d.slang): `splat_py.shaders.source(text)`.
        params: its extra numbers of each Gaussian by name, [..., N] each, four at most, in the order of `extras`.
            Differentiable.
        camera_params: [..., C, P] coefficients of a camera model of yours, P ≤ 12: `coefficient(camera, i)`. Differentiable.
        color: how colours depend on the direction. "SphericalHarmonics" are what `sh_degree` says. With others `colors` are F
            features a Gaussian, [..., N, F] or [..., C, N, F]: "SphericalGaussians", 3 and 6 for each lobe (Wang et al. 2009,
            2025); "ColorNetwork", any number, with weights from `splat_py.splats.colors.initial_network` (Lu et al. 2024); or
            Slang of yours with a type that implements `IColor` (slang/splat/color.slang).
        weights: [W] that all Gaussians share, where such a type has some. Differentiable.
        device: where to render; by default that of `splat_py.get_device`, or of CUDA or MPS tensors the GPU that they are on.

    Returns:
        Images [..., C, H, W, D'], alphas [..., C, H, W, 1] and a dictionary of what happened on the way. Of the splats, with
        shapes [..., C, N, ·], or packed [nnz, ·]: `means2d`, `depths`, `conics`, `opacities`, `radii` (0 where culled),
        `tiles_per_gauss`; packed also whose they are, `batch_ids`, `camera_ids`, `gaussian_ids`. Of the tiles: `tile_size`,
        `tile_width`, `tile_height`, `isect_offsets` [..., C, tile_height, tile_width], `flatten_ids`, `isect_ids`. Of the
        pixels [..., C, H, W]: `final_T`, `n_contrib`. And `width`, `height`, `n_batches`, `n_cameras`. Call
        `meta["means2d"].retain_grad()` to see its gradient. `backend` is "native" or "portable", which has nothing else but
        sizes to tell.

    Raises:
        SplatError: an argument has the wrong shape, dtype, device or value, or no device can do what `backend` asks for.
        NotImplementedError: an argument of gsplat's asks for what is not done here.
    """
    reject_unsupported(
        {
            "distributed": distributed,
            "return_normals": return_normals,
            "global_z_order": global_z_order,
            "rays": rays,
            "ftheta_coeffs": ftheta_coeffs,
            "lidar_coeffs": lidar_coeffs,
            "external_distortion_coeffs": external_distortion_coeffs,
        }
    )
    if covars is not None:
        quats = scales = None
    extras = stack_params(splat, params or {}, means)
    inputs = Inputs(
        means,
        quats,
        scales,
        opacities,
        colors,
        viewmats,
        Ks,
        backgrounds,
        covars,
        extra_signals,
        None if is_neutral("radial_coeffs", radial_coeffs) else radial_coeffs,
        None if is_neutral("tangential_coeffs", tangential_coeffs) else tangential_coeffs,
        None if is_neutral("thin_prism_coeffs", thin_prism_coeffs) else thin_prism_coeffs,
        extras,
        viewmats_rs,
        camera_params,
        weights,
    )
    options = Options(
        width=width,
        height=height,
        near_plane=near_plane,
        far_plane=far_plane,
        radius_clip=radius_clip,
        eps2d=eps2d,
        sh_degree=sh_degree,
        packed=packed,
        tile_size=tile_size,
        render_mode=render_mode,
        sparse_grad=sparse_grad,
        absgrad=absgrad,
        rasterize_mode=rasterize_mode,
        camera_model=camera_model,
        extra_signals_sh_degree=extra_signals_sh_degree,
        accumulate=accumulate,
        max_alpha=max_alpha,
        falloff=SPLATS[splat][0] if isinstance(splat, str) else user_type(splat, *SPLAT_INTERFACES),
        unscented=UnscentedTransform.of(ut_params) if with_ut and not with_eval3d else None,
        shutter=shutter_of(rolling_shutter),
        color=color_type(color),
        with_eval3d=bool(with_eval3d),
    )
    check_tensors(inputs.named(), halves=HALVES)
    check_options(options)
    # NumPy's integers overflow, and lack methods.
    options = replace(options, width=int(width), height=int(height))
    if "RGB" not in render_mode:
        inputs = replace(inputs, colors=None, backgrounds=None, weights=None)
    check_shapes(inputs, options)
    check_cameras(inputs)
    if backend not in ("auto", "native", "portable"):
        raise SplatError(f"backend is {backend!r}; use auto, native or portable")
    if backend == "portable":
        return fill(inputs, options)
    return _render(inputs, options, device_to_render(inputs, device))


@opaque
def render_backward(v_images: Tensor, v_alphas: Tensor | None = None, **arguments: Any) -> dict[str, Tensor]:
    """The gradients of `rasterization` without a graph: renders again.

    Args:
        v_images, v_alphas: gradients of its images and alphas.
        arguments: what it was given, by name.

    Returns:
        The gradients of its tensors, by name.
    """
    leaves = {
        name: value.detach().requires_grad_()
        for name, value in arguments.items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    with torch.enable_grad():
        images, alphas, _ = rasterization(**arguments | leaves)
    outputs, gradients = ([images], [v_images]) if v_alphas is None else ([images, alphas], [v_images, v_alphas])
    found = torch.autograd.grad(outputs, list(leaves.values()), gradients, allow_unused=True)
    return {name: gradient for name, gradient in zip(leaves, found, strict=True) if gradient is not None}


def device_to_render(inputs: Inputs, device: Device | str | None) -> Device:
    """A device that renders, by default the one for the tensors."""
    device = device_for(inputs.means, device)
    differentiated = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs.named().values())
    device.require(*((Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD) if differentiated else (Operator.SPLAT_FORWARD,)))
    return device


def _render(inputs: Inputs, options: Options, device: Device) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Project, shade, bin, rasterise."""
    width, height, lead = options.width, options.height, inputs.viewmats.shape[:-2]
    channels = options.channels(inputs)
    device.memory.limits.check_images(lead.numel(), height, width, min(channels, MAX_CHANNELS))
    if options.absgrad and channels > MAX_CHANNELS:
        # Absolute values of one pass's gradients do not add up to those of all.
        raise NotImplementedError(f"absgrad is not supported for more than {MAX_CHANNELS} channels; leave absgrad out")
    settings = _settings(options, inputs, device)
    to_splats = project_inputs if options.with_eval3d else _project
    splats = to_splats(inputs, options, settings, device)
    if inputs.extras is not None:
        splats = replace(splats, extras=gather(inputs.extras, inputs, splats))
    lists = bin_tiles(
        splats,
        width,
        height,
        settings.tile_size,
        keep_isects=settings.per_isect,
        bounds=settings.bounds_constants(),
        device=device,
    )
    features, backgrounds = blended_features(inputs, options, splats, settings, device)
    rendered = rasterize(splats, features, lists, width, height, backgrounds, settings, device=device)
    images, alphas = (part.unflatten(0, lead) for part in (rendered.colors, rendered.alphas))

    meta = meta_of(splats, lists, rendered, lead, inputs.means.shape[-2])
    meta["backend"] = "native"
    if options.with_eval3d:
        del meta["conics"]
    if inputs.extra_signals is not None:
        extra = inputs.extra_signals.shape[-1]
        images, meta["render_extra_signals"] = images[..., :-extra], images[..., -extra:]
    if "ED" in options.render_mode:
        expected = images[..., -1:] / alphas.clamp(min=1e-10)
        images = torch.cat([images[..., :-1], expected], -1)
    return images, alphas, meta


def _project(inputs: Inputs, options: Options, settings: Settings, device: Device) -> ProjectedSplats:
    return project(
        inputs.means,
        inputs.quats,
        inputs.scales,
        inputs.opacities,
        inputs.viewmats,
        inputs.Ks,
        options.width,
        options.height,
        settings,
        covars=None if inputs.covars is None else inputs.covars[..., *_UPPER],
        extras=inputs.extras,
        lenses=inputs.lenses(),
        viewmats_rs=inputs.viewmats_rs,
        packed=options.packed,
        sparse_grad=options.sparse_grad,
        device=device,
    )


# Arguments that may be float16 as well.
HALVES = ("colors",)
# Of a symmetric matrix.
_UPPER = ([0, 0, 0, 1, 1, 2], [0, 1, 2, 1, 2, 2])


def _settings(options: Options, inputs: Inputs, device: Device) -> Settings:
    return Settings(
        tile_size=device.tuning.tile_size if options.tile_size is None else options.tile_size,
        antialiased=options.rasterize_mode == "antialiased",
        absgrad=options.absgrad,
        camera_model=camera_type(options.camera_model, inputs.lenses() is not None),
        unscented=options.unscented,
        shutter=options.shutter,
        max_alpha=options.max_alpha,
        falloff=options.falloff,
        extras=0 if inputs.extras is None else inputs.extras.shape[-1],
        blur=options.eps2d,
        near=options.near_plane,
        far=options.far_plane,
        radius_clip=options.radius_clip,
        accumulation=accumulation(device, options.accumulate),
        native_atomics=device.native_float_atomics,
        **(RAY_GAUSSIAN if options.with_eval3d else {}),
    )
