"""Features of torch that users rely on: graphs, hooks, checkpoints, the compiler, transformations and types.

Forked processes: tests/gpu/test_memory.py.
"""

import gc
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import splat_py as splat
from splat_py import SplatError, gsplat, rasterization
from splat_py.gpu.arrays import Bridge, Memory
from splat_py.gpu.device import Adapter, Device, get_device
from splat_py.gpu.kernels import KernelCache
from splat_py.render.options import Options
from splat_py.render.project import project
from splat_py.render.rasterize import rasterize_to_pixels
from splat_py.render.shade import shade
from splat_py.render.tiles import bin_tiles
from tests.refusals import refused
from tests.render.comparison import close
from tests.render.test_meta import HEIGHT, WIDTH, C, N, render

AGAIN = "cannot be differentiated again"


def blobs() -> Tensor:
    return torch.randn(9, 20, generator=torch.Generator().manual_seed(90)).requires_grad_()


def picture(seed: int) -> Tensor:
    return torch.rand(13, 12, 3, generator=torch.Generator().manual_seed(seed))


def field() -> Callable[[Tensor], Tensor]:
    sh, origins = torch.full((4, 4, 4, 1, 3), 0.5), torch.tensor([[0.5, 0.4, -1.0], [0.2, 0.7, -1.0]])
    directions, box = torch.tensor([[0.0, 0, 1]] * 2), [[0, 0, 0], [1, 1, 1]]
    return lambda density: splat.volume.render(density, sh, origins, directions, box)[0]


def in_stages() -> Callable[[Tensor], Tensor]:
    """`rasterization`, stage by stage."""
    inputs = {name: tensor.detach() for name, tensor in render()[3].items()}
    sh, options = torch.full((N, 4, 3), 0.3), Options(8)
    cameras = inputs["viewmats"], inputs["Ks"]

    def stages(means: Tensor) -> Tensor:
        splats = project(means, inputs["quats"], inputs["scales"], inputs["opacities"], *cameras, WIDTH, HEIGHT, options)
        colors = shade(means, sh, inputs["viewmats"], splats.radii, 1, options)
        tiles = bin_tiles(splats, WIDTH, HEIGHT, options)
        return rasterize_to_pixels(splats, colors, tiles, WIDTH, HEIGHT, None, options)[0]

    return stages


