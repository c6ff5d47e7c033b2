"""The 3D smoothing filter in training: its size, its gradients, checkpoints, and files for other viewers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splat_py import Dataset
from splat_py.gpu.device import get_device
from splat_py.render.splats import GaussianArrays
from splat_py.render.views import render
from splat_py.scene.camera import Camera, Distortion
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.evaluation import compare
from splat_py.train.parameters import FILTER, Filter3D, Parameters, filtered
from splat_py.train.trainer import StepReport, Trainer
from splat_py.train.views import camera_model, device_camera
from tests.commands.selftest.make_references import smoothed
from tests.refusals import refused
from tests.train.refinement import assert_resumes

CAPTURE = 6, 32
COUNT = 300
NEAR = 0.05
LENSES = None, Distortion((0.0,) * 5)
CONFIG = TrainConfig(
    steps=60, densify_every=20, densify_start=1, init_num_pts=300, init="random", filter_3d=True, accumulate="pair"
)


def cameras(lens: Distortion | None = None) -> list[Camera]:
    found = []
    for i, (focal, width, height) in enumerate([(40.0, 32, 24), (90.0, 64, 48), (20.0, 48, 48)]):
        viewmat = np.eye(4)
        viewmat[:3, 3] = [0.3 * i, -0.2, 0.5 * i]
        K = np.array([[focal, 0, width / 2 + 1], [0, focal, height / 2], [0, 0, 1]])
        found.append(Camera(viewmat, K, width, height, distortion=lens))
    return found


def expected_filters(means: np.ndarray) -> np.ndarray:
    """Filters of pinhole cameras: √0.2 depth / focal length of the camera that gives the smallest."""
    smallest = np.full(len(means), np.inf)
    for camera in cameras():
        x, y, z = (camera.viewmat[:3, :3] @ means.T + camera.viewmat[:3, 3:]).astype(np.float64)
        u, v = camera.K[0, 0] * x / z + camera.K[0, 2], camera.K[1, 1] * y / z + camera.K[1, 2]
        inside = (np.abs(u / camera.width - 0.5) <= 0.65) & (np.abs(v / camera.height - 0.5) <= 0.65) & (z > NEAR)
        smallest = np.where(inside, np.minimum(smallest, np.sqrt(0.2) * z / camera.K[0, 0]), smallest)
    return np.where(np.isinf(smallest), 0, smallest)


@pytest.mark.parametrize("lens", LENSES, ids=["pinholes", "a lens that does nothing"])
def test_filters_and_their_gradients(lens: Distortion | None) -> None:
    device, rng = get_device(), np.random.default_rng(0)
    array = device.memory.array
    means = rng.uniform([-3, -3, -1], [3, 3, 6], (COUNT, 3)).astype(np.float32)
    log_scales = rng.uniform(-7, 0, (COUNT, 3)).astype(np.float32)
    logits = rng.uniform(-3, 3, COUNT).astype(np.float32)
    raw = GaussianArrays(array(means), array(np.zeros((COUNT, 4), np.float32)), array(log_scales), array(logits))
    seeing = [(device_camera(device, camera), camera_model(camera)) for camera in cameras(lens)]
    smoothing = Filter3D(device, lambda: seeing, NEAR)
    v_scales, v_opacities = (rng.normal(size=shape).astype(np.float32) for shape in ((COUNT, 3), COUNT))
    v = replace(raw, scales=array(v_scales), opacities=array(v_opacities))

    with device.recording() as recorder:
        smooth = smoothing.record(recorder, raw, 1, array(np.zeros(3, np.uint32)))
        smoothing.record_backward(recorder, v)
        smoothing.record(recorder, replace(raw, means=array(means * 2)), 100, array(np.ones(3, np.uint32)))
    with device.recording() as recorder:
        smoothing.record(recorder, raw, 1, array(np.zeros(3, np.uint32)))

    filters = smoothing.state(raw)[FILTER]
    expected = expected_filters(means)
    assert 50 < (expected > 0).sum() < COUNT - 50
    np.testing.assert_allclose(filters, expected, rtol=1e-4)

    grown, dimmed, *wanted = smoothed(log_scales, logits, expected, v_scales, v_opacities)
    np.testing.assert_allclose(smooth.scales.numpy(), grown, rtol=1e-4)
    np.testing.assert_allclose(smooth.opacities.numpy(), dimmed, rtol=3e-4, atol=1e-9)
    for actual, gradient in zip((v.scales, v.opacities), wanted, strict=True):
        np.testing.assert_allclose(actual.numpy(), gradient, rtol=1e-3, atol=1e-6)

    written = filtered({"log_scales": log_scales, "logit_opacities": logits, FILTER: filters})
    np.testing.assert_allclose(np.exp(written["log_scales"]), grown, rtol=1e-4)
    np.testing.assert_allclose(1 / (1 + np.exp(-written["logit_opacities"].astype(np.float64))), dimmed, rtol=3e-4)


def test_resumed_runs_end_in_the_same_bits(dataset: Dataset, tmp_path: Path) -> None:
    assert assert_resumes(dataset, CONFIG, tmp_path, 20, 33)[1].parameters.count > 300


BETA = {"splat": "BetaKernel", "splat_params": ("b=0.7",), "steps": 1}


@pytest.mark.parametrize("changes", [{}, {"filter_3d": False}, {"filter_3d": False, **BETA}], ids=str)
def test_the_trainer_renders_what_rasterization_renders(dataset: Dataset, changes: dict[str, Any]) -> None:
    """The resident path (stored parameters) and the torch path (activated ones) have the same PSNR."""
    reports: list[StepReport] = []
    trainer = Trainer(dataset, replace(CONFIG, sh_degree=0, **changes))
    view = trainer.views_of(0)[0]
    image = render(trainer.gaussians(), dataset.views[view].camera, dataset.background, near=dataset.near)
    psnr, _ = compare(image, dataset.image(view))
    trainer.fit(reports.append)
    assert reports[0].values.psnr == pytest.approx(psnr, abs=1e-3)
    assert [report.step for report in reports] == list(range(trainer.config.steps))
    if trainer.config.filter_3d:
        checkpoint = trainer.checkpoint()
        # Training's file, and that of `splat export`.
        for written in (trainer.gaussians(), checkpoint.gaussians()):
            assert (written.log_scales.exp().numpy() >= checkpoint.state[FILTER][:, None] * (1 - 1e-6)).all()


def test_a_damaged_filter_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    checkpoint = Trainer(dataset, CONFIG).checkpoint()
    for name, values in {"negative": -checkpoint.state[FILTER] - 1, "short": checkpoint.state[FILTER][1:]}.items():
        replace(checkpoint, state=checkpoint.state | {FILTER: values}).save(tmp_path / name)
        refused(name, Checkpoint.load, tmp_path / name)
    checkpoint = Trainer(dataset, replace(CONFIG, filter_3d=False)).checkpoint()
    assert FILTER not in checkpoint.state and set(Parameters.STATISTICS) <= set(checkpoint.state)
