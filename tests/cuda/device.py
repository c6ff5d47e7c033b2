"""A device that runs the kernels' CUDA source on the CPU."""

import slangpy as spy

from splat_py.gpu.device import _GPU_TUNING, Adapter, Tuning
from tests.emulation.device import EmulatedDevice
from tests.emulation.program import Schedule
from tests.emulation.programs import Programs

# Features of every GPU from Volta on (slang-rhi, src/cuda/cuda-device.cpp).
_FEATURES = (spy.Feature.atomic_float, spy.Feature.wave_ops)


class CudaOnCpu(EmulatedDevice):
    def __init__(self, programs: Programs, tuning: Tuning = _GPU_TUNING, schedule: Schedule | None = None) -> None:
        adapter = Adapter("cuda", "CUDA source on the CPU", ())
        super().__init__(adapter, programs, tuning, schedule, _FEATURES)
