"""Photographs as taken: cameras with lenses render, train and are compared at the points that OpenCV computes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from splat_py import Camera, Gaussians, SplatError, load_dataset, orbit, shaders
from splat_py.render.views import render
from splat_py.scene.camera import Distortion
from splat_py.scene.data_options import DataOptions
from splat_py.scene.dataset import fingerprint
from splat_py.shaders.custom_types import OwnTypes
from splat_py.train.config import TrainConfig
from splat_py.train.evaluation import evaluate
from splat_py.train.parameters import Parameters
from splat_py.train.run import RunFolder, open_scene, train
from splat_py.train.trainer import Trainer
from splat_py.volume.fitting import Views
from tests.refusals import refused
from tests.scene.captures import opengl_pose, picture, ring, save_json, write_image, write_transforms

LENSES = {
    "OPENCV": Distortion((-0.25, 0.08, 0.01, -0.015, -0.02)),
    "FULL_OPENCV": Distortion((0.4, 0.1, 0.01, -0.015, 0.02, 0.7, 0.15, 0.03)),
    "OPENCV_FISHEYE": Distortion((0.08, -0.05, 0.02, -0.01), fisheye=True),
}
KEYS = {
    "OPENCV": ("k1", "k2", "p1", "p2", "k3"),
    "FULL_OPENCV": ("k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6"),
    "OPENCV_FISHEYE": ("k1", "k2", "k3", "k4"),
}


def as_json(model: str) -> dict[str, Any]:
    return {"camera_model": model, **dict(zip(KEYS[model], LENSES[model].coefficients, strict=True))}


@pytest.mark.parametrize("model", LENSES)
def test_points_are_drawn_where_opencv_projects_them(model: str) -> None:
    lens, K = LENSES[model], np.array([[90.0, 0, 66], [0, 80, 45], [0, 0, 1]])
    x, y = (v.ravel() for v in np.meshgrid(np.linspace(-0.6, 0.6, 4), np.linspace(-0.45, 0.45, 4)))
    means = np.stack([x, y, np.ones_like(x)], 1) * 3
    gaussians = Gaussians.from_points(means.astype(np.float32), np.ones_like(means), sh_degree=0, opacity=0.9)
    gaussians.log_scales[:] = -6.0
    # OpenCV has pixel centres at whole numbers.
    shifted = K - np.array([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])
    project = cv2.fisheye.projectPoints if lens.fisheye else cv2.projectPoints
    expected = project(means[:, None], np.zeros(3), np.zeros(3), shifted, np.array(lens.coefficients))[0][:, 0]
    assert np.abs(expected - (means @ shifted.T)[:, :2] / 3).max() > 4, "the lens must bend visibly"
    image = render(gaussians, Camera(np.eye(4), K, 130, 90, "", lens))[..., 0]
    for u, v in expected:
        left, top = round(u) - 3, round(v) - 3
        patch = image[top : top + 7, left : left + 7]
        found = (patch.sum(0) @ np.arange(7) / patch.sum() + left, patch.sum(1) @ np.arange(7) / patch.sum() + top)
        assert found == pytest.approx((u, v), abs=0.1)


@pytest.mark.parametrize("model", LENSES)
def test_photographs_stay_as_they_are(model: str, tmp_path: Path) -> None:
    write_transforms(tmp_path, ring(3), **as_json(model))
    undistorted = load_dataset(tmp_path)
    dataset = load_dataset(tmp_path, undistort=False)
    camera = dataset.views[1].camera
    assert camera.distortion == LENSES[model] and undistorted.views[1].camera.distortion is None
    np.testing.assert_array_equal(dataset.image(1)[..., :3], picture(1))
    assert (dataset.image(1)[..., 3] == 255).all()
    assert not np.array_equal(undistorted.image(1), dataset.image(1))
    np.testing.assert_array_equal(camera.K, undistorted.views[1].camera.K)
    small = load_dataset(tmp_path, undistort=False, downscale=2).views[1].camera
    assert small.distortion == camera.distortion and small.K[0, 0] == camera.K[0, 0] / 2
    # A path around the scene uses pinhole cameras.
    assert all(frame.distortion is None for frame in orbit([view.camera for view in dataset.views], 3))
    assert fingerprint(dataset) != fingerprint(undistorted)
    refused("are distorted; load them with undistort=True", Views.of_dataset, dataset)


def test_a_photograph_of_a_pinhole_needs_no_lens(tmp_path: Path) -> None:
    write_transforms(tmp_path, ring(3))
    plain, other = load_dataset(tmp_path), load_dataset(tmp_path, undistort=False)
    assert other.views[0].camera.distortion is None
    assert fingerprint(plain) == fingerprint(other)


def test_pixels_that_no_point_can_reach_do_not_count(tmp_path: Path) -> None:
    # r (1 - 0.5 r²) is at most 0.544.
    camera = Camera(np.eye(4), np.array([[20, 0, 24], [0, 20, 16], [0, 0, 1]]), 48, 32, "a.png")
    write_transforms(tmp_path, [camera], k1=-0.5)
    weight = load_dataset(tmp_path, undistort=False).image(0)[..., 3]
    x, y = np.meshgrid((np.arange(48) + 0.5 - 24) / 20, (np.arange(32) + 0.5 - 16) / 20)
    np.testing.assert_array_equal(weight == 255, np.hypot(x, y) <= np.sqrt(2 / 3) * (2 / 3))


@pytest.mark.parametrize("coefficients", [(), (0.1,), (0.1, 0.2, 0.3, 0.4), (float("nan"),) * 5])
def test_what_is_no_distortion(coefficients: tuple[float, ...]) -> None:
    refused("pass 5 or 8 finite numbers", Distortion, coefficients)


def known_gaussians() -> Gaussians:
    rng = torch.Generator().manual_seed(5)
    points = torch.rand(150, 3, generator=rng) * 2 + torch.tensor([0.0, 1.0, 2.0])
    return Gaussians.from_points(points, torch.rand(150, 3, generator=rng), sh_degree=0, opacity=0.9)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of coloured Gaussians by three kinds of cameras."""
    root = tmp_path_factory.mktemp("lenses") / "capture"
    truth = known_gaussians()
    kinds: list[str | None] = ["OPENCV", "OPENCV_FISHEYE", None]
    cameras = [replace(camera, K=[[20.0, 0, 20], [0, 20, 20], [0, 0, 1]]) for camera in ring(9, 1.9, 40, 40)]
    content = write_transforms(root, cameras)
    for i, (camera, frame) in enumerate(zip(cameras, content["frames"], strict=True)):
        model = kinds[i % 3]
        lens = LENSES[model] if model else None
        write_image(root / "images" / camera.name, (render(truth, replace(camera, distortion=lens)) * 255).astype(np.uint8))
        frame |= as_json(model) if model else {"camera_model": "PINHOLE"}
        assert frame["transform_matrix"] == opengl_pose(camera)
    save_json(root, content)
    return root


