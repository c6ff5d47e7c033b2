import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pycolmap
import pytest
from PIL import Image
from plyfile import PlyData, PlyElement

from splat_py import Camera, Dataset, load_dataset
from splat_py.gpu.kernels import UserType
from splat_py.scene import transforms
from tests.refusals import refused
from tests.scene.captures import (
    HEIGHT,
    WIDTH,
    opengl_pose,
    picture,
    ring,
    save_json,
    write_colmap,
    write_image,
    write_transforms,
)

POINTS = np.array([[0.5, 1.5, 2.5], [1, 2, 3], [-4, 5, 6]])


def assert_cameras(dataset: Dataset, cameras: list[Camera]) -> None:
    """Check that the dataset has exactly `cameras`, in its own frame, and their pictures."""
    assert len(dataset) == len(cameras)
    for i, (view, camera) in enumerate(zip(dataset.views, cameras, strict=True)):
        assert Path(view.name).name == camera.name
        np.testing.assert_allclose(view.camera.viewmat, camera.viewmat, atol=1e-6)
        np.testing.assert_allclose(view.camera.K, camera.K, rtol=1e-6)
        assert (view.camera.width, view.camera.height) == (camera.width, camera.height)
        np.testing.assert_array_equal(dataset.image(i)[..., :3], picture(i))
        assert (dataset.image(i)[..., 3] == 255).all()


def test_nerfstudio(tmp_path: Path) -> None:
    write_transforms(tmp_path, ring())
    dataset = load_dataset(tmp_path)
    assert_cameras(dataset, ring())
    assert dataset.points is None
    assert dataset.views[0].name == "images/000.png"
    assert dataset.background.tolist() == [0, 0, 0]


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("folder", ["sparse/0", "sparse", ".", "colmap/sparse/0"])
def test_colmap(tmp_path: Path, folder: str, text: bool) -> None:
    write_colmap(tmp_path, ring(), folder=folder, text=text, points=POINTS)
    dataset = load_dataset(tmp_path)
    assert_cameras(dataset, ring())
    np.testing.assert_allclose(dataset.points[0], POINTS)
    np.testing.assert_array_equal(dataset.points[1], [[0, 7, 9], [1, 7, 9], [2, 7, 9]])
    assert dataset.points[0].dtype == np.float32 and dataset.points[1].dtype == np.uint8


@pytest.mark.parametrize(
    ("model", "focal", "bends", "distortion"),
    [
        ("SIMPLE_PINHOLE", [40], [], (0, 0, 0, 0, 0)),
        ("PINHOLE", [40, 41], [], (0, 0, 0, 0, 0)),
        ("SIMPLE_RADIAL", [40], [0.1], (0.1, 0, 0, 0, 0)),
        ("RADIAL", [40], [0.1, 0.2], (0.1, 0.2, 0, 0, 0)),
        ("OPENCV", [40, 41], [0.1, 0.2, 0.01, 0.02], (0.1, 0.2, 0.01, 0.02, 0)),
        ("OPENCV_FISHEYE", [40, 41], [0.1, 0.2, 0.3, 0.4], (0.1, 0.2, 0.3, 0.4)),
        ("FULL_OPENCV", [40, 41], [0.1, 0.2, 0.01, 0.02, 0.3, 0.4, 0.5, 0.6], (0.1, 0.2, 0.01, 0.02, 0.3, 0.4, 0.5, 0.6)),
        ("SIMPLE_RADIAL_FISHEYE", [40], [0.1], (0.1, 0, 0, 0)),
        ("RADIAL_FISHEYE", [40], [0.1, 0.2], (0.1, 0.2, 0, 0)),
        ("SIMPLE_FISHEYE", [40], [], (0, 0, 0, 0)),
        ("FISHEYE", [40, 41], [], (0, 0, 0, 0)),
    ],
)
def test_colmap_lenses(tmp_path: Path, model: str, focal: list[float], bends: list[float], distortion: tuple) -> None:
    write_colmap(tmp_path, ring(2), model, [*focal, 23, 17, *bends])
    lens = load_dataset(tmp_path, undistort=False).views[0].lens
    assert (lens.fx, lens.fy, lens.cx, lens.cy) == (focal[0], focal[-1], 23, 17)
    assert (lens.distortion, lens.fisheye) == (distortion, model.endswith("FISHEYE"))


