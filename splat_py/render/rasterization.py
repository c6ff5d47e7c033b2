"""Differentiable Gaussian splatting for torch: `rasterization`, from checks to images, one autograd function per stage.

Tensors may live on the CPU, on MPS or on CUDA; `splat_py.gpu.device` chooses the device that renders.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from splat_py import portable
from splat_py.base.errors import SplatError
from splat_py.gpu.accumulation import Accumulate
from splat_py.gpu.autograd import forward_graph_break, graph_break, may_repeat, primal
from splat_py.gpu.device import Device, Operator, device_for
from splat_py.gpu.kernels import UserType
from splat_py.gpu.tensors import check_shape, check_tensors
from splat_py.render import checks
from splat_py.render.cameras import camera_type, lens_coefficients, midway, shutter_of
from splat_py.render.colors import COLORS, color_model
from splat_py.render.distributed import Processes
from splat_py.render.meta import Later, meta_of, values_of
from splat_py.render.options import STOPS, Options, RenderMode, UnscentedTransform
from splat_py.render.project import project
from splat_py.render.rasterize import MAX_CHANNELS, rasterize
from splat_py.render.shade import shade, shade_channels
from splat_py.render.splats import ProjectedSplats
from splat_py.render.tiles import bin_tiles
from splat_py.shaders.functions import ShaderModule
from splat_py.shaders.loading import built_in_or_own

Backend = Literal["auto", "native", "portable"]
# Arguments that may also be float16.
HALVES = ("colors",)
# Rows and columns of a symmetric matrix's upper triangle.
_UPPER = ([0, 0, 0, 1, 1, 2], [0, 1, 2, 1, 2, 2])


@forward_graph_break
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
    camera_model: Literal["pinhole", "ortho", "fisheye", "ftheta", "equirectangular"] | UserType | ShaderModule = "pinhole",
    covars: Tensor | None = None,
    with_ut: bool = False,
    with_eval3d: bool = False,
    return_normals: bool = False,
    global_z_order: bool = True,
    radial_coeffs: Tensor | None = None,
    tangential_coeffs: Tensor | None = None,
    thin_prism_coeffs: Tensor | None = None,
    ftheta_coeffs: Any = None,
    rolling_shutter: Any = None,
    viewmats_rs: Tensor | None = None,
    ut_params: Any = None,
    extra_signals: Tensor | None = None,
    extra_signals_sh_degree: int | None = None,
    *,
    backend: Backend = "auto",
    accumulate: Accumulate = "auto",
    max_alpha: float = 0.999,
    splat: str | UserType | ShaderModule = "Gaussian",
    splat_params: Mapping[str, Tensor] | None = None,
    camera_params: Tensor | None = None,
    rays: Tensor | None = None,
    color: str | UserType | ShaderModule = "SphericalHarmonics",
    weights: Tensor | None = None,
    return_medians: bool = False,
    distributed: bool = False,
    device: Device | str | None = None,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Render Gaussians from C cameras (Kerbl et al. 2023). Arguments shared with gsplat have its names, order and conventions;
    `splat_py.gsplat.rasterization` accepts the rest of gsplat's arguments.

    Differentiable once, in all tensors, backward or forward (torch.func.jvp and jacfwd). They are float32 and on one torch
    device. Leading dimensions `...` are scenes, the same for all tensors. `colors` may be float16: coefficients and features
    then take half the memory on the device, which still computes in float32 and rounds only the final gradients. Gaussians are
    not drawn and get a zero gradient if they lie nearer than `near_plane`, if a number of theirs or their projection is not
    finite, or if one is so large that gradients would overflow: 1e10 in their geometry, 1e18 in their colours and signals.

    Args:
        means: [..., N, 3] centres, world units.
        quats: [..., N, 4] rotations (w, x, y, z), normalised here.
        scales: [..., N, 3] standard deviations > 0, world units.
        opacities: [..., N] between 0 and 1.
        colors: [..., N, D] or, per camera, [..., C, N, D], with any D. With `sh_degree`, spherical-harmonics coefficients
            [..., N, K, D] or [..., C, N, K, D], or [N, K, D] for all scenes. None if `render_mode` has no colours.
        viewmats: [..., C, 4, 4] world → camera, camera axes +x right, +y down, +z forward (OpenCV).
        Ks: [..., C, 3, 3] intrinsics in pixels; pixel centres lie at +0.5. Skew is not supported and ignored.
        width, height: image size, pixels.
        near_plane, far_plane: Gaussians are culled unless their camera depth lies in between; near_plane > 0.
        radius_clip: splats that reach no further than this many pixels are skipped.
        eps2d: variance added to every splat, pixel².
        sh_degree: degree in use, 0 to 4, with (degree + 1)² ≤ K; None if `colors` are colours.
        packed: store only visible splats, which saves memory if each camera sees a small part of a large scene. The images are
            bit-identical.
        tile_size: 4, 8 or 16 pixels; by default the device's choice.
        backgrounds: [..., C, D], D without depth; black by default.
        render_mode: colours ("RGB"), accumulated depth Σ w z ("D"), expected depth Σ w z / Σ w ("ED"), or both, depth last;
            with `with_eval3d` also the same of distances ("d", "Ed", "RGB-d", "RGB-Ed"), along the pixel's ray to the point of
            a Gaussian's largest response.
        sparse_grad: make the gradients of means, quats and scales sparse (COO); needs `packed`.
        absgrad: also store Σ |∂L/∂mean2d| over pixels in `meta["means2d"].absgrad` (Ye et al. 2024); zeros before the backward
            pass.
        rasterize_mode: "antialiased" dims splats to compensate for their enlargement by `eps2d` (Yu et al. 2024).
        camera_model: "pinhole", "ortho" (orthographic, focal lengths in pixels per world unit), "fisheye" (equidistant),
            "ftheta" (with `ftheta_coeffs`), or "equirectangular" (the whole sphere by longitude and latitude, focal lengths in
            pixels per radian, depths are distances; splats are cut off at the left and the right edge); or your own Slang type
            that implements `ICameraModel` (slang/splat/camera_model.slang), from `splat_py.shaders.source(text)`.
        radial_coeffs, tangential_coeffs, thin_prism_coeffs: distortion by OpenCV's formulas, also without `with_ut`. For a
            pinhole [..., C, 6] or [..., C, 4] (k1 … k6), [..., C, 2] (p1, p2) and [..., C, 4] (s1 … s4); for a fisheye
            radial_coeffs [..., C, 4] (k1 … k4; Kannala and Brandt 2006). Gaussians so far from the axis that the lens would
            fold them back into the image are culled.
        ftheta_coeffs: gsplat's `FThetaCameraDistortionParameters`, which all cameras share: `linear_cde` [3]
            and the polynomial [6] named by `reference_poly`, numbers or tensors with gradients; and `max_angle`, beyond which
            nothing is seen (slang/splat/camera_models.slang). The other polynomial and focal lengths have no effect, and the
            principal point counts from the centre of the first pixel.
        global_z_order: False sorts by the distance from the camera, or with a rolling shutter from the middle of its way. The
            distance is then also the depth, and only for "ftheta" bounded by the near and far planes, so that it may see
            Gaussians beside and behind itself.
        covars: [..., N, 3, 3] covariances instead of quats and scales; only their upper triangles are read.
        with_ut, ut_params: project by the unscented transform (Wan and van der Merwe 2000; Wu et al. 2025) instead of the
            Jacobian, with gsplat's `UnscentedTransformParameters`; not with covars.
        rolling_shutter, viewmats_rs: a `RollingShutterType` of gsplat or `splat_py.gsplat`, and poses [..., C, 4, 4] at the
            last row or column: cameras move from viewmats to viewmats_rs while rows or columns are read out.
        extra_signals: [..., N, E] or [..., C, N, E], blended like colours into `meta["render_extra_signals"]`; with
            `extra_signals_sh_degree`, coefficients of Σ Y sh + ½, which has no lower limit.
        with_eval3d: evaluate each Gaussian where a pixel's ray comes nearest to its mean instead of projecting it (Wu et al.
            2025): exact for any camera, lens and shutter. With `with_ut`, as in gsplat, it is seen only in the tiles that the
            box around its unscented transform overlaps; otherwise `eps2d` has no effect. As in gsplat, `meta["means2d"]` has
            no gradient, except for pinholes without `with_ut`, a lens, a shutter, normals and distances. Not with covars,
            antialiased or an `IFalloff2D`.
        rays: with `with_eval3d`, the pixels' rays [..., C, H, W, 6] in the world, in the place of the camera's: origin, and
            direction of any length, or 0 for none. The camera still culls Gaussians, and with `with_ut` bounds them.
        return_normals: with `with_eval3d`, also `meta["normals"]` [..., C, H, W, 3], Σ w n in world space: each Gaussian's
            third axis, turned against the pixel's ray.
        backend: "native" and "auto" render, or raise if no device can; "portable" runs anywhere, but only fills the image with
            one flat colour, the mean of the Gaussians' colours (`splat_py.portable`).
        accumulate: how a Gaussian's gradients add up over pixels: "pixel", "wave", "group" (ever fewer atomic additions) or
            "pair" (no atomics: one row per pair of a tile and a Gaussian, summed in a fixed order, so gradients are
            bit-identical from run to run; costs 4 · (6 + D) bytes per pair). "auto" is the device's choice, or "pair" under
            `torch.use_deterministic_algorithms(True)`.
        max_alpha: largest alpha of a splat in a pixel: 0.999 as in gsplat 1.5.3, or 0.99 as in 1.6.
        splat: how splats fade with the distance from their mean: "Gaussian"; "GeneralizedExponential", exp(-σ^β / 2) with
            splat_params["beta"] (Hamdi et al. 2024); "BetaKernel", (1 - σ / 9)^(4 exp b) with splat_params["b"] (Liu et al.
            2025); "Surfel", flat Gaussians as `rasterization_2dgs` draws them, for pinholes without a lens, and not with
            covars, antialiased, with_ut and with_eval3d; or your own Slang type, from `splat_py.shaders.source(text)`, that
            implements `IFalloff` (slang/splat/falloff.slang), for any shape on the image `IFalloff2D`
            (slang/splat/falloff2d.slang), for any in space `IFalloff3D` (slang/splat/falloff3d.slang), or for rgb that varies
            within a splat `ISplatColor` (slang/splat/splat_color.slang), alone or beside an `IFalloff3D` or `IFalloff`. The
            last two set `with_eval3d`, and an `ISplatColor` has no normals and distances.
        splat_params: the splat's parameters by name, at most 16, [..., N] each: the fields of your own type. Differentiable.
        camera_params: [..., C, P] coefficients of your own camera model, P ≤ 12: `coefficient(camera, i)`. Differentiable.
        color: how colours depend on the view direction: "SphericalHarmonics" of `sh_degree`, or a type for which `colors` holds
            F features per Gaussian, [..., N, F] or [..., C, N, F]: "SphericalGaussians", 3 + 6 per lobe (Wang et al. 2009,
            2025); "ColorNetwork", any F, with weights from `splat_py.render.colors.initial_network` (Lu et al. 2024); or your
            own Slang type that implements `IColor` (slang/splat/color.slang).
        weights: [W] weights of such a type, which all Gaussians share. Differentiable.
        return_medians: also `meta["median_ids"]` [..., C, H, W] int64, each pixel's median Gaussian, the last one reached with
            T > 0.5; -1 without one.
        distributed: render together with the other processes of torch.distributed, as gsplat does. Each process gives its part
            of the Gaussians, and equally many cameras of one size; its cameras see the Gaussians of all. Gradients return to
            the process that has the Gaussian or the camera, so all run the backward pass, for the same tensors. In `meta`,
            splats are those of this process's Gaussians and all cameras; lists and pixels are those of its own cameras, and
            `median_ids` count through all processes. Not with scenes, cameras other than pinholes, lenses, rolling shutters,
            with_ut, with_eval3d, global_z_order=False, absgrad, sparse_grad, and a Gaussian's colours for each camera.
        device: where to render; by default the GPU that holds CUDA or MPS tensors, else the device of `splat_py.get_device`.

    Returns:
        Images [..., C, H, W, D'], alphas [..., C, H, W, 1] and the dictionary `meta`. For splats, with shapes [..., C, N, ·] or
        packed [nnz, ·], it has `means2d`, `depths`, `conics`, `opacities`, `radii` (0 if culled), `tiles_per_gauss`; packed
        also `batch_ids`, `camera_ids`, `gaussian_ids`. For tiles it has `tile_size`, `tile_width`, `tile_height`,
        `isect_offsets` [..., C, tile_height, tile_width], `flatten_ids`, `isect_ids`; for pixels [..., C, H, W] `final_T` and
        `n_contrib`; and the sizes `width`, `height`, `n_batches`, `n_cameras`. Call `meta["means2d"].retain_grad()` to see its
        gradient. `backend` is "native" or "portable"; the latter has only the sizes.

    Raises:
        SplatError: an argument has the wrong shape, dtype, device or value, or no device can do what `backend` asks for.
        NotImplementedError: the arguments cannot be combined.
    """
    if covars is not None:
        quats = scales = None
    if "RGB" not in str(render_mode):
        colors = backgrounds = weights = None
    coefficients = {
        "radial_coeffs": radial_coeffs,
        "tangential_coeffs": tangential_coeffs,
        "thin_prism_coeffs": thin_prism_coeffs,
        "camera_params": camera_params,
    }
    tensors = {
        "rays": rays,
        **{"means": means, "quats": quats, "scales": scales, "covars": covars, "opacities": opacities},
        **{"colors": colors, "backgrounds": backgrounds, "weights": weights, "extra_signals": extra_signals},
        **{"viewmats": viewmats, "Ks": Ks, "viewmats_rs": viewmats_rs, **coefficients},
    }
    if distributed is True:
        checks.refuse_distributed(locals())
    shutter, shading = shutter_of(rolling_shutter), built_in_or_own("color", color, COLORS, "IColor")
    check_tensors(tensors, halves=HALVES, needed=checks.NEEDED)
    checks.check_settings(locals())
    extras = checks.stack_params(splat, {} if splat_params is None else splat_params, means)
    checks.check_gaussians(means, quats, scales, opacities, covars, with_ut)
    checks.check_cameras(means, viewmats, Ks, camera_model, shutter, viewmats_rs, coefficients)
    checks.check_colors(means, viewmats, colors, sh_degree, backgrounds, weights, shading, render_mode)
    if extra_signals is not None:
        degree, degree_name = extra_signals_sh_degree, "extra_signals_sh_degree"
        checks.check_features("extra_signals", extra_signals, degree_name, degree, means, viewmats)
    if rays is not None:
        check_shape("rays", rays, (*viewmats.shape[:-2], int(height), int(width), 6))
    # NumPy's integers overflow, and lack methods of Python's.
    width, height, lead = int(width), int(height), viewmats.shape[:-2]
    if backend == "portable":
        unsupported = {"absgrad": absgrad, "sparse_grad": sparse_grad, f"color={shading}": shading != "SphericalHarmonics"}
        unsupported |= {f"render_mode={render_mode!r}": render_mode != "RGB", "extra_signals": extra_signals is not None}
        channels = 0 if colors is None else colors.shape[-1]
        unsupported |= {"covars": covars is not None, f"{channels} channels": channels != 3, "medians": return_medians}
        checks.refuse("the portable backend", unsupported)
        assert quats is not None and scales is not None and colors is not None
        flat = portable.flat_images(means, quats, scales, opacities, colors, lead, width, height, sh_degree, backgrounds)
        sizes = {"width": width, "height": height, "n_batches": lead[:-1].numel(), "n_cameras": lead[-1]}
        return *flat, sizes | {"backend": "portable"}
    device = device_to_render(means, device, tensors.values())
    lenses = lens_coefficients(camera_model, viewmats, width, height, ftheta_coeffs, *coefficients.values())
    options = Options.on(
        device,
        tile_size,
        accumulate,
        **Options.same_named(locals()),
        antialiased=rasterize_mode == "antialiased",
        color_type=shading,
        camera_model=camera_type(camera_model, lenses is not None, not global_z_order),
        shutter=shutter,
        own_rays=rays is not None,
        with_ut=with_ut,
        ut_params=UnscentedTransform.of(ut_params) if with_ut else UnscentedTransform(),
        with_hits=return_normals or render_mode.endswith("d"),
        **({"primitive": "RayGaussian"} if with_eval3d else {}) | Options.of_splat(splat, tuple(splat_params or ())),
        stop=STOPS[max_alpha],
    )
    if options.along_rays:
        unsupported = {"covars": covars is not None, "rasterize_mode='antialiased'": options.antialiased}
        unsupported |= {"a splat of type IFalloff2D": getattr(options.falloff, "adapter", "") == "Falloff2DAdapter"}
        unsupported |= {"splat='Surfel'": with_eval3d and splat == "Surfel", "distributed=True": distributed}
        checks.refuse("with_eval3d=True" if with_eval3d else "a splat along rays", unsupported)
    if splat == "Surfel":
        unsupported = {"with_ut": with_ut}
        unsupported |= {"cameras other than pinholes without a lens": options.camera_model != "Pinhole" or shutter is not None}
        checks.refuse("splat='Surfel'", unsupported)
    if colors is None:
        options = replace(options, splat_color="NoHits")
    elif options.splat_color != "NoHits":
        if not options.has_features and colors.shape[-1] != 3:
            raise SplatError(f"colors has {colors.shape[-1]} channels, but the splat's ISplatColor has rgb; give 3 channels")
        checks.refuse("a splat of type ISplatColor", {"return_normals and distances along rays": options.with_hits})

    processes = Processes.meet(means, viewmats, width, height) if distributed else None
    if processes is not None:
        viewmats, Ks = processes.all_cameras(viewmats), processes.all_cameras(Ks)
    poses = viewmats if viewmats_rs is None else midway(viewmats, viewmats_rs)
    # One submission for all stages, where torch need not compute in between.
    with device.recording():
        # Again if there were not as many visible splats and intersections as expected.
        for expect in (True, False) if processes is None and may_repeat() else (False,):
            # 1: Gaussians → splats.
            splats = project(
                means,
                quats,
                scales,
                opacities,
                viewmats,
                Ks,
                width,
                height,
                options,
                extras=extras,
                covars=None if covars is None else covars[..., *_UPPER],
                lenses=lenses,
                viewmats_rs=viewmats_rs,
                expect=expect,
                device=device,
            )
            if rays is not None:
                splats = replace(splats, rays=in_camera(rays, viewmats).flatten(0, -4))
            if extras is not None:
                splats = replace(splats, extras=splats.gather(extras, means.shape[-2], each_camera=False))
            if not global_z_order and camera_model not in ("ftheta", "equirectangular"):
                device.flush()
                splats = by_distance(splats, means, poses)
            # 2: splats → the features to blend: colours, depth, extra signals, hits.
            shaded = colors, poses, backgrounds, weights, extra_signals
            features, behind = blended_features(means, *shaded, splats, options, device)
            projected, gaussians = splats, means.shape[-2]
            if processes is not None:
                device.flush()
                splats, features = processes.to_cameras(splats, features, device)
                gaussians = sum(processes.gaussians)
            device.memory.limits.check_images(lead.numel(), height, width, min(features.shape[-1], MAX_CHANNELS))
            # 3: splats → every tile's list, front to back.
            lists = bin_tiles(splats, width, height, options, expect=expect, device=device)
            # 4: lists → pixels.
            rendered = rasterize(splats, features, lists, width, height, behind, options, median=return_medians, device=device)
            if projected.complete() and lists.complete():
                break
    images, alphas = rendered.colors, rendered.alphas
    if len(lead) > 1:
        images, alphas = images.unflatten(0, lead), alphas.unflatten(0, lead)

    meta = meta_of(splats, lists, rendered, lead, gaussians)
    if processes is not None:
        meta.update(values_of(projected, len(viewmats), means.shape[-2]))
    meta["colors"] = features.detach()
    if options.along_rays:
        del meta["conics"]
        if with_ut:
            # An optimiser may change the tensors in place before conics are read.
            seen = means, quats, scales, viewmats, Ks, lenses, viewmats_rs
            copies = [None if tensor is None else primal(tensor).clone() for tensor in seen]
            meta["conics"] = Later(_unscented_conics, splats, options, copies, width, height, device)
    if options.with_hits:
        images, normals, distances = images.split([images.shape[-1] - 4, 3, 1], -1)
        if return_normals:
            meta["normals"] = normals @ viewmats[..., None, :3, :3]
    if extra_signals is not None:
        of_signals = extra_signals.shape[-1]
        images, meta["render_extra_signals"] = images[..., :-of_signals], images[..., -of_signals:]
    if render_mode.endswith("d"):
        images = torch.cat([images, distances], -1)
    if "E" in render_mode:
        images = torch.cat([images[..., :-1], images[..., -1:] / alphas.clamp(min=1e-10)], -1)
    return images.contiguous(), alphas, meta


