"""slang/splat/filter_3d.slang."""

from __future__ import annotations

import numpy as np

from splat_py.shaders import filter_3d as shader
from tests.shaders.camera_models import IMAGE, along
from tests.shaders.oracle import Array, assert_gradients, assert_value, pullback

COUNT = 60
RNG = np.random.default_rng(3)
# Filters from a thousandth of the scales to a thousand times as much, none among them, in scenes of all sizes.
LOG_SCALES = RNG.uniform(np.log(1e-6), np.log(10), (COUNT, 1)) + RNG.uniform(-2, 2, (COUNT, 3))
LOGITS = RNG.uniform(-6, 6, COUNT)
FILTERS = np.exp(LOG_SCALES.mean(1) + RNG.uniform(-7, 7, COUNT)) * (np.arange(COUNT) % 10 > 0)


def smoothed_scale(log_scale: Array, logit: Array) -> Array:
    return np.sqrt(np.exp(2 * log_scale) + FILTERS[:, None] ** 2)


def smoothed_opacity(log_scale: Array, logit: Array) -> Array:
    peaks = np.exp(log_scale) / smoothed_scale(log_scale, logit)
    return peaks.prod(1) / (1 + np.exp(-logit))


def test_smoothed_gaussians() -> None:
    inputs = LOG_SCALES, LOGITS
    actual = shader.smooth(*inputs, FILTERS)
    assert_value(actual, {"scale": smoothed_scale(*inputs), "opacity": smoothed_opacity(*inputs)}, atol=1e-12)
    # Gradients relative to the scale, as scenes have any size.
    for name, f in (("scale", smoothed_scale), ("opacity", smoothed_opacity)):
        value = f(*inputs)
        v = {"scale": np.zeros((COUNT, 3)), "opacity": np.zeros(COUNT)} | {name: RNG.normal(size=value.shape) / value}
        expected = pullback(f, v[name], *inputs)
        if name == "scale":
            actual = shader.smooth.gradients(v, *inputs, FILTERS)
            np.testing.assert_allclose(actual[0], expected[0], rtol=1e-4, atol=1e-6)
            assert not actual[1].any()
        else:
            assert_gradients(shader.smooth, v, [*inputs, FILTERS], [*expected, None], rtol=2e-4)


def test_sampling_frequency_is_focal_length_over_depth() -> None:
    points = along(RNG.uniform(0, 40, COUNT), RNG.uniform(0, 360, COUNT), np.exp(RNG.uniform(-3, 3, COUNT)))
    camera = {"focal": np.array([70.0, 70.0]), "principal": np.array([30.0, 20.0])}
    actual = shader.samplingFrequency["Pinhole"](full(camera), points, IMAGE)
    assert_value(actual, 70 / points[:, 2], rtol=1e-4)
    actual = shader.samplingFrequency["Orthographic"](full(camera), points, IMAGE)
    assert_value(actual, np.full(COUNT, 70.0), rtol=1e-5)


def full(camera: dict[str, Array]) -> dict[str, Array]:
    """With a pose, and a lens that does nothing."""
    zero = {"radial": np.zeros(3), "radialMore": np.zeros(3), "tangential": np.zeros(2), "thinPrism": np.zeros(4)}
    return {"rotation": np.eye(3), "translation": np.zeros(3)} | zero | camera
