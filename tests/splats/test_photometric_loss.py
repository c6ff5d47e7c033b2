"""L1 and SSIM for torch: against float64 references, torchmetrics and finite differences."""

from __future__ import annotations

import gc
from typing import Literal

import numpy as np
import pytest
import torch
from scipy.ndimage import correlate1d
from torch import Tensor

import splat_py as splat
from splat_py.gpu.device import get_device
from tests.reference.ssim import WINDOW, ssim_map

Padding = Literal["same", "valid"]
SIZES = [(1, 1), (7, 5), (11, 11), (13, 29), (1, 23), (37, 12)]


def reference(x: np.ndarray, y: np.ndarray, ssim_lambda: float, padding: Padding) -> float:
    """The loss in float64, of images [..., H, W, C]."""
    pictures = [a.reshape(-1, *a.shape[-3:]) for a in (x, y)]
    similarities = [ssim_map(*both) for both in zip(*pictures, strict=True)]
    if padding == "valid":
        similarities = [similarity[5:-5, 5:-5] for similarity in similarities]
    return (1 - ssim_lambda) * np.abs(x - y).mean() + ssim_lambda * (1 - float(np.mean(similarities)))


def pictures(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two that are alike, nowhere equal."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, shape)
    step = rng.uniform(0.01, 0.2, shape) * rng.choice([-1, 1], shape)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(x + step, dtype=torch.float32)


def paddings(size: tuple[int, int]) -> list[Padding]:
    return ["same", "valid"] if min(size) >= 11 else ["same"]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_value_and_gradients(size: tuple[int, int]) -> None:
    x, y = pictures((2, *size, 3), seed=sum(size))
    exact = x.double().numpy(), y.double().numpy()
    for padding in paddings(size):
        a, b = x.clone().requires_grad_(), y.clone().requires_grad_()
        loss = splat.photometric_loss(a, b, 0.3, padding=padding)
        assert loss.shape == () and loss.dtype == torch.float32
        assert abs(float(loss.detach()) - reference(*exact, 0.3, padding)) < 1e-5
        assert abs(1 - float(splat.ssim(x, y, padding=padding)) - reference(*exact, 1.0, padding)) < 1e-5
        loss.backward()
        # A mean of all: a direction of both at once tells a wrong factor, each scalar is below.
        rng = np.random.default_rng(1)
        u, v = (1e-5 * rng.normal(size=x.shape) for _ in range(2))
        ahead = reference(exact[0] + u, exact[1] + v, 0.3, padding)
        behind = reference(exact[0] - u, exact[1] - v, 0.3, padding)
        assert a.grad is not None and b.grad is not None
        slope = float((a.grad.double() * torch.tensor(u)).sum() + (b.grad.double() * torch.tensor(v)).sum())
        np.testing.assert_allclose(slope, (ahead - behind) / 2, rtol=1e-3, atol=1e-10)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_each_scalars_gradient(channels: int, padding: Padding) -> None:
    x, y = pictures((11, 13, channels), seed=channels)
    arguments = [x.double().numpy(), y.double().numpy()]
    tensors = [x.clone().requires_grad_(), y.clone().requires_grad_()]
    splat.photometric_loss(*tensors, 0.4, padding=padding).backward()
    for i, tensor in enumerate(tensors):
        expected = np.empty(x.shape)
        for index in np.ndindex(*x.shape):
            kept, values = arguments[i][index], []
            for step in (1e-5, -1e-5):
                arguments[i][index] = kept + step
                values.append(reference(*arguments, 0.4, padding))
            arguments[i][index] = kept
            expected[index] = (values[0] - values[1]) / 2e-5
        assert tensor.grad is not None
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
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4 * float(b.grad.abs().max()))


def test_window_is_the_papers() -> None:
    """Along one row: what is outside counts as zero."""
    image = np.zeros((1, 9, 1))
    image[0, 4] = 1
    np.testing.assert_allclose(correlate1d(image, WINDOW, axis=1, mode="constant")[0, :, 0], WINDOW[1:-1])
    assert abs(WINDOW.sum() - 1) < 1e-12


