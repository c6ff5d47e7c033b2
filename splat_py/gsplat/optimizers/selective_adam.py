"""Adam that moves only the Gaussians that were visible (Mallick et al. 2024, "Taming 3DGS")."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from splat_py.errors import SplatError


class SelectiveAdam(torch.optim.Adam):
    """Adam whose rows learn only while they are visible: those of others, and their moments, stay as they are.

    As in gsplat, moments are not corrected for their start at zero: the first steps are larger than those of
    `torch.optim.Adam` (three times the first one with the usual betas); after some thousands they are the same.

    Args:
        params: parameters [N, ...], one in each group, or such groups.
        eps: added to the root of the second moment.
        betas: decay rates of the two moments.
    """

    def __init__(self, params: ParamsT, eps: float, betas: tuple[float, float]) -> None:
        super().__init__(params=params, eps=eps, betas=betas)

    @torch.no_grad()
    def step(self, visibility: Tensor) -> None:  # type: ignore[override]
        """Update the visible rows of each parameter that has a gradient.

        Args:
            visibility: [N] which rows are visible.

        Raises:
            SplatError: a group has several parameters, or `visibility` has not a value for each row.
        """
        rows = visibility.flatten().nonzero().squeeze(1)
        for group in self.param_groups:
            if len(group["params"]) != 1:
                raise SplatError(f"SelectiveAdam: a group has {len(group['params'])} parameters; give each a group of its own")
            param = group["params"][0]
            if len(param) != visibility.numel():
                raise SplatError(f"visibility has {visibility.numel()} values for a parameter of {len(param)} rows")
            if param.grad is not None:
                self._update(param, param.grad[rows], rows, group)

    def _update(self, param: Tensor, gradient: Tensor, rows: Tensor, group: dict[str, Any]) -> None:
        state = self.state[param]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        first = state["exp_avg"][rows].lerp_(gradient, 1 - beta1)
        second = state["exp_avg_sq"][rows].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        state["exp_avg"][rows] = first
        state["exp_avg_sq"][rows] = second
        param[rows] = param[rows].addcdiv_(first, second.sqrt().add_(group["eps"]), value=-group["lr"])
