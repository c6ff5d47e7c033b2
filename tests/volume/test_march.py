"""The march through a volume and its replay: against float64, against the compiler's derivative, and at the edges."""

import gc
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py.gpu.device import Operator, get_device
from splat_py.scene.camera import Camera
from splat_py.volume import device_field, render
from splat_py.volume.device_field import Box, March, RayImage, camera_rays
from splat_py.volume.grid import Volume, row_floats
from tests.refusals import refused
from tests.shaders.oracle import float32
from tests.volume import reference as ref
from tests.volume.reference import Array, Field

# Ways to add up gradients: atomically, as on a GPU; by compare-and-swap, without float atomics; or, on CPU drivers, without
# atomics, in a replica for each of this many work queues.
Sums: TypeAlias = int | Literal["float atomics", "compare-and-swap"]
BOX = np.array([[-1.0, -0.5, 0.25], [0.5, 1.0, 2.0]])


def add_up(how: Sums, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the device add up in this way; skip the test if it cannot."""
    device = get_device()
    if isinstance(how, int) and not device.software:
        pytest.skip("gradients are added up without atomics only on CPU drivers")
    if how == "float atomics" and not device.native_float_atomics:
        pytest.skip("this device has no float atomics")
    if how == "compare-and-swap":
        monkeypatch.setattr(device, "operators", device.operators - {Operator.FLOAT_ATOMICS})
    monkeypatch.setattr(device_field, "groups_on", lambda device: how if isinstance(how, int) else 0)


def random_field(coefficients: int, size: tuple[int, int, int] = (5, 7, 6), contracted: bool = False) -> Field:
    """Densities of both signs and colours that are sometimes clamped, as float32 numbers."""
    rng = np.random.default_rng(0)
    density = rng.uniform(-1, 4, size)
    sh = rng.normal(0, 1.2, (*size, coefficients, 3)) / coefficients**0.5
    return Field(float32(density), float32(sh), BOX, float32(rng.uniform(size=3)), contracted)


def random_rays(count: int, inside: bool = False) -> tuple[Array, Array]:
    """Rays from around the box towards it, some of which miss, or from within it."""
    rng = np.random.default_rng(1)
    middle, half = BOX.mean(0), (BOX[1] - BOX[0]) / 2
    if inside:
        origins = middle + half * rng.uniform(-0.9, 0.9, (count, 3))
        directions = rng.normal(size=(count, 3))
    else:
        origins = rng.normal(size=(count, 3))
        origins = middle + origins / np.linalg.norm(origins, axis=1, keepdims=True) * 4
        directions = middle + half * rng.uniform(-1.3, 1.3, (count, 3)) - origins
    return float32(origins), float32(directions)


def render_and_replay(
    field: Field,
    rays: tuple[Array, Array],
    steps_per_unit: float,
    v: tuple[Array, Array, Array],
    halves: bool = False,
    of_rays: bool = False,
    **options: object,
) -> tuple[list[Array], list[Array]]:
    """splat_py's colours, transmittances and depths, and its gradients of density, sh, background and, with `of_rays`, rays."""
    arrays = field.density, field.sh, field.background, *rays
    tensors = [torch.tensor(a, dtype=torch.float16 if halves and i < 2 else torch.float32) for i, a in enumerate(arrays)]
    options |= {"steps_per_unit": steps_per_unit, "contracted": field.contracted}

    def march(density: Tensor, sh: Tensor, background: Tensor, *ends: Tensor) -> tuple[Tensor, ...]:
        return render(density, sh, *(ends or tensors[3:]), torch.tensor(field.box), background=background, **options)

    leaves = [tensor.requires_grad_() for tensor in (tensors if of_rays else tensors[:3])]
    results, adjoint = march(*leaves), [torch.tensor(a, dtype=torch.float32) for a in v]
    gradients = torch.autograd.grad(results, leaves, adjoint)
    check_tangents(march, leaves, adjoint, gradients)
    return [r.detach().double().numpy() for r in results], [g.double().numpy() for g in gradients]


def check_tangents(
    function: Callable[..., Sequence[Tensor]], leaves: Sequence[Tensor], v: Sequence[Tensor], gradients: Sequence[Tensor]
) -> None:
    """⟨J d, v⟩ = ⟨d, Jᵀ v⟩ for each input, in one direction and in two at once; d has the gradient's signs, so that nothing
    cancels. Results that come with tangents are those that come without."""
    inputs = tuple(leaf.detach() for leaf in leaves)
    results = function(*inputs)
    for i, gradient in enumerate(gradients):

        def push(d: Tensor, i: int = i) -> tuple[Tensor, ...]:
            pushed, tangents = torch.func.jvp(lambda x: tuple(function(*inputs[:i], x, *inputs[i + 1 :])), (inputs[i],), (d,))
            for result, without in zip(pushed, results, strict=True):
                torch.testing.assert_close(result, without, rtol=1e-6, atol=1e-6)
            return tangents

        sizes = torch.rand((2, *gradient.shape), generator=torch.Generator().manual_seed(i)) + 0.5
        d = (sizes * gradient.sign()).to(gradient.dtype)
        rtol = 1e-3 if gradient.dtype == torch.float16 else 1e-5
        for directions, tangents in ((d, torch.func.vmap(push)(d)), (d[:1], [t[None] for t in push(d[0])])):
            found = sum((t.double() * w).flatten(1).sum(1) for t, w in zip(tangents, v, strict=True))
            wanted = (directions.double() * gradient).flatten(1).sum(1)
            torch.testing.assert_close(found, wanted, rtol=rtol, atol=1e-6)


def adjoints(count: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(2)
    return rng.normal(size=(count, 3)), rng.normal(size=count), rng.normal(size=count)


def assert_like_reference(
    field: Field,
    rays: tuple[Array, Array],
    steps_per_unit: float = 9,
    seed: int | None = None,
    halves: bool = False,
    of_rays: bool = False,
    **options: object,
) -> tuple[list[Array], list[Array]]:
    """Compare results and gradients with the reference, and return splat_py's."""
    if halves:
        field = replace(field, **{name: np.float16(getattr(field, name)).astype(float) for name in ("density", "sh")})
    v = adjoints(len(rays[0]))
    if seed is not None:
        options |= {"jitter": True, "seed": seed}
    results, gradients = render_and_replay(field, rays, steps_per_unit, v, halves, of_rays, **options)
    expected = ref.march(field, *rays, steps_per_unit, seed)
    for name, actual, wanted in zip(("color", "T", "depth"), results, expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=1e-5, err_msg=name)
    wanted_gradients = ref.march_backward(field, *rays, steps_per_unit, *v, seed)
    for name, actual, wanted in zip(("density", "sh", "background"), gradients, wanted_gradients, strict=False):
        # Sums over samples of both signs: an element is as precise as the largest.
        atol = 2e-5 * max(float(np.abs(wanted).max()), 1e-2)
        # Only stored features are halves: results keep their precision, and gradients have that of their type.
        rtol = 2**-10 if halves and name != "background" else 1e-4
        np.testing.assert_allclose(actual, wanted, rtol=rtol, atol=atol, err_msg=f"gradient of {name}")
    for actual, wanted in zip(gradients[3:], wanted_gradients[3:], strict=False):
        assert (np.abs(wanted) > 1e-3).any(0).all()
        # A component of a ray that grazes the box is as precise as the largest.
        atol = 2e-4 * np.maximum(np.abs(wanted).max(1, keepdims=True), 0.1)
        assert (np.abs(actual - wanted) <= 2e-4 * np.abs(wanted) + atol).all(), np.abs(actual - wanted).max()
    return results, gradients


@pytest.mark.parametrize(
    ("how", "coefficients", "seed"),
    [
        ("float atomics", 1, None),
        ("float atomics", 9, 7),
        ("float atomics", 4, 7),
        ("compare-and-swap", 4, 7),
        (1, 1, 7),
        (3, 4, None),
        (2, 9, 7),
        (2, 9, None),
    ],
)
def test_rays_from_outside(how: Sums, coefficients: int, seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    add_up(how, monkeypatch)
    results, gradients = assert_like_reference(random_field(coefficients), random_rays(200), seed=seed)
    assert (results[1] == 1).any() and (results[1] < 0.5).any()
    assert all(np.any(gradient) for gradient in gradients)


@pytest.mark.parametrize(
    ("how", "coefficients", "inside", "seed", "skip_empty", "contracted"),
    [
        ("float atomics", 1, False, 7, True, False),
        ("float atomics", 4, True, None, False, False),
        (2, 1, True, None, True, False),
        (2, 4, False, 7, False, False),
        (2, 9, True, 7, True, False),
        ("float atomics", 4, False, 7, True, True),
        ("compare-and-swap", 4, False, 7, True, True),
        (2, 4, True, None, True, True),
    ],
)
def test_gradients_of_rays(
    how: Sums,
    coefficients: int,
    inside: bool,
    seed: int | None,
    skip_empty: bool,
    contracted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_up(how, monkeypatch)
    field, rays = random_field(coefficients, contracted=contracted), random_rays(24 if contracted else 64, inside)
    assert_like_reference(field, rays, seed=seed, of_rays=True, skip_empty=skip_empty)


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    """Only one of a ray's two ends, and no gradient for rays without adjoints or past the box."""
    field = random_field(1)
    tensors = [torch.tensor(a, dtype=torch.float32) for a in (field.density, field.sh, *random_rays(40))]

    def gradients(*which: int) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """The colours, and the gradients of the first 20 of them by these of the tensors."""
        leaves = [tensor.clone().requires_grad_(i in which) for i, tensor in enumerate(tensors)]
        colors = render(*leaves, BOX, steps_per_unit=9)[0]
        return colors, torch.autograd.grad(colors[:20].sum(), [leaves[i] for i in which])

    colors, both = gradients(2, 3)
    missed = (colors == 0).all(-1)
    assert missed.any() and not missed.all()
    for end, gradient in enumerate(both):
        assert not gradient[20:].any() and not gradient[missed].any() and gradient[:20].any()
        assert torch.equal(gradients(2 + end)[1][0], gradient)


@pytest.mark.parametrize(("how", "coefficients"), [("float atomics", 4), (2, 1), (2, 9)])
def test_halves(how: Sums, coefficients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some bricks are empty, and one density is a subnormal half."""
    add_up(how, monkeypatch)
    field = random_field(coefficients, (18, 5, 6))
    field.density[:9] = -1
    field.density[12, 2] = 3e-5
    assert_like_reference(field, random_rays(60), halves=True)


@pytest.mark.parametrize("how", ["float atomics", 2])
def test_contracted_space(how: Sums, monkeypatch: pytest.MonkeyPatch) -> None:
    add_up(how, monkeypatch)
    field = random_field(4, (18, 10, 9))
    density = np.where(np.arange(18)[:, None, None] < 8, -1, field.density)
    assert_like_reference(replace(field, density=density, contracted=True), random_rays(40), steps_per_unit=5, seed=7)


def test_gradients_have_the_same_bits_whoever_adds_them_up() -> None:
    """Workgroups take turns with blocks of pixels, each with its own replica, so sums do not depend on their timing."""
    device = get_device()
    if not device.software:
        pytest.skip("gradients are added up without atomics only on CPU drivers")
    rng = np.random.default_rng(11)
    array = device.memory.array
    rows = rng.normal(0, 1, (9, 8, 10, row_floats(4))).astype(np.float32)
    with device.recording() as recorder:
        rays = camera_rays(device, recorder, [Camera.look_at((0.4, 0.6, 2.3), (0.5, 0.5, 0.5), (0, 1, 0), 50, 150, 100)])
    march = March(Box.of([[0, 0, 0], [1, 1, 1]]), 9, skip_empty=False)
    v = [array(a.astype(np.float32)) for a in adjoints(rays.count)]

    def gradients(groups: int) -> Array:
        volume = Volume(device, array(rows))
        volume.groups = groups
        image, background = RayImage.empty(device, rays.count), array(np.zeros(3, np.float32))
        v_grid = volume.empty_gradients()
        with device.recording() as recorder:
            recorder.clear(v_grid)
            volume.record_occupancy(recorder, march)
            volume.record_forward(recorder, march, rays, background, image)
            volume.record_backward(recorder, march, rays, background, image, RayImage(*v), v_grid)
        return v_grid.numpy().copy()

    expected = gradients(3)
    assert len(expected) == 3 and all(np.any(replica) for replica in expected)
    for _ in range(2):
        np.testing.assert_array_equal(gradients(3), expected)
    np.testing.assert_allclose(gradients(1)[0], expected.sum(0), rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("coefficients", [4, 9])
def test_neighbours_that_want_the_same_voxels(coefficients: int) -> None:
    """Alternate near and distant rays: lanes of one wave need voxels in every pattern, such as A, B, A, A."""
    rng = np.random.default_rng(5)
    field = random_field(coefficients, (5, 4, 6))
    target = BOX.mean(0) + rng.uniform(-0.3, 0.3, (6, 3))
    which = rng.integers(0, len(target), 400)
    origins = np.broadcast_to(BOX.mean(0) + np.array([0.0, 0.1, 4.0]), (400, 3))
    directions = target[which] + 0.02 * rng.normal(size=(400, 3)) - origins
    assert_like_reference(field, (float32(origins), float32(directions)))


@pytest.mark.parametrize("seed", [None, 3])
def test_rays_from_inside(seed: int | None) -> None:
    assert_like_reference(random_field(4), random_rays(100, inside=True), steps_per_unit=11, seed=seed)


@pytest.mark.parametrize(
    ("size", "steps_per_unit"),
    [*(((5, 7, 6), n) for n in (0.01, 1, 100)), *((size, 8) for size in ((1, 1, 1), (2, 1, 9), (17, 3, 8), (8, 16, 24)))],
)
@pytest.mark.parametrize("inside", [False, True])
def test_steps_and_sizes(size: tuple[int, int, int], steps_per_unit: float, inside: bool) -> None:
    assert_like_reference(random_field(1, size), random_rays(30 if inside else 60, inside), steps_per_unit)


def test_what_is_not_seen_has_no_gradient() -> None:
    """Rays past the box see the whole background, and give the grid no gradient."""
    field = random_field(1)
    origins = np.array([[5.0, 0, 1], [-3, 0.2, 1], [0, 0, 5]])
    results, gradients = assert_like_reference(field, (origins, np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 2]])), 8)
    np.testing.assert_array_equal(results[0], np.tile(field.background.astype(np.float32), (3, 1)))
    assert (results[1] == 1).all() and (results[2] == 0).all()
    assert not gradients[0].any() and not gradients[1].any()
    field = replace(random_field(1), density=np.zeros((5, 7, 6)))
    results, gradients = assert_like_reference(field, random_rays(50), 9)
    assert (results[1] == 1).all()
    assert not gradients[0].any() and not gradients[1].any()


def test_rays_along_axes_and_edges() -> None:
    """Directions with zeros, on faces between voxels, through corners, and grazing the box's edge."""
    low, high = BOX
    middle = BOX.mean(0)
    origins = [
        [middle[0], middle[1], -3],
        [-4, middle[1], middle[2]],
        [middle[0], 4, middle[2]],
        low - 1,
        high + 2,
        [low[0] + 1e-4, low[1] + 1e-4, -3],
        [low[0] - 1e-4, low[1] - 1e-4, -3],
    ]
    directions = [[0, 0, 1], [1, 0, 0], [0, -1, 0], high - low + 2, low - high - 4, [0, 0, 1], [0, 0, 1]]
    results, _ = assert_like_reference(random_field(1), (np.array(origins, float), np.array(directions, float)), 7)
    assert results[1][5] < 1 and results[1][6] == 1


def test_opaque_first_cell() -> None:
    """A wall at the box's faces: one sample is visible, nothing behind it, and nothing overflows."""
    field = random_field(1)
    field = replace(field, density=np.full(field.density.shape, 1e6))
    results, gradients = assert_like_reference(field, random_rays(50), 9)
    hit = results[1] < 1
    assert hit.any() and (results[1][hit] == 0).all()
    assert all(np.isfinite(g).all() for g in gradients)


def test_early_end() -> None:
    """A ray that ends early has the gradient of the shorter sum: nothing behind the end gets one."""
    density = np.full((1, 1, 16), 40.0)
    field = Field(density, np.zeros((1, 1, 16, 1, 3)), np.array([[0.0, 0, 0], [1, 1, 1]]), np.zeros(3))
    rays = np.array([[0.5, 0.5, -1]]), np.array([[0.0, 0, 1]])
    results, gradients = assert_like_reference(field, rays, 16)
    assert 0 < results[1][0] < 1e-6
    assert gradients[0][0, 0, 0] != 0 and not gradients[0][0, 0, 8:].any()


@pytest.mark.parametrize("seed", [None, 1])
def test_skipping_empty_space_changes_nothing(seed: int | None) -> None:
    rng = np.random.default_rng(8)
    size = (30, 41, 17)
    density = np.where(rng.uniform(size=size) < 0.002, rng.uniform(5, 50, size), -0.5)
    field = Field(density, rng.normal(size=(*size, 1, 3)), BOX, np.ones(3))
    rays = random_rays(300)
    options: dict[str, object] = {} if seed is None else {"jitter": True, "seed": seed}
    v = adjoints(300)
    skipped = render_and_replay(field, rays, 20, v, **options)
    marched = render_and_replay(field, rays, 20, v, skip_empty=False, **options)
    for a, b in zip(skipped[0] + skipped[1], marched[0] + marched[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * np.abs(b).max())
    assert (skipped[0][1] < 1).any()


def test_memory_does_not_grow_with_the_steps() -> None:
    field, rays = random_field(1, (16, 16, 16)), random_rays(1000)
    memory = get_device().memory

    def saved_and_added(steps_per_unit: float) -> tuple[int, int]:
        """Device memory held between the passes, and the backward pass's addition to the peak."""
        tensors = [torch.tensor(a, dtype=torch.float32) for a in (field.density, field.sh, *rays)]
        tensors[0].requires_grad_()
        gc.collect()
        before = memory.live_bytes
        results = render(*tensors, BOX, steps_per_unit=steps_per_unit)
        saved = memory.live_bytes - before
        memory.peak_bytes = memory.live_bytes
        results[0].sum().backward()
        return saved, memory.peak_bytes - before

    few, many = saved_and_added(64), saved_and_added(1024)
    assert few == many
    # Rays, results and the grid; one float a sample would be 4 MB at 1,024 steps a unit.
    assert 0 < few[0] < 2**18


GOOD = {
    "density": torch.ones(4, 4, 4),
    "sh": torch.zeros(4, 4, 4, 1, 3),
    "rays_o": torch.zeros(2, 3),
    "rays_d": torch.ones(2, 3),
    "box": BOX,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"density": torch.ones(4, 4)}, "density has shape"),
        ({"density": torch.full((4, 4, 4), torch.nan)}, "density holds a number that is not finite"),
        ({"density": torch.ones(4, 4, 4, dtype=torch.float64)}, "density has dtype"),
        ({"density": torch.ones(4, 4, 4, dtype=torch.float16)}, "density has dtype torch.float16 and sh torch.float32"),
        ({"rays_o": torch.ones(2, 3, dtype=torch.float16)}, "rays_o has dtype"),
        ({"density": np.ones((4, 4, 4))}, "density is a ndarray"),
        ({"sh": torch.zeros(4, 4, 4, 2, 3)}, "sh has shape"),
        ({"sh": torch.full((4, 4, 4, 1, 3), torch.inf)}, "sh holds a number"),
        ({"rays_o": torch.zeros(2, 2)}, "rays_o has shape"),
        ({"rays_d": torch.zeros(3, 3)}, "rays_d has shape"),
        ({"rays_d": torch.zeros(2, 3)}, "direction of length 0"),
        ({"rays_o": torch.full((2, 3), torch.nan)}, "rays_o holds a number"),
        ({"box": [[0, 0, 0], [1, 0, 1]]}, "box is degenerate"),
        ({"box": [0, 1]}, "box has shape"),
        ({"box": [[0, 0, 0], [1, 1]]}, "box is .*; give numbers"),
        ({"box": [[0, 0, 0], [1, np.nan, 1]]}, "box holds a number"),
        ({"background": torch.zeros(4)}, "background has shape"),
        ({"steps_per_unit": 0.0}, "steps_per_unit is 0"),
    ],
)
def test_unusable_input(changes: dict[str, object], message: str) -> None:
    refused(message, render, **{**GOOD, **changes})


def test_a_device_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_device(), "operators", frozenset())
    refused("does not support volume", render, **GOOD)


def test_shapes_and_no_rays() -> None:
    rays = torch.rand(2, 3, 5, 3), torch.ones(2, 3, 5, 3)
    color, transmittance, depth = render(GOOD["density"], GOOD["sh"], *rays, BOX)
    assert color.shape == (2, 3, 5, 3) and transmittance.shape == depth.shape == (2, 3, 5)
    empty = torch.zeros(0, 3)
    density = torch.ones(4, 4, 4, requires_grad=True)
    color, *_ = render(density, GOOD["sh"], empty, empty, BOX)
    color.sum().backward()
    assert density.grad is not None and not density.grad.any()


@pytest.mark.parametrize("images", [(3, 35, 41), (40, 1, 50)])
def test_images_are_marched_like_single_rays(images: tuple[int, int, int]) -> None:
    """Images whose sides are no multiples of a block, whose blocks take turns, and images lower than a block."""
    field = random_field(4)
    count = math.prod(images)
    rays, v = random_rays(count), adjoints(count)
    in_images = [tuple(a.reshape(*images, *a.shape[1:]) for a in arrays) for arrays in (rays, v)]
    whole, single = render_and_replay(field, in_images[0], 5, in_images[1]), render_and_replay(field, rays, 5, v)
    for found, wanted in zip(whole[0], single[0], strict=True):
        np.testing.assert_array_equal(found.reshape(wanted.shape), wanted)
    for found, wanted in zip(whole[1], single[1], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("bits", [128, 512])
def test_waves_of_other_sizes(bits: int) -> None:
    """Gradients with waves of 4 or 16 lanes in the software driver, in a new process."""
    if not get_device().software:
        pytest.skip("only the software driver lets one choose the size of a wave")
    # With 16 lanes, compiling the atomic additions of the highest degree takes most of a minute.
    without = "not compare and not 9-7 and not 9-None" if bits == 512 else "not compare"
    command = [sys.executable, "-m", "pytest", "-q", "-x", __file__, "-k", f"test_rays_from_outside and {without}"]
    # The width is no part of the keys of Mesa's cache, so it would return kernels for waves of another size.
    environment = os.environ | {"LP_NATIVE_VECTOR_WIDTH": str(bits), "MESA_SHADER_CACHE_DISABLE": "true"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stdout
