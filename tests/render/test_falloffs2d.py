"""Splats of any form: the documented half-Gaussian against float64, in training and in files, and what the check finds."""

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

import splat_py as splat
from splat_py import Dataset, Gaussians, SplatError, load_dataset, shaders
from splat_py.commands.main import main
from splat_py.demo.scene import write_demo_scene
from splat_py.gpu.kernels import UserType
from splat_py.render.views import render as render_gaussians
from splat_py.shaders.declarations import SlangSource
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.trainer import Trainer
from tests.render.comparison import assert_close
from tests.render.test_camera_models import scene_of
from tests.render.test_falloffs import OWN_GAUSSIAN
from tests.render.torch_rendering import covariances, render

WIDTH, HEIGHT, N = 24, 18, 20
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "your-own-slang.md"
(HALF,) = re.findall(r'half = splat\.shaders\.source\("""\n(.*?)"""\)', DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)

SIGMA_MAX = "return GaussianFalloff.sigmaMax(opacity, extras);"
GAUSSIAN = "float2 u = standardised(d, conic); return exp(dot(u, u) * -0.5);"


def own(value: str, sigma_max: str = SIGMA_MAX, more: str = "") -> str:
    return f"""
import splat.prelude;
{more}
struct Mine : IFalloff2D
{{
    [Differentiable]
    static float value(float2 d, float3 conic, float4 extras) {{ {value} }}
    static float sigmaMax(float opacity, float4 extras) {{ {sigma_max} }}
}}
"""


def of_scene(inputs: dict[str, Tensor], **options: Any) -> Any:
    return splat.rasterization(**inputs, width=WIDTH, height=HEIGHT, **options)


def half_gaussian(angle: Tensor, rest: Tensor) -> Any:
    """In torch: Cholesky's root of the conic, upside down, has Δ's y alone in its second row."""

    def value(d: Tensor, conic: Tensor, order: Tensor) -> Tensor:
        u = (torch.linalg.cholesky(conic).mT @ d[..., None])[..., 0]
        across = u[..., 0] * angle[order].cos() + u[..., 1] * angle[order].sin()
        left = torch.sigmoid(rest[order])
        return torch.exp(-0.5 * (u * u).sum(-1)) * (left + (1 - left) * torch.sigmoid(1.7 * across))

    return value


def numbers_of(seed: int) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    angle, rest = torch.rand(N, generator=rng) * 6 - 3, torch.randn(N, generator=rng)
    return {"angle": angle.requires_grad_(), "rest": rest.requires_grad_()}


@pytest.mark.parametrize("packed", [False, True])
def test_against_float64(packed: bool) -> None:
    inputs, numbers = scene_of("pinhole", WIDTH, HEIGHT, seed=81), numbers_of(1)
    twins = {key: tensor.detach().double().requires_grad_() for key, tensor in (inputs | numbers).items()}
    expected = [
        render(
            twins["means"],
            covariances(twins["quats"], twins["scales"]),
            twins["opacities"],
            twins["colors"],
            twins["viewmats"][c],
            twins["Ks"][c],
            WIDTH,
            HEIGHT,
            camera_model="pinhole",
            background=twins["backgrounds"][c],
            falloff2d=half_gaussian(twins["angle"], twins["rest"]),
        )
        for c in range(2)
    ]
    images, _, _ = of_scene(inputs, splat=UserType("HalfGaussian", HALF), splat_params=numbers, packed=packed)
    wanted = torch.stack([r.image for r in expected])
    trusted = ~torch.stack([r.untrusted for r in expected])
    assert trusted.float().mean() > 0.9
    torch.testing.assert_close(images.double()[trusted], wanted[trusted], rtol=3e-5, atol=3e-5)
    v = torch.randn(images.shape, generator=torch.Generator().manual_seed(2)) * trusted[..., None]
    (images * v).sum().backward()
    (wanted * v).sum().backward()
    for key, tensor in (inputs | numbers).items():
        reference = twins[key].grad
        assert tensor.grad is not None and reference is not None and reference.any()
        if key not in ("viewmats", "Ks"):
            assert_close(key, tensor.grad.numpy(), reference.numpy())


def results(options: dict[str, Any]) -> list[Tensor]:
    inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=83)
    images, _, _ = of_scene(inputs, **options)
    images.square().sum().backward()
    return [images.detach(), *(tensor.grad for tensor in inputs.values() if tensor.grad is not None)]


def test_the_gaussian() -> None:
    for one, other in zip(results({}), results({"splat": shaders.source(own(GAUSSIAN))}), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(one.abs().max()))


