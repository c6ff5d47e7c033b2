"""No Vulkan loader, no driver, a driver too old, and a device that is lost while a run trains.

Environment variables make the loader take a broken driver, or fake_driver.c, which passes every call on to the software
driver except the one that must fail. Each case runs in its own process.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from splat_py import Gaussians
from splat_py.base.errors import DeviceLostError
from splat_py.gpu.availability import NEEDED_EXTENSION, drivers, has_loader
from splat_py.scene.data_options import DataOptions
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.run import train
from splat_py.train.trainer import Trainer

HERE = Path(__file__).parent
MANIFESTS = [
    Path(root) / "vulkan" / "icd.d" for root in ("/usr/share", "/usr/local/share", "/etc", Path.home() / ".local" / "share")
]
CAPTURE = 4, 24
STEPS, CHECKPOINT_EVERY = 60, 20
LOST = "submit failed with error: -1 (SLANG_FAIL)\nVK_ERROR_DEVICE_LOST"

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="the loader and its variables are those of Linux")


def environment(**changes: str) -> dict[str, str]:
    """Environment variables for Vulkan only, without a device that the user asked for."""
    own = ("SPLAT_DEVICE", "VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES")
    kept = {name: value for name, value in os.environ.items() if name not in own}
    if "manifest" in changes:
        # Loaders before 1.3.207 read the second name.
        manifest = changes.pop("manifest")
        changes |= {"VK_DRIVER_FILES": manifest, "VK_ICD_FILENAMES": manifest}
    return {**kept, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200", **changes}


def python(*arguments: object, cwd: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment(**changes), capture_output=True, text=True, timeout=120)


def write_manifest(folder: Path, library: Path) -> str:
    manifest = folder / "driver.json"
    icd = {"library_path": str(library), "api_version": "1.3.0"}
    manifest.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))
    return str(manifest)


def not_a_library(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text("not a library\n")
    return path


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables that put fake_driver.c between the loader and the software driver."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler, to build a driver that fails on purpose")
    found = [path for folder in MANIFESTS for path in sorted(folder.glob("lvp_icd*.json"))]
    if not found:
        pytest.skip("needs Mesa's software driver, which the failing driver stands in front of")
    real = json.loads(found[0].read_text())["ICD"]["library_path"]
    if "/" in real:
        real = str((found[0].parent / real).resolve())
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libfake_driver.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, HERE / "fake_driver.c", "-ldl"], check=True)
    return {"manifest": write_manifest(folder, library), "FAKE_DRIVER_REAL": real}


def check_that_nothing_runs_and_all_say(pattern: str, cwd: Path, **changes: str) -> None:
    # Make the folder look like a capture, so it is not refused before the command asks for a device.
    (cwd / "transforms.json").write_text("{}")
    process = python(HERE / "everything.py", cwd=cwd, **changes)
    assert process.returncode == 0, process.stdout + process.stderr
    # SlangPy and the loader print nothing themselves.
    assert process.stderr == ""
    results: dict[str, Any] = json.loads(process.stdout)
    for command in ("devices", "train"):
        result = results[command]
        assert result["code"] == 1
        assert re.fullmatch(rf"splat: .*{pattern}.*\n", result["err"]), result["err"]
    assert re.search(pattern, results["native"]["error"]) and re.search(pattern, results["auto"]["error"])
    assert results["portable"]["backend"] == "portable"
    assert results["portable"]["flat"] and results["portable"]["warnings"] == []
    assert not list(cwd.glob("nothing*"))


def test_no_loader(tmp_path: Path) -> None:
    for name in ("libvulkan.so", "libvulkan.so.1"):
        not_a_library(tmp_path, name)
    check_that_nothing_runs_and_all_say(
        "there is no Vulkan loader; install the Vulkan loader", tmp_path, LD_LIBRARY_PATH=str(tmp_path)
    )


def test_no_driver(tmp_path: Path) -> None:
    if not has_loader():
        pytest.skip("needs the Vulkan loader, which is to find no driver")
    nowhere = str(tmp_path / "nowhere.json")
    check_that_nothing_runs_and_all_say("the Vulkan loader found no driver that works; install", tmp_path, manifest=nowhere)


def test_a_driver_too_old(tmp_path: Path, fake_driver: dict[str, str]) -> None:
    """The error names the version that was found and the one that is needed."""
    pattern = rf"its driver, Mesa 22\.3\.6, is too old and lacks {NEEDED_EXTENSION}; install Mesa 23 or later"
    check_that_nothing_runs_and_all_say(pattern, tmp_path, FAKE_DRIVER_VERSION="22.3.6", **fake_driver)


def test_a_broken_driver(tmp_path: Path) -> None:
    """A real process, without the harness around `main`: its exit code and streams."""
    if not has_loader():
        pytest.skip("needs the Vulkan loader, which is to load the broken driver")
    broken = write_manifest(tmp_path, not_a_library(tmp_path, "libbroken.so"))
    process = python("-m", "splat_py", "devices", cwd=tmp_path, manifest=broken)
    assert process.returncode == 1 and process.stdout == ""
    assert re.fullmatch(r"splat: .* the Vulkan loader found no driver that works; install a driver, .*\n", process.stderr)


def test_drivers_of_this_machine() -> None:
    if not has_loader():
        pytest.skip("needs the Vulkan loader")
    for driver in drivers():
        assert driver.adapter and re.search(r"\d", driver.version) and "VK_KHR_8bit_storage" in driver.extensions


# --- loss ---


def test_a_lost_device_leaves_a_checkpoint_to_resume_from(capture: Path, tmp_path: Path, fake_driver: dict[str, str]) -> None:
    out = tmp_path / "run"
    checkpoint = out / "checkpoint.safetensors"
    command = ("-m", "splat_py", "train", capture, "--out", out)
    lost = (
        rf"splat: the device stopped working \(VK_ERROR_DEVICE_LOST\): .*; {re.escape(str(checkpoint))} is safe: continue .*\n"
    )

    fresh = ("--steps", STEPS, "--checkpoint-every", CHECKPOINT_EVERY, "--sh-degree", 0, "--test-every", 0)
    process = python(*command, *fresh, cwd=tmp_path, FAKE_DRIVER_LOST_AFTER="30", **fake_driver)
    assert process.returncode == 1
    # The driver's own output stands above it.
    assert re.search(rf"^{lost}\Z", process.stderr, re.MULTILINE), process.stderr
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint.safetensors", "run.json"]
    assert Checkpoint.load(checkpoint).step == CHECKPOINT_EVERY

    process = python(*command, "--resume", "--test-every", 0, cwd=tmp_path, **fake_driver)
    assert process.returncode == 0, process.stderr
    assert Checkpoint.load(checkpoint).step == STEPS
    assert len(Gaussians.load_ply(out / "scene.ply")) > 0


@pytest.mark.parametrize(
    "command",
    [
        ("fit-image", "{capture}/images/{photograph}", "--blobs", 30, "--steps", 40, "--out", "run"),
        ("fit-volume", "{capture}", "--resolutions", 8, "--steps-per-resolution", 40, "--out", "run"),
    ],
    ids=lambda command: command[0],
)
def test_the_other_fits_say_that_the_device_is_lost(
    command: tuple[object, ...], capture: Path, tmp_path: Path, fake_driver: dict[str, str]
) -> None:
    photograph = sorted((capture / "images").iterdir())[0].name
    filled = [str(word).format(capture=capture, photograph=photograph) for word in command]
    process = python("-m", "splat_py", *filled, cwd=tmp_path, FAKE_DRIVER_LOST_AFTER="25", **fake_driver)
    assert process.returncode == 1, process.stderr
    assert re.search(r"^splat: the device stopped working \(VK_ERROR_DEVICE_LOST\): .*\n\Z", process.stderr, re.MULTILINE)
    assert "Traceback" not in process.stderr
    assert not [path for path in tmp_path.glob("run/*") if path.name.startswith(".")]


def test_a_device_without_memory_is_a_sentence(capture: Path, tmp_path: Path, fake_driver: dict[str, str]) -> None:
    """The error states the device's memory, and the run leaves nothing that looks like a result."""
    many = ("--init", "random", "--init-num-pts", 200_000)
    little = {**fake_driver, "FAKE_DRIVER_MEMORY": "96"}
    process = python("-m", "splat_py", "train", capture, "--out", "run", *many, cwd=tmp_path, **little)
    assert process.returncode == 1, process.stderr
    said = r"^splat: too little memory: splat_py holds \d+ MiB on the device and cannot get \d+ MiB more; use fewer .*\n\Z"
    assert re.search(said, process.stderr, re.MULTILINE), process.stderr
    assert "Traceback" not in process.stderr
    assert not list(tmp_path.glob("run/*.ply")) and not list(tmp_path.glob("run/*.safetensors"))


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (LOST, DeviceLostError, r"VK_ERROR_DEVICE_LOST.*; no checkpoint was due yet$"),
        ("a mistake of ours", RuntimeError, "^a mistake of ours$"),
    ],
)
def test_a_device_lost_before_the_first_checkpoint_and_other_errors(
    error: str, kind: type[Exception], message: str, capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(trainer: Trainer) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(Trainer, "advance", fail)
    with pytest.raises(kind, match=message):
        train(DataOptions(capture), TrainConfig(steps=5), tmp_path / "run")
