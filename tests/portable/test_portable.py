"""The portable baseline: in torch, in Slang, and against autograd of its plain expression."""

import shutil
from functools import partial
from typing import Any

import numpy as np
import pytest
import slangpy as spy
import torch
from torch import Tensor

from splat_py import Device, SplatError, portable
from splat_py.gpu.arrays import Bridge, Memory
from splat_py.gpu.device import Adapter, native_operators
from splat_py.gpu.kernels import KernelCache
from splat_py.gpu.sources import shader_folder
from splat_py.render import operator
from tests.refusals import refused

NAMES = ("positions", "scales", "rotations", "opacities", "colors", "sh")
WIDTH, HEIGHT = 5, 3
# Implementation, dtype, and tolerance between two of them.
VARIANTS = [
    pytest.param(portable.splat, torch.float32, 1e-5, id="torch-float32"),
    pytest.param(portable.splat, torch.float64, 1e-13, id="torch-float64"),
    pytest.param(portable.splat_slang, torch.float32, 1e-5, id="slang-float32"),
    pytest.param(partial(operator.splat, backend="portable"), torch.float64, 1e-13, id="operator-torch"),
    pytest.param(partial(operator.splat, backend="portable_slang"), torch.float32, 1e-5, id="operator-slang"),
]


def inputs(count: int, coefficients: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 * count + coefficients)
    shapes = ((3,), (3,), (4,), (1,), (3,), (coefficients, 3))
    return {
        name: torch.randn(count, *shape, generator=generator, dtype=dtype).requires_grad_()
        for name, shape in zip(NAMES, shapes, strict=True)
    }


def expression(tensors: dict[str, Tensor], width: int, height: int) -> Tensor:
    """The contract's formula, for autograd."""
    opacities, colors = tensors["opacities"], tensors["colors"]
    rgba = torch.cat([(colors * opacities).sum(0), opacities.sum(0)]) / max(len(colors), 1)
    return rgba.repeat(width * height)


def gradients(image: Tensor, tensors: dict[str, Tensor], weights: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(image, list(tensors.values()), weights, allow_unused=True, materialize_grads=True))


def weights_like(image: Tensor) -> Tensor:
    return torch.randn(image.shape, generator=torch.Generator().manual_seed(1), dtype=image.dtype)


@pytest.mark.parametrize(("splat", "dtype", "tolerance"), VARIANTS)
@pytest.mark.parametrize(
    ("count", "coefficients", "width", "height"),
    [
        *((count, 4, WIDTH, HEIGHT) for count in (0, 1, 2, 70, 3000)),
        *((3, coefficients, 2, 2) for coefficients in range(17)),
        (2000, 1, 61, 43),
    ],
)
def test_forward_and_backward_are_those_of_the_expression(
    splat: Any, dtype: torch.dtype, tolerance: float, count: int, coefficients: int, width: int, height: int
) -> None:
    tensors = inputs(count, coefficients, dtype)
    image, expected = splat(**tensors, width=width, height=height), expression(tensors, width, height)
    assert image.shape == (width * height * 4,) and image.dtype == dtype and bool(image.any()) == (count > 0)
    torch.testing.assert_close(image, expected, rtol=tolerance, atol=tolerance)
    weights = weights_like(image)
    found, right = gradients(image, tensors, weights), gradients(expected, tensors, weights)
    for name, actual, wanted in zip(NAMES, found, right, strict=True):
        assert actual.all() if name in ("opacities", "colors") else not actual.any()
        # Each Gaussian's gradient is about 1/N.
        torch.testing.assert_close(actual * count, wanted * count, rtol=10 * tolerance, atol=10 * tolerance, msg=name)


@pytest.mark.parametrize("splat", [portable.splat, partial(operator.splat, backend="portable")])
def test_gradcheck(splat: Any) -> None:
    tensors = tuple(inputs(4, 2, torch.float64).values())
    assert torch.autograd.gradcheck(lambda *t: splat(*t, WIDTH, HEIGHT), tensors)


