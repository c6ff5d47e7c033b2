"""Pairs of photographs that are matched if not all pairs are."""

import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from splat_py import load_dataset
from splat_py.capture import CaptureReport, capture, colmap
from splat_py.capture.colmap import descriptors_of, features_of, matches_of
from splat_py.capture.photographs import Photograph
from splat_py.scene.pictures import write_video
from tests.capture.conftest import FAST
from tests.capture.room import assert_poses, photograph, room_cameras


def photographs_of(names: list[str]) -> list[Photograph]:
    return [Photograph(name, name, 1, 1, None, "", 1.0, 1.0) for name in names]


def test_the_database_is_as_pycolmap_reads_it(report: CaptureReport) -> None:
    import pycolmap

    file = report.root / "database.db"
    database = pycolmap.Database.open(file)
    images = {image.name: image.image_id for image in database.read_all_images()}
    assert features_of(file) == {name: database.num_keypoints_for_image(key) for name, key in images.items()}
    matches = matches_of(file)
    assert len(matches) == 45
    for (a, b), count in matches.items():
        assert count == len(database.read_two_view_geometry(images[a], images[b]).inlier_matches)
    assert descriptors_of(file, "IMG_0003.jpg").shape == (features_of(file)["IMG_0003.jpg"], 128)
    assert descriptors_of(file, "nowhere").shape == (0, 128)
    database.close()


def test_those_that_look_alike_are_neighbours(report: CaptureReport, tmp_path: Path) -> None:
    file = tmp_path / "database.db"
    shutil.copy(report.root / "database.db", file)
    # The names are in another order: only the content of the photographs counts.
    order = np.random.default_rng(1).permutation(10).tolist()
    pairs = colmap.look_alikes(file, [f"IMG_{i:04d}.jpg" for i in order], 2)
    apart = [abs(order[i] - order[j]) for i, j in pairs]
    assert all(i < j for i, j in pairs) and 10 <= len(pairs) <= 20
    assert np.mean(apart) < 2 and {i for pair in pairs for i in pair} == set(range(10))


def test_pairs(report: CaptureReport, monkeypatch: pytest.MonkeyPatch) -> None:
    file, names = report.root / "database.db", report.registered
    assert len(colmap.pairs_to_match(file, photographs_of(names), ordered=False)) == 45
    for name, number in {"_EXHAUSTIVE": 5, "_NEIGHBOURS": 2, "_POWERS": 2, "_ALIKE": 1, "_ALIKE_ORDERED": 1}.items():
        monkeypatch.setattr(colmap, name, number)
    for ordered in (False, True):
        pairs = colmap.pairs_to_match(file, photographs_of(names), ordered)
        assert set(pairwise(names)) | set(zip(names, names[4:], strict=False)) <= set(pairs)
        assert len(set(pairs)) == len(pairs) < 40 and all(a < b for a, b in pairs)


def test_a_video_is_captured(tmp_path: Path) -> None:
    cameras = room_cameras(20, degrees=3)
    write_video(tmp_path / "around.mp4", (photograph(camera)[..., ::-1] / np.float32(255) for camera in cameras))
    found = capture(tmp_path / "around.mp4", tmp_path / "scene", type(FAST)(features=600, frames=10))
    assert len(found.registered) == 10
    views = load_dataset(tmp_path / "scene").views
    known = [cameras[int(view.name.removeprefix("frame_").removesuffix(".jpg"))] for view in views]
    assert_poses([view.camera for view in views], known, 0.03, 1)
