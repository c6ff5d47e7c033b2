"""SSIM against scikit-image's, and the loss; Adam against torch's."""

import numpy as np
import pytest
import torch
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
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 1.0}
    _, full = structural_similarity(x, y, channel_axis=-1, full=True, **options)
    np.testing.assert_allclose(ssim_map(x, y)[5:-5, 5:-5], full[5:-5, 5:-5], atol=1e-12)
    assert ref.ssim(x, x) == pytest.approx(1.0, abs=1e-12)


def test_ssim_pads_with_zeros() -> None:
    x, y = pictures(np.random.default_rng(22), 6, 8)
    padded = (np.pad(image, ((9, 9), (9, 9), (0, 0))) for image in (x, y))
    np.testing.assert_allclose(ssim_map(x, y), ssim_map(*padded)[9:-9, 9:-9], atol=1e-14)


@pytest.mark.parametrize("masked", [False, True])
def test_loss(masked: bool) -> None:
    rng = np.random.default_rng(24)
    x, y = pictures(rng, 9, 12)
    y += np.where(np.abs(x - y) < 1e-3, 2e-3, 0.0)  # away from the kink of |x − y|
    mask = np.round(rng.uniform(size=(9, 12)), 1) * (rng.uniform(size=(9, 12)) > 0.3) if masked else None
    v = ref.l1_ssim_loss_backward(x, y, mask)
    check_gradients(lambda image: 100 * ref.l1_ssim_loss(image, y, mask), [x], [100 * v])
    weights = np.ones((9, 12, 1)) if mask is None else mask[..., None]
    l1, similarity = np.mean(np.abs(x - y) * weights), ref.ssim(x * weights, y * weights)
    assert ref.l1_ssim_loss(x, y, mask) == pytest.approx(0.8 * l1 + 0.2 * (1 - similarity))
    assert not v[weights[..., 0] == 0].any()


def test_adam_is_torchs() -> None:
    rng = np.random.default_rng(25)
    start = rng.normal(size=4)
    moved, state = torch.tensor(start, requires_grad=True), (start, np.zeros(4), np.zeros(4))
    optimiser = torch.optim.Adam([moved], lr=0.02, betas=(0.8, 0.95), eps=1e-3)
    for step in range(1, 8):
        gradient = rng.normal(size=4)
        moved.grad = torch.from_numpy(gradient)
        optimiser.step()
        parameter, *moments = state
        state = ref.adam_step(parameter, gradient, *moments, step, lr=0.02, beta1=0.8, beta2=0.95, eps=1e-3)
        np.testing.assert_allclose(state[0], moved.detach(), rtol=1e-12)
