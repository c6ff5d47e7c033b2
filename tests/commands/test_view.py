"""`splat view`, and `splat render` along a camera path that it saved."""

import re
import shutil
import signal
import threading
import time
from pathlib import Path

import imageio.v3 as iio
import pytest

from splat_py import Camera
from splat_py.scene.camera_paths import Keyframe, KeyframePath
from splat_py.viewer.opening import open_viewed
from tests.commands.program import done, refusal, splat
from tests.refusals import refused


@pytest.fixture
def keyframes(tmp_path: Path) -> Path:
    cameras = [Camera.look_at((x, -3, 2), (0, 0, 0.5), (0, 0, 1), 50, 50, 40) for x in (-1, 1)]
    path = KeyframePath(tuple(Keyframe.of_camera(camera, 0.1 * i) for i, camera in enumerate(cameras)), (50, 40))
    path.save(tmp_path / "path.json")
    return tmp_path / "path.json"


def test_render_follows_keyframes_with_and_without_a_capture(run: Path, keyframes: Path) -> None:
    folder = keyframes.parent
    for i, scene in enumerate((run, run / "scene.ply")):
        done("render", scene, "--path", keyframes, "--video", f"{i}.mp4", "--scale", 1, cwd=folder)
        assert iio.imread(folder / f"{i}.mp4").shape == (4, 40, 50, 3)
    options = ("--path", "spiral", "--frames", 3, "--scale", 1, "--aperture", 0.1)
    done("render", run, "--video", "s.gif", *options, cwd=folder)
    keyframes.write_text("{}")
    assert "path.json" in refusal("render", run, "--path", keyframes, "--video", "a.mp4", cwd=folder)


def test_without_viser_it_says_what_to_install(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "viser", None)
    assert "pip install 'slang-splat[viewer]'" in refusal("view", run, cwd=tmp_path)
    (tmp_path / "transforms.json").write_text("{}")
    assert "pip install 'slang-splat[viewer]'" in refusal("train", tmp_path, "--out", "new", "--viewer", cwd=tmp_path)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_ctrl_c_ends_it_cleanly(run: Path, tmp_path: Path, host: str) -> None:
    pytest.importorskip("viser")
    timer = threading.Timer(3.0, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT))
    timer.start()
    result = splat("view", run, "--port", 0, "--host", host, cwd=tmp_path)
    assert result.returncode == 0
    assert "Gaussians, 9 photographs: open http://localhost:" in result.stdout
    assert ("everybody who has the address below" in result.stderr) is (host == "0.0.0.0")
    assert bool(re.search(r"localhost:\d+/[\w-]{20,}/ ", result.stdout)) is (host == "0.0.0.0")
    assert "Traceback" not in result.stderr


def test_a_run_is_opened_with_or_without_its_capture(run: Path, capture: Path, tmp_path: Path) -> None:
    scene = open_viewed(run)
    assert scene.gaussians is not None and scene.dataset is not None and scene.folder == run
    assert set(scene.scores) == set(scene.dataset.test)
    # First the capture is gone, then the scene is older than the checkpoint, then there is no scene yet.
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    record = (copy / "run.json").read_text()
    (copy / "run.json").write_text(record.replace(str(capture), str(tmp_path / "gone")))
    with pytest.warns(UserWarning, match="without its capture"):
        scene = open_viewed(copy)
    assert scene.gaussians is not None and scene.dataset is None and not scene.scores
    assert scene.first_camera().width > 0
    assert open_viewed(copy, data=capture).dataset is not None
    refused("nowhere", open_viewed, copy, data=tmp_path / "nowhere")
    (copy / "run.json").write_text(record)
    time.sleep(0.01)
    (copy / "checkpoint.safetensors").touch()
    assert not open_viewed(copy).scores
    (copy / "scene.ply").unlink()
    assert len(open_viewed(copy).gaussians or ()) == len(scene.gaussians)


def test_a_scene_or_a_capture_alone(run: Path, capture: Path) -> None:
    scene = open_viewed(run / "scene.ply")
    assert scene.dataset is None and scene.gaussians is not None and scene.folder == run
    assert open_viewed(run / "scene.ply", data=capture).dataset is not None
    scene = open_viewed(capture)
    assert scene.gaussians is None and scene.dataset is not None and scene.folder == Path.cwd()
