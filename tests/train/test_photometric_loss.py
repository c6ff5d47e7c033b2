"""L1, SSIM and pixel losses that replace L1, for torch: against float64, torchmetrics and finite differences."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import splat_py as splat
from splat_py import shaders
from splat_py.gpu.kernels import UserType
from tests.reference.ssim import ssim_map
from tests.refusals import refused

Padding = Literal["same", "valid"]
SIZES = [(1, 1), (7, 5), (11, 11), (13, 29), (1, 23), (37, 12)]


def reference(x: np.ndarray, y: np.ndarray, ssim_lambda: float, padding: Padding) -> float:
    pictures = [a.reshape(-1, *a.shape[-3:]) for a in (x, y)]
    similarities = [ssim_map(*both) for both in zip(*pictures, strict=True)]
    if padding == "valid":
        similarities = [similarity[5:-5, 5:-5] for similarity in similarities]
    return (1 - ssim_lambda) * np.abs(x - y).mean() + ssim_lambda * (1 - float(np.mean(similarities)))


def pictures(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, shape)
    step = rng.uniform(0.01, 0.2, shape) * rng.choice([-1, 1], shape)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(x + step, dtype=torch.float32)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_value_and_gradients(size: tuple[int, int]) -> None:
    x, y = pictures((2, *size, 3), seed=sum(size))
    exact = x.double().numpy(), y.double().numpy()
    for padding in ("same", "valid") if min(size) >= 11 else ("same",):
        a, b = x.clone().requires_grad_(), y.clone().requires_grad_()
        loss = splat.photometric_loss(a, b, 0.3, padding=padding)
        assert loss.shape == () and loss.dtype == torch.float32
        assert abs(float(loss.detach()) - reference(*exact, 0.3, padding)) < 1e-5
        assert abs(1 - float(splat.ssim(x, y, padding=padding)) - reference(*exact, 1.0, padding)) < 1e-5
        loss.backward()
        # A mean over all pixels: one direction for both images finds a wrong factor; each number is tested below.
        rng = np.random.default_rng(1)
        u, v = (1e-5 * rng.normal(size=x.shape) for _ in range(2))
        ahead = reference(exact[0] + u, exact[1] + v, 0.3, padding)
        behind = reference(exact[0] - u, exact[1] - v, 0.3, padding)
        slope = float((a.grad.double() * torch.tensor(u)).sum() + (b.grad.double() * torch.tensor(v)).sum())
        np.testing.assert_allclose(slope, (ahead - behind) / 2, rtol=1e-3, atol=1e-10)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_each_scalars_gradient(channels: int, padding: Padding) -> None:
    """The loss is the mean of the channels', so a scalar's finite difference needs its own channel alone."""
    x, y = pictures((11, 13, channels), seed=channels)
    arguments = [x.double().numpy(), y.double().numpy()]
    tensors = [x.clone().requires_grad_(), y.clone().requires_grad_()]
    splat.photometric_loss(*tensors, 0.4, padding=padding).backward()
    for i, tensor in enumerate(tensors):
        expected = np.empty(x.shape)
        for index in np.ndindex(*x.shape):
            kept, values, channel = arguments[i][index], [], index[-1:]
            for step in (1e-5, -1e-5):
                arguments[i][index] = kept + step
                values.append(reference(*(picture[..., channel] for picture in arguments), 0.4, padding))
            arguments[i][index] = kept
            expected[index] = (values[0] - values[1]) / 2e-5 / channels
        np.testing.assert_allclose(tensor.grad.numpy(), expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


def test_ssim_is_torchmetrics() -> None:
    functional = pytest.importorskip("torchmetrics.functional")
    for shape in ((1, 6, 7, 3), (2, 31, 45, 3), (3, 16, 23, 1)):
        x, y = pictures(shape, seed=shape[1])
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        ours = splat.ssim(a, y)
        theirs = functional.structural_similarity_index_measure(b.permute(0, 3, 1, 2), y.permute(0, 3, 1, 2), data_range=1.0)
        assert abs(float(ours.detach()) - float(theirs.detach())) < 1e-4
        ours.backward()
        theirs.backward()
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4 * float(b.grad.abs().max()))


def test_views_that_are_not_contiguous() -> None:
    x, y = pictures((3, 12, 17))
    a = x.clone().requires_grad_()
    loss = splat.photometric_loss(a.permute(1, 2, 0), y.permute(1, 2, 0))
    copied = x.permute(1, 2, 0).contiguous().requires_grad_()
    same = splat.photometric_loss(copied, y.permute(1, 2, 0).contiguous())
    loss.backward()
    same.backward()
    torch.testing.assert_close(a.grad.permute(1, 2, 0), copied.grad, rtol=0, atol=0)


def test_images_that_are_the_same_and_gradients_for_nobody() -> None:
    x, _ = pictures((12, 12, 3))
    a = x.clone().requires_grad_()
    loss = splat.photometric_loss(a, x)
    loss.backward()
    assert abs(float(loss.detach())) < 1e-6
    assert a.grad is not None and float(a.grad.abs().max()) < 1e-6
    assert abs(float(splat.ssim(x, x)) - 1) < 1e-6
    x, y = pictures((12, 12, 3))
    assert not splat.photometric_loss(x, y).requires_grad
    a = x.clone().requires_grad_()
    splat.photometric_loss(a, y).backward()
    assert a.grad is not None and y.grad is None


def test_changes_in_place_come_too_late() -> None:
    x, y = pictures((12, 12, 3))
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    changed = y.clone()
    loss = splat.photometric_loss(a, changed)
    changed.zero_()
    loss.backward()
    splat.photometric_loss(b, y).backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=0)


@pytest.mark.parametrize("where", ["images", "photographs"])
def test_nan_shows(where: str) -> None:
    x, y = pictures((12, 12, 3))
    (x if where == "images" else y)[3, 4, 1] = torch.nan
    assert splat.photometric_loss(x, y).isnan()
    assert splat.photometric_loss(x, y, 0.0).isnan()
    assert splat.ssim(x, y).isnan()


def test_mistakes_are_named() -> None:
    x, y = pictures((12, 12, 3))
    for images, photographs, message in (
        (x.double(), y, r"images has dtype torch.float64; convert it to torch.float32"),
        (x, (255 * y).byte(), r"photographs has dtype torch.uint8; .* divided by 255"),
        (x.numpy(), y, r"images is a ndarray; give a torch tensor"),
        (x, y[:11], r"photographs has shape \[11, 12, 3\] and images \[12, 12, 3\]"),
        (x[0], y[0], r"images has shape \[12, 3\]; expected \[..., H, W, C\]"),
        (x[:0], y[:0], r"images has shape \[0, 12, 3\]"),
        (x, y.to("meta"), r"photographs is on meta and images on cpu"),
    ):
        refused(message, splat.photometric_loss, images, photographs)
    for ssim_lambda in (-0.1, 1.1, float("nan")):
        refused("ssim_lambda is", splat.photometric_loss, x, y, ssim_lambda)
    refused("padding is 'zeros'; use one of same, valid, reflect", splat.ssim, x, y, padding="zeros")
    refused("padding is 'reflect'; use one of same, valid", splat.photometric_loss, x, y, padding="reflect")
    for padding, rows in (("valid", 10), ("reflect", 5)):
        with pytest.raises(splat.SplatError, match=f"padding='{padding}' needs {rows + 1}×{rows + 1} pixels, use 'same'"):
            splat.ssim(x[:rows], y[:rows], padding=padding)  # type: ignore[arg-type]


# The distance of colours, plus the excess if the render is too bright: not symmetric, and not a mean over channels.
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


PIXEL_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "L1": lambda x, y: (x - y).abs(),
    "L2": lambda x, y: (x - y) ** 2,
    "Charbonnier": lambda x, y: ((x - y) ** 2 + 1e-6).sqrt(),
    "own": too_bright,
}


def type_of(name: str) -> Any:
    return UserType("TooBright", OWN) if name == "own" else name


def check(name: str, channels: int = 3) -> None:
    """The value, and every gradient of both images; SSIM is mixed in as with L1."""
    x, y = pictures((2, 12, 9, channels), seed=channels)
    # Errors as small as ε.
    y[0, 0] = x[0, 0] + 0.001
    images = [x.clone().requires_grad_(), y.clone().requires_grad_()]
    twins = [x.double().requires_grad_(), y.double().requires_grad_()]
    loss = splat.photometric_loss(images[0], images[1], 0.0, pixel_loss=type_of(name))
    expected = PIXEL_LOSSES[name](*twins).mean()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    loss.backward()
    expected.backward()
    for image, twin in zip(images, twins, strict=True):
        torch.testing.assert_close(image.grad.double(), twin.grad, rtol=1e-3, atol=1e-4 * float(twin.grad.abs().max()))

    mixed = splat.photometric_loss(x, y, 0.3, pixel_loss=type_of(name))
    torch.testing.assert_close(mixed, 0.7 * loss.detach() + 0.3 * (1 - splat.ssim(x, y, padding="same")), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "channels"), [*((name, 3) for name in PIXEL_LOSSES), ("Charbonnier", 7), ("own", 1), ("own", 4)]
)
def test_pixel_losses_value_and_gradients(name: str, channels: int) -> None:
    check(name, channels)


def test_mistakes_of_pixel_losses() -> None:
    x, y = pictures((12, 12, 5))
    for pixel_loss, message in (
        ("L3", "pixel_loss is 'L3'; use L1, L2, Charbonnier, or a type from splat_py.shaders.source"),
        (2, "pixel_loss is a int; use L1"),
        (shaders.source("public float one() { return 1.0; }"), "has no type that implements IPixelLoss"),
        (shaders.source(OWN), "images has 5 channels; a pixel loss of your own accepts 4 at most"),
    ):
        refused(message, splat.photometric_loss, x, y, pixel_loss=pixel_loss)
