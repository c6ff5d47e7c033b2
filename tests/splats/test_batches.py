"""Splats that a tile's workgroup loads together, batch by batch: the images of waves that load their own, to the bit, and
gradients against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from splat_py.gpu.device import get_device
from splat_py.splats.rasterization import rasterization
from tests.image import test_differentiable as blobs
from tests.splats import test_eval3d as eval3d
from tests.splats import test_rasterization as renders
from tests.splats import test_surfels as surfels
from tests.splats.comparison import Case, camera_of, check, rounded, scene_of, torch_input
from tests.splats.test_accumulation import WAYS, crowded

WIDTH, HEIGHT = 53, 37


def tune(monkeypatch: pytest.MonkeyPatch, **tuning: Any) -> None:
    device = get_device()
    monkeypatch.setattr(device, "tuning", replace(device.tuning, **tuning))


@pytest.fixture
def batched(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU might load them: a thread a pixel, batches of 256."""
    tune(monkeypatch, batched=True, pixels_per_thread=1)


@pytest.mark.parametrize(("accumulate", "segment"), [*((how, None) for how in WAYS[1:]), ("pair", 128)])
def test_batches_change_no_bit(accumulate: str, segment: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of images; gradients are the same but for the order of sums, or without exception where that is fixed."""
    rng = np.random.default_rng(15)
    scene, camera = crowded(), camera_of(rng, WIDTH, HEIGHT)
    results = []
    for is_batched in (False, True):
        tune(monkeypatch, batched=is_batched, segment=segment)
        inputs = [torch_input(x) for x in (scene.means, scene.quats, scene.scales, scene.opacities, scene.colors)]
        poses = torch_input(camera.viewmat[None]), torch_input(camera.K[None])
        images, alphas, meta = rasterization(*inputs, *poses, WIDTH, HEIGHT, accumulate=accumulate)
        assert meta["isect_offsets"].diff().max() > 4 * 64
        loss = (images * torch.linspace(-1, 1, images.numel()).reshape(images.shape)).sum() + alphas.square().sum()
        results.append((images.detach(), alphas.detach(), torch.autograd.grad(loss, inputs)))
    alone, together = results
    torch.testing.assert_close(together[:2], alone[:2], rtol=0, atol=0)
    for one, other in zip(alone[2], together[2], strict=True):
        tolerance = 0.0 if accumulate == "pair" else 1e-5
        torch.testing.assert_close(other, one, rtol=10 * tolerance, atol=tolerance * float(one.abs().max()))


@pytest.mark.usefixtures("batched")
@pytest.mark.parametrize("accumulate", WAYS)
def test_crowded_tile(accumulate: str) -> None:
    """Four batches, of which no pixel blends the last."""
    rng = np.random.default_rng(8)
    options = {"accumulate": accumulate, "absgrad": True}
    check(Case(crowded(), [camera_of(rng, 20, 20)], margin=3e-4, options=options), rng)


@pytest.mark.usefixtures("batched")
@pytest.mark.parametrize("count", [0, 1, 150])
def test_hardly_any_gaussians(count: int) -> None:
    rng = np.random.default_rng(10)
    cameras = [camera_of(rng, WIDTH, HEIGHT) for _ in range(2)]
    check(Case(scene_of(rng, count, sh_degree=1), cameras, rounded(rng.uniform(size=(2, 3)))), rng)


def named(function: Callable[..., object], *arguments: Any) -> Any:
    """What is tested with waves that load their own."""
    name = f"{function.__module__.rpartition('.')[2]}-{function.__name__}".replace("test_", "")
    return pytest.param(partial(function, *arguments), id="-".join([name, *map(str, arguments)]))


@pytest.mark.usefixtures("batched")
@pytest.mark.parametrize(
    "test",
    [
        named(renders.test_long_lists_of_faint_splats, 4),
        named(renders.test_crowded_tile_that_is_soon_opaque, 8),
        named(renders.test_plain_colors, 40, True),
        named(surfels.test_against_float64, False),
        named(eval3d.test_against_float64, True),
        named(blobs.test_value_and_gradient, 1600, 90, 70),
    ],
)
def test_as_without(test: Callable[[], object]) -> None:
    test()
