"""Depth maps beside photographs and COLMAP's points, and files that are no depth maps."""

import io
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pycolmap
import pytest

from splat_py import Dataset, load_dataset
from splat_py.scene.dataset import KnownDepths, depths_of_points
from tests.refusals import refused
from tests.scene.captures import HEIGHT, WIDTH, ring, write_colmap, write_image, write_transforms


def write(root: Path, name: str, depths: np.ndarray | bytes | None, **extra: object) -> Dataset:
    """Write a capture whose first photograph has a depth map."""
    write_transforms(root, ring(3), {0: {"depth_file_path": name}}, **extra)
    if isinstance(depths, bytes):
        (root / name).write_bytes(depths)
    elif depths is not None and name.lower().endswith(".npy"):
        with (root / name).open("wb") as file:
            np.save(file, depths)
    elif depths is not None:
        write_image(root / name, depths)
    return load_dataset(root, test_every=0)


MILLIMETRES = np.random.default_rng(0).integers(0, 1 << 16, (HEIGHT, WIDTH)).astype(np.uint16)
MILLIMETRES[:3] = 0


@pytest.mark.parametrize("name", ["depth/0.png", "0.npy", "d.NPY"])
def test_maps_are_in_millimetres_or_another_unit(name: str, tmp_path: Path) -> None:
    (tmp_path / "a" / "depth").mkdir(parents=True)
    found = KnownDepths(write(tmp_path / "a", name, MILLIMETRES if name.endswith("png") else MILLIMETRES.astype(np.float64)))
    np.testing.assert_allclose(found[0], MILLIMETRES * 1e-3, rtol=1e-6)
    assert found[1].shape == (HEIGHT, WIDTH) and not found[1].any()
    (tmp_path / "b" / "depth").mkdir(parents=True)
    found = KnownDepths(write(tmp_path / "b", name, MILLIMETRES, depth_unit_scale_factor=0.5))
    np.testing.assert_allclose(found[0], MILLIMETRES * 0.5, rtol=1e-6)


def test_maps_of_another_size_are_sampled_and_not_averaged(tmp_path: Path) -> None:
    depths = np.where(np.arange(WIDTH * 2) < WIDTH, 1000, 9000).astype(np.uint16)[None].repeat(HEIGHT * 2, 0)
    depths[0::2] = 0
    write(tmp_path, "0.png", depths)
    found = KnownDepths(load_dataset(tmp_path, downscale=2, test_every=0))[0]
    assert found.shape == (HEIGHT // 2, WIDTH // 2) and set(np.unique(found)) <= {0, np.float32(1), np.float32(9)}


def test_pixels_that_do_not_count_and_numbers_that_are_no_depths_are_not_known(tmp_path: Path) -> None:
    depths = np.full((HEIGHT, WIDTH), 2000.0)
    depths[0, :6] = [np.nan, np.inf, -np.inf, -1, 1e300, 1e-300]
    found = KnownDepths(write(tmp_path, "0.npy", depths))[0]
    assert not found[0, :6].any() and (found[0, 6:] == 2).all() and (found[1:] == 2).all()
    mask = np.full((HEIGHT, WIDTH), 255, np.uint8)
    mask[:, :20] = 0
    write_image(tmp_path / "masks" / "000.png", mask)
    found = KnownDepths(write(tmp_path, "0.npy", np.full((HEIGHT, WIDTH), 1.0)))[0]
    assert not found[:, :20].any() and found[:, 20:].all()


def test_maps_follow_the_lens(tmp_path: Path) -> None:
    depths = np.full((HEIGHT, WIDTH), 3000.0)
    depths[:, : WIDTH // 4] = 1000
    straight = KnownDepths(write(tmp_path, "0.npy", depths, k1=-0.2))[0]
    bent = KnownDepths(load_dataset(tmp_path, test_every=0, undistort=False))[0]
    np.testing.assert_allclose(bent, depths / 1000, rtol=1e-6)
    edge = (straight.round(5) == 1).sum(1)
    straight = straight.round(5)
    assert set(np.unique(straight)) <= {0, 1, 3} and edge[0] != edge[HEIGHT // 2]


def _npy(header: str, content: bytes = b"") -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


def _png_of(width: int, height: int) -> bytes:
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 16, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))


def _pickle() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{}], object), allow_pickle=True)
    return file.getvalue()


