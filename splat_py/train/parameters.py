"""The Gaussians under training, their gradients and their optimiser, on the device; their means over the last epochs; and their
3D smoothing filters."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from splat_py.fit.steps import Adam, AdamArrays, AdamRows, with_moments
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, UserType, linear_groups
from splat_py.gpu.sources import constant
from splat_py.render.cameras import Cameras
from splat_py.render.splats import GaussianArrays, StridedRows
from splat_py.scene.gaussians import SH_C0, Gaussians
from splat_py.shaders.declarations import SlangSource
from splat_py.train.config import TrainConfig

# Parameter groups, in the order of `Gaussians`' fields.
GROUPS = ("means", "quats", "log_scales", "logit_opacities", "sh")
# Splat parameters, [N, E]; features [N, F] and weights [W] of colours other than harmonics, instead of "sh".
EXTRAS, FEATURES, WEIGHTS = "extras", "features", "weights"

# Names in a checkpoint: the suffix of means' names; and the filters' standard deviations [N], world units, 0 for Gaussians
# that no camera has seen.
MEAN, FILTER = ".mean", "filter_3d"
# Parameters are averaged over so many epochs, a tenth of the run at most, in which Gaussians are neither added nor removed.
_EPOCHS, _LARGEST_SHARE = 2, 10
# Steps after which filters are updated, as Gaussians move.
_FILTER_EVERY = 100

_RUN = constant("kernels/optimize", "RUN")
_ADAM = Adam(epsilon=1e-15)

State = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class MoreOfMeans:
    """Gradients that belong to the means of splats along rays: `columns` x and y of their rows, times depth / focal length."""

    columns: tuple[int, int]
    depths: Array
    focal: tuple[float, float] = (1.0, 1.0)


def groups_of(state: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of the state's parameter groups that have one row per Gaussian."""
    return tuple(name for name in (*GROUPS, FEATURES, EXTRAS) if name in state)


