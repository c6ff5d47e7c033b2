"""Refined cameras: the kernels against float64, training that finds noised poses, files and checkpoints."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from splat_py import Camera, Dataset, load_dataset, shaders
from splat_py.gpu.device import get_device
from splat_py.gpu.kernels import UserType
from splat_py.render.localization import localize
from splat_py.render.views import render, with_model
from splat_py.scene.camera import Distortion
from splat_py.scene.data_options import DataOptions
from splat_py.scene.pictures import write_image
from splat_py.shaders.custom_types import CAMERA, OwnTypes
from splat_py.train.capture_model import corrected
from splat_py.train.checkpoint import initial_gaussians
from splat_py.train.config import TrainConfig
from splat_py.train.learnt_parts import CameraRefinement
from splat_py.train.run import RunFolder, open_scene, train
from splat_py.train.trainer import Trainer
from splat_py.train.views import device_camera
from tests.commands.selftest.make_references import camera_step
from tests.reference.camera_correction import correct
from tests.refusals import refused
from tests.train.refinement import assert_resumes

CAPTURE = 10, 48
SIZE = (48, 36)
CONFIG = TrainConfig(steps=24, sh_degree=1, init="random", init_num_pts=800, refine_cameras=True, accumulate="pair")
SKEWED = """
import splat.prelude;
struct Skewed : ICameraModel
{
    [Differentiable]
    static float2 project(Camera camera, float3 t)
    {
        return camera.focal * (float2(t.x + t.y * coefficient(camera, 0), t.y) / t.z) + camera.principal;
    }
}"""


# Floats of intrinsics that are learnt without a lens, with one, and with a camera of one's own that has ten numbers.
USED = {"pinhole": 3, "lens": 7, "own": 13}
OWN_LR = 1e-3


def camera(kind: str) -> Camera:
    made = Camera.look_at((1, -2, -4), (0.2, 0.1, 0), (0, 1, 0), 50, *SIZE)
    if kind == "own":
        return replace(made, model=UserType("Skewed", SKEWED), params=tuple(np.linspace(-0.1, 0.2, 10)))
    return replace(made, distortion=Distortion((0.05, -0.08, 0.002, -0.001, 0.01)) if kind == "lens" else None)


@pytest.mark.parametrize("kind", list(USED))
def test_kernels(kind: str) -> None:
    """A step's camera and its update; the second of three photographs has its third turn in the 50th step of a run."""
    rng, device, captured = np.random.default_rng(64), get_device(), camera(kind)
    used, with_lens = USED[kind], kind != "pinhole"
    shapes = {"poses": (3, 6), "intrinsics": (15 if kind == "own" else 7,)}
    state = {name: rng.normal(0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()}
    state["intrinsics"][used:] = 0
    for name, shape in shapes.items():
        state[f"{name}.m"] = rng.normal(size=shape).astype(np.float32)
        state[f"{name}.v"] = rng.uniform(0.1, 1, shape).astype(np.float32)
    lens = np.zeros(12)
    lens[: len(captured.coefficients)] = captured.coefficients
    rows = [rng.normal(size=(1, length)).astype(np.float32) for length in (28 if with_lens else 16, 16)]

    cameras = device_camera(device, captured)
    refinement = CameraRefinement(device, 3, 2.0, state, len(captured.params), OWN_LR)
    with device.recording() as recorder:
        refined = refinement.record(recorder, 1, cameras)
        gradients = device.memory.array(rows[0]), device.memory.array(rows[1])
        status = device.memory.array(np.zeros(3, np.uint32))
        refinement.record_update(recorder, 1, cameras, gradients, status, epoch=2, step=49, progress=0.5)

    v_row = np.zeros((1, 28))
    v_row[:, : rows[0].shape[1]] += rows[0]
    v_row[:, :16] += rows[1]
    expected = camera_step(captured, lens, state, v_row, 1, 3, 50, OWN_LR if kind == "own" else 1e-4)
    np.testing.assert_allclose(refined.viewmats.numpy()[0, :3], expected["viewmat"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(refined.Ks.numpy()[0], expected["K"], rtol=1e-5)
    if refined.lenses is not None:
        np.testing.assert_allclose(refined.lenses.numpy()[0], expected["lens"], rtol=1e-5, atol=1e-7)
    learnt = np.arange(len(state["intrinsics"])) < used
    pose, intrinsics = state["poses"][1].astype(float), state["intrinsics"].astype(float)
    on_host = corrected(captured, pose, intrinsics)
    np.testing.assert_allclose(on_host.viewmat[:3], expected["viewmat"], rtol=1e-6)
    np.testing.assert_allclose(on_host.K, expected["K"], rtol=1e-5)
    np.testing.assert_allclose(on_host.coefficients, expected["lens"][: len(captured.coefficients)], rtol=1e-6)
    for name, after in refinement.state().items():
        # The other photographs' poses, and the lens if there is none, stay.
        learns = np.arange(3) == 1 if name.startswith("poses") else learnt
        np.testing.assert_allclose(after[learns], expected[name][learns], rtol=1e-4, atol=1e-6, err_msg=name)
        np.testing.assert_array_equal(after[~learns], state[name][~learns])


def test_a_resumed_run_is_the_same_to_the_last_bit(dataset: Dataset, tmp_path: Path) -> None:
    _, resumed = assert_resumes(dataset, replace(CONFIG, exposure=True, environment=True), tmp_path, 11)
    checkpoint = resumed.checkpoint()
    assert {"poses.v", "intrinsics.m", "environment", "exposures.v"} <= set(checkpoint.state)
    fewer = replace(dataset, train=dataset.train[:-1])
    refused(r"the (poses|exposures) of \d+ photographs, but .* trains on", Trainer, fewer, resume=checkpoint)


def test_the_number_of_an_own_camera_is_found(capture: Path, tmp_path: Path) -> None:
    """Photographs by a camera whose number is 0.2 teach it, from 0.1; and a run's files have it."""
    file, run = tmp_path / "skewed.slang", tmp_path / "run"
    file.write_text(SKEWED)
    skewed, begun = shaders.source(SKEWED), load_dataset(capture)
    config = replace(CONFIG, steps=60, sh_degree=0, init="points", densify_every=100, coarse_stop=0, camera_params=(0.1,))
    for view in begun.views:
        seen = with_model(view.camera, CAMERA.own(skewed), (0.2,))
        path = tmp_path / view.path.relative_to(capture)
        path.parent.mkdir(exist_ok=True)
        write_image(path, render(initial_gaussians(begun, config), seen, begun.background, near=begun.near))
    shutil.copytree(capture, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("images"))
    config = replace(config, camera_param_lr=2e-2)
    _, resumed = assert_resumes(load_dataset(tmp_path), replace(config, steps=16), tmp_path, 11, camera=skewed)
    assert len(resumed.checkpoint().state["intrinsics"]) == 15

    train(DataOptions(tmp_path), replace(config, camera=str(file)), run)
    (number,) = RunFolder(run).metrics()["camera_params"]
    assert abs(number - 0.2) < 0.04
    _, refined, _ = open_scene(run, None, None, OwnTypes(camera=str(file)))
    assert refined.test and all(view.camera.coefficients == (number,) for view in refined.views)


def test_one_camera_finds_its_place(dataset: Dataset) -> None:
    """Evaluation's alignment finds the camera, in a scene with a known picture."""
    trainer = Trainer(dataset, replace(CONFIG, steps=40, refine_cameras=False))
    trainer.fit()
    gaussians, view = trainer.gaussians(), dataset.views[dataset.train[0]]
    noise = np.eye(4)
    noise[:3, :3], noise[:3, 3] = Rotation.from_rotvec([0.01, -0.015, 0.01]).as_matrix(), [0.05, -0.04, 0.03]
    wrong = replace(view.camera, viewmat=noise @ view.camera.viewmat)
    picture = render(gaussians, view.camera, dataset.background, near=dataset.near)
    aligned = localize(gaussians, picture, wrong, dataset.background, near=dataset.near).camera

    def error(camera: Camera) -> float:
        return float(np.abs(camera.viewmat[:3, :3] - view.camera.viewmat[:3, :3]).max())

    assert error(aligned) < 0.02 * error(wrong)


def test_moved_is_what_the_kernels_do() -> None:
    pose, captured = np.array([0.02, -0.01, 0.03, 0.1, 0.2, -0.3]), camera("pinhole")
    expected = correct(captured.viewmat, captured.K, np.zeros(12), SIZE, pose[None], np.zeros((1, 7)))[0, :12].reshape(3, 4)
    moved = captured.moved(pose[:3], pose[3:])
    np.testing.assert_allclose(moved.viewmat, np.vstack([expected, [0, 0, 0, 1]]), atol=1e-12)
