"""Stage 2, features of Gaussians → colours (kernels/shade.slang), and its `autograd.Function`."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor

from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import (
    Stage,
    Tangents,
    Untransformed,
    first_derivative,
    forward_graph_break,
    graph_break,
    load_state,
    save_state,
)
from splat_py.gpu.device import Device, device_for
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.tensors import as_tensor, check_shape, check_tensors, side_by_side, words_of
from splat_py.render.cameras import CAMERA_ROW, Cameras, SharedRows, camera_gradients
from splat_py.render.colors import (
    ColorModel,
    harmonics,
)
from splat_py.render.options import Options
from splat_py.render.splats import DENSE, SplatIds, StridedRows


@dataclass(frozen=True)
class FeatureArrays:
    """Features of N Gaussians, `stored` numbers each, or their gradients: floats, or halves, two per word (`words_of`).

    Gradients of halves have rows of whole words: [N, ⌈stored / 2⌉].
    """

    floats: Array | None
    fours: Array | None
    halves: Array | None
    stored: int

    @classmethod
    def of(cls, array: Array, stored: int, halves: bool = False) -> Self:
        """Wrap the array that holds the features."""
        if halves:
            return cls(None, None, array.as_uint32, stored)
        return cls(None, array, None, stored) if stored % 4 == 0 else cls(array, None, None, stored)


@dataclass(frozen=True)
class Shading:
    """Features of N Gaussians, C cameras that see them, and the colours that they see, zero if culled.

    Shapes are those of dense splats; packed splats have M instead of C, N.
    """

    means: Array  # [N, 3]
    features: FeatureArrays  # at least as many numbers as `color` uses; spherical harmonics [N, K, 3]
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
        self._dispatch(recorder, "shadeForward", linear_groups(self.colors.size // 3), colors=self.colors, learnt=None)

    def record_tangents(
        self,
        recorder: Recorder,
        d_colors: Array,
        d_means: Array,
        d_features: Array | None,
        d_viewmats: Array,
        d_weights: Array | None,
    ) -> None:
        """Write the tangents [directions, ...] of `colors`, from those of means, features, cameras and weights, all float32."""
        recorder.stage("shade tangents")
        floats, fours = (d_features, None) if self.features.fours is None else (None, d_features)
        self._dispatch(
            recorder,
            "shadeTangents",
            linear_groups(self.colors.size // 3),
            directions=d_colors.size // max(self.colors.size, 1),
            v_means=d_means,
            v_features=FeatureArrays(floats, fours, None, self.features.stored),
            D_FEATURES=d_features is not None,
            d_weights=d_weights,
            d_viewmats=d_viewmats,
            colors=d_colors,
            learnt=None,
        )

    def record_backward(
        self,
        recorder: Recorder,
        v_colors: StridedRows,
        v_means: Array,
        v_features: FeatureArrays | None,
        v_cameras: Array | None,
        add_to_means: bool = False,
        v_weights: Array | None = None,
        summed: bool = False,
        learnt: object = None,
    ) -> None:
        """Turn gradients of colours into those of features and means, overwritten (with `add_to_means`, means added to).
        With `Options.camera_gradient`, cameras' are added to. `summed` adds up features' over cameras before they are stored.
        Features in float4s that one camera sees may learn at once, as `AdamRows` (kernels/adam.slang), without `v_features`."""
        recorder.stage("shade backward")
        options, scenes, per_scene = self.options, self.cameras.scenes, self._per_scene
        of_cameras = None if v_cameras is None else SharedRows.over(recorder, v_cameras, per_scene, options)
        of_weights = None
        if v_weights is not None:
            recorder.clear(v_weights)
            of_weights = SharedRows.over(recorder, v_weights, per_scene, options, scenes)
        self._dispatch(
            recorder,
            "shadeBackward",
            (*linear_groups(per_scene)[:2], scenes),
            v_colors=v_colors,
            v_means=v_means,
            v_features=v_features,
            learnt=learnt,
            v_cameras=of_cameras,
            v_weights=of_weights,
            ADD_TO_MEANS=add_to_means,
            SUMMED=summed or self.features.halves is not None,
        )
        if of_cameras is not None:
            of_cameras.record_sum(recorder)
        if of_weights is not None:
            of_weights.record_sum(recorder)

    @property
    def _per_scene(self) -> int:
        return self.means.size // 3 // self.cameras.scenes

    def _dispatch(self, recorder: Recorder, entry: str, groups: tuple[int, int, int], **arguments: Any) -> None:
        recorder.dispatch(
            "shade",
            entry,
            groups,
            means=self.means,
            gaussians_per_scene=self._per_scene,
            # WebGPU binds no array twice.
            features=self.features if arguments["learnt"] is None else replace(self.features, fours=None),
            weights=self.weights,
            # Directions do not depend on a lens.
            cameras=replace(self.cameras, lenses=None),
            radii=self.radii,
            splats=self.colors.size // 3,
            ids=self.ids,
            options=self.options,
            HALVES=self.features.halves is not None,
            FOURS=self.features.fours is not None,
            LEARNS=arguments["learnt"] is not None,
            FEATURES=self.color.features,
            WEIGHTS=self.color.weights,
            Color=self.color.type,
            **arguments,
        )


@forward_graph_break
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
    """Return the colours [..., C, N, 3] that C cameras see along the directions from their centres to the means.

    Args:
        means: [..., N, 3].
        features: [..., N, F] or, per camera, [..., C, N, F]. Spherical-harmonics coefficients [..., N, K, 3] or
            [..., C, N, K, 3], K ≥ (degree + 1)². The device stores float16 as halves, but computes in float32 and rounds only
            the final gradients.
        viewmats: [..., C, 4, 4].
        radii: [..., C, N, 2] from `project`: culled splats stay black.
        color: the degree of spherical harmonics, 0 to 4, max(0, Σ Y_k(d) sh_k + ½); or another model.
        options: the options of `project`: they choose how gradients of cameras and weights add up.
        weights: [W] that all Gaussians share, if the model has weights.
        ids: also from `project`; for packed splats, `radii` and the result are [M, ·].
        as_color: if False, return the sum of the harmonics itself.

    Differentiable in means, features, viewmats and weights.

    Raises:
        SplatError: a tensor has the wrong shape or dtype, or is on another device than the others.
    """
    tensors = {"means": means, "features": features, "viewmats": viewmats, "weights": weights}
    check_tensors(tensors, halves=("features",))
    device = device_for(means, device)
    model = harmonics(color, as_color) if isinstance(color, int) else color
    options = options or Options.on(device)
    each_camera = features.dim() - (1 if isinstance(color, int) else 0) == means.dim() + 1
    scenes, views = tuple(means.shape[:-2]), (viewmats.shape[-3] if viewmats.dim() > 2 else "C",)
    sides = ("K", 3) if isinstance(color, int) else ("F",)
    check_shape("means", means, (*scenes, "N", 3))
    check_shape("viewmats", viewmats, (*scenes, *views, 4, 4))
    check_shape("features", features, (*scenes, *(views if each_camera else ()), means.shape[-2], *sides))
    check_shape("radii", radii, ("M", 2) if ids.packed else (*scenes, *views, means.shape[-2], 2))
    if not each_camera:
        return cast(Tensor, _Shade.apply(means, features, viewmats, radii, weights, model, options, ids, device)[0])
    # Each camera has its own features, so it counts as a scene.
    gaussians, cameras = means.shape[-2], viewmats.shape[-3]
    if ids.packed:
        ids = Untransformed.apply(_ids_of_cameras, ids, gaussians, device)
    means = means[..., None, :, :].expand(*viewmats.shape[:-2], gaussians, 3)
    radii = radii if ids.packed else radii[..., None, :, :]
    colors, _ = _Shade.apply(means, features, viewmats[..., None, :, :], radii, weights, model, options, ids, device)
    return cast(Tensor, colors if ids.packed else colors.reshape(*viewmats.shape[:-3], cameras, gaussians, 3))


def _ids_of_cameras(ids: SplatIds, gaussians: int, device: Device) -> SplatIds:
    """The ids of packed splats in scenes of one camera each."""
    assert ids.images is not None and ids.gaussians is not None
    device.flush()
    images, of_scene = (array.tensor().view(torch.int32) for array in (ids.images, ids.gaussians))
    return replace(ids, gaussians=device.memory.array((images * gaussians + of_scene % gaussians).view(torch.uint32)))


def shade_channels(
    means: Tensor, features: Tensor, viewmats: Tensor, radii: Tensor, degree: int, *, device: Device, **options: Any
) -> Tensor:
    """`shade` with spherical harmonics [..., K, D] of any number D of channels, three at a time as the kernel takes them."""
    channels = features.shape[-1]
    if channels == 3:
        return shade(means, features, viewmats, radii, degree, device=device, **options)
    # Slices, not torch.split: torch names an in-place change of a slice's base as such.
    padded = torch.nn.functional.pad(features, (0, -channels % 3)) if channels % 3 else features
    parts = (padded[..., first : first + 3] for first in range(0, channels, 3))
    shaded = [shade(means, part, viewmats, radii, degree, device=device, **options) for part in parts]
    device.flush()
    return torch.cat(shaded, -1)[..., :channels]


class _Shade(Stage):
    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Any]:
        work, device = _shading(*arguments), arguments[-1]
        with device.recording() as recorder:
            work.record(recorder)
        return as_tensor(work.colors, arguments[0]), (work, device)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        save_state(ctx, output[-1], *inputs[:5])
        ctx.set_materialize_grads(False)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        work, device = load_state(ctx)
        _, means, features, viewmats, _, weights = ctx.saved_tensors

        def push(directions: tuple[int, ...], given: list[Any]) -> tuple[Tensor, ...]:
            arrays: list[Any] = [None if t is None else device.memory.array(t.float()) for t in given]
            d_colors = device.memory.empty((*directions, *work.colors.shape))
            with device.recording() as recorder:
                work.record_tangents(recorder, d_colors, *arrays)
            return (as_tensor(d_colors, given[0]),)

        return *Tangents.of(push, (means, features, viewmats, weights), (*tangents[:3], tangents[4]), optional=(1,)), None

    @staticmethod
    @first_derivative
    def backward(ctx: Any, v_colors: Tensor, _: None) -> tuple[Tensor | None, ...]:
        work, device = load_state(ctx)
        _, _, features, viewmats, *_ = ctx.saved_tensors
        v = _gradients(work, device, v_colors, viewmats.shape[:-2], features, of_cameras=ctx.needs_input_grad[2])
        return v.means, v.features, v.viewmats, None, v.weights, *(None,) * 4


class ShadingGradients(NamedTuple):
    """Gradients of the tensors given to `shade`."""

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
    """Return the gradients of `shade` without autograd, given those of its colours; per-camera features are not supported."""
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
        return device.memory.array(tensor)

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
    """Return gradients, those of features shaped like `features`, and with `of_cameras` those of cameras [*lead, 4, 4]."""
    work = replace(work, options=replace(work.options, camera_gradient=of_cameras))
    empty, stored, halves = device.memory.empty, work.features.stored, work.features.halves is not None
    v_means = empty(work.means.shape)
    v_features = empty((work.means.size // 3, -(-stored // 2)) if halves else features.shape)
    v_weights = None if work.weights is None else empty(work.weights.shape)
    view = StridedRows(*side_by_side(device.memory, v_colors.numel() // 3, (v_colors, 3)))
    of_features = FeatureArrays.of(v_features, stored, halves)
    with device.recording() as recorder:
        v_cameras = recorder.zeros((work.cameras.count, CAMERA_ROW)) if of_cameras else None
        # CPU drivers have memory for registers.
        summed = device.software and work.cameras.per_scene > 1
        work.record_backward(recorder, view, v_means, of_features, v_cameras, v_weights=v_weights, summed=summed)
    if of_cameras or halves:
        device.flush()
    v_viewmats = None if v_cameras is None else camera_gradients(as_tensor(v_cameras, v_colors))[0].unflatten(0, lead)
    found = as_tensor(v_features, v_colors)
    if halves:
        found = found.view(torch.float16)[:, :stored].reshape(features.shape)
    weights = None if v_weights is None else as_tensor(v_weights, v_colors)
    return ShadingGradients(as_tensor(v_means, v_colors), found, v_viewmats, weights)
