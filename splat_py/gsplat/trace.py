"""gsplat's named ranges, which show in torch's profiler; under `torch.autograd.profiler.emit_nvtx` also in NVIDIA's tools."""

from threading import local
from typing import Any

from torch.profiler import record_function

_thread = local()


class trace_range(record_function):
    """Name a block, `with trace_range("forward"):`, or a function. Other arguments, as NVTX's colours, have no effect."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(name)


trace_function = trace_range


def trace_push(name: str, **kwargs: Any) -> None:
    """Begin a range inside this thread's last one."""
    vars(_thread).setdefault("ranges", []).append(trace_range(name).__enter__())


def trace_pop() -> None:
    """End this thread's last range, if there is one."""
    if ranges := vars(_thread).get("ranges"):
        ranges.pop().__exit__(None, None, None)
