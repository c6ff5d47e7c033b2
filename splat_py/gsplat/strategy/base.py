"""What strategies share: the checks of parameters and optimisers before training, and the types that they pass on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from torch import Tensor
from torch.nn import Parameter, ParameterDict
from torch.optim import Optimizer

from splat_py.errors import SplatError

Parameters: TypeAlias = dict[str, Parameter] | ParameterDict
Optimizers: TypeAlias = Mapping[str, Optimizer]

_REQUIRED = ("means", "scales", "quats", "opacities")


class StrategyError(SplatError, AssertionError):
    """Parameters, optimisers or `info` are not what a strategy needs. An AssertionError too, as scripts for gsplat expect."""


class Scene(Protocol):
    """Whoever keeps tensors with a row for each Gaussian beside the parameters, and is told of every change of rows."""

    def on_duplicate(self, sel: Tensor) -> None:
        """Copies of the rows `sel` follow the others."""

    def on_split(self, sel: Tensor, rest: Tensor) -> None:
        """The rows `rest` come first, then the rows `sel`, then these a second time."""

    def on_remove(self, mask: Tensor) -> None:
        """Rows where `mask` [N] is true are gone."""

    def on_relocate(self, dead_indices: Tensor, sampled_indices: Tensor) -> None:
        """The rows `dead_indices` are now copies of the rows `sampled_indices`."""

    def on_sample_add(self, sampled_indices: Tensor) -> None:
        """Copies of the rows `sampled_indices` follow the others."""

    def on_permute(self, order: Tensor) -> None:
        """Row i is now what row order[i] was."""


@dataclass
class Strategy:
    """When and how Gaussians are added, moved and removed. Call `step_pre_backward` before `loss.backward()` and
    `step_post_backward` after it, at each step."""

    def check_sanity(self, params: Parameters, optimizers: Optimizers) -> None:
        """Check that each trainable parameter has an optimiser of its own.

        Raises:
            StrategyError: an optimiser is missing or has no parameter, or it has not exactly one parameter.
        """
        trainable = {name for name, param in params.items() if param.requires_grad}
        if without := sorted(trainable - optimizers.keys()):
            raise StrategyError(f"optimizers: none for the trainable parameters {without}; give each one of its own")
        if others := sorted(optimizers.keys() - trainable):
            raise StrategyError(
                f"optimizers: {others} belong to no trainable parameter; those of params are {sorted(trainable)}"
            )
        for name, optimizer in optimizers.items():
            if [len(group["params"]) for group in optimizer.param_groups] != [1]:
                raise StrategyError(f"optimizers[{name!r}] must have one group with one parameter, params[{name!r}]")

    def step_pre_backward(self, *args: Any, **kwargs: Any) -> None:
        """To be called between rendering and `loss.backward()`."""

    def step_post_backward(self, *args: Any, **kwargs: Any) -> None:
        """To be called after `loss.backward()`."""


def require_gaussians(params: Parameters) -> None:
    """Check that the parameters which every strategy changes are there.

    Raises:
        StrategyError: one is missing.
    """
    if missing := [name for name in _REQUIRED if name not in params]:
        raise StrategyError(f"params lacks {missing}: a strategy needs {list(_REQUIRED)}")
