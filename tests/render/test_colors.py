"""Colours by direction: the built-in types against float64, callers' own types, and how gradients of weights add up."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import splat_py as splat
from splat_py import shaders
from splat_py.gpu.kernels import UserType
from splat_py.gsplat import RollingShutterType
from splat_py.render.colors import initial_network, network_weights
from tests.refusals import refused
from tests.render import test_camera_models as camera_models
from tests.render.test_camera_models import scene_of
from tests.render.test_cameras import moving

WIDTH, HEIGHT, N, CAMERAS = 24, 18, 20, 2
ACCUMULATE = ("group", "pair")

OWN = """
import splat.prelude;

/// The diffuse colour, lit from a direction that all share.
struct Lit : IColor
{
    static const int FEATURES = 4;
    static const int WEIGHTS = 3;

    [Differentiable]
    static float3 color<let K : int, let W : int>(float3 direction, float3 features[K], float weights[W])
    {
        float3 light = float3(weights[0], weights[1], weights[2]);
        return features[0] + float3(exp(features[1].x * dot(direction, light)));
    }
}
"""


def spherical_gaussians(d: Tensor, features: Tensor, weights: Tensor) -> Tensor:
    axis, amplitude = features[:, 3:].reshape(len(features), -1, 2, 3).unbind(2)
    lobes = torch.exp((axis * d[:, None]).sum(-1) - axis.norm(dim=-1))
    return (0.5 + features[:, :3] + (lobes[..., None] * amplitude).sum(1)).clamp(min=0)


def color_network(d: Tensor, features: Tensor, weights: Tensor) -> Tensor:
    x, y, z = d.unbind(-1)
    constant = torch.full_like(x, 0.28209479177387814)
    linear = [0.4886025119029199 * part for part in (-y, z, -x)]
    products = [1.0925484305920792 * part for part in (x * y, -y * z, -x * z)]
    squares = [0.31539156525252005 * (2 * z * z - x * x - y * y), 0.5462742152960396 * (x * x - y * y)]
    encoded = [constant, *linear, products[0], products[1], squares[0], products[2], squares[1]]
    # Features are padded with zeros to a multiple of three.
    padded = torch.nn.functional.pad(features, (0, -features.shape[1] % 3))
    inputs = torch.cat([padded, torch.stack(encoded, -1)], -1)
    rows = weights[:-3].reshape(-1, inputs.shape[1] + 4)
    hidden = torch.relu(inputs @ rows[:, :-4].T + rows[:, -4])
    return torch.sigmoid(hidden @ rows[:, -3:] + weights[-3:])


def lit(d: Tensor, features: Tensor, weights: Tensor) -> Tensor:
    return features[:, :3] + torch.exp(features[:, 3] * (d @ weights))[:, None]


@dataclass(frozen=True)
class Kind:
    features: int
    weights: int
    twin: Callable[[Tensor, Tensor, Tensor], Tensor]


KINDS = {
    "SphericalGaussians": Kind(15, 0, spherical_gaussians),
    # A layer with more than one chunk of sums, the last one not full.
    "ColorNetwork": Kind(5, network_weights(5, 3), color_network),
    "own": Kind(4, 3, lit),
}


def type_of(name: str) -> Any:
    return UserType("Lit", OWN) if name == "own" else name


def inputs_of(name: str, seed: int, each_camera: bool = False) -> dict[str, Tensor]:
    """A scene with features, and with weights if the type has some."""
    inputs, generator = scene_of("pinhole", WIDTH, HEIGHT, seed=seed), torch.Generator().manual_seed(seed)
    lead = (CAMERAS, N) if each_camera else (N,)
    inputs["colors"] = torch.randn(*lead, KINDS[name].features, generator=generator).requires_grad_()
    if KINDS[name].weights:
        inputs["weights"] = (0.6 * torch.randn(KINDS[name].weights, generator=generator)).requires_grad_()
    return inputs


def check(name: str, seed: int, each_camera: bool = False, **options: Any) -> None:
    """Check images and every input's gradient."""

    def colors(twins: dict[str, Tensor], c: int) -> Tensor:
        viewmat, features = twins["viewmats"][c], twins["colors"]
        directions = twins["means"] + viewmat[:3, :3].T @ viewmat[:3, 3]
        directions = directions / directions.norm(dim=-1, keepdim=True)
        weights = twins.get("weights", torch.zeros(0).double())
        return KINDS[name].twin(directions, features[c] if each_camera else features, weights)

    inputs = inputs_of(name, seed, each_camera)
    camera_models.check(inputs, "pinhole", WIDTH, HEIGHT, features_of=colors, color=type_of(name), **options)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_against_float64(name: str, packed: bool) -> None:
    check(name, seed=91, packed=packed)