def test_training_through_lenses_is_better_than_to_ignore_them(capture: Path) -> None:
    """Everything but the colours of the photographed Gaussians is known."""
    rates = dict.fromkeys(("means_lr", "quats_lr", "scales_lr", "opacities_lr"), 0.0)
    config = TrainConfig(steps=60, init="random", init_num_pts=150, sh_degree=0, densify_every=1000, sh0_lr=0.0125, **rates)
    through = load_dataset(capture, undistort=False, test_every=4)
    pinholes = [replace(view, camera=replace(view.camera, distortion=None)) for view in through.views]
    ignored = replace(through, views=pinholes, _images=through._images)
    scores = []
    for dataset in (through, ignored):
        trainer = Trainer(dataset, config)
        trainer.parameters = Parameters.fresh(trainer.device, replace(known_gaussians(), sh=torch.zeros(150, 1, 3)))
        trainer._reserve()
        scores.append(evaluate(trainer.fit(), dataset).psnr)
    # Measured: 32.4 and 20.6 dB.
    assert scores[0] > 30
    assert scores[0] > scores[1] + 8


OWN_PINHOLE = """
import splat.prelude;
import splat.camera_model;

struct Mine : ICameraModel
{
    [Differentiable]
    static float2 project(Camera camera, float3 t)
    {
        return camera.focal * (t.xy / t.z) + camera.principal;
    }

    [Differentiable]
    static override float3 linearisationPoint(Camera camera, float3 t, no_diff ImageSize image)
    {
        return float3(clampedSlope(camera, t, image) * t.z, t.z);
    }
}
"""


