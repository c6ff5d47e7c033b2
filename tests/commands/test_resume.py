"""`--resume`: a run keeps the options it began with."""

import json
import os
import re
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import pytest

from splat_py.fit.run_folder import recorded_metrics, run_lock
from splat_py.image import ImageFit
from splat_py.image.pictures import FitCheckpoint
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.memory import MemoryPlan, plan_memory
from splat_py.train.run import RunFolder
from splat_py.train.trainer import Trainer
from splat_py.volume import VolumeCheckpoint
from tests.commands.program import Result, done, refusal, splat

OPTIONS = ("--steps", 12, "--downscale", 2, "--test-every", 3, "--sh-degree", 0, "--init-num-pts", 50, "--init", "random")


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def signalled_at(signals: Mapping[int, int], *arguments: object, cwd: Path) -> Result:
    """Run a command and send its process signals before steps. `signals` has each signal's number by its step."""
    advance = Trainer.advance

    def advance_and_signal(trainer: Trainer) -> None:
        if trainer.step in signals:
            os.kill(os.getpid(), signals[trainer.step])
        advance(trainer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "advance", advance_and_signal)
        return splat(*arguments, cwd=cwd)


@pytest.fixture(scope="module")
def broken(capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("broken") / "run"
    result = signalled_at({4: signal.SIGTERM}, "train", capture, *OPTIONS, "--out", out, cwd=out.parent)
    assert result.returncode == 128 + signal.SIGTERM
    assert "interrupted; " in result.stderr
    assert Checkpoint.load(RunFolder(out).checkpoint).step == 5
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint.safetensors", "run.json"]
    return out


@pytest.fixture
def out(broken: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(broken, tmp_path / "run"))


def test_a_background_job_is_left_alone_by_sigint_and_ended_by_sigterm(capture: Path, tmp_path: Path) -> None:
    """Scripts start background jobs with SIGINT ignored. Ctrl-C in the script's terminal must not end them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        signals = {3: signal.SIGINT, 7: signal.SIGTERM}
        result = signalled_at(signals, "train", capture, *OPTIONS, "--out", tmp_path / "run", cwd=tmp_path)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.returncode == 128 + signal.SIGTERM == 143
    assert "interrupted; " in result.stderr
    # The step during which SIGTERM comes is finished.
    assert Checkpoint.load(RunFolder(tmp_path / "run").checkpoint).step == 8


def test_the_record_decides(out: Path, capture: Path, tmp_path: Path) -> None:
    record = (out / "run.json").read_bytes()
    assert "6 photographs, 16×16" in done("train", capture, "--out", out, "--resume", cwd=tmp_path)
    assert (out / "run.json").read_bytes() == record
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["steps"] == 12 and len(metrics["held_out"]["views"]) == 3
    assert Checkpoint.load(RunFolder(out).checkpoint).step == 12
    for command in (("eval", out, "--json", tmp_path / "scores.json"), ("render", out, "--out", tmp_path / "views")):
        done(*command, cwd=tmp_path)
    assert len(json.loads((tmp_path / "scores.json").read_text())["views"]) == 3
    assert [iio.imread(path).shape for path in (tmp_path / "views").iterdir()] == [(16, 16, 3)] * 3

    before = snapshot(out)
    result = splat("train", capture, "--out", out, "--resume", cwd=tmp_path)
    assert result.returncode == 0 and "PSNR" in result.stdout
    assert "is finished and was left as it is; a larger --steps extends it" in result.stderr
    assert snapshot(out) == before
    done("train", capture, "--out", out, "--resume", "--steps", 15, cwd=tmp_path)
    assert [point["step"] for point in json.loads((out / "metrics.json").read_text())["curve"]] == list(range(5, 15))
    assert json.loads((out / "run.json").read_text())["config"]["steps"] == 15
    assert (out / "scene.html").read_bytes() != before[str(out / "scene.html")][0]
    assert Checkpoint.load(RunFolder(out).checkpoint).config.steps == 15


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        # Options with their default values count, too.
        (("--downscale", 1), "--downscale is 1.0, but the run in .* was begun with 2.0; resume it without"),
        (("--test-every=8",), "--test-every is 8, but"),
        (("--sh_degree", 3), "--sh-degree is 3, but"),
        (("--antialiased",), "--antialiased is True, but"),
        (("--seed", 7), "--seed is 7, but"),
        (("--steps", 11), "--steps is 11, but .* begun with 12; a run can be extended, not shortened"),
    ],
    ids=str,
)
def test_a_contradiction_is_refused_by_name(option: tuple, sentence: str, out: Path, capture: Path, tmp_path: Path) -> None:
    before = snapshot(out)
    line = refusal("train", capture, "--out", out, "--resume", *option, cwd=tmp_path)
    assert re.search(sentence, line), line
    assert snapshot(out) == before


def test_what_does_not_decide_may_differ(out: Path, capture: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(capture, tmp_path / "moved")
    done("train", moved, "--out", out, "--resume", "--max-memory", "1TB", cwd=tmp_path)
    assert json.loads((out / "run.json").read_text())["data"]["data"] == str(moved)


def test_another_capture_is_refused(out: Path, capture: Path, tmp_path: Path) -> None:
    other = shutil.copytree(capture, tmp_path / "other")
    content = json.loads((other / "transforms.json").read_text())
    content["frames"][3]["transform_matrix"][0][3] += 0.01
    (other / "transforms.json").write_text(json.dumps(content))
    before = snapshot(out)
    assert "other is not what the run in" in refusal("train", other, "--out", out, "--resume", cwd=tmp_path)
    assert snapshot(out) == before


@pytest.mark.parametrize("changed", ["a photograph", "a mask"])
def test_a_changed_file_of_the_same_size_is_refused(changed: str, out: Path, capture: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(capture, tmp_path / "moved")
    photograph = sorted((moved / "images").iterdir())[2]
    if changed == "a mask":
        mask = np.full((32, 32), 255, np.uint8)
        mask[:4] = 0
        (moved / "masks").mkdir()
        iio.imwrite(moved / "masks" / photograph.name, mask)
    else:
        data = bytearray(photograph.read_bytes())
        data[-20] ^= 1
        photograph.write_bytes(data)
    sentence = "photographs, masks or depths of .*moved have changed since the run in .* was begun; restore them"
    assert re.search(sentence, refusal("train", moved, "--out", out, "--resume", cwd=tmp_path))


def test_damaged_metrics_begin_anew(out: Path, capture: Path, tmp_path: Path) -> None:
    whole: dict[str, Any] = {"steps": 9, "curve": [], "held_out": {"views": []}}
    damaged = [{"curve": 3}, {"curve": [3]}, {"curve": [{"step": "a"}]}, {"steps": None}, {"held_out": [{}]}, {"held_out": {}}]
    for text in ("", "[", "[3]", *(json.dumps(whole | change) for change in damaged)):
        (out / "metrics.json").write_text(text)
        with pytest.warns(UserWarning, match=r"metrics.json is damaged \(.*\); its curve and scores begin anew"):
            assert recorded_metrics(out / "metrics.json") == {}
    assert "begin anew" in splat("train", capture, "--out", out, "--resume", cwd=tmp_path).stderr
    assert recorded_metrics(out / "metrics.json")["steps"] == 12


def test_a_run_of_an_older_version_goes_on(out: Path, capture: Path, tmp_path: Path) -> None:
    path = out / "run.json"
    content = json.loads(path.read_text())
    del content["dataset"], content["files"]
    path.write_text(json.dumps(content))
    shutil.copytree(capture, tmp_path / "other")
    assert "DATA is other, but" in refusal("train", "other", "--out", out, "--resume", cwd=tmp_path)
    done("train", capture, "--out", out, "--resume", cwd=tmp_path)
    assert json.loads(path.read_text()) == content


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b"{}", b'{"data": "x", "config": {}}'])
def test_a_damaged_record(content: bytes, out: Path, capture: Path, tmp_path: Path) -> None:
    (out / "run.json").write_bytes(content)
    assert "run.json is damaged" in refusal("train", capture, "--out", out, "--resume", cwd=tmp_path)


def test_a_folder_in_use(out: Path, capture: Path, tmp_path: Path) -> None:
    with run_lock(out), run_lock(tmp_path / "new"):
        before = snapshot(tmp_path)
        for command in (
            ("train", capture, "--out", out, "--resume"),
            ("train", capture, "--steps", 9, "--out", "new"),
            ("fit-volume", capture, "--out", "new"),
            ("fit-image", capture / "transforms.json", "--out", "new"),
        ):
            assert "is in use by another run" in refusal(*command, cwd=tmp_path)
        assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("command", "name"), [("train", "scene.ply"), ("fit-volume", "field.safetensors"), ("fit-image", "fit.png")]
)
def test_files_of_others_are_not_overwritten(command: str, name: str, capture: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"precious")
    of = sorted((capture / "images").iterdir())[0] if command == "fit-image" else capture
    assert f"{name} exists and would be overwritten" in refusal(command, of, "--out", tmp_path, cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("command", ["train", "fit-volume"])
def test_a_photograph_that_proves_damaged_while_training_leaves_nothing(
    command: str, capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Photographs that do not fit into memory are decoded one by one. An older run that meets a damaged one stays."""

    def plan_without_photographs(*arguments: Any) -> MemoryPlan:
        return replace(plan_memory(*arguments), photographs=0, decoded=0)

    monkeypatch.setattr("splat_py.train.trainer.plan_memory", plan_without_photographs)
    limit = ("--max-memory", "1KB") if command == "fit-volume" else ()
    moved, short = shutil.copytree(capture, tmp_path / "capture"), (*limit, "--test-every", 0)
    options = ("--sh-degree", 0, "--frames", 0, "--resolutions", 4) if command == "fit-volume" else ("--sh-degree", 0)
    steps = "--steps" if command == "train" else "--steps-per-resolution"
    begun = (command, "capture", *short, *options, "--out", "older")
    done(*begun, steps, 2, cwd=tmp_path)
    longer = (steps, 9) if command == "train" else ("--resolutions", 4, 8)
    before = snapshot(tmp_path / "older").keys()
    for path in (moved / "images").iterdir():
        path.write_bytes(path.read_bytes()[:500])
    line = refusal(command, "capture", *short, *options, steps, 2, "--out", "deep/new", cwd=tmp_path)
    assert "cannot be decoded" in line or "damaged" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["capture", "older"]
    resumed = (command, "capture", "--out", "older", "--resume", *limit, *longer)
    refusal(*resumed, *(("--frames", 0) if command == "fit-volume" else ()), cwd=tmp_path)
    assert snapshot(tmp_path / "older").keys() == before


def test_fit_volume(capture: Path, tmp_path: Path) -> None:
    options = ("--downscale", 2, "--resolutions", 4, 6, "--steps-per-resolution", 2, "--sh-degree", 0, "--test-every", 3)
    fit = ("fit-volume", capture, "--out", "run", "--frames", 0)
    begun = ("fit-volume", capture, "--out", "run", *options, "--export", "field.npz", "--frames", 2)
    assert "held-out views: PSNR" in done(*begun, cwd=tmp_path)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"field.safetensors", "checkpoint.safetensors", "metrics.json", "held-out", "turntable.mp4"} <= names
    with np.load(tmp_path / "field.npz") as field:
        assert max(field["density"].shape) == 6
    before = snapshot(tmp_path)
    assert "is finished and was left as it is" in done(*fit, "--resume", cwd=tmp_path)
    assert "--downscale is 1.0, but" in refusal(*fit, "--resume", "--downscale", 1, cwd=tmp_path)
    assert "--steps-per-resolution is 100, but" in refusal(*fit, "--resume", "--steps-per-resolution", 100, cwd=tmp_path)
    assert "--resolutions is 4 8, but" in refusal(*fit, "--resume", "--resolutions", 4, 8, cwd=tmp_path)
    assert "--box is" in refusal(*fit, "--resume", "--box", 0, 0, 0, 1, 1, 1, cwd=tmp_path)
    assert snapshot(tmp_path) == before
    done(*fit, "--resume", "--resolutions", 4, 6, 8, cwd=tmp_path)
    checkpoint = VolumeCheckpoint.load(tmp_path / "run" / "checkpoint.safetensors")
    assert checkpoint.step == 6 and max(checkpoint.state["grid"].shape[:3]) == 8
    assert len(json.loads((tmp_path / "run" / "metrics.json").read_text())["held_out"]["views"]) == 3


