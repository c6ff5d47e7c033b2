"""What a case is, and the tensors that cases have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splat_py.gpu.device import Device, Operator
from splat_py.selftest.inputs import Floats

Arrays = dict[str, NDArray[Any]]

# By how much an array of results may miss the reference: see `checking.error`.
_ROUNDING = 1e-4


@dataclass(frozen=True)
class Case:
    """`run` gets the device and the stored results, and returns the device's, by the same names."""

    name: str
    # Whose stored results: cases that differ only in how the kernels work share them.
    reference: str
    run: Callable[[Device, Arrays], Arrays]
    allowed: float = _ROUNDING
    # What the device has to be able to do.
    needs: tuple[Operator, ...] = ()


def leaves_of(*arrays: Floats) -> list[Tensor]:
    """Tensors that want gradients."""
    return [torch.from_numpy(np.ascontiguousarray(array)).requires_grad_() for array in arrays]


def gradients_of(outputs: list[Tensor], v_outputs: list[Floats], leaves: list[Tensor]) -> list[Tensor]:
    """∂L/∂leaves from ∂L/∂outputs."""
    tensors = [torch.from_numpy(v).reshape(output.shape) for v, output in zip(v_outputs, outputs, strict=True)]
    return list(torch.autograd.grad(outputs, leaves, tensors, allow_unused=True, materialize_grads=True))


def to_numpy(tensors: dict[str, Tensor]) -> Arrays:
    """The same on the CPU."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def by_kind(gradients: dict[str, Tensor]) -> Arrays:
    """Gradients of cameras in parts that are each of one scale."""
    results = to_numpy(gradients)
    v_viewmats, v_Ks = results.pop("v_viewmats", None), results.pop("v_Ks", None)
    if v_viewmats is not None:
        results |= {"v_rotations": v_viewmats[:, :3, :3], "v_translations": v_viewmats[:, :3, 3]}
    if v_Ks is not None:
        results |= {"v_focal": v_Ks[:, (0, 1), (0, 1)], "v_principal": v_Ks[:, :2, 2]}
    return results
