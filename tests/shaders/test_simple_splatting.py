"""slang/splat/simple_splatting.slang: differentiated by Slang alone, checked at single pixels."""

from __future__ import annotations

import numpy as np

from splat_py.gpu.device import get_device
from tests.image import reference as ref
from tests.image.scenes import assert_gradients, blobs_of, differentiate, draw


def test_one_pixel() -> None:
    """A picture of one pixel, 12 blobs: value and every gradient."""
    get_device()
    raw = blobs_of(np.random.default_rng(33), 12, deviation=0.3)
    expected, near = ref.render(raw, 1, 1)
    assert not near.any()
    assert np.abs(draw("autodiff", raw, 1, 1) - expected).max() <= 1e-5
    v = np.array([[[1.0, -0.5, 0.25]]])
    assert_gradients(differentiate("autodiff", raw, v, linear=True), ref.gradient(raw, v))


def test_a_pixel_that_is_full_stops() -> None:
    """Opaque blobs in front: those behind T < 1/255 change nothing and get nothing."""
    raw = blobs_of(np.random.default_rng(34), 12, deviation=0.5)
    raw[0:2], raw[8, :3] = 0.0, 5.0
    assert (draw("autodiff", raw, 1, 1) == draw("autodiff", raw[:, :2], 1, 1)).all()
    gradients = differentiate("autodiff", raw, np.ones((1, 1, 3)), linear=True)
    assert gradients[5:8, :2].all() and not gradients[:, 2:].any()
