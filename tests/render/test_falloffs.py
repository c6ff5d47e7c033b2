"""Falloffs of splats: the built-in types against float64, and callers' own types."""

from typing import Any

import pytest
import torch
from torch import Tensor

import splat_py as splat
from splat_py import shaders
from splat_py.gpu.kernels import UserType
from splat_py.shaders.declarations import fields_of
from splat_py.shaders.loading import with_numbers
from tests.refusals import refused
from tests.render.test_camera_models import check, scene_of

WIDTH, HEIGHT, N = 24, 18, 20

# Each built-in type: its parameter, the range of samples, and its value in torch.
BUILT_IN = {
    "GeneralizedExponential": ("beta", (0.4, 2.5), lambda s, beta: torch.exp(-0.5 * s.clamp(min=1e-6) ** beta)),
    "BetaKernel": ("b", (-1.5, 1.5), lambda s, b: (1 - s / 9).clamp(min=1e-6) ** (4 * torch.exp(b))),
}

REACH = "return 2.0 * log(opacity / ALPHA_MIN);"


def own(value: str, sigma_max: str = REACH, more: str = "", kind: str = "IFalloff", fields: str = "") -> str:
    given = {"IFalloff": "float sigma", "IFalloff2D": "float2 d, float3 conic"}[kind]
    return f"""
import splat.prelude;
{more}
struct Mine : {kind}
{{ {fields}
    [Differentiable]
    float value({given}) {{ {value} }}
    float sigmaMax(float opacity) {{ {sigma_max} }}
}}
"""


OWN_GAUSSIAN = own("return gaussian(sigma);")
# A type with its own width and height.
SCALED = own(
    "return exp(sigma * -0.5 * rate) * height;",
    "return 2.0 * log(max(opacity * height / ALPHA_MIN, 1.0)) / rate;",
    fields="float rate, height;",
)


def of_scene(inputs: dict[str, Tensor], **options: Any) -> Any:
    return splat.rasterization(**inputs, width=WIDTH, height=HEIGHT, **options)


def results(**options: Any) -> list[Tensor]:
    """An image, and the gradients of the sum of its squares."""
    inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=83)
    images, _, _ = of_scene(inputs, **options)
    return [images.detach(), *torch.autograd.grad(images.square().sum(), list(inputs.values()))]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", BUILT_IN)
def test_against_float64(name: str, packed: bool) -> None:
    parameter, limits, value = BUILT_IN[name]
    inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=81)
    numbers = torch.linspace(*limits, N)[torch.randperm(N, generator=torch.Generator().manual_seed(1))].requires_grad_()

    def falloff_of(twins: dict[str, Tensor]) -> dict[str, Any]:
        return {"falloff": lambda sigma, order: value(sigma, twins[parameter][order])}

    check(inputs, "pinhole", WIDTH, HEIGHT, splat=name, splat_params={parameter: numbers}, falloff_of=falloff_of, packed=packed)


def test_a_derivative_that_is_infinite_where_nothing_is_seen() -> None:
    """Fermi's function: exp(∞) / (1 + exp(∞))² far from the mean."""
    value = "return (1.0 + exp(-k)) / (1.0 + exp((sigma * 0.25 - 1.0) * k));"
    reach = "return 4.0 + 4.0 * log((1.0 + exp(-k)) * opacity / ALPHA_MIN - 1.0) / k;"
    inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=82)
    with torch.no_grad():
        inputs["scales"].mul_(0.2)
    k = torch.full((N,), 40.0, requires_grad=True)
    images, _, _ = of_scene(inputs, splat=shaders.source(own(value, reach, fields="float k;")), splat_params={"k": k})
    (images**2).sum().backward()
    for name, tensor in (inputs | {"k": k}).items():
        assert tensor.grad is not None and tensor.grad.any() and tensor.grad.isfinite().all(), name


