"""Losses of pixels in the place of L1: the built-in ones against float64, and a caller's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import splat_py as splat
from splat_py import SplatError, shaders
from splat_py.gpu.device import get_device
from splat_py.gpu.kernels import UserType
from splat_py.splats.loss import SUMS, PhotometricLoss, pack
from tests.splats.test_photometric_loss import pictures

# The distance of colours, and more of it where the render is too bright: not symmetric, and not a mean over channels.
OWN = """
import splat.prelude;

struct TooBright : IPixelLoss
{
    [Differentiable]
    static float loss<let C : int>(vector<float, C> rendered, vector<float, C> photograph)
    {
        vector<float, C> error = rendered - photograph;
        return sqrt(dot(error, error) + 1e-4) + max(rendered[0] - photograph[0], 0.0);
    }
}
"""


def too_bright(x: Tensor, y: Tensor) -> Tensor:
    error = x - y
    return ((error**2).sum(-1, keepdim=True) + 1e-4).sqrt() + error[..., :1].clamp(min=0)


KINDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "L1": lambda x, y: (x - y).abs(),
    "L2": lambda x, y: (x - y) ** 2,
    "Charbonnier": lambda x, y: ((x - y) ** 2 + 1e-6).sqrt(),
    "own": too_bright,
}


def type_of(name: str) -> Any:
    return UserType("TooBright", OWN) if name == "own" else name


def check(name: str, channels: int = 3) -> None:
    """The value, and every scalar's gradient, of both images; SSIM is mixed in as with L1."""
    x, y = pictures((2, 12, 9, channels), seed=channels)
    # Where errors are as small as ε.
    y[0, 0] = x[0, 0] + 0.001
    images = [x.clone().requires_grad_(), y.clone().requires_grad_()]
    twins = [x.double().requires_grad_(), y.double().requires_grad_()]
    loss = splat.photometric_loss(images[0], images[1], 0.0, pixel_loss=type_of(name))
    expected = KINDS[name](*twins).mean()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    loss.backward()
    expected.backward()
    for image, twin in zip(images, twins, strict=True):
        assert image.grad is not None and twin.grad is not None
        torch.testing.assert_close(image.grad.double(), twin.grad, rtol=1e-3, atol=1e-4 * float(twin.grad.abs().max()))

    mixed = splat.photometric_loss(x, y, 0.3, pixel_loss=type_of(name))
    torch.testing.assert_close(mixed, 0.7 * loss.detach() + 0.3 * (1 - splat.ssim(x, y, padding="same")), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_value_and_gradients(name: str) -> None:
    check(name)


@pytest.mark.parametrize(("name", "channels"), [("Charbonnier", 7), ("own", 1), ("own", 4)])
def test_other_channels(name: str, channels: int) -> None:
    check(name, channels)


@pytest.mark.parametrize("name", KINDS)
def test_weights_of_pixels(name: str) -> None:
    """As training has them: each pixel's loss times its weight, the mean over all."""
    rng = np.random.default_rng(7)
    photograph = rng.integers(0, 256, (13, 11, 4), dtype=np.uint8)
    photograph[:3, :, 3] = 0
    render = torch.tensor(rng.uniform(0, 1, (13, 11, 3)), dtype=torch.float32)
    device = get_device()
    loss = PhotometricLoss(device, 11, 13, 0.0, pixel_loss=type_of(name))
    sums, recorder = device.memory.empty(SUMS), device.record()
    loss.record(recorder, device.memory.array(render[None]), device.memory.array(pack(photograph)), sums)
    recorder.submit()

    x = render.double().requires_grad_()
    truth, weight = torch.tensor(photograph[..., :3] / 255), torch.tensor(photograph[..., 3:] / 255)
    expected = (KINDS[name](x, truth) * weight).mean()
    expected.backward()
    values = loss.values(sums)
    np.testing.assert_allclose([values.loss, values.l1], expected.item(), rtol=1e-5)
    assert x.grad is not None
    largest = float(x.grad.abs().max())
    np.testing.assert_allclose(loss.v_render.numpy()[0], x.grad.numpy(), rtol=1e-3, atol=1e-4 * largest)


def test_mistakes() -> None:
    x, y = pictures((12, 12, 5))
    for pixel_loss, message in (
        ("L3", "pixel_loss is 'L3'; use L1, L2, Charbonnier, or a type from splat_py.shaders.source"),
        (2, "pixel_loss is a int; use L1"),
        (shaders.source("public float one() { return 1.0; }"), "has no type that implements IPixelLoss"),
        (shaders.source(OWN), "images has 5 channels; a pixel loss of your own takes 4 at most"),
    ):
        with pytest.raises(SplatError, match=message):
            splat.photometric_loss(x, y, pixel_loss=pixel_loss)  # type: ignore[arg-type]
