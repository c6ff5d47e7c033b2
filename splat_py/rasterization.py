"""Differentiable Gaussian splatting for torch: one autograd function a stage, and `rasterization`, which chains them.

Tensors may live on the CPU, on MPS or on CUDA; what renders is the device of `splat_py.device`.
"""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import dataclass
from functools import cache
from numbers import Integral
from typing import Any, Literal, cast

import torch
from torch import Tensor

from splat_py import portable, stages
from splat_py.accumulation import Accumulate, accumulation
from splat_py.arrays import Array, Memory
from splat_py.device import Device, Operator, device_for
from splat_py.errors import NoDeviceError, SplatError
from splat_py.stages import (
    Binning,
    Cameras,
    GaussianArrays,
    Image,
    Rasterization,
    Rows,
    Settings,
    Splats,
    TileGrid,
    TileLists,
    segments_for,
)

RenderMode = Literal["RGB", "D", "ED", "RGB+D", "RGB+ED"]
Backend = Literal["auto", "native", "portable"]

# Channels blended in one pass; more are blended in several over the same tile lists.
_MOST_CHANNELS = 32
_TILE_SIZES = (4, 8, 16)


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
    _reject_unsupported({"packed": packed, "sparse_grad": sparse_grad, **unsupported})
    inputs: dict[str, Any] = {
        "means": means,
        "quats": quats,
        "scales": scales,
        "opacities": opacities,
        "colors": colors,
        "viewmats": viewmats,
        "Ks": Ks,
    }
    if backgrounds is not None:
        inputs["backgrounds"] = backgrounds
    options: dict[str, Any] = {
        "width": width,
        "height": height,
        "near_plane": near_plane,
        "far_plane": far_plane,
        "radius_clip": radius_clip,
        "eps2d": eps2d,
        "sh_degree": sh_degree,
        "tile_size": tile_size,
        "render_mode": render_mode,
        "absgrad": absgrad,
        "rasterize_mode": rasterize_mode,
        "accumulate": accumulate,
    }
    _check_tensors(inputs)
    _check_options(options)
    device = _choose_device(backend, inputs)
    options |= {"width": int(width), "height": int(height), "device": device}
    if means.dim() > 2:
        images, alphas, meta = _render_batch(inputs, options)
    else:
        images, alphas, meta = _render(**inputs, **options)
    return images, alphas, meta | {"backend": "native" if device else "portable"}


def _choose_device(backend: str, inputs: dict[str, Tensor]) -> Device | None:
    """The device that renders, or None for the portable baseline."""
    if backend not in ("auto", "native", "portable"):
        raise SplatError(f"backend is {backend!r}; use auto, native or portable")
    if backend == "portable":
        return None
    differentiated = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs.values())
    needed = (Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD) if differentiated else (Operator.SPLAT_FORWARD,)
    try:
        device = device_for(inputs["means"])
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


def _render_batch(inputs: dict[str, Any], options: dict[str, Any]) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """One scene after another."""
    batch = inputs["means"].shape[:-2]
    for name, tensor in inputs.items():
        if tensor.shape[: len(batch)] != batch:
            raise SplatError(
                f"{name} has shape {_shape(tensor)}, but means has the batch dimensions {list(batch)}; give {name} the same"
            )
    flat = {name: tensor.flatten(0, len(batch) - 1) for name, tensor in inputs.items()}
    results = [_render(**{name: tensor[i] for name, tensor in flat.items()}, **options) for i in range(batch.numel())]
    images, alphas, metas = zip(*results, strict=True)
    return (
        torch.stack(images).unflatten(0, batch),
        torch.stack(alphas).unflatten(0, batch),
        {"batches": list(metas)},
    )


