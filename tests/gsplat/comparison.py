"""Density control without a renderer: made-up Gaussians, and the meta and gradients that a step leaves."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter, ParameterDict
from torch.optim import Optimizer

MakeOptimizer = Callable[[list[Parameter]], Optimizer]

WIDTH, HEIGHT = 64, 48


def adam(params: list[Parameter]) -> Optimizer:
    return torch.optim.Adam(params, lr=5e-2, eps=1e-15)


@dataclass
class Training:
    """A training run whose gradients are noise. Two runs with the same seed differ only by their strategies."""

    make_optimizer: MakeOptimizer = adam
    count: int = 60
    cameras: int = 2
    packed: bool = False
    column_opacities: bool = False
    plain_dict: bool = False
    params: Any = None
    optimizers: dict[str, Optimizer] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = torch.Generator().manual_seed(self.count)
        n = self.count
        values = {
            "means": self._normal(n, 3),
            "scales": 0.8 * self._normal(n, 3) - 4.5,
            "quats": self._normal(n, 4),
            "opacities": 3 * self._normal(n, *[1] * self.column_opacities) - 1,
            "sh0": self._normal(n, 1, 3),
            "shN": self._normal(n, 3, 3),
        }
        params = {name: Parameter(value) for name, value in values.items()}
        params["labels"] = Parameter(torch.arange(n, dtype=torch.float32), requires_grad=False)
        self.params = params if self.plain_dict else ParameterDict(params)
        self.optimizers = {name: self.make_optimizer([self.params[name]]) for name in values}

    def step(self, strategy: Any, step: int, **more: Any) -> None:
        """Take one training step with `strategy`, the library's or gsplat's."""
        info = self.info()
        strategy.step_pre_backward(self.params, self.optimizers, self.state, step, info)
        info["means2d"].grad = self._normal(*info["means2d"].shape) * 2e-5
        info["means2d"].absgrad = info["means2d"].grad.abs() * 3
        for name, optimizer in self.optimizers.items():
            self.params[name].grad = self._normal(*self.params[name].shape)
            if isinstance(optimizer, torch.optim.SparseAdam):
                self.params[name].grad = self.params[name].grad.to_sparse(1)
            optimizer.step()
        torch.manual_seed(step)  # seeds the random numbers of the strategy
        strategy.step_post_backward(self.params, self.optimizers, self.state, step, info, **more)

    def info(self) -> dict[str, Any]:
        """A meta dictionary like that of `rasterization`."""
        n = len(self.params["means"])
        radii = (torch.rand(self.cameras, n, 2, generator=self._random) * 24 - 8).clamp(min=0).int()
        info = {"width": WIDTH, "height": HEIGHT, "n_cameras": self.cameras, "gaussian_ids": None}
        shape: tuple[int, ...] = (self.cameras, n, 2)
        if self.packed:
            visible = (radii > 0).all(-1)
            radii, shape = radii[visible], (int(visible.sum()), 2)
            info["gaussian_ids"] = visible.nonzero()[:, 1]
        return info | {"radii": radii, "means2d": torch.zeros(shape, requires_grad=True)}

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._random)


def assert_same(ours: Training, theirs: Training, tolerance: float = 1e-6) -> None:
    assert list(ours.params.keys()) == list(theirs.params.keys())
    for name, param in ours.params.items():
        assert isinstance(param, Parameter)
        assert param.requires_grad == theirs.params[name].requires_grad
        close(param, theirs.params[name], tolerance, name)
        if name not in ours.optimizers:
            continue
        mine, other = ours.optimizers[name], theirs.optimizers[name]
        assert mine.param_groups[0]["params"][0] is param
        assert len(mine.state) == len(other.state)
        kept, expected = mine.state[param], other.state[theirs.params[name]]
        assert kept.keys() == expected.keys()
        for key, value in expected.items():
            close(kept[key], value, tolerance, f"{name}'s {key}")
    assert ours.state.keys() == theirs.state.keys()
    for name, value in theirs.state.items():
        close(ours.state[name], value, tolerance, name)


def close(value: Any, expected: Any, tolerance: float, name: str) -> None:
    if not isinstance(expected, Tensor):
        assert value == expected, name
        return
    assert value.dtype == expected.dtype and value.shape == expected.shape, name
    np.testing.assert_allclose(value.detach().numpy(), expected.detach().numpy(), rtol=tolerance, atol=tolerance, err_msg=name)
