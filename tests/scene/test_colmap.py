"""COLMAP's files: this library's reader against pycolmap's."""

import struct
import sys
from pathlib import Path

import numpy as np
import pycolmap
import pytest

from splat_py import load_dataset
from splat_py.scene.colmap import CAMERA_MODELS, read_model, read_observations
from tests.refusals import refused
from tests.scene.captures import ring, write_colmap, write_image

POINTS = np.arange(12.0).reshape(4, 3)


def written(folder: Path, text: bool) -> Path:
    """Write a reconstruction made by COLMAP: two cameras in a rig, six frames, coloured points that photographs see."""
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig, options.num_frames_per_rig, options.num_points3D = 2, 2, 3, 25
    model = pycolmap.synthesize_dataset(options)
    for red, point in enumerate(model.points3D.values()):
        point.color = np.array([red, 7, 9], np.uint8)
    folder.mkdir(parents=True)
    (model.write_text if text else model.write_binary)(str(folder))
    return folder


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("rigs", [False, True])
def test_models_are_pycolmaps(text: bool, rigs: bool, tmp_path: Path) -> None:
    folder = written(tmp_path / "model", text)
    expected = pycolmap.Reconstruction(str(folder))
    if not rigs:
        for name in ("rigs", "frames"):
            (folder / f"{name}.{'txt' if text else 'bin'}").unlink()
    if text:
        # Older versions of COLMAP write points in any order.
        lines = (folder / "points3D.txt").read_text().splitlines(keepends=True)
        (folder / "points3D.txt").write_text("".join(reversed(lines)))
    model = read_model(folder)
    assert model.cameras.keys() == set(expected.cameras)
    for key, camera in model.cameras.items():
        other = expected.cameras[key]
        assert (camera.model, camera.width, camera.height) == (other.model.name, other.width, other.height)
        np.testing.assert_allclose(camera.parameters, other.params)
    images = {image.name: image for image in expected.images.values()}
    assert {image.name for image in model.images} == images.keys() and len(images) == 12
    for image in model.images:
        other = images[image.name]
        assert image.camera == other.camera_id
        np.testing.assert_allclose(image.viewmat[:3], other.cam_from_world().matrix(), atol=1e-9)
        keys = [p.point3D_id if p.has_point3D() else -1 for p in other.points2D]
        np.testing.assert_array_equal(image.points, keys)
    assert model.keys.tolist() == sorted(expected.points3D)
    for key, xyz, rgb in zip(model.keys.tolist(), model.xyz, model.rgb, strict=True):
        np.testing.assert_allclose(xyz, expected.points3D[key].xyz)
        np.testing.assert_array_equal(rgb, expected.points3D[key].color)
    seen = read_observations(folder)
    for name, other in images.items():
        points = [expected.points3D[p.point3D_id].xyz for p in other.points2D if p.has_point3D()]
        np.testing.assert_allclose(seen[name], points)


def test_camera_models_are_colmaps() -> None:
    known = {int(number): name for name, number in pycolmap.CameraModelId.__members__.items() if int(number) >= 0}
    assert {number: name for number, (name, _) in CAMERA_MODELS.items()} == known
    for number, (_, parameters) in CAMERA_MODELS.items():
        camera = pycolmap.Camera.create_from_model_id(1, pycolmap.CameraModelId(number), 100.0, 200, 100)
        assert len(camera.params) == parameters


