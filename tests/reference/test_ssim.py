"""SSIM against scikit-image's, the loss, and their gradients against central differences."""

from __future__ import annotations

import numpy as np
import pytest
from skimage.metrics import structural_similarity

import tests.reference as ref
from tests.reference.arrays import Array
from tests.reference.checking import check_gradients
from tests.reference.ssim import ssim_map


def pictures(rng: np.random.Generator, height: int, width: int) -> tuple[Array, Array]:
    x = rng.uniform(size=(height, width, 3))
    return x, np.clip(x + 0.2 * rng.normal(size=x.shape), 0, 1)


def test_ssim_is_skimages_inside() -> None:
    x, y = pictures(np.random.default_rng(21), 40, 33)
    _, full = structural_similarity(
        x, y, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=1.0,
        channel_axis=-1, full=True,
    )  # fmt: skip
    np.testing.assert_allclose(ssim_map(x, y)[5:-5, 5:-5], full[5:-5, 5:-5], atol=1e-12)
    assert ref.ssim(x, x) == pytest.approx(1.0, abs=1e-12)


def test_ssim_pads_with_zeros() -> None:
    x, y = pictures(np.random.default_rng(22), 6, 8)
    padded_x, padded_y = (np.pad(image, ((9, 9), (9, 9), (0, 0))) for image in (x, y))
    np.testing.assert_allclose(ssim_map(x, y), ssim_map(padded_x, padded_y)[9:-9, 9:-9], atol=1e-14)


@pytest.mark.parametrize(("height", "width"), [(13, 15), (3, 4), (1, 1)])
def test_ssim_gradient(height: int, width: int) -> None:
    x, y = pictures(np.random.default_rng(23), height, width)
    check_gradients(lambda image: 100 * ref.ssim(image, y), [x], [100 * ref.ssim_backward(x, y)])


@pytest.mark.parametrize("masked", [False, True])
def test_loss_gradient(masked: bool) -> None:
    rng = np.random.default_rng(24)
    x, y = pictures(rng, 9, 12)
    y += np.where(np.abs(x - y) < 1e-3, 2e-3, 0.0)  # away from the kink of |x − y|
    mask = np.round(rng.uniform(size=(9, 12)), 1) * (rng.uniform(size=(9, 12)) > 0.3) if masked else None
    v = ref.l1_ssim_loss_backward(x, y, mask)
    check_gradients(lambda image: 100 * ref.l1_ssim_loss(image, y, mask), [x], [100 * v])
    weights = np.ones((9, 12)) if mask is None else mask
    l1 = np.mean(np.abs(x - y) * weights[..., None])
    similarity = ref.ssim(x * weights[..., None], y * weights[..., None])
    assert ref.l1_ssim_loss(x, y, mask) == pytest.approx(0.8 * l1 + 0.2 * (1 - similarity))
    assert not v[weights == 0].any()
