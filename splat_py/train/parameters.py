"""The Gaussians under training, their gradients and their optimiser, on the device; their means over the last epochs; and their
3D smoothing filters."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from splat_py.fit.steps import Adam
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, UserType, linear_groups
from splat_py.gpu.sources import constant
from splat_py.render.cameras import Cameras
from splat_py.render.splats import GaussianArrays, StridedRows
from splat_py.scene.gaussians import Gaussians
from splat_py.train.config import TrainConfig

# Parameter groups, in the order of `Gaussians`' fields.
GROUPS = ("means", "quats", "log_scales", "logit_opacities", "sh")
# Parameters of splats that are no Gaussians, [N, E]; and colours that are no harmonics, in the place of "sh", [N, F] and [W].
EXTRAS, FEATURES, WEIGHTS = "extras", "features", "weights"
MOMENTS = ("m", "v")

# In a checkpoint: the end of the names of means; and the filters' standard deviations [N], world units, 0 of Gaussians that no
# camera has seen.
MEAN, FILTER = ".mean", "filter_3d"
# Parameters are averaged over so many epochs, or this share of a run, in which Gaussians are neither added nor removed.
_EPOCHS, _LARGEST_SHARE = 2, 10
# Gaussians move: filters are found anew every so many steps.
_FILTER_EVERY = 100

# Floats a thread.
_ADAM_RUN = _MEANS_RUN = constant("kernels/optimize", "RUN")
_ADAM = Adam(epsilon=1e-15)

State = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class AdamArrays:
    """Parameters on the device and Adam's moments of each (kernels/adam.slang)."""

    parameters: Array
    first_moments: Array
    second_moments: Array

    @classmethod
    def of(cls, arrays: Mapping[str, Array], name: str) -> Self:
        """The arrays of a name, as checkpoints have them: the parameters' own, and with the moments' endings."""
        return cls(*(arrays[other] for other in with_moments(name)))


def with_moments(name: str) -> list[str]:
    """A parameter's name in a state, and those of Adam's moments."""
    return [name, *(f"{name}.{moment}" for moment in MOMENTS)]


def groups_of(state: Mapping[str, object]) -> tuple[str, ...]:
    """Its parameter groups that have a row a Gaussian."""
    return tuple(name for name in (*GROUPS, FEATURES, EXTRAS) if name in state)


