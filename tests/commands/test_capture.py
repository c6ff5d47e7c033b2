"""`splat capture`, and `splat train` on photographs and videos without poses."""

import shutil
import sys
from pathlib import Path

import pytest

from splat_py.capture.workspace import CaptureReport, Unregistered
from splat_py.commands.train import capture_with_progress
from splat_py.scene.data_options import CaptureOptions
from tests.capture.room import room_cameras, write_photographs
from tests.commands.program import done, refusal, splat


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_photographs(tmp_path_factory.mktemp("phone") / "photos", room_cameras(8))
    (folder / "broken.jpg").write_bytes(b"\xff\xd8")
    return folder


def test_capture_says_what_it_found_and_goes_on(photos: Path) -> None:
    printed = done("capture", "photos", "--out", "scene", cwd=photos.parent)
    assert "8 of 9 photographs have a pose" in printed
    assert "broken.jpg: " in printed and "cannot be decoded" in printed
    assert "splat train scene --out RUN" in printed
    for phase in ("photographs", "features", "matching", "mapping"):
        assert phase in printed
    assert {path.name for path in (photos.parent / "scene").iterdir()} == {"images", "sparse", "database.db", "capture.json"}
    again = splat("capture", photos, "--out", "scene", cwd=photos.parent)
    assert "8 of 9 photographs have a pose" in again.stdout and "features" not in again.stdout


def test_train_finds_the_poses_of_photographs(photos: Path) -> None:
    arguments = ("train", "photos", "--out", "run", "--downscale", "2", "--budget", "2000")
    printed = done(*arguments, "--steps", "5", cwd=photos.parent)
    assert "8 of 9 photographs have a pose" in printed and "held-out views: PSNR" in printed
    run = photos.parent / "run"
    assert all((run / name).is_file() for name in ("scene.ply", "scene.html"))
    assert (run / "captured" / "sparse" / "0").is_dir()
    shutil.move(photos / "broken.jpg", photos.parent / "broken.jpg")
    assert "have a pose" not in done(*arguments, "--steps", "8", "--resume", cwd=photos.parent)
    done("eval", "run", cwd=photos.parent)
    shutil.move(photos.parent / "broken.jpg", photos / "broken.jpg")
    # Other photographs are refused before anything is done with them, and a video too.
    (photos.parent / "others").mkdir()
    shutil.copy(photos / "IMG_0000.jpg", photos.parent / "others")
    (photos.parent / "walk.mp4").touch()
    for other in ("others", "walk.mp4"):
        line = refusal("train", other, "--out", "run", "--resume", "--steps", "9", cwd=photos.parent)
        assert f"holds the capture of {photos}, not of {photos.parent / other}" in line
    done("train", "--out", "run", "--resume", "--steps", "9", cwd=photos.parent)


def test_photographs_that_are_not_read_are_named(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    for name in ("a.CR2", "b.cr2", "c.gif"):
        (tmp_path / "photos" / name).touch()
    result = splat("capture", "photos", "--out", "scene", "--size", "200", cwd=tmp_path)
    assert "splat: RAW and GIF files are not read (2 .cr2, 1 .gif); save them as JPEG, PNG or TIFF" in result.stderr
    for path in (tmp_path / "photos").glob("*.jpg"):
        path.unlink()
    for command in ("capture", "train"):
        line = refusal(command, "photos", "--out", "x", cwd=tmp_path)
        assert "holds no photographs" in line and "(2 .cr2, 1 .gif)" in line
    assert not (tmp_path / "x").exists()


def test_the_same_advice_is_printed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    left_out = [Unregistered(f"{name}.jpg", "blurred", advice) for name, advice in (("a", "wait"), ("b", "go"), ("c", "wait"))]
    report = CaptureReport(tmp_path, ["d.jpg"], left_out, 9, 0.5, {})
    monkeypatch.setattr("splat_py.capture.capture", lambda *arguments, **how: report)
    capture_with_progress(tmp_path, tmp_path / "scene", CaptureOptions())
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == ["  a.jpg: blurred", "  c.jpg: blurred", "    wait", "  b.jpg: blurred", "    go"]


def test_mistakes_are_one_sentence(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photograph = photos / "IMG_0000.jpg"
    assert "neither a folder of photographs nor a video" in refusal("capture", photograph, "--out", "x", cwd=tmp_path)
    assert "holds neither photographs nor a video" in refusal("capture", tmp_path, "--out", "x", cwd=tmp_path)
    assert "size is 3; it must be at least 64" in refusal("capture", photos, "--out", "x", "--size", "3", cwd=tmp_path)
    assert "splat capture" in refusal("fit-volume", photos, "--out", "x", cwd=tmp_path)
    (tmp_path / "around.mp4").write_text("not a video")
    assert "around.mp4 cannot be read as a video" in refusal("train", "around.mp4", "--out", "x", cwd=tmp_path)
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    for command in ("capture", "train"):
        assert "pip install 'slang-splat[capture]'" in refusal(command, photos, "--out", "x", cwd=tmp_path)
    assert not (tmp_path / "x").exists()


def test_a_mask_of_another_shape_leaves_one_photograph_out(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "masks").mkdir()
    (tmp_path / "photos" / "masks" / "IMG_0000.png").write_text("not a picture")
    result = splat("capture", "photos", "--out", "scene", cwd=tmp_path)
    assert "7 of 9 photographs have a pose" in result.stdout and "masks/IMG_0000.png cannot be decoded" in result.stdout