def _unscented_conics(
    splats: ProjectedSplats, options: Options, seen: list[Any], width: int, height: int, device: Device
) -> Tensor:
    """Conics of the unscented transform that bounds splats along rays, [..., C, N, 3] or packed [nnz, 3]; 0 where culled."""
    options = replace(options, primitive="Gaussian", falloff="GaussianFalloff", extras=0, packed=False, sparse_grad=False)
    means, quats, scales, viewmats, Ks, lenses, viewmats_rs = seen
    others: dict[str, Any] = {"device": device, "lenses": lenses, "viewmats_rs": viewmats_rs}
    gaussians = means, quats, scales, torch.ones_like(means[..., 0])
    projected = project(*gaussians, viewmats, Ks, width, height, options, **others)
    return splats.gather(projected.conics, means.shape[-2], each_camera=True) * (splats.radii > 0).all(-1, keepdim=True)


def by_distance(splats: ProjectedSplats, means: Tensor, viewmats: Tensor) -> ProjectedSplats:
    """Splats with the distances of their means [..., N, 3] from the cameras for depths."""
    # Without NaN, whose gradient would not be zero.
    points = means.nan_to_num(0, 0, 0)[..., None, :, :] @ viewmats[..., :3, :3].mT + viewmats[..., None, :3, 3]
    distances = splats.gather(points.norm(dim=-1, keepdim=True), means.shape[-2], each_camera=True)[..., 0]
    return replace(splats, depths=torch.where(splats.depths > 0, distances, 0.0))


