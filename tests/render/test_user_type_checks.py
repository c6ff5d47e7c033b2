"""`splat.shaders.check`: mistakes that it finds in splats, cameras, colours and pixel losses, and types that pass."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from splat_py import SplatError, rasterization, shaders
from tests.refusals import refused
from tests.render import test_colors as colors
from tests.render import test_falloffs as falloffs
from tests.render import test_falloffs2d as falloffs2d
from tests.render import test_falloffs3d as falloffs3d
from tests.train import test_photometric_loss as pixel_losses

CAMERA = """
import splat.prelude;
%s
struct Stereographic : ICameraModel
{
    [Differentiable]
    static float2 project(Camera camera, float3 t)
    {
        %s
    }
    %s
}
"""
BODY = "return camera.focal * (t.xy * 2.0 / (sqrt(dot(t, t)) + t.z)) * (1.0 + camera.radial.x * t.x) + camera.principal;"
DOMAIN = "static override bool isInDomain(Camera camera, float3 t) { return t.z > 0.2; }"
WRONG = """
[Differentiable] [BackwardDerivative(wrong)]
float longer(float x) { return sqrt(x); }
void wrong(inout DifferentialPair<float> x, float v) { x = diffPair(x.p, v / sqrt(x.p)); }
"""


def camera(body: str = BODY, more: str = DOMAIN, before: str = "") -> str:
    return CAMERA % (before, body, more)


def color(body: str, features: int = 4, weights: int = 2, more: str = "") -> str:
    return f"""
import splat.prelude;
{more}
struct Mine : IColor
{{
    static const int FEATURES = {features};
    static const int WEIGHTS = {weights};

    [Differentiable]
    static float3 color<let K : int, let W : int>(float3 direction, float3 features[K], float weights[W])
    {{
        {body}
    }}
}}
"""


def pixel_loss(body: str) -> str:
    return f"""