@pytest.mark.parametrize("packed", [False, True])
def test_the_gaussian_as_a_type_of_ones_own(packed: bool) -> None:
    """The picture is equal to the last bit, and so are the gradients."""
    options: dict[str, Any] = {"packed": packed, "accumulate": "pair"}
    mine = results(splat=shaders.source(OWN_GAUSSIAN), **options)
    torch.testing.assert_close(mine, results(**options), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("source", "given", "message"),
    [
        (SCALED, ("rate",), "has rate; the fields of Mine are rate, height: give one parameter for each, by name"),
        (SCALED, ("rate", "hight"), "has rate, hight; the fields of Mine are rate, height"),
        (SCALED, (), "has nothing; the fields of Mine are rate, height"),
        (SCALED, ("rate", "height; } float x"), "has rate, height; } float x; the fields of Mine are rate, height"),
        (OWN_GAUSSIAN, ("wide",), "has wide; the fields of Mine are none"),
    ],
)
def test_parameters_that_are_no_fields(source: str, given: tuple[str, ...], message: str) -> None:
    scene = scene_of("pinhole", WIDTH, HEIGHT, seed=83)
    params = {name: torch.ones(len(scene["means"])) for name in given}
    refused(message, of_scene, scene, splat=shaders.source(source), splat_params=params)


FIELDS = """
// float first;
struct Other : IFalloff { float other; float value(float s) { if (s > 1.0) { return other; } return s; } }
struct Mine : IFalloff
{
    float first, second; /* float third; */
    static const int COUNT = 3;
    [Differentiable]
    float value(float sigma) { float inner; for (int i = 0; i < COUNT; i++) { inner = first; } return inner; }
    float sixth;
    struct Inner { float seventh; }
}
"""


def test_fields() -> None:
    assert fields_of(FIELDS, "Mine") == ["first", "second", "sixth"]
    assert fields_of(FIELDS, "Other") == ["other"]
    assert fields_of(FIELDS.replace("float", "public float"), "Other") == ["other"]
    assert fields_of("// public\n" + FIELDS, "Other") == ["other"]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (
            "float3 axis;",
            "^Mine has the field 'float3 axis'; a field is a number of each Gaussian's own: write float, no value, and a name",
        ),
        ("float numbers[3];", r"^Mine has the field 'float numbers\[3\]'"),
        ("float width = exp(0.0);", "^Mine has the field 'float width = exp"),
        ("float sigma;", "^Mine has the field 'float sigma'; .* a name other than color, conic, d"),
        (
            "float two; public float one;",
            "^Mine is in a source with public parts, but its field two is not; write public float$",
        ),
        (
            "float " + ", ".join(f"n{i}" for i in range(17)) + ";",
            "^the source has 17 numbers of each splat; a splat has 16 at most$",
        ),
    ],
)
def test_fields_that_are_refused(field: str, message: str) -> None:
    text = own("return gaussian(sigma);", fields=field)
    refused(message, with_numbers, ("one",), UserType("Mine", text))


def test_one_struct_is_not_a_falloff_and_a_colour() -> None:
    both = (UserType("Mine", SCALED, adapter) for adapter in ("Falloff3DAdapter", "SplatColorHits"))
    refused("Mine is a falloff and a colour; declare a struct for each", with_numbers, ("rate", "height"), *both)


@pytest.mark.parametrize("names", [("rate", "height"), ("height", "rate")])
def test_parameters_by_name(names: tuple[str, ...]) -> None:
    inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=84)
    rate, height = torch.rand(N) + 0.5, torch.rand(N) * 0.5 + 0.5
    # Wider Gaussians of less opacity would differ by the filter; without the filter they are exactly equal.
    plain, _, _ = of_scene(
        inputs | {"scales": inputs["scales"] / rate.sqrt()[:, None], "opacities": inputs["opacities"] * height}, eps2d=0.0
    )
    params = {name: {"rate": rate, "height": height}[name] for name in names}
    images, _, _ = of_scene(inputs, splat=shaders.source(SCALED), splat_params=params, eps2d=0.0)
    torch.testing.assert_close(images, plain, rtol=1e-4, atol=1e-4)


