"""The sweeps of the photometric loss against the reference: sums and gradient."""

import numpy as np
import numpy.typing as npt
import pytest

import tests.reference as ref
from splat_py.gpu.device import get_device, tuning_of
from splat_py.gpu.limits import Limits
from splat_py.train.photometric_loss import BAND_BYTES, SUMS, PhotometricLoss, _bands, pack
from tests.reference.arrays import Array
from tests.reference.ssim import ssim_map

SSIM_LAMBDA = 0.2
SIZES = [(1, 1), (7, 5), (37, 53), (64, 64), (8, 8), (9, 1), (1, 23)]


def run(render: Array, photograph: npt.NDArray[np.uint8], ssim_lambda: float) -> tuple[Array, Array]:
    """The gradient [H, W, 3] and the four sums, for a render [H, W, 3] and bytes [H, W, 4]."""
    height, width, _ = render.shape
    device = get_device()
    loss = PhotometricLoss(device, width, height, ssim_lambda)
    sums = device.memory.empty(SUMS)
    with device.recording() as recorder:
        array = device.memory.array
        loss.record(recorder, array(render.astype(np.float32)[None]), array(pack(photograph)), sums)
    return loss.v_render.numpy()[0].astype(np.float64), sums.numpy().sum(0, dtype=np.float64)


def images_of(rng: np.random.Generator, size: tuple[int, int], weights: str) -> tuple[Array, npt.NDArray[np.uint8]]:
    """A render and a similar photograph, with some pixels equal to the byte."""
    height, width = size
    photograph = rng.integers(0, 256, (height, width, 4), dtype=np.uint8)
    if weights == "opaque":
        photograph[..., 3] = 255
    elif weights == "on and off":
        photograph[..., 3] = np.where(rng.random(size) < 0.6, 255, 0)
    render = np.clip(photograph[..., :3] / 255 + 0.2 * rng.normal(size=(height, width, 3)), -0.1, 1.3)
    return render.astype(np.float32).astype(np.float64), photograph


@pytest.mark.parametrize("weights", ["opaque", "on and off", "in between"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_loss_and_gradient(size: tuple[int, int], weights: str) -> None:
    render, photograph = images_of(np.random.default_rng(sum(size)), size, weights)
    truth, mask = photograph[..., :3] / 255, photograph[..., 3] / 255
    gradient, sums = run(render, photograph, SSIM_LAMBDA)

    x, y = render * mask[..., None], truth * mask[..., None]
    expected = [np.abs(x - y).sum(), ssim_map(x, y).sum(), ((x - y) ** 2).sum(), 3 * mask.sum()]
    np.testing.assert_allclose(sums, expected, rtol=1e-4, atol=1e-4)
    count = render.size
    loss = (1 - SSIM_LAMBDA) * sums[0] / count + SSIM_LAMBDA * (1 - sums[1] / count)
    assert abs(loss - ref.l1_ssim_loss(render, truth, mask)) < 1e-5

    v_render = ref.l1_ssim_loss_backward(render, truth, mask)
    # |x - y| has no derivative at 0: for nearly equal values, either sign is right.
    decided = (np.abs(x - y) > 1e-6) | (mask[..., None] == 0)
    assert decided.mean() > 0.5
    largest = np.abs(v_render).max(initial=0.0)
    np.testing.assert_allclose(gradient[decided], v_render[decided], rtol=1e-4, atol=max(1e-9, 1e-4 * largest))
    assert not gradient[mask == 0].any()


@pytest.mark.parametrize("backend", ["cuda", "vulkan"])
def test_tiles_of_gpus(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_device(), "tuning", tuning_of(backend))
    test_loss_and_gradient((45, 83), "in between")


@pytest.mark.parametrize("ssim_lambda", [0.0, 1.0])
def test_each_part_alone(ssim_lambda: float) -> None:
    render, photograph = images_of(np.random.default_rng(1), (37, 53), "opaque")
    truth = photograph[..., :3] / 255
    gradient, _ = run(render, photograph, ssim_lambda)
    expected = -ref.ssim_backward(render, truth) if ssim_lambda else np.sign(render - truth) / render.size
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("rows", [1, 41, 64, 90])
def test_bands_change_nothing(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images whose buffers would be too large are compared in bands of rows, each with a margin for its windows."""
    rng = np.random.default_rng(3)
    width, height = 37, 150
    render, photograph = images_of(rng, (height, width), "in between")
    bytes_of_rows = rows * 5 * width * 3 * 4
    bands = _bands(width, height, bytes_of_rows)
    assert len(bands) > 1 and max(band.rows for band in bands) <= max(rows, 40)
    assert [band.first for band in bands[1:]] == [band.end for band in bands[:-1]] and bands[-1].end == height

    whole, sums = run(render, photograph, SSIM_LAMBDA)
    monkeypatch.setattr("splat_py.train.photometric_loss.BAND_BYTES", bytes_of_rows)
    gradient, banded_sums = run(render, photograph, SSIM_LAMBDA)
    np.testing.assert_array_equal(gradient, whole)
    np.testing.assert_allclose(banded_sums, sums, rtol=1e-6)


def test_no_buffer_of_the_loss_exceeds_a_devices_limit() -> None:
    """Buffers exceeded 2³¹ bytes at 35.8 megapixels: SSIM was 5, and gradients were NaN."""
    for width, height in ((8000, 6000), (6000, 8000), (16384, 10922), (100_000, 1_000), (1_000, 100_000), (700_000, 60)):
        bands = _bands(width, height, BAND_BYTES)
        assert max(band.rows for band in bands) * 5 * width * 3 * 4 <= Limits().buffer_bytes
    assert len(_bands(3840, 2160, BAND_BYTES)) == 1


def test_sums_over_many_pixels_are_not_rounded_away() -> None:
    """If every workgroup adds to the same four floats, a wave's share at ten megapixels is a few of the last units."""
    rng = np.random.default_rng(4)
    width, height = 2000, 1000
    photograph = rng.integers(0, 256, (height, width, 4), dtype=np.uint8)
    render = rng.uniform(size=(height, width, 3))
    _, sums = run(render, photograph, SSIM_LAMBDA)
    weight = photograph[..., 3:] / 255
    difference = (render - photograph[..., :3] / 255) * weight
    exact = [np.abs(difference).sum(), (difference**2).sum(), 3 * weight.sum()]
    np.testing.assert_allclose(sums[[0, 2, 3]], exact, rtol=2e-7)
