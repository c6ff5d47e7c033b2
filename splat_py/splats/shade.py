"""Stage 2, features of Gaussians → colours (kernels/shade.slang): what it records, and its `autograd.Function`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import first_derivative, keep, kept, opaque
from splat_py.gpu.device import Device, device_for
from splat_py.gpu.kernels import Recorder, UserType, linear_groups
from splat_py.splats.camera_gradients import CAMERA_ROW, CameraGradients, camera_gradients
from splat_py.splats.colors import ColorModel, harmonics
from splat_py.splats.data import Cameras, PackedIds, Settings, StridedView, id_buffers, id_constants
from splat_py.splats.tensors import as_tensor, check_tensors, strided_view, words_of
from splat_py.splats.weight_gradients import WeightGradients


@dataclass(frozen=True)
class Shading:
    """Features of N Gaussians, C cameras that see them, and the colours they have there, zero where culled.

    Shapes are of dense splats; M takes the place of C, N where they are packed.
    """

    means: Array  # [N, 3]
    # [N, ...] as many numbers as `color` uses, or more; of spherical harmonics [N, K, 3]. Or the same as halves, `words_of`.
    features: Array
    cameras: Cameras
    radii: Array  # [C, N, 2] int32
    colors: Array  # [C, N, 3]
    color: ColorModel
    settings: Settings
    packed: PackedIds | None = None
    weights: Array | None = None  # [W]
    # How many halves a Gaussian has, if features are halves; their gradients then are [N, halves / 2, rounded up] words.
    halves: int = 0

    def record(self, recorder: Recorder) -> None:
        """Write `colors`."""
        recorder.stage("shade")
        self._dispatch(recorder, "shadeForward", linear_groups(self._splats), {}, {"colors": self.colors})

    def record_backward(
        self,
        recorder: Recorder,
        v_colors: StridedView,
        v_means: Array,
        v_features: Array,
        v_cameras: Array,
        add_to_means: bool = False,
        v_weights: Array | None = None,
    ) -> None:
        """Gradients of colours → those of features and means, overwritten (or means added to).

        Those of cameras, and of the weights that there are, are added to.
        """
        recorder.stage("shade backward")
        settings, scenes = self.settings, self.cameras.scenes
        rows = CameraGradients(recorder, v_cameras, self._per_scene, settings)
        of_weights = WeightGradients(recorder, v_weights, self._per_scene, scenes, settings)
        adds_up = settings.camera_gradient or self.color.weights
        self._dispatch(
            recorder,
            "shadeBackward",
            (*linear_groups(self._per_scene)[:2], scenes),
            {"colorStride": v_colors.stride, "colorOffset": v_colors.offset},
            {
                "vColors": v_colors.array,
                "vMeans": v_means,
                **self._features("vFeatures", "vFeatureHalves", v_features),
                **rows.buffers,
                **of_weights.buffers,
            },
            CAMERA_GRADIENT=settings.camera_gradient,
            ADD_TO_MEANS=add_to_means,
            **(settings.accumulation_constants() if adds_up else {}),
        )
        rows.record_sum(recorder)
        of_weights.record_sum(recorder)

    @property
    def _splats(self) -> int:
        return self.colors.size // 3

    @property
    def _per_scene(self) -> int:
        return self.means.size // 3 // self.cameras.scenes

    def _features(self, floats: str, halves: str, array: Array) -> dict[str, Array | None]:
        """Of two buffers, the one that holds them."""
        return {floats: None, halves: array.bits} if self.halves else {floats: array, halves: None}

    def _dispatch(
        self,
        recorder: Recorder,
        entry: str,
        groups: tuple[int, int, int],
        uniforms: dict[str, int],
        buffers: dict[str, Array | None],
        **constants: bool | str,
    ) -> None:
        cameras = self.cameras
        specialisation: dict[str, bool | int | str | UserType] = self.color.constants() | id_constants(self.packed) | constants
        if self.halves:
            specialisation["HALVES"] = True
        recorder.dispatch(
            "shade",
            entry,
            groups,
            {
                "splats": self._splats,
                "gaussians": self._per_scene,
                "cameras": cameras.count // cameras.scenes,
                "stored": self.halves or self.features.size // max(self.means.size // 3, 1),
                **uniforms,
            },
            {
                "means": self.means,
                **self._features("features", "featureHalves", self.features),
                "weights": self.weights,
                "viewmats": cameras.viewmats,
                "Ks": cameras.Ks,
                "radii": self.radii,
                **id_buffers(self.packed),
                **buffers,
            },
            **specialisation,
        )


@opaque
def shade(
    means: Tensor,
    features: Tensor,
    viewmats: Tensor,
    radii: Tensor,
    color: int | ColorModel,
    settings: Settings | None = None,
    *,
    weights: Tensor | None = None,
    packed: PackedIds | None = None,
    as_color: bool = True,
    device: Device | str | None = None,
) -> Tensor:
    """Colours [..., C, N, 3] that C cameras see, by directions from their centres to the means.

    Args:
        means: [..., N, 3].
        features: [..., N, F] or, for each camera, [..., C, N, F]. Coefficients of spherical harmonics [..., N, K, 3] or
            [..., C, N, K, 3], K ≥ (degree + 1)². Of float16 the device stores halves; it computes with float32 all the same,
            and their gradients are rounded to float16 when they are complete.
        viewmats: [..., C, 4, 4].
        radii: [..., C, N, 2] from `project`: culled splats stay black.
        color: the degree of spherical harmonics, 0 to 4, max(0, Σ Y_k(d) sh_k + ½); or another model.
        settings: how gradients of cameras and weights add up, as `project` is told.
        weights: [W] of all Gaussians, where the model has some.
        packed: from `project` too: `radii` and the result are [M, ·].
        as_color: or the sum of the harmonics as it is.

    Differentiable in means, features, viewmats and weights.

    Raises:
        SplatError: one of these is not of such a type, or on another device than the others.
    """
    tensors = {"means": means, "features": features, "viewmats": viewmats, "weights": weights}
    check_tensors(tensors, halves=("features",))
    device = device_for(means, device)
    frame = _frame(color, settings, device, packed, as_color)
    each_camera = features.dim() - (1 if isinstance(color, int) else 0) == means.dim() + 1
    if not each_camera:
        return cast(Tensor, _Shade.apply(means, features, viewmats, radii, weights, frame))
    # Each camera has Gaussians of its own: it is a scene.
    gaussians, cameras = means.shape[-2], viewmats.shape[-3]
    if packed is not None:
        images, ids = (as_tensor(a, means).view(torch.int32) for a in (packed.images, packed.gaussians))
        own = device.memory.array((images * gaussians + ids % gaussians).view(torch.uint32))
        frame = replace(frame, packed=replace(packed, gaussians=own))
    means = means[..., None, :, :].expand(*viewmats.shape[:-2], gaussians, 3)
    radii = radii if packed else radii[..., None, :, :]
    colors = cast(Tensor, _Shade.apply(means, features, viewmats[..., None, :, :], radii, weights, frame))
    return colors if packed else colors.reshape(*viewmats.shape[:-3], cameras, gaussians, 3)


@dataclass(frozen=True)
class _Frame:
    """What is not differentiated of a shading."""

    color: ColorModel
    settings: Settings
    device: Device
    packed: PackedIds | None


def _frame(
    color: int | ColorModel, settings: Settings | None, device: Device, packed: PackedIds | None, as_color: bool
) -> _Frame:
    model = harmonics(color, as_color) if isinstance(color, int) else color
    settings = settings or Settings(device.tuning.tile_size, native_atomics=device.native_float_atomics)
    return _Frame(model, settings, device, packed)


class _Shade(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, means: Tensor, features: Tensor, viewmats: Tensor, radii: Tensor, weights: Tensor | None, frame: _Frame
    ) -> Tensor:
        work = _shading(means, features, viewmats, radii, weights, frame)
        recorder = frame.device.record()
        work.record(recorder)
        recorder.submit()
        keep(ctx, (work, frame.device), means, features, viewmats, radii, weights)
        return as_tensor(work.colors, means)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, v_colors: Tensor) -> tuple[Tensor | None, ...]:
        work, device = kept(ctx)
        lead = ctx.saved_tensors[3].shape[:-2]
        features = ctx.saved_tensors[2].shape
        v = _gradients(work, device, v_colors, lead, features, of_cameras=ctx.needs_input_grad[2])
        return v.means, v.features, v.viewmats, None, v.weights, None


class ShadingGradients(NamedTuple):
    """Of the tensors that `shade` was given."""

    means: Tensor
    features: Tensor
    viewmats: Tensor | None
    weights: Tensor | None


@opaque
def shade_backward(
    means: Tensor,
    features: Tensor,
    viewmats: Tensor,
    radii: Tensor,
    color: int | ColorModel,
    v_colors: Tensor,
    settings: Settings | None = None,
    *,
    weights: Tensor | None = None,
    packed: PackedIds | None = None,
    as_color: bool = True,
    device: Device | str | None = None,
) -> ShadingGradients:
    """The gradients of `shade` without autograd: what it was given, features of Gaussians, and the gradient of its colours."""
    device = device_for(means, device)
    work = _shading(means, features, viewmats, radii, weights, _frame(color, settings, device, packed, as_color))
    return _gradients(work, device, v_colors, viewmats.shape[:-2], features.shape, of_cameras=True)


def _shading(
    means: Tensor, features: Tensor, viewmats: Tensor, radii: Tensor, weights: Tensor | None, frame: _Frame
) -> Shading:
    empty = frame.device.memory.empty

    def array(tensor: Tensor) -> Array:
        return frame.device.memory.array(tensor.detach().contiguous())

    # Only the cameras' centres matter: intrinsics and image size are never read.
    poses = array(viewmats.flatten(0, -3))
    cameras = Cameras(poses, empty((poses.shape[0], 3, 3)), 0, 0, math.prod(means.shape[:-2]))
    shared = None if weights is None else array(weights)
    colors = empty((*radii.shape[:-1], 3))
    halves = features.numel() // max(means.numel() // 3, 1) if features.dtype == torch.float16 else 0
    stored = array(words_of(features) if halves else features)
    color, settings, packed = frame.color, frame.settings, frame.packed
    return Shading(array(means), stored, cameras, array(radii), colors, color, settings, packed, shared, halves)


def _gradients(
    work: Shading, device: Device, v_colors: Tensor, lead: torch.Size, features: torch.Size, of_cameras: bool
) -> ShadingGradients:
    """Those of features of this shape; of cameras [*lead, 4, 4] only if asked for."""
    work = replace(work, settings=replace(work.settings, camera_gradient=of_cameras))
    empty = device.memory.empty
    gaussians, words = work.means.size // 3, -(-work.halves // 2)
    v_means, v_features = empty(work.means.shape), empty((gaussians, words) if work.halves else features)
    v_cameras = empty((work.cameras.count, CAMERA_ROW))
    v_weights = None if work.weights is None else empty(work.weights.shape)
    recorder = device.record()
    recorder.clear(v_cameras)
    if v_weights is not None:
        recorder.clear(v_weights)
    view = strided_view(device.memory, v_colors, v_colors.numel() // 3, 3)
    work.record_backward(recorder, view, v_means, v_features, v_cameras, v_weights=v_weights)
    recorder.submit()
    v_viewmats = camera_gradients(as_tensor(v_cameras, v_colors))[0].unflatten(0, lead) if of_cameras else None
    of_weights = None if v_weights is None else as_tensor(v_weights, v_colors)
    of_features = as_tensor(v_features, v_colors)
    if work.halves:
        of_features = of_features.view(torch.float16)[:, : work.halves].reshape(features)
    return ShadingGradients(as_tensor(v_means, v_colors), of_features, v_viewmats, of_weights)
