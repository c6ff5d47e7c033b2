"""Splats of any form in space, and colours that vary within a splat: whole renders against float64, what they refuse, training
and files, and findings of `check`."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py import Dataset, Gaussians, inspect, photometric_loss, rasterization, shaders
from splat_py.gpu.kernels import UserType
from splat_py.gsplat import RollingShutterType
from splat_py.render.views import blending_weights
from splat_py.render.views import render as render_gaussians
from splat_py.shaders.declarations import SlangSource
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.trainer import Trainer
from tests.refusals import refused
from tests.render.comparison import close, compare
from tests.render.ray_rendering import beside_rays, render, rotations
from tests.render.test_camera_models import scene_of, with_lenses
from tests.render.test_cameras import moving
from tests.render.test_eval3d import rays_of
from tests.render.test_falloffs import BUILT_IN
from tests.render.test_falloffs import own as falloff
from tests.train.refinement import assert_same_bits

WIDTH, HEIGHT, N = 24, 18, 20
# Both read all that a type is given, and the number a is the same in both.
FALLOFF = """
import splat.prelude;
struct Lopsided : IFalloff3D
{
    float a, b;

    [Differentiable]
    float value(SplatRay ray)
    {
        float side = dot(ray.point, float3(a, b, 0.7)) + ray.direction.y + ray.scales.z * 0.4
            + mul(ray.axes, ray.position).x * 0.2;
        return exp(dot(ray.point, ray.point) * -0.5) * sigmoid(side);
    }

    float sigmaMax(float opacity) { return GaussianFalloff().sigmaMax(opacity); }
}
"""
COLOR = """
struct Striped : ISplatColor
{
    float a, c, e;

