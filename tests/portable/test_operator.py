"""The splat operator of torch.library: three kernels behind one name, through torch's compiler and exporter."""

import io
import math
import shutil
from typing import Any

import pytest
import torch
from torch import Tensor

from splat_py import SplatError, portable, rasterization
from splat_py.gpu.device import get_device
from splat_py.render import operator
from tests.portable.test_portable import NAMES
from tests.refusals import refused

WIDTH, HEIGHT, PIXELS = 8, 5, 40
VIEWMAT, INTRINSICS = torch.eye(4), torch.tensor([[8.0, 0, 4], [0, 8, 2.5], [0, 0, 1]])
CAMERA = (WIDTH, HEIGHT, VIEWMAT, INTRINSICS)
each_backend = pytest.mark.parametrize("backend", ["native", "portable", "portable_slang"])
OPERATORS = torch.ops.splat_py
# The constant spherical harmonic.
Y0 = 1 / math.sqrt(4 * math.pi)


def gaussians(count: int, coefficients: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(10 * count + coefficients)

    def random(*shape: int) -> Tensor:
        return torch.rand(count, *shape, generator=generator, dtype=dtype)

    positions = random(3) - 0.5 + torch.tensor([0.0, 0.0, 3.0], dtype=dtype)
    tensors = (positions, random(3) * 0.3 + 0.05, random(4), random(1), random(3), random(coefficients, 3) * 0.4 - 0.2)
    return tuple(tensor.requires_grad_() for tensor in tensors)


def detached(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor.detach() for tensor in tensors)


def splat(backend: Any, *tensors: Tensor) -> Tensor:
    return operator.splat(*tensors, *CAMERA, backend=backend)


def weights() -> Tensor:
    return torch.randn(PIXELS * 4, generator=torch.Generator().manual_seed(2))


def close(actual: Any, expected: Any) -> None:
    """Native gradients add up in any order."""
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


class Module(torch.nn.Module):
    def __init__(self, backend: Any) -> None:
        super().__init__()
        self.backend = backend

    def forward(self, *tensors: Tensor) -> Tensor:
        return splat(self.backend, *tensors)


# Results


@pytest.mark.parametrize(("count", "coefficients"), [(6, 0), (6, 1), (6, 4), (1, 0)])
def test_native_is_the_renderer(count: int, coefficients: int) -> None:
    tensors = gaussians(count, coefficients)
    positions, scales, rotations, opacities, colors, sh = tensors
    features: Tensor = colors
    if coefficients:
        # The harmonics of degrees 0 and 1 in the order of Kerbl et al. 2023, seen from the origin.
        x, y, z = (positions / positions.norm(dim=1, keepdim=True)).unbind(1)
        basis = torch.stack([torch.full_like(x, Y0), *(math.sqrt(3) * Y0 * part for part in (-y, z, -x))], 1)[:, :coefficients]
        features = (colors + (basis[..., None] * sh).sum(1)).clamp(min=0)
    images, alphas, _ = rasterization(
        positions, rotations, scales, opacities[:, 0], features, VIEWMAT[None], INTRINSICS[None], WIDTH, HEIGHT
    )
    expected = torch.cat([images, alphas], -1).flatten()
    image = splat("native", *tensors)
    assert image.any()
    torch.testing.assert_close(image, expected, rtol=1e-5, atol=1e-6)
    found = torch.autograd.grad(image, tensors, weights())
    wanted = torch.autograd.grad(expected, tensors, weights(), materialize_grads=True)
    for name, actual, right in zip(NAMES, found, wanted, strict=True):
        assert actual.shape == right.shape, name
        torch.testing.assert_close(actual, right, rtol=1e-4, atol=1e-5, msg=name)
    assert all(part.any() for part in found[3:5])


@each_backend
@pytest.mark.parametrize(("count", "coefficients"), [(0, 4), (0, 0), (6, 0), (6, 4)])
def test_the_backward_operators_order(backend: str, count: int, coefficients: int) -> None:
    tensors = gaussians(count, coefficients)
    image = splat(backend, *tensors)
    assert image.shape == (PIXELS * 4,) and bool(image.any()) == (count > 0)
    packed = OPERATORS.splat_backward(weights(), *detached(tensors), *CAMERA, backend)
    assert packed.shape == (portable.gradient_length(count, coefficients),)
    found = torch.autograd.grad(image, tensors, weights())
    assert [part.shape for part in found] == [tensor.shape for tensor in tensors]
    close(torch.cat([part.flatten() for part in found]), packed)
    if backend == "portable":
        v_image = weights().view(-1, 4)
        assert torch.equal(packed, portable.backward(v_image, tensors[4].detach(), tensors[3].detach(), coefficients))


# torch's compiler and exporter


@each_backend
@pytest.mark.parametrize(("count", "coefficients"), [(6, 4), (6, 0), (0, 4)])
def test_opcheck(backend: str, count: int, coefficients: int) -> None:
    tensors = gaussians(count, coefficients)
    torch.library.opcheck(OPERATORS.splat.default, (*tensors, *CAMERA, backend))
    torch.library.opcheck(OPERATORS.splat_backward.default, (weights(), *detached(tensors), *CAMERA, backend))


def test_gradients_are_not_differentiated_again() -> None:
    tensors = gaussians(3, 0)
    (v_opacities,) = torch.autograd.grad(splat("portable", *tensors).square().sum(), tensors[3], create_graph=True)
    refused("cannot be differentiated again", v_opacities.sum().backward)


@pytest.mark.parametrize(
    ("backend", "through"), [("native", "aot_eager"), ("portable", "aot_eager"), ("portable_slang", "eager")]
)
def test_compiled_into_one_graph(backend: str, through: str, dynamo: Any) -> None:
    def loss(*tensors: Tensor) -> Tensor:
        return splat(backend, *(tensor * 1.0 for tensor in tensors)).square().sum()

    compiled = torch.compile(loss, backend=through, fullgraph=True)
    for count, coefficients in ((6, 4), (7, 4), (0, 0)):
        tensors = gaussians(count, coefficients)
        expected = torch.autograd.grad(loss(*tensors), tensors)
        close(torch.autograd.grad(compiled(*tensors), tensors), expected)


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="inductor needs a C++ compiler")
def test_compiled_by_inductor(dynamo: Any) -> None:
    tensors = gaussians(6, 4)
    compiled = torch.compile(lambda *t: splat("native", *t), backend="inductor", fullgraph=True)
    image, expected = compiled(*tensors), splat("native", *tensors)
    torch.testing.assert_close(image, expected)
    close(torch.autograd.grad(image, tensors, weights()), torch.autograd.grad(expected, tensors, weights()))


