"""Stage 2, features of Gaussians → colours (kernels/shade.slang): what it records, and its `autograd.Function`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import first_derivative, graph_break, load_state, save_state
from splat_py.gpu.device import Device, device_for
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.render.cameras import CAMERA_ROW, Cameras, SharedRows, camera_gradients
from splat_py.render.colors import ColorModel, harmonics
from splat_py.render.options import Options
from splat_py.render.splats import DENSE, SplatIds, StridedRows
from splat_py.render.tensors import as_tensor, check_tensors, side_by_side, words_of


@dataclass(frozen=True)
class FeatureArrays:
    """Features of N Gaussians, `stored` numbers each, or their gradients: floats, or halves, two in a word (`words_of`).

    Rows of halves' gradients begin with a word each: [N, stored / 2, rounded up].
    """

    floats: Array | None
    halves: Array | None
    stored: int

    @classmethod
    def of(cls, array: Array, stored: int, halves: bool = False) -> FeatureArrays:
        """From the array that holds them."""
        return cls(None, array.as_uint32, stored) if halves else cls(array, None, stored)


@dataclass(frozen=True)
class Shading:
    """Features of N Gaussians, C cameras that see them, and the colours they have there, zero where culled.

    Shapes are of dense splats; M takes the place of C, N where they are packed.
    """

    means: Array  # [N, 3]
    features: FeatureArrays  # as many numbers as `color` uses, or more; of spherical harmonics [N, K, 3]
    cameras: Cameras
    radii: Array  # [C, N, 2] int32
    colors: Array  # [C, N, 3]
    color: ColorModel
    options: Options
    ids: SplatIds = DENSE
    weights: Array | None = None  # [W]

    def record(self, recorder: Recorder) -> None:
        """Write `colors`."""
        recorder.stage("shade")
        self._dispatch(recorder, "shadeForward", linear_groups(self.colors.size // 3), colors=self.colors)

    def record_backward(
        self,
        recorder: Recorder,
        v_colors: StridedRows,
        v_means: Array,
        v_features: FeatureArrays,
        v_cameras: Array,
        add_to_means: bool = False,
        v_weights: Array | None = None,
    ) -> None:
        """Gradients of colours → those of features and means, overwritten (or means added to).

        Those of cameras, and of the weights that there are, are added to.
        """
        recorder.stage("shade backward")
        options, scenes, per_scene = self.options, self.cameras.scenes, self._per_scene
        of_cameras = SharedRows.over(recorder, v_cameras, per_scene, options)
        of_weights = None if v_weights is None else SharedRows.over(recorder, v_weights, per_scene, options, scenes)
        self._dispatch(
            recorder,
            "shadeBackward",
            (*linear_groups(per_scene)[:2], scenes),
            v_colors=v_colors,
            v_means=v_means,
            v_features=v_features,
            v_cameras=of_cameras,
            v_weights=of_weights,
            ADD_TO_MEANS=add_to_means,
        )
        if options.camera_gradient:
            of_cameras.record_sum(recorder)
        if of_weights is not None:
            of_weights.record_sum(recorder)

    @property
    def _per_scene(self) -> int:
        return self.means.size // 3 // self.cameras.scenes

    def _dispatch(self, recorder: Recorder, entry: str, groups: tuple[int, int, int], **arguments: Any) -> None:
        constants: dict[str, Any] = {**self.color.constants()}
        if self.features.halves is not None:
            constants["HALVES"] = True
        recorder.dispatch(
            "shade",
            entry,
            groups,
            means=self.means,
            gaussians_per_scene=self._per_scene,
            features=self.features,
            weights=self.weights,
            # Directions do not depend on a lens.
            cameras=replace(self.cameras, lenses=None),
            radii=self.radii,
            splats=self.colors.size // 3,
            ids=self.ids,
            options=self.options,
            **constants,
            **arguments,
        )


@graph_break
def shade(
    means: Tensor,
    features: Tensor,
    viewmats: Tensor,
    radii: Tensor,
    color: int | ColorModel,
    options: Options | None = None,
    *,
    weights: Tensor | None = None,
    ids: SplatIds = DENSE,
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
        options: how gradients of cameras and weights add up, as `project` is told.
        weights: [W] of all Gaussians, where the model has some.
        ids: from `project` too; of packed splats, `radii` and the result are [M, ·].
        as_color: or the sum of the harmonics as it is.

    Differentiable in means, features, viewmats and weights.

    Raises:
        SplatError: one of these is not of such a type, or on another device than the others.
    """
    tensors = {"means": means, "features": features, "viewmats": viewmats, "weights": weights}
    check_tensors(tensors, halves=("features",))
    device = device_for(means, device)
    model = harmonics(color, as_color) if isinstance(color, int) else color
    options = options or Options.on(device)
    each_camera = features.dim() - (1 if isinstance(color, int) else 0) == means.dim() + 1
    if not each_camera:
        return cast(Tensor, _Shade.apply(means, features, viewmats, radii, weights, model, options, ids, device))
    # Each camera has Gaussians of its own: it is a scene.
    gaussians, cameras = means.shape[-2], viewmats.shape[-3]
    if ids.images is not None and ids.gaussians is not None:
        images, of_scene = (as_tensor(a, means).view(torch.int32) for a in (ids.images, ids.gaussians))
        own = device.memory.array((images * gaussians + of_scene % gaussians).view(torch.uint32))
        ids = replace(ids, gaussians=own)
    means = means[..., None, :, :].expand(*viewmats.shape[:-2], gaussians, 3)
    radii = radii if ids.packed else radii[..., None, :, :]
    colors = _Shade.apply(means, features, viewmats[..., None, :, :], radii, weights, model, options, ids, device)
    return cast(Tensor, colors if ids.packed else colors.reshape(*viewmats.shape[:-3], cameras, gaussians, 3))