    [Differentiable]
    float3 color(float3 color, SplatRay ray)
    {
        // Not finite without a ray.
        float3 way = ray.direction * rsqrt(dot(ray.direction, ray.direction));
        float shade = sin(ray.point.x * c + ray.point.y * e) * 0.4 + a * 0.1 + way.z * 0.2;
        return color * (1.0 + shade) + ray.axes[0] * (ray.scales.x * 0.1) + ray.position * 0.05;
    }
}
"""
ROUND = re.sub(r"float (a, b|side.*?);", "", FALLOFF, flags=re.DOTALL).replace(" * sigmoid(side)", "")
PARAMS = ("a", "b", "c", "e")
DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "your-own-slang.md").read_text(encoding="utf-8")


def of_scene(inputs: dict[str, Tensor], **options: Any) -> Any:
    return rasterization(**inputs, width=WIDTH, height=HEIGHT, **options)


def params_of(count: int = N, names: tuple[str, ...] = PARAMS) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(1)
    return {name: torch.randn(count, generator=random).requires_grad_() for name in names}


def seen(mean: Tensor, frames: Tensor, scales: Tensor, origins: Tensor, directions: Tensor) -> dict[str, Tensor]:
    """The fields of `SplatRay`, [H, W, N, ...], and True where a ray leads away from a mean."""
    position = mean - origins[:, :, None]
    white = frames.mT / scales[:, :, None]
    # Scales are lengths of the matrix's rows, as in the shader: a pose's nine numbers are no rotation's when they move.
    scales = 1 / white.norm(dim=-1)
    axes = white * scales[:, :, None]
    centre, ahead = (torch.einsum("nij,hwnj->hwni", white, v) for v in (position, directions[:, :, None].expand_as(position)))
    nearest = (centre * ahead).sum(-1) / ahead.square().sum(-1).clamp(min=1e-30)
    direction = torch.einsum("nij,hwj->hwni", axes, directions)
    fields = {"point": ahead * nearest[..., None] - centre, "direction": direction, "position": position, "away": nearest <= 0}
    return fields | {"axes": axes.expand(*nearest.shape, 3, 3), "scales": scales.expand(*nearest.shape, 3)}


def lopsided(ray: dict[str, Tensor], twins: dict[str, Tensor]) -> Tensor:
    point = ray["point"]
    side = point[..., 0] * twins["a"] + point[..., 1] * twins["b"] + point[..., 2] * 0.7 + ray["direction"][..., 1]
    side = side + ray["scales"][..., 2] * 0.4 + (ray["axes"] @ ray["position"][..., None])[..., 0, 0] * 0.2
    return torch.exp(-0.5 * point.square().sum(-1)) * side.sigmoid()


def striped(ray: dict[str, Tensor], twins: dict[str, Tensor]) -> Tensor:
    waves = torch.sin(ray["point"][..., 0] * twins["c"] + ray["point"][..., 1] * twins["e"])
    shade = waves * 0.4 + twins["a"] * 0.1 + torch.nn.functional.normalize(ray["direction"], dim=-1)[..., 2] * 0.2
    tint = ray["axes"][..., 0, :] * ray["scales"][..., :1] * 0.1 + ray["position"] * 0.05
    return twins["colors"] * (1 + shade[..., None]) + tint


def check_render(inputs: dict[str, Tensor], camera_model: str = "pinhole", **options: Any) -> None:
    """Compare images, alphas and all gradients of both types together with float64."""
    leaves = inputs | params_of()
    twins = {name: tensor.detach().double().requires_grad_() for name, tensor in leaves.items()}
    gaussians = [twins[name] for name in ("means", "quats", "scales", "opacities")]
    shutter = options.get("rolling_shutter")
    expected = []
    for c, viewmat in enumerate(twins["viewmats"]):
        origins, directions, depths = rays_of(twins, c, camera_model, None if shutter is None else shutter.name, None)

        def sigmas(
            mean: Tensor, frames: Tensor, scales: Tensor, *_: Tensor, rays: tuple[Tensor, Tensor] = (origins, directions)
        ) -> tuple[Tensor, Tensor]:
            ray = seen(mean, frames, scales, *rays)
            sigma = -2 * lopsided(ray, twins).clamp(min=1e-30).log()
            return torch.where(ray["away"], 1e9, sigma), torch.ones_like(sigma)

        turn = viewmat[:3, :3]
        mean, frames = twins["means"] @ turn.T + viewmat[:3, 3], turn @ rotations(twins["quats"])
        features = striped(seen(mean, frames, twins["scales"], origins, directions), twins)
        how: dict[str, Any] = {"sigmas": sigmas, "background": twins["backgrounds"][c], "depths": depths}
        expected.append(render(*gaussians, features, viewmat, twins["Ks"][c], WIDTH, HEIGHT, **how))
    params = {name: leaves[name] for name in PARAMS}
    both = shaders.source(FALLOFF + COLOR)
    images, alphas, _ = of_scene(inputs, splat=both, splat_params=params, camera_model=camera_model, **options)
    compare({"image": images, "alpha": alphas}, expected, leaves, twins, looser=10 if shutter else 2)


def test_against_float64() -> None:
    """Pixels of one thread see different rays; one Gaussian nearly fills the image."""
    inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=131)
    with torch.no_grad():
        inputs["scales"][1] *= 4
    check_render(inputs, packed=False)


def test_a_lens_and_a_rolling_shutter() -> None:
    inputs = moving(with_lenses(scene_of("fisheye", WIDTH, HEIGHT, seed=132), "fisheye"), 94)
    check_render(inputs, "fisheye", rolling_shutter=RollingShutterType.ROLLING_TOP_TO_BOTTOM)


def test_a_colour_alone() -> None:
    """It belongs to a Gaussian along rays."""
    inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=133)
    params, alone = params_of(names=("a", "c", "e")), FALLOFF.split("struct")[0] + COLOR
    for one, other in zip(results(inputs, alone, params), results(inputs, ROUND + COLOR, params), strict=True):
        close(one, other, 1e-4, 1e-5)


def results(inputs: dict[str, Tensor], text: str, params: dict[str, Tensor], **options: Any) -> list[Tensor]:
    """An image, and the gradients of the sum of its squares."""
    images, _, _ = of_scene(inputs, splat=shaders.source(text), splat_params=params, **options)
    leaves = [*inputs.values(), *params.values()]
    gradients = torch.autograd.grad(images.square().sum(), leaves, allow_unused=True, materialize_grads=True)
    return [images.detach(), *gradients]


def test_the_gaussian() -> None:
    """The built-in Gaussian along rays, which takes other kernels."""
    inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=134)
    images, _, _ = of_scene(inputs, with_eval3d=True)
    expected = [images.detach(), *torch.autograd.grad(images.square().sum(), list(inputs.values()))]
    for one, other in zip(results(inputs, ROUND, {}), expected, strict=True):
        close(one, other, 1e-4, 2e-5)


def test_a_built_in_falloff_along_rays() -> None:
    inputs, (param, limits, value) = scene_of("pinhole", WIDTH, HEIGHT, seed=135), BUILT_IN["BetaKernel"]
    given = torch.linspace(*limits, N).requires_grad_()
    leaves = inputs | {param: given}
    twins = {key: tensor.detach().double().requires_grad_() for key, tensor in leaves.items()}

    def sigmas(*arguments: Tensor) -> tuple[Tensor, Tensor]:
        sigma, sure = beside_rays(*arguments)
        return torch.where(sigma < 1e8, -2 * value(sigma.clamp(max=1e4), twins[param]).clamp(min=1e-30).log(), 1e9), sure

    gaussians = [twins[key] for key in ("means", "quats", "scales", "opacities", "colors")]
    cameras = zip(twins["viewmats"], twins["Ks"], twins["backgrounds"], strict=True)
    expected = [
        render(*gaussians, viewmat, K, WIDTH, HEIGHT, sigmas=sigmas, background=behind) for viewmat, K, behind in cameras
    ]
    images, alphas, _ = of_scene(inputs, with_eval3d=True, splat="BetaKernel", splat_params={param: given})
    compare({"image": images, "alpha": alphas}, expected, leaves, twins, looser=5)


def test_other_channels_keep_their_values() -> None:
    """Depth and signals, also in a second pass, are those without a colour of the splat's own."""
    inputs, params = scene_of("pinhole", WIDTH, HEIGHT, seed=136), params_of()
    signals = torch.rand(N, 40)
    pictures = [
        of_scene(inputs, splat=shaders.source(text), splat_params=given, render_mode="RGB+D", extra_signals=signals)
        for text, given in ((FALLOFF + COLOR, params), (FALLOFF, {name: params[name] for name in "ab"}))
    ]
    (image, _, meta), (plain, _, others) = pictures
    assert (image[..., :3] - plain[..., :3]).abs().max() > 0.05
    close(image[..., 3], plain[..., 3])
    close(meta["render_extra_signals"], others["render_extra_signals"])
    depths, _, _ = of_scene(inputs, splat=shaders.source(FALLOFF + COLOR), splat_params=params, render_mode="D")
    close(depths[..., 0], image[..., 3])