class Parameters:
    """N Gaussians with raw parameters, Adam's two moments and the statistics of densification.

    `state` and its inverse, the constructor, carry everything that training changes: "means", …, "sh" or "features" and
    "weights", and "extras" if splats have any, each with "….m" and "….v"; and "gradient_norms", "times_seen", "max_radii", [N].
    The constructor uses device arrays without copying them.
    """

    STATISTICS = ("gradient_norms", "times_seen", "max_radii")
    v_features = cached_property[Array](lambda self: self.device.memory.empty(self.features.shape))

    def __init__(self, device: Device, state: Mapping[str, NDArray[np.float32] | Array]) -> None:
        memory = device.memory
        self.device = device
        # The arrays that `state` copies, on the device.
        self.arrays = {name: v if isinstance(v, Array) else memory.array(v) for name, v in state.items()}
        self.count = state["means"].shape[0]
        means, quats, scales, opacities = (self.arrays[name] for name in GROUPS[:4])
        self.gaussians = GaussianArrays(means, quats, scales, opacities, extras=self.arrays.get(EXTRAS))
        self.features = self.arrays["sh" if "sh" in state else FEATURES]
        self.weights = self.arrays.get(WEIGHTS)
        empty = device.memory.empty
        self.v_gaussians = self.gaussians.map(lambda array: empty(array.shape))
        self.v_weights = None if self.weights is None else empty(self.weights.shape)

    @classmethod
    def fresh(cls, device: Device, gaussians: Gaussians) -> Self:
        """Make the parameters at the start of training."""
        state: State = {name: getattr(gaussians, name).numpy() for name in GROUPS}
        if gaussians.params:
            state[EXTRAS] = torch.stack(list(gaussians.params.values()), -1).numpy()
        if gaussians.features is not None:
            del state["sh"]
            state[FEATURES] = gaussians.features.numpy()
        if gaussians.weights is not None and len(gaussians.weights):
            state[WEIGHTS] = gaussians.weights.numpy()
        state |= {other: np.zeros_like(values) for name, values in state.items() for other in with_moments(name)[1:]}
        for name in cls.STATISTICS:
            state[name] = np.zeros(len(gaussians), np.float32)
        return cls(device, state)

    def state(self) -> State:
        """Copy everything to the host. No kernel that writes it may still be running."""
        return {name: array.numpy().copy() for name, array in self.arrays.items()}

    def gaussian_state(self) -> State:
        """Copy the Gaussians' parameters alone to the host."""
        return {name: self.arrays[name].numpy().copy() for name in averaged_groups(self.arrays)}

    def record_statistics(
        self,
        recorder: Recorder,
        v_splats: Array,
        radii: Array,
        width: int,
        height: int,
        status: Array,
        statistics: Mapping[str, Array] | None = None,
        more: MoreOfMeans | None = None,
    ) -> None:
        """Add a photograph's screen-space gradients to `statistics`, by default the parameters' own (kernels/densify.slang)."""
        recorder.stage("statistics")
        arrays: dict[str, Any] = {name: (statistics or self.arrays)[name] for name in self.STATISTICS}
        fx, fy = more.focal if more else (1.0, 1.0)
        columns = {"PER_DEPTH_X": more.columns[0], "PER_DEPTH_Y": more.columns[1]} if more else {}
        recorder.dispatch(
            "densify",
            "addStatistics",
            linear_groups(self.count),
            gaussians=self.count,
            stride=v_splats.shape[-1],
            offset=0,
            half_width=width / 2 / fx,
            half_height=height / 2 / fy,
            larger_side=max(width, height),
            status=status,
            radii=radii,
            depths=more.depths if more else None,
            v_means2d=v_splats,
            **arrays,
            **columns,
        )

    def harmonics_step(self, config: TrainConfig, step: int, status: Array) -> AdamRows:
        """Return the step of Adam of harmonics, which they take in their backward pass if `config.learns_in_shading`."""
        head_rate = config.short_run_lr_scale * config.sh0_lr * math.sqrt(config.photographs)
        settings = _ADAM.of_batch(config.photographs).settings(step, head_rate / 20)
        return AdamRows.of(self.arrays, "sh", settings=settings, head_rate=head_rate, status=status)

    def record_adam(
        self,
        recorder: Recorder,
        config: TrainConfig,
        step: int,
        scene_scale: float,
        v_extras: StridedRows | None,
        status: Array,
        in_shading: bool,
    ) -> None:
        """Take one Adam step on every group, except harmonics if they learn `in_shading` (kernels/optimize.slang). Gradients
        are means over `config.photographs`."""
        recorder.stage("adam")
        v, faster, haste = self.v_gaussians, math.sqrt(config.photographs), config.short_run_lr_scale
        # Learning rates and gradients.
        groups: dict[str, tuple[float, Array]] = {
            "means": (config.means_lr_at(step, scene_scale), v.means),
            "quats": (config.quats_lr * math.sqrt(haste) * faster, v.quats),
            "log_scales": (config.scales_lr * math.sqrt(haste) * faster, v.scales),
            "logit_opacities": (config.opacities_lr * math.sqrt(haste) * faster, v.opacities),
        }
        if "sh" not in self.arrays:
            groups[FEATURES] = config.color_lr * faster, self.v_features
        if self.v_weights is not None:
            groups[WEIGHTS] = config.color_lr * faster, self.v_weights
        adam = _ADAM.of_batch(config.photographs)

        def record(name: str, rate: float, gradients: Array, **others: Any) -> None:
            arguments: dict[str, Any] = {"first_column": 0, "active": 1, "head_rate": 0.0, "least": 0.0, "largest": 0.0}
            arguments |= {"ROW": 1, "HEAD": 0} | others
            learnt, settings = AdamArrays.of(self.arrays, name), adam.settings(step, rate)
            arguments |= {"learnt": learnt, "gradients": gradients, "settings": settings, "status": status}
            record_floats(recorder, "adam", self.arrays[name], **arguments)

        for name, (rate, gradients) in groups.items():
            record(name, rate, gradients)
        if "sh" in self.arrays and not in_shading:
            harmonics, active = self.harmonics_step(config, step, status), 3 * (config.degree_at(step) + 1) ** 2
            others: dict[str, Any] = {"ROW": 3 * self.features.shape[1], "HEAD": 3, "head_rate": harmonics.head_rate}
            record("sh", harmonics.settings.rate, self.v_features, active=active, **others)
        if v_extras is None:
            return
        params = list(config.parameters().values())
        others = {"ROW": len(params), "STRIDE": v_extras.stride, "OFFSET": v_extras.offset}
        # Built-in types have one parameter; parameters of users' types have no bounds.
        if math.isfinite(params[0].least) and math.isfinite(params[0].largest):
            others |= {"BOUNDED": True, "least": params[0].least, "largest": params[0].largest}
        first = 0
        for rate_given, columns in groupby(param.rate for param in params):
            rate, last = (config.splat_param_lr if rate_given is None else rate_given) * faster, first + len(list(columns))
            record(EXTRAS, rate, v_extras.rows, **others, first_column=first, active=last)
            first = last