def test_batches_are_means() -> None:
    x, y = pictures((2, 3, 9, 14, 3))
    each = [float(splat.photometric_loss(a, b)) for a, b in zip(x.flatten(0, 1), y.flatten(0, 1), strict=True)]
    assert abs(float(splat.photometric_loss(x, y)) - np.mean(each)) < 1e-6


def test_views_that_are_not_contiguous() -> None:
    x, y = pictures((3, 12, 17))
    a = x.clone().requires_grad_()
    loss = splat.photometric_loss(a.permute(1, 2, 0), y.permute(1, 2, 0))
    copied = x.permute(1, 2, 0).contiguous().requires_grad_()
    same = splat.photometric_loss(copied, y.permute(1, 2, 0).contiguous())
    loss.backward()
    same.backward()
    assert a.grad is not None and copied.grad is not None
    torch.testing.assert_close(a.grad.permute(1, 2, 0), copied.grad, rtol=0, atol=0)


def test_images_that_are_the_same() -> None:
    x, _ = pictures((12, 12, 3))
    a = x.clone().requires_grad_()
    loss = splat.photometric_loss(a, x)
    loss.backward()
    assert abs(float(loss.detach())) < 1e-6
    assert a.grad is not None and float(a.grad.abs().max()) < 1e-6
    assert abs(float(splat.ssim(x, x)) - 1) < 1e-6


def test_no_gradient_is_computed_for_nobody() -> None:
    x, y = pictures((12, 12, 3))
    assert not splat.photometric_loss(x, y).requires_grad
    a = x.clone().requires_grad_()
    splat.photometric_loss(a, y).backward()
    assert a.grad is not None and y.grad is None


def test_changes_in_place_come_too_late_to_matter() -> None:
    """The gradient is computed in the forward pass."""
    x, y = pictures((12, 12, 3))
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    changed = y.clone()
    loss = splat.photometric_loss(a, changed)
    changed.zero_()
    loss.backward()
    splat.photometric_loss(b, y).backward()
    assert a.grad is not None and b.grad is not None
    torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=0)


def test_second_derivatives_and_second_backward_passes_raise() -> None:
    x, y = pictures((12, 12, 3))
    a = x.clone().requires_grad_()
    loss = splat.photometric_loss(a, y)
    (gradient,) = torch.autograd.grad(loss, a, create_graph=True)
    with pytest.raises(splat.SplatError, match="differentiated again"):
        gradient.sum().backward()
    loss = splat.photometric_loss(a, y)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_nothing_is_kept_after_the_backward_pass() -> None:
    x, y = pictures((64, 48, 3))
    a = x.clone().requires_grad_()
    memory = get_device().memory
    gc.collect()
    before = memory.live_bytes
    loss = splat.photometric_loss(a, y)
    assert memory.live_bytes > before
    loss.backward()
    gc.collect()
    assert memory.live_bytes == before


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
        with pytest.raises(splat.SplatError, match=message):
            splat.photometric_loss(images, photographs)
    for ssim_lambda in (-0.1, 1.1, float("nan")):
        with pytest.raises(splat.SplatError, match="ssim_lambda is"):
            splat.photometric_loss(x, y, ssim_lambda)
    with pytest.raises(splat.SplatError, match="padding is 'zeros'; use one of same, valid, reflect"):
        splat.ssim(x, y, padding="zeros")  # type: ignore[arg-type]
    with pytest.raises(splat.SplatError, match="padding is 'reflect'; use one of same, valid"):
        splat.photometric_loss(x, y, padding="reflect")  # type: ignore[arg-type]
    for padding, rows in (("valid", 10), ("reflect", 5)):
        with pytest.raises(splat.SplatError, match=f"padding='{padding}' needs {rows + 1}×{rows + 1} pixels, use 'same'"):
            splat.ssim(x[:rows], y[:rows], padding=padding)  # type: ignore[arg-type]