def test_what_is_refused() -> None:
    inputs, params = scene_of("pinhole", WIDTH, HEIGHT, seed=137), params_of()
    both: dict[str, Any] = {"splat": shaders.source(FALLOFF + COLOR), "splat_params": params}
    for options, message in (
        ({"return_normals": True, "with_eval3d": True}, "a splat of type ISplatColor does not support return_normals"),
        ({"rasterize_mode": "antialiased"}, "a splat along rays does not support rasterize_mode='antialiased'"),
    ):
        with pytest.raises(NotImplementedError, match=message):
            of_scene(inputs, **both, **options)
    four = {name: tensor for name, tensor in inputs.items() if name != "backgrounds"} | {"colors": torch.rand(N, 4)}
    refused("colors has 4 channels, but .* ISplatColor has rgb", of_scene, four, **both)
    on_image = falloff("return 1.0;", kind="IFalloff2D")
    both["splat"] = shaders.source(on_image + COLOR)
    refused("Mine is of the image and ISplatColor of space", of_scene, inputs, **both)
    with pytest.raises(NotImplementedError, match="with_eval3d=True does not support a splat of type IFalloff2D"):
        of_scene(inputs, splat=shaders.source(on_image), with_eval3d=True)


# --- findings of `check` (test_user_type_checks.py) ---