def write_synthetic(root: Path, splits: dict[str, int]) -> list[Camera]:
    """NeRF-synthetic: an angle instead of a focal length, RGBA pictures, no suffix in file_path."""
    cameras = ring(sum(splits.values()))
    rest = list(cameras)
    for split, count in splits.items():
        frames = []
        for i in range(count):
            write_image(root / split / f"r_{i}.png", picture(i, channels=4))
            frames.append({"file_path": f"./{split}/r_{i}", "transform_matrix": opengl_pose(rest.pop(0))})
        angle = 2 * np.arctan(0.5 * WIDTH / cameras[0].K[0, 0])
        save_json(root, {"camera_angle_x": angle, "frames": frames}, f"transforms_{split}.json")
    return cameras


def test_nerf_synthetic_has_its_own_split(tmp_path: Path) -> None:
    cameras = write_synthetic(tmp_path, {"train": 5, "test": 3, "val": 2})
    dataset = load_dataset(tmp_path)
    names = [view.name for view in dataset.views]
    assert names == sorted(names)
    assert [names[i] for i in dataset.train] == [f"train/r_{i}.png" for i in range(5)]
    assert [names[i] for i in dataset.test] == [f"test/r_{i}.png" for i in range(3)]
    by_split = [dataset.views[i].camera for i in dataset.train + dataset.test]
    for camera, expected in zip(by_split, cameras, strict=False):
        np.testing.assert_allclose(camera.viewmat, expected.viewmat, atol=1e-9)
        np.testing.assert_allclose(camera.K, expected.K, rtol=1e-9)


def test_nerf_synthetic_with_fewer_files(tmp_path: Path) -> None:
    write_synthetic(tmp_path, {"train": 9, "val": 2})
    dataset = load_dataset(tmp_path)
    assert [dataset.views[i].name for i in dataset.test] == ["val/r_0.png", "val/r_1.png"]
    (tmp_path / "transforms_val.json").unlink()
    assert load_dataset(tmp_path).test == [4]


def test_transparent_pixels_show_the_background(tmp_path: Path) -> None:
    write_synthetic(tmp_path, {"train": 2})
    rgba = picture(0, channels=4).astype(np.float64)
    alpha = rgba[..., 3:] / 255
    for background, color in ((None, (1, 1, 1)), ((0.2, 0.5, 1), (0.2, 0.5, 1))):
        dataset = load_dataset(tmp_path, background=background)
        np.testing.assert_allclose(dataset.background, color)
        expected = rgba[..., :3] * alpha + 255 * np.array(color) * (1 - alpha)
        np.testing.assert_allclose(dataset.image(0)[..., :3], expected, atol=0.51)
        assert (dataset.image(0)[..., 3] == 255).all()


def test_a_colour_that_stands_for_transparency(tmp_path: Path) -> None:
    """Photographs with an alpha channel as programs that shrink PNGs store them: with a palette."""
    content = write_transforms(tmp_path, ring(2))
    pixels = np.arange(48 * 32, dtype=np.uint8).reshape(32, 48) % 4
    for frame in content["frames"]:
        stored = Image.fromarray(pixels, "P")
        stored.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200, 9, 9, 9])
        stored.save(tmp_path / frame["file_path"], transparency=0)
    dataset = load_dataset(tmp_path)
    assert dataset.views[0].has_alpha
    np.testing.assert_array_equal(dataset.background, 1)
    np.testing.assert_array_equal(dataset.image(0)[0, :2, :3], [[255, 255, 255], [0, 200, 0]])


def test_what_is_null_is_not_given(tmp_path: Path) -> None:
    nothing = {"mask_path": None, "depth_file_path": None, "camera_model": None}
    write_transforms(tmp_path, ring(2), {0: nothing}, ply_file_path=None, k4=None)
    dataset = load_dataset(tmp_path)
    assert len(dataset) == 2 and dataset.points is None and dataset.views[0].mask_path is None


