"""Training with known depths: the whole step's gradient against torch's, and checkpoints."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from splat_py import Dataset, load_dataset
from splat_py.render.rasterization import rasterization
from splat_py.scene.dataset import KnownDepths
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.photometric_loss import photometric_loss
from splat_py.train.trainer import Trainer
from tests.refusals import refused
from tests.scene.captures import ring, save_json, write_transforms
from tests.train.refinement import assert_resumes

CONFIG = TrainConfig(steps=16, sh_degree=0, init="random", init_num_pts=80, depth_lambda=0.5, accumulate="pair")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Depths between 3 and 6 at most pixels of some photographs, in millimetres."""
    return write(tmp_path_factory.mktemp("capture"))


def write(root: Path) -> Dataset:
    content = write_transforms(root, ring(4, width=40, height=28))
    rng = np.random.default_rng(0)
    for i, frame in enumerate(content["frames"]):
        depths = rng.uniform(3, 6, (28, 40)) * 1000
        depths[rng.uniform(size=depths.shape) < 0.3] = 0
        frame["depth_file_path"] = f"depth-{i}.npy"
        np.save(root / frame["depth_file_path"], depths.astype(np.float32))
    save_json(root, content)
    return load_dataset(root, test_every=0)


def test_a_step_has_the_gradient_of_both_losses(dataset: Dataset) -> None:
    """Gaussians of all shapes: a sphere's rotation has no gradient."""
    fresh = Trainer(dataset, CONFIG).checkpoint()
    rng = np.random.default_rng(1)
    changes = {
        "quats": rng.normal(size=(80, 4)),
        "log_scales": fresh.state["log_scales"] + rng.uniform(-1, 0.5, (80, 3)),
        "logit_opacities": rng.uniform(-1, 2, 80),
    }
    state = fresh.state | {name: values.astype(np.float32) for name, values in changes.items()}
    trainer = Trainer(dataset, resume=Checkpoint(0, CONFIG, state, 10_000))
    leaves = {n: torch.from_numpy(state[n]).requires_grad_() for n in ("means", "quats", "log_scales", "logit_opacities", "sh")}
    view = trainer.views_of(0)[0]
    camera = dataset.views[view].camera
    images, alphas, _ = rasterization(
        leaves["means"],
        leaves["quats"],
        leaves["log_scales"].exp(),
        leaves["logit_opacities"].sigmoid(),
        leaves["sh"],
        torch.tensor(camera.viewmat[None], dtype=torch.float32),
        torch.tensor(camera.K[None], dtype=torch.float32),
        camera.width,
        camera.height,
        sh_degree=0,
        render_mode="RGB+ED",
        backgrounds=torch.from_numpy(dataset.background[None]),
        near_plane=dataset.near,
        accumulate="pair",
    )
    known = torch.from_numpy(KnownDepths(dataset)[view])
    photograph = torch.from_numpy(dataset.image(view)[None, ..., :3] / np.float32(255))
    counts = (known > 0) & (alphas[0, ..., 0] >= 0.01)
    assert counts.sum() > 300
    errors = (1 / images[0, ..., 3][counts] - 1 / known[counts]).abs().sum() / (known > 0).sum()
    loss = photometric_loss(images[..., :3], photograph) + CONFIG.depth_lambda * dataset.scene_scale * errors
    loss.backward()

    trainer.advance()
    trainer.finish()
    v = trainer.parameters.v_gaussians
    actual = {"means": v.means, "quats": v.quats, "log_scales": v.scales, "logit_opacities": v.opacities}
    for name, array in (actual | {"sh": trainer.parameters.v_features}).items():
        expected = leaves[name].grad.numpy()
        np.testing.assert_allclose(array.numpy(), expected, rtol=2e-3, atol=2e-5 * np.abs(expected).max(), err_msg=name)


def test_resumed_runs_end_in_the_same_bits(dataset: Dataset, tmp_path: Path) -> None:
    assert_resumes(dataset, CONFIG, tmp_path, 7)


def test_splats_with_parameters_of_their_own_learn_by_depth(dataset: Dataset) -> None:
    trainer = Trainer(dataset, replace(CONFIG, splat="BetaKernel", steps=3))
    trainer.fit()
    values = trainer.checkpoint().state["extras"]
    assert np.isfinite(values).all() and np.abs(values - values.flat[0]).max() > 0


def test_cameras_and_captures_without_depths_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    refused("leave out camera", Trainer, dataset, replace(CONFIG, camera="ortho"))
    write_transforms(tmp_path, ring(3))
    refused("has no depths", Trainer, load_dataset(tmp_path), CONFIG)
