"""Coefficients and features stored as halves: renders equal to the bit those of the same numbers as floats, and gradients."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import splat_py as splat
from splat_py.base.errors import SplatError
from splat_py.gsplat import spherical_harmonics
from splat_py.render.colors import initial_network
from tests.render.comparison import camera_of, close, leaves_of, scene_of

WIDTH, HEIGHT = 31, 23


def inputs_of(count: int, degree: int, cameras: int = 2, *, more: int = 0) -> dict[str, Any]:
    """Leaves with coefficients as halves: (degree + 1)² used ones and `more` unused ones."""
    rng = np.random.default_rng(10 * count + degree)
    views = [camera_of(rng, WIDTH, HEIGHT) for _ in range(cameras)]
    scene = scene_of(rng, count, sh_degree=degree)
    coefficients = np.pad(scene.colors, ((0, 0), (0, more), (0, 0)))
    return leaves_of(scene, views) | {"colors": torch.tensor(coefficients, dtype=torch.float16)}


def render(inputs: dict[str, Any], colors: Tensor, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """An image and the gradients of a smooth function of it; `colors` replaces the inputs' colours."""
    arguments = inputs | {"colors": colors.detach().clone().requires_grad_()}
    function = options.pop("function", splat.rasterization)
    images, *_ = function(**arguments, width=WIDTH, height=HEIGHT, **options)
    weights = torch.linspace(-1, 1, images.numel()).reshape(images.shape)
    leaves = {name: tensor for name, tensor in arguments.items() if tensor.requires_grad}
    found = torch.autograd.grad((images * weights).sum(), list(leaves.values()))
    return images.detach(), dict(zip(leaves, found, strict=True))


def check(inputs: dict[str, Any], **options: Any) -> None:
    """Compare with the same numbers as floats, which tests of renders compare with float64."""
    colors = inputs["colors"]
    image, gradients = render(inputs, colors, **options)
    expected, exact = render(inputs, colors.float(), **options)
    torch.testing.assert_close(image, expected, rtol=0, atol=0)
    found = gradients.pop("colors")
    assert found.dtype == torch.float16 and found.shape == colors.shape and exact["colors"].any()
    # Half the distance of neighbours, also of subnormal numbers.
    torch.testing.assert_close(found.float(), exact.pop("colors"), rtol=2**-11 + 1e-4, atol=2**-25 + 1e-5)
    for name, gradient in gradients.items():
        close(gradient, exact[name])


@pytest.mark.parametrize("count", [1, 2, 37])
@pytest.mark.parametrize("degree", range(5))
def test_harmonics(degree: int, count: int) -> None:
    """Rows with an odd number of halves begin anywhere; with an odd number of rows, the last word is half full."""
    check(inputs_of(count, degree), sh_degree=degree)


@pytest.mark.parametrize(
    ("degree", "more", "options"),
    [
        (1, 3, {}),
        (2, 1, {"packed": False}),
        (0, 8, {"function": splat.rasterization_2dgs, "packed": True}),
    ],
)
def test_options(degree: int, more: int, options: dict[str, Any]) -> None:
    """Unused coefficients get no gradient."""
    inputs = inputs_of(37, degree, more=more)
    check(inputs, sh_degree=degree, **options)
    _, gradients = render(inputs, inputs["colors"], sh_degree=degree, **options)
    assert more == 0 or not gradients["colors"][:, -more:].any()


def test_gradients_against_float64() -> None:
    """Compare with differences of the sum of basis functions, which is linear."""
    rng = np.random.default_rng(3)
    dirs = torch.tensor(rng.normal(size=(29, 3)), dtype=torch.float32)
    coeffs = torch.tensor(rng.normal(size=(29, 9, 3)), dtype=torch.float16, requires_grad=True)
    v = torch.tensor(rng.normal(size=(29, 3)), dtype=torch.float32)
    colors = spherical_harmonics(2, dirs, coeffs)
    wheel = pytest.importorskip("gsplat.cuda._torch_impl", reason="gsplat 1.5.3 is not installed (the dev extra has it)")
    bases = wheel._eval_sh_bases_fast(9, torch.nn.functional.normalize(dirs.double(), dim=-1))
    expected = (bases[:, :, None] * coeffs.detach().double()).sum(1)
    torch.testing.assert_close(colors.detach().double(), expected, rtol=1e-5, atol=1e-6)
    (gradient,) = torch.autograd.grad(colors, coeffs, v)
    assert gradient.dtype == torch.float16
    exact = bases[:, :, None] * v.double()[:, None]
    torch.testing.assert_close(gradient.double(), exact, rtol=2**-11 + 1e-5, atol=2**-25)


def test_each_camera_and_part_of_a_tensor() -> None:
    """Rows that begin at the second half of a word of a larger tensor."""
    inputs = inputs_of(13, 0)
    whole = torch.randn(2, 14, 1, 3, generator=torch.Generator().manual_seed(0)).half()
    check(inputs | {"colors": whole[:, 1:]}, sh_degree=0, packed=False)
    check(inputs | {"colors": whole[0, 1:]}, sh_degree=0)


@pytest.mark.parametrize(("name", "features"), [("SphericalGaussians", 9), ("ColorNetwork", 5)])
def test_features(name: str, features: int) -> None:
    inputs = inputs_of(21, 0)
    inputs["colors"] = torch.randn(21, features, generator=torch.Generator().manual_seed(1)).half()
    if name == "ColorNetwork":
        inputs["weights"] = torch.tensor(initial_network(features, 3), requires_grad=True)
    check(inputs, color=name)


def test_colors_as_they_are() -> None:
    """They are blended as floats."""
    inputs = inputs_of(21, 0)
    check(inputs | {"colors": inputs["colors"][:, 0].abs()})


def test_portable() -> None:
    inputs = inputs_of(5, 1)
    image, _, _ = splat.rasterization(**inputs, width=WIDTH, height=HEIGHT, sh_degree=1, backend="portable")
    floats = inputs | {"colors": inputs["colors"].float()}
    expected, _, _ = splat.rasterization(**floats, width=WIDTH, height=HEIGHT, sh_degree=1, backend="portable")
    torch.testing.assert_close(image, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "dtype"), [("means", torch.float16), ("opacities", torch.float16), ("colors", torch.bfloat16)]
)
def test_what_is_refused(name: str, dtype: torch.dtype) -> None:
    inputs = inputs_of(5, 1)
    inputs[name] = inputs[name].detach().to(dtype)
    with pytest.raises(SplatError, match=rf"{name} has dtype {dtype}; convert it to torch.float32"):
        splat.rasterization(**inputs, width=WIDTH, height=HEIGHT, sh_degree=1)


def test_half_the_memory() -> None:
    """Half the memory in the graph and in the gradient."""
    memory = splat.get_device().memory
    inputs = {name: tensor.detach() for name, tensor in inputs_of(2000, 3).items()}

    def held(colors: Tensor) -> tuple[int, int]:
        leaf = colors.clone().requires_grad_()
        before = memory.live_bytes
        images, _, _ = splat.rasterization(**inputs | {"colors": leaf}, width=WIDTH, height=HEIGHT, sh_degree=3)
        by_graph = memory.live_bytes - before
        images.sum().backward()
        assert leaf.grad is not None
        return by_graph, leaf.grad.untyped_storage().nbytes()

    halves, floats = held(inputs["colors"]), held(inputs["colors"].float())
    # Buffers are rounded up by an eighth at most.
    assert floats[0] - halves[0] == pytest.approx(2000 * 48 * 2, rel=1 / 8)
    assert floats[1] == pytest.approx(2 * halves[1], rel=1 / 8)