def test_a_photograph_that_lies_on_its_side(tmp_path: Path) -> None:
    """The photograph's EXIF orientation matches the poses, but not the stored pixels."""
    write_transforms(tmp_path, ring(1), w=HEIGHT, h=WIDTH)
    refused(r"000\.png has 48×32 pixels but .* 32×48: it lies on its side.*-auto-orient", load_dataset, tmp_path)


def test_focal_lengths_that_differ_are_read_and_written(tmp_path: Path) -> None:
    write_transforms(tmp_path, ring(2), fl_x=40.0, fl_y=55.0, cx=20.0, cy=17.0)
    views = load_dataset(tmp_path).views
    transforms.write_transforms(tmp_path / "transforms.json", views)
    for view, again in zip(views, load_dataset(tmp_path).views, strict=True):
        np.testing.assert_array_equal(view.camera.K, [[40, 0, 20], [0, 55, 17], [0, 0, 1]])
        np.testing.assert_array_equal(again.camera.K, view.camera.K)
        np.testing.assert_allclose(again.camera.viewmat, view.camera.viewmat, atol=1e-9)


def test_the_middle_of_every_eight_by_sorted_name_is_held_out(tmp_path: Path) -> None:
    cameras = ring(17)
    content = write_transforms(tmp_path, cameras)
    content["frames"] = [content["frames"][i] for i in np.random.default_rng(0).permutation(17)]
    save_json(tmp_path, content)
    dataset = load_dataset(tmp_path)
    assert_cameras(dataset, cameras)
    assert dataset.test == [4, 12]
    assert sorted(dataset.train + dataset.test) == list(range(17))
    assert load_dataset(tmp_path, test_every=5).test == [2, 7, 12]
    assert load_dataset(tmp_path, test_every=20).test == [8]
    assert load_dataset(tmp_path, test_split="first").test == [0, 8, 16]
    assert load_dataset(tmp_path, test_every=0).test == []
    write_transforms(tmp_path, ring(1))
    dataset = load_dataset(tmp_path)
    assert (dataset.train, dataset.test) == ([0], [])
    assert dataset.scene_scale == 1
    assert (dataset.bounds[1] > dataset.bounds[0]).all()


def test_notebooks_show_counts_and_photographs(tmp_path: Path) -> None:
    write_transforms(tmp_path, ring(20))
    dataset = load_dataset(tmp_path)
    assert repr(dataset) == f"Dataset({str(tmp_path)!r}, 18 photographs to train on, 2 held out)"
    page = dataset._repr_html_()
    assert "18 to train on, 2 held out" in page
    assert page.count("<img") == 7
    assert "title='images/003.png'" in page
    camera = dataset.views[0].camera
    assert "Camera images/000.png" in camera._repr_html_() and "<td>pinhole" in camera._repr_html_()
    assert "<td>Mine (0.5, 2.0)" in replace(camera, model=UserType("Mine", ""), params=(0.5, 2.0))._repr_html_()
    # One photograph that cannot be read leaves the others.
    dataset = load_dataset(tmp_path, memory_limit_bytes=0)
    (tmp_path / "images" / "003.png").write_bytes(b"<b>")
    page = dataset._repr_html_()
    assert page.count("<img") == 6 and "003.png cannot be decoded" in page


def test_auto_prefers_colmap_and_format_overrides(tmp_path: Path) -> None:
    write_transforms(tmp_path, ring())
    write_colmap(tmp_path, ring(), points=POINTS)
    assert load_dataset(tmp_path).points is not None
    assert load_dataset(tmp_path, format="transforms").points is None
    refused("no capture of format 'synthetic'; it has colmap, transforms", load_dataset, tmp_path, format="synthetic")
    refused("format is 'ply'", load_dataset, tmp_path, format="ply")