def _render(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    colors: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    near_plane: float,
    far_plane: float,
    radius_clip: float,
    eps2d: float,
    sh_degree: int | None,
    tile_size: int | None,
    render_mode: RenderMode,
    absgrad: bool,
    rasterize_mode: str,
    accumulate: Accumulate,
    device: Device | None,
    backgrounds: Tensor | None = None,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    _check_shapes(means, quats, scales, opacities, colors, viewmats, Ks, sh_degree, backgrounds, render_mode)
    _check_cameras(viewmats, Ks)
    if device is None:
        if render_mode != "RGB" or absgrad:
            asked = "absgrad" if absgrad else f"render_mode={render_mode!r}"
            raise NotImplementedError(f"the portable backend does not support {asked}; it fills the image with one colour")
        inputs = means, quats, scales, opacities, colors
        return _fill(*inputs, viewmats.shape[0], width, height, sh_degree is not None, backgrounds)
    settings = Settings(
        tile_size=device.tuning.tile_size if tile_size is None else tile_size,
        antialiased=rasterize_mode == "antialiased",
        absgrad=absgrad,
        blur=eps2d,
        near=near_plane,
        far=far_plane,
        radius_clip=radius_clip,
        accumulation=accumulation(device, accumulate),
        native_atomics=device.native_float_atomics,
    )
    if absgrad and sh_degree is None and colors.shape[-1] + ("D" in render_mode) > _MOST_CHANNELS:
        # Absolute values of one pass's gradients do not add up to those of all.
        raise NotImplementedError(f"absgrad is not supported for more than {_MOST_CHANNELS} channels; leave absgrad out")

    splats = project(means, quats, scales, opacities, viewmats, Ks, width, height, settings, device=device)
    lists = bin_tiles(splats, width, height, settings.tile_size, keep_pairs=settings.per_pair, device=device)

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


def _fill(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    colors: Tensor,
    cameras: int,
    width: int,
    height: int,
    harmonics: bool,
    backgrounds: Tensor | None,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """The portable baseline in the place of a render: C images [H, W, 3], each of one colour, wherever the cameras look.

    Of spherical harmonics the constant term is the colour. The background shows through, as behind a render.
    """
    if not harmonics and colors.shape[-1] != 3:
        raise NotImplementedError(f"the portable backend does not support {colors.shape[-1]} channels; give rgb colours")
    sh = colors if harmonics else colors.new_zeros(len(means), 0, 3)
    # Y₀ = ½ √(1/π)
    rgb = (sh[:, 0] * (0.5 / math.sqrt(math.pi)) + 0.5).clamp(min=0) if harmonics else colors
    views = rgb if rgb.dim() == 3 else rgb[None]
    flat = torch.stack(
        [portable.splat(means, scales, quats, opacities[:, None], view, sh, width, height) for view in views]
    ).expand(cameras, -1)
    images = flat.reshape(cameras, height, width, 4)
    colors, alphas = images[..., :3], images[..., 3:]
    if backgrounds is not None:
        colors = colors + (1 - alphas) * backgrounds[:, None, None]
    return colors, alphas, {"width": width, "height": height, "n_cameras": cameras}


@dataclass(frozen=True)
class ProjectedSplats:
    """Gaussians on the cameras' image planes, as torch tensors."""

    means2d: Tensor  # [C, N, 2] pixels
    depths: Tensor  # [C, N] camera z
    conics: Tensor  # [C, N, 3] (a, b, c) of the inverse covariance, 1/pixel²
    opacities: Tensor  # [C, N] after antialiasing
    radii: Tensor  # [C, N, 2] int32, pixels; 0 where culled


@dataclass(frozen=True)
class BinnedTiles:
    """Every tile's splats, front to back: those of tile t are ids[offsets[t]:offsets[t + 1]]."""

    offsets: Tensor  # [C · rows · columns + 1] int32
    ids: Tensor  # [pairs] int32, indices into C · N
    grid: TileGrid
    arrays: TileLists


def project(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    settings: Settings,
    *,
    device: Device | None = None,
) -> ProjectedSplats:
    """First stage: EWA projection (Zwicker et al. 2001). Arguments as in `rasterization`, without batch dimensions.

    Differentiable in the six tensors. Everything of a culled splat is zero.
    """
    device = device or device_for(means)
    outputs = _Project.apply(means, quats, scales, opacities, viewmats, Ks, width, height, settings, device)
    return ProjectedSplats(*outputs)


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        means: Tensor,
        quats: Tensor,
        scales: Tensor,
        opacities: Tensor,
        viewmats: Tensor,
        Ks: Tensor,
        width: int,
        height: int,
        settings: Settings,
        device: Device,
    ) -> tuple[Tensor, ...]:
        array = device.memory.array
        gaussians = GaussianArrays(array(means), array(quats), array(scales), array(opacities))
        cameras = Cameras(array(viewmats), array(Ks), width, height)
        splats = Splats.empty(device, cameras.count, gaussians.count)
        recorder = device.record()
        stages.project(recorder, gaussians, cameras, splats, settings)
        recorder.submit()
        ctx.state = (gaussians, cameras, splats, settings, device)
        ctx.set_materialize_grads(False)
        outputs = tuple(
            _tensor(a, means) for a in (splats.means2d, splats.depths, splats.conics, splats.opacities, splats.radii)
        )
        ctx.mark_non_differentiable(outputs[-1])
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        gaussians, cameras, splats, settings, device = ctx.state
        v_means2d, v_depths, v_conics, v_opacities, _ = gradients
        shape = (cameras.count, gaussians.count)
        camera_gradient = ctx.needs_input_grad[4] or ctx.needs_input_grad[5]
        settings = _with_camera_gradient(settings, camera_gradient)
        empty = device.memory.empty
        v_gaussians = GaussianArrays(
            *(empty(a.shape) for a in (gaussians.means, gaussians.quats, gaussians.scales, gaussians.opacities))
        )
        v_cameras = empty((cameras.count, stages.CAMERA_ROW))
        like = next(g for g in gradients if g is not None)
        recorder = device.record()
        recorder.clear(v_cameras)
        stages.project_backward(
            recorder,
            gaussians,
            cameras,
            splats,
            _rows(device.memory, v_means2d, (*shape, 2)),
            _array_or_zeros(device.memory, v_depths, shape),
            _rows(device.memory, v_conics, (*shape, 3)),
            _rows(device.memory, v_opacities, (*shape, 1)),
            v_gaussians,
            v_cameras,
            settings,
        )
        recorder.submit()
        v_viewmats, v_Ks = _camera_gradients(v_cameras, like) if camera_gradient else (None, None)
        v = v_gaussians
        return (
            *(_tensor(a, like) for a in (v.means, v.quats, v.scales, v.opacities)),
            v_viewmats,
            v_Ks,
            *(None,) * 4,
        )


def shade(
    means: Tensor,
    sh: Tensor,
    viewmats: Tensor,
    radii: Tensor,
    degree: int,
    settings: Settings | None = None,
    *,
    device: Device | None = None,
) -> Tensor:
    """Colours [C, N, 3] that C cameras see: max(0, Σ Y_k(d) sh_k + ½), d from the camera's centre to the mean.

    Args:
        means: [N, 3].
        sh: [N, K, 3], K ≥ (degree + 1)².
        viewmats: [C, 4, 4].
        radii: [C, N, 2] from `project`: culled splats stay black.
        degree: 0 to 3.
        settings: how gradients of cameras add up, as `project` is told.

    Differentiable in means, sh and viewmats.
    """
    device = device or device_for(means)
    settings = settings or Settings(device.tuning.tile_size, native_atomics=device.native_float_atomics)
    return cast(Tensor, _Shade.apply(means, sh, viewmats, radii, degree, settings, device))


class _Shade(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        means: Tensor,
        sh: Tensor,
        viewmats: Tensor,
        radii: Tensor,
        degree: int,
        settings: Settings,
        device: Device,
    ) -> Tensor:
        array, empty = device.memory.array, device.memory.empty
        # Only the cameras' centres matter: intrinsics and image size are never read.
        cameras = Cameras(array(viewmats), empty((viewmats.shape[0], 3, 3)), 0, 0)
        inputs = array(means), array(sh), cameras, array(radii)
        colors = empty((cameras.count, means.shape[0], 3))
        recorder = device.record()
        stages.shade(recorder, *inputs, colors, degree)
        recorder.submit()
        ctx.state = (inputs, degree, settings, device)
        return _tensor(colors, means)

    @staticmethod
    def backward(ctx: Any, v_colors: Tensor) -> tuple[Tensor | None, ...]:
        (means, sh, cameras, radii), degree, settings, device = ctx.state
        camera_gradient = ctx.needs_input_grad[2]
        empty = device.memory.empty
        v_means, v_sh = empty(means.shape), empty(sh.shape)
        v_cameras = empty((cameras.count, stages.CAMERA_ROW))
        recorder = device.record()
        recorder.clear(v_cameras)
        stages.shade_backward(
            recorder,
            means,
            sh,
            cameras,
            radii,
            _rows(device.memory, v_colors, tuple(v_colors.shape)),
            v_means,
            v_sh,
            v_cameras,
            degree,
            _with_camera_gradient(settings, camera_gradient),
            add_to_means=False,
        )
        recorder.submit()
        v_viewmats = _camera_gradients(v_cameras, v_colors)[0] if camera_gradient else None
        return _tensor(v_means, v_colors), _tensor(v_sh, v_colors), v_viewmats, *(None,) * 4


def bin_tiles(
    splats: ProjectedSplats,
    width: int,
    height: int,
    tile_size: int,
    *,
    keep_pairs: bool = False,
    device: Device | None = None,
) -> BinnedTiles:
    """Every tile's list of the splats that any of its pixels can see (α ≥ 1/255), front to back. Not differentiable.

    Args:
        keep_pairs: for gradients that add up pair by pair (`Settings.accumulation` is "PerPair").
    """
    device = device or device_for(splats.means2d)
    arrays = _splat_arrays(device.memory, splats)
    grid = TileGrid(tile_size, -(-width // tile_size), -(-height // tile_size), splats.depths.shape[0])
    binning = Binning(device, arrays, grid, keep_pairs)
    recorder = device.record()
    binning.record_count(recorder)
    recorder.submit()
    pairs = int(binning.pair_count.numpy()[0])
    binning.reserve(pairs)
    recorder = device.record()
    binning.record_lists(recorder)
    # No list is longer than there are Gaussians: most often nobody has to ask.
    longest = splats.depths.shape[1]
    asks = segments_for(device, longest) > 1
    if asks:
        binning.record_longest(recorder)
    recorder.submit()
    if asks:
        longest = int(binning.longest.numpy()[0])
    lists = binning.lists(segments_for(device, longest))
    # torch knows few operations on uint32; no index here comes near 2³¹.
    offsets, ids = (_tensor(a, splats.depths).view(torch.int32) for a in (lists.offsets, lists.ids))
    return BinnedTiles(offsets, ids, grid, lists)


def rasterize_to_pixels(
    splats: ProjectedSplats,
    colors: Tensor,
    tiles: BinnedTiles,
    width: int,
    height: int,
    backgrounds: Tensor | None,
    settings: Settings,
    *,
    device: Device | None = None,
) -> tuple[Tensor, Tensor]:
    """Last stage: blend splats with colours [C, N, D] over backgrounds [C, D] → images [C, H, W, D], alphas [C, H, W, 1].

    Differentiable in means2d, conics, opacities, colours and backgrounds.
    """
    device = device or device_for(colors)
    images, alphas = [], []
    for first in range(0, max(colors.shape[-1], 1), _MOST_CHANNELS):
        part = slice(first, first + _MOST_CHANNELS)
        image, alpha = _Rasterize.apply(
            splats.means2d,
            splats.conics,
            splats.opacities,
            colors[..., part],
            None if backgrounds is None else backgrounds[..., part],
            splats,
            tiles,
            width,
            height,
            settings,
            device,
        )
        images.append(image)
        alphas.append(alpha)
    return images[0] if len(images) == 1 else torch.cat(images, -1), alphas[0]


class _Rasterize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        means2d: Tensor,
        conics: Tensor,
        opacities: Tensor,
        colors: Tensor,
        backgrounds: Tensor | None,
        splats: ProjectedSplats,
        tiles: BinnedTiles,
        width: int,
        height: int,
        settings: Settings,
        device: Device,
    ) -> tuple[Tensor, Tensor]:
        cameras, _, channels = colors.shape
        if backgrounds is None:
            backgrounds = colors.new_zeros(cameras, channels)
        image = Image.empty(device, cameras, height, width, channels)
        work = Rasterization.of(
            device,
            _splat_arrays(device.memory, splats),
            device.memory.array(colors),
            device.memory.array(backgrounds),
            tiles.arrays,
            tiles.grid,
            image,
        )
        recorder = device.record()
        work.record(recorder)
        recorder.submit()
        ctx.state = (work, settings, device)
        ctx.means2d = means2d
        return _tensor(image.colors, colors), _tensor(image.alphas, colors)

    @staticmethod
    def backward(ctx: Any, v_images: Tensor, v_alphas: Tensor) -> tuple[Tensor | None, ...]:
        work, settings, device = ctx.state
        channels = work.colors.shape[-1]
        rows = device.memory.empty((*work.splats.depths.shape, settings.row(channels)))
        v_colors, v_opacities = (device.memory.array(v.contiguous()) for v in (v_images, v_alphas))
        recorder = device.record()
        work.record_backward(recorder, v_colors, v_opacities, rows, settings)
        recorder.submit()
        v_rows = _tensor(rows, v_images)
        mean, conic, opacity, color = (
            stages.MEAN_OFFSET,
            stages.CONIC_OFFSET,
            stages.OPACITY_OFFSET,
            stages.COLOR_OFFSET,
        )
        if settings.absgrad:
            ctx.means2d.absgrad = v_rows[..., color + channels :]
        v_backgrounds = None
        if ctx.needs_input_grad[4]:
            final_T = _tensor(work.image.final_T, v_images)[..., None]
            v_backgrounds = (v_images * final_T).sum((1, 2))
        return (
            v_rows[..., mean:conic],
            v_rows[..., conic:opacity],
            v_rows[..., opacity],
            v_rows[..., color : color + channels],
            v_backgrounds,
            *(None,) * 6,
        )


def _tensor(array: Array, like: Tensor) -> Tensor:
    """An array as a tensor on the torch device of another."""
    return array.tensor().to(like.device)


def _splat_arrays(memory: Memory, splats: ProjectedSplats) -> Splats:
    tensors = (splats.means2d, splats.depths, splats.conics, splats.opacities, splats.radii)
    return Splats(*(memory.array(tensor.detach()) for tensor in tensors))


def _rows(memory: Memory, gradient: Tensor | None, shape: tuple[int, ...]) -> Rows:
    """A gradient as rows of shape[-1] floats: where it lies, if that is in rows of one of our arrays, else a copy."""
    width = shape[-1]
    if gradient is None:
        return Rows(_array_or_zeros(memory, None, shape), width)
    gradient = gradient.reshape(shape) if gradient.dim() == len(shape) else gradient[..., None]
    owner = memory.owner_of(gradient)
    stride = int(gradient.stride(1)) if shape[1] > 1 else width
    regular = gradient.stride(-1) == 1 or width == 1
    regular &= shape[0] == 1 or gradient.stride(0) == shape[1] * stride
    if owner is None or not regular:
        return Rows(memory.array(gradient.contiguous()), width)
    return Rows(owner, stride, int(gradient.storage_offset()))


def _array_or_zeros(memory: Memory, gradient: Tensor | None, shape: tuple[int, ...]) -> Array:
    return memory.array(torch.zeros(shape) if gradient is None else gradient.contiguous())


def _with_camera_gradient(settings: Settings, camera_gradient: bool) -> Settings:
    return Settings(**{**vars(settings), "camera_gradient": camera_gradient})


def _camera_gradients(v_cameras: Array, like: Tensor) -> tuple[Tensor, Tensor]:
    """Camera rows → gradients of viewmats [C, 4, 4] and Ks [C, 3, 3]."""
    rows = _tensor(v_cameras, like)
    v_viewmats = torch.zeros(rows.shape[0], 4, 4, device=rows.device)
    v_viewmats[:, :3] = rows[:, :12].reshape(-1, 3, 4)
    v_Ks = torch.zeros(rows.shape[0], 3, 3, device=rows.device)
    v_Ks[:, 0, 0], v_Ks[:, 1, 1] = rows[:, 12], rows[:, 13]
    v_Ks[:, :2, 2] = rows[:, 14:]
    return v_viewmats, v_Ks


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


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)


# gsplat's other arguments, and the values at which they ask for nothing that is not done here.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "packed": (False,),
    "sparse_grad": (False,),
    "camera_model": ("pinhole",),
    "segmented": (False,),
    "distributed": (False,),
    "global_z_order": (True,),
    "with_ut": (False,),
    "with_eval3d": (False,),
    **dict.fromkeys(
        (
            "covars",
            "radial_coeffs",
            "tangential_coeffs",
            "thin_prism_coeffs",
            "ftheta_coeffs",
            "lidar_coeffs",
            "external_distortion_coeffs",
            "rolling_shutter",
            "viewmats_rs",
        ),
        (None,),
    ),
}


