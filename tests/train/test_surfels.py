"""Training with surfels: the whole step's gradient against torch's, what runs keep, refusals, and the surface of the demo."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree

from splat_py import Dataset, Gaussians, load_dataset, mesh, rasterization_2dgs
from splat_py.demo.scene import still_life, write_demo_scene
from splat_py.render.surfels import depth_to_normal
from splat_py.render.views import render
from splat_py.scene.camera import Distortion
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.photometric_loss import photometric_loss
from splat_py.train.trainer import Trainer
from tests.refusals import refused
from tests.render.test_mesh import seen
from tests.scene.captures import ring, write_transforms
from tests.train.refinement import assert_resumes

CONFIG = TrainConfig(steps=16, sh_degree=0, init="random", init_num_pts=80, splat="Surfel", accumulate="pair")
NAMES = ("means", "quats", "log_scales", "logit_opacities", "sh")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write(tmp_path_factory.mktemp("capture"))


def write(root: Path) -> Dataset:
    write_transforms(root, ring(4, width=40, height=28))
    return load_dataset(root, test_every=0)


def test_a_step_has_the_gradient_of_three_losses(dataset: Dataset) -> None:
    """With the statistics of densification: gradients of the means on the image."""
    fresh = Trainer(dataset, CONFIG).checkpoint()
    changes = {"log_scales": fresh.state["log_scales"] - 0.85, "logit_opacities": np.linspace(-2, 2, 80)}
    state = fresh.state | {name: values.astype(np.float32) for name, values in changes.items()}
    trainer = Trainer(dataset, resume=Checkpoint(0, CONFIG, state, 10_000))
    leaves = {name: torch.from_numpy(state[name]).requires_grad_() for name in NAMES}
    view = trainer.views_of(0)[0]
    camera = dataset.views[view].camera
    pose, K = (torch.tensor(m[None], dtype=torch.float32) for m in (camera.viewmat, camera.K))
    rendered, alphas, normals, _, distortion, _, meta = rasterization_2dgs(
        leaves["means"],
        leaves["quats"],
        leaves["log_scales"].exp(),
        leaves["logit_opacities"].sigmoid(),
        leaves["sh"],
        pose,
        K,
        camera.width,
        camera.height,
        sh_degree=0,
        render_mode="RGB+D",
        backgrounds=torch.from_numpy(dataset.background[None]),
        near_plane=dataset.near,
        distloss=True,
        accumulate="pair",
    )
    for name in ("gradient_2dgs", "means2d"):
        meta[name].retain_grad()
    solid = alphas[0, ..., 0] >= 0.5
    shown = torch.zeros_like(solid)
    middle = solid[1:-1, 1:-1] & solid[:-2, 1:-1] & solid[2:, 1:-1] & solid[1:-1, :-2] & solid[1:-1, 2:]
    shown[1:-1, 1:-1] = middle
    assert 100 < shown.sum() < shown.numel() / 2
    of_depths = depth_to_normal(rendered[..., 3:] / alphas.clamp(min=1e-6), pose.inverse(), K)
    disagreement = (alphas[..., 0] - (normals * of_depths).sum(-1))[0][shown].sum() / shown.numel()
    photograph = torch.from_numpy(dataset.image(view)[None, ..., :3] / np.float32(255))
    loss = photometric_loss(rendered[..., :3], photograph) + 0.05 * disagreement
    (loss + 0.01 / dataset.scene_scale * distortion.mean()).backward()

    trainer.advance()
    trainer.finish()
    v = trainer.parameters.v_gaussians
    for name, array in zip(NAMES, (v.means, v.quats, v.scales, v.opacities, trainer.parameters.v_features), strict=True):
        expected = leaves[name].grad.numpy()
        np.testing.assert_allclose(array.numpy(), expected, rtol=2e-3, atol=2e-5 * np.abs(expected).max(), err_msg=name)
    on_image = (meta["gradient_2dgs"].grad + meta["means2d"].grad)[0] * torch.tensor([camera.width / 2, camera.height / 2])
    norms = trainer.parameters.arrays["gradient_norms"].numpy()
    np.testing.assert_allclose(norms, on_image.norm(dim=-1), rtol=2e-3, atol=2e-5 * norms.max())


@pytest.mark.parametrize("strategy", ["default", "mcmc"])
def test_resumed_runs_end_in_the_same_bits(strategy: str, dataset: Dataset, tmp_path: Path) -> None:
    """Surfels are added, and stay flat."""
    config = replace(CONFIG, steps=20, densify_every=5, strategy=strategy, grow_grad2d=1e-7, budget=120)
    whole, _ = assert_resumes(dataset, config, tmp_path, 7)
    trained = whole.gaussians()
    assert len(trained) > 80 and trained.splat == "Surfel"
    assert (trained.log_scales[:, 2] < trained.log_scales[:, :2].min(1).values - 2).all()
    # A .ply knows their type; other files hold flat Gaussians.
    assert trained.save(tmp_path / "scene.ply") == []
    read = Gaussians.load(tmp_path / "scene.ply")
    camera = dataset.views[0].camera
    np.testing.assert_array_equal(render(read, camera), render(trained, camera))
    for ending in (".spz", ".glb"):
        assert trained.save(tmp_path / f"scene{ending}") == ["surfels: they are flat Gaussians"]
        flat = Gaussians.load(tmp_path / f"scene{ending}")
        assert flat.splat == "Gaussian"
        expected = render(replace(trained, splat="Gaussian"), camera)
        assert np.abs(render(flat, camera) - expected).mean() < 0.01 < np.abs(render(trained, camera) - expected).mean()
    again = Trainer(dataset, CONFIG, gaussians=read)
    torch.testing.assert_close(again.gaussians().quats.sort(0).values, read.quats.sort(0).values)


def test_refusals(dataset: Dataset) -> None:
    for name, value in {"antialiased": True, "filter_3d": True, "depth_lambda": 0.1, "environment": True}.items():
        refused(f"splat Surfel cannot be combined with {name}", replace(CONFIG, **{name: value}).validate)
    refused("Surfel takes none", replace(CONFIG, splat_params=("b=1",)).validate)
    round_ones = Gaussians.from_points(np.zeros((1, 3)), np.zeros((1, 3)))
    refused("has the splat Gaussian, and the run Surfel", Trainer, dataset, CONFIG, gaussians=round_ones)
    views = [
        replace(view, camera=replace(view.camera, distortion=Distortion((0.1, 0, 0, 0, 0), False))) for view in dataset.views
    ]
    bent = replace(dataset, views=views, _images=dataset._images)
    refused("no pinhole camera, which splat Surfel needs; add undistort", Trainer, bent, CONFIG)


def test_the_demo_to_within_a_hundredth_of_its_diagonal(tmp_path: Path) -> None:
    dataset = load_dataset(write_demo_scene(tmp_path / "demo", views=20, size=64))
    cameras = dataset.train_cameras
    made = mesh(Trainer(dataset, TrainConfig(steps=300, splat="Surfel")).fit(), cameras, resolution=128)
    expected, _, _ = seen(still_life(), [camera.scaled(3) for camera in cameras[::2]])
    diagonal = np.linalg.norm(np.ptp(expected, axis=0))
    pairs = (expected, made.vertices), (made.vertices, expected)
    accuracy, completeness = (cKDTree(one).query(other)[0].mean() for one, other in pairs)
    assert (accuracy + completeness) / 2 < 0.01 * diagonal, (accuracy / diagonal, completeness / diagonal)
