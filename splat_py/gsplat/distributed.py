"""gsplat's launcher and collectives, for one process: rendering by several at once is not supported."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def cli(fn: Callable[[int, int, int, Any], None], args: Any, verbose: bool = False) -> bool:
    """Call fn(local_rank, world_rank, world_size, args) as the only process: fn(0, 0, 1, args).

    Returns:
        True.

    Raises:
        NotImplementedError: it was started by mpirun as one of several, or torch has several CUDA devices.
    """
    ranks = int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1))
    if ranks > 1:
        raise NotImplementedError(f"splat_py.gsplat.distributed.cli does not support {ranks} processes; start one")
    devices = torch.cuda.device_count()
    if devices > 1:
        raise NotImplementedError(
            f"splat_py.gsplat.distributed.cli does not support {devices} devices; set CUDA_VISIBLE_DEVICES=0"
        )
    if verbose:
        print("One process on one device")
    fn(0, 0, 1, args)
    return True


def all_gather_int32(world_size: int, value: int | Tensor, device: torch.device | None = None) -> list[int | Tensor]:
    """[value], in a world of one process. Raises NotImplementedError in a larger one."""
    _require_one("all_gather_int32", world_size)
    return [value]


def all_to_all_int32(world_size: int, values: list[int | Tensor], device: torch.device | None = None) -> list[int | Tensor]:
    """The values, in a world of one process. Raises NotImplementedError in a larger one."""
    _require_one("all_to_all_int32", world_size)
    return values


def all_gather_tensor_list(world_size: int, tensor_list: list[Tensor]) -> list[Tensor]:
    """The tensors, in a world of one process. Raises NotImplementedError in a larger one."""
    _require_one("all_gather_tensor_list", world_size)
    return tensor_list


def all_to_all_tensor_list(
    world_size: int,
    tensor_list: list[Tensor],
    splits: list[int | Tensor],
    output_splits: list[int | Tensor] | None = None,
) -> list[Tensor]:
    """The tensors, in a world of one process. Raises NotImplementedError in a larger one."""
    _require_one("all_to_all_tensor_list", world_size)
    return tensor_list


def _require_one(name: str, world_size: int) -> None:
    if world_size != 1:
        raise NotImplementedError(f"splat_py.gsplat.distributed.{name} does not support world_size={world_size}; use 1")