def _reject_unsupported(arguments: dict[str, Any]) -> None:
    for name, value in arguments.items():
        # How many channels go in one pass is no business of the caller's here.
        if name == "channel_chunk":
            continue
        if name not in _NEUTRAL:
            raise TypeError(f"rasterization() got an unexpected keyword argument {name!r}")
        if not any(value is neutral or value == neutral for neutral in _NEUTRAL[name] if isinstance(value, type(neutral))):
            given = f"={value!r}" if isinstance(value, bool | int | float | str) else ""
            raise NotImplementedError(f"splat_py.rasterization does not support {name}{given}; leave {name} out")


def _check_tensors(inputs: dict[str, Tensor]) -> None:
    for name, tensor in inputs.items():
        if not isinstance(tensor, Tensor):
            raise SplatError(f"{name} is a {type(tensor).__name__}; give a torch tensor")
        if tensor.dtype != torch.float32:
            raise SplatError(f"{name} has dtype {tensor.dtype}; convert it to torch.float32")
        if tensor.device != inputs["means"].device:
            raise SplatError(f"{name} is on {tensor.device} and means on {inputs['means'].device}; move them to one device")


def _check_shapes(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    colors: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    sh_degree: int | None,
    backgrounds: Tensor | None,
    render_mode: str,
) -> None:
    def check(name: str, tensor: Tensor, *expected: tuple[int | str, ...]) -> None:
        for shape in expected:
            if tensor.dim() == len(shape) and all(
                isinstance(want, str) or have == want for have, want in zip(tensor.shape, shape, strict=True)
            ):
                return
        wanted = " or ".join(f"[{', '.join(map(str, shape))}]" for shape in expected)
        raise SplatError(f"{name} has shape {_shape(tensor)}; expected {wanted}")

    check("means", means, ("N", 3))
    check("viewmats", viewmats, ("C", 4, 4))
    n, c = means.shape[0], viewmats.shape[0]
    if c == 0:
        raise SplatError("viewmats holds no camera; give at least one")
    check("quats", quats, (n, 4))
    check("scales", scales, (n, 3))
    check("opacities", opacities, (n,))
    check("Ks", Ks, (c, 3, 3))
    if sh_degree is None:
        check("colors", colors, (n, "D"), (c, n, "D"))
        if colors.shape[-1] == 0:
            raise SplatError("colors has no channels; give at least one")
    else:
        if sh_degree not in (0, 1, 2, 3):
            raise SplatError(f"sh_degree is {sh_degree!r}; use 0, 1, 2, 3, or None for plain colours")
        check("colors", colors, (n, "K", 3))
        if colors.shape[1] < (sh_degree + 1) ** 2:
            raise SplatError(
                f"colors holds {colors.shape[1]} coefficients a Gaussian, but sh_degree={sh_degree} needs "
                f"{(sh_degree + 1) ** 2}; lower sh_degree or give more"
            )
    if backgrounds is not None and "RGB" in render_mode:
        check("backgrounds", backgrounds, (c, 3 if sh_degree is not None else colors.shape[-1]))


