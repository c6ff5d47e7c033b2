"""The found poses are those of the photographs, and an interrupted capture goes on."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from splat_py import load_dataset
from splat_py.capture import CaptureReport, capture, colmap
from tests.capture import room
from tests.capture.conftest import FAST
from tests.capture.room import HEIGHT, WIDTH, assert_poses, photograph, room_cameras, write_photograph, write_photographs
from tests.faults.test_full_disk import full_disk
from tests.refusals import refused

Told = list[tuple[str, int, int]]
FOCAL = 0.5 * HEIGHT / np.tan(np.deg2rad(room.FIELD_OF_VIEW / 2))


def stopped_at(phase: str | None, source: Path, out: Path, options=FAST) -> str:
    """Interrupt a capture when it begins a phase, if any is named, or at its first news; return that phase's name."""
    began: list[str] = []

    def stop(name: str, done: int, total: int) -> None:
        if phase in (name, None):
            began.append(name)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        capture(source, out, options, on_progress=stop)
    return began[0]


def captured(source: Path, out: Path, options=FAST) -> tuple[CaptureReport, list[str]]:
    """The report, and the phases that this call ran."""
    told: Told = []
    report = capture(source, out, options, on_progress=lambda *progress: told.append(progress))
    for phase, done, total in told:
        assert 0 <= done <= total, phase
    return report, list(dict.fromkeys(phase for phase, _, _ in told))


def test_poses_and_lens_are_those_of_the_photographs(report: CaptureReport) -> None:
    cameras = room_cameras()
    dataset = load_dataset(report.root)
    assert report.registered == [view.name for view in dataset.views] == [camera.name for camera in cameras]
    assert not report.unregistered and report.points > 300 and report.error < 0.5
    assert_poses([view.camera for view in dataset.views], cameras, 0.01, 0.3)
    assert dataset.views[0].lens.fx == pytest.approx(FOCAL, rel=0.02)
    assert dataset.points is not None and len(dataset.points[0]) == report.points
    for view, known in zip(dataset.views, cameras, strict=True):
        # The world's up in the camera's frame. The arc is short and constrains the cameras' pitch poorly.
        assert np.rad2deg(np.arccos(np.clip(view.camera.viewmat[:3, 2] @ known.viewmat[:3, 2], -1, 1))) < 3


def test_what_is_done_is_not_done_again(report: CaptureReport, photographs: Path) -> None:
    again, phases = captured(photographs, report.root)
    assert phases == [] and again == dataclasses.replace(report, seconds=again.seconds)