def test_fit_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("picture.png", "other.png"):
        iio.imwrite(tmp_path / name, np.random.default_rng(len(name)).integers(0, 255, (12, 14, 3), dtype=np.uint8))
    fit, out = ("fit-image", "picture.png", "--out", "out"), tmp_path / "out"
    done(*fit, "--blobs", 20, "--steps", 4, cwd=tmp_path)
    before = snapshot(tmp_path)
    assert "is finished and was left as it is; a larger --steps extends it" in done(*fit, "--resume", cwd=tmp_path)
    assert "--blobs is 40960, but" in refusal(*fit, "--resume", "--blobs", 40960, cwd=tmp_path)
    assert "--steps is 3, but" in refusal(*fit, "--resume", "--steps", 3, cwd=tmp_path)
    contradiction = "--background is 0.0 0.0 0.0, but the run in out was begun with 1.0 1.0 1.0"
    assert contradiction in refusal(*fit, "--resume", "--background", 0, 0, 0, cwd=tmp_path)
    assert "of another picture" in refusal("fit-image", "other.png", "--out", "out", "--resume", cwd=tmp_path)
    assert "already holds a run; continue it with --resume" in refusal(*fit, cwd=tmp_path)
    assert snapshot(tmp_path) == before

    # An extended run that stops before it saves its result is not finished.
    with monkeypatch.context() as patch:
        patch.setattr(ImageFit, "save", lambda result, path: os.kill(os.getpid(), signal.SIGTERM))
        assert splat(*fit, "--resume", "--steps", 7, cwd=tmp_path).returncode == 128 + signal.SIGTERM
    assert json.loads((out / "run.json").read_text())["config"]["steps"] == 7
    assert FitCheckpoint.load(out / "checkpoint.safetensors").step == 7
    assert "PSNR" in done(*fit, "--resume", cwd=tmp_path)
    assert "is finished" in done(*fit, "--resume", "--steps", 7, cwd=tmp_path)
    kept = FitCheckpoint.load(out / "checkpoint.safetensors")
    np.testing.assert_array_equal(ImageFit.load(out / "blobs.safetensors").params, kept.params)
    assert (kept.step, kept.steps) == (7, 7)


def test_equal_names_of_photographs(capture: Path, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    content = json.loads((capture / "transforms.json").read_text())
    content.pop("ply_file_path", None)
    for index, frame in enumerate(content["frames"]):
        photograph = capture / frame["file_path"]
        frame["file_path"] = f"{'left' if index % 2 else 'right'}/{index // 2}{photograph.suffix}"
        (tmp_path / "two" / frame["file_path"]).parent.mkdir(exist_ok=True)
        shutil.copy(photograph, tmp_path / "two" / frame["file_path"])
    (tmp_path / "two" / "transforms.json").write_text(json.dumps(content))
    options = ("--steps", 1, "--test-every", 2, "--sh-degree", 0, "--init-num-pts", 50, "--init", "random")
    options += ("--test-split", "first")
    done("train", "two", *options, "--out", "run", cwd=tmp_path)
    held_out = sorted(path.name for path in (tmp_path / "run" / "held-out").iterdir())
    assert held_out == ["4.png", "left-0.png", "left-2.png", "right-0.png", "right-2.png"]
    done("render", "run", "--views", "all", "--out", "views", cwd=tmp_path)
    assert len(list((tmp_path / "views").iterdir())) == 9
