"""The portable baseline of the splat operator: it runs wherever tensors do, and makes a flat colour, not a picture.

Forward: colours weighted by opacity, averaged over N Gaussians, with the mean opacity as alpha; that one RGBA value fills the
image. Backward, in closed form, with v the image's gradient summed over pixels:

    v_weighted = v_rgb / N      v_color = v_weighted · opacity      v_opacity = Σ_channels v_weighted · color + v_alpha / N

Positions, scales, rotations, spherical harmonics and cameras are accepted and ignored; all but cameras get zero gradients.
N = 0 counts as one in divisions: a transparent black image and an empty gradient.

There are two implementations: in primitive torch operations, for any device and dtype (`splat`), and in Slang (`splat_slang`),
for every target of SlangPy. `splat_py.render.operator` has both, and the renderer, in one torch operator; `rasterization` calls
the former its backend "portable".
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import first_derivative
from splat_py.gpu.device import Device, device_for
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant
from splat_py.gpu.tensors import check_shape

# Partial sums of a reduction.
_SUMMANDS = constant("kernels/portable", "SUMMANDS")

# Shapes per Gaussian, in the order of arguments and of the packed gradient.
_SHAPES: dict[str, tuple[int | str, ...]] = {
    "positions": (3,),
    "scales": (3,),
    "rotations": (4,),
    "opacities": (1,),
    "colors": (3,),
    "sh": ("K", 3),
}

Forward = Callable[[Tensor, Tensor, int, int], Tensor]
Backward = Callable[[Tensor, Tensor, Tensor, int], Tensor]


def splat(
    positions: Tensor,
    scales: Tensor,
    rotations: Tensor,
    opacities: Tensor,
    colors: Tensor,
    sh: Tensor,
    width: int,
    height: int,
    camera: Any = None,
) -> Tensor:
    """The baseline in torch, differentiable in all tensors.

    Args:
        positions, scales: [N, 3], ignored.
        rotations: [N, 4], ignored.
        opacities: [N, 1].
        colors: [N, 3].
        sh: [N, K, 3] with any K ≥ 0, ignored.
        width, height: image size, pixels.
        camera: ignored.

    Returns:
        [height · width · 4] rgb and alpha, pixel by pixel, in the tensors' dtype and on their device.

    Raises:
        SplatError: a tensor has the wrong shape, dtype or device, or the image has no pixels.
    """
    check_inputs(positions, scales, rotations, opacities, colors, sh, width, height)
    run = forward, backward
    return cast(Tensor, _Splat.apply(run, width, height, positions, scales, rotations, opacities, colors, sh))


def flat_images(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    colors: Tensor,
    lead: torch.Size,
    width: int,
    height: int,
    sh_degree: int | None,
    backgrounds: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return images [..., C, H, W, 3] and alphas [..., C, H, W, 1] for arguments of `rasterization`, by `splat` per camera.

    Colours are the constant terms of spherical harmonics. Backgrounds show through, as behind a render.

    Args:
        lead: the dimensions of scenes and cameras, [..., C].
    """
    rgb = colors.float()
    if sh_degree is not None:
        # Y₀ = ½ √(1/π)
        rgb = (rgb[..., 0, :] * (0.5 / math.sqrt(math.pi)) + 0.5).clamp(min=0)
    rgb = rgb if rgb.dim() > means.dim() else rgb[..., None, :, :]
    shared = (tensor[..., None, :, :] for tensor in (means, scales, quats, opacities[..., None]))
    views = zip(*(tensor.expand(*lead, *tensor.shape[-2:]).flatten(0, -3) for tensor in (*shared, rgb)), strict=True)
    no_harmonics = means.new_zeros(means.shape[-2], 0, 3)
    flat = torch.stack(
        [splat(mean, scale, quat, opacity, color, no_harmonics, width, height) for mean, scale, quat, opacity, color in views]
    )
    images, alphas = flat.reshape(*lead, height, width, 4).split([3, 1], -1)
    if backgrounds is not None:
        images = images + (1 - alphas) * backgrounds[..., None, None, :]
    return images, alphas


def splat_slang(
    positions: Tensor,
    scales: Tensor,
    rotations: Tensor,
    opacities: Tensor,
    colors: Tensor,
    sh: Tensor,
    width: int,
    height: int,
    camera: Any = None,
    *,
    device: Device | str | None = None,
) -> Tensor:
    """Compute `splat` in Slang, on the device of `splat_py.gpu.device`; tensors must be float32."""
    check_inputs(positions, scales, rotations, opacities, colors, sh, width, height)
    if colors.dtype != torch.float32:
        raise SplatError(
            f"colors has dtype {colors.dtype}; shaders compute in torch.float32, so convert, or use portable.splat"
        )
    kernels = Kernels(device_for(colors, device))
    run = kernels.forward, kernels.backward
    return cast(Tensor, _Splat.apply(run, width, height, positions, scales, rotations, opacities, colors, sh))


def gradient_length(gaussians: int, coefficients: int) -> int:
    """Length of the packed gradient of N Gaussians with K coefficients: 14 N + 3 N K."""
    return gaussians * (14 + 3 * coefficients)


