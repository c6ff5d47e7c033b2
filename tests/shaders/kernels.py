"""Kernels of tests that need whole workgroups and a single dispatch."""

import zlib
from typing import Any

import numpy as np
import slangpy as spy
from numpy import typing as npt
from numpy.typing import NDArray

from splat_py.gpu.device import get_device


def dispatch(source: str, entry: str, groups: int, **given: Any) -> dict[str, NDArray[Any]]:
    """Run a kernel with its globals `given` (arrays, and dicts for structs); return the arrays' contents after it."""
    device = get_device()
    module = device.handle.load_module_from_source(f"{entry}_{zlib.crc32(source.encode())}", source)
    program = device.handle.link_program([module], [module.entry_point(entry)])
    pipeline = device.handle.create_compute_pipeline(program)
    arrays = {name: device.memory.array(value) for name, value in given.items() if isinstance(value, np.ndarray)}
    encoder = device.handle.create_command_encoder()
    with encoder.begin_compute_pass() as compute:
        cursor = spy.ShaderCursor(compute.bind_pipeline(pipeline))
        for name, value in given.items():
            cursor[name] = arrays[name].buffer if name in arrays else value
        compute.dispatch_compute(spy.uint3(groups, 1, 1))
    device.handle.wait_for_submit(device.handle.submit_command_buffer(encoder.finish()))
    return {name: array.numpy().copy() for name, array in arrays.items()}


def tensor(array: npt.ArrayLike) -> spy.Tensor:
    """Numbers in a tensor of the device, as float32."""
    return spy.Tensor.from_numpy(get_device().handle, np.asarray(array, np.float32))
