"""The embedded scene and the two rooms: exact geometry, files that agree with it, and a folder that is whole or absent."""

import json
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
from plyfile import PlyData

from benchmarks import two_rooms
from splat_py.demo import scene as demo
from splat_py.demo.scene import demo_cameras, light, render_view, still_life, write_demo_scene
from splat_py.demo.shapes import Array, Box, Cylinder, Sphere, Torus, radiance, trace, unit
from splat_py.scene.dataset import load_dataset
from tests.refusals import refused

CAPTURE = 9, 64


def beyond(q: Array) -> Array:
    """The distance of points to a box; q is how far they lie beyond each pair of sides."""
    return np.linalg.norm(np.maximum(q, 0), axis=-1) + np.minimum(q.max(axis=-1), 0)


def around(p: Array, radius: float) -> Array:
    return np.hypot(p[..., 0], p[..., 1]) - radius


@pytest.mark.parametrize(
    ("shape", "sdf"),
    [
        (Sphere(0.5), lambda p: np.linalg.norm(p, axis=-1) - 0.5),
        (Box((0.2, 0.3, 0.4)), lambda p: beyond(np.abs(p) - [0.2, 0.3, 0.4])),
        (Cylinder(0.3, 0.4), lambda p: beyond(np.stack([around(p, 0.3), np.abs(p[..., 2]) - 0.4], axis=-1))),
        (Torus(0.4, 0.1), lambda p: np.hypot(around(p, 0.4), p[..., 2]) - 0.1),
    ],
    ids=["sphere", "box", "cylinder", "torus"],
)
def test_hits_are_the_first_zero_of_the_signed_distance(shape, sdf) -> None:
    generator = np.random.default_rng(1)
    origins = 2 * unit(generator.normal(size=(500, 3)))
    directions = unit(generator.uniform(-0.6, 0.6, (500, 3)) - origins)
    t = shape.hit(origins.astype(np.float32), directions.astype(np.float32))

    along = np.linspace(0, 4, 4001)
    distance = sdf(origins[:, None] + along[:, None] * directions[:, None])
    inside = distance < 0
    expected = np.where(inside.any(axis=1), along[inside.argmax(axis=1)], np.inf)
    grazing = np.abs(distance.min(axis=1)) < 2e-3  # the march may step over the very edge
    assert np.isfinite(t).sum() > 100
    np.testing.assert_array_equal(np.isfinite(t)[~grazing], np.isfinite(expected)[~grazing])
    hit = np.isfinite(t) & np.isfinite(expected) & ~grazing
    assert np.all(expected[hit] - t[hit] < 5e-2)
    assert np.median(np.abs(expected[hit] - t[hit])) < 1e-3

    points = origins[hit] + t[hit, None] * directions[hit]
    assert np.abs(sdf(points)).max() < 5e-4
    step = 1e-4 * np.eye(3)
    gradient = (sdf(points[:, None] + step) - sdf(points[:, None] - step)) / 2e-4
    smooth = np.abs(np.linalg.norm(gradient, axis=-1) - 1) < 1e-3  # not on an edge of the box or the cylinder
    assert smooth.mean() > 0.95
    np.testing.assert_allclose(shape.normal(points.astype(np.float32))[smooth], gradient[smooth], atol=2e-2)


def test_the_files_describe_the_pictures(capture: Path) -> None:
    meta = json.loads((capture / "transforms.json").read_text())
    assert len(meta["frames"]) == 9 and (meta["w"], meta["h"]) == (64, 64)
    red_ball = np.array([0.62, -0.55, 0.27, 1.0])
    for frame in meta["frames"][:3]:  # the overhead ones, in which nothing hides the ball
        image = iio.imread(capture / frame["file_path"])
        assert image.shape == (64, 64, 3) and image.dtype == np.uint8
        x, y, z, _ = np.linalg.inv(frame["transform_matrix"]) @ red_ball  # OpenGL: +y up, -z forward
        column, row = meta["fl_x"] * x / -z + meta["cx"], meta["fl_y"] * -y / -z + meta["cy"]
        red, green, blue = image[int(row), int(column)].astype(int)
        assert red > 100 and red > 1.5 * max(green, blue)
    np.testing.assert_array_equal(iio.imread(capture / meta["frames"][-1]["file_path"])[0, 0], 0)


def test_render_view_gives_the_photograph_of_its_camera(capture: Path) -> None:
    viewmats, K = demo_cameras(9, 64)
    photograph = iio.imread(capture / "images" / "004.png")
    np.testing.assert_array_equal(np.round(255 * render_view(viewmats[4], K, 64, 64)), photograph)
    K[:2, 2] -= [8, 20]
    assert np.abs(np.round(255 * render_view(viewmats[4], K, 37, 24)) - photograph[20:44, 8:45]).mean() < 0.5


def test_pixel_centres_are_at_one_half() -> None:
    down = np.diag([1.0, -1.0, -1.0, 1.0])
    down[2, 3] = 6.0
    K = np.array([[80.0, 0.0, 30.25], [0.0, 80.0, 26.5], [0.0, 0.0, 1.0]])
    table = render_view(down, K, 60, 52).max(axis=-1) > 0.02
    row, column = (np.mean(index) + 0.5 for index in np.nonzero(table))
    assert (column, row) == pytest.approx((30.25, 26.5), abs=0.05)
    assert table.sum() == pytest.approx(np.pi * (80 * 1.5 / 6) ** 2, rel=0.05)


