"""`splat devices`, `splat bench`, and the option --device of every command."""

import json
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest

from splat_py.commands.selftest import checking
from splat_py.commands.selftest.checking import SelfTest
from splat_py.demo import scene as demo
from splat_py.demo.scene import write_demo_scene
from splat_py.gpu import device as devices
from splat_py.volume.config import VolumeConfig
from tests.commands.program import done
from tests.refusals import refused


def test_devices_says_what_is_taken_and_why(tmp_path: Path) -> None:
    printed = done("devices", cwd=tmp_path)
    assert "→" in printed
    assert "SPLAT_DEVICE" in printed


def test_bench_writes_medians(tmp_path: Path) -> None:
    done("bench", "--gaussians", 500, "--side", 64, "--repeats", 2, "--out", "figures.json", cwd=tmp_path)
    (times,) = json.loads((tmp_path / "figures.json").read_text())["benchmarks"].values()
    assert times["forward_and_backward"] > times["forward"] > 0


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a device; a request for the default one fails."""
    backend = devices.get_device().adapter.backend
    choose = devices.choose

    def refuse(name: str | None = None) -> devices.Adapter:
        assert name, "--device names a device, and something takes the default one"
        return choose(name)

    monkeypatch.setattr(devices, "choose", refuse)
    return backend


def test_commands_stay_on_their_device(capture: Path, tmp_path: Path, named: str) -> None:
    done("train", capture, "--steps", 4, "--out", "run", "--device", named, cwd=tmp_path)
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["held_out"]["views"]
    done("eval", "run", "--device", named, cwd=tmp_path)
    done("render", "run", "--out", "views", "--video", "orbit.mp4", "--frames", 2, "--device", named, cwd=tmp_path)
    iio.imwrite(tmp_path / "grey.png", np.full((20, 30, 3), 100, np.uint8))
    done("fit-image", "grey.png", "--blobs", 20, "--steps", 3, "--out", "fit", "--video", "--device", named, cwd=tmp_path)
    options = ("--resolutions", 4, "--steps-per-resolution", 2, "--sh-degree", 0, "--frames", 2)
    done("fit-volume", capture, *options, "--out", "field", "--device", named, cwd=tmp_path)
    done("bench", "--gaussians", 50, "--side", 32, "--repeats", 1, "--device", named, cwd=tmp_path)


def test_selftest_stays_on_its_device(tmp_path: Path, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One case of each kind; tests/commands/selftest runs all of them on a device that it names."""
    few = ("prefix sum", "render, RGB, classic", "loss and SSIM", "image, fitting step, tiles", "portable baseline")
    cases = [case for case in checking.cases() if case.name in few]
    assert len(cases) == len(few)
    monkeypatch.setattr(checking, "cases", lambda: cases)
    monkeypatch.setattr(SelfTest, "_time_render", lambda self: {})
    done("selftest", "--device", named, cwd=tmp_path)


def test_the_demo_stays_on_its_device(tmp_path: Path, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "write_demo_scene", lambda folder, size: write_demo_scene(folder, views=13, size=16))
    for name, value in (("_FRAMES", 3), ("_BLOBS", 20), ("_IMAGE_STEPS", 2), ("_FIELD", VolumeConfig((4,), 2))):
        monkeypatch.setattr(f"splat_py.commands.devices.{name}", value)
    done("demo", "--steps", 3, "--out", "demo", "--device", named, cwd=tmp_path)
    assert iio.imread(tmp_path / "demo" / "side-by-side.png").shape[0] == 2 * 16


@pytest.mark.parametrize("name", ["vulkan:²", "vulkan:٣", "vulkan:-1", "vulkan:" + "9" * 5000, "vulkan:1_0", "²", "[bold]x"])
def test_names_that_mean_nothing(name: str) -> None:
    refused("is not known; use one of", devices.choose, name)
