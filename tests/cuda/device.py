"""A device that runs the kernels' CUDA source on the CPU."""

from __future__ import annotations

from splat_py.gpu.device import _GPU_TUNING, Adapter, Tuning
from tests.emulation.device import EmulatedDevice
from tests.emulation.program import Schedule
from tests.emulation.programs import Programs


class CudaOnCpu(EmulatedDevice):
    """With a GPU's tuning, or another."""

    def __init__(self, programs: Programs, tuning: Tuning = _GPU_TUNING, schedule: Schedule | None = None) -> None:
        super().__init__(Adapter("cuda", "CUDA source on the CPU", ()), programs, tuning, schedule)