def _check_options(options: dict[str, Any]) -> None:
    if options["render_mode"] not in ("RGB", "D", "ED", "RGB+D", "RGB+ED"):
        raise SplatError(f"render_mode is {options['render_mode']!r}; use RGB, D, ED, RGB+D or RGB+ED")
    if options["rasterize_mode"] not in ("classic", "antialiased"):
        raise SplatError(f"rasterize_mode is {options['rasterize_mode']!r}; use classic or antialiased")
    for name in ("width", "height"):
        side = options[name]
        if not isinstance(side, Integral) or side < 1:
            raise SplatError(f"{name} is {side!r}; it must be a whole number of pixels, at least 1")
    if options["tile_size"] not in (None, *_TILE_SIZES):
        raise SplatError(f"tile_size is {options['tile_size']!r}; use 4, 8 or 16")
    for name in ("eps2d", "radius_clip"):
        if not 0 <= options[name] < math.inf:
            raise SplatError(f"{name} is {options[name]!r}; it must be a finite number that is not negative")
    near, far = options["near_plane"], options["far_plane"]
    if not 0 < near < far:
        raise SplatError(f"near_plane is {near} and far_plane {far}; they must satisfy 0 < near_plane < far_plane")


def _check_cameras(viewmats: Tensor, Ks: Tensor) -> None:
    for name, tensor in (("viewmats", viewmats), ("Ks", Ks)):
        if not torch.isfinite(tensor).all():
            raise SplatError(f"{name} holds a number that is not finite; check where the cameras come from")
    if (Ks[:, 0, 0] <= 0).any() or (Ks[:, 1, 1] <= 0).any():
        raise SplatError("Ks holds a focal length that is not positive; Ks[..., 0, 0] and Ks[..., 1, 1] are in pixels")
