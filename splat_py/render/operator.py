"""The splat operator registered with torch: `torch.ops.splat_py.splat` and `torch.ops.splat_py.splat_backward`.

torch.compile and torch.export trace both operators into one graph, also with symbolic sizes. `backend` chooses among three
kernels, which never replace each other: "native", the tile renderer; "portable", the baseline of `splat_py.portable` in torch;
"portable_slang", the baseline in Slang. `decompositions` lowers the baseline to primitive torch operations.

An operator keeps no state between calls, so the native backward pass renders again.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self, cast, get_args

import torch
from torch import Tensor

from splat_py import portable
from splat_py.base.errors import SplatError
from splat_py.gpu.autograd import refuse_second_derivative
from splat_py.gpu.device import device_for
from splat_py.gpu.tensors import check_shape
from splat_py.render.rasterization import rasterization, render_backward

Backend = Literal["native", "portable", "portable_slang"]

_TENSORS = "Tensor positions, Tensor scales, Tensor rotations, Tensor opacities, Tensor colors, Tensor sh"
_OTHERS = "SymInt width, SymInt height, Tensor? viewmat, Tensor? intrinsics, str backend"
# The constant spherical harmonic, ½ √(1/π).
_Y0 = 0.5 / math.sqrt(math.pi)
# Valid numbers of spherical-harmonics coefficients: none, or those of degrees 0 to 4.
_COUNTS = (0, 1, 4, 9, 16, 25)


def splat(
    positions: Tensor,
    scales: Tensor,
    rotations: Tensor,
    opacities: Tensor,
    colors: Tensor,
    sh: Tensor,
    width: int,
    height: int,
    viewmat: Tensor | None = None,
    intrinsics: Tensor | None = None,
    *,
    backend: Backend = "native",
) -> Tensor:
    """Splat Gaussians. Differentiable once, in the six tensors of Gaussians.

    Args:
        positions: [N, 3] centres, world units.
        scales: [N, 3] standard deviations > 0, world units.
        rotations: [N, 4] quaternions (w, x, y, z), normalised here.
        opacities: [N, 1] between 0 and 1.
        colors: [N, 3] rgb.
        sh: [N, K, 3] spherical harmonics on top of `colors`: a Gaussian's colour is max(0, colors + Σ Y_k(d) sh_k), or
            `colors` itself if K = 0. The renderer accepts K = 0, 1, 4, 9, 16 or 25; the baseline ignores `sh`.
        width, height: image size, pixels.
        viewmat: [4, 4] world → camera, OpenCV axes. The renderer needs it, the baseline ignores it. No gradient.
        intrinsics: [3, 3] in pixels. The renderer needs it, the baseline ignores it. No gradient.
        backend: "native" renders in float32, or raises if no device can; "portable" and "portable_slang" fill the image with
            one flat colour, in torch and any dtype, or in Slang and float32.

    Returns:
        [height · width · 4] rgb and alpha, pixel by pixel. The backward pass returns all gradients in one vector of length
        `portable.gradient_length(N, K)`: positions, scales, rotations, opacities, colors, sh.

    Raises:
        SplatError: an argument has the wrong shape, dtype, device or value, or no device can do what `backend` asks for.
    """
    arguments = positions, scales, rotations, opacities, colors, sh, width, height, viewmat, intrinsics, backend
    inputs = _Inputs(*arguments).checked()
    for name, matrix in inputs.cameras().items():
        if matrix is not None and matrix.requires_grad:
            raise SplatError(f"{name} requires a gradient, but gets none here; detach it, or use splat_py.rasterization")
    return cast(Tensor, _splat(*inputs))


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Map each operator to the baseline in primitive torch operations, for `run_decompositions` and AOTAutograd.

    Calls of the native backend stay unchanged: a flat colour never replaces a render.
    """
    operators = torch.ops.splat_py
    return {operators.splat.default: _lower, operators.splat_backward.default: _lower_backward}


class _Inputs(NamedTuple):
    """The operator's arguments, in the order of its schema."""

    positions: Tensor
    scales: Tensor
    rotations: Tensor
    opacities: Tensor
    colors: Tensor
    sh: Tensor
    width: int
    height: int
    viewmat: Tensor | None
    intrinsics: Tensor | None
    backend: str

    def cameras(self) -> dict[str, Tensor | None]:
        return {"viewmat": self.viewmat, "intrinsics": self.intrinsics}

    def checked(self) -> Self:
        """Return the same arguments. SplatError if anything but a value is wrong, so that tracing can check it too."""
        portable.check_inputs(*self[:8])
        if self.backend not in get_args(Backend):
            raise SplatError(f"backend is {self.backend!r}; use native, portable or portable_slang")
        if self.backend != "portable" and self.colors.dtype != torch.float32:
            raise SplatError(f'colors has dtype {self.colors.dtype}; convert to torch.float32, or use backend="portable"')
        for (name, matrix), side in zip(self.cameras().items(), (4, 3), strict=True):
            if matrix is None:
                if self.backend == "native":
                    raise SplatError(f"{name} is None; the native backend needs a [{side}, {side}] tensor")
            elif not isinstance(matrix, Tensor):
                raise SplatError(f"{name} is a {type(matrix).__name__}; give a torch tensor")
            else:
                check_shape(name, matrix, (side, side))
        if self.backend == "native" and not any(self.sh.shape[1] == count for count in _COUNTS):
            raise SplatError(f"sh has {self.sh.shape[1]} coefficients; the native backend takes 0, 1, 4, 9, 16 or 25")
        return self

    def rasterization(self) -> dict[str, Any]:
        """Return the arguments of `rasterization`, which adds ½ to harmonics: `colors` - ½ moves into the constant one."""
        assert self.viewmat is not None and self.intrinsics is not None
        coefficients, features = self.sh.shape[1], self.colors
        if coefficients:
            constant = self.sh[:, :1] + (self.colors[:, None] - 0.5) / _Y0
            features = torch.cat([constant, self.sh[:, 1:]], 1)
        return {
            "means": self.positions,
            "quats": self.rotations,
            "scales": self.scales,
            "opacities": self.opacities[:, 0],
            "colors": features,
            "sh_degree": math.isqrt(coefficients) - 1 if coefficients else None,
            "viewmats": self.viewmat[None],
            "Ks": self.intrinsics[None],
            "width": self.width,
            "height": self.height,
            "backend": "native",
        }