@pytest.mark.parametrize("text", [False, True])
def test_nothing_of_it_needs_pycolmap_rigs_or_frames(text: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_colmap(tmp_path, ring(3), text=text, points=POINTS)
    whole = load_dataset(tmp_path)
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    for name in ("rigs", "frames"):
        file = tmp_path / "sparse/0" / f"{name}.{'txt' if text else 'bin'}"
        file.write_bytes(file.read_bytes()[:9])
        again = load_dataset(tmp_path)
        for one, other in zip(whole.views, again.views, strict=True):
            np.testing.assert_array_equal(one.camera.viewmat, other.camera.viewmat)
        file.unlink()
    assert len(load_dataset(tmp_path)) == 3


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize(
    "name", ["../000.png", "/etc/passwd.png", "a/../../000.png", "..\\000.png", "C:\\000.png", "C:000.png", "\\\\host\\a.png"]
)
def test_names_that_leave_the_folder_are_refused(name: str, text: bool, tmp_path: Path) -> None:
    write_colmap(tmp_path, ring(3), text=text)
    write_image(tmp_path / "000.png", np.zeros((32, 48, 3), np.uint8))
    file = tmp_path / "sparse/0" / f"images.{'txt' if text else 'bin'}"
    file.write_bytes(file.read_bytes().replace(b"001.png", name.encode()))
    refused(r"names the photograph .* outside .*images; export it again", load_dataset, tmp_path)


def test_names_with_spaces_are_read(tmp_path: Path) -> None:
    for text in (False, True):
        write_colmap(tmp_path, ring(3), text=text)
        file = tmp_path / "sparse/0" / f"images.{'txt' if text else 'bin'}"
        file.write_bytes(file.read_bytes().replace(b"001.png", b"the first.png"))
        (tmp_path / "images" / "001.png").rename(tmp_path / "images" / "the first.png")
        assert "the first.png" in [view.name for view in load_dataset(tmp_path).views]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("cameras", 12, struct.pack("<i", 99)), "camera 1 has the unknown model number 99"),
        (("cameras", 12, struct.pack("<i", 7)), "is cut off"),
        (("cameras", 16, struct.pack("<Q", 0)), "camera 1 has 0×32 pixels"),
        (("cameras", 16, struct.pack("<Q", 1 << 40)), "×32 pixels"),
        (("cameras", 0, struct.pack("<Q", 1 << 60)), "cameras.bin is cut off"),
        (("cameras", 0, struct.pack("<Q", 0)), "cameras.bin has data after its last record"),
        (("images", 0, struct.pack("<Q", 1 << 60)), "images.bin is cut off"),
        (("images", 12, struct.pack("<4d", 0, 0, 0, 0)), "000.png has the quaternion 0 0 0 0, which is not a rotation"),
        (("images", 12, struct.pack("<d", np.nan)), "which is not a rotation"),
        (("images", 68, struct.pack("<I", 5)), "000.png refers to camera 5, which does not exist"),
        (("images", 44, struct.pack("<d", np.inf)), "finite"),
        (("points3D", 0, struct.pack("<Q", 1 << 60)), "points3D.bin is cut off"),
        (("points3D", 8, struct.pack("<Q", 1 << 63)), "a point has an impossible number or colour"),
        (("points3D", 8, struct.pack("<Q", 2)), "a point is described twice"),
    ],
)
def test_numbers_that_cannot_be(change: tuple[str, int, bytes], says: str, tmp_path: Path) -> None:
    write_colmap(tmp_path, ring(2), points=POINTS)
    name, at, number = change
    file = tmp_path / "sparse/0" / f"{name}.bin"
    data = file.read_bytes()
    file.write_bytes(data[:at] + number + data[at + len(number) :])
    refused(says, load_dataset, tmp_path)


@pytest.mark.parametrize(
    ("name", "line", "says"),
    [
        ("cameras", "1 WIDE 48 32 30", "camera 1 has the unknown model WIDE"),
        ("cameras", "1 PINHOLE 48 32 30 30 24", "camera 1 has 3 parameters, but PINHOLE needs 4"),
        ("cameras", "1 PINHOLE 48 32 30 30 24 16\n1 PINHOLE 48 32 30 30 24 16", "camera 1 is described twice"),
        ("cameras", "1 FOV 48 32 30 30 24 16 1", "camera model FOV is not supported"),
        ("images", "1 1 0 0 0 0 0 0 1 000.png\n1 2", "000.png has 2 numbers for its points"),
        ("images", "1 1 0 0 0 0 0 0 000.png\n", "not a readable COLMAP model"),
        ("images", f"1 1 0 0 0 0 0 0 1 000.png\n1 2 {10**30}", "not a readable COLMAP model"),
        *((name, "1 x y z", "not a readable COLMAP model") for name in ("cameras", "images", "points3D")),
        ("points3D", "1 0 0 0 256 0 0 0", "impossible number or colour"),
        ("points3D", f"{10**30} 0 0 0 255 0 0 0", "impossible number or colour"),
    ],
)
def test_lines_that_cannot_be(name: str, line: str, says: str, tmp_path: Path) -> None:
    write_colmap(tmp_path, ring(2), points=POINTS, text=True)
    (tmp_path / "sparse/0" / f"{name}.txt").write_text(f"# by hand\n{line}\n")
    refused(says, load_dataset, tmp_path)


@pytest.mark.parametrize("name", ["cameras", "images", "points3D"])
def test_a_colmap_file_cut_anywhere_is_refused(tmp_path: Path, name: str) -> None:
    write_colmap(tmp_path, ring(2), points=POINTS)
    file = tmp_path / "sparse/0" / f"{name}.bin"
    data = file.read_bytes()
    for length in range(len(data)):
        file.write_bytes(data[:length])
        refused(r"is not a readable COLMAP model|the focal lengths", load_dataset, tmp_path)


def test_a_colmap_name_in_no_encoding(tmp_path: Path) -> None:
    write_colmap(tmp_path, ring(3))
    file = tmp_path / "sparse/0/images.bin"
    file.write_bytes(file.read_bytes().replace(b"001.png", b"\xff01.png"))
    refused("is not a readable COLMAP model", load_dataset, tmp_path)


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**61, 10**12])
def test_a_colmap_track_that_is_longer_than_its_file(length: int, tmp_path: Path) -> None:
    write_colmap(tmp_path, ring(3), points=POINTS)
    file = tmp_path / "sparse/0/points3D.bin"
    data = bytearray(file.read_bytes())
    data[51:59] = length.to_bytes(8, "little")
    file.write_bytes(data)
    refused(r"is not a readable COLMAP model .*points3D\.bin is cut off", load_dataset, tmp_path)