def test_downscaling(tmp_path: Path) -> None:
    cameras = ring(2, width=50, height=33)
    write_transforms(tmp_path, cameras)
    dataset = load_dataset(tmp_path, downscale=4)
    camera = dataset.views[0].camera
    assert (camera.width, camera.height) == (12, 8)
    np.testing.assert_allclose(camera.K[0], cameras[0].K[0] * 12 / 50)
    np.testing.assert_allclose(camera.K[1], cameras[0].K[1] * 8 / 33)
    assert dataset.image(0).shape == (8, 12, 4)
    write_transforms(tmp_path, ring(1))
    image = load_dataset(tmp_path, downscale=4).image(0)
    expected = picture(0).reshape(HEIGHT // 4, 4, WIDTH // 4, 4, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(image[..., :3], expected, atol=0.51)


def test_intrinsics_follow_the_photographs_real_size(tmp_path: Path) -> None:
    cameras = ring(3)
    write_transforms(tmp_path, cameras, w=2 * WIDTH, h=2 * HEIGHT)
    np.testing.assert_allclose(load_dataset(tmp_path).views[0].camera.K[:2], cameras[0].K[:2] / 2)
    content = write_transforms(tmp_path, ring(2), {1: {"fl_x": 99, "k1": 0.25}})
    first, second = (view.lens for view in load_dataset(tmp_path).views)
    assert (first.fx, first.distortion[0]) == (content["fl_x"], 0)
    assert (second.fx, second.distortion[0]) == (99, 0.25)


def test_a_byte_order_mark_before_the_poses(tmp_path: Path) -> None:
    write_transforms(tmp_path, ring())
    file = tmp_path / "transforms.json"
    file.write_text(file.read_text(), encoding="utf-8-sig")
    assert len(load_dataset(tmp_path)) == 9


def test_the_fourth_channel_of_a_jpeg_is_not_transparency(tmp_path: Path) -> None:
    write_transforms(tmp_path, ring(1), {0: {"file_path": "images/000.jpg"}})
    Image.fromarray(np.full((HEIGHT, WIDTH, 3), 200, np.uint8)).convert("CMYK").save(tmp_path / "images/000.jpg")
    dataset = load_dataset(tmp_path)
    assert dataset.background.tolist() == [0, 0, 0]
    np.testing.assert_allclose(dataset.image(0)[..., :3], 200, atol=2)


@pytest.mark.parametrize("angle", ["camera_angle_x", "camera_angle_y"])
def test_one_angle_is_enough(tmp_path: Path, angle: str) -> None:
    unknown = dict.fromkeys(("fl_x", "fl_y", "cx", "cy", "w", "h"))
    write_transforms(tmp_path, ring(2), **unknown, **{angle: np.pi / 2})
    half = (WIDTH if angle == "camera_angle_x" else HEIGHT) / 2
    np.testing.assert_allclose(
        load_dataset(tmp_path).views[0].camera.K, [[half, 0, WIDTH / 2], [0, half, HEIGHT / 2], [0, 0, 1]]
    )


def test_initial_points_of_nerfstudio(tmp_path: Path) -> None:
    table = np.zeros(3, [(name, "f4") for name in "xyz"] + [(name, "u1") for name in ("red", "green", "blue")])
    for axis, name in enumerate("xyz"):
        table[name] = POINTS[:, axis]
    table["y"][2] = np.nan
    PlyData([PlyElement.describe(table, "vertex")]).write(str(tmp_path / "sparse_pc.ply"))
    write_transforms(tmp_path, ring(2), ply_file_path="sparse_pc.ply")
    with pytest.warns(UserWarning, match="1 of 3 points are not finite"):
        dataset = load_dataset(tmp_path)
    np.testing.assert_allclose(dataset.points[0], POINTS[:2])


def test_scaled_poses_of_instant_ngp_stay_where_they_are(tmp_path: Path) -> None:
    cameras = ring(3)
    content = write_transforms(tmp_path, cameras, aabb_scale=16, scale=0.33, offset=[0.5, 0.5, 0.5])
    for frame in content["frames"]:
        for row in frame["transform_matrix"][:3]:
            row[:3] = [2 * value for value in row[:3]]
    save_json(tmp_path, content)
    assert_cameras(load_dataset(tmp_path), cameras)


def test_missing_photographs_are_skipped_with_one_warning(tmp_path: Path) -> None:
    write_transforms(tmp_path, ring())
    for i in (1, 4, 5):
        (tmp_path / f"images/{i:03d}.png").unlink()
    with pytest.warns(UserWarning, match=r"3 of 9 photographs .* \(the first is images/001\.png\)") as record:
        dataset = load_dataset(tmp_path)
    assert len(record) == 1
    assert [Path(view.name).stem for view in dataset.views] == ["000", "002", "003", "006", "007", "008"]
    shutil.rmtree(tmp_path / "images")
    refused("none of the 9 described photographs exists", load_dataset, tmp_path)


def test_scene_scales_and_bounds(tmp_path: Path) -> None:
    write_transforms(tmp_path, ring(8))
    dataset = load_dataset(tmp_path, test_every=0)
    np.testing.assert_allclose(dataset.scene_scale, 1.1 * 4)
    np.testing.assert_allclose(dataset.bounds.mean(axis=0), (1, 2, 3), atol=1e-6)
    # Half the width of the view at the ring's centre.
    half = np.hypot(4, 2) * 0.5 * WIDTH / dataset.views[0].camera.K[0, 0]
    np.testing.assert_allclose(np.diff(dataset.bounds, axis=0) / 2, half, rtol=1e-6)
    eyes = [(x, y, 0) for x in (-0.5, 0, 0.5) for y in (-0.2, 0.2)]
    cameras = [
        Camera.look_at(eye, np.add(eye, (0, 0, 1)), (0, 1, 0), 60, WIDTH, HEIGHT, f"{i}.png") for i, eye in enumerate(eyes)
    ]
    write_transforms(tmp_path, cameras)
    low, high = load_dataset(tmp_path, test_every=0).bounds
    extent = 1.1 * np.hypot(0.5, 0.2)
    np.testing.assert_allclose((low[2], high[2]), (extent, 7 * extent), rtol=1e-6)
    cameras = [
        Camera.look_at((0, 0, 0), (np.cos(a), np.sin(a), 0), (0, 0, 1), 60, WIDTH, HEIGHT, f"{i}.png")
        for i, a in enumerate((0, 2, 4))
    ]
    write_colmap(tmp_path, cameras, points=np.array([[3.0, 0, 0], [0, 5, 0], [0, 0, 90]]))
    dataset = load_dataset(tmp_path)
    np.testing.assert_allclose(dataset.scene_scale, 5, rtol=1e-6)
    assert (np.diff(dataset.bounds, axis=0) > 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"downscale": 0.5}, "downscale is 0.5"),
        ({"downscale": float("nan")}, "downscale is nan"),
        ({"downscale": 33}, r"000\.png has only 48×32 pixels; downscale"),
        ({"test_every": 1}, "test_every is 1"),
        ({"test_every": -8}, "test_every is -8"),
        ({"test_split": "last"}, "test_split is 'last'; use middle or first"),
        ({"memory_limit_bytes": -1}, "memory_limit_bytes is -1"),
        ({"background": (0, 0)}, "background is"),
        ({"background": (0, 0, 256)}, "background is"),
    ],
)
def test_bad_arguments_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    write_transforms(tmp_path, ring(2))
    refused(message, load_dataset, tmp_path, **options)


