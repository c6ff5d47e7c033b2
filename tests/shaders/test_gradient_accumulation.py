"""slang/splat/gradient_accumulation.slang: every strategy comes to the same sums."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import slangpy as spy

from splat_py import shaders
from splat_py.device import get_device

MODULE = shaders.load(Path(__file__).with_name("accumulation.slang"))


@pytest.mark.parametrize("strategy", ["PerPixel", "PerWave"])
@pytest.mark.parametrize("channels", [1, 3, 4, 9, 11])
def test_sums_of_a_wave_s_rows(strategy: str, channels: int) -> None:
    """Rows of any length at an offset, from lanes some of which give nothing; what lies beside them stays."""
    rng = np.random.default_rng(channels)
    first, threads = 5, 128
    values = rng.normal(size=(threads, channels))
    values[::3] = 0
    before = rng.normal(size=first + channels + 4)
    rows = spy.Tensor.from_numpy(get_device().handle, before.astype(np.float32))
    MODULE.accumulateWith[channels, strategy](values, first, rows)
    expected = before.copy()
    expected[first : first + channels] += values.sum(axis=0)
    np.testing.assert_allclose(rows.to_numpy(), expected, rtol=1e-5, atol=1e-5)
    outside = np.r_[:first, first + channels : len(before)]
    np.testing.assert_array_equal(rows.to_numpy()[outside], before.astype(np.float32)[outside])
