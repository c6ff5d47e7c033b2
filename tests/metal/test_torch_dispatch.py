"""The kernels through `torch.mps.compile_shader`, with a stand-in for it (`torch_mps.py`)."""

import gc
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from splat_py import Dataset, image, rasterization
from splat_py.base.errors import SplatError
from splat_py.commands import main as cli
from splat_py.commands.selftest import checking
from splat_py.commands.selftest.checking import SelfTest
from splat_py.demo.scene import write_demo_scene
from splat_py.gpu import availability, compile_cache
from splat_py.gpu import device as devices
from splat_py.gpu.arrays import Array
from splat_py.gpu.compile_cache import EmissionCache
from splat_py.gpu.device import Adapter, Device
from splat_py.gpu.emission import EmittedKernel
from splat_py.gpu.torch_metal import TensorBuffer
from splat_py.train.benchmark import random_scene
from splat_py.volume import VolumeConfig
from tests.emulation.compiler import KernelError
from tests.emulation.fixtures import use
from tests.emulation.kernels import Specialisation
from tests.emulation.programs import Programs
from tests.metal.test_run_rest import errors_of_steps
from tests.metal.test_run_training import assert_all_close, compare_steps
from tests.metal.torch_mps import TorchMps

CAPTURE = 4, 32
CHOOSE = devices.choose