@pytest.mark.parametrize("packed", [False, True])
def test_features_of_each_camera(packed: bool) -> None:
    check("ColorNetwork", seed=92, each_camera=True, packed=packed)


@pytest.mark.parametrize("accumulate", ACCUMULATE)
def test_weights_add_up(accumulate: Any) -> None:
    check("ColorNetwork", seed=93, packed=False, accumulate=accumulate)


def test_pairs_add_up_in_the_same_order() -> None:
    """Over many workgroups and scenes."""
    gradients = []
    viewmats = torch.eye(4).repeat(2, 1, 1, 1)
    viewmats[..., 2, 3] = 4
    for _ in range(2):
        generator = torch.Generator().manual_seed(3)
        means = torch.randn(2, 500, 3, generator=generator)
        features = torch.randn(2, 500, 3, generator=generator)
        weights = torch.randn(network_weights(3, 2), generator=generator).requires_grad_()
        images, _, _ = splat.rasterization(
            means,
            torch.ones(2, 500, 4),
            torch.full((2, 500, 3), 0.1),
            torch.full((2, 500), 0.5),
            features,
            viewmats,
            torch.tensor([[20.0, 0, 12], [0, 20, 9], [0, 0, 1]]).expand(2, 1, 3, 3),
            WIDTH,
            HEIGHT,
            color="ColorNetwork",
            weights=weights,
            accumulate="pair",
        )
        images.square().sum().backward()
        assert weights.grad is not None and (weights.grad != 0).all()
        gradients.append(weights.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_harmonics_as_a_type_of_ones_own() -> None:
    """The picture is equal to the last bit, and so are the gradients."""
    text = """
    import splat.prelude;
    struct Mine : IColor
    {
        [Differentiable]
        static float3 color<let K : int, let W : int>(float3 direction, float3 features[K], float weights[W])
        {
            return shColor<K>(direction, features);
        }
    }
    """
    results = []
    for own in (False, True):
        inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=94)
        sh = torch.randn(N, 4, 3, generator=torch.Generator().manual_seed(4)).requires_grad_()
        inputs["colors"] = sh.reshape(N, 12) if own else sh
        options: dict[str, Any] = {"color": shaders.source(text)} if own else {"sh_degree": 1}
        arguments: dict[str, Any] = inputs | options
        images, _, _ = splat.rasterization(**arguments, width=WIDTH, height=HEIGHT, accumulate="pair")
        images.square().sum().backward()
        results.append([images, sh.grad, inputs["means"].grad, inputs["viewmats"].grad])
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("accumulate", ["wave", "pair"])
def test_no_gaussians(accumulate: Any) -> None:
    inputs: dict[str, Any] = inputs_of("ColorNetwork", seed=95)
    cameras = ("viewmats", "Ks", "backgrounds", "weights")
    inputs = {key: tensor if key in cameras else tensor[:0] for key, tensor in inputs.items()}
    images, _, _ = splat.rasterization(
        **inputs, width=WIDTH, height=HEIGHT, color="ColorNetwork", accumulate=accumulate, packed=False
    )
    images.sum().backward()
    assert inputs["weights"].grad is not None and not inputs["weights"].grad.any()


def test_depth_extra_signals_and_a_background_beside() -> None:
    inputs: dict[str, Any] = inputs_of("SphericalGaussians", seed=95)
    images, _, meta = splat.rasterization(
        **inputs,
        width=WIDTH,
        height=HEIGHT,
        color="SphericalGaussians",
        render_mode="RGB+ED",
        extra_signals=torch.ones(N, 2),
    )
    assert images.shape == (CAMERAS, HEIGHT, WIDTH, 4)
    assert meta["render_extra_signals"].shape == (CAMERAS, HEIGHT, WIDTH, 2)