def test_cameras_look_at_the_centre_from_above() -> None:
    viewmats, _ = demo_cameras(40, 128)
    rotations = viewmats[:, :3, :3]
    np.testing.assert_allclose(rotations @ rotations.transpose(0, 2, 1), np.tile(np.eye(3), (40, 1, 1)), atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(rotations), 1)
    centre = viewmats @ np.append(demo.LOOK_AT, 1)
    np.testing.assert_allclose(centre[:, :3], np.tile([0, 0, demo.CAMERA_DISTANCE], (40, 1)), atol=1e-12)
    assert np.all(-rotations[:, 1, 2] > 0)  # the world's up is up in the picture

    held_out = np.arange(40) % 8 == 4
    forward = rotations[:, 2]
    assert np.rad2deg(np.arccos((forward[held_out] @ forward[~held_out].T).max(axis=1))).max() < 27


def test_only_the_glossy_sphere_depends_on_the_view() -> None:
    def change(target: list[float], eyes: list[list[float]]) -> float:
        directions = unit((np.array(target) - np.array(eyes)).astype(np.float32))
        colors = radiance(still_life(), light, np.array(eyes, np.float32), directions, 0)
        return float(np.abs(colors[0] - colors[1]).max())

    eyes = [[2.0, -1.5, 3.0], [3.0, -2.5, 1.0]]
    assert change([1.0, -0.91, 0.0], eyes) < 0.01
    assert change([0.62, -0.55, 0.54], eyes) > 0.05


def test_points_are_near_what_the_cameras_see(capture: Path) -> None:
    vertices = PlyData.read(capture / "points.ply")["vertex"]
    points = np.stack([vertices[axis] for axis in "xyz"], axis=-1)
    colors = np.stack([vertices[channel] for channel in ("red", "green", "blue")], axis=-1)
    assert 1800 <= len(points) <= 2100 and colors.dtype == np.uint8
    assert colors.std() > 30
    table = np.abs(points[:, 2]) < 4 * demo.POINT_NOISE
    planet = np.abs(np.linalg.norm(points - [0, 0.12, 0.78], axis=-1) - 0.36) < 4 * demo.POINT_NOISE
    assert table.sum() > 600 and planet.sum() > 100
    assert np.linalg.norm(points, axis=-1).max() < 1.6
    ball = np.abs(np.linalg.norm(points - [0.62, -0.55, 0.27], axis=-1) - 0.27) < 2 * demo.POINT_NOISE
    red, green, _ = colors[ball & (points[:, 2] > 0.1)].T.astype(int)
    assert len(red) > 20
    assert np.mean(red > 1.3 * green) > 0.9


def test_the_scene_is_reused_and_nothing_else_is_overwritten(capture: Path, tmp_path: Path) -> None:
    before = (capture / "images" / "000.png").stat().st_mtime_ns
    assert write_demo_scene(capture, views=9, size=64) == capture
    assert (capture / "images" / "000.png").stat().st_mtime_ns == before
    refused("holds something other", write_demo_scene, capture, views=8, size=64)
    assert len(list((capture / "images").iterdir())) == 9
    a, b = (write_demo_scene(tmp_path / name, views=2, size=16) for name in "ab")
    files = sorted(path.relative_to(a) for path in a.rglob("*") if path.is_file())
    assert len(files) == 4
    assert all((a / file).read_bytes() == (b / file).read_bytes() for file in files)


def test_an_interruption_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "sparse_points", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_demo_scene(tmp_path / "scene", views=2, size=8)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    refused("cannot write", write_demo_scene, tmp_path / "file" / "scene", views=2, size=8)


@pytest.mark.parametrize("bad", [{"views": 1}, {"size": 4}])
def test_senseless_sizes_are_refused(tmp_path: Path, bad: dict[str, int]) -> None:
    refused("at least", write_demo_scene, tmp_path / "scene", **bad)


def test_photographs_are_of_the_rooms_in_which_they_were_taken(tmp_path: Path) -> None:
    folder = two_rooms.write_two_rooms(tmp_path / "rooms", views=8, size=24)
    dataset = load_dataset(folder)
    x = np.array([view.camera.position[0] for view in dataset.views])
    assert (x[:4] < -0.5).all() and (x[4:] > 0.5).all()
    viewmats, K = two_rooms.room_cameras(8, 24)
    for i in (0, 5):
        np.testing.assert_allclose(dataset.views[i].camera.viewmat, viewmats[i], atol=1e-9)
        photograph = iio.imread(dataset.views[i].path)
        np.testing.assert_array_equal(np.round(255 * two_rooms.render_rooms(viewmats[i], K, 24, 24)), photograph)
        assert photograph.min() > 0, "every pixel is lit"
    assert (np.abs(dataset.points[0]) < [4.3, 2.4, 2.9]).all()
    before = (folder / "transforms.json").stat().st_mtime_ns
    assert two_rooms.write_two_rooms(folder, views=8, size=24) == folder
    assert (folder / "transforms.json").stat().st_mtime_ns == before
    refused("something other than this demo scene", write_demo_scene, folder, views=8, size=24)


def test_no_ray_leaves_the_rooms_but_some_go_through_the_door() -> None:
    directions = unit(np.random.default_rng(0).normal(size=(4000, 3)).astype(np.float32))
    origins = np.broadcast_to(np.array([-2.0, 0.9, 1.5], np.float32), directions.shape)
    distance, index = trace(two_rooms.room_surfaces(), origins, directions)
    assert np.isfinite(distance).all() and index.max() < len(two_rooms.room_surfaces())
    x = (origins + distance[:, None] * directions)[:, 0]
    assert 0.005 < (x > 0.1).mean() < 0.1
