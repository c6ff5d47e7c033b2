"""Callbacks and strategies of one's own between the stages of a training step: the trainer's arrays as torch tensors."""

from collections.abc import Callable, Mapping
from inspect import signature
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from splat_py.base.errors import SplatError
from splat_py.fit.steps import with_moments
from splat_py.gpu.arrays import Array, Bridge
from splat_py.render.splats import StridedRows
from splat_py.train.parameters import EXTRAS, WEIGHTS, MoreOfMeans, Parameters, averaged_groups
from splat_py.train.step import PhotographGradients

# Arguments as in `Trainer`.
Callback = Callable[[int, Mapping[str, Parameter], dict[str, Any]], object]

# gsplat's names of parameters and moments, where they differ.
_NAMES = {"log_scales": "scales", "logit_opacities": "opacities"}
_MOMENTS = ("exp_avg", "exp_avg_sq")


class StepTensors:
    """A step's parameters with their gradients and moments, and gsplat's `info`, as tensors. They share the device's memory, or
    are copies that are written back after a call (`Bridge.COPY`). No kernel that uses them may be running."""

    def __init__(
        self,
        parameters: Parameters,
        v_extras: StridedRows | None,
        photograph: PhotographGradients,
        more: MoreOfMeans | None,
        info: dict[str, Any],
        with_statistics: bool,
    ) -> None:
        self.parameters = parameters
        self._shared: dict[int, tuple[Array, Tensor]] = {}
        v, arrays = parameters.v_gaussians, parameters.arrays
        gradients = {"means": v.means, "quats": v.quats, "log_scales": v.scales, "logit_opacities": v.opacities}
        self.params: dict[str, Parameter] = {}
        self._given: list[tuple[Parameter, Tensor, Tensor]] = []
        for group in averaged_groups(arrays):
            value = self._tensor(arrays[group])
            if group == EXTRAS and v_extras is not None:
                rows = self._tensor(v_extras.rows).view(-1, v_extras.stride)
                gradient = rows[:, v_extras.offset : v_extras.offset + value.shape[1]]
            elif group == WEIGHTS and parameters.v_weights is not None:
                gradient = self._tensor(parameters.v_weights)
            else:
                gradient = self._tensor(gradients.get(group) or parameters.v_features)
            param = self.params[_NAMES.get(group, group)] = Parameter(value)
            param.grad = gradient
            self._given.append((param, value, gradient))
        splats, rows = photograph.splats, self._tensor(photograph.v_splats)
        means2d = self._tensor(splats.means2d).detach().requires_grad_()
        means2d.grad = rows[..., :2].clone()
        if more is not None:
            means2d.grad += rows[..., more.columns] * self._tensor(more.depths)[..., None] / torch.tensor(more.focal).to(rows)
        statistics = Parameters.STATISTICS if with_statistics else ()
        self.info = info | {"means2d": means2d, "radii": self._tensor(splats.radii)}
        self.info |= {name: self._tensor(arrays[name]) for name in statistics}

    def _tensor(self, array: Array) -> Tensor:
        return self._shared.setdefault(id(array), (array, array.tensor()))[1]

    def call(self, callback: Callback, step: int) -> None:
        """Let a callback change values and gradients."""
        callback(step, MappingProxyType(self.params), self.info)
        with torch.no_grad():
            for param, value, gradient in self._given:
                if not param.is_set_to(value):
                    value.copy_(param)
                if param.grad is None:
                    gradient.zero_()
                elif param.grad is not gradient:
                    gradient.copy_(param.grad)
        self.finish()

    def moments(self, group: str) -> dict[str, Tensor]:
        """Adam's moments of a parameter group."""
        names = with_moments(group)[1:]
        return {key: self._tensor(self.parameters.arrays[name]) for key, name in zip(_MOMENTS, names, strict=True)}

    def finish(self) -> None:
        """Make the device see what has been written to the tensors."""
        memory = self.parameters.device.memory
        for array, tensor in self._shared.values():
            if memory.bridge is Bridge.COPY:
                array.write(tensor)
            elif tensor.is_cuda:
                torch.cuda.current_stream(tensor.device).synchronize()
                return


class OwnStrategy:
    """An object with gsplat's interface of strategies, and its running state."""

    def __init__(self, strategy: Any, scene_scale: float) -> None:
        if not callable(getattr(strategy, "step_post_backward", None)):
            raise SplatError(
                f"strategy is a {type(strategy).__name__}; give an object with the method step_post_backward, or a name in "
                "TrainConfig(strategy=…)"
            )
        self._strategy, self._checked = strategy, False
        self._state = _call(strategy, "initialize_state", scene_scale=scene_scale) or {}

    def changed(self, tensors: StepTensors, step: int, rate: float) -> Parameters | None:
        """Let the strategy have a step, whose learning rate of means is `rate`. Returns new parameters unless it has changed at
        most values in place. SplatError if no Gaussian is left, or rows differ in number."""
        before = tensors.parameters
        groups = {_NAMES.get(group, group): group for group in averaged_groups(before.arrays) if group != WEIGHTS}
        params, optimizers = {name: tensors.params[name] for name in groups}, {}
        given: dict[str, Tensor] = {}
        for name, group in groups.items():
            # It only holds the moments; the trainer's own Adam takes the steps.
            optimizers[name] = torch.optim.Adam([params[name]])
            optimizers[name].state[params[name]] = tensors.moments(group)
            given |= zip(with_moments(group), (params[name].detach(), *tensors.moments(group).values()), strict=True)
        if not self._checked:
            _call(self._strategy, "check_sanity", params, optimizers)
            self._checked = True
        for name in ("step_pre_backward", "step_post_backward"):
            _call(self._strategy, name, params, optimizers, self._state, step, tensors.info, lr=rate)
        tensors.finish()
        now: dict[str, Tensor] = {}
        for name, group in groups.items():
            moments = optimizers[name].state[params[name]]
            values = params[name].detach(), *(moments[key] for key in _MOMENTS)
            now |= zip(with_moments(group), (value.float().contiguous() for value in values), strict=True)
        if all(now[name].is_set_to(values) for name, values in given.items()):
            return None
        counts = {len(values) for values in now.values()}
        if len(counts) > 1 or counts == {0}:
            fault = "no Gaussian" if counts == {0} else f"parameters of {' and '.join(map(str, sorted(counts)))} rows"
            raise SplatError(f"the strategy left {fault} after step {step + 1:,}; correct its step_post_backward")
        memory = before.device.memory
        arrays = before.arrays | {name: memory.array(values) for name, values in now.items()}
        arrays |= {name: memory.zeros(tuple(counts)) for name in Parameters.STATISTICS}
        return Parameters(before.device, arrays)


def _call(strategy: Any, name: str, *arguments: Any, **optional: Any) -> Any:
    """Call a method, if there is one, with those of the optional arguments that it takes."""
    method = getattr(strategy, name, None)
    if method is None:
        return None
    taken = signature(method).parameters
    return method(*arguments, **{key: value for key, value in optional.items() if key in taken})
