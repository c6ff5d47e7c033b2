"""Splats of any form: the documented half-Gaussian against float64, in training and in files, and findings of `check`."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py import Dataset, Gaussians, SplatError, shaders
from splat_py.commands.main import main
from splat_py.gpu.kernels import UserType
from splat_py.render.views import render as render_gaussians
from splat_py.shaders.declarations import SlangSource
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.trainer import Trainer
from tests.refusals import refused
from tests.render.comparison import close
from tests.render.test_camera_models import check, scene_of
from tests.render.test_falloffs import OWN_GAUSSIAN, of_scene, results
from tests.render.test_falloffs import own as source_of
from tests.train.refinement import assert_same_bits

WIDTH, HEIGHT, N = 24, 18, 20
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "your-own-slang.md"
(HALF,) = re.findall(r'half = splat\.shaders\.source\("""\n(.*?)"""\)', DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)

SIGMA_MAX = "return GaussianFalloff().sigmaMax(opacity);"
GAUSSIAN = "float2 u = standardised(d, conic); return exp(dot(u, u) * -0.5);"


def own(value: str, sigma_max: str = SIGMA_MAX, more: str = "", fields: str = "") -> str:
    return source_of(value, sigma_max, more, "IFalloff2D", fields)


def test_standardised_offsets_of_needles() -> None:
    """Their squared length is σ, and the second number of an offset along x is 0."""
    rng = np.random.default_rng(71)
    angle, lengths = rng.uniform(0, np.pi, 50), np.stack([rng.uniform(10, 40, 50), np.ones(50)], -1)
    axes = np.stack([np.cos(angle), np.sin(angle), -np.sin(angle), np.cos(angle)], -1).reshape(-1, 2, 2)
    precision = np.einsum("nki,nk,nkj->nij", axes, lengths**-2.0, axes)
    d = rng.normal(size=(50, 2)) * 10
    found = shaders.falloff2d.standardised(d, precision[:, [0, 0, 1], [0, 1, 1]])
    np.testing.assert_allclose((found**2).sum(-1), np.einsum("ni,nij,nj->n", d, precision, d), rtol=1e-3)
    assert not shaders.falloff2d.standardised(np.array([3.0, 0.0]), np.array([2.0, 0.5, 1.0]))[1]


def half_gaussian(twins: dict[str, Tensor]) -> dict[str, Any]:
    """The torch version: the transposed Cholesky factor of the conic has only Δ's y in its second row."""

    def value(d: Tensor, conic: Tensor, order: Tensor) -> Tensor:
        angle, left = twins["angle"][order], torch.sigmoid(twins["rest"][order])
        u = (torch.linalg.cholesky(conic).mT @ d[..., None])[..., 0]
        across = u[..., 0] * angle.cos() + u[..., 1] * angle.sin()
        return torch.exp(-0.5 * (u * u).sum(-1)) * (left + (1 - left) * torch.sigmoid(1.7 * across))

    return {"falloff2d": value}


@pytest.mark.parametrize("packed", [False, True])
def test_against_float64(packed: bool) -> None:
    rng = torch.Generator().manual_seed(1)
    angle, rest = torch.rand(N, generator=rng) * 6 - 3, torch.randn(N, generator=rng)
    params = {"angle": angle.requires_grad_(), "rest": rest.requires_grad_()}
    options: dict[str, Any] = {"splat": UserType("HalfGaussian", HALF), "splat_params": params, "packed": packed}
    check(scene_of("pinhole", WIDTH, HEIGHT, seed=81), "pinhole", WIDTH, HEIGHT, falloff_of=half_gaussian, **options)


def test_the_gaussian() -> None:
    for one, other in zip(results(), results(splat=shaders.source(own(GAUSSIAN))), strict=True):
        close(other, one, share=1e-4)


def test_of_both_kinds_that_of_offsets_is_drawn() -> None:
    """The type of offsets may call the other one."""
    both = own("return Mine1().value(dot(standardised(d, conic), standardised(d, conic)) * 2.0);")
    both += OWN_GAUSSIAN.replace("import splat.prelude;", "").replace("Mine", "Mine1")
    alone = own("return exp(dot(standardised(d, conic), standardised(d, conic)) * 2.0 * -0.5);")
    for one, other in zip(*(results(splat=shaders.source(text)) for text in (both, alone)), strict=True):
        close(other, one, 1e-5, 1e-6)
    shaders.check(shaders.source(both))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (source_of("return exp(sgma);"), r"^the source cannot be compiled: line 7: .*sgma"),
        (own("return exp(sgma);"), r"^the source cannot be compiled: line 7: .*sgma"),
        (own(GAUSSIAN).replace("float sigmaMax", "float sigmaMin"), r"^the source cannot be compiled: line 4: .*sigmaMax"),
        (own(GAUSSIAN).replace("float2 d, float3", "float d, float3"), r"^the source cannot be compiled: line [47]: "),
    ],
)
def test_a_mistake_has_the_line_of_the_source(text: str, message: str) -> None:
    with pytest.raises(SplatError, match=message) as error:
        shaders.source(text)
    assert "\n" not in str(error.value)


