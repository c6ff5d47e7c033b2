"""Stage 4, splats → pixels (kernels/rasterize.slang), and its `autograd.Function`."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.gpu.autograd import (
    Stage,
    Tangents,
    backward_early,
    first_derivative,
    forward_graph_break,
    graph_break,
    has_tangent,
    load_state,
    save_state,
)
from splat_py.gpu.device import Device, device_for
from splat_py.gpu.tensors import as_tensor, check_shape, check_tensors, is_shared
from splat_py.render.images import Image, Rasterization
from splat_py.render.options import Options
from splat_py.render.splats import ProjectedSplats, Splats
from splat_py.render.tiles import BinnedTiles

# Channels blended in one pass; more take several passes over the same tile lists.
MAX_CHANNELS = 32
# With absgrad one pass blends all: the absolute value of a gradient is not the sum of each pass's absolute values.
MAX_ABSGRAD_CHANNELS = 128


@forward_graph_break
def rasterize_to_pixels(
    splats: ProjectedSplats,
    colors: Tensor,
    tiles: BinnedTiles,
    width: int,
    height: int,
    backgrounds: Tensor | None,
    options: Options,
    *,
    device: Device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Last stage: blend splats over backgrounds → images [C, H, W, D], alphas [C, H, W, 1]. C counts the cameras of all scenes.

    Differentiable in means2d, conics, opacities, colours and backgrounds.

    Args:
        colors: [..., C, N, D], or for packed splats [M, D].
        backgrounds: [..., C, D], black if None.

    Raises:
        SplatError: a tensor has the wrong shape, is not float32, or is on another device than the others.
    """
    rows = tuple(splats.opacities.shape)
    check_shape("means2d", splats.means2d, (*rows, 2))
    check_shape("conics", splats.conics, (*rows, options.shape_floats))
    check_shape("colors", colors, (*rows, "D"))
    rendered = rasterize(splats, colors, tiles, width, height, backgrounds, options, device=device)
    return rendered.colors, rendered.alphas


@forward_graph_break
def rasterize(
    splats: ProjectedSplats,
    colors: Tensor,
    tiles: BinnedTiles,
    width: int,
    height: int,
    backgrounds: Tensor | None,
    options: Options,
    *,
    distortion: bool = False,
    median: bool = False,
    device: Device | str | None = None,
) -> "RenderedImages":
    """Blend as `rasterize_to_pixels`, and also return `final_T`, `n_contrib` and the results of the options.

    Args:
        distortion: render the last channel, whatever its colours are, as the distortion of the one before it, whose background
            must be 0 (`DistortionBlending` in slang/splat/blending.slang).
        median: also find each pixel's median, the last splat reached with T > 0.5.

    Raises:
        SplatError: a tensor is not float32, or is on another device than the others.
        NotImplementedError: absgrad with more than 128 channels.
    """
    inputs = {"means2d": splats.means2d, "conics": splats.conics, "opacities": splats.opacities}
    check_tensors(inputs | {"colors": colors, "backgrounds": backgrounds})
    device, channels, images = device_for(colors, device), colors.shape[-1], []
    if options.absgrad:
        if channels > MAX_ABSGRAD_CHANNELS:
            raise NotImplementedError(f"absgrad is not supported for {channels} channels; give at most {MAX_ABSGRAD_CHANNELS}")
        splats.means2d.absgrad = torch.zeros_like(splats.means2d)  # type: ignore[attr-defined]
    most = MAX_ABSGRAD_CHANNELS if options.absgrad else MAX_CHANNELS
    # Depth and distortion must both be in the last pass, and so must all channels of hits.
    last = 4 if options.with_hits else 2 if distortion else 1
    length = most - last + 1 if 0 < channels % most < last else most
    for first in range(0, max(channels, 1), length):
        part = slice(first, first + length)
        is_last = first + length >= channels
        behind = None if backgrounds is None else backgrounds[..., part]
        size = tiles.grid.cameras, height, width, len(range(channels)[part])
        hits = "RayHits" if options.with_hits and is_last else "NoHits" if first else options.splat_color
        image = Image.empty(device, *size, distortion=distortion and is_last, median=median and is_last, hits=hits)
        blended = colors if channels <= length else colors[..., part]
        placed = splats.means2d, splats.conics, splats.opacities, blended, behind, splats.extras, splats.rays
        pushed = any(map(has_tangent, placed))
        images.append(_Rasterize.apply(*placed, pushed, splats, tiles, image, options, device))
    parts, alphas, works = zip(*images, strict=True)
    if len(parts) > 1:
        device.flush()
    return RenderedImages(parts[0] if len(parts) == 1 else torch.cat(parts, -1), alphas[0], works[-1].image)