def unpack_gradient(packed: Tensor, coefficients: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Split a packed gradient into views: positions [N, 3], scales [N, 3], rotations [N, 4], opacities [N, 1],
    colours [N, 3] and spherical harmonics [N, K, 3].

    Raises:
        SplatError: the vector's length belongs to no number of Gaussians.
    """
    length = gradient_length(1, coefficients)
    count, rest = divmod(packed.numel(), length)
    if packed.dim() != 1 or rest:
        raise SplatError(
            f"packed has shape {list(packed.shape)}; with {coefficients} coefficients it must be "
            f"[N · {length}], as gradient_length says"
        )
    return split_gradient(packed, count, coefficients)


def split_gradient(packed: Tensor, count: int, coefficients: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Split a packed gradient of a known number of Gaussians, which may be symbolic."""
    shapes = (3,), (3,), (4,), (1,), (3,), (coefficients, 3)
    parts = packed.split([count * math.prod(shape) for shape in shapes])
    positions, scales, rotations, opacities, colors, sh = (
        part.view(count, *shape) for part, shape in zip(parts, shapes, strict=True)
    )
    return positions, scales, rotations, opacities, colors, sh


# Torch


def forward(colors: Tensor, opacities: Tensor, width: int, height: int) -> Tensor:
    """Return the image [height · width · 4], from colours [N, 3] and opacities [N, 1]."""
    weighted = torch.cat([colors * opacities, opacities], 1)
    mean = weighted.sum(0) / _divisor(colors)
    return mean.expand(height * width, 4).reshape(-1)


def backward(v_image: Tensor, colors: Tensor, opacities: Tensor, coefficients: int) -> Tensor:
    """Return the packed gradient [gradient_length(N, K)], from the image's gradient [height · width, 4]."""
    count = colors.shape[0]
    v_mean = v_image.sum(0) / _divisor(colors)
    v_colors = v_mean[:3] * opacities
    v_opacities = (v_mean[:3] * colors).sum(1, keepdim=True) + v_mean[3]
    ignored_before, ignored_after = v_image.new_zeros(10 * count), v_image.new_zeros(3 * count * coefficients)
    return torch.cat([ignored_before, v_opacities.reshape(-1), v_colors.reshape(-1), ignored_after])


def _divisor(colors: Tensor) -> Tensor:
    """max(N, 1) as a tensor, because compilers that trace a symbolic N fold max(N, 1) to N."""
    return torch.full((), colors.shape[0], dtype=torch.float32, device=colors.device).clamp(min=1)


# Slang


@dataclass(frozen=True)
class _Sums:
    """Colours [N, 3], opacities [N], and a kernel's partial and total sums."""

    colors: Array
    opacities: Array
    partial_sums: Array
    all: Array
    gaussians: int
    pixels: int

    def record(self, recorder: Recorder, entry: str, **summed: Any) -> None:
        recorder.dispatch("portable", entry, linear_groups(_SUMMANDS), sums=self, **summed)
        recorder.dispatch("portable", "addPartialSums", (1, 1, 1), sums=self)


class Kernels:
    """`forward` and `backward` on a SlangPy device (kernels/portable.slang)."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def forward(self, colors: Tensor, opacities: Tensor, width: int, height: int) -> Tensor:
        pixels = width * height
        image, sums = self._device.memory.empty(pixels * 4), self._sums(colors, opacities, pixels)
        with self._device.recording() as recorder:
            sums.record(recorder, "sumGaussians")
            recorder.dispatch("portable", "fillImage", linear_groups(pixels), sums=sums, image=image)
        return image.tensor().to(colors.device)

    def backward(self, v_image: Tensor, colors: Tensor, opacities: Tensor, coefficients: int) -> Tensor:
        count, sums = len(colors), self._sums(colors, opacities, len(v_image))
        packed = self._device.memory.empty(gradient_length(count, coefficients))
        recorder = self._device.record()
        recorder.clear(packed)
        sums.record(recorder, "sumPixels", v_image=self._device.memory.array(v_image))
        recorder.dispatch("portable", "writeGradient", linear_groups(count), sums=sums, packed=packed)
        recorder.submit()
        return packed.tensor().to(v_image.device)

    def _sums(self, colors: Tensor, opacities: Tensor, pixels: int) -> _Sums:
        memory = self._device.memory
        given = memory.array(colors), memory.array(opacities)
        return _Sums(*given, memory.empty((_SUMMANDS, 4)), memory.empty(4), len(colors), pixels)


class _Splat(torch.autograd.Function):
    """Either implementation for autograd; `run` has its forward and its backward function."""

    @staticmethod
    def forward(ctx: Any, run: tuple[Forward, Backward], width: int, height: int, *tensors: Tensor) -> Tensor:
        *_, opacities, colors, sh = tensors
        ctx.save_for_backward(opacities, colors)
        ctx.coefficients, ctx.run_backward = sh.shape[1], run[1]
        return run[0](colors, opacities, width, height)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, v_image: Tensor) -> tuple[Tensor | None, ...]:
        opacities, colors = ctx.saved_tensors
        packed = ctx.run_backward(v_image.reshape(-1, 4), colors, opacities, ctx.coefficients)
        return None, None, None, *unpack_gradient(packed, ctx.coefficients)


def check_inputs(*arguments: Any) -> None:
    """Raise the errors of `splat` for its tensors, width and height, also while a compiler traces with symbolic sizes."""
    *tensors, width, height = arguments
    positions = tensors[0]
    for (name, shape), tensor in zip(_SHAPES.items(), tensors, strict=True):
        if not isinstance(tensor, Tensor):
            raise SplatError(f"{name} is a {type(tensor).__name__}; give a torch tensor")
        check_shape(name, tensor, (positions.shape[0] if positions.dim() else "N", *shape))
        if not tensor.is_floating_point() or tensor.dtype != positions.dtype:
            raise SplatError(f"{name} has dtype {tensor.dtype}; give all tensors one floating-point dtype")
        if tensor.device != positions.device:
            raise SplatError(f"{name} is on {tensor.device} and positions on {positions.device}; move them to one device")
    for name, side in (("width", width), ("height", height)):
        if isinstance(side, bool) or not isinstance(side, (int, np.integer, torch.SymInt)) or side < 1:
            raise SplatError(f"{name} is {side!r}; it must be a whole number of pixels, at least 1")