class Parameters:
    """N Gaussians with raw parameters, Adam's two moments and the statistics of densification.

    `state` and its inverse, the constructor, carry everything that training changes: "means", …, "sh" or "features" and
    "weights", and "extras" if splats take any, each with "….m" and "….v"; and "gradient_norms", "times_seen", "max_radii", [N].
    The constructor takes arrays of the device as they are.
    """

    STATISTICS = ("gradient_norms", "times_seen", "max_radii")

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
        self.v_features = empty(self.features.shape)
        self.v_weights = None if self.weights is None else empty(self.weights.shape)

    @classmethod
    def fresh(cls, device: Device, gaussians: Gaussians) -> Self:
        """Parameters at the start of training."""
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
        """A copy of everything, on the host. Nothing that writes it may still be running."""
        return {name: array.numpy().copy() for name, array in self.arrays.items()}

    def gaussian_state(self) -> State:
        """A copy of the Gaussians alone."""
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
    ) -> None:
        """Add a photograph's screen-space gradients to the statistics, or to others than these (kernels/densify.slang)."""
        recorder.stage("statistics")
        arrays: dict[str, Any] = {name: (statistics or self.arrays)[name] for name in self.STATISTICS}
        recorder.dispatch(
            "densify",
            "addStatistics",
            linear_groups(self.count),
            gaussians=self.count,
            stride=v_splats.shape[-1],
            offset=0,
            half_width=width / 2,
            half_height=height / 2,
            larger_side=max(width, height),
            status=status,
            radii=radii,
            v_means2d=v_splats,
            **arrays,
        )

    def record_adam(
        self,
        recorder: Recorder,
        config: TrainConfig,
        step: int,
        scene_scale: float,
        v_extras: StridedRows | None,
        status: Array,
    ) -> None:
        """One step of Adam on every group (kernels/optimize.slang). Gradients are means over `config.photographs`."""
        recorder.stage("adam")
        v, faster, haste = self.v_gaussians, math.sqrt(config.photographs), config.short_run_lr_scale
        # Learning rates and gradients.
        groups: dict[str, tuple[float, Array]] = {
            "means": (config.means_lr_at(step, scene_scale), v.means),
            "quats": (config.quats_lr * math.sqrt(haste) * faster, v.quats),
            "log_scales": (config.scales_lr * math.sqrt(haste) * faster, v.scales),
            "logit_opacities": (config.opacities_lr * math.sqrt(haste) * faster, v.opacities),
        }
        if "sh" in self.arrays:
            groups["sh"] = haste * config.sh0_lr / 20 * faster, self.v_features
        else:
            groups[FEATURES] = config.color_lr * faster, self.v_features
        if self.v_weights is not None:
            groups[WEIGHTS] = config.color_lr * faster, self.v_weights
        if v_extras is not None:
            groups[EXTRAS] = config.splat_param_lr * faster, v_extras.rows
        adam = _ADAM.of_batch(config.photographs)
        for name, (rate, gradients) in groups.items():
            arguments: dict[str, Any] = {"active": 1, "head_rate": 0.0, "least": 0.0, "largest": 0.0, "ROW": 1, "HEAD": 0}
            if name == "sh":
                arguments |= {"ROW": 3 * self.features.shape[1], "HEAD": 3}
                arguments |= {"active": 3 * (config.degree_at(step) + 1) ** 2, "head_rate": haste * config.sh0_lr * faster}
            elif name == EXTRAS and v_extras is not None:
                limits = list(config.parameters().values())
                arguments |= {"active": len(limits), "ROW": len(limits), "STRIDE": v_extras.stride, "OFFSET": v_extras.offset}
                # Built-in types have one parameter; those of types of one's own have no bounds.
                least, largest = limits[0].least, limits[0].largest
                if math.isfinite(least) and math.isfinite(largest):
                    arguments |= {"BOUNDED": True, "least": least, "largest": largest}
            recorder.dispatch(
                "optimize",
                "adam",
                linear_groups(-(-self.arrays[name].size // _ADAM_RUN)),
                learnt=AdamArrays.of(self.arrays, name),
                gradients=gradients,
                status=status,
                settings=adam.settings(step, rate),
                count=self.arrays[name].size,
                **arguments,
            )


def first_averaged(config: TrainConfig, photographs: int) -> int:
    """The step from which on parameters are averaged, to the end: two epochs of so many photographs before it, or a tenth of
    the run."""
    return config.steps - min(_EPOCHS * (photographs // config.photographs), config.steps // _LARGEST_SHARE)


class ParameterMeans:
    """The result of a run: means of all parameters over the steps from `first` on (kernels/optimize.slang).

    Steps of Adam scatter parameters around what all photographs agree on, each towards its own; means of whole epochs favour
    none (Polyak & Juditsky 1992; Izmailov et al. 2018). Where the `state` of a checkpoint after `step` steps lacks means
    although `first` is over, as of a run that is extended by few steps, those that have been missed count as if they had left
    what the checkpoint has.
    """

    def __init__(self, device: Device, first: int, step: int = 0, state: State | None = None) -> None:
        self._first = first
        self._memory = device.memory
        self._means: dict[str, Array] = {}
        if state is not None and step > first:
            self._means = {name: device.memory.array(state.get(name + MEAN, state[name])) for name in averaged_groups(state)}

    def record(self, recorder: Recorder, parameters: Parameters, step: int, status: Array) -> None:
        """After Adam of a step."""
        if step < self._first:
            return
        recorder.stage("means")
        names = averaged_groups(parameters.arrays)
        if not self._means:
            self._means = {name: self._memory.empty(parameters.arrays[name].shape) for name in names}
            for array in self._means.values():
                recorder.clear(array)
        for name in names:
            recorder.dispatch(
                "optimize",
                "addToMeans",
                linear_groups(-(-self._means[name].size // _MEANS_RUN)),
                count=self._means[name].size,
                share=1 / (step - self._first + 1),
                status=status,
                parameters=parameters.arrays[name],
                parameter_means=self._means[name],
            )

    def state(self) -> State:
        """A copy on the host, by the names that checkpoints have. No step may still be running."""
        return {name + MEAN: array.numpy().copy() for name, array in self._means.items()}


def averaged_groups(state: Mapping[str, Any]) -> list[str]:
    """The arrays of a state that are averaged: all parameters of the scene."""
    return [*groups_of(state), *([WEIGHTS] if WEIGHTS in state else ())]


def averaged(state: State) -> State:
    """A state's Gaussians with their means, if it has any, in the place of what the last step left."""
    return {name: state.get(name + MEAN, values) for name, values in state.items() if not name.endswith(MEAN)}


class Filter3D:
    """The 3D smoothing filters of Mip-Splatting (Yu et al. 2024, section 4.1) of Gaussians under training, and these Gaussians
    filtered, activated (kernels/filter_3d.slang). `cameras` are those that Gaussians are seen by, of one image each, and their
    types in slang/splat, or a user's own; `near` is the depth of their near plane, world units."""

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
        """The Gaussians filtered, before a step, from those that the optimiser stores. Their filters are found anew where that
        is due, or they are other Gaussians, unless `status` says that the step does not count (kernels/status.slang)."""
        self._find(recorder, raw, status, step % _FILTER_EVERY == 0)
        assert self._filters is not None and self._smooth is not None
        self._dispatch(recorder, "smoothForward", raw, scales=self._smooth.scales, opacities=self._smooth.opacities)
        return self._smooth

    def record_backward(self, recorder: Recorder, v_gaussians: GaussianArrays) -> None:
        """Gradients of what `record` has returned → gradients of `raw`, in place."""
        recorder.stage("3D filter")
        assert self._raw is not None
        v = v_gaussians
        self._dispatch(recorder, "smoothBackward", self._raw, v_scales=v.scales, v_opacities=v.opacities)

    def state(self, raw: GaussianArrays) -> State:
        """For a checkpoint. No step may still be running."""
        recorder = self._device.record()
        self._find(recorder, raw, self._device.memory.array(np.zeros(1, np.uint32)))
        recorder.submit()
        assert self._filters is not None
        return {FILTER: self._filters.numpy().copy()}

    def _find(self, recorder: Recorder, raw: GaussianArrays, status: Array, due: bool = False) -> None:
        recorder.stage("3D filter")
        if self._raw is None or self._raw.means is not raw.means:
            empty = self._device.memory.empty
            # A checkpoint has them.
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
    """The state's Gaussians with their filters, if it has any, in scales and opacities: as any viewer shows them."""
    if FILTER not in state:
        return state
    log_scales, logits, filters = (state[name].astype(np.float64) for name in ("log_scales", "logit_opacities", FILTER))
    with np.errstate(divide="ignore"):
        grown = np.logaddexp(2 * log_scales, 2 * np.log(filters)[:, None]) / 2
    log_opacities = np.minimum(-np.logaddexp(0, -logits) + (log_scales - grown).sum(1), -1e-12)
    logits = log_opacities - np.log(-np.expm1(log_opacities))
    return {**state, "log_scales": grown.astype(np.float32), "logit_opacities": logits.astype(np.float32)}
