"""Looks of photographs, by affine maps and by PPISP: their gradients, their effect on training, and checkpoints."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

import tests.reference.exposure as ref
import tests.reference.ppisp as ppisp_ref
from splat_py import Dataset, load_dataset
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import get_device
from splat_py.train.capture_model import LearntCapture, cameras_of
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.evaluation import evaluate
from splat_py.train.learnt_parts import AFFINE, PPISP, Looks
from splat_py.train.trainer import Trainer
from tests.refusals import refused
from tests.scene.captures import ring, write_colmap, write_transforms
from tests.shaders.oracle import pullback
from tests.train.refinement import assert_same_bits

CAPTURE = 24, 48
CONFIG = TrainConfig(steps=100, sh_degree=1, init="random", init_num_pts=1500, exposure=True, accumulate="pair")


@pytest.fixture(scope="module")
def exposed(capture: Path) -> Dataset:
    """Photographs that are brighter or darker than the scene, and tinted."""
    dataset, rng = load_dataset(capture, test_split="first"), np.random.default_rng(0)
    images = []
    for view in range(len(dataset)):
        image = dataset.image(view).copy()
        gain = np.exp(rng.normal(0, 0.3) + rng.normal(0, 0.1, 3))
        image[..., :3] = np.clip(image[..., :3] * gain, 0, 255)
        images.append(image)
    return replace(dataset, _images=cast(Any, images))


def stepped(looks: Looks, colors: NDArray, v_shown: NDArray) -> tuple[Array, Array, Array]:
    """The second photograph's picture, the gradient of the scene's colours and the sums for its look, whose step is taken."""
    device = get_device()
    with device.recording() as recorder:
        array, v_array = device.memory.array(colors), device.memory.array(v_shown)
        shown = looks.record(recorder, 1, array)
        parts = looks.record_backward(recorder, 1, array, v_array)
        looks.record_update(recorder, 1, parts, device.memory.array(np.zeros(3, np.uint32)), epoch=2, step=5, progress=0.5)
    return shown, v_array, parts


def test_gradients_of_a_picture_of_several_workgroups() -> None:
    rng = np.random.default_rng(61)
    device = get_device()
    state = {name: rng.uniform(0.1, 1, (2, 12)).astype(np.float32) for name in ("exposures", "exposures.m", "exposures.v")}
    colors, v_shown = (rng.normal(size=(1, 41, 53, 3)).astype(np.float32) for _ in range(2))
    exposures = Looks(device, AFFINE, [0, 0], state)
    shown, v_array, parts = stepped(exposures, colors, v_shown)
    own = state["exposures"][1].astype(float)
    v_own, v_colors = ref.expose_backward(own, colors.astype(float), v_shown.astype(float))
    assert parts.shape[0] > 1
    np.testing.assert_allclose(parts.numpy().sum(0), v_own, rtol=1e-4, atol=1e-4 * np.abs(v_own).max())
    np.testing.assert_allclose(v_array.numpy(), v_colors, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(shown.numpy(), ref.expose(own, colors), rtol=1e-5, atol=1e-5)
    before = {name: values.astype(float) for name, values in state.items()}
    for name, values in ref.updated(before, 1, v_own, 2, lr=np.sqrt(0.05 * 0.001), weight=1e-3).items():
        np.testing.assert_allclose(exposures.state()[name], values, rtol=1e-4, atol=1e-6, err_msg=name)
    flat = colors[0].reshape(1, -1, 3)
    (expected,) = pullback(lambda e: ref.expose(e[0], flat), v_shown.reshape(1, -1, 3), own[None])
    np.testing.assert_allclose(v_own, expected[0], rtol=1e-12)


@pytest.mark.parametrize(("scale", "seen"), [(0.0, 1), (0.4, 1), (0.4, 0)])
def test_what_cameras_do_to_colours(scale: float, seen: int) -> None:
    """Every number's gradient and step, in a picture of several workgroups; also where all is neutral, and where only the
    penalty has a gradient and no step came before. Another photograph has another camera."""
    rng, device = np.random.default_rng(71), get_device()
    shapes = {"exposures": (2, 9), "response": (2, 27)}
    state = {name: (scale * rng.uniform(-1, 1, shape)).astype(np.float32) for name, shape in shapes.items()}
    # Light falls outwards; elsewhere it is cut off at 1, where its derivative depends on rounding.
    state["response"][:, :15].reshape(2, 3, 5)[..., 2:] = -scale * rng.uniform(0, 1, (2, 3, 3))
    moments = {f"{name}.{m}": seen * rng.uniform(0.1, 1, shape) for name, shape in shapes.items() for m in "mv"}
    state |= {name: values.astype(np.float32) for name, values in moments.items()}
    colors, v_shown = (rng.uniform(low, 0.7, (1, 53, 41, 3)).astype(np.float32) for low in (0.05, -0.7))
    v_shown *= seen
    looks = Looks(device, PPISP, [0, 1], state)
    shown, v_array, parts = stepped(looks, colors, v_shown)
    before = {name: values.astype(float) for name, values in state.items()}
    before |= {name: values[1] for name, values in before.items() if "response" in name}
    # Half of the five steps before were this camera's.
    inputs = before, 1, colors[0].astype(float), v_shown[0].astype(float), 2, 2
    after, expected, v_colors = ppisp_ref.updated(*inputs, rates=(np.sqrt(0.3 * 0.006), 5e-4))
    assert parts.shape == (3, 36)
    np.testing.assert_allclose(shown.numpy()[0], expected, rtol=0, atol=2e-5)
    np.testing.assert_allclose(v_array.numpy()[0], v_colors, rtol=2e-4, atol=2e-4)
    for name, values in after.items():
        found = looks.state()[name]
        if "response" in name:
            np.testing.assert_array_equal(found[0], state[name][0])
            found = found[1]
        np.testing.assert_allclose(found, values, rtol=2e-4, atol=2e-4 * np.abs(values).max(), err_msg=name)
    if scale == 0:
        np.testing.assert_allclose(shown.numpy(), colors, rtol=0, atol=2e-5)


def test_colours_past_the_ends_of_the_response_stay_finite() -> None:
    """Black, white, and what no sensor sees; gradients are 0 where the light is cut off."""
    device, row = get_device(), np.zeros(27, np.float32)
    row[15:] = np.tile([0.5, -0.5, -2, 1], 3)
    colors = np.array([[[0, 0, 0], [1, 1, 1], [-0.5, 0.5, 2], [1e-8, 1e-7, 1e-5], [40, 50, 60]]], np.float32)
    shown = Looks.develop(device, colors, row)
    assert np.isfinite(shown).all() and shown.min() >= 0 and shown.max() <= 1
    looks = Looks(device, PPISP, [0])
    looks._arrays["response"] = device.memory.array(row)
    with device.recording() as recorder:
        v = device.memory.array(np.ones((1, *colors.shape), np.float32))
        parts = looks.record_backward(recorder, 0, device.memory.array(colors[None]), v)
    assert np.isfinite(v.numpy()).all() and np.isfinite(parts.numpy()).all()
    assert not v.numpy()[0, 0, -1].any()


@pytest.mark.parametrize("option", ["exposure", "ppisp"])
def test_regains_what_exposures_cost_and_keeps_the_mean(exposed: Dataset, option: str) -> None:
    scores = {}
    for learns in (False, True):
        learnt = {"exposure": False} | {option: learns}
        trainer = Trainer(exposed, replace(CONFIG, steps=300, init="points", **learnt))
        trainer.fit()
        scores[learns] = evaluate(trainer.gaussians(), exposed, response=trainer.learnt_capture().response)
    assert scores[True].corrected_psnr > scores[False].corrected_psnr + 0.5
    exposures = trainer.checkpoint().state["exposures"]
    assert np.ptp(exposures[:, 0]) > 0.1
    np.testing.assert_allclose(exposures.mean(0), ref.NEUTRAL if option == "exposure" else np.zeros(9), atol=1e-5)


def test_the_response_is_kept_and_applied_to_held_out_photographs(exposed: Dataset, tmp_path: Path) -> None:
    config = replace(CONFIG, exposure=False, ppisp=True)
    trainer = Trainer(exposed, config)
    while trainer.step < 3:
        trainer.advance()
    learnt = trainer.learnt_capture()
    assert learnt.response is not None and learnt.response.all()
    learnt.save(tmp_path / "capture")
    np.testing.assert_array_equal(LearntCapture.load(tmp_path / "capture", config).response, learnt.response)
    continued = Trainer(exposed, config, resume=trainer.checkpoint())
    for each in (trainer, continued):
        each.advance()
    assert_same_bits(trainer.checkpoint().state, continued.checkpoint().state)

    gaussians, dark = trainer.gaussians(), np.zeros(27, np.float32)
    # α₁ of every channel: no light at the image's sides.
    dark[2:15:5] = -4
    plain, neutral, darker = (evaluate(gaussians, exposed, response=response).psnr for response in (None, 0 * dark, dark))
    assert abs(neutral - plain) < 1e-3 < abs(darker - plain)
    refused("exposure and ppisp exclude each other", replace(CONFIG, ppisp=True).validate)


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


def test_cameras_are_those_of_the_files(tmp_path: Path) -> None:
    """Photographs with equal intrinsics in transforms.json; COLMAP's cameras, though both have the same numbers."""
    write_transforms(tmp_path / "json", ring(4), {2: {"fl_x": 99}, 3: {"fl_x": 99}})
    assert cameras_of(load_dataset(tmp_path / "json", test_every=0)) == [0, 0, 1, 1]
    write_colmap(tmp_path / "colmap", ring(4), text=True)
    described, images = (tmp_path / "colmap" / "sparse" / "0" / f"{name}.txt" for name in ("cameras", "images"))
    text = described.read_text()
    described.write_text(f"{text.rstrip()}\n2{text.splitlines()[-1][1:]}\n")
    images.write_text(images.read_text().replace(" 1 001.png", " 2 001.png"))
    assert cameras_of(load_dataset(tmp_path / "colmap", test_every=0)) == [0, 1, 0, 0]


