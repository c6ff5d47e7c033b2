"""The four sweeps of the photometric loss against the reference: sums and gradient."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import tests.reference as ref
from splat_py.gpu.device import get_device
from splat_py.gpu.kernels import linear_groups
from tests.reference.arrays import Array
from tests.reference.ssim import ssim_map

RUN = 8
SSIM_LAMBDA = 0.2
SIZES = [(1, 1), (7, 5), (37, 53), (64, 64), (8, 8), (9, 1), (1, 23)]


def run(render: Array, photograph: npt.NDArray[np.uint8], ssim_lambda: float) -> tuple[Array, Array]:
    """Gradient [H, W, 3] and the four sums, of a render [H, W, 3] and bytes [H, W, 4]."""
    height, width, _ = render.shape
    device = get_device()
    empty = device.memory.empty
    buffers = {
        "render": device.memory.array(render.astype(np.float32)),
        "photograph": device.memory.array(np.ascontiguousarray(photograph).view(np.uint32)[..., 0]),
        "alongRows": empty((5, height, width, 3)),
        "adjoints": empty((3, height, width, 3)),
        "vRender": empty((height, width, 3)),
        "sums": device.memory.array(np.zeros(4, np.float32)),
    }
    buffers["sumBits"] = buffers["sums"].bits
    uniforms = {"width": width, "height": height, "ssimLambda": ssim_lambda}
    along_rows = linear_groups(height * -(-width // RUN) * 3)
    along_columns = linear_groups(width * 3 * -(-height // RUN))
    recorder = device.record()
    for entry, groups in (
        ("momentsAlongRows", along_rows),
        ("ssimAlongColumns", along_columns),
        ("adjointsAlongRows", along_rows),
        ("lossGradient", along_columns),
    ):
        recorder.dispatch("loss", entry, groups, uniforms, buffers)
    recorder.submit()
    return buffers["vRender"].numpy().astype(np.float64), buffers["sums"].numpy().astype(np.float64)


def images_of(rng: np.random.Generator, size: tuple[int, int], weights: str) -> tuple[Array, npt.NDArray[np.uint8]]:
    """A render and a photograph that is like it, with some pixels that are equal to the byte."""
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
    rng = np.random.default_rng(sum(size))
    render, photograph = images_of(rng, size, weights)
    truth, mask = photograph[..., :3] / 255, photograph[..., 3] / 255
    gradient, sums = run(render, photograph, SSIM_LAMBDA)

    x, y = render * mask[..., None], truth * mask[..., None]
    expected = [np.abs(x - y).sum(), ssim_map(x, y).sum(), ((x - y) ** 2).sum(), 3 * mask.sum()]
    np.testing.assert_allclose(sums, expected, rtol=1e-4, atol=1e-4)
    count = render.size
    loss = (1 - SSIM_LAMBDA) * sums[0] / count + SSIM_LAMBDA * (1 - sums[1] / count)
    assert abs(loss - ref.l1_ssim_loss(render, truth, mask)) < 1e-5

    v_render = ref.l1_ssim_loss_backward(render, truth, mask)
    # |x - y| has no derivative at 0: where both are the same, or nearly, either sign is right.
    decided = (np.abs(x - y) > 1e-6) | (mask[..., None] == 0)
    assert decided.mean() > 0.5
    largest = np.abs(v_render).max(initial=0.0)
    np.testing.assert_allclose(gradient[decided], v_render[decided], rtol=1e-4, atol=max(1e-9, 1e-4 * largest))
    assert not gradient[mask == 0].any()


@pytest.mark.parametrize("ssim_lambda", [0.0, 1.0])
def test_each_part_alone(ssim_lambda: float) -> None:
    rng = np.random.default_rng(1)
    render, photograph = images_of(rng, (37, 53), "opaque")
    truth = photograph[..., :3] / 255
    gradient, _ = run(render, photograph, ssim_lambda)
    expected = -ref.ssim_backward(render, truth) if ssim_lambda else np.sign(render - truth) / render.size
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_equal_images_have_no_loss() -> None:
    rng = np.random.default_rng(2)
    _, photograph = images_of(rng, (37, 53), "opaque")
    render = (photograph[..., :3].astype(np.float32) / np.float32(255)).astype(np.float64)
    gradient, sums = run(render, photograph, SSIM_LAMBDA)
    assert sums[0] < 1e-3 and sums[2] < 1e-6
    np.testing.assert_allclose(sums[1], render.size, rtol=1e-5)
    # At its largest SSIM is flat; L1 there may push with either sign, at its full rate.
    assert np.abs(gradient).max() <= (1 - SSIM_LAMBDA) / render.size * 1.001