def colored(value: str) -> str:
    head, tail = COLOR.split("float shade")[0], "}\n}\n"
    return FALLOFF.split("struct")[0] + head + value + tail


BAD: dict[str, tuple[Any, ...]] = {
    "too small a bound in space": (ROUND.replace("-0.5", "-0.4"), "times sigmaMax; let that return more"),
    "a bound of one direction in space": (
        ROUND.replace("-0.5", "(ray.point.x > 0.0 ? -0.5 : -0.4)"),
        "times sigmaMax; let that return more",
    ),
    "a ray's lost derivative": (
        ROUND.replace("-0.5)", "-0.5) * sigmoid(detach(ray.direction.y))"),
        r"derivative of value by ray\.direction\[1\] is 0 at",
    ),
    "the axes' lost derivative": (
        FALLOFF.replace("mul(ray.axes, ray.position)", "mul(detach(ray.axes), ray.position)"),
        r"derivative of value by ray\.axes\[0\]\[[012]\] is 0 at",
        dict.fromkeys("ab", (-1.0, 1.0)),
    ),
    "an infinite derivative on the mean in space": (
        ROUND.replace("dot(ray.point, ray.point)", "exp(log(dot(ray.point, ray.point)))"),
        r"derivative of value is not finite at point = \(0, 0, 0\), on the mean",
    ),
    "a varying colour's lost derivative": (
        colored("return color * (1.0 + sigmoid(detach(ray.point.z) * a));"),
        r"derivative of color\[[012]\] by ray\.point\[2\] is 0 at",
        dict.fromkeys("ace", (0.5, 1.0)),
    ),
    "a varying colour that overflows": (
        colored("return color * exp(dot(ray.point, ray.point) * 0.5);"),
        r"color or its derivative is not finite at \|point\| = 100; limit it",
        dict.fromkeys("ace", (0.5, 1.0)),
    ),
}


@pytest.mark.parametrize("name", ["dbs", "half3d", "shaded"])
def test_the_documented_ones_pass(name: str) -> None:
    ((text, ranges),) = re.findall(
        rf'{name} = splat\.shaders\.source\("""\n(.*?)"""\)\nsplat\.shaders\.check\({name}, (.*?)\)\n', DOCUMENT, re.DOTALL
    )
    limits = {key: (float(low), float(high)) for key, low, high in re.findall(r"(\w+)=\((\S+), (\S+)\)", ranges)}
    shaders.check(shaders.source(text), **limits)


# --- training and files ---

CAPTURE = (4, 24)
INITIAL = dict.fromkeys(PARAMS, 0.5)
# Adds Gaussians; gradients add up in a fixed order.
CONFIG = TrainConfig(
    steps=24, densify_every=10, densify_start=1, accumulate="pair", splat_param_lr=0.01, sh_degree=0, strategy="mcmc"
)


def test_a_step_has_the_gradients_of_torch(dataset: Dataset) -> None:
    """Gradients of raw parameters, and of the camera through the pixels' rays."""
    own = shaders.source(FALLOFF + COLOR)
    config = replace(CONFIG, refine_cameras=True, coarse_stop=0, opacity_reg=1e-12, scale_reg=1e-12)
    trainer = Trainer(dataset, config, splat=own, splat_params=INITIAL)
    gaussians, view = trainer.gaussians(), trainer.views_of(0)[0]
    names = ("means", "quats", "log_scales", "logit_opacities", "sh")
    leaves = {name: getattr(gaussians, name).clone().requires_grad_() for name in names}
    camera = dataset.views[view].camera
    viewmat = torch.tensor(camera.viewmat[None], dtype=torch.float32, requires_grad=True)
    images, _, _ = rasterization(
        leaves["means"],
        leaves["quats"],
        leaves["log_scales"].exp(),
        leaves["logit_opacities"].sigmoid(),
        leaves["sh"],
        viewmat,
        torch.tensor(camera.K[None], dtype=torch.float32),
        camera.width,
        camera.height,
        sh_degree=0,
        backgrounds=torch.from_numpy(dataset.background[None]),
        near_plane=dataset.near,
        accumulate="pair",
        splat=own,
        splat_params=gaussians.params,
    )
    photograph = torch.from_numpy(dataset.image(view)[None, ..., :3] / np.float32(255))
    photometric_loss(images, photograph).backward()
    trainer.advance()
    trainer.finish()
    v = trainer.parameters.v_gaussians
    actual = {"means": v.means, "quats": v.quats, "log_scales": v.scales, "logit_opacities": v.opacities}
    for name, array in actual.items():
        wanted = leaves[name].grad.numpy()
        np.testing.assert_allclose(array.numpy(), wanted, rtol=2e-3, atol=2e-5 * np.abs(wanted).max(), err_msg=name)