import splat.prelude;
struct Mine : IPixelLoss
{{
    [Differentiable]
    static float loss<let C : int>(vector<float, C> rendered, vector<float, C> photograph)
    {{
        {body}
    }}
}}
"""


RANGES: dict[str, Any] = {
    "OpenCVPinhole": {f"k{i}": (-0.05, 0.05) for i in range(1, 7)} | {f"p{i}": (-0.01, 0.01) for i in (1, 2)},
    **{name: {parameter: limits} for name, (parameter, limits, _) in falloffs.BUILT_IN.items()},
}
NO_RANGES = ("GaussianFalloff", "SphericalGaussians", "ColorNetwork", "L1", "Charbonnier", "Pinhole", "Equirectangular")


@pytest.mark.parametrize("name", [*NO_RANGES, *RANGES])
def test_built_in_types_pass(name: str) -> None:
    shaders.check(name, **RANGES.get(name, {}))


GOOD: dict[str, tuple[str, dict[str, tuple[float, float]]]] = {
    "color": (colors.OWN, {}),
    "loss": (pixel_losses.OWN, {}),
    "camera": (camera(), {"k1": (-0.1, 0.1)}),
    "falloff": (falloffs.OWN_GAUSSIAN, {}),
    "half-Gaussian": (falloffs2d.HALF, {"angle": (-3.0, 3.0), "rest": (-2.0, 2.0)}),
    "super-ellipse": (falloffs2d.own(falloffs2d.SUPER, "return 1.5 * GaussianFalloff().sigmaMax(opacity);"), {}),
}


@pytest.mark.parametrize("kind", GOOD)
def test_ones_own_pass(kind: str) -> None:
    text, ranges = GOOD[kind]
    shaders.check(shaders.source(text), **ranges)


BAD = {
    "a camera's lost gradient of the focal length": (
        camera(BODY.replace("camera.focal * (", "detach(camera.focal) * (")),
        r"derivative of project\[0\] by focal\[0\] is 0 at point = \(",
    ),
    "a camera's derivative of its own that is wrong": (
        camera(BODY.replace("sqrt(", "longer("), DOMAIN, WRONG),
        r"derivative of project\[[01]\] by point\[[012]\] is .* where finite differences have",
    ),
    "a camera's domain": (
        camera("return camera.focal * sqrt(1.0 - dot(t.xy, t.xy)) + camera.principal;", ""),
        "project is not finite at point = ",
    ),
    "a camera that sees nothing": (camera(more=DOMAIN.replace("0.2", "200.0")), "isInDomain is false, .* nearly everywhere"),
    "a colour's lost gradient of weights": (
        color("return features[0] * weights[0] + float3(detach(weights[1]) * features[1].x);"),
        r"derivative of color\[0\] by weights\[1\] is 0 at direction = ",
    ),
    "a colour's lost gradient of directions": (
        color("return features[0] * dot(detach(direction), features[1]) * weights[0] + float3(weights[1]);", 6),
        r"derivative of color\[0\] by direction\[0\] is 0 at",
    ),
    "a colour that is not a number": (color("return log(features[0]) + float3(weights[0]);"), "color is not finite at"),
    "a colour's index beyond its weights": (
        color("return features[0] * weights[7];"),
        "^Mine cannot be compiled: array index out of bounds; a colour has .* WEIGHTS weights$",
    ),
    "a loss's lost gradient": (
        pixel_loss("vector<float, C> d = rendered - detach(photograph); return dot(d, d);"),
        r"derivative of loss by photograph\[0\] is 0 at",
    ),
    "a loss's infinite derivative": (
        pixel_loss("vector<float, C> d = rendered - photograph; return exp(log(dot(d, d)) * 0.5);"),
        "derivative of loss is not finite where both colours are equal",
    ),
}


BAD |= {
    "a falloff's infinite derivative on the mean": (
        falloffs.own("return exp(exp(log(sigma)) * -0.5);"),
        r"derivative of value is not finite at sigma = 0, on the mean, .* such as sqrt\(max\(sigma, 1e-12\)\)",
    ),
    "a falloff of double": (
        falloffs.own("return float(exp(double(sigma) * -0.5));"),
        "^Mine cannot be compiled for Metal, in rasterizeForward: 'double' type emitted; write float$",
    ),
    "a number without a range": (
        falloffs.SCALED,
        r"^Mine has height, which has no range; give one for each field, such as beta=\(0\.5, 2\.0\)$",
        {"rate": (0.5, 2.0)},
    ),
    "a range of no number": (
        falloffs.OWN_GAUSSIAN,
        "^Mine has no wide, which has a range; give one for each field",
        {"wide": (0.5, 2.0)},
    ),
    "a range of a loss": (pixel_losses.OWN, "^TooBright has no scale, which has a range", {"scale": (0.5, 2.0)}),
    "a scalar left of a vector": (
        color("float3 f = features[0]; float w = weights[0];\n        return f + w * f;"),
        "^Mine has w \\* f in line 1[0-9], a scalar left of a vector, whose gradient Slang may lose; put the vector first$",
    ),
}

FOUND = [*falloffs.BAD.items(), *falloffs2d.BAD.items(), *falloffs3d.BAD.items(), *BAD.items()]


@pytest.mark.parametrize("value", ["exp(-sqrt(sigma))", "exp(-sqrt(max(sigma, 1e-12)))"])
def test_an_infinite_slope_at_the_mean(value: str) -> None:
    """Laplace's falloff, exp(-|x|): steps of finite differences shorten towards 0."""
    far = "float x = log(opacity / ALPHA_MIN); return x * x;"
    shaders.check(shaders.source(falloffs.own(f"return {value};", far)))


@pytest.mark.parametrize("scale", ["2.0", "200.0"])
def test_derivatives_in_messages_are_those_of_the_function(scale: str) -> None:
    text = color(f"return features[0] + float3({scale} * detach(weights[0]), 0.0, 0.0);", 3, 1)
    refused(
        rf"by weights\[0\] is 0 at .*, where finite differences have {float(scale):.0f}(\.\d*)?; is",
        shaders.check,
        shaders.source(text),
    )


@pytest.mark.parametrize("found", [found for _, found in FOUND], ids=[kind for kind, _ in FOUND])
def test_what_check_finds(found: tuple[Any, ...]) -> None:
    text, message, *ranges = found
    refused(message, shaders.check, shaders.source(text), **(ranges[0] if ranges else {}))


def test_all_types_of_a_source_are_checked() -> None:
    both = colors.OWN + BAD["a loss's lost gradient"][0].replace("import splat.prelude;", "")
    refused(r"derivative of loss by photograph\[0\]", shaders.check, shaders.source(both))


def test_what_other_devices_cannot_have() -> None:
    """The source compiles here, but not for another device."""
    text = pixel_loss("vector<float, C> d = rendered - photograph; return dot(d, d) * no_diff scale();").replace(
        "struct Mine", "float scale()\n{\n    __target_switch\n    {\n    case spirv: return 1.0;\n    }\n}\nstruct Mine"
    )
    with pytest.raises(SplatError, match=r"^Mine cannot be compiled for WebGPU, in ssimInTiles: (line 22: )?non-void function"):
        shaders.check(shaders.source(text))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ((2.0, 0.5), r"beta is \(2.0, 0.5\); give its lowest value first"),
        ((math.nan, 1.0), "the range of beta is nan; it must be a finite number"),
        ((0.0, "1"), "the end of the range of beta is '1'; it must be a finite number"),
        (0.5, r"beta is 0.5; give its lowest and its highest value, such as beta=\(0.5, 2.0\)"),
    ],
    ids=str,
)
def test_ranges_that_are_none(limits: Any, message: str) -> None:
    refused(message, shaders.check, "GeneralizedExponential", beta=limits)