def in_camera(rays: Tensor, viewmats: Tensor) -> Tensor:
    """Rays [..., C, H, W, 6] of the world in the space of their cameras [..., C, 4, 4], with unit directions, or 0."""
    turns, moves = viewmats[..., None, :3, :3].mT, viewmats[..., None, None, :3, 3]
    origins, directions = (part @ turns for part in rays.split(3, -1))
    return torch.cat([origins + moves, torch.nn.functional.normalize(directions, dim=-1)], -1)


def blended_features(
    means: Tensor,
    colors: Tensor | None,
    viewmats: Tensor,
    backgrounds: Tensor | None,
    weights: Tensor | None,
    extra_signals: Tensor | None,
    splats: ProjectedSplats,
    options: Options,
    device: Device,
) -> tuple[Tensor, Tensor | None]:
    """Return features [..., C, N, D] or, packed, [M, D]: the requested colours, depth, extra signals and hits,
    concatenated; and backgrounds [..., C, D], 0 except behind colours."""
    on_device: dict[str, Any] = {"options": options, "ids": splats.ids, "device": device}

    def of_splats(features: Tensor, degree: int | None, as_color: bool) -> Tensor:
        if degree is None:
            return splats.gather(features.float(), means.shape[-2], each_camera=features.dim() > means.dim())
        if features.dim() < means.dim() + 1:
            features = features.expand(*means.shape[:-2], *features.shape)
        return shade_channels(means, features, viewmats, splats.radii, degree, as_color=as_color, **on_device)

    parts = []
    if colors is not None and options.has_features:
        model = color_model(options.color_type, colors.shape[-1], 0 if weights is None else len(weights))
        parts.append(shade(means, colors, viewmats, splats.radii, model, weights=weights, **on_device))
    elif colors is not None:
        parts.append(of_splats(colors, options.sh_degree, True))
    if "D" in options.render_mode:
        parts.append(splats.depths[..., None])
    if extra_signals is not None:
        degree = options.extra_signals_sh_degree
        signals = of_splats(extra_signals, degree, False)
        device.flush()
        parts.append(signals if degree is None else signals + 0.5)
    if options.with_hits:
        assert splats.normals is not None
        device.flush()
        parts.append(torch.nn.functional.pad(splats.normals, (0, 1)))
    if len(parts) > 1:
        device.flush()
    features = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
    if backgrounds is not None:
        backgrounds = torch.nn.functional.pad(backgrounds, (0, features.shape[-1] - backgrounds.shape[-1]))
    return features, backgrounds


@graph_break
def render_backward(v_images: Tensor, v_alphas: Tensor | None = None, **arguments: Any) -> dict[str, Tensor]:
    """Return the gradients of `rasterization` without a saved graph, by rendering again.

    Args:
        v_images, v_alphas: gradients of the images and alphas.
        arguments: the arguments of `rasterization`, by name.

    Returns:
        The gradients of the tensors among the arguments, by name.
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


def device_to_render(means: Tensor, device: Device | str | None, tensors: Iterable[Tensor | None]) -> Device:
    """Return `device` or the default for `means`; SplatError if it cannot render, or differentiate if `tensors` need it."""
    device = device_for(means, device)
    differentiated = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    device.require(*((Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD) if differentiated else (Operator.SPLAT_FORWARD,)))
    return device
