"""How many workgroups claim work from queues on CPU drivers (slang/kernels/cpu/work_queue.slang)."""

from __future__ import annotations

import psutil

_MOST = 8


def persistent_groups() -> int:
    """One a processor core."""
    return min(psutil.cpu_count() or 1, _MOST)
