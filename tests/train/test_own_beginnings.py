"""Runs with what papers change: Gaussians and splat parameters to begin with, a pixel loss, a camera with numbers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from splat_py import Dataset, Gaussians, shaders
from splat_py.shaders.custom_types import CAMERA
from splat_py.train.checkpoint import initial_gaussians, numbers_of
from splat_py.train.config import TrainConfig
from splat_py.train.trainer import Trainer
from splat_py.train.views import camera_model, device_camera
from tests.refusals import refused

CAPTURE = 4, 24
CONFIG = TrainConfig(steps=1, init="random", init_num_pts=50, sh_degree=1, accumulate="pair", coarse_stop=0)
TWICE_L1 = """
import splat.prelude;
struct TwiceL1 : IPixelLoss
{
    [Differentiable]
    static float loss<let C : int>(vector<float, C> rendered, vector<float, C> photograph)
    {
        return L1.loss<C>(rendered, photograph) * 2.0;
    }
}"""
ZOOM = """
import splat.prelude;
struct Zoom : ICameraModel
{
    [Differentiable]
    static float2 project(Camera camera, float3 t)
    {
        return camera.focal * (t.xy / t.z) * (1.0 + coefficient(camera, 9)) + camera.principal;
    }
}"""


def own_gaussians(count: int = 60, **changes: Any) -> Gaussians:
    rng = np.random.default_rng(5)
    return replace(Gaussians.from_points(rng.normal(size=(count, 3)), rng.uniform(size=(count, 3)), sh_degree=0), **changes)


def first_loss(dataset: Dataset, config: TrainConfig = CONFIG, **types: Any) -> tuple[Trainer, Any]:
    reports: list[Any] = []
    trainer = Trainer(dataset, config, **types)
    trainer.fit(reports.append)
    return trainer, reports[0].values


def test_a_run_begins_with_the_users_gaussians(dataset: Dataset) -> None:
    given = own_gaussians()
    trainer = Trainer(dataset, CONFIG, gaussians=given)
    begun, rows = trainer.gaussians(), given.means[:, 0].argsort()
    order = begun.means[:, 0].argsort()
    for name in ("means", "quats", "log_scales", "logit_opacities"):
        assert torch.equal(getattr(begun, name)[order], getattr(given, name)[rows]), name
    assert torch.equal(begun.sh[order, :1], given.sh[rows]) and not begun.sh[:, 1:].any() and begun.sh.shape[1] == 4
    # The budget follows the number at the beginning, which a checkpoint keeps.
    assert trainer._budget == trainer.config.budget == CONFIG.budget_of(24 * 24, 60)
    assert Trainer(dataset, resume=trainer.checkpoint())._budget == trainer._budget
    refused("gaussians begin a run, and a checkpoint", Trainer, dataset, resume=trainer.checkpoint(), gaussians=given)


def test_each_gaussian_begins_with_a_parameter_of_its_own(dataset: Dataset) -> None:
    config, betas = replace(CONFIG, splat="GeneralizedExponential"), torch.linspace(0.5, 2.0, 50)
    trainer = Trainer(dataset, config, splat_params={"beta": betas})
    assert torch.equal(trainer.gaussians().params["beta"].sort().values, betas)
    assert trainer.config.parameters()["beta"].initial == 1.25
    own = own_gaussians(50, splat="GeneralizedExponential", params={"beta": betas})
    assert torch.equal(initial_gaussians(dataset, config, own).params["beta"], betas)
    for values, message in (
        (betas[:3], r"splat_params\['beta'\] has shape \[3\]; there are 50 Gaussians"),
        (betas * 10, r"splat_params\['beta'\] must be finite, from 0.2 to 8"),
    ):
        refused(message, initial_gaussians, dataset, config, None, numbers_of({"beta": values}))
    refused("does not hold numbers; pass a number or a tensor", numbers_of, {"beta": "large"})
    refused("is empty", numbers_of, {"beta": []})


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (
            own_gaussians(splat="BetaKernel", params={"b": torch.zeros(60)}),
            {},
            "has the splat BetaKernel, and the run Gaussian",
        ),
        (own_gaussians(0), {}, "gaussians is empty"),
        (own_gaussians(means=torch.full((60, 3), torch.nan)), {}, "means"),
        (own_gaussians(), {"max_gaussians": 55}, "max_gaussians is 55, less than the 60 given"),
        (
            own_gaussians(color="SphericalGaussians", features=torch.zeros(60, 9)),
            {"color": "SphericalGaussians", "color_features": 21},
            "has 9 features and 0 weights, and the run 21 and 0",
        ),
    ],
)
def test_gaussians_that_do_not_fit(given: Gaussians, options: dict[str, Any], message: str, dataset: Dataset) -> None:
    refused(message, initial_gaussians, dataset, replace(CONFIG, **options), given)


def test_a_pixel_loss_of_ones_own(dataset: Dataset) -> None:
    _, usual = first_loss(dataset)
    trainer, twice = first_loss(dataset, pixel_loss=shaders.source(TWICE_L1))
    assert twice.l1 == pytest.approx(2 * usual.l1, rel=1e-5)
    assert twice.loss == pytest.approx(usual.loss + (1 - CONFIG.ssim_lambda) * usual.l1, rel=1e-5)
    checkpoint = trainer.checkpoint()
    assert (checkpoint.config.pixel_loss, checkpoint.config.pixel_loss_source) == ("TwiceL1", TWICE_L1)
    refused("carries Slang source of its own, TwiceL1", Trainer, dataset, resume=checkpoint)
    Trainer(dataset, resume=checkpoint, trust_source=True)


def test_a_camera_of_ones_own_gets_its_numbers(dataset: Dataset) -> None:
    """At every size of its photographs, in training as in rendering."""
    zoom, config = shaders.source(ZOOM), replace(CONFIG, camera_params=(*[0.0] * 9, 0.5))
    trainer = Trainer(dataset, config, camera=zoom)
    again = Trainer(dataset, resume=trainer.checkpoint(), camera=zoom)
    for view in again.dataset.views:
        small = view.camera.scaled(0.5)
        lenses = device_camera(again.device, small).lenses
        assert lenses is not None and lenses.numpy().tolist() == [[*config.camera_params, 0.0, 0.0]]
        assert camera_model(small) == CAMERA.own(zoom) and small.coefficients == config.camera_params
    refused("camera_params are numbers of a camera of your own", Trainer, dataset, config)
    refused("pass at most 12 finite numbers", Trainer, dataset, replace(config, camera_params=(0.0,) * 13), camera=zoom)
