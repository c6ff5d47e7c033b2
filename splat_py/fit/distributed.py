"""Training of one scene in several processes, through torch.distributed: they add up their gradients and stay equal."""

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from splat_py.base.errors import RankLostError, SplatError
from splat_py.base.files import reason
from splat_py.fit.process import Launch, launch_of
from splat_py.gpu.arrays import Array, Bridge
from splat_py.gpu.device import Device, adapters, choose, get_device

# A viewer may pause the first process for long; a process that dies closes its connections, which the others notice at once.
_PATIENCE = timedelta(days=7)
# Seconds between two looks at the store, and seconds within which all processes must join.
_LOOK_EVERY, _MEET_SECONDS = 0.05, 300.0


@dataclass(frozen=True)
class Ranks(Launch):
    """The processes of a training; alone by default. The first one reports and writes.

    All processes call every collective method, in the same order. It raises RankLostError if a process is gone.
    """

    # Groups for tensors in host memory, and for CUDA tensors if each process has its own device.
    _host: Any = None
    _cuda: Any = None

    @property
    def first(self) -> bool:
        return self.rank == 0

    def own(self, batch: int) -> slice:
        """Return the slice of a step's photographs that this process renders."""
        each = batch // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def batch_of(self, batch: int) -> int:
        """Return the photographs per step: `batch`, or one per process if it is 0; SplatError if they do not divide evenly."""
        if batch % self.size:
            raise SplatError(f"batch is {batch}, which {self.size} processes cannot divide evenly; choose a multiple")
        return batch or self.size

    def add_up(self, arrays: Sequence[Array]) -> None:
        """Replace each array by its sum over all processes. Collective; no kernel that uses the arrays may be running."""
        self._exchange(arrays, self._in_order)

    def take_largest(self, arrays: Sequence[Array]) -> None:
        """Replace each array by the largest values of all processes, element by element. As `add_up`."""
        self._exchange(arrays, lambda values, group: dist.all_reduce(values, dist.ReduceOp.MAX, group))

    def total(self, values: Sequence[float]) -> list[float]:
        """Return the sums of numbers over all processes. Collective."""
        return list(self._reduced(torch.tensor(values, dtype=torch.float64), dist.ReduceOp.SUM).tolist())

    def largest(self, values: Sequence[int]) -> list[int]:
        """Return the largest whole numbers of all processes. Collective."""
        return list(self._reduced(torch.tensor(values, dtype=torch.int64), dist.ReduceOp.MAX).tolist())

    def largest_values(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the largest values of all processes, element by element. Collective."""
        return self._reduced(torch.from_numpy(values), dist.ReduceOp.MAX).numpy()

    def wait(self) -> None:
        """Wait until all processes call this. Collective."""
        self.largest([0])

    def require_equal(self, arrays: Sequence[Array], step: int) -> None:
        """Raise SplatError unless all processes have the same arrays. Collective."""
        if self.alone:
            return
        sums = [_checksum(array) for array in arrays]
        if self.largest(sums) != [-value for value in self.largest([-value for value in sums])]:
            raise SplatError(
                f"the processes have diverged after step {step:,}: their Gaussians are no longer the same; use devices and "
                "drivers of one kind, and resume from the last checkpoint"
            )

    def _exchange(self, arrays: Sequence[Array], combine: Callable[[torch.Tensor, Any], Any]) -> None:
        if self.alone:
            return
        parts = [array.tensor().reshape(-1) for array in arrays]
        sizes = [len(part) for part in parts]
        # Pad to equal shares, one for each process.
        parts.append(parts[0].new_zeros(-sum(sizes) % self.size))
        together = torch.cat(parts)
        together = together.cpu() if self._cuda is None else together
        with _peers():
            combine(together, self._host if self._cuda is None else self._cuda)
            if together.is_cuda:
                torch.cuda.current_stream(together.device).synchronize()
        for array, part in zip(arrays, together.split([*sizes, len(parts[-1])]), strict=False):
            array.write(part.reshape(array.shape))

    def _in_order(self, values: torch.Tensor, group: Any) -> None:
        """Sum in place, the first process's values first, with the same bits as one process that adds one after another. A
        library's sum of more than two would not promise this."""
        shares = torch.empty_like(values)
        dist.all_to_all_single(shares, values, group=group)
        first, *others = shares.chunk(self.size)
        for share in others:
            first += share
        dist.all_gather(list(values.chunk(self.size)), first, group=group)

    def _reduced(self, values: torch.Tensor, operation: Any) -> torch.Tensor:
        if not self.alone:
            with _peers():
                dist.all_reduce(values, operation, group=self._host)
        return values


ALONE = Ranks()


def device_of(launch: Launch, name: str | None = None) -> Device:
    """Return the device of a process: if a machine has several of a kind, each process gets the next one. `name` and errors are
    as for `get_device`; all processes share a device that is named with an index."""
    if launch.alone or ":" in (name or os.environ.get("SPLAT_DEVICE", "")):
        return get_device(name)
    backend = choose(name).backend
    count = sum(adapter.backend == backend for adapter in adapters())
    return get_device(f"{backend}:{launch.local_rank % count}")


def joined(device: Device, launch: Launch | None = None) -> Ranks:
    """Meet the other processes, if there are any, with the device that this one trains on. Uses the process group that
    torch.distributed already has, or else `launch`, by default from the environment. SplatError if the launch contradicts
    itself, or the other processes do not come."""
    if not dist.is_available():
        raise SplatError("this torch was built without torch.distributed; train in one process, or install another torch")
    if dist.is_initialized():
        known = Launch(dist.get_rank(), dist.get_world_size())
        return ALONE if known.alone else _grouped(device, known, dist.new_group(backend="gloo", timeout=_PATIENCE))
    launch = launch or launch_of()
    if launch.alone:
        return ALONE
    here = [f"splat_py/here/{rank}" for rank in range(launch.size)]
    try:
        store = launch.store(_MEET_SECONDS)
        store.set(here[launch.rank], "")
        # The store's own wait would delay signals.
        until = time.monotonic() + _MEET_SECONDS
        while not store.check(here):
            if time.monotonic() > until:
                raise RuntimeError(f"not all of {launch.size} processes have joined within {_MEET_SECONDS:.0f} seconds")
            time.sleep(_LOOK_EVERY)
        dist.init_process_group("gloo", store=store, rank=launch.rank, world_size=launch.size, timeout=_PATIENCE)
    except RuntimeError as error:
        raise SplatError(f"cannot meet the other processes at {launch.address}:{launch.port}: {reason(error)}") from error
    return _grouped(device, launch, dist.group.WORLD)


def _grouped(device: Device, launch: Launch, host: Any) -> Ranks:
    """Make the groups; NCCL's only if every process has its own CUDA device whose memory torch shares."""
    own = (socket.gethostname(), device.adapter.luid) if device.memory.bridge is Bridge.CUDA else None
    devices: list[Any] = [None] * launch.size
    with _peers():
        dist.all_gather_object(devices, own, group=host)
        distinct = None not in devices and len(set(devices)) == launch.size and dist.is_nccl_available()
        cuda = dist.new_group(backend="nccl", timeout=_PATIENCE) if distinct else None
        return Ranks(**vars(launch), _host=host, _cuda=cuda)


@contextmanager
def _peers() -> Iterator[None]:
    """Turn errors of torch.distributed into RankLostError."""
    try:
        yield
    except RuntimeError as error:
        raise RankLostError("another process of this training has ended, and the training with it") from error


def _checksum(array: Array) -> int:
    """Return a sum that depends on an array's bits and on the rows that they are in."""
    rows = array.tensor().reshape(array.shape[0], -1).view(torch.int32).sum(1, dtype=torch.int64)
    return int((rows * torch.arange(1, len(rows) + 1, device=rows.device)).sum()) % (1 << 62)
