"""A device that runs the kernels' Metal source on the CPU."""

from splat_py.gpu.device import _METAL_TUNING, Adapter, Tuning
from tests.emulation.device import EmulatedDevice
from tests.emulation.program import Schedule
from tests.emulation.programs import Programs


class MetalOnCpu(EmulatedDevice):
    def __init__(self, programs: Programs, tuning: Tuning = _METAL_TUNING, schedule: Schedule | None = None) -> None:
        super().__init__(Adapter("metal", "Metal source on the CPU", ()), programs, tuning, schedule)
