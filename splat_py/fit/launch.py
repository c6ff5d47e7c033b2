"""Which of several processes of one training this is, as torchrun says in the environment, and which of them speaks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from splat_py.errors import SplatError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

# For a store that has gone with the process that had it.
_STORE_SECONDS = 3.0
# Of the store: how many processes have told the user why they end.
_TOLD = "splat_py/told"
_ADVICE = "start several processes with torchrun --nproc-per-node N -m splat_py train ..., or unset WORLD_SIZE to train in one"


@dataclass(frozen=True)
class Launch:
    """Process `rank` of `size`, the `local_rank`-th of its machine, and where all of them meet."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    address: str = ""
    port: int = 0
    # Whether the store at that address is torchrun's own, which outlives the processes.
    outlives: bool = False
    # Processes of its machine.
    local_size: int = 1

    @property
    def alone(self) -> bool:
        """Whether there is only this process."""
        return self.size == 1

    def store(self, seconds: float) -> Store:
        """Where the processes leave each other notes.

        Raises:
            RuntimeError: nobody has one there.
        """
        from torch._C._distributed_c10d import TCPStore

        serves, timeout = self.rank == 0 and not self.outlives, timedelta(seconds=seconds)
        # Notes may be left before all processes are there.
        return TCPStore(self.address, self.port, None, serves, timeout, wait_for_workers=False, multi_tenant=True)

    def speaks(self) -> bool:
        """Whether this process is the first of all that end to say why; what the others would say follows from it, or is the
        same."""
        if self.alone:
            return True
        try:
            return self.store(_STORE_SECONDS).add(_TOLD, 1) == 1
        except (ImportError, RuntimeError):
            # Gone with the first process, or never there.
            return self.rank == 0 or not self.outlives


def launch_of(environment: Mapping[str, str] = os.environ) -> Launch:
    """What torchrun has said; one process alone if it has said nothing.

    Raises:
        SplatError: the variables contradict each other, or some are missing.
    """
    size = _number(environment, "WORLD_SIZE", 1, 1 << 16, 1)
    if size == 1:
        return Launch()
    rank = _number(environment, "RANK", 0, size - 1)
    local_rank = _number(environment, "LOCAL_RANK", 0, size - 1, rank)
    port = _number(environment, "MASTER_PORT", 1, 65535)
    address = environment.get("MASTER_ADDR", "")
    if not address:
        raise SplatError(f"WORLD_SIZE is {size}, but MASTER_ADDR is not set; {_ADVICE}")
    outlives = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    local_size = _number(environment, "LOCAL_WORLD_SIZE", 1, size, 1)
    return Launch(rank, size, local_rank, address, port, outlives, local_size)


def _number(environment: Mapping[str, str], name: str, low: int, high: int, default: int | None = None) -> int:
    text = environment.get(name, "")
    if not text and default is not None:
        return default
    if not text:
        raise SplatError(f"WORLD_SIZE is {environment['WORLD_SIZE']}, but {name} is not set; {_ADVICE}")
    if not (text.isascii() and text.isdigit() and low <= int(text[:9]) <= high):
        raise SplatError(f"{name} is {text[:40]!r}; it must be a whole number from {low} to {high}; {_ADVICE}")
    return int(text)