def test_two_types_are_one_too_many() -> None:
    two = own(GAUSSIAN) + own(GAUSSIAN).replace("import splat.prelude;", "").replace("Mine", "Other")
    with pytest.raises(SplatError, match=r"has 2 types \(Mine, Other\) that implements IFalloff2D; declare one"):
        of_scene(scene_of("pinhole", WIDTH, HEIGHT, seed=83), splat=shaders.source(two))


# --- findings of `check` (test_user_type_checks.py) ---

WRONG = """
[Differentiable] [BackwardDerivative(mirrored_bwd)]
float mirrored(float x) { return x; }
void mirrored_bwd(inout DifferentialPair<float> x, float v) { x = diffPair(x.p, -v); }
"""
SUPER = "float2 u = standardised(d, conic); float2 s = u * u; return exp(sqrt(dot(s, s) + 1e-6) * -0.5);"
BAD: dict[str, tuple[Any, ...]] = {
    # A super-ellipse reaches further than the ellipse along its diagonals.
    "too small a bound": (own(SUPER), r"not below 1/255 at 1\.\d+ times sigmaMax; let that return more"),
    "a bound of one direction": (
        own("float2 u = standardised(d, conic); return exp(dot(u, u) * (u.x > 0.0 ? -0.5 : -0.4));"),
        "times sigmaMax; let that return more",
    ),
    "the mean's lost derivative": (own(GAUSSIAN.replace("(d,", "(detach(d),")), r"derivative of value by d\[[01]\] is 0 at"),
    "the mean's wrong derivative": (
        own(GAUSSIAN.replace("(d,", "(float2(d.x, mirrored(d.y)),"), SIGMA_MAX, WRONG),
        r"derivative of value by d\[1\] is ",
    ),
    "the conic's lost derivative": (
        own(GAUSSIAN.replace("conic)", "float3(conic.x, detach(conic.y), conic.z))")),
        r"derivative of value by conic\[1\] is 0 at",
    ),
    "a parameter's lost derivative": (
        own(GAUSSIAN.replace("-0.5)", "-0.5) * sigmoid(one) * sigmoid(detach(two))"), fields="float one, two;"),
        "derivative of value by two is 0 at",
        {"one": (-1.0, 1.0), "two": (-1.0, 1.0)},
    ),
    "more than one": (own(GAUSSIAN.replace("return", "return 1.5 *"), "return 20.0;"), "and not from 0 to 1"),
    "not a number": (own(GAUSSIAN.replace("exp(", "log(")), "value is -?nan and not below"),
}


# --- training and files ---

CAPTURE = (4, 24)
PARAMS = {"angle": 0.5, "rest": 1.0}
# Densifies; gradients add up in a fixed order.
CONFIG = TrainConfig(steps=24, densify_every=10, densify_start=1, accumulate="pair", splat_param_lr=0.01, sh_degree=0)


def test_training_resumes_bit_for_bit_and_a_ply_keeps_it(dataset: Dataset, tmp_path: Path) -> None:
    half = shaders.source(HALF)
    straight = Trainer(dataset, CONFIG, splat=half, splat_params=PARAMS)
    gaussians = straight.fit()
    first = Trainer(dataset, CONFIG, splat=half, splat_params=PARAMS)
    while first.step < 13:
        first.advance()
    first.save_checkpoint(tmp_path / "c.safetensors")
    checkpoint = Checkpoint.load(tmp_path / "c.safetensors")
    refused("carries Slang source of its own, HalfGaussian", Trainer, dataset, resume=checkpoint)
    resumed = Trainer(dataset, resume=checkpoint, trust_source=True)
    resumed.fit()
    assert_same_bits(resumed.checkpoint().state, straight.checkpoint().state)
    assert all((gaussians.params[name] != initial).any() for name, initial in PARAMS.items())

    gaussians.save_ply(tmp_path / "a.ply")
    loaded = Gaussians.load_ply(tmp_path / "a.ply")
    assert loaded.splat == SlangSource("HalfGaussian", HALF) and list(loaded.params) == list(PARAMS)
    camera = dataset.views[0].camera
    image = render_gaussians(gaussians, camera)
    np.testing.assert_array_equal(render_gaussians(loaded.trust_source(), camera), image)
    assert (render_gaussians(replace(gaussians, splat="Gaussian", params={}), camera) != image).any()


def test_from_the_command_line(capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "half.slang"
    file.write_text(HALF, encoding="utf-8")
    arguments = (
        f"train {capture} --out {tmp_path / 'run'} --steps 3 --splat {file} --splat-params angle=0 --splat-params rest=2"
    )
    monkeypatch.setattr(sys, "argv", ["splat", *arguments.split()])
    main()
    config = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["config"]
    assert (config["splat"], config["splat_source"]) == ("HalfGaussian", HALF)
    assert list(Gaussians.load_ply(tmp_path / "run" / "scene.ply").params) == ["angle", "rest"]