HOSTILE = {
    "absent.png": None,
    "absent.npy": None,
    "huge.png": _png_of(1 << 30, 1 << 30),
    "huge.npy": _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000), }"),
    "negative.npy": _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -1), }", b"\0" * 64),
    "objects.npy": _pickle(),
    "text.npy": b"no array",
    "empty.npy": b"",
    "flat.npy": np.zeros(5),
    "none.npy": np.zeros((0, 5)),
    "complex.npy": np.zeros((HEIGHT, WIDTH), complex),
    "colored.npy": np.zeros((HEIGHT, WIDTH, 3)),
    "colored.png": np.zeros((HEIGHT, WIDTH, 3), np.uint16),
    "bytes.png": np.zeros((HEIGHT, WIDTH), np.uint8),
    "other-shape.png": np.zeros((HEIGHT, HEIGHT), np.uint16),
    "other-shape.npy": np.zeros((HEIGHT, HEIGHT)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_files_that_are_no_depth_maps_are_refused_by_name(name: str, tmp_path: Path) -> None:
    refused(name, KnownDepths(write(tmp_path, name, HOSTILE[name])).__getitem__, 0)


@pytest.mark.parametrize("unit", [0, -1, True, "1", 1e300, [1]])
def test_units_that_are_none_are_refused(unit: object, tmp_path: Path) -> None:
    refused("depth_unit_scale_factor", write, tmp_path, "0.png", MILLIMETRES, depth_unit_scale_factor=unit)


def test_captures_without_usable_depths_are_refused(tmp_path: Path) -> None:
    write_transforms(tmp_path, ring(3), {1: {"depth_file_path": 3}})
    refused("depth_file_path", load_dataset, tmp_path)
    write_transforms(tmp_path / "a", ring(3))
    write_colmap(tmp_path / "b", ring(3), points=np.ones((2, 3)))
    refused("has no depths", KnownDepths, load_dataset(tmp_path / "a"))
    refused("no photograph sees a point", KnownDepths, load_dataset(tmp_path / "b"))
    write(tmp_path, "0.npy", np.full((HEIGHT, WIDTH), 1.0), camera_model="OPENCV_FISHEYE", k1=0.01)
    refused("--undistort", KnownDepths, load_dataset(tmp_path, undistort=False))
    assert KnownDepths(load_dataset(tmp_path))[0].any()


def write_points(root: Path) -> np.ndarray:
    """Write six points; each of three photographs sees some of them."""
    cameras = ring(3)
    points = np.array([1.0, 2, 3]) + np.random.default_rng(1).uniform(-1, 1, (6, 3))
    write_colmap(root, cameras, points=points)
    model = pycolmap.Reconstruction(str(root / "sparse/0"))
    for key, image in model.images.items():
        seen = [i for i in range(6) if (i + key) % 2]
        image.points2D = pycolmap.Point2DList([pycolmap.Point2D(np.array([5.0 + i, 6.0])) for i in seen])
        for j, i in enumerate(seen):
            model.add_observation(i + 1, pycolmap.TrackElement(key, j))
    model.write_binary(str(root / "sparse/0"))
    return points


def test_points_that_a_photograph_sees(tmp_path: Path) -> None:
    points = write_points(tmp_path)
    dataset = load_dataset(tmp_path, test_every=0)
    found = KnownDepths(dataset)
    for index, view in enumerate(dataset.views):
        camera, expected = view.camera, np.zeros((HEIGHT, WIDTH))
        for i in (i for i in range(6) if (i + index + 1) % 2):
            t = camera.viewmat[:3, :3] @ points[i] + camera.viewmat[:3, 3]
            u, v, _ = camera.K @ t / t[2]
            expected[int(v), int(u)] = t[2]
        np.testing.assert_allclose(found[index], expected, rtol=1e-6)
        assert (found[index] > 0).sum() == 3


def test_the_nearest_of_points_in_a_pixel_counts_and_none_behind_the_camera() -> None:
    camera = replace(ring(1)[0], viewmat=np.eye(4), K=np.array([[10.0, 0, 5.5], [0, 10, 6.5], [0, 0, 1]]))
    points = np.array([[0, 0, 5], [0, 0, 2], [0, 0, 3], [0, 0, -1], [0, 0, 0], [100, 0, 1], [np.nan, 0, 1]])
    depths = depths_of_points(camera, points)
    assert depths[6, 5] == 2 and (depths > 0).sum() == 1