@dataclass(frozen=True)
class RenderedImages:
    """C images, and the arrays of their last pass."""

    colors: Tensor  # [C, H, W, D]
    alphas: Tensor  # [C, H, W, 1]
    arrays: Image


def median_splats(image: Image, tiles: BinnedTiles) -> Tensor:
    """The row of each pixel's median among the splats, [C, H, W] int64; -1 without one."""
    assert image.medians is not None
    past = as_tensor(image.medians, tiles.offsets).view(torch.int32).long()
    if not len(tiles.ids):
        return past - 1
    grid, (cameras, height, width) = tiles.grid, past.shape
    camera, y, x = (torch.arange(size, device=past.device) for size in (cameras, height, width))
    rows = camera[:, None] * grid.rows + y // grid.tile_size
    tile = rows[..., None] * grid.columns + x // grid.tile_size
    places = (tiles.offsets[tile].long() + past - 1).clamp(min=0)
    return torch.where(past > 0, tiles.ids[places].long(), -1)


class _Rasterize(Stage):
    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Rasterization]:
        *tensors, pushed, splats, tiles, image, options, device = arguments
        colors, backgrounds = tensors[3:5]
        work = _rasterization(splats, colors, tiles, backgrounds, image, options, device)
        # `jvp` follows, which blends, too.
        if not (pushed and is_shared(image.colors, colors)):
            with device.recording() as recorder:
                work.record(recorder)
        return as_tensor(image.colors, colors), as_tensor(image.alphas, colors), work

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        *tensors, _, _, tiles, _, options, _ = inputs
        save_state(ctx, output[-1], *tensors, tiles.offsets, tiles.all_ids)
        # The backward pass stores `absgrad` on it.
        ctx.means2d = tensors[0] if options.absgrad else None
        ctx.set_materialize_grads(False)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        work = load_state(ctx)
        _, *tensors, _, _ = ctx.saved_tensors

        def push(directions: tuple[int, ...], given: list[Any]) -> tuple[Tensor, ...]:
            memory = work.device.memory
            arrays: list[Any] = [None if tensor is None else memory.array(tensor) for tensor in given]
            means2d, conics, opacities, colors, backgrounds, extras, rays = arrays
            backgrounds = backgrounds or memory.zeros((*directions, *work.backgrounds.shape))
            splats = Splats(means2d, opacities, conics, opacities, work.splats.radii, extras=extras, rays=rays)
            d_colors, d_alphas = (memory.empty((*directions, *a.shape)) for a in (work.image.colors, work.image.alphas))
            image = replace(work.image, colors=d_colors, alphas=d_alphas)
            along = replace(work, splats=splats, colors=colors, backgrounds=backgrounds, image=image)
            with work.device.recording() as recorder:
                work.record_tangents(recorder, along)
            return as_tensor(d_colors, given[0]), as_tensor(d_alphas, given[0])

        return *Tangents.of(push, tensors, tangents, optional=(6,)), None

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *v_given: Tensor | None) -> tuple[Tensor | None, ...]:
        work = load_state(ctx)
        needed, (_, *tensors, _, _) = ctx.needs_input_grad, ctx.saved_tensors
        v_images = tensors[3].new_zeros(work.image.colors.shape) if v_given[0] is None else v_given[0]
        with work.device.recording():
            v = _gradients(work, v_images, v_given[1], tensors[2].shape, of_backgrounds=needed[4], of_rays=needed[6])
            if work.options.absgrad:
                ctx.means2d.absgrad = v.absgrad
            v_backgrounds = None if v.backgrounds is None else v.backgrounds.reshape(tensors[4].shape)
            gradients = v.means2d, v.conics, v.opacities, v.colors, v_backgrounds, v.extras, v.rays
            backward_early(ctx, [v for v, tensor in zip(gradients, tensors, strict=True) if tensor is not None])
        return *gradients, *(None,) * 6