def with_two_cameras(dataset: Dataset) -> Dataset:
    """Every third photograph has a camera of its own, and the first, which is held out, another one."""
    views = list(dataset.views)
    for i, camera in [(0, 2), *((i, 1) for i in range(1, len(views), 3))]:
        views[i] = replace(views[i], lens=replace(views[i].lens, camera=camera))
    return replace(dataset, views=views, _images=dataset._images)


def test_each_camera_has_its_vignetting_and_response(exposed: Dataset, tmp_path: Path) -> None:
    """Photographs of two cameras, of which only one's corners are dark."""
    dataset, images = with_two_cameras(exposed), []
    cameras = cameras_of(dataset)
    assert cameras[0] == 2 and {cameras[view] for view in dataset.train} == {0, 1}
    y, x = np.mgrid[-0.5:0.5:48j, -0.5:0.5:48j]
    for view, camera in enumerate(cameras):
        dark = (1 - 1.2 * (x * x + y * y))[..., None] if camera == cameras[1] else 1.0
        image = dataset.image(view).copy()
        image[..., :3] = image[..., :3] * dark
        images.append(image)
    dataset = replace(dataset, _images=cast(Any, images))
    trainer = Trainer(dataset, replace(CONFIG, steps=200, init="points", exposure=False, ppisp=True))
    trainer.fit()
    response = trainer.learnt_capture().response
    assert response is not None and response.shape == (2, 27)
    falls = response[:, 2:15:5].mean(1)
    assert falls[cameras[1]] < falls[1 - cameras[1]] - 0.02, falls
    # A camera without training photographs gets the mean.
    one, mean = replace(dataset, test=[0]), response.mean(0)
    scores = [evaluate(trainer.gaussians(), one, response=rows).psnr for rows in (response, mean)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)

    # A run of an earlier version goes on with one response for all.
    checkpoint, path = trainer.checkpoint(), tmp_path / "checkpoint"
    names = ("response", "response.m", "response.v")
    older = replace(checkpoint, step=199, state=checkpoint.state | {name: checkpoint.state[name][0] for name in names})
    older.save(path)
    resumed = Trainer(dataset, resume=Checkpoint.load(path))
    resumed.fit()
    assert resumed.learnt_capture().response.shape == (27,)  # type: ignore[union-attr]
    for rows in (np.zeros((3, 27)), np.zeros((0, 27)), np.zeros((2, 26)), np.zeros((len(cameras), 27))):
        broken = {name: rows.astype(np.float32) for name in names}
        replace(older, state=older.state | broken).save(path)
        refused("cameras, but|is not a checkpoint", lambda: Trainer(dataset, resume=Checkpoint.load(path)))
    refused("responses of 2 cameras, but .* trains on 1", evaluate, trainer.gaussians(), exposed, response=response)
