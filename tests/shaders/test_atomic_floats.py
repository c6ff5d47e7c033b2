"""slang/parallel/atomic_floats.slang."""

from __future__ import annotations

import numpy as np
import slangpy as spy

from splat_py.gpu.device import get_device

KERNEL = """
import parallel.atomic_floats;
StructuredBuffer<float> values;
RWStructuredBuffer<Atomic<uint>> sums;

[shader("compute")]
[numthreads(64, 1, 1)]
void addUp(uint3 id: SV_DispatchThreadID)
{
    addByCompareAndSwap(sums, id.x % 3, values[id.x]);
}
"""


def test_many_threads_add_to_few_floats() -> None:
    """Whole numbers, whose sum has no order."""
    device = get_device()
    module = device.handle.load_module_from_source("compare_and_swap", KERNEL)
    pipeline = device.handle.create_compute_pipeline(device.handle.link_program([module], [module.entry_point("addUp")]))
    values = np.random.default_rng(50).integers(-100, 100, 64 * 50).astype(np.float32)
    arrays = {"values": device.memory.array(values), "sums": device.memory.array(np.array([0, 1.5, -2], np.float32))}
    encoder = device.handle.create_command_encoder()
    with encoder.begin_compute_pass() as compute:
        cursor = spy.ShaderCursor(compute.bind_pipeline(pipeline))
        for name, array in arrays.items():
            cursor[name] = array.buffer
        compute.dispatch_compute(spy.uint3(50, 1, 1))
    device.handle.wait_for_submit(device.handle.submit_command_buffer(encoder.finish()))
    expected = [values[i::3].sum() + start for i, start in enumerate([0, 1.5, -2])]
    np.testing.assert_array_equal(arrays["sums"].numpy(), expected)
