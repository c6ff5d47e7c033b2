"""Bilateral grids of photographs: their gradients, their effect on training, and their files."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import tests.reference.bilateral_grid as ref
from splat_py import Dataset, load_dataset
from splat_py.base.files import save_tensors
from splat_py.gpu.device import get_device
from splat_py.train.capture_model import _CAPTURE, LearntCapture
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.evaluation import evaluate
from splat_py.train.learnt_parts import GRID, BilateralGrids
from splat_py.train.trainer import Trainer
from tests.reference.adam import adam_step
from tests.refusals import refused
from tests.train.refinement import assert_resumes

CAPTURE = 24, 48
CONFIG = TrainConfig(steps=30, sh_degree=1, init="random", init_num_pts=300, bilateral_grid=True, accumulate="pair")


@pytest.mark.parametrize(("height", "width"), [(41, 53), (9, 5)])
def test_pictures_gradients_and_steps(height: int, width: int) -> None:
    """Every float's, with colours beyond black and white; also in a picture with fewer pixels than the grid has columns."""
    rng, device = np.random.default_rng(81), get_device()
    state = {name: rng.uniform(0.1, 1, (2, *GRID)).astype(np.float32) for name in ("grids", "grids.m", "grids.v")}
    colors, v_shown = (rng.uniform(low, 1.2, (1, height, width, 3)).astype(np.float32) for low in (-0.2, -1.2))
    grids, array = BilateralGrids(device, 2, state), device.memory.array
    with device.recording() as recorder:
        render, v_colors = array(colors), array(v_shown)
        shown = grids.record(recorder, 1, render)
        v_grid = grids.record_backward(recorder, 1, render, v_colors)
        grids.record_update(recorder, 1, v_grid, array(np.zeros(3, np.uint32)), epoch=2, step=5, progress=0.5)
        overflow = array(np.ones(3, np.uint32))
        for photograph in (0, 1):
            grids.record_update(recorder, photograph, v_grid, overflow, epoch=2, step=5, progress=0.5)
    expected = ref.differentiated(*(values.astype(float) for values in (state["grids"][1], colors[0], v_shown[0])))
    found = shown.numpy()[0], v_grid.numpy().reshape(GRID), v_colors.numpy()[0]
    for values, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=2e-6 * np.abs(wanted).max())
    before = {name: values.astype(float) for name, values in state.items()}
    step = adam_step(
        before["grids"][1],
        expected[1],
        before["grids.m"][1],
        before["grids.v"][1],
        3,
        lr=np.sqrt(5e-2 * 5e-4),
        beta1=0.5,
        beta2=0.9,
    )
    for (name, values), wanted in zip(grids.state().items(), step, strict=True):
        np.testing.assert_allclose(values[1], wanted, rtol=1e-4, atol=1e-6, err_msg=name)
        np.testing.assert_array_equal(values[0], state[name][0])
    maps = grids.state()["grids"].astype(float)
    with device.recording() as recorder:
        v_grid = recorder.scratch(v_grid.shape)
        recorder.clear(v_grid)
        grids.record_update(recorder, 0, v_grid, array(np.zeros(3, np.uint32)), epoch=2, step=5, progress=0.0)
    # A step of no length, and the mean of all photographs' maps is neutral.
    maps += ref.NEUTRAL.numpy() - maps.mean((0, 1, 2, 3))
    np.testing.assert_allclose(grids.state()["grids"], maps, atol=1e-5)


def test_the_reference_agrees_with_finite_differences() -> None:
    torch.manual_seed(1)
    grid, colors = torch.rand(3, 2, 4, 12).double(), torch.rand(3, 5, 3).double() * 0.8 + 0.1
    inputs = grid.requires_grad_(), colors.requires_grad_()
    assert torch.autograd.gradcheck(lambda g, c: (ref.sliced(g, c), ref.variation(g)), inputs)


def test_what_changes_nothing_shows_nothing() -> None:
    device = get_device()
    colors = np.random.default_rng(82).uniform(-0.5, 1.5, (1, 7, 8, 3)).astype(np.float32)
    with device.recording() as recorder:
        shown = BilateralGrids(device, 1).record(recorder, 0, device.memory.array(colors))
    np.testing.assert_allclose(shown.numpy(), colors, atol=1e-6)


def toned(dataset: Dataset) -> Dataset:
    """Training photographs with a tone curve, and a gain that falls or rises from one side to the other, each with its own."""
    images, rng = [dataset.image(view).copy() for view in range(len(dataset))], np.random.default_rng(0)
    for view in dataset.train:
        height, width, _ = images[view].shape
        y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
        slopes, gamma = rng.normal(0, 0.5, 2), np.exp(rng.normal(0, 0.2))
        gain = np.exp(rng.normal(0, 0.25) + slopes[0] * x + slopes[1] * y)[..., None] * np.exp(rng.normal(0, 0.1, 3))
        images[view][..., :3] = np.clip(255 * (images[view][..., :3] / 255) ** gamma * gain, 0, 255)
    return replace(dataset, _images=cast(Any, images))


def test_regains_what_tones_of_parts_of_photographs_cost(capture: Path) -> None:
    """Held-out photographs are as they were. The scene keeps the photographs' mean."""
    dataset, scores = toned(load_dataset(capture, test_split="first")), {}
    for option in ("", "exposure", "bilateral_grid"):
        learns = {"bilateral_grid": False} | ({option: True} if option else {})
        config = replace(CONFIG, steps=300, init="points", **learns)
        trainer = Trainer(dataset, config)
        scores[option] = evaluate(trainer.fit(), dataset).corrected_psnr
    assert scores["bilateral_grid"] > scores["exposure"] + 0.2 > scores[""] + 0.4, scores
    grids = trainer.checkpoint().state["grids"]
    assert np.abs(grids.mean((0, 1, 2, 3)) - ref.NEUTRAL.numpy()).max() < 0.01 < grids.std((1, 2, 3)).mean()


def test_grids_are_kept_and_what_does_not_fit_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    _, trainer = assert_resumes(dataset, CONFIG, tmp_path, 11, 26)
    learnt, path = trainer.learnt_capture(), tmp_path / "capture"
    learnt.save(path)
    grids = LearntCapture.load(path, CONFIG).arrays["grids"]
    assert grids.shape == (len(dataset.train), *GRID)
    np.testing.assert_array_equal(grids, learnt.arrays["grids"])
    for wrong in (grids[:, :7], grids[:0], grids.astype(np.float64), grids[0]):
        save_tensors(path, _CAPTURE, {}, {"grids": wrong})
        refused("is not the learnt capture of a run", LearntCapture.load, path, CONFIG)
    fewer = replace(dataset, train=dataset.train[:-1])
    refused(r"grids of \d+ photographs, but .* trains on", Trainer, fewer, resume=trainer.checkpoint())
    older = {name: value for name, value in vars(CONFIG).items() if name != "bilateral_grid"}
    assert not TrainConfig.from_dict(older).bilateral_grid
    refused("exposure and bilateral_grid exclude each other", replace(CONFIG, exposure=True).validate)
    damaged = trainer.checkpoint()
    del damaged.state["grids.v"]
    damaged.save(path)
    refused("is not a checkpoint", Checkpoint.load, path)
