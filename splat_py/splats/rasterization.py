"""Differentiable Gaussian splatting for torch: one autograd function a stage, and `rasterization`, which chains them.

Tensors may live on the CPU, on MPS or on CUDA; what renders is the device of `splat_py.gpu.device`.
"""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from splat_py import portable
from splat_py.errors import NoDeviceError, SplatError
from splat_py.gpu.accumulation import Accumulate, accumulation
from splat_py.gpu.device import Device, Operator, device_for
from splat_py.splats.data import Settings
from splat_py.splats.project import ProjectedSplats, project
from splat_py.splats.rasterize import MAX_CHANNELS, rasterize_to_pixels
from splat_py.splats.shade import shade
from splat_py.splats.tiles import BinnedTiles, bin_tiles
from splat_py.splats.validation import (
    Inputs,
    Options,
    RenderMode,
    check_cameras,
    check_options,
    check_shapes,
    check_tensors,
    reject_unsupported,
)

Backend = Literal["auto", "native", "portable"]


def rasterization(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    colors: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    eps2d: float = 0.3,
    sh_degree: int | None = None,
    packed: bool = False,
    tile_size: int | None = None,
    backgrounds: Tensor | None = None,
    render_mode: RenderMode = "RGB",
    sparse_grad: bool = False,
    absgrad: bool = False,
    rasterize_mode: Literal["classic", "antialiased"] = "classic",
    backend: Backend = "auto",
    accumulate: Accumulate = "auto",
    *,
    device: Device | None = None,
    **unsupported: Any,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Render Gaussians from C cameras (Kerbl et al. 2023), with gsplat's signature and conventions.

    Differentiable in means, quats, scales, opacities, colors, viewmats, Ks and backgrounds. All tensors are float32 and on one
    torch device. Leading batch dimensions `...` (scenes) are allowed where all inputs have them. Gaussians whose projection is
    not finite, or which lie nearer than `near_plane`, are culled and get a zero gradient.

    Args:
        means: [..., N, 3] centres, world units.
        quats: [..., N, 4] rotations (w, x, y, z), normalised here.
        scales: [..., N, 3] standard deviations > 0, world units.
        opacities: [..., N] between 0 and 1.
        colors: [..., N, D] or [..., C, N, D] of any D; or, with `sh_degree`, [..., N, K, 3] spherical-harmonics coefficients.
        viewmats: [..., C, 4, 4] world → camera, camera axes +x right, +y down, +z forward (OpenCV).
        Ks: [..., C, 3, 3] intrinsics in pixels; pixel centres lie at +0.5. Skew is not supported and ignored.
        width, height: of the images, pixels.
        near_plane, far_plane: camera depths between which Gaussians are seen; near_plane > 0.
        radius_clip: splats that reach no further than this many pixels are skipped.
        eps2d: variance added to every splat, pixel².
        sh_degree: degree in use, 0 to 3, at most what K allows; None if `colors` are colours.
        tile_size: 4, 8 or 16 pixels; by default what suits the device.
        backgrounds: [..., C, D] (D as rendered, without depth); black by default.
        render_mode: colours ("RGB"), accumulated depth Σ w z ("D"), expected depth Σ w z / Σ w ("ED"), or both, depth last.
        absgrad: also leave Σ |∂L/∂mean2d| over pixels in `meta["means2d"].absgrad` (Ye et al. 2024).
        rasterize_mode: "antialiased" dims splats by what `eps2d` enlarges them (Yu et al. 2024).
        backend: "native" renders; "portable" fills the image with one flat colour, the mean of what is given, anywhere
            (`splat_py.portable`); "auto" renders where a device can, and warns where none can before it takes the baseline.
        accumulate: how a Gaussian's gradients add up over pixels: "pixel", "wave", "group" (ever fewer atomic additions) or
            "pair" (none: a row for each pair of a tile and a Gaussian, summed in a fixed order, so that gradients are the same
            to the last bit from run to run; takes 4 · (6 + D) bytes a pair). "auto" is what suits the device, or "pair" under
            `torch.use_deterministic_algorithms(True)`.
        device: where to render; by default that of `splat_py.get_device`, or CUDA for CUDA tensors.

    Returns:
        Images [..., C, H, W, D'], alphas [..., C, H, W, 1] and a dictionary of what happened on the way: `means2d`, `depths`,
        `conics`, `opacities`, `radii` [C, N, 2] (0 where culled), `tile_size`, `tile_width`, `tile_height`, `isect_offsets`
        [C, tile_height, tile_width], `flatten_ids`, `width`, `height`, `n_cameras`. Call `meta["means2d"].retain_grad()` to see
        its gradient. `backend` is "native" or "portable", which has nothing else but sizes to tell. With batch dimensions, the
        dictionary has a list of those under "batches".

    Raises:
        SplatError: an argument has the wrong shape, dtype, device or value, or no device can do what `backend` asks for.
        NotImplementedError: an argument of gsplat's that has no meaning here was set.
    """
    reject_unsupported({"packed": packed, "sparse_grad": sparse_grad, **unsupported})
    inputs = Inputs(means, quats, scales, opacities, colors, viewmats, Ks, backgrounds)
    options = Options(
        width=width,
        height=height,
        near_plane=near_plane,
        far_plane=far_plane,
        radius_clip=radius_clip,
        eps2d=eps2d,
        sh_degree=sh_degree,
        tile_size=tile_size,
        render_mode=render_mode,
        absgrad=absgrad,
        rasterize_mode=rasterize_mode,
        accumulate=accumulate,
    )
    check_tensors(inputs)
    check_options(options)
    options = replace(options, width=int(width), height=int(height))
    device = _choose_device(backend, inputs, device)
    render = _render_batch if means.dim() > 2 else _render
    images, alphas, meta = render(inputs, options, device)
    return images, alphas, meta | {"backend": "native" if device else "portable"}


def _choose_device(backend: str, inputs: Inputs, device: Device | None) -> Device | None:
    """The device that renders, by default the one for the tensors, or None for the portable baseline."""
    if backend not in ("auto", "native", "portable"):
        raise SplatError(f"backend is {backend!r}; use auto, native or portable")
    if backend == "portable":
        return None
    differentiated = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs.named().values())
    needed = (Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD) if differentiated else (Operator.SPLAT_FORWARD,)
    try:
        device = device or device_for(inputs.means)
    except NoDeviceError as error:
        # Who names a device wants that one.
        if backend == "native" or os.environ.get("SPLAT_DEVICE"):
            raise
        reason = str(error)
    else:
        if backend == "native":
            device.require(*needed)
        shortcoming = device.shortcoming(*needed)
        if shortcoming is None:
            return device
        reason = shortcoming
    _warn_of_flat_colour(reason)
    return None


@cache
def _warn_of_flat_colour(reason: str) -> None:
    """Once a process for each reason."""
    warnings.warn(
        f"no picture will be rendered, only one flat colour that fills the image (the portable baseline), because {reason}; "
        "backend='native' makes this an error, backend='portable' asks for it",
        stacklevel=4,
    )


def _render_batch(inputs: Inputs, options: Options, device: Device | None) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """One scene after another."""
    batch = inputs.means.shape[:-2]
    for name, tensor in inputs.named().items():
        if tensor.shape[: len(batch)] != batch:
            raise SplatError(
                f"{name} has shape {list(tensor.shape)}, but means has the batch dimensions {list(batch)}; give {name} the same"
            )
    flat = {name: tensor.flatten(0, len(batch) - 1) for name, tensor in inputs.named().items()}
    scenes = (Inputs(**{name: tensor[i] for name, tensor in flat.items()}) for i in range(batch.numel()))
    images, alphas, metas = zip(*(_render(scene, options, device) for scene in scenes), strict=True)
    return (
        torch.stack(images).unflatten(0, batch),
        torch.stack(alphas).unflatten(0, batch),
        {"batches": list(metas)},
    )


def _render(inputs: Inputs, options: Options, device: Device | None) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Project, shade, bin, rasterise; without a device the portable baseline."""
    check_shapes(inputs, options)
    check_cameras(inputs)
    means, colors, viewmats, backgrounds = inputs.means, inputs.colors, inputs.viewmats, inputs.backgrounds
    # NumPy's integers overflow, and lack methods.
    width, height = int(options.width), int(options.height)
    sh_degree, render_mode = options.sh_degree, options.render_mode
    if device is None:
        return _fill(inputs, options)
    blended = 3 if sh_degree is not None else min(colors.shape[-1], MAX_CHANNELS)
    device.memory.limits.check_images(viewmats.shape[0], height, width, blended)
    settings = Settings(
        tile_size=device.tuning.tile_size if options.tile_size is None else options.tile_size,
        antialiased=options.rasterize_mode == "antialiased",
        absgrad=options.absgrad,
        blur=options.eps2d,
        near=options.near_plane,
        far=options.far_plane,
        radius_clip=options.radius_clip,
        accumulation=accumulation(device, options.accumulate),
        native_atomics=device.native_float_atomics,
    )
    if options.absgrad and sh_degree is None and colors.shape[-1] + ("D" in render_mode) > MAX_CHANNELS:
        # Absolute values of one pass's gradients do not add up to those of all.
        raise NotImplementedError(f"absgrad is not supported for more than {MAX_CHANNELS} channels; leave absgrad out")

    gaussians = means, inputs.quats, inputs.scales, inputs.opacities
    splats = project(*gaussians, viewmats, inputs.Ks, width, height, settings, device=device)
    lists = bin_tiles(splats, width, height, settings.tile_size, keep_isects=settings.per_isect, device=device)

    channels = []
    if "RGB" not in render_mode:
        backgrounds = None
    if "RGB" in render_mode:
        if sh_degree is not None:
            colors = shade(means, colors, viewmats, splats.radii, sh_degree, settings, device=device)
        elif colors.dim() == 2:
            colors = colors.expand(viewmats.shape[0], *colors.shape)
        channels.append(colors)
    if "D" in render_mode:
        channels.append(splats.depths[..., None])
        if backgrounds is not None:
            backgrounds = torch.cat([backgrounds, torch.zeros_like(backgrounds[:, :1])], -1)
    features = channels[0] if len(channels) == 1 else torch.cat(channels, -1)

    images, alphas = rasterize_to_pixels(splats, features, lists, width, height, backgrounds, settings, device=device)
    if "ED" in render_mode:
        expected = images[..., -1:] / alphas.clamp(min=1e-10)
        images = torch.cat([images[..., :-1], expected], -1)
    return images, alphas, _meta(splats, lists, width, height, viewmats.shape[0])


def _fill(inputs: Inputs, options: Options) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """The portable baseline in the place of a render: C images [H, W, 3], each of one colour, wherever the cameras look.

    Of spherical harmonics the constant term is the colour. The background shows through, as behind a render.
    """
    if options.render_mode != "RGB" or options.absgrad:
        asked = "absgrad" if options.absgrad else f"render_mode={options.render_mode!r}"
        raise NotImplementedError(f"the portable backend does not support {asked}; it fills the image with one colour")
    means, colors, harmonics = inputs.means, inputs.colors, options.sh_degree is not None
    cameras, width, height = inputs.viewmats.shape[0], options.width, options.height
    if not harmonics and colors.shape[-1] != 3:
        raise NotImplementedError(f"the portable backend does not support {colors.shape[-1]} channels; give rgb colours")
    sh = colors if harmonics else colors.new_zeros(len(means), 0, 3)
    # Y₀ = ½ √(1/π)
    rgb = (sh[:, 0] * (0.5 / math.sqrt(math.pi)) + 0.5).clamp(min=0) if harmonics else colors
    views = rgb if rgb.dim() == 3 else rgb[None]
    flat = torch.stack(
        [
            portable.splat(means, inputs.scales, inputs.quats, inputs.opacities[:, None], view, sh, width, height)
            for view in views
        ]
    ).expand(cameras, -1)
    images = flat.reshape(cameras, height, width, 4)
    colors, alphas = images[..., :3], images[..., 3:]
    if inputs.backgrounds is not None:
        colors = colors + (1 - alphas) * inputs.backgrounds[:, None, None]
    return colors, alphas, {"width": width, "height": height, "n_cameras": cameras}


def _meta(splats: ProjectedSplats, tiles: BinnedTiles, width: int, height: int, cameras: int) -> dict[str, Any]:
    grid = tiles.grid
    return {
        "means2d": splats.means2d,
        "depths": splats.depths,
        "conics": splats.conics,
        "opacities": splats.opacities,
        "radii": splats.radii,
        "tile_size": grid.tile_size,
        "tile_width": grid.columns,
        "tile_height": grid.rows,
        "isect_offsets": tiles.offsets[:-1].reshape(cameras, grid.rows, grid.columns),
        "flatten_ids": tiles.ids,
        "width": width,
        "height": height,
        "n_cameras": cameras,
    }