def test_what_is_no_source() -> None:
    refused(r"kind is a NoneType; give what splat_py\.shaders\.source or load returns", shaders.check, None)
    refused("the source is a bytes; give the text", shaders.source, b"import splat.prelude;")  # type: ignore[arg-type]


GREY = color("return features[0];")


def test_what_was_refused_once_is_refused_again() -> None:
    """On a second try, the compiler takes a missing module for an empty one and a rejected one for a valid one. Kernels linked
    with those ended the process."""
    missing = "import splat.nothing;" + GREY
    loop = GREY.replace("return", "float x = 1.0; while (x > weights[0]) x *= 0.5; return")
    for text, message in ((missing, "cannot open file"), (missing + "\n", "cannot open file"), (loop, "loops inside")):
        for _ in range(2):
            refused(rf"^the source cannot be compiled: line \d+: {message}", shaders.source, text)


def test_a_file_that_was_missing_is_found_when_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "mine.slang").write_text('import "other.slang";\n' + GREY.replace("return", "return grey() *"))
    refused("cannot open file", shaders.load, tmp_path / "mine.slang")
    (tmp_path / "other.slang").write_text("[Differentiable] public float grey() { return 1.0 }")
    refused("cannot be compiled", shaders.load, tmp_path / "mine.slang")
    (tmp_path / "other.slang").write_text("[Differentiable] public float grey() { return 1.0; }")
    assert shaders.load(tmp_path / "mine.slang").type_of("IColor") == "Mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GREY.replace("[Differentiable]", ""), r"line \d+: .*; it must be static if .* \[Differentiable\]$"),
        (GREY.replace("static float3", "float3"), r"line \d+: .*; it must be static if"),
        (falloffs.own(falloffs.VALUE, fields="float a; static const float LEAST = 1e-6;"), "static const float, .*; move the"),
        (GREY.replace("import splat.prelude;", ""), r"'IColor'; begin with import splat\.prelude;$"),
        (GREY.replace("features[0]", "Gaussian.f()"), r"'Gaussian'; there is Gaussian3D, GaussianFalloff, gaussian$"),
        (
            GREY.replace("splat.prelude", "splat.color").replace("features[0]", "features[0] * sigmoid(1.0)"),
            r"'sigmoid'; it is in splat\.gaussian: import that or splat\.prelude$",
        ),
    ],
    ids=["no [Differentiable]", "not static", "a constant", "no import", "another name", "another module"],
)
def test_hints(text: str, message: str) -> None:
    refused(message, shaders.source, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "module mine;\n" + GREY,
            r"^Mine cannot be compiled: 'Mine' is not accessible .*; write public before it: a source with module",
        ),
        (
            GREY.replace("return", "if (features[0].x > 2.0) return color<K, W>(direction, features, weights); return"),
            "^Mine cannot be compiled: line 12: recursion",
        ),
        (GREY.replace("Mine", "Mïne"), "^Mïne is not a name that every compiler accepts"),
    ],
    ids=["module", "recursion", "letters"],
)
def test_what_shows_only_where_it_is_called(text: str, message: str) -> None:
    refused(message, shaders.check, shaders.source(text))
    ones, eyes = torch.ones(1, 3), torch.eye(4)[None]
    tensors = ones, torch.ones(1, 4), ones, torch.ones(1), torch.ones(1, 4), eyes, eyes[:, :3, :3]
    with pytest.raises(SplatError, match=message.replace("compiled:", "compiled, in \\w+:")):
        rasterization(*tensors, 4, 4, color=shaders.source(text), weights=torch.ones(2))


@pytest.mark.parametrize("name", ["Camera", "Gaussian"])
def test_a_name_that_is_taken(name: str) -> None:
    """A type of the shaders or an option has the name; files identify types by name."""
    with pytest.raises(SplatError, match=f"{name} is also the name of a splat_py type; rename yours"):
        shaders.check(shaders.source(GREY.replace("struct Mine", f"struct {name}")))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("Nonsense", "Nonsense has no type that implements IFalloff, IFalloff2D, IFalloff3D, ISplatColor, ICamera"),
        ("public float one() { return 1.0; }", "has no type that implements IFalloff, IFalloff2D, IFalloff3D, ISplatColor"),
    ],
)
def test_nothing_to_check(kind: str, message: str) -> None:
    refused(message, shaders.check, shaders.source(kind) if " " in kind else kind)
