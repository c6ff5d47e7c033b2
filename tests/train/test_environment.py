"""An environment behind the scene, and random backgrounds."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from splat_py import Camera, Dataset, Gaussians
from splat_py.fit.steps import psnr_of
from splat_py.gpu.device import get_device
from splat_py.render.images import Image
from splat_py.render.views import render
from splat_py.scene.camera import Distortion
from splat_py.scene.data_options import DataOptions
from splat_py.scene.dataset import depths_of_points, surface_pixels
from splat_py.scene.editing import keep_degree
from splat_py.scene.environment import Environment
from splat_py.train.capture_model import LearntCapture
from splat_py.train.config import TrainConfig
from splat_py.train.learnt_parts import LearntEnvironment
from splat_py.train.photometric_loss import pack
from splat_py.train.run import learnt_of, open_scene, train
from splat_py.train.trainer import Trainer
from splat_py.train.views import RandomBackgrounds, device_camera
from tests.commands.program import splat
from tests.commands.selftest.make_references import environment_step
from tests.formats.scenes import random_gaussians
from tests.refusals import refused

CAPTURE = 8, 32
SIZE = (45, 37)
CAMERA = Camera.look_at((1, -2, -4), (0.2, 0.1, 0), (0, 1, 0), 80, *SIZE)
CONFIG = TrainConfig(steps=16, sh_degree=1, init="random", init_num_pts=500)


def test_kernels() -> None:
    rng, device = np.random.default_rng(66), get_device()
    state = {"environment": rng.normal(0, 0.3, (16, 3)), "environment.m": rng.normal(size=(16, 3))}
    state["environment.v"] = rng.uniform(0.1, 1, (16, 3))
    state = {name: values.astype(np.float32) for name, values in state.items()}
    colors, v_shown = (rng.uniform(-1, 1, (1, SIZE[1], SIZE[0], 3)).astype(np.float32) for _ in range(2))
    T = rng.uniform(size=(1, SIZE[1], SIZE[0])).astype(np.float32)
    array = device.memory.array
    image = cast(Image, SimpleNamespace(colors=array(colors), final_T=array(T)))
    cameras, environment = device_camera(device, CAMERA), LearntEnvironment(device, state)
    on_host = Environment(state["environment"])
    v_alphas, status = device.memory.empty((1, SIZE[1], SIZE[0], 1)), array(np.zeros(3, np.uint32))
    surfaces = rng.uniform(size=(SIZE[1], SIZE[0])) > 0.5
    bits = np.packbits(surfaces, bitorder="little")
    with device.recording() as recorder:
        shown = environment.record(recorder, cameras, image)
        words = array(np.pad(bits, (0, -len(bits) % 4)).view("<u4"))
        parts = environment.record_backward(recorder, cameras, image, array(v_shown), v_alphas, words)
        environment.record_update(recorder, parts, status, 2, 0.5)
        # A step that does not count.
        environment.record_update(recorder, parts, array(np.ones(3, np.uint32)), 3, 0.5)

    expected, behind = environment_step(CAMERA, state, T[0], colors[0], v_shown[0], 3), on_host.colors(CAMERA)
    assert parts.shape[0] > 1 and (behind == 0).any(), "no colour is clamped"
    np.testing.assert_allclose(T[0, ..., None] * behind, expected["shown"] - colors[0], atol=1e-5)
    np.testing.assert_allclose(shown.numpy()[0], expected["shown"], atol=1e-5)
    # The loss has a tenth of the mean transmittance at surfaces.
    at_surfaces = 0.1 / surfaces.size * surfaces[..., None]
    np.testing.assert_allclose(v_alphas.numpy()[0], expected["v_alphas"] - at_surfaces, atol=2e-6)
    # Adam's first moments hold the gradient.
    for name, values in environment.state().items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_run_keeps_it_and_commands_render_it(capture: Path, dataset: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(DataOptions(capture), replace(CONFIG, environment=True, refine_cameras=True), out)
    gaussians, refined, config = open_scene(out, None, None)
    learnt = learnt_of(out, config)
    assert learnt.environment is not None and np.ptp(learnt.environment.sh) > 0 and (out / "transforms.json").is_file()
    view = dataset.train[0]
    before, after = dataset.views[view].camera, refined.views[view].camera
    assert 0 < np.abs(after.viewmat - before.viewmat).max() < 0.5 and after.K[0, 0] != before.K[0, 0]
    black, sky = render(gaussians, after), render(gaussians, after, learnt.environment)
    assert (sky >= black - 1e-6).all() and (sky > black + 0.05).any()
    for name, options in (("with.spz", []), ("without.spz", ["--no-bake-environment"])):
        said = splat("export", out, name, *options, cwd=tmp_path)
        assert said.returncode == 0 and ("the sky is missing in without.spz" in said.stderr) == bool(options)
        assert len(Gaussians.load(tmp_path / name)) == len(gaussians) + (0 if options else 5000)
    refused(r"has refined .* cameras, but .* trains on", learnt.refined, replace(dataset, train=dataset.train[:-1]))
    (out / "capture.safetensors").write_bytes(b"damaged" * 9)
    refused("is not the learnt capture of a run", LearntCapture.load, out / "capture.safetensors", config)
    (out / "capture.safetensors").unlink()
    refused("does not exist", open_scene, out, None, None)


def test_a_sky_that_files_will_lack_is_said_before_training(capture: Path, tmp_path: Path) -> None:
    how = ["train", capture, "--environment", "--out", "run", "--max-memory", "1MB"]
    for options, said in (([], False), (["--splat", "BetaKernel"], True)):
        result = splat(*how, *options, cwd=tmp_path)
        assert result.returncode == 1 and ("the sky will be missing in exported files" in result.stdout) == said


class Grey:
    """Photographs of nothing but the grey that environments begin with."""

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        return np.full((32, 32, 4), (128, 128, 128, 255), np.uint8)


def test_what_is_near_becomes_opaque_though_the_environment_has_its_colour(dataset: Dataset) -> None:
    assert dataset.points is not None
    xyz = dataset.points[0]
    grey = replace(dataset, points=(xyz, np.full_like(dataset.points[1], 128)), _images=cast(Any, Grey()))
    trainer = Trainer(grey, TrainConfig(steps=60, sh_degree=0, environment=True, densify_every=60))
    camera = dataset.views[dataset.test[0]].camera
    known = depths_of_points(camera, xyz.astype(np.float64)) > 0

    def alpha() -> float:
        black, white = (render(trainer.gaussians(), camera, shade) for shade in ((0, 0, 0), (1, 1, 1)))
        return float(1 - (white - black)[known].mean())

    before = alpha()
    trainer.fit()
    assert before < 0.9 and alpha() > 0.98


def test_surfaces_are_between_points_but_not_outside_them() -> None:
    camera = Camera.look_at((0, 0, -4), (0, 0, 0), (0, -1, 0), 53.13, 100, 100)
    # A wall with a point every fifth pixel, from the 20th to the 60th; and a lonely point in the sky.
    x, y = np.meshgrid(np.arange(20, 61, 5), np.arange(20, 61, 5))
    pixels = np.append(np.stack([x.ravel(), y.ravel()], 1), [[90, 10]], axis=0) + 0.5
    points = np.column_stack([(pixels - 50) / 100 * 4, np.zeros(len(pixels))]).astype(np.float32)
    mask = surface_pixels(camera, (points, np.zeros((len(points), 3), np.uint8)))
    expected = np.zeros((100, 100), bool)
    expected[20:61, 20:61] = expected[10, 90] = True
    assert mask[22:59, 22:59].all() and mask[10, 90] and not (mask & ~expected).any()
    assert not surface_pixels(camera, None).any()


@pytest.mark.parametrize("degree", [0, 3])
def test_a_shell_of_gaussians_looks_like_the_environment(degree: int) -> None:
    rng = np.random.default_rng(5)
    sky = Environment(rng.normal(0, 0.12, (16, 3)).astype(np.float32))
    scene = keep_degree(Gaussians.of_arrays(random_gaussians(300, seed=2)), degree)
    # One lost far away does not enlarge the sky.
    scene.means[0] *= 1e4
    baked = sky.baked(scene)
    assert baked.sh_degree == degree and len(baked) == len(scene) + 5000
    for eye in ((4, 1, -3), (-2, -2, 4)):
        camera = Camera.look_at(eye, (0, 0, 0), (0, 1, 0), 70, 64, 48)
        assert psnr_of(np.mean((render(baked, camera) - render(scene, camera, sky)) ** 2)) > 35
    betas = replace(scene, splat="BetaKernel", params={"b": scene.logit_opacities})
    refused("of another type, which a sky of Gaussians cannot join", sky.baked, betas)


def test_photographs_over_random_backgrounds() -> None:
    """Composed from those over black and white; views without an alpha channel are unchanged."""
    rng, device = np.random.default_rng(67), get_device()
    alpha, rgb = rng.uniform(size=(9, 11, 1)), rng.uniform(size=(9, 11, 3))
    weight = np.where(rng.uniform(size=(9, 11, 1)) > 0.5, 255, 0)

    def over(background: NDArray[Any]) -> NDArray[np.uint8]:
        return np.dstack([np.rint(255 * (alpha * rgb + (1 - alpha) * background)), weight]).astype(np.uint8)

    backgrounds = RandomBackgrounds.__new__(RandomBackgrounds)
    backgrounds._seed, backgrounds._has_alpha = 1, [True, False]
    backgrounds._colors = np.random.default_rng(1).uniform(size=(64, 3)).astype(np.float32)
    backgrounds._arrays = [device.memory.array(color[None]) for color in backgrounds._colors]
    backgrounds._over = [cast(Any, {0: device.memory.array(pack(over(np.full(3, shade))))}) for shade in (0, 1)]
    given = device.memory.array(pack(over(np.full(3, 0.5))))
    for step in range(3):
        with device.recording() as recorder:
            composed = backgrounds.record(recorder, step, 0, given)
            assert backgrounds.record(recorder, step, 1, given) is given
        actual = composed.numpy().view(np.uint8).reshape(9, 11, 4).astype(int)
        expected = over(backgrounds.at(step).numpy()[0]).astype(int)
        error = (actual - expected)[..., :3]
        assert np.abs(error).max() <= 1 and np.abs(error.mean()) < 0.1 and (actual[..., 3] == weight[..., 0]).all()


def test_random_backgrounds_train_and_cameras_that_are_no_pinholes_are_refused(dataset: Dataset) -> None:
    trainer = Trainer(dataset, replace(CONFIG, random_background=True))
    trainer.fit()
    assert len({trainer._capture.backgrounds._number(step) for step in range(16)}) > 5  # type: ignore[union-attr]
    lens = Distortion((0.1, 0, 0, 0, 0))
    views = [replace(view, camera=replace(view.camera, distortion=lens)) for view in dataset.views]
    bent = replace(dataset, views=views, _images=dataset._images)
    refused("no pinhole camera", Trainer, bent, replace(CONFIG, environment=True))
    refused("only one background", TrainConfig(environment=True, random_background=True).validate)