@pytest.mark.parametrize("backend", ["native", "portable"])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_exported_stored_and_lowered(backend: str) -> None:
    """Export with any number of Gaussians, unknown to the tracer; the baseline also with any number of coefficients."""
    n, k = torch.export.Dim("n", min=0), torch.export.Dim("k", min=0)
    native = backend == "native"
    sizes = {"tensors": (*({0: n} for _ in range(5)), {0: n} if native else {0: n, 1: k})}
    exported = torch.export.export(Module(backend), detached(gaussians(6, 4)), dynamic_shapes=sizes)
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    lowered = exported.run_decompositions({**torch.export.default_decompositions(), **operator.decompositions()})
    assert called(exported.graph) == {"splat_py.splat.default"}
    # A render is never lowered to a flat colour.
    assert ("splat_py.splat.default" in called(lowered.graph)) == native
    assert native or all(name.startswith("aten.") for name in called(lowered.graph))
    modules = [program.module() for program in (exported, torch.export.load(file), lowered)]
    for count, coefficients in ((6, 4), (9, 4), (1, 4), (0, 4), *(() if native else ((7, 0), (3, 9), (0, 0)))):
        tensors = detached(gaussians(count, coefficients))
        for module in modules:
            torch.testing.assert_close(module(*tensors), splat(backend, *tensors))


def called(graph: torch.fx.Graph) -> set[str]:
    return {str(node.target) for node in graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize("backend", ["native", "portable_slang"])
@pytest.mark.filterwarnings("ignore:Your compiler for AOTAutograd")
def test_both_passes_lowered(backend: str, dynamo: Any) -> None:
    from torch._dynamo.backends.common import aot_autograd

    graphs: list[set[str]] = []

    def keep(module: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        graphs.append(called(module.graph))
        return module

    lowering = aot_autograd(fw_compiler=keep, decompositions=operator.decompositions())
    compiled = torch.compile(lambda *t: splat(backend, *t), backend=lowering, fullgraph=True, dynamic=True)
    tensors = gaussians(6, 4)
    found = torch.autograd.grad(compiled(*tensors), tensors, weights())
    close(found, torch.autograd.grad(splat(backend, *tensors), tensors, weights()))
    ours = [{name for name in names if name.startswith("splat_py")} for names in graphs]
    native = [{"splat_py.splat.default"}, {"splat_py.splat_backward.default"}]
    assert ours == (native if backend == "native" else [set(), set()])


# Refusals


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"colors": torch.rand(2, 3)}, r"^colors has shape \[2, 3\]; expected \[3, 3\]"),
        ({"width": 0}, "^width is 0"),
        ({"backend": "abacus"}, "^backend is 'abacus'; use native, portable or portable_slang"),
        ({"viewmat": None}, r"^viewmat is None; the native backend needs a \[4, 4\] tensor"),
        ({"intrinsics": None}, r"^intrinsics is None; the native backend needs a \[3, 3\] tensor"),
        ({"viewmat": torch.eye(3)}, r"^viewmat has shape \[3, 3\]; expected \[4, 4\]"),
        ({"viewmat": [[1.0]]}, "^viewmat is a list; give a torch tensor"),
        ({"intrinsics": INTRINSICS.clone().requires_grad_()}, "^intrinsics requires a gradient"),
        ({"sh": torch.rand(3, 5, 3)}, "^sh has 5 coefficients; the native backend takes 0, 1, 4, 9, 16 or 25"),
    ],
)
def test_bad_input_gets_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    arguments: dict[str, Any] = dict(zip(NAMES, gaussians(3, 4), strict=True))
    arguments |= {"width": WIDTH, "height": HEIGHT, "viewmat": VIEWMAT, "intrinsics": INTRINSICS}
    refused(sentence, operator.splat, **arguments | changes)


@pytest.mark.parametrize("backend", ["native", "portable_slang"])
def test_kernels_say_that_they_compute_in_float32(backend: Any) -> None:
    refused(r"^colors has dtype torch\.float64", splat, backend, *gaussians(3, 0, torch.float64))


def test_the_operators_check_for_themselves() -> None:
    """Kernels never read beyond a tensor's end, even if called directly."""
    tensors = detached(gaussians(3, 0))
    with pytest.raises(SplatError, match=r"^opacities has shape \[2, 1\]"):
        OPERATORS.splat(*tensors[:3], tensors[3][:2], *tensors[4:], *CAMERA, "portable_slang")
    for v_image in (weights()[:-4], weights().double()):
        refused(r"^v_image ", OPERATORS.splat_backward, v_image, *tensors, *CAMERA, "portable_slang")


def test_no_flat_colour_where_nothing_renders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_device(), "operators", frozenset())
    refused("does not support splat forward", splat, "native", *gaussians(3, 0))
