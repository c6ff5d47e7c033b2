"""Objects that a pixel shows, in a scene whose surfaces are known, and their masks in photographs."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.ndimage import binary_dilation, distance_transform_edt

from splat_py import Camera, Gaussians, load_dataset
from splat_py.demo.scene import demo_cameras, still_life, write_demo_scene
from splat_py.demo.shapes import trace, unit
from splat_py.render.selection import objects, pick, shares, write_masks
from splat_py.scene.editing import select
from tests.refusals import refused

SIDE = 128
# Surfaces of the demo that are one object.
TABLE, BALL, BOX, TORUS, CANDLE = 0, 5, 6, 7, 8
VIEWMATS, K = demo_cameras(12, SIDE)
CAMERAS = [Camera(viewmat, K, SIDE, SIDE) for viewmat in VIEWMATS]


def hits(camera: Camera) -> tuple[np.ndarray, np.ndarray]:
    """The surface [H, W] at each pixel, -1 for none, and its point [H, W, 3]."""
    pixels = np.stack([*np.meshgrid(*[np.arange(SIDE) + 0.5] * 2), np.ones((SIDE, SIDE))], -1).reshape(-1, 3)
    directions = unit((pixels @ np.linalg.inv(camera.K).T @ camera.viewmat[:3, :3]).astype(np.float32))
    origins = np.broadcast_to(camera.position.astype(np.float32), directions.shape)
    distances, surfaces = trace(still_life(), origins, directions)
    return surfaces.reshape(SIDE, SIDE), (origins + distances[:, None] * directions).reshape(SIDE, SIDE, 3)


def place(surfaces: np.ndarray, surface: int) -> tuple[int, int]:
    """Column and row of the pixel that is deepest inside a surface."""
    row, column = np.unravel_index(distance_transform_edt(surfaces == surface).argmax(), surfaces.shape)
    return int(column), int(row)


@pytest.fixture(scope="module")
def seen() -> np.ndarray:
    """The surface [C, H, W] at each pixel of the cameras."""
    return np.stack([hits(camera)[0] for camera in CAMERAS])


@pytest.fixture(scope="module")
def still() -> tuple[Gaussians, np.ndarray]:
    """Gaussians about 3 cm apart on the surfaces that the cameras see, every tenth one faint, and their surfaces [N]."""
    surfaces, points = (np.concatenate(parts) for parts in zip(*map(hits, CAMERAS), strict=True))
    surfaces, points = surfaces[surfaces >= 0], points[surfaces >= 0]
    kept = np.unique(np.floor(points / 0.03), axis=0, return_index=True)[1]
    gaussians = Gaussians.from_points(points[kept], np.full((len(kept), 3), 0.5), sh_degree=0, opacity=0.9)
    logits = torch.where(torch.arange(len(kept)) % 10 == 0, -1.0, gaussians.logit_opacities)
    return replace(gaussians, log_scales=gaussians.log_scales - math.log(2.5), logit_opacities=logits), surfaces[kept]


@pytest.mark.parametrize("surface", [BALL, BOX, TORUS, CANDLE])
def test_one_pixel_finds_an_object(surface: int, still: tuple[Gaussians, np.ndarray], seen: np.ndarray) -> None:
    gaussians, surfaces = still
    rows, truth = pick(gaussians, objects(gaussians), CAMERAS[3], *place(seen[3], surface)), surfaces == surface
    assert (rows & truth).sum() / (rows | truth).sum() > 0.9
    masks, wanted = np.stack([shares(gaussians, rows, camera) >= 0.5 for camera in CAMERAS[::2]]), seen[::2] == surface
    # Gaussians are blurred by a pixel. What other objects hide is black.
    assert masks[wanted].mean() > 0.85
    assert not any((mask & ~binary_dilation(shown, iterations=3)).any() for mask, shown in zip(masks, wanted, strict=True))


def test_floor_and_nothing_are_no_objects(still: tuple[Gaussians, np.ndarray], seen: np.ndarray) -> None:
    gaussians, surfaces = still
    labels = objects(gaussians)
    assert (labels[surfaces == TABLE] == -1).mean() > 0.9
    refused("shows the floor, table or wall", pick, gaussians, labels, CAMERAS[3], *place(seen[3], TABLE))
    refused("shows no surface", pick, gaussians, labels, CAMERAS[3], *place(seen[3], -1))
    refused(f"x is {SIDE}; it must be a whole number from 0", pick, gaussians, labels, CAMERAS[3], SIDE, 0)


def test_a_scene_without_a_plane_is_objects_alone() -> None:
    points = np.random.default_rng(0).normal(size=(2, 1500, 3))
    points /= np.linalg.norm(points, axis=-1, keepdims=True)
    points[1, :, 0] += 3
    two = Gaussians.from_points(points.reshape(-1, 3), np.full((3000, 3), 0.5), opacity=0.9)
    first, second = objects(two).reshape(2, -1)
    assert (first == first[0]).all() and (second == second[0]).all() and len({-1, first[0], second[0]}) == 3
    refused("no 16 opaque Gaussians of the scene are linked; a larger reach", objects, two, 0.1)
    refused("16 Gaussians with an opacity of 0.5 or more, too few", objects, two.mapped(lambda tensor: tensor[:16]))


def test_masks_are_read_for_training(still: tuple[Gaussians, np.ndarray], tmp_path: Path) -> None:
    gaussians, surfaces = still
    capture, rows = write_demo_scene(tmp_path / "capture", views=12, size=64), surfaces == BOX
    dataset = load_dataset(capture, test_every=0)
    views = dataset.views[:3:2]
    assert write_masks(tmp_path / "box", capture, views, gaussians, rows) == 2
    with pytest.warns(UserWarning, match="10 of 12 photographs have no mask in .* and are left out"):
        cut = load_dataset(capture, test_every=0, cut_out=tmp_path / "box", background=(0.2, 0.4, 1))
    assert [view.name for view in cut.views] == [view.name for view in views] and all(view.has_alpha for view in cut.views)
    for index, view in enumerate(views):
        white = shares(gaussians, rows, view.camera) >= 0.5
        hidden = (shares(select(gaussians, rows), rows[rows], view.camera) >= 0.5) & ~white
        assert white.sum() > 30 and (hidden.sum() > 30) == (index == 0)
        photograph, found = dataset.image(2 * index), cut.image(index)
        np.testing.assert_array_equal(found[..., 3], np.where(hidden, 0, 255))
        np.testing.assert_array_equal(found[white], photograph[white])
        assert (found[~white & ~hidden] == (51, 102, 255, 255)).all()
    # Pixels beside the object, as a capture's own masks have them.
    assert write_masks(capture / "masks", capture, views[:1], gaussians, rows, outside=True) == 1
    weights = load_dataset(capture, test_every=0).image(0)[..., 3]
    np.testing.assert_array_equal(weights, np.where(shares(gaussians, rows, views[0].camera) >= 0.5, 0, 255))

    refused("box is not an empty folder", write_masks, tmp_path / "box", capture, views, gaussians, rows)
    refused("no photograph of .* shows", write_masks, tmp_path / "none", capture, views, gaussians, rows & False)
    assert not (tmp_path / "none").exists()
    refused("holds no mask with the name of a photograph", load_dataset, capture, cut_out=tmp_path / "none")