def test_folders_without_a_capture(tmp_path: Path) -> None:
    refused("none does not exist", load_dataset, tmp_path / "none")
    refused("holds no photographs, no video and no capture", load_dataset, tmp_path)
    save_json(tmp_path, {"frames": []})
    refused("describes no posed photograph", load_dataset, tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"frames": 3}', '{"frames": [1]}', "\udcff", "[" * 100_000])
def test_damaged_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "transforms.json").write_bytes(text.encode(errors="surrogateescape"))
    refused(r"transforms\.json", load_dataset, tmp_path)


NAN_POSE = np.full((4, 4), np.nan).tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"file_path": None}, "frame 1 has no file_path"),
        ({"transform_matrix": None}, r"001\.png.*transform_matrix"),
        ({"transform_matrix": NAN_POSE}, r"001\.png.*finite"),
        ({"transform_matrix": np.zeros((4, 4)).tolist()}, r"001\.png.*singular"),
        ({"transform_matrix": np.diag([1.0, 2, 1, 1]).tolist()}, r"001\.png.*sheared"),
        ({"transform_matrix": np.diag([-1.0, 1, 1, 1]).tolist()}, r"001\.png.*mirrored"),
        ({"transform_matrix": [[1, 2], [3]]}, r"001\.png.*transform_matrix"),
        ({"fl_x": "wide"}, r"001\.png: fl_x is 'wide'"),
        ({"fl_x": -3}, r"001\.png'?: the focal lengths"),
        ({"k1": float("inf")}, "k1 is inf"),
        ({"camera_model": "EQUIRECTANGULAR"}, "camera_model EQUIRECTANGULAR is not supported"),
        ({"k4": 0.1}, "has no k4"),
        ({"fl_x": None, "fl_y": None}, "no focal length"),
        ({"fl_x": None, "camera_angle_x": 4}, "camera_angle_x is 4"),
        ({"mask_path": "nowhere.png"}, r"mask .*nowhere\.png of images/001\.png does not exist"),
        ({"mask_path": 3}, "mask_path is 3"),
        ({"fl_x": 10**400}, "fl_x is 1000"),
        ({"w": 1e300, "h": 1e300}, "w is 1e"),
        ({"camera_model": ["OPENCV"]}, r"camera_model \['OPENCV'\] is not supported"),
        ({"transform_matrix": [[10**400] * 4] * 4}, "has no transform_matrix of numbers"),
        ({"transform_matrix": [[1, 0, 0, 1e30], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]}, r"001\.png.*below 1e\+09"),
    ],
)
def test_damaged_frames_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write_transforms(tmp_path, ring(3), {1: change})
    refused(message, load_dataset, tmp_path)