@pytest.fixture
def mps(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> TorchMps:
    """torch's Metal, with tensors on the CPU."""
    stand_in = TorchMps(programs.compiler)
    monkeypatch.setattr(availability, "TORCH_DEVICE", "cpu")
    monkeypatch.setattr(torch.mps, "compile_shader", stand_in.compile_shader)
    monkeypatch.setattr(torch.mps, "synchronize", stand_in.synchronize)
    monkeypatch.setattr(torch.mps, "Event", stand_in.event)
    return stand_in


@pytest.fixture
def device(mps: TorchMps, programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The default device, emulated."""

    def emit(target: str, module: str, entry: str, constants: dict[str, object]) -> EmittedKernel:
        return programs.kernel(Specialisation(module, entry, tuple(sorted(constants.items()))))

    monkeypatch.setattr(compile_cache, "emit", emit)
    monkeypatch.setattr(compile_cache, "cache_folder", lambda: tmp_path)
    opened = devices.open_device(Adapter("mps", "torch's Metal on the CPU", ()))
    use(opened, monkeypatch)
    return opened


def test_steps_land_where_the_other_device_does(dataset: Dataset, native: Device, device: Device) -> None:
    compare_steps(dataset, native, device)


def render(device: Device | None, **changed: torch.Tensor) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Render Gaussians of every size from two cameras: return the inputs, and images, alphas and all gradients."""
    arrays, focal = random_scene(60, 24)
    arrays["scales"] = arrays["scales"] * np.geomspace(0.5, 8, 60, dtype=np.float32)[:, None]
    inputs = {name: torch.from_numpy(array) for name, array in arrays.items()}
    viewmats = torch.eye(4).repeat(2, 1, 1)
    viewmats[1, 0, 3] = 0.2
    Ks = torch.tensor([[focal, 0, 12], [0, focal, 12], [0, 0, 1]]).repeat(2, 1, 1)
    inputs |= {"viewmats": viewmats, "Ks": Ks, "backgrounds": torch.full((2, 3), 0.3)} | changed
    leaves = {name: tensor.requires_grad_() for name, tensor in inputs.items() if name != "Ks"}
    images, alphas, _ = rasterization(**inputs, width=24, height=24, sh_degree=3, packed=False, device=device)
    weights = torch.linspace(-1, 1, images.numel()).reshape(images.shape)
    ((images * weights).sum() + (alphas**2).sum()).backward()
    gradients = {f"v_{name}": leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    return inputs, {"images": images.detach(), "alphas": alphas.detach(), **gradients}


def test_autograd_from_end_to_end(native: Device, device: Device, mps: TorchMps) -> None:
    _, expected = render(native)
    before = mps.dispatches
    inputs, actual = render(None)
    assert mps.dispatches > before + 10, "nothing ran through torch"
    fresh, _ = random_scene(60, 24)
    for name in ("means", "quats", "opacities", "colors"):
        np.testing.assert_array_equal(inputs[name].detach().numpy(), fresh[name], err_msg=f"{name} was written to")
    assert "v_viewmats" in actual
    assert_all_close(actual, expected)
    # Results are not views, so a caller may change them in place.
    images, _, _ = rasterization(**inputs, width=24, height=24, sh_degree=3)
    images.clamp_(0, 1)


def test_nothing_is_copied_through_the_host(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only copies are counts of intersections, which size the lists."""
    moved: list[int] = []
    reads, writes = TensorBuffer.to_numpy, Array.write

    def read(self: TensorBuffer) -> Any:
        moved.append(self.size)
        return reads(self)

    def write(self: Array, values: Any) -> None:
        moved.append(self.nbytes)
        writes(self, values)

    render(None)
    monkeypatch.setattr(TensorBuffer, "to_numpy", read)
    monkeypatch.setattr(Array, "write", write)
    render(None)
    assert len(moved) <= 4 and sum(moved) <= 64, moved


def test_inputs_that_lie_anywhere(native: Device, device: Device) -> None:
    """Aligned and unaligned beginnings, strides, and halves of a tensor."""
    both = torch.rand(2, 60)
    strided = torch.rand(60, 2)[:, 0]
    for opacities in (both[1], torch.rand(61)[1:], strided):
        (_, expected), (_, actual) = (render(other, opacities=opacities.detach()) for other in (native, device))
        assert_all_close(actual, expected)


def test_arrays_are_tensors_and_tensors_arrays(device: Device) -> None:
    memory = device.memory
    tensor = torch.arange(12, dtype=torch.float32).reshape(4, 3)
    array = memory.array(tensor)
    assert array.shape == (4, 3) and array.dtype == np.float32
    assert array.tensor().data_ptr() == tensor.data_ptr(), "a copy"
    # Arrays begin at 16-byte boundaries, as kernels may load that much at once; other inputs are copied.
    beginnings = [memory.array(tensor.flatten()[at:]).tensor().data_ptr() - tensor.data_ptr() for at in (4, 8)]
    assert beginnings == [16, 32]
    for other in (tensor.flatten()[1:], tensor.T, tensor[:, 0]):
        copied = memory.array(other).tensor()
        assert torch.equal(copied, other) and copied.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    rows = tensor[1:, 1:]
    owner = memory.owner_of(rows)
    assert owner is not None and owner.shape == (12,) and owner.tensor().data_ptr() == tensor.data_ptr()
    assert memory.owner_of(torch.zeros(3, dtype=torch.float64)) is None


def test_memory_lives_as_long_as_anybody_looks(device: Device) -> None:
    before = device.memory.live_bytes
    array = device.memory.array(np.arange(1000, dtype=np.float32))
    assert device.memory.live_bytes >= before + 4000
    tensor, bits = array.tensor(), array.as_uint32
    del array
    assert device.memory.live_bytes >= before + 4000
    del bits
    gc.collect()
    assert device.memory.live_bytes == before
    device.memory.array(np.zeros(1000, np.float32))
    assert torch.equal(tensor, torch.arange(1000, dtype=torch.float32))


def test_copies_clears_and_what_the_host_writes(device: Device) -> None:
    """Nothing happens before the commands are submitted; then they run in order."""
    memory = device.memory
    source, target = memory.array(np.arange(4, dtype=np.uint32)), memory.array(np.full(8, 7, np.uint32))
    recorder = device.record()
    recorder.clear(target)
    recorder.copy(source, target, 8)
    np.testing.assert_array_equal(target.numpy(), 7)
    submission = recorder.submit(wait=False)
    device.wait(submission)
    device.wait(submission)
    np.testing.assert_array_equal(target.numpy(), [0, 0, 0, 1, 2, 3, 0, 0])
    read = target.numpy()
    target.write(torch.ones(8, dtype=torch.uint32))
    np.testing.assert_array_equal(target.numpy(), 1)
    assert read[3] == 1, "reads return a copy"


def test_a_volumes_steps(native: Device, device: Device) -> None:
    config = VolumeConfig((3, 6), 2, sh_degree=1, total_variation=1e-3)
    np.testing.assert_allclose(errors_of_steps(config, device), errors_of_steps(config, native), rtol=1e-4)


def test_an_image_and_its_gradient(native: Device, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    params = torch.from_numpy(rng.uniform(0.2, 0.8, (9, 30)).astype(np.float32))
    results = []
    for other in (native, device):
        monkeypatch.setattr(devices, "_open", lambda adapter, other=other: other)
        leaf = params.clone().requires_grad_()
        picture = image.render(leaf, 20, 16)
        (picture**2).sum().backward()
        assert leaf.grad is not None
        results.append((picture.detach(), leaf.grad))
    for expected, actual in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


# --- what is wrong is said ---


def test_a_kernel_that_does_not_compile(device: Device, mps: TorchMps, monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(source: str) -> None:
        raise SyntaxError("program_source:3:1: warning: odd\nprogram_source:7:5: error: unknown type name 'half5'\n  half5 x;")

    monkeypatch.setattr(torch.mps, "compile_shader", reject)
    with pytest.raises(SplatError, match=r"^torch cannot compile the Metal source of prefix_sum\.scanBlocks: .*error: unk"):
        devices.get_device().kernels.get("prefix_sum", "scanBlocks")


def test_a_dispatch_that_torch_refuses(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.metal.torch_mps._MOST_THREADS", 8)
    with pytest.raises(SplatError, match=r"^torch cannot dispatch \w+\.\w+: Threadgroup size exceeds 8 limit"):
        render(None)


# --- the source on disk ---


def test_source_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[dict[str, Any]] = []

    def emit(target: str, module: str, entry: str, constants: dict[str, Any]) -> EmittedKernel:
        emitted.append(constants)
        return EmittedKernel(f"kernel {entry}", (64, 1, 1))

    monkeypatch.setattr(compile_cache, "emit", emit)
    monkeypatch.setattr(compile_cache, "cache_folder", lambda: tmp_path / "kept")
    for _ in range(2):
        assert EmissionCache().get("prefix_sum", "scanBlocks", {}) == ("kernel scanBlocks", (64, 1, 1))
    assert len(emitted) == 1
    (file,) = (tmp_path / "kept" / "metal").iterdir()
    for damage in (b"", file.read_bytes()[:-3], b"\xff\xfe", file.read_bytes().replace(b"64", b"65")):
        file.write_bytes(damage)
        assert EmissionCache().get("prefix_sum", "scanBlocks", {}).threads == (64, 1, 1)
    assert len(emitted) == 5
    # A folder that cannot be written only costs emitting again.
    monkeypatch.setattr(compile_cache, "cache_folder", lambda: file)
    assert EmissionCache().get("prefix_sum", "scanBlocks", {}).source == "kernel scanBlocks"


# --- the self-test ---


def test_the_selftest_has_both_ways_in_its_file(native: Device, device: Device, tmp_path: Path) -> None:
    names = ("prefix sum", "project Pinhole")
    tests = [SelfTest(other) for other in (native, device)]
    for test in tests:
        test.cases = test.cases[:2]
        assert all(outcome.verdict == "ok" for outcome in test.run()), (names, test.outcomes)
    checking.save(tmp_path / "both.json", tests, {"metal": f"no Xcode in {Path.home()}/Applications"})
    report = json.loads((tmp_path / "both.json").read_text())
    assert report["passed"] and len(report["cases"]) == 2
    (other,) = report["other devices"]
    assert other["device"]["backend"] == "mps" and len(other["cases"]) == 2
    assert report["not tested"] == {"metal": "no Xcode in ~/Applications"}


# --- the stand-in is as strict as torch, or stricter ---

KERNEL = """
#include <metal_stdlib>
using namespace metal;
[[kernel]] void test(uint3 thread_0 [[thread_position_in_threadgroup]], uint3 group_0 [[threadgroup_position_in_grid]],
    uint device* out_0 [[buffer(0)]], uint constant* words_0 [[buffer(1)]])
{
    uint i_0 = group_0.x * 4U + thread_0.x;
    out_0[i_0] = words_0[i_0 % 4U];
}
"""


@pytest.mark.parametrize(
    ("argument", "casts", "expected"),
    [
        # torch/csrc/mps/Module.cpp, OptionalArgCaster::setValue: cast<int64_t>, cast<float>, cast<std::vector<int64_t>>.
        ([1, -1], None, [1, 0, 2**32 - 1, 2**32 - 1]),
        ([1, 2, 3, -1], "int32", [1, 2, 3, 2**32 - 1]),
        ([1, 2, 3, 4], {1: "int32"}, [1, 2, 3, 4]),
        ([1.0, 0.0, -2.0, 0.5], None, [0x3F800000, 0, 0xC0000000, 0x3F000000]),
        (torch.tensor([9, 9, 9, 9, 5, 6, 7, 8], dtype=torch.int32)[4:], None, [5, 6, 7, 8]),
    ],
)
def test_arguments(argument: Any, casts: Any, expected: list[int], mps: TorchMps) -> None:
    out = torch.zeros(12, dtype=torch.int32)
    # Groups run in order, and the kernel must not touch the tensor's first four elements.
    mps.compile_shader(KERNEL).test(out[4:], argument, threads=[8, 1, 1], group_size=[4, 1, 1], arg_casts=casts)
    np.testing.assert_array_equal(out.numpy().view(np.uint32), [0] * 4 + expected * 2)


@pytest.mark.parametrize(
    ("arguments", "how", "says"),
    [
        (([1, 2],), {}, "takes buffers"),
        ((torch.zeros(8), [1, 2], 3), {}, "takes buffers"),
        ((torch.zeros(8), []), {}, "Empty list"),
        ((torch.zeros(8), None), {}, "Unsupported argument type"),
        ((5, [1, 2]), {}, "device memory"),
        ((torch.zeros(16)[::2], [1, 2]), {}, "contiguous"),
        ((torch.zeros(9)[1:], [1, 2]), {}, "aligned"),
        ((torch.zeros(8), [2**63, 1]), {}, "int64_t"),
        # Eight bytes for a kernel that reads sixteen: the result of a cast, or of one number instead of a list.
        ((torch.zeros(8), [1, 2]), {"arg_casts": "int32"}, "argument 1"),
        ((torch.zeros(8), 1), {}, "argument 1"),
        ((torch.zeros(4), [1, 2]), {}, "argument 0"),
        # MetalKernelFunction::dispatch is [encoder dispatchThreads:threadsPerThreadgroup:], which accepts any number.
        ((torch.zeros(8), [1, 2]), {"threads": [7, 1, 1]}, "whole groups"),
        ((torch.zeros(8), [1, 2]), {"threads": [8]}, "size"),
        ((torch.zeros(8), [1, 2]), {"group_size": None}, "undefined"),
        ((torch.zeros(8), [1, 2]), {"threads": [2048, 1, 1], "group_size": [2048, 1, 1]}, "limit"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], how: dict[str, Any], says: str, mps: TorchMps) -> None:
    with pytest.raises((KernelError, RuntimeError, ValueError), match=says):
        mps.compile_shader(KERNEL).test(*arguments, **{"threads": [8, 1, 1], "group_size": [4, 1, 1], **how})


def test_source_that_is_none(mps: TorchMps) -> None:
    with pytest.raises(SyntaxError, match="error"):
        mps.compile_shader(KERNEL.replace("uint i_0", "unit i_0"))
    with pytest.raises(UnicodeError):
        mps.compile_shader(KERNEL + "// σ")
    with pytest.raises(RuntimeError, match="Failed to create function state object for: other"):
        _ = mps.compile_shader(KERNEL).other
    event = mps.event()
    with pytest.raises(KernelError, match="never recorded"):
        event.synchronize()


# --- the command line ---


@pytest.fixture
def found(mps: TorchMps, device: Device, native: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's Metal among the machine's own devices, for a choice by name."""
    everything = (device.adapter, native.adapter)
    monkeypatch.setattr(devices, "adapters", lambda: everything)
    monkeypatch.setattr(devices, "choose", CHOOSE)
    monkeypatch.setattr(devices, "_open", lambda adapter: device if adapter is device.adapter else native)


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["splat", *map(str, arguments)])
    with suppress(SystemExit):
        cli.main()


def test_train(found: None, mps: TorchMps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = write_demo_scene(tmp_path / "demo", views=4, size=32)
    options = ("--downscale", 1, "--steps", 3, "--init", "random", "--init-num-pts", 40, "--device", "mps")
    command(monkeypatch, "train", scene, "--out", tmp_path / "run", *options)
    assert mps.dispatches > 80
    assert any((tmp_path / "run").iterdir())


def test_devices(found: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command(monkeypatch, "devices")
    printed = capsys.readouterr().out
    assert "→ mps" in printed and "torch's own MPS tensors" in printed
    monkeypatch.setenv("SPLAT_DEVICE", "software")
    assert devices.device_for(torch.zeros(1)).adapter.backend == "software"
    monkeypatch.delenv("SPLAT_DEVICE")
    assert devices.device_for(torch.zeros(1)).adapter.backend == "mps"
