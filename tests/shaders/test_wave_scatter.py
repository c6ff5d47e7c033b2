"""slang/kernels/cpu/wave_scatter.slang: all that eight rays add arrives, once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import slangpy as spy
from numpy.typing import NDArray

from splat_py import shaders
from splat_py.gpu.device import get_device

MODULE = shaders.load(Path(__file__).with_name("wave_scatter.slang"))
LANES = shaders.load(Path(__file__).with_name("lanes.slang"))
K, STEPS, RAYS, SLOTS = 4, 7, 8, 8
NO_VOXEL = 0xFFFFFFFF


def assert_all_arrives(leaving: NDArray[np.int64], voxels: int) -> None:
    """`leaving` is [waves, rays, steps, slots], voxels by number or -1; slot i holds numbers that are i modulo 8."""
    if LANES.lanes(np.arange(64))[0][1] != RAYS:
        pytest.skip("waves are not of eight lanes here")
    rng = np.random.default_rng(49)
    waves = len(leaving)
    basis, v = rng.normal(size=(waves, RAYS, K)), rng.normal(size=(*leaving.shape, 4))
    expected = np.zeros((waves, voxels, 1 + 3 * K))
    rows = np.concatenate(
        [v[..., :1], (basis[:, :, None, None, :, None] * v[..., None, 1:]).reshape(*leaving.shape, 3 * K)], axis=-1
    )
    wave = np.broadcast_to(np.arange(waves)[:, None, None, None], leaving.shape)
    there = leaving >= 0
    np.add.at(expected, (wave[there], leaving[there]), rows[there])

    sums = spy.Tensor.from_numpy(get_device().handle, np.zeros((waves * voxels, 1 + 3 * K), np.float32))
    threads = waves * RAYS
    MODULE.scatterAll(
        sums,
        np.repeat(np.arange(waves) * voxels, RAYS),
        basis.reshape(threads, K).astype(np.float32),
        np.where(there, leaving, NO_VOXEL).reshape(threads, STEPS * SLOTS).astype(np.uint32),
        v.reshape(threads, STEPS * SLOTS, 4).astype(np.float32),
    )
    np.testing.assert_allclose(sums.to_numpy().reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)
    assert np.count_nonzero(expected) > 100


@pytest.mark.parametrize("likely", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("choice", [STEPS, 3 * STEPS])
def test_rays_that_meet_at_random(likely: float, choice: int) -> None:
    """No ray leaves a voxel twice, but any number of them may leave the same one, at the same step or at others."""
    rng = np.random.default_rng(50)
    order = np.argsort(rng.random((12, RAYS, SLOTS, choice)), axis=-1)[..., :STEPS]
    voxels = order.swapaxes(2, 3) * SLOTS + np.arange(SLOTS)
    assert_all_arrives(np.where(rng.random(voxels.shape) < likely, voxels, -1), choice * SLOTS)


def test_one_ray_and_one_voxel() -> None:
    voxels = np.full((2, RAYS, STEPS, SLOTS), -1)
    voxels[0, 3] = np.arange(STEPS * SLOTS).reshape(STEPS, SLOTS)
    for ray in range(RAYS):
        voxels[1, ray, ray % STEPS, 5] = 13
    assert_all_arrives(voxels, STEPS * SLOTS)