def record_floats(recorder: Recorder, entry: str, array: Array, **arguments: Any) -> None:
    """Record a kernel of kernels/optimize.slang, whose threads have `RUN` floats of an array each."""
    recorder.dispatch("optimize", entry, linear_groups(-(-array.size // _RUN)), count=array.size, **arguments)


def first_averaged(config: TrainConfig, photographs: int) -> int:
    """Return the first step whose parameters are averaged: two epochs of `photographs` before the end, or a tenth of the run if
    that is shorter."""
    return config.steps - min(_EPOCHS * (photographs // config.photographs), config.steps // _LARGEST_SHARE)


class ParameterMeans:
    """The result of a run: means of all parameters over the steps from `first` on (kernels/optimize.slang).

    Each Adam step pulls the parameters towards its own photograph; means of whole epochs favour none (Polyak & Juditsky 1992;
    Izmailov et al. 2018). If the `state` of a checkpoint after `step` steps lacks means although `first` is over, because a run
    was extended by few steps, the missed steps count with the checkpoint's parameters.
    """

    def __init__(self, device: Device, first: int, step: int = 0, state: State | None = None) -> None:
        self._first = first
        self._means: dict[str, Array] = {}
        if state is not None and step > first:
            self._means = {name: device.memory.array(state.get(name + MEAN, state[name])) for name in averaged_groups(state)}

    def record(self, recorder: Recorder, parameters: Parameters, step: int, status: Array) -> None:
        """Add a step's parameters to the means; recorded after Adam."""
        if step < self._first:
            return
        recorder.stage("means")
        names = averaged_groups(parameters.arrays)
        if not self._means:
            self._means = {name: recorder.zeros(parameters.arrays[name].shape) for name in names}
        share = 1 / (step - self._first + 1)
        for name in names:
            arrays: dict[str, Any] = {"parameters": parameters.arrays[name], "parameter_means": self._means[name]}
            record_floats(recorder, "addToMeans", self._means[name], share=share, status=status, **arrays)

    def restart(self, first: int) -> None:
        """Begin again with the step `first`, as the rows are others now, unless the means begin later."""
        self._first, self._means = max(self._first, first), {}

    def state(self) -> State:
        """Copy the means to the host, by their names in checkpoints. No step may still be running."""
        return {name + MEAN: array.numpy().copy() for name, array in self._means.items()}


def averaged_groups(state: Mapping[str, Any]) -> list[str]:
    """Return the names of a state's arrays that are averaged: all parameters of the scene."""
    return [*groups_of(state), *([WEIGHTS] if WEIGHTS in state else ())]


class Filter3D:
    """Mip-Splatting's 3D smoothing filters (Yu et al. 2024, section 4.1) of Gaussians under training, and the Gaussians
    filtered and activated (kernels/filter_3d.slang). `cameras` yields the cameras that see the Gaussians, one image each, with
    their types in slang/splat or the user's; `near` is the depth of their near plane, world units."""

    def __init__(
        self,
        device: Device,
        cameras: Callable[[], Iterable[tuple[Cameras, str | UserType]]],
        near: float,
        state: State | None = None,
    ) -> None:
        self._device, self._cameras, self._near = device, cameras, near
        self._raw: GaussianArrays | None = None
        self._smooth: GaussianArrays | None = None
        self._filters = device.memory.array(state[FILTER]) if state and FILTER in state else None

    def record(self, recorder: Recorder, raw: GaussianArrays, step: int, status: Array) -> GaussianArrays:
        """Return the filtered Gaussians of a step, from `raw` as the optimiser stores them. Filters are updated if that is due
        or `raw` has other Gaussians, unless `status` says that the step does not count (kernels/status.slang)."""
        self._find(recorder, raw, status, step % _FILTER_EVERY == 0)
        assert self._filters is not None and self._smooth is not None
        self._dispatch(recorder, "smoothForward", raw, scales=self._smooth.scales, opacities=self._smooth.opacities)
        return self._smooth

    def record_backward(self, recorder: Recorder, v_gaussians: GaussianArrays) -> None:
        """Turn gradients of `record`'s result into gradients of `raw`, in place."""
        recorder.stage("3D filter")
        assert self._raw is not None
        v = v_gaussians
        self._dispatch(recorder, "smoothBackward", self._raw, v_scales=v.scales, v_opacities=v.opacities)

    def state(self, raw: GaussianArrays) -> State:
        """Copy the filters to the host, for a checkpoint. No step may still be running."""
        with self._device.recording() as recorder:
            self._find(recorder, raw, self._device.memory.array(np.zeros(1, np.uint32)))
        assert self._filters is not None
        return {FILTER: self._filters.numpy().copy()}

    def _find(self, recorder: Recorder, raw: GaussianArrays, status: Array, due: bool = False) -> None:
        recorder.stage("3D filter")
        if self._raw is None or self._raw.means is not raw.means:
            empty = self._device.memory.empty
            # A checkpoint already has its filters.
            due = due or self._raw is not None or self._filters is None
            self._filters = self._filters if self._raw is None and self._filters is not None else empty(raw.count)
            self._smooth = replace(raw, scales=empty(raw.scales.shape), opacities=empty(raw.opacities.shape))
            self._raw = raw
        if due:
            for index, (camera, model) in enumerate(self._cameras()):
                constants: dict[str, Any] = {} if model == "Pinhole" else {"CameraModel": model}
                self._dispatch(
                    recorder,
                    "findFilters",
                    raw,
                    status=status,
                    means=raw.means,
                    cameras=camera,
                    near=self._near,
                    first=int(index == 0),
                    **constants,
                )

    def _dispatch(self, recorder: Recorder, entry: str, raw: GaussianArrays, **arguments: Any) -> None:
        arguments |= {"filters": self._filters, "log_scales": raw.scales, "logits": raw.opacities}
        recorder.dispatch("filter_3d", entry, linear_groups(raw.count), gaussians=raw.count, **arguments)


def filtered(state: State) -> State:
    """Bake a state's filters, if it has any, into scales and opacities, so that every viewer shows them."""
    if FILTER not in state:
        return state
    log_scales, logits, filters = (state[name].astype(np.float64) for name in ("log_scales", "logit_opacities", FILTER))
    with np.errstate(divide="ignore"):
        grown = np.logaddexp(2 * log_scales, 2 * np.log(filters)[:, None]) / 2
    log_opacities = np.minimum(-np.logaddexp(0, -logits) + (log_scales - grown).sum(1), -1e-12)
    logits = log_opacities - np.log(-np.expm1(log_opacities))
    return {**state, "log_scales": grown.astype(np.float32), "logit_opacities": logits.astype(np.float32)}


def gaussians_of(
    state: State, config: TrainConfig, splat: "str | UserType | SlangSource", color: "str | UserType | SlangSource"
) -> Gaussians:
    """Return the Gaussians of a state, with the means of parameters that it has; they share its arrays."""
    state = filtered({name: state.get(name + MEAN, values) for name, values in state.items() if not name.endswith(MEAN)})
    tensors = {name: torch.from_numpy(state[name]) for name in groups_of(state)}
    features = tensors.get(FEATURES)
    weights = torch.from_numpy(state[WEIGHTS]) if WEIGHTS in state else None
    params = {name: tensors[EXTRAS][:, i].contiguous() for i, name in enumerate(config.parameters())}
    if features is None:
        sh = tensors["sh"]
    else:
        # Harmonics for viewers that know no other colours.
        base = torch.nn.functional.pad(features[:, :3], (0, max(3 - features.shape[1], 0)))
        sh = (base / SH_C0)[:, None].contiguous()
    means, quats, log_scales, logit_opacities = (tensors[name] for name in GROUPS[:4])
    antialiased = config.antialiased
    return Gaussians(means, quats, log_scales, logit_opacities, sh, params, splat, color, features, weights, antialiased)