def test_a_rolling_shutters_directions_come_from_midway() -> None:
    inputs: dict[str, Any] = moving(inputs_of("SphericalGaussians", seed=96), 107, 3.0)
    first, last = inputs["viewmats"].detach(), inputs.pop("viewmats_rs").detach()
    centres = [-(pose[:, :3, :3].mT @ pose[:, :3, 3:])[..., 0] for pose in (first, last)]
    directions = torch.nn.functional.normalize(inputs["means"] - ((centres[0] + centres[1]) / 2)[:, None], dim=-1)
    features = inputs["colors"].expand(CAMERAS, N, -1)
    colors = torch.stack([spherical_gaussians(directions[c], features[c], torch.empty(0)) for c in range(CAMERAS)])
    options: dict[str, Any] = {"viewmats_rs": last, "rolling_shutter": RollingShutterType.ROLLING_TOP_TO_BOTTOM}
    images, _, _ = splat.rasterization(**inputs, width=WIDTH, height=HEIGHT, color="SphericalGaussians", **options)
    wanted, _, _ = splat.rasterization(**(inputs | {"colors": colors}), width=WIDTH, height=HEIGHT, **options)
    torch.testing.assert_close(images, wanted, rtol=1e-5, atol=1e-5)


ONES = torch.ones
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"color": "Rainbow"}, "color is 'Rainbow'; use SphericalHarmonics, SphericalGaussians, ColorNetwork, or"),
    "no type": ({"color": 3}, "color is a int; use SphericalHarmonics"),
    "lobes": ({"color": "SphericalGaussians"}, r"colors holds 8 features per Gaussian; SphericalGaussians need 3 \+ 6 per"),
    "weights of harmonics": ({"weights": ONES(3)}, "weights are given, but SphericalHarmonics have none"),
    "weights of lobes": ({"color": "SphericalGaussians", "weights": ONES(3)}, "but SphericalGaussians have none"),
    "no weights": ({"color": "ColorNetwork"}, r"weights holds 0 numbers; a ColorNetwork of 8 features needs 3 \+ 22 per"),
    "some weights": ({"color": "ColorNetwork", "weights": ONES(24)}, "weights holds 24 numbers; a ColorNetwork of 8 features"),
    "shape": ({"color": "ColorNetwork", "weights": ONES(5, 5)}, r"weights has shape \[5, 5\]; expected \[W\]"),
    "type": ({"color": "ColorNetwork", "weights": ONES(25).double()}, "weights has dtype torch.float64; convert it"),
    "a degree": ({"color": "SphericalGaussians", "sh_degree": 1}, "sh_degree belongs to SphericalHarmonics; leave sh_degree"),
    "own features": ({"color": OWN}, "Lit takes 4 features and is given 8; see its FEATURES"),
    "own weights": ({"color": OWN, "colors": ONES(N, 4)}, "Lit takes 3 weights and is given 0; see its WEIGHTS"),
    "many features": ({"color": "SphericalGaussians", "colors": ONES(N, 261)}, "colors holds 261 features"),
    "many weights": ({"color": "ColorNetwork", "weights": ONES(5000)}, "weights holds 5000 numbers; shaders accept at most"),
    "unknown features": ({"color": OWN.replace("FEATURES = 4", "FEATURES = 2 * K")}, "the value of K cannot be read: nothing"),
    "half a feature": ({"color": OWN.replace("FEATURES = 4", "FEATURES = 8 / 2.0")}, "Lit has FEATURES = 4.0; it must be"),
    "background": ({"color": "SphericalGaussians", "colors": ONES(N, 3), "backgrounds": ONES(CAMERAS, 4)}, "backgrounds has"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes(kind: str) -> None:
    options, message = MISTAKES[kind]
    if "splat.prelude" in str(options.get("color")):
        options = options | {"color": UserType("Lit", options["color"])}
    inputs: dict[str, Any] = scene_of("pinhole", WIDTH, HEIGHT, seed=96) | {"colors": ONES(N, 8)} | options
    refused(message, splat.rasterization, **inputs, width=WIDTH, height=HEIGHT)


def test_a_network_to_begin_with() -> None:
    """Colours vary around grey, and every unit that is not off has a gradient."""
    weights = torch.from_numpy(initial_network(5, 16)).double().requires_grad_()
    assert weights.shape == (network_weights(5, 16),)
    generator = torch.Generator().manual_seed(6)
    d = torch.nn.functional.normalize(torch.randn(200, 3, generator=generator, dtype=torch.float64), dim=-1)
    colors = color_network(d, torch.randn(200, 5, generator=generator, dtype=torch.float64), weights)
    assert 0.4 < colors.mean() < 0.6 and 0.05 < colors.std() < 0.35
    colors.sum().backward()
    assert weights.grad is not None and (weights.grad[:-3].reshape(16, -1) != 0).any(-1).all()