def test_of_both_kinds_that_of_offsets_is_drawn() -> None:
    """And it may call the other."""
    both = own("return Mine1.value(dot(standardised(d, conic), standardised(d, conic)) * 2.0, extras);")
    both += OWN_GAUSSIAN.replace("import splat.prelude;", "").replace("Mine", "Mine1")
    alone = own("return exp(dot(standardised(d, conic), standardised(d, conic)) * 2.0 * -0.5);")
    for one, other in zip(*(results({"splat": shaders.source(text)}) for text in (both, alone)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6 * float(one.abs().max()))
    shaders.check(shaders.source(both))


@pytest.mark.parametrize(
    ("text", "message"),
    [
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


# --- what `check` finds ---

WRONG = """
[Differentiable] [BackwardDerivative(mirrored_bwd)]
float mirrored(float x) { return x; }
void mirrored_bwd(inout DifferentialPair<float> x, float v) { x = diffPair(x.p, -v); }
"""
SUPER = "float2 u = standardised(d, conic); float2 s = u * u; return exp(sqrt(dot(s, s) + 1e-6) * -0.5);"
BAD: dict[str, tuple[tuple[str, ...], dict[str, tuple[float, float]], str]] = {
    # A super-ellipse reaches further than the ellipse along its diagonals.
    "too small a bound": ((SUPER,), {}, r"not below 1/255 at 1\.\d+ times sigmaMax; let that return more"),
    "a bound of one direction": (
        ("float2 u = standardised(d, conic); return exp(dot(u, u) * (u.x > 0.0 ? -0.5 : -0.4));",),
        {},
        "times sigmaMax; let that return more",
    ),
    "the mean's lost derivative": ((GAUSSIAN.replace("(d,", "(detach(d),"),), {}, r"derivative of value by d\[[01]\] is 0 at"),
    "the mean's wrong derivative": (
        (GAUSSIAN.replace("(d,", "(float2(d.x, mirrored(d.y)),"), SIGMA_MAX, WRONG),
        {},
        r"derivative of value by d\[1\] is ",
    ),
    "the conic's lost derivative": (
        (GAUSSIAN.replace("conic)", "float3(conic.x, detach(conic.y), conic.z))"),),
        {},
        r"derivative of value by conic\[1\] is 0 at",
    ),
    "a parameter's lost derivative": (
        (GAUSSIAN.replace("-0.5)", "-0.5) * sigmoid(extras.x) * sigmoid(detach(extras.y))"),),
        {"one": (-1.0, 1.0), "two": (-1.0, 1.0)},
        "derivative of value by two is 0 at",
    ),
    "more than one": ((GAUSSIAN.replace("return", "return 1.5 *"), "return 20.0;"), {}, "and not from 0 to 1"),
    "not a number": ((GAUSSIAN.replace("exp(", "log("),), {}, "value is -?nan and not below"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_check_finds(kind: str) -> None:
    parts, ranges, message = BAD[kind]
    with pytest.raises(SplatError, match=message):
        shaders.check(shaders.source(own(*parts)), **ranges)


def test_what_check_lets_pass() -> None:
    shaders.check(shaders.source(HALF), angle=(-3.0, 3.0), rest=(-2.0, 2.0))
    shaders.check(shaders.source(own(SUPER, "return 1.5 * GaussianFalloff.sigmaMax(opacity, extras);")))


# --- training and files ---

PARAMS = {"angle": 0.5, "rest": 1.0}
# Densifies, with gradients that add up in a fixed order.
CONFIG = TrainConfig(steps=24, densify_every=10, densify_start=1, accumulate="pair", splat_param_lr=0.01, sh_degree=0)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_scene(tmp_path_factory.mktemp("capture") / "demo", views=4, size=24)


@pytest.fixture(scope="module")
def dataset(capture: Path) -> Dataset:
    return load_dataset(capture)


def test_training_resumes_bit_for_bit_and_a_ply_keeps_it(dataset: Dataset, tmp_path: Path) -> None:
    half = shaders.source(HALF)
    straight = Trainer(dataset, CONFIG, splat=half, splat_params=PARAMS)
    gaussians = straight.fit()
    first = Trainer(dataset, CONFIG, splat=half, splat_params=PARAMS)
    while first.step < 13:
        first.advance()
    first.save_checkpoint(tmp_path / "c.safetensors")
    checkpoint = Checkpoint.load(tmp_path / "c.safetensors")
    with pytest.raises(SplatError, match="carries Slang source of its own, HalfGaussian"):
        Trainer(dataset, resume=checkpoint)
    resumed = Trainer(dataset, resume=checkpoint, trust_source=True)
    resumed.fit()
    for name, values in straight.checkpoint().state.items():
        np.testing.assert_array_equal(resumed.checkpoint().state[name], values, err_msg=name)
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