# The operators: kernels, shapes, and the second as the derivative of the first


@torch.library.custom_op("splat_py::splat", mutates_args=(), schema=f"({_TENSORS}, {_OTHERS}) -> Tensor")
def _splat(*arguments: Any) -> Tensor:
    inputs = _Inputs(*arguments).checked()
    if inputs.backend == "native":
        with torch.no_grad():
            images, alphas, _ = rasterization(**inputs.rasterization())
        return torch.cat([images, alphas], -1).reshape(-1)
    forward, _ = _baseline(inputs)
    return forward(inputs.colors, inputs.opacities, inputs.width, inputs.height)


@torch.library.custom_op(
    "splat_py::splat_backward", mutates_args=(), schema=f"(Tensor v_image, {_TENSORS}, {_OTHERS}) -> Tensor"
)
def _splat_backward(v_image: Tensor, *arguments: Any) -> Tensor:
    """Return the packed gradient, from the image's gradient [height · width · 4]."""
    inputs = _checked_backward(v_image, *arguments)
    if inputs.backend != "native":
        _, backward = _baseline(inputs)
        return backward(v_image.reshape(-1, 4), inputs.colors, inputs.opacities, inputs.sh.shape[1])
    v_pixels = v_image.reshape(1, inputs.height, inputs.width, 4)
    # torch calls an operator's kernel with autograd's dispatch keys excluded. This includes them again.
    with torch.inference_mode(False):
        found = render_backward(v_pixels[..., :3], v_pixels[..., 3:], **inputs.rasterization())
    v_features = found["colors"]
    v_colors, v_sh = (v_features[:, 0] / _Y0, v_features) if inputs.sh.shape[1] else (v_features, inputs.sh)
    parts = (found["means"], found["scales"], found["quats"], found["opacities"], v_colors, v_sh)
    return torch.cat([part.reshape(-1) for part in parts])


@_splat.register_fake
def _(*arguments: Any) -> Tensor:
    inputs = _Inputs(*arguments).checked()
    return inputs.colors.new_empty(inputs.height * inputs.width * 4)


@_splat_backward.register_fake
def _(v_image: Tensor, *arguments: Any) -> Tensor:
    inputs = _checked_backward(v_image, *arguments)
    return v_image.new_empty(portable.gradient_length(inputs.colors.shape[0], inputs.sh.shape[1]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *gaussians, ctx.width, ctx.height, viewmat, intrinsics, ctx.backend = inputs
    ctx.save_for_backward(*gaussians, viewmat, intrinsics)


def _differentiate(ctx: Any, v_image: Tensor) -> tuple[Tensor | None, ...]:
    *gaussians, viewmat, intrinsics = ctx.saved_tensors
    packed = _splat_backward(v_image, *gaussians, ctx.width, ctx.height, viewmat, intrinsics, ctx.backend)
    count, coefficients = gaussians[-1].shape[:2]
    return *portable.split_gradient(packed, count, coefficients), *(None,) * 5


_splat.register_autograd(_differentiate, setup_context=_save)
_splat_backward.register_autograd(refuse_second_derivative)


def _checked_backward(v_image: Tensor, *arguments: Any) -> _Inputs:
    inputs = _Inputs(*arguments).checked()
    if v_image.dim() != 1 or v_image.shape[0] != inputs.height * inputs.width * 4:
        raise SplatError(f"v_image has shape {list(v_image.shape)}; expected [{inputs.height} · {inputs.width} · 4]")
    if v_image.dtype != inputs.colors.dtype or v_image.device != inputs.colors.device:
        raise SplatError(
            f"v_image is {v_image.dtype} on {v_image.device}; it must be {inputs.colors.dtype} on {inputs.colors.device}"
        )
    return inputs


def _baseline(inputs: _Inputs) -> tuple[portable.Forward, portable.Backward]:
    if inputs.backend == "portable":
        return portable.forward, portable.backward
    kernels = portable.Kernels(device_for(inputs.colors))
    return kernels.forward, kernels.backward


def _lower(*arguments: Any) -> Any:
    inputs = _Inputs(*arguments)
    if inputs.backend == "native":
        return NotImplemented
    return portable.forward(inputs.colors, inputs.opacities, inputs.width, inputs.height)


def _lower_backward(v_image: Tensor, *arguments: Any) -> Any:
    inputs = _Inputs(*arguments)
    if inputs.backend == "native":
        return NotImplemented
    return portable.backward(v_image.reshape(-1, 4), inputs.colors, inputs.opacities, inputs.sh.shape[1])