def test_a_name_that_no_file_can_have_is_missing(tmp_path: Path) -> None:
    write_transforms(tmp_path, ring(3), {1: {"file_path": "x" * 5000}})
    with pytest.warns(UserWarning, match="1 of 3 photographs do not exist"):
        assert len(load_dataset(tmp_path)) == 2


def test_fox_as_transforms_and_as_colmap(shared_data: Path) -> None:
    with pytest.warns(UserWarning, match="17 of 67 photographs") as record:
        dataset = load_dataset(shared_data / "fox", format="transforms", downscale=8)
    assert len(record) == 1
    assert (len(dataset), dataset.test) == (50, [4, 12, 20, 28, 36, 44])
    assert dataset.image(0).shape == (240, 135, 4)
    assert 0.95 < (dataset.image(0)[..., 3] == 255).mean() < 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = load_dataset(shared_data / "fox", downscale=8)
    assert (len(dataset), dataset.test) == (50, [4, 12, 20, 28, 36, 44])
    assert dataset.points is not None and len(dataset.points[0]) == 12494
    inside = (dataset.points[0] > dataset.bounds[0]) & (dataset.points[0] < dataset.bounds[1])
    assert inside.all(axis=1).mean() > 0.7


def test_fox_points_land_where_they_were_seen(shared_data: Path) -> None:
    dataset = load_dataset(shared_data / "fox", memory_limit_bytes=0)
    model = pycolmap.Reconstruction(str(shared_data / "fox/sparse/0"))
    view, pixels = dataset.views[20], dataset.image(20)
    (image,) = (image for image in model.images.values() if image.name == view.name)
    seen = [model.points3D[p.point3D_id] for p in image.points2D if p.has_point3D()]
    camera, colors = view.camera, np.array([p.color for p in seen], float)
    t = np.array([p.xyz for p in seen]) @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]
    x, y = (camera.K[i, i] * t[:, i] / t[:, 2] + camera.K[i, 2] for i in (0, 1))

    def difference(dx: float, dy: float) -> float:
        column = np.clip(np.floor(x + dx).astype(int), 0, camera.width - 1)
        row = np.clip(np.floor(y + dy).astype(int), 0, camera.height - 1)
        return float(np.median(np.abs(pixels[row, column, :3] - colors).mean(axis=1)))

    assert len(seen) > 1000
    assert difference(0, 0) < 8
    for shift in ((3, 0), (-3, 0), (0, 3), (0, -3)):
        assert difference(*shift) > 1.3 * difference(0, 0)