def test_slang_runs_where_the_tile_renderer_cannot() -> None:
    """SlangPy's own CPU target has neither waves nor atomic floats."""
    if not any(map(shutil.which, ("g++", "clang++"))):
        pytest.skip("SlangPy's CPU target needs a C++ compiler")
    paths = {"include_paths": [spy.SHADER_PATH, str(shader_folder())]}
    handle = spy.Device(type=spy.DeviceType.cpu, compiler_options=spy.SlangCompilerOptions(paths))
    assert native_operators("cpu", handle.features) == set()
    device = Device(Adapter("cpu", "SlangPy's CPU target", ()), handle, Memory(handle, Bridge.COPY), KernelCache(handle))
    tensors = inputs(70, 4)
    image = portable.splat_slang(**tensors, width=WIDTH, height=HEIGHT, device=device)
    expected = expression(tensors, WIDTH, HEIGHT)
    torch.testing.assert_close(image, expected, rtol=1e-5, atol=1e-6)
    weights = weights_like(image)
    for actual, wanted in zip(gradients(image, tensors, weights), gradients(expected, tensors, weights), strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-6)


def test_a_case_by_hand() -> None:
    """Two Gaussians, one pixel: every number of the contract."""
    colors, opacities = torch.tensor([[1.0, 2, 3], [4, 5, 6]]), torch.tensor([[0.5], [0.25]])
    image = portable.forward(colors, opacities, 1, 1)
    assert image.tolist() == [0.75, 1.125, 1.5, 0.375]
    packed = portable.backward(torch.tensor([[2.0, 4, 8, 16]]), colors, opacities, 1)
    v_opacities = [1 + 4 + 12 + 8, 4 + 10 + 24 + 8]
    v_colors = [0.5, 1, 2, 0.25, 0.5, 1]
    assert packed.tolist() == [0.0] * 20 + v_opacities + v_colors + [0.0] * 6
    assert len(portable.backward(torch.zeros(1, 4), torch.zeros(0, 3), torch.zeros(0, 1), 4)) == 0


def test_packing_order() -> None:
    lengths = [portable.gradient_length(*of) for of in ((0, 16), (1, 0), (7, 1), (10, 16), (2, 1))]
    assert lengths == [0, 14, 119, 620, 2 * 17]
    packed = torch.arange(2 * 17.0)
    parts = portable.unpack_gradient(packed, 1)
    assert [tuple(part.shape) for part in parts] == [(2, 3), (2, 3), (2, 4), (2, 1), (2, 3), (2, 1, 3)]
    assert torch.equal(torch.cat([part.reshape(-1) for part in parts]), packed)


def test_a_vector_of_another_length_is_refused() -> None:
    refused(r"packed has shape \[35\]", portable.unpack_gradient, torch.zeros(35), 1)


@pytest.mark.parametrize("splat", [portable.splat, portable.splat_slang])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("positions", torch.rand(3, 2)),
        ("positions", torch.rand(3)),
        ("scales", torch.rand(4, 3)),
        ("rotations", torch.rand(3, 3)),
        ("opacities", torch.rand(3)),
        ("opacities", torch.rand(3, 3)),
        ("colors", torch.rand(3, 4)),
        ("colors", torch.rand(2, 3)),
        ("colors", torch.rand(3, 3, dtype=torch.float64)),
        ("colors", np.zeros((3, 3))),
        ("sh", torch.rand(3, 3)),
        ("sh", torch.rand(3, 4, 4)),
        ("width", 0),
        ("height", 2.5),
    ],
)
def test_bad_input_gets_a_sentence_that_names_it(splat: Any, name: str, value: Any) -> None:
    arguments: dict[str, Any] = {**inputs(3, 4), "width": WIDTH, "height": HEIGHT}
    with pytest.raises(SplatError, match=f"^{name} ") as caught:
        splat(**arguments | {name: value})
    assert "\n" not in str(caught.value)


def test_integers_are_refused_and_shaders_say_that_they_compute_in_float32() -> None:
    tensors = inputs(3, 0, torch.float64)
    refused(r"portable\.splat", portable.splat_slang, **tensors, width=1, height=1)
    refused("floating-point", portable.splat, **{name: tensor.long() for name, tensor in tensors.items()}, width=1, height=1)
