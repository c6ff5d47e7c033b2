"""The kernels through `torch.mps.compile_shader`, of which there is a stand-in here (`torch_mps.py`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from splat_py.demo.scene import write_demo_scene
from splat_py.gpu import device as devices
from splat_py.gpu import emission_cache, torch_metal_support
from splat_py.gpu.device import Adapter, Device
from splat_py.gpu.emission import MetalKernel
from splat_py.gpu.torch_metal import TorchMetal
from splat_py.scene import Dataset, load_dataset
from splat_py.splats.trainer import Trainer
from tests.metal.kernels import Specialisation
from tests.metal.programs import Programs
from tests.metal.test_run_training import STEPS, start
from tests.metal.torch_mps import TorchMps


@pytest.fixture
def mps(prepared: Programs, monkeypatch: pytest.MonkeyPatch) -> TorchMps:
    """torch's Metal, whose tensors are the CPU's."""
    stand_in = TorchMps(prepared.compiler)
    monkeypatch.setattr(torch_metal_support, "TORCH_DEVICE", torch.device("cpu"))
    monkeypatch.setattr(torch.mps, "compile_shader", stand_in.compile_shader)
    monkeypatch.setattr(torch.mps, "synchronize", stand_in.synchronize)
    monkeypatch.setattr(torch.mps, "Event", stand_in.event)

    def emit(module: str, entry: str, constants: dict[str, object]) -> MetalKernel:
        return prepared.kernel(Specialisation(module, entry, tuple(sorted(constants.items()))))

    monkeypatch.setattr(emission_cache, "emit_metal_kernel", emit)
    return stand_in


@pytest.fixture
def device(mps: TorchMps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TorchMetal:
    """The device that everything runs on that does not name another."""
    monkeypatch.setattr(emission_cache, "cache_folder", lambda shaders: tmp_path)
    opened = TorchMetal(Adapter("mps", "torch's Metal on the CPU", ()))
    monkeypatch.setattr(devices, "choose", lambda name=None: opened.adapter)
    monkeypatch.setattr(devices, "_open", lambda adapter: opened)
    return opened


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load_dataset(write_demo_scene(tmp_path_factory.mktemp("capture") / "demo", views=4, size=32))


def test_steps_land_where_the_other_device_does(dataset: Dataset, native: Device, device: TorchMetal) -> None:
    beginning = start(dataset, native)
    trainers = [Trainer(dataset, device=other, resume=beginning) for other in (native, device)]
    for step in range(STEPS):
        for trainer in trainers:
            trainer.advance()
            trainer.finish()
        expected, actual = (trainer.parameters.state() for trainer in trainers)
        for name, values in expected.items():
            largest = np.abs(values).max()
            np.testing.assert_allclose(actual[name], values, rtol=1e-5, atol=1e-5 * largest, err_msg=f"step {step}: {name}")
    assert np.abs(expected["means"][:10] - beginning.state["means"][:10]).max() > 1e-4, "nothing has moved"