def test_absolute_gradients_stand_behind_the_parameters() -> None:
    inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=85)
    absolute = []
    for options in ({}, {"splat": "GeneralizedExponential", "splat_params": {"beta": torch.ones(N, requires_grad=True)}}):
        images, _, meta = of_scene(inputs, absgrad=True, packed=False, **options)
        images.square().sum().backward()
        absolute.append(meta["means2d"].absgrad)
    torch.testing.assert_close(*absolute, rtol=1e-3, atol=1e-4 * float(absolute[0].max()))


def test_an_edited_source_is_compiled_again() -> None:
    inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=86)
    images = [of_scene(inputs, splat=shaders.source(own(f"return exp(sigma * -{rate});")))[0] for rate in (0.5, 0.7)]
    assert images[0].sum() != images[1].sum()


def test_from_a_file(tmp_path: Any) -> None:
    file = tmp_path / "mine.slang"
    file.write_text(OWN_GAUSSIAN)
    inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=87)
    torch.testing.assert_close(of_scene(inputs, splat=shaders.load(file))[0], of_scene(inputs)[0], rtol=0, atol=0)


def beta(b: Any) -> dict[str, Any]:
    return {"splat": "BetaKernel", "splat_params": {"b": b}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splat": "Cube"}, "splat is 'Cube'; use Gaussian, GeneralizedExponential, BetaKernel, Surfel, or"),
        ({"splat": 3}, "splat is 3"),
        ({"splat_params": {"beta": torch.ones(N)}}, "splat_params has beta; Gaussian takes none"),
        ({"splat": "BetaKernel"}, "splat_params has nothing; BetaKernel takes b"),
        (beta(torch.ones(N + 1)), r"splat_params\['b'\] has shape \[21\]; expected \[20\]"),
        (beta(torch.ones(N).double()), r"splat_params\['b'\] must be a torch.float32 tensor"),
        (beta([1.0] * N), r"splat_params\['b'\] must be a torch.float32 tensor"),
        (
            {"splat": UserType("Mine", OWN_GAUSSIAN), "splat_params": dict.fromkeys("abcdefghijklmnopq")},
            "has 17 parameters; a splat has 16",
        ),
    ],
    ids=str,
)
def test_mistakes(options: dict[str, Any], message: str) -> None:
    refused(message, of_scene, scene_of("pinhole", WIDTH, HEIGHT, seed=88), **options)


def test_a_source_without_a_type() -> None:
    inputs, none = scene_of("pinhole", WIDTH, HEIGHT, seed=88), shaders.source("public float one() { return 1.0; }")
    refused("has no type that implements IFalloff or IFalloff2D or .*; declare one: .* IFalloff$", of_scene, inputs, splat=none)


# --- findings of `check` (test_user_type_checks.py) ---

VALUE = "return exp(sigma * -0.5);"
TWICE = """
[Differentiable] [BackwardDerivative(twice)]
float faded(float x) { return exp(x * -0.5); }
void twice(inout DifferentialPair<float> x, float v) { x = diffPair(x.p, exp(x.p * -0.5) * -v); }
"""
# Source, message, and ranges.
BAD: dict[str, tuple[Any, ...]] = {
    "too small a bound": (own(VALUE, "return 1.8 * log(opacity / ALPHA_MIN);"), "times sigmaMax; let that return more"),
    "a derivative that is lost": (own("return exp(detach(sigma) * -0.5);"), "derivative of value by sigma is 0 at"),
    "a derivative that is wrong": (own("return faded(sigma);", REACH, TWICE), "derivative of value by sigma is -"),
    "the derivative of a parameter": (
        own("return exp(sigma * -0.5 * detach(rate));", "return 2.0 * log(opacity / ALPHA_MIN) / rate;", fields="float rate;"),
        "derivative of value by rate is 0 at",
        {"rate": (0.5, 2.0)},
    ),
    "more than one": (
        own("return 2.0 * exp(sigma * -0.5);", "return 2.0 * log(2.0 * opacity / ALPHA_MIN);"),
        "and not from 0 to 1",
    ),
    "not a number": (own(VALUE, "return sqrt(-opacity);"), "sigmaMax is -?nan"),
}