class RasterizationGradients(NamedTuple):
    """Gradients of the tensors given to `rasterize_to_pixels`."""

    means2d: Tensor
    conics: Tensor
    opacities: Tensor
    colors: Tensor
    backgrounds: Tensor | None  # [C, D], C of all scenes
    absgrad: Tensor | None  # Σ |∂L/∂mean2d|, with `Options.absgrad`
    extras: Tensor | None = None
    rays: Tensor | None = None  # [C, H, W, 6]


@graph_break
def rasterize_backward(
    splats: ProjectedSplats,
    colors: Tensor,
    tiles: BinnedTiles,
    width: int,
    height: int,
    backgrounds: Tensor | None,
    options: Options,
    rendered: RenderedImages,
    v_images: Tensor,
    v_alphas: Tensor | None = None,
    *,
    device: Device | str | None = None,
) -> RasterizationGradients:
    """Return the gradients of `rasterize` without autograd, from its arguments, its result and the result's gradients.

    Raises:
        SplatError: there are more channels than one pass blends.
    """
    if colors.shape[-1] > MAX_CHANNELS:
        raise SplatError(f"colors has {colors.shape[-1]} channels; give at most {MAX_CHANNELS} at a time")
    device = device_for(colors, device)
    work = _rasterization(splats, colors, tiles, backgrounds, rendered.arrays, options, device)
    with device.recording() as recorder:
        work.record_pack(recorder)
    return _gradients(work, v_images, v_alphas, splats.opacities.shape, of_backgrounds=True, of_rays=True)


def _rasterization(
    splats: ProjectedSplats,
    colors: Tensor,
    tiles: BinnedTiles,
    backgrounds: Tensor | None,
    image: Image,
    options: Options,
    device: Device,
) -> Rasterization:
    array, cameras, channels = device.memory.array, tiles.grid.cameras, colors.shape[-1]
    behind = colors.new_zeros(cameras, channels) if backgrounds is None else backgrounds.reshape(cameras, channels)
    blended = array(colors), array(behind)
    return Rasterization(device, splats.arrays(device), *blended, tiles.arrays, image, options)


def _gradients(
    work: Rasterization, v_images: Tensor, v_alphas: Tensor | None, splats: torch.Size, of_backgrounds: bool, of_rays: bool
) -> RasterizationGradients:
    """Return gradients of splats with shape `splats`, and with `of_backgrounds` and `of_rays` those of backgrounds and rays."""
    memory, options, channels = work.device.memory, work.options, work.colors.shape[-1]
    rows = memory.empty((work.splats.count, options.gradient_row_length(channels)))
    v_rays = memory.empty(work.splats.rays.shape) if of_rays and work.splats.rays is not None else None
    v_colors, v_opacities = memory.array(v_images), None if v_alphas is None else memory.array(v_alphas)
    with work.device.recording() as recorder:
        work.record_backward(recorder, v_colors, v_opacities or recorder.zeros(work.image.alphas.shape), rows, v_rays)
    widths = 2, options.shape_floats, 1, channels, options.extras, 2 * options.absgrad
    parts = as_tensor(rows, v_images).view(*splats, rows.shape[1]).split(widths, -1)
    means2d, conics, opacities, colors, extras, absgrad = parts
    v_backgrounds = None
    if of_backgrounds:
        v_backgrounds = (v_images * as_tensor(work.image.final_T, v_images)[..., None]).sum((1, 2))
    return RasterizationGradients(
        means2d,
        conics,
        opacities[..., 0],
        colors,
        v_backgrounds,
        absgrad if options.absgrad else None,
        extras if options.extras else None,
        None if v_rays is None else as_tensor(v_rays, v_images),
    )
