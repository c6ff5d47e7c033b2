"""`splat.testing`: derivatives of own Slang functions, as a user's unit tests check them."""

import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from splat_py import Camera, shaders, testing
from splat_py.gpu.kernels import UserType
from splat_py.scene.camera import Distortion
from splat_py.shaders import ShaderModule
from splat_py.testing import slang  # noqa: F401, a fixture
from tests.refusals import refused

SOURCE = """
import splat.prelude;
[Differentiable] public float smooth(float x, float2 y) { return exp(x) * dot(y, y); }
[Differentiable] public float logarithm(float x) { return log(x); }
[Differentiable] public float laplace(float x) { return exp(-abs(x)); }
[Differentiable] public half squared(half x) { return x * x; }
[Differentiable] public half halved(half x) { return x * detach(x); }
[Differentiable] public float3 lost(float t, float3 v) { return v * detach(t); }
[Differentiable] public float multiplied(float x, no_diff int k) { return x * float(k); }
[Differentiable] public double wide(double x) { return x * x; }
public float constant(float x) { return x; }
public void outer(out float x) { x = 1.0; }
public struct Pair : IDifferentiable { public float a; public float2 b; }
[Differentiable] public Pair scaled(Pair pair, float s) { return { pair.a * s, pair.b * detach(s) }; }
[Differentiable] public float2 seen(Camera camera, float3 p) { return projectPoint(camera, worldToCamera(camera, p)); }
[Differentiable]
[BackwardDerivative(forgetful_bwd)]
public float forgetful(float x) { return x * 3.0; }
void forgetful_bwd(inout DifferentialPair<float> x, float v) { x = diffPair(x.p, 3.0); }
"""
UNIT = (-1.0, 1.0)
CAMERA = Camera.look_at((0, 0, -4), (0, 0, 0), (0, -1, 0), 50, 64, 48)


@pytest.fixture(scope="module")
def mine() -> ShaderModule:
    return shaders.source(SOURCE)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("smooth", {"x": UNIT, "y": UNIT}),
        ("smooth", {"x": 0.5, "y": [1, 2]}),
        # Differences stay where the function is defined, and shorten towards its end.
        ("logarithm", {"x": (0.0, 1.0)}),
        ("laplace", {"x": UNIT}),
        ("squared", {"x": UNIT}),
        ("multiplied", {"x": UNIT, "k": (1, 4)}),
        ("seen", {"camera": CAMERA, "p": UNIT}),
    ],
)
def test_right_derivatives_pass(mine: ShaderModule, name: str, arguments: dict[str, Any]) -> None:
    testing.check_function(getattr(mine, name), **arguments)


def test_built_in_functions_pass() -> None:
    testing.check_function(shaders.spherical_harmonics.shColor[4], d=UNIT, sh=UNIT)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "lost",
            {"t": UNIT, "v": (1.0, 1.0)},
            r"derivative of lost\[0\] by t is 0 at t = .*, v = \(1, 1, 1\), where .* have 1(\.\d*)?; ",
        ),
        ("halved", {"x": (0.5, 1.0)}, "derivative of halved by x is .*, where finite differences have"),
        ("forgetful", {"x": UNIT}, "derivative of forgetful by x is .*, where finite differences have 3"),
        ("scaled", {"pair": {"a": UNIT, "b": UNIT}, "s": UNIT}, r"derivative of scaled.b\[0\] by s is 0 at .*pair.b = "),
        ("smooth", {"x": UNIT}, "smooth takes x, y; x is given"),
        ("smooth", {"x": UNIT, "z": UNIT}, "smooth takes x, y; x, z is given"),
        ("smooth", {"x": UNIT, "y": [1, 2, 3]}, r"y is \[1, 2, 3\]; give a vector<float,2>, of shape \[2\], or a range"),
        ("smooth", {"x": (2.0, 1.0), "y": UNIT}, r"x is \(2.0, 1.0\); give its least and its largest value"),
        ("smooth", {"x": (), "y": UNIT}, r"x is \(\); give its least and its largest value"),
        ("scaled", {"pair": {"a": UNIT}, "s": UNIT}, "pair is a dict of a; give a dict of a, b"),
        ("scaled", {"pair": CAMERA, "s": UNIT}, "pair is a dict of rotation, .*; give a dict of a, b"),
        ("logarithm", {"x": UNIT}, "logarithm is not finite at x = -"),
        ("wide", {"x": UNIT}, "takes or returns double, which SlangPy does not differentiate; use float"),
        ("constant", {"x": UNIT}, r"has no gradients: it is not marked \[Differentiable\]"),
        ("outer", {"x": UNIT}, "has an out parameter; return a struct instead"),
    ],
)
def test_what_it_finds(mine: ShaderModule, name: str, arguments: dict[str, Any], message: str) -> None:
    refused(message, testing.check_function, getattr(mine, name), **arguments)


def test_the_fixture(slang: Callable[[str], ShaderModule], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    assert slang(SOURCE).smooth(0.0, [1, 2]) == 5
    assert slang(SOURCE) is slang(SOURCE)
    # The rest is there without pytest.
    monkeypatch.setitem(sys.modules, "pytest", None)
    names = runpy.run_path(testing.__file__)
    assert "check_function" in names and "slang" not in names


def test_doubles_and_halves_are_called(mine: ShaderModule) -> None:
    assert mine.wide(1.0 + 1e-12) - 1 > 1e-12
    np.testing.assert_array_equal(mine.squared([2.0, 3]), np.float16([4, 9]))


def test_a_camera_with_a_lens_and_one_with_numbers() -> None:
    lens = Camera(CAMERA.viewmat, CAMERA.K, 64, 48, distortion=Distortion((0.1, -0.02, 0.001, 0.002, 0.003)))
    point = np.array([0.3, 0.2, 0.1])
    projected = shaders.camera_model.projectThrough["OpenCVPinhole"]
    inside = lens.viewmat[:3, :3] @ point + lens.viewmat[:3, 3]
    x, y = inside[:2] / inside[2]
    k1, k2, p1, p2, k3 = lens.distortion.coefficients  # type: ignore[union-attr]
    squared = x * x + y * y
    radial = 1 + k1 * squared + k2 * squared**2 + k3 * squared**3
    u = x * radial + 2 * p1 * x * y + p2 * (squared + 2 * x * x), y * radial + p1 * (squared + 2 * y * y) + 2 * p2 * x * y
    expected = (lens.K @ [*u, 1])[:2]
    np.testing.assert_allclose(projected(testing.camera_struct(lens), inside), expected, rtol=1e-5)
    own = replace(CAMERA, model=UserType("Mine", ""), params=tuple(range(1, 12)))
    numbers = testing.camera_struct(own)
    assert [*numbers["radial"], *numbers["radialMore"], *numbers["tangential"], *numbers["thinPrism"]] == [*own.params, 0]