def test_training_resumes_bit_for_bit_and_a_ply_keeps_it(dataset: Dataset, tmp_path: Path) -> None:
    own = shaders.source(FALLOFF + COLOR)
    straight = Trainer(dataset, CONFIG, splat=own, splat_params=INITIAL)
    gaussians = straight.fit()
    first = Trainer(dataset, CONFIG, splat=own, splat_params=INITIAL)
    while first.step < 13:
        first.advance()
    first.save_checkpoint(tmp_path / "c.safetensors")
    resumed = Trainer(dataset, resume=Checkpoint.load(tmp_path / "c.safetensors"), trust_source=True)
    resumed.fit()
    assert_same_bits(resumed.checkpoint().state, straight.checkpoint().state)
    assert all((values != 0.5).any() for values in gaussians.params.values())

    gaussians.save_ply(tmp_path / "a.ply")
    loaded = Gaussians.load_ply(tmp_path / "a.ply")
    assert loaded.splat == SlangSource("Lopsided", FALLOFF + COLOR)
    camera = dataset.views[0].camera
    np.testing.assert_array_equal(render_gaussians(loaded.trust_source(), camera), render_gaussians(gaussians, camera))
    refused("colours that vary within them; inspect lists", inspect, gaussians, camera, 0, 0)
    # Weights of blending do not depend on colours.
    params = {name: gaussians.params[name] for name in PARAMS[:2]}
    plain = replace(gaussians, splat=UserType("Lopsided", FALLOFF), params=params)
    weights = (blending_weights(each, camera, torch.ones(camera.height, camera.width)) for each in (gaussians, plain))
    np.testing.assert_allclose(*weights, rtol=1e-4, atol=1e-4)


def test_gradients_of_positions_decide_where_gaussians_grow(dataset: Dataset) -> None:
    """A shift by a pixel is one by z / f, and gradients are in units of half an image."""
    config = replace(CONFIG, strategy="default", coarse_stop=0, grow_grad2d=0.0)
    trainer = Trainer(dataset, config, splat=shaders.source(FALLOFF), splat_params=dict.fromkeys(PARAMS[:2], 0.5))
    state, camera = trainer.parameters.state(), dataset.views[trainer.views_of(0)[0]].camera
    trainer.advance()
    trainer.finish()
    turn = camera.viewmat[:3, :3].T
    z = (state["means"] @ turn + camera.viewmat[:3, 3])[:, 2:]
    v = trainer.parameters.v_gaussians.means.numpy() @ turn
    half = np.array([camera.width, camera.height]) / 2 / np.diag(camera.K)[:2]
    norms = trainer.parameters.state()["gradient_norms"]
    assert np.count_nonzero(norms) > len(norms) / 2
    np.testing.assert_allclose(norms, np.linalg.norm(v[:, :2] * z * half, axis=1), rtol=1e-4, atol=1e-4 * norms.max())
    assert len(trainer.fit()) > len(norms)


def test_settings_that_training_refuses(dataset: Dataset) -> None:
    own = {"splat": shaders.source(FALLOFF + COLOR), "splat_params": INITIAL}
    refused("Lopsided is evaluated along rays, .* antialiased", Trainer, dataset, replace(CONFIG, antialiased=True), **own)
