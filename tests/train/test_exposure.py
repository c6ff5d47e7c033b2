"""Exposures of photographs: their gradients, their effect on training, and checkpoints."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import tests.reference.exposure as ref
from splat_py import Dataset, load_dataset
from splat_py.gpu.device import get_device
from splat_py.train.capture_model import Exposures
from splat_py.train.config import TrainConfig
from splat_py.train.evaluation import evaluate
from splat_py.train.trainer import Trainer
from tests.refusals import refused
from tests.shaders.oracle import pullback

CAPTURE = 24, 48
CONFIG = TrainConfig(steps=100, sh_degree=1, init="random", init_num_pts=1500, exposure=True, accumulate="pair")


@pytest.fixture(scope="module")
def exposed(capture: Path) -> Dataset:
    """Photographs that are brighter or darker than the scene, and tinted."""
    dataset, rng = load_dataset(capture), np.random.default_rng(0)
    images = []
    for view in range(len(dataset)):
        image = dataset.image(view).copy()
        gain = np.exp(rng.normal(0, 0.3) + rng.normal(0, 0.1, 3))
        image[..., :3] = np.clip(image[..., :3] * gain, 0, 255)
        images.append(image)
    return replace(dataset, _images=cast(Any, images))


def test_gradients_of_a_picture_of_several_workgroups() -> None:
    rng = np.random.default_rng(61)
    device = get_device()
    state = {name: rng.uniform(0.1, 1, (2, 12)).astype(np.float32) for name in ("exposures", "exposures.m", "exposures.v")}
    colors, v_shown = (rng.normal(size=(1, 41, 53, 3)).astype(np.float32) for _ in range(2))
    exposures = Exposures(device, 2, state)
    with device.recording() as recorder:
        array, v_array = device.memory.array(colors), device.memory.array(v_shown)
        shown = exposures.record(recorder, 1, array)
        parts = exposures.record_backward(recorder, 1, array, v_array)
        exposures.record_update(recorder, 1, parts, device.memory.array(np.zeros(3, np.uint32)), epoch=2, progress=0.5)

    own = state["exposures"][1].astype(float)
    v_own, v_colors = ref.expose_backward(own, colors.astype(float), v_shown.astype(float))
    assert parts.shape[0] > 1
    np.testing.assert_allclose(parts.numpy().sum(0), v_own, rtol=1e-4, atol=1e-4 * np.abs(v_own).max())
    np.testing.assert_allclose(v_array.numpy(), v_colors, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(shown.numpy(), ref.expose(own, colors), rtol=1e-5, atol=1e-5)
    before = {name: values.astype(float) for name, values in state.items()}
    for name, values in ref.updated(before, 1, v_own, 2, lr=np.sqrt(0.05 * 0.001), weight=1e-3).items():
        np.testing.assert_allclose(exposures.state()[name], values, rtol=1e-4, atol=1e-4, err_msg=name)
    flat = colors[0].reshape(1, -1, 3)
    (expected,) = pullback(lambda e: ref.expose(e[0], flat), v_shown.reshape(1, -1, 3), own[None])
    np.testing.assert_allclose(v_own, expected[0], rtol=1e-12)


def test_regains_what_exposures_cost_and_keeps_the_mean(exposed: Dataset) -> None:
    scores = {}
    for learns in (False, True):
        trainer = Trainer(exposed, replace(CONFIG, exposure=learns, steps=300, init="points"))
        trainer.fit()
        scores[learns] = evaluate(trainer.gaussians(), exposed)
    assert scores[True].corrected_psnr > scores[False].corrected_psnr + 0.5
    exposures = trainer.checkpoint().state["exposures"]
    assert np.ptp(exposures[:, 0]) > 0.1
    np.testing.assert_allclose(exposures.mean(0), ref.NEUTRAL, atol=1e-5)


def test_pixels_that_are_masked_do_not_count(exposed: Dataset) -> None:
    states = []
    for color in (0, 255):
        images = [exposed.image(view).copy() for view in range(len(exposed))]
        for image in images:
            image[:, :20, :3], image[:, :20, 3] = color, 0
        trainer = Trainer(replace(exposed, _images=cast(Any, images)), replace(CONFIG, steps=5))
        while trainer.step < 5:
            trainer.advance()
        states.append(trainer.checkpoint().state["exposures"])
    np.testing.assert_array_equal(*states)
    checkpoint = Trainer(exposed, CONFIG).checkpoint()
    fewer = replace(exposed, train=exposed.train[:-1])
    refused(r"exposures of \d+ photographs, but .* trains on", Trainer, fewer, resume=checkpoint)
