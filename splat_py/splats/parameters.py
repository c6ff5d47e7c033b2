"""The Gaussians under training, their gradients and their optimiser, resident on the device."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from splat_py.fit.adam import Adam
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant
from splat_py.scene.gaussians import Gaussians
from splat_py.splats.config import TrainConfig
from splat_py.splats.data import GaussianArrays, StridedView

# Parameter groups, in the order of `Gaussians`' fields.
GROUPS = ("means", "quats", "log_scales", "logit_opacities", "sh")
# What splats take that are no Gaussians, [N, E]; and colours that are no harmonics, in the place of "sh", [N, F] and [W].
EXTRAS, FEATURES, WEIGHTS = "extras", "features", "weights"
MOMENTS = ("m", "v")

# Floats a thread.
_ADAM_RUN = constant("kernels/optimize", "RUN")
_ADAM = Adam(epsilon=1e-15)

State = dict[str, NDArray[np.float32]]


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
        self._arrays = {name: v if isinstance(v, Array) else memory.array(v) for name, v in state.items()}
        self.count = state["means"].shape[0]
        means, quats, scales, opacities = (self._arrays[name] for name in GROUPS[:4])
        self.gaussians = GaussianArrays(means, quats, scales, opacities, extras=self._arrays.get(EXTRAS))
        self.features = self._arrays["sh" if "sh" in state else FEATURES]
        self.weights = self._arrays.get(WEIGHTS)
        empty = device.memory.empty
        self.v_gaussians = GaussianArrays(*(empty(self._arrays[name].shape) for name in GROUPS[:4]))
        self.v_features = empty(self.features.shape)
        self.v_weights = None if self.weights is None else empty(self.weights.shape)

    @classmethod
    def fresh(cls, device: Device, gaussians: Gaussians) -> Parameters:
        """Parameters at the start of training."""
        state: State = {name: getattr(gaussians, name).numpy() for name in GROUPS}
        if gaussians.params:
            state[EXTRAS] = torch.stack(list(gaussians.params.values()), -1).numpy()
        if gaussians.features is not None:
            del state["sh"]
            state[FEATURES] = gaussians.features.numpy()
        if gaussians.weights is not None and len(gaussians.weights):
            state[WEIGHTS] = gaussians.weights.numpy()
        for name in list(state):
            for moment in MOMENTS:
                state[f"{name}.{moment}"] = np.zeros_like(state[name])
        for name in cls.STATISTICS:
            state[name] = np.zeros(len(gaussians), np.float32)
        return cls(device, state)

    @property
    def arrays(self) -> Mapping[str, Array]:
        """What `state` copies, on the device."""
        return self._arrays

    def state(self) -> State:
        """A copy of everything, on the host. Nothing that writes it may still be running."""
        return {name: array.numpy().copy() for name, array in self._arrays.items()}

    def gaussian_state(self) -> State:
        """A copy of the Gaussians alone."""
        names = [*groups_of(self._arrays), *([WEIGHTS] if WEIGHTS in self._arrays else ())]
        return {name: self._arrays[name].numpy().copy() for name in names}

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
        statistics = statistics or self._arrays
        recorder.dispatch(
            "densify",
            "addStatistics",
            linear_groups(self.count),
            {
                "gaussians": self.count,
                "stride": v_splats.shape[-1],
                "offset": 0,
                "halfWidth": width / 2,
                "halfHeight": height / 2,
                "largerSide": max(width, height),
            },
            {
                "status": status,
                "radii": radii,
                "vMeans2d": v_splats,
                "gradientNorms": statistics["gradient_norms"],
                "timesSeen": statistics["times_seen"],
                "maxRadii": statistics["max_radii"],
            },
        )

    def record_adam(
        self,
        recorder: Recorder,
        config: TrainConfig,
        step: int,
        scene_scale: float,
        v_extras: StridedView | None,
        status: Array,
    ) -> None:
        """One step of Adam on every group (kernels/optimize.slang). Gradients are means over `config.photographs`."""
        recorder.stage("adam")
        adam, faster = _ADAM.of_batch(config.photographs), math.sqrt(config.photographs)
        rates = {
            "means": config.means_lr_at(step, scene_scale),
            "quats": config.quats_lr * math.sqrt(config.haste) * faster,
            "log_scales": config.scales_lr * math.sqrt(config.haste) * faster,
            "logit_opacities": config.opacities_lr * math.sqrt(config.haste) * faster,
        }
        v = self.v_gaussians
        gradients = dict(zip(GROUPS, (v.means, v.quats, v.scales, v.opacities), strict=False))
        if "sh" in self._arrays:
            rates["sh"], gradients["sh"] = config.haste * config.sh0_lr / 20 * faster, self.v_features
        else:
            rates[FEATURES], gradients[FEATURES] = config.color_lr * faster, self.v_features
        if self.v_weights is not None:
            rates[WEIGHTS], gradients[WEIGHTS] = config.color_lr * faster, self.v_weights
        for name, rate in rates.items():
            rows: dict[str, int | bool] = {"ROW": 1, "HEAD": 0}
            uniforms: dict[str, int | float] = {"active": 1}
            if name == "sh":
                rows = {"ROW": 3 * self.features.shape[1], "HEAD": 3}
                uniforms = {"active": 3 * (config.degree_at(step) + 1) ** 2, "headRate": config.haste * config.sh0_lr * faster}
            self._record_adam(recorder, name, gradients[name], adam.uniforms(step), status, uniforms | {"rate": rate}, rows)
        if v_extras is not None:
            limits = list(config.parameters().values())
            # Those of built-in types are one; types of one's own have no bounds.
            least, largest = limits[0].least, limits[0].largest
            bounded = math.isfinite(least) and math.isfinite(largest)
            rows = {"ROW": len(limits), "STRIDE": v_extras.stride, "OFFSET": v_extras.offset, "BOUNDED": bounded}
            uniforms = {"active": len(limits), "rate": config.splat_param_lr * faster}
            uniforms |= {"least": least, "largest": largest} if bounded else {}
            self._record_adam(recorder, EXTRAS, v_extras.array, adam.uniforms(step), status, uniforms, rows)

    def _record_adam(
        self,
        recorder: Recorder,
        name: str,
        gradients: Array,
        adam: Mapping[str, int | float],
        status: Array,
        uniforms: Mapping[str, int | float],
        constants: Mapping[str, int | bool],
    ) -> None:
        array = self._arrays[name]
        recorder.dispatch(
            "optimize",
            "adam",
            linear_groups(-(-array.size // _ADAM_RUN)),
            {"count": array.size, "headRate": 0.0, "least": 0.0, "largest": 0.0, **uniforms, **adam},
            {
                "status": status,
                "parameters": array,
                "gradients": gradients,
                "firstMoments": self._arrays[f"{name}.m"],
                "secondMoments": self._arrays[f"{name}.v"],
            },
            **constants,
        )