def in_gsplats_stages() -> Callable[[Tensor], Tensor]:
    inputs = {name: tensor.detach() for name, tensor in render()[3].items()}
    sh, columns, rows = torch.full((N, 4, 3), 0.3), -(-WIDTH // 16), -(-HEIGHT // 16)
    cameras = inputs["viewmats"], inputs["Ks"], WIDTH, HEIGHT
    opacities = inputs["opacities"].expand(C, N).contiguous()

    def stages(means: Tensor) -> Tensor:
        radii, means2d, depths, conics, _ = gsplat.fully_fused_projection(
            means, None, inputs["quats"], inputs["scales"], *cameras
        )
        colors = (gsplat.spherical_harmonics(1, means, sh) + 0.5).expand(C, N, 3).contiguous()
        _, isect_ids, flatten_ids = gsplat.isect_tiles(means2d, radii, depths, 16, columns, rows)
        offsets = gsplat.isect_offset_encode(isect_ids, C, columns, rows)
        splats = means2d, conics, colors, opacities
        return gsplat.rasterize_to_pixels(*splats, WIDTH, HEIGHT, 16, offsets, flatten_ids)[0]

    return stages


def loss_to(other: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda image: loss(image, other)


def whole(packed: bool) -> Callable[[Tensor], Tensor]:
    inputs = {name: tensor.detach() for name, tensor in render()[3].items()}
    return lambda means: rasterization(**{**inputs, "means": means}, width=WIDTH, height=HEIGHT, packed=packed)[0]


# A differentiable function of one tensor, and the tensor.
Case = tuple[Callable[[Tensor], Tensor], Tensor]
FUNCTIONS: dict[str, Callable[[], Case]] = {
    "rasterization, packed": lambda: (whole(True), render()[3]["means"]),
    "rasterization, dense": lambda: (whole(False), render()[3]["means"]),
    "its stages": lambda: (in_stages(), render()[3]["means"]),
    "gsplat's stages": lambda: (in_gsplats_stages(), render()[3]["means"]),
    "photometric loss": lambda: (loss_to(picture(91), splat.photometric_loss), picture(92).requires_grad_()),
    "SSIM": lambda: (loss_to(picture(91), splat.ssim), picture(92).requires_grad_()),
    "image.render": lambda: (lambda x: splat.image.render(x, 17, 12), blobs()),
    "volume.render": lambda: (field(), torch.full((4, 4, 4), 1.5, requires_grad=True)),
}


@pytest.fixture(params=FUNCTIONS)
def case(request: pytest.FixtureRequest) -> Case:
    return FUNCTIONS[request.param]()


# Derivatives of derivatives


@pytest.mark.parametrize("power", [1, 2], ids=["linear", "quadratic"])
def test_second_derivatives_raise(case: Case, power: int) -> None:
    """Second derivatives raise for a loss linear in the image and others: as an own loss, in a sum and as a penalty."""
    function, x = case
    (gradient,) = torch.autograd.grad(function(x).pow(power).sum(), x, create_graph=True)
    assert gradient.requires_grad
    refused(AGAIN, torch.autograd.grad, gradient.square().sum(), x, allow_unused=True, retain_graph=True)
    with pytest.raises(SplatError, match=AGAIN):
        (function(x).sum() + gradient.norm()).backward()


def test_hessians_raise(case: Case) -> None:
    """An error, not zeros."""
    function, x = case
    refused(AGAIN, torch.autograd.functional.hessian, lambda y: function(y).sum(), x.detach())


@pytest.mark.parametrize("sparse_grad", [False, True])
def test_gradients_of_every_input_raise(sparse_grad: bool) -> None:
    images, alphas, _, inputs = render(packed=True, sparse_grad=sparse_grad)
    names = list(inputs)
    gradients = torch.autograd.grad(images.square().sum() + alphas.sum(), list(inputs.values()), create_graph=True)
    for name, gradient in zip(names, gradients, strict=True):
        with pytest.raises(SplatError, match=AGAIN):
            torch.autograd.grad(gradient.to_dense().sum(), list(inputs.values()), allow_unused=True, retain_graph=True)
        assert gradient.requires_grad, name


def test_a_graph_of_gradients_that_nobody_differentiates(case: Case) -> None:
    function, x = case
    (expected,) = torch.autograd.grad(function(x).square().sum(), x)
    (gradient,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
    close(gradient.detach(), expected)
    # A detached penalty is a number.
    (function(x).square().sum() + gradient.detach().norm()).backward()
    assert x.grad is not None
    close(x.grad, expected)


def test_what_does_not_depend_on_a_gradient_can_be_differentiated() -> None:
    images, _, _, inputs = render()
    (gradient,) = torch.autograd.grad(images.square().sum(), inputs["means"], create_graph=True)
    scale = torch.tensor(2.0, requires_grad=True)
    (v_scale,) = torch.autograd.grad((gradient * scale).sum(), scale)
    close(v_scale, gradient.detach().sum())


def test_batches_of_gradients_raise(case: Case) -> None:
    function, x = case
    output = function(x)
    refused("is_grads_batched", torch.autograd.grad, output, x, torch.ones(2, *output.shape), is_grads_batched=True)


# Graphs


def test_a_graph_can_be_kept_and_is_freed(case: Case) -> None:
    function, x = case
    loss = function(x).square().sum()
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)
    first = first.clone()
    (second,) = torch.autograd.grad(loss, x, retain_graph=True)
    (third,) = torch.autograd.grad(loss, x)
    close(second, first)
    close(third, first)
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        loss.backward()


def test_state_is_freed_by_the_backward_pass(case: Case) -> None:
    """It is freed at once; then the output holds no more memory than without a graph."""
    memory = get_device().memory
    function, x = case
    held = []
    for gradient in (True, False, True):
        gc.collect()
        before = memory.live_bytes
        with torch.set_grad_enabled(gradient):
            output = function(x)
        if gradient:
            in_graph = memory.live_bytes
            torch.autograd.grad(output.sum(), x)
            assert memory.live_bytes < in_graph
        held.append(memory.live_bytes - before)
        del output
        assert memory.live_bytes == before
    assert held[2] <= held[1]


@pytest.mark.parametrize("packed", [False, True])
def test_meta_holds_no_graph(packed: bool) -> None:
    """After the backward pass, images and meta hold as much memory as without a graph."""
    memory = get_device().memory

    def held(*, backward: bool) -> int:
        gc.collect()
        before = memory.live_bytes
        with torch.set_grad_enabled(backward):
            images, alphas, meta, inputs = render(packed=packed)
        in_graph = memory.live_bytes
        if backward:
            images.square().sum().backward()
            for tensor in inputs.values():
                tensor.grad = None
            assert memory.live_bytes < in_graph, "freed without garbage collection"
        after = memory.live_bytes - before
        del images, alphas, meta, inputs
        return after

    held(backward=True)
    without = held(backward=False)
    assert without > 0 and held(backward=True) <= without
    gc.collect()


def test_a_graph_that_is_dropped_is_freed() -> None:
    memory = get_device().memory
    gc.collect()
    before = memory.live_bytes
    images, alphas, meta, _ = render()
    del images, alphas, meta
    assert memory.live_bytes == before


# Hooks and checkpoints


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints(case: Case, use_reentrant: bool) -> None:
    """A render that runs again in the backward pass has the same gradients."""
    function, x = case
    (expected,) = torch.autograd.grad(function(x).square().sum(), x)
    checkpoint(function, x, use_reentrant=use_reentrant).square().sum().backward()
    assert x.grad is not None
    close(x.grad, expected)


@pytest.mark.parametrize("packed", [False, True])
def test_checkpoints_of_lists_that_grow(packed: bool) -> None:
    """The second forward pass saves tensors of the same shapes as the first, though lists were expected to be shorter."""

    def image(scales: Tensor, factor: float) -> Tensor:
        return render(packed=packed, scales=scales * factor)[0]

    scales = torch.full((N, 3), 0.02, requires_grad=True)
    image(scales, 0.1)
    checkpointed = checkpoint(image, scales, 10.0, use_reentrant=False)
    (found,) = torch.autograd.grad(checkpointed.square().sum(), scales)
    (expected,) = torch.autograd.grad(image(scales, 10.0).square().sum(), scales)
    close(found, expected)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_save_memory(use_reentrant: bool) -> None:
    """Before the backward pass only the image is held."""
    memory = get_device().memory
    function, x = FUNCTIONS["rasterization, dense"]()
    gc.collect()
    before = memory.live_bytes
    image = function(x)
    with_graph = memory.live_bytes - before
    del image
    image = checkpoint(function, x, use_reentrant=use_reentrant)
    held = memory.live_bytes - before
    assert held <= image.nbytes * 1.25 + 1024 < with_graph
    image.sum().backward()


HOOKS: dict[str, Callable[[], Any]] = {
    "save_on_cpu": torch.autograd.graph.save_on_cpu,
    "through NumPy": lambda: torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor.detach().numpy().copy(), lambda array: torch.from_numpy(array)
    ),
}


@pytest.mark.parametrize("hooks", HOOKS)
def test_hooks_of_saved_tensors(case: Case, hooks: str) -> None:
    function, x = case
    (expected,) = torch.autograd.grad(function(x).square().sum(), x)
    with HOOKS[hooks]():
        loss = function(x).square().sum()
    close(torch.autograd.grad(loss, x, retain_graph=True)[0], expected)
    close(torch.autograd.grad(loss, x)[0], expected)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


# The compiler


def test_compiled(case: Case, request: pytest.FixtureRequest, dynamo: Any) -> None:
    """torch compiles the code before and after the render, and calls the render itself unchanged."""
    function, x = case

    def loss(y: Tensor) -> Tensor:
        return (function(y * 1.5) * 2).square().sum()

    expected = loss(x)
    (v_x,) = torch.autograd.grad(expected, x)
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(loss, backend=backend)
    for _ in range(3):
        actual = compiled(x)
        close(actual, expected)
        close(torch.autograd.grad(actual, x)[0], v_x)
    # The first and last graph; between stages there is nothing to compile.
    operations = [[n.name for n in graph.graph.nodes if n.op in ("call_function", "call_method")] for graph in graphs]
    assert [len(names) for names in (operations[0], operations[-1])] == [1, 3], operations
    assert len(operations) == 2 or "gsplat's stages" in request.node.name


def test_compiled_with_meta(dynamo: Any) -> None:
    """The dictionary also works in compiled code after the render."""
    inputs = {name: tensor.detach() for name, tensor in render()[3].items()}

    def visible(means: Tensor) -> tuple[Tensor, Tensor]:
        _, _, meta = rasterization(**{**inputs, "means": means}, width=WIDTH, height=HEIGHT)
        return meta["gaussian_ids"] + 1, meta["final_T"].mean()

    compiled = torch.compile(visible, backend="eager")
    for actual, expected in zip(compiled(inputs["means"]), visible(inputs["means"]), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_a_compiled_forward_derivative(dynamo: Any) -> None:
    """torch leaves all of it uncompiled, kernels' arguments too."""
    function, x = FUNCTIONS["rasterization, packed"]()

    def pushed(y: Tensor) -> Tensor:
        return torch.func.jvp(function, (y,), (torch.ones_like(y),))[1]

    torch.testing.assert_close(torch.compile(pushed, backend="eager")(x.detach()), pushed(x.detach()), rtol=0, atol=0)


def test_a_full_graph_is_refused(dynamo: Any) -> None:
    function, x = FUNCTIONS["rasterization, packed"]()
    with pytest.raises(dynamo.exc.Unsupported, match="rasterization runs kernels that torch cannot trace; leave fullgraph out"):
        torch.compile(function, backend="eager", fullgraph=True)(x)


def test_rendering_loads_no_compiler() -> None:
    """The compiler takes longer to import than the first render takes."""
    script = """
import sys, torch, splat_py
i, K = torch.eye(4)[None], torch.tensor([[[9., 0, 4], [0, 9, 4], [0, 0, 1]]])
means, ones = torch.tensor([[0., 0, 2]], requires_grad=True), torch.ones
splat_py.rasterization(means, ones(1, 4), ones(1, 3), ones(1), ones(1, 3), i, K, 8, 8)[0].sum().backward()
assert means.grad.any()
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


# Transformations, types, modes, threads, devices


@pytest.mark.parametrize("name", ["rasterization, packed", "image.render", "volume.render"])
def test_a_device_whose_results_are_copied(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch shares no memory with most GPUs: images, gradients and tangents are those of a device that shares it."""

    def results() -> tuple[Tensor, ...]:
        function, x = FUNCTIONS[name]()
        image = function(x)
        pushed, tangent = torch.func.jvp(function, (x.detach(),), (torch.ones_like(x),))
        return image, *torch.autograd.grad(image.square().sum(), x), pushed, tangent

    expected, handle = results(), get_device().handle
    adapter, memory = Adapter("vulkan", "a device that copies", ()), Memory(handle, Bridge.COPY)
    copying = Device(adapter, handle, memory, KernelCache(handle), handle.features)
    monkeypatch.setattr("splat_py.gpu.device._open", lambda _: copying)
    for actual, wanted in zip(results(), expected, strict=True):
        close(actual, wanted)

TRANSFORMATIONS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "grad": lambda f, x: torch.func.grad(lambda y: f(y).sum())(x),
    "vmap": lambda f, x: torch.func.vmap(f)(x[None].repeat(2, *[1] * x.dim())),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "linearize": lambda f, x: torch.func.linearize(f, x),
}


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
def test_transformations_are_refused(case: Case, transformation: str, request: pytest.FixtureRequest) -> None:
    """Renders have forward derivatives."""
    function, x = case
    if transformation == "jvp" and any(name in request.node.name for name in ("rasterization", "its stages", "render")):
        assert TRANSFORMATIONS[transformation](function, x.detach())[1].any()
        return
    with pytest.raises(SplatError, match=r"cannot be transformed by torch.func") as error:
        TRANSFORMATIONS[transformation](function, x.detach())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_types_are_refused(case: Case, dtype: torch.dtype) -> None:
    function, x = case
    refused(f"{str(dtype).replace('torch.', '')}.*float32", function, x.detach().to(dtype))


def test_autocast_changes_nothing(case: Case) -> None:
    function, x = case
    (expected,) = torch.autograd.grad(function(x).sum(), x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = function(x)
        assert output.dtype == torch.float32
        close(torch.autograd.grad(output.sum(), x)[0], expected)


def test_modes_without_gradients(case: Case) -> None:
    function, x = case
    expected = function(x)
    with torch.no_grad():
        plain = function(x)
    with torch.inference_mode():
        inferred = function(x)
    assert expected.requires_grad and not plain.requires_grad and not inferred.requires_grad and inferred.is_inference()
    for output in (plain, inferred.clone()):
        torch.testing.assert_close(output, expected.detach(), rtol=1e-6, atol=1e-6)
    with torch.inference_mode():
        made_there = x.detach() + 0
    torch.testing.assert_close(function(made_there), expected.detach(), rtol=1e-6, atol=1e-6)


def test_meta_in_inference_mode() -> None:
    with torch.inference_mode():
        meta = render()[2]
    assert meta["final_T"].shape == (C, HEIGHT, WIDTH) and int(meta["tiles_per_gauss"].sum()) == len(meta["flatten_ids"])


def test_threads() -> None:
    """Several threads render and differentiate at the same time, each its own scene."""
    function, x = FUNCTIONS["rasterization, packed"]()
    starts = [x.detach() + 0.05 * k for k in range(4)]

    def gradient(start: Tensor) -> Tensor:
        leaf = start.clone().requires_grad_()
        return torch.autograd.grad(function(leaf).square().sum(), leaf)[0]

    expected = [gradient(start) for start in starts]
    with ThreadPoolExecutor(4) as threads:
        for k, result in enumerate(threads.map(gradient, starts * 3)):
            close(result, expected[k % 4])