@pytest.fixture(scope="module")
def panorama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of an equidistant fisheye, which the file does not mention."""
    root = tmp_path_factory.mktemp("fisheye") / "capture"
    cameras = [replace(camera, K=[[20.0, 0, 20], [0, 20, 20], [0, 0, 1]]) for camera in ring(4, 1.9, 40, 40)]
    write_transforms(root, cameras)
    for camera in cameras:
        photograph = render(known_gaussians(), replace(camera, model="fisheye"))
        write_image(root / "images" / camera.name, (photograph * 255).astype(np.uint8))
    return root


def test_a_camera_that_the_capture_does_not_know(panorama: Path, tmp_path: Path) -> None:
    options, config = DataOptions(panorama, test_every=2), TrainConfig(steps=3, sh_degree=0, camera="fisheye", init_num_pts=99)
    train(options, config, tmp_path / "run")
    _, dataset, read = open_scene(tmp_path / "run", None, None)
    assert read.camera == "fisheye" and {view.camera.model for view in dataset.views} == {"fisheye"}
    assert evaluate(known_gaussians(), dataset).psnr > 45
    assert evaluate(known_gaussians(), options.load()).psnr < 25
    _, dataset, _ = open_scene(tmp_path / "run" / "scene.ply", panorama, None, OwnTypes(camera="fisheye"))
    assert evaluate(known_gaussians(), dataset).psnr > 45
    with pytest.raises(SplatError, match="run has the camera fisheye, not ortho; leave --camera out"):
        open_scene(tmp_path / "run", None, None, OwnTypes(camera="ortho"))
    with pytest.raises(SplatError, match=r"--camera is ortho, but the run in .* was begun with fisheye"):
        train(options, replace(config, steps=6, camera="ortho"), tmp_path / "run", resume=True)


def test_a_pinhole_of_ones_own_trains_as_the_built_in_one(panorama: Path) -> None:
    config = TrainConfig(steps=6, sh_degree=0, init_num_pts=200, accumulate="pair")
    first = Trainer(load_dataset(panorama), config)
    other = Trainer(load_dataset(panorama), config, camera=shaders.source(OWN_PINHOLE))
    assert (other.config.camera, other.config.camera_source) == ("Mine", OWN_PINHOLE)
    one, same = first.checkpoint(), other.checkpoint()
    for trainer in (first, other):
        while trainer.step < 6:
            trainer.advance()
    # Quaternions of still round Gaussians follow the rounding.
    camera = first.dataset.views[0].camera
    images = [render(trainer.gaussians(), camera) for trainer in (first, other)]
    np.testing.assert_allclose(images[0], images[1], atol=2e-3)
    assert np.abs(images[0] - render(one.gaussians(), camera)).max() > 0.02
    with pytest.raises(SplatError, match=r"the checkpoint carries Slang source of its own, Mine, .*--camera FILE"):
        Trainer(load_dataset(panorama), resume=same)
    Trainer(load_dataset(panorama), resume=same, trust_source=True).advance()


def test_a_run_is_compared_at_the_photographs_as_they_were_taken(capture: Path, tmp_path: Path) -> None:
    options, config = DataOptions(capture, test_every=4), TrainConfig(steps=4, sh_degree=0, init_num_pts=100)
    scores = train(options, config, tmp_path / "run")
    gaussians, dataset, _ = open_scene(tmp_path / "run", None, None)
    assert [view.camera.distortion is None for view in dataset.views] == [False, False, True] * 3
    assert evaluate(gaussians, dataset).psnr == pytest.approx(scores.psnr, abs=1e-4)
    with pytest.raises(SplatError, match=r"--undistort is True, but the run in .* was begun with False"):
        train(replace(options, undistort=True), replace(config, steps=8), tmp_path / "run", resume=True)


def test_undistorted_runs_stay_undistorted(capture: Path, tmp_path: Path) -> None:
    train(DataOptions(capture, undistort=True), TrainConfig(steps=2, sh_degree=0, init_num_pts=100), tmp_path)
    train(DataOptions(capture), TrainConfig(steps=4), tmp_path, resume=True)
    assert RunFolder(tmp_path).record().data.undistort
    assert all(view.camera.distortion is None for view in open_scene(tmp_path, None, None)[1].views)
    with pytest.raises(SplatError, match=r"--undistort is False, but the run in .* was begun with True"):
        train(DataOptions(capture), TrainConfig(steps=6), tmp_path, resume=True, given=("undistort",))
