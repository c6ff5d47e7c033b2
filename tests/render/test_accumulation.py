"""The ways to add up gradients: each against the reference, and the deterministic one also against itself."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tests.reference as ref
from splat_py.gpu.device import Device, Operator, get_device
from splat_py.render.rasterization import rasterization
from tests.refusals import refused
from tests.render.comparison import Case, camera_of, check, crowded, leaves_of, rounded, scene_of, torch_input

WIDTH, HEIGHT = 53, 37
WAYS = ("pixel", "wave", "group", "pair")


def many(count: int = 1000) -> ref.Scene:
    return crowded(np.random.default_rng(7), count)


@pytest.fixture
def without_float_atomics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the device's float atomics."""
    device = get_device()
    monkeypatch.setattr(device, "operators", device.operators - {Operator.FLOAT_ATOMICS})


@pytest.mark.parametrize("tile_size", [4, 8, 16])
@pytest.mark.parametrize("accumulate", WAYS)
def test_gradients(accumulate: str, tile_size: int) -> None:
    """Cameras, whose gradients add up over all Gaussians; absolute gradients; more splats than a workgroup has threads."""
    rng = np.random.default_rng(5)
    cameras = [camera_of(rng, WIDTH, HEIGHT) for _ in range(2)]
    options = {"accumulate": accumulate, "tile_size": tile_size, "absgrad": True}
    check(Case(scene_of(rng, 150, sh_degree=1), cameras, rounded(rng.uniform(size=(2, 3))), options=options), rng)


@pytest.mark.parametrize(("accumulate", "segment"), [*((way, None) for way in WAYS), ("wave", 128), ("pair", 128)])
def test_crowded_tile(accumulate: str, segment: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if segment:
        with_segments(monkeypatch, segment)
    rng = np.random.default_rng(8)
    check(Case(many(), [camera_of(rng, 20, 20)], margin=3e-4, options={"accumulate": accumulate}), rng)


@pytest.mark.parametrize("accumulate", WAYS[:3])
@pytest.mark.usefixtures("without_float_atomics")
def test_compare_and_swap(accumulate: str) -> None:
    rng = np.random.default_rng(9)
    check(Case(scene_of(rng, 150, sh_degree=1), [camera_of(rng, WIDTH, HEIGHT)], options={"accumulate": accumulate}), rng)


def gradients(**options: Any) -> tuple[torch.Tensor, ...]:
    rng = np.random.default_rng(11)
    inputs = leaves_of(many(600), [camera_of(rng, 90, 70)])
    images, alphas, _ = rasterization(**inputs, width=90, height=70, **options)
    weights = torch.tensor(rng.normal(size=images.shape), dtype=torch.float32)
    return torch.autograd.grad([images, alphas], list(inputs.values()), [weights, torch.ones_like(alphas)])


def test_pairs_are_deterministic() -> None:
    first = gradients(accumulate="pair")
    for _ in range(4):
        torch.testing.assert_close(gradients(accumulate="pair"), first, rtol=0, atol=0)


def test_deterministic_torch_selects_pairs(deterministic_torch: Any) -> None:
    deterministic_torch(True)
    torch.testing.assert_close(gradients(), gradients(accumulate="pair"), rtol=0, atol=0)


def test_an_unknown_way() -> None:
    refused("accumulate is 'tile'; use auto, pixel", gradients, accumulate="tile")


# --- lists in segments ---


def with_segments(monkeypatch: pytest.MonkeyPatch, length: int | None) -> Device:
    device = get_device()
    monkeypatch.setattr(device, "tuning", replace(device.tuning, segment=length))
    return device


ALONG_RAYS = {"with_eval3d": True, "camera_model": "fisheye"}


@pytest.mark.parametrize(
    ("accumulate", "how"), [*((way, {}) for way in WAYS), ("wave", ALONG_RAYS)], ids=[*WAYS, "along rays"]
)
def test_segments_change_no_bit(accumulate: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen segments of a list that most pixels leave early: images equal to the bit, gradients to the order of sums."""
    rng = np.random.default_rng(12)
    scene, camera = many(), camera_of(rng, 53, 37)
    results = []
    for length in (None, 64):
        with_segments(monkeypatch, length)
        inputs: dict[str, Any] = leaves_of(scene, [camera]) | {"backgrounds": torch_input(np.array([[0.2, 0.4, 0.6]]))}
        images, alphas, _ = rasterization(**inputs, **how, width=53, height=37, accumulate=accumulate)
        loss = (images * torch.linspace(-1, 1, images.numel()).reshape(images.shape)).sum() + alphas.square().sum()
        # The first backward pass must not change what the second one needs.
        once = torch.autograd.grad(loss, list(inputs.values()), retain_graph=True)
        again = torch.autograd.grad(loss, list(inputs.values()))
        results.append((images.detach().numpy(), alphas.detach().numpy(), once, again))
    whole, parts = results
    np.testing.assert_array_equal(whole[0], parts[0])
    np.testing.assert_array_equal(whole[1], parts[1])
    exact = accumulate == "pair"
    for runs in zip(*whole[2:], *parts[2:], strict=True):
        scale = float(runs[0].abs().max())
        for other in runs[1:]:
            torch.testing.assert_close(other, runs[0], rtol=0 if exact else 1e-4, atol=0 if exact else 1e-5 * scale)


def test_two_hundred_thousand_gaussians_behind_one_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only every hundredth is opaque enough to be seen, and so faint that the last one still counts."""
    count = 200_000
    rng = np.random.default_rng(14)
    means = np.stack([np.zeros(count), np.zeros(count), np.linspace(2, 4, count)], axis=1)
    opacities = np.full(count, 0.00393)
    colors = rng.uniform(size=(count, 3))
    viewmat, K = torch.eye(4)[None], torch.tensor([[[4.0, 0, 0.5], [0, 4, 0.5], [0, 0, 1]]])
    results = []
    for length in (None, 1 << 14):
        with_segments(monkeypatch, length)
        inputs = [torch_input(x) for x in (means, np.tile([1.0, 0, 0, 0], (count, 1)), np.full((count, 3), 5.0))]
        inputs += [torch_input(opacities), torch_input(colors)]
        images, _, meta = rasterization(*inputs, viewmat, K, 1, 1, accumulate="pair")
        assert len(meta["flatten_ids"]) == count
        images.sum().backward()
        results.append([images.detach(), *(tensor.grad for tensor in inputs)])
    torch.testing.assert_close(*results, rtol=0, atol=0)
    # Blended in depth order until the pixel would be opaque, in double precision.
    alpha = np.minimum(0.999, np.float32(opacities).astype(float))
    T = np.cumprod(np.concatenate([[1.0], 1 - alpha]))
    seen = int(np.searchsorted(-T[1:], -1e-4, side="left"))
    assert 2000 < seen < count
    np.testing.assert_allclose(results[0][0].numpy().ravel(), (T[:seen] * alpha[:seen]) @ np.float32(colors[:seen]), rtol=1e-4)