class _Shade(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        means, features, viewmats, radii, weights, *others = arguments
        work, device = _shading(*arguments), others[-1]
        recorder = device.record()
        work.record(recorder)
        recorder.submit()
        save_state(ctx, (work, device), means, features, viewmats, radii, weights)
        return as_tensor(work.colors, means)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, v_colors: Tensor) -> tuple[Tensor | None, ...]:
        work, device = load_state(ctx)
        _, _, features, viewmats, *_ = ctx.saved_tensors
        v = _gradients(work, device, v_colors, viewmats.shape[:-2], features, of_cameras=ctx.needs_input_grad[2])
        return v.means, v.features, v.viewmats, None, v.weights, *(None,) * 4


class ShadingGradients(NamedTuple):
    """Of the tensors that `shade` was given."""

    means: Tensor
    features: Tensor
    viewmats: Tensor | None
    weights: Tensor | None


@graph_break
def shade_backward(
    means: Tensor,
    features: Tensor,
    viewmats: Tensor,
    radii: Tensor,
    color: int | ColorModel,
    v_colors: Tensor,
    options: Options | None = None,
    *,
    weights: Tensor | None = None,
    ids: SplatIds = DENSE,
    as_color: bool = True,
    device: Device | str | None = None,
) -> ShadingGradients:
    """The gradients of `shade` without autograd: what it was given, features of Gaussians, and the gradient of its colours."""
    device = device_for(means, device)
    model = harmonics(color, as_color) if isinstance(color, int) else color
    work = _shading(means, features, viewmats, radii, weights, model, options or Options.on(device), ids, device)
    return _gradients(work, device, v_colors, viewmats.shape[:-2], features, of_cameras=True)


def _shading(
    means: Tensor,
    features: Tensor,
    viewmats: Tensor,
    radii: Tensor,
    weights: Tensor | None,
    model: ColorModel,
    options: Options,
    ids: SplatIds,
    device: Device,
) -> Shading:
    empty = device.memory.empty

    def array(tensor: Tensor) -> Array:
        return device.memory.array(tensor.detach().contiguous())

    # Only the cameras' centres matter: intrinsics, image size and lenses are never read.
    cameras = Cameras.of(device.memory, viewmats, viewmats.new_zeros(*viewmats.shape[:-2], 3, 3), 0, 0)
    halves = features.dtype == torch.float16
    stored = features.numel() // max(means.numel() // 3, 1)
    numbers = FeatureArrays.of(array(words_of(features) if halves else features), stored, halves)
    shared = None if weights is None else array(weights)
    colors = empty((*radii.shape[:-1], 3))
    return Shading(array(means), numbers, cameras, array(radii), colors, model, options, ids, shared)


def _gradients(
    work: Shading, device: Device, v_colors: Tensor, lead: torch.Size, features: Tensor, of_cameras: bool
) -> ShadingGradients:
    """Those of features like these; of cameras [*lead, 4, 4] only if asked for."""
    work = replace(work, options=replace(work.options, camera_gradient=of_cameras))
    empty, stored, halves = device.memory.empty, work.features.stored, work.features.halves is not None
    v_means = empty(work.means.shape)
    v_features = empty((work.means.size // 3, -(-stored // 2)) if halves else features.shape)
    v_cameras = empty((work.cameras.count, CAMERA_ROW))
    v_weights = None if work.weights is None else empty(work.weights.shape)
    recorder = device.record()
    recorder.clear(v_cameras)
    if v_weights is not None:
        recorder.clear(v_weights)
    view = StridedRows(*side_by_side(device.memory, v_colors.numel() // 3, (v_colors, 3)))
    of_features = FeatureArrays.of(v_features, stored, halves)
    work.record_backward(recorder, view, v_means, of_features, v_cameras, v_weights=v_weights)
    recorder.submit()
    v_viewmats = camera_gradients(as_tensor(v_cameras, v_colors))[0].unflatten(0, lead) if of_cameras else None
    found = as_tensor(v_features, v_colors)
    if halves:
        found = found.view(torch.float16)[:, :stored].reshape(features.shape)
    weights = None if v_weights is None else as_tensor(v_weights, v_colors)
    return ShadingGradients(as_tensor(v_means, v_colors), found, v_viewmats, weights)