def test_photographs_that_do_not_fit_are_listed_with_the_reason(source: Path, tmp_path: Path) -> None:
    write_photograph(source / "blurred.jpg", cv2.GaussianBlur(photograph(room_cameras()[4]), (0, 0), 20))
    write_photograph(source / "other.jpg", photograph(room_cameras()[4], seed=1))
    write_photograph(source / "dark.png", np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    (source / "damaged.jpg").write_bytes((source / "IMG_0003.jpg").read_bytes()[:5000])
    (source / "empty.JPG").touch()
    hostile = "-\udcff\x1b[31m.jpg" if sys.platform == "linux" else "-x.jpg"
    (source / hostile).write_text("text")
    (source / "notes.txt").write_text("not a photograph")
    found, _ = captured(source, tmp_path / "scene")
    assert found.registered == [camera.name for camera in room_cameras()]
    reasons = {item.name: item.reason for item in found.unregistered}
    assert set(reasons) == {"blurred.jpg", "other.jpg", "dark.png", "damaged.jpg", "empty.JPG", hostile}
    assert reasons["blurred.jpg"].startswith("blurred: its sharpness is ")
    assert "overlap" in reasons["other.jpg"] and "match" in reasons["other.jpg"]
    assert reasons["dark.png"] == "nearly one colour, too dark or too bright: 0 features"
    assert "cannot be decoded" in reasons["damaged.jpg"] and "cannot be decoded" in reasons["empty.JPG"]
    assert all(item.advice for item in found.unregistered)


def test_an_interrupted_capture_goes_on(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "scene"
    for phase in ("photographs", "features", "matching", "mapping"):
        told: Told = []

        def interrupt(name: str, done: int, total: int, phase: str = phase, told: Told = told) -> None:
            told.append((name, done, total))
            if name == phase and done >= total / 3:
                raise KeyboardInterrupt

        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                capture(source, out, FAST, on_progress=interrupt)
        assert told[-1][0] == phase and (told[-1][1] > 0 or phase == "photographs")
        if phase in ("features", "matching"):
            assert len([now for now in told if now[0] == phase]) == 3
        left = {path.name for path in out.iterdir()}
        assert "sparse" not in left and ".lock" not in left and not [name for name in left if name.startswith(".mapping")]
    (out / ".mapping-killed").mkdir()
    found, phases = captured(source, out)
    assert phases == ["mapping"] and len(found.registered) == 10
    assert not list(out.glob(".mapping*"))

    for phase, change in (("mapping", {"mapper": "global"}), ("matching", {"ordered": True}), ("features", {"features": 500})):
        assert stopped_at(None, source, out, dataclasses.replace(FAST, **change)) == phase
    (source / "IMG_0009.jpg").unlink()
    found, phases = captured(source, out)
    assert phases == ["photographs", "features", "matching", "mapping"]
    assert len(found.registered) == 9 and len(load_dataset(out)) == 9


def test_global_mapping_finds_the_same_poses(scene: Path, photographs: Path) -> None:
    found, phases = captured(photographs, scene, dataclasses.replace(FAST, mapper="global"))
    assert phases == ["mapping"] and len(found.registered) == 10
    assert_poses([view.camera for view in load_dataset(scene).views], room_cameras(), 0.03, 1)


def test_a_camera_of_many_photographs_gets_all_coefficients(
    report: CaptureReport, scene: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(colmap, "_FULL_LENS", 10)
    found, phases = captured(photographs, scene, dataclasses.replace(FAST, mapper="incremental"))
    assert phases == ["mapping"] and found.error <= report.error
    views = load_dataset(scene).views
    lens = views[0].lens
    assert lens.fx != lens.fy and all(lens.distortion[:4]) and lens.fy == pytest.approx(FOCAL, rel=0.03)
    assert_poses([view.camera for view in views], room_cameras(), 0.01, 0.5)


def test_photographs_that_lie_on_their_side_are_turned(tmp_path: Path) -> None:
    """Every second photograph is stored on its side, as by a phone held upright, and has its focal length in EXIF."""
    cameras = room_cameras()
    for i, camera in enumerate(cameras):
        pixels = Image.fromarray(photograph(camera)[..., ::-1])
        exif = Image.Exif()
        exif[0x0112] = (1, 6, 8, 3)[i % 4]
        exif.get_ifd(0x8769)[0xA405] = round(FOCAL * np.hypot(36, 24) / np.hypot(WIDTH, HEIGHT))
        stored = pixels.rotate({1: 0, 6: 90, 8: -90, 3: 180}[exif[0x0112]], expand=True)
        (tmp_path / "photos").mkdir(exist_ok=True)
        stored.save(tmp_path / "photos" / camera.name, quality=95, exif=exif)
    captured(tmp_path / "photos", tmp_path / "scene")
    dataset = load_dataset(tmp_path / "scene")
    assert {(view.camera.width, view.camera.height) for view in dataset.views} == {(WIDTH, HEIGHT)}
    assert len({id(view.lens) for view in dataset.views}) == 1
    assert_poses([view.camera for view in dataset.views], cameras, 0.01, 0.3)


def test_different_cameras_have_lenses_of_their_own(tmp_path: Path) -> None:
    cameras = room_cameras()
    cameras[5:] = [camera.resized(320, 240) for camera in cameras[5:]]
    write_photographs(tmp_path / "photos", cameras)
    found, _ = captured(tmp_path / "photos", tmp_path / "scene")
    assert len(found.registered) == 10
    views = load_dataset(tmp_path / "scene").views
    assert views[0].lens.fx == pytest.approx(FOCAL, rel=0.03)
    assert views[9].lens.fx == pytest.approx(FOCAL * 1.25, rel=0.03)


def test_masks_keep_features_away(source: Path, tmp_path: Path) -> None:
    mask = np.full((HEIGHT, WIDTH), 255, np.uint8)
    mask[:, :80] = 0
    (source / "masks").mkdir()
    for i in range(10):
        cv2.imwrite(str(source / "masks" / f"IMG_{i:04d}{'.jpg' * (i % 2)}.png"), mask)
    found, _ = captured(source, tmp_path / "scene")
    assert len(found.registered) == 10
    dataset = load_dataset(tmp_path / "scene")
    assert all(view.mask_path is not None for view in dataset.views)
    weights = dataset.image(0)[..., 3]
    assert not weights[:, :78].any() and (weights[:, 82:] == 255).mean() > 0.95
    import pycolmap

    model = pycolmap.Reconstruction(str(tmp_path / "scene" / "sparse" / "0"))
    assert min(point.xy[0] for image in model.images.values() for point in image.points2D) >= 79


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([], "holds neither photographs nor a video"),
        (["a.txt", "b.md"], "holds neither photographs nor a video"),
        (["a.jpg"], "holds one photograph, too few for a scene"),
        (["a.jpg", "b.png"], "holds 2 photographs, too few for a scene"),
        (["a.jpg", "b.png", "c.jpg"], "0 of 3 photographs can be read: .*a.jpg cannot be decoded"),
        (["a.mp4", "b.mov"], "holds 2 videos; name one of them"),
        (["a.mp4"], "a.mp4 cannot be read as a video"),
    ],
)
def test_folders_that_hold_no_capture(files: list[str], says: str, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for name in files:
        (tmp_path / "photos" / name).write_text("text")
    refused(says, capture, tmp_path / "photos", tmp_path / "scene")
    refused("nowhere does not exist", capture, tmp_path / "nowhere", tmp_path / "scene")


def test_what_lies_in_the_folder_of_the_scene_is_no_photograph_of_the_source(source: Path) -> None:
    assert captured(source, source / "scene")[1]
    again, phases = captured(source, source / "scene")
    assert phases == [] and len(again.registered) == 10


def test_photographs_of_different_things(tmp_path: Path) -> None:
    for i in range(3):
        write_photograph(tmp_path / "photos" / f"{i}.jpg", photograph(room_cameras()[3 * i], seed=i))
    says = "no two of the 3 photographs .* fit together: photographs must overlap"
    refused(says, capture, tmp_path / "photos", tmp_path / "scene", FAST)


def test_folders_that_are_not_the_captures_own(report: CaptureReport, source: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    refused("mine holds something other than a capture; choose another --out", capture, source, tmp_path / "mine")
    refused(r"holds the capture of .*photographs, not of .*photos", capture, source, report.root)


@pytest.mark.parametrize(
    "damage", ["", "[]", "{", '{"version": 1, "phases": []}', '{"version": 7, "phases": {}}', "phases", "found", "nothing"]
)
def test_a_damaged_record(damage: str, scene: Path, photographs: Path) -> None:
    record = scene / "capture.json"
    content = json.loads(record.read_text())
    if damage == "phases":
        content["photographs"][0]["width"] = "wide"
    elif damage == "found":
        content["found"] = {"registered": 3}
    elif damage == "nothing":
        content["found"] = []
    record.write_text(json.dumps(content) if damage in ("phases", "found", "nothing") else damage)
    refused(r"capture\.json is damaged; remove the folder", capture, photographs, scene, FAST)


@pytest.mark.parametrize(("phase", "damage"), [("matching", "half"), ("mapping", "gone"), ("mapping", "no pictures")])
def test_a_damaged_database(phase: str, damage: str, photographs: Path, tmp_path: Path) -> None:
    out, few = tmp_path / "scene", dataclasses.replace(FAST, features=64)
    stopped_at(phase, photographs, out, few)
    database = out / "database.db"
    if damage == "half":
        database.write_bytes(database.read_bytes()[:20_000])
    elif damage == "gone":
        database.unlink()
    else:
        shutil.rmtree(out / "images")
    says = rf"scene cannot be continued with its {phase} \(.*\); remove the folder, or choose another --out"
    refused(says, capture, photographs, out, few)


@pytest.mark.skipif(sys.platform == "win32", reason="processes there have no limit of a file's size")
def test_a_full_disk_leaves_no_photograph_out(photographs: Path, tmp_path: Path) -> None:
    sizes = sorted(path.stat().st_size for path in photographs.iterdir())
    with full_disk(sizes[5]):
        refused("cannot write .*IMG_.*; free some space", capture, photographs, tmp_path / "scene", FAST)
    assert not (tmp_path / "scene").exists()


def test_a_disk_without_room_for_features(photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 10**6, 0))
    says = "features may take .*, and the disk of .*scene has 0 MB left; free some space"
    refused(says, capture, photographs, tmp_path / "scene", FAST)


def test_without_pycolmap(report: CaptureReport, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    says = r"needs pycolmap, which is not installed: pip install 'slang-splat\[capture\]'"
    refused(says, capture, photographs, tmp_path / "scene")
    assert not (tmp_path / "scene").exists()
    assert len(load_dataset(report.root)) == 10
