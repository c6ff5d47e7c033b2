"""The two rooms are what their cameras see, and are whole: no ray leaves them."""

from __future__ import annotations

from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest

from splat_py.demo.scene import write_demo_scene
from splat_py.demo.shapes import unit
from splat_py.demo.two_rooms import cameras, render, surfaces, trace, write_two_rooms
from splat_py.errors import SplatError
from splat_py.scene.dataset import load_dataset


def test_photographs_are_of_the_rooms_in_which_they_were_taken(tmp_path: Path) -> None:
    folder = write_two_rooms(tmp_path / "rooms", views=8, size=24)
    dataset = load_dataset(folder)
    x = np.array([view.camera.position[0] for view in dataset.views])
    assert (x[:4] < -0.5).all() and (x[4:] > 0.5).all()
    viewmats, K = cameras(8, 24)
    for i in (0, 5):
        np.testing.assert_allclose(dataset.views[i].camera.viewmat, viewmats[i], atol=1e-9)
        photograph = iio.imread(dataset.views[i].path)
        np.testing.assert_array_equal(np.round(255 * render(viewmats[i], K, 24, 24)), photograph)
        assert photograph.min() > 0, "it is bright everywhere"
    assert dataset.points is not None
    assert (np.abs(dataset.points[0]) < [4.3, 2.4, 2.9]).all()
    # It is not made again, nor mistaken for the demo's.
    before = (folder / "transforms.json").stat().st_mtime_ns
    assert write_two_rooms(folder, views=8, size=24) == folder
    assert (folder / "transforms.json").stat().st_mtime_ns == before
    with pytest.raises(SplatError, match="something other than this demo scene"):
        write_demo_scene(folder, views=8, size=24)


def test_no_ray_leaves_the_rooms_but_some_go_through_the_door() -> None:
    directions = unit(np.random.default_rng(0).normal(size=(4000, 3)).astype(np.float32))
    origins = np.broadcast_to(np.array([-2.0, 0.9, 1.5], np.float32), directions.shape)
    distance, index = trace(origins, directions)
    assert np.isfinite(distance).all() and index.max() < len(surfaces())
    x = (origins + distance[:, None] * directions)[:, 0]
    assert 0.005 < (x > 0.1).mean() < 0.1
