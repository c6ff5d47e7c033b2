"""slang/splat/opencv_pinhole.slang."""

from __future__ import annotations

from functools import partial

import cv2
import numpy as np

from splat_py.shaders import camera_model
from tests.shaders.camera_models import (
    IMAGE,
    NO_LENS,
    along,
    cameras,
    check_axes,
    check_project,
    clamped,
    fields_of,
    lenses,
    opencv_pinhole,
)
from tests.shaders.oracle import assert_value

RNG = np.random.default_rng(57)
# Degrees from the axis: on it, and beyond the image, where linearisation is clamped.
POINTS = along(np.array([0.0, 1, 5, 10, 20, 25, 30, 40] * 5), RNG.uniform(0, 360, 40), np.exp(RNG.uniform(-2, 2, 40)))
LENSES = lenses(RNG, 40)
CAMERA = {"rotation": np.eye(3), "translation": np.zeros(3), "focal": [30.0, 40], "principal": [5.0, 7]}


def test_project() -> None:
    check_project("OpenCVPinhole", opencv_pinhole, POINTS, LENSES)


def test_axes_inside_and_outside_the_clamp() -> None:
    check_axes("OpenCVPinhole", opencv_pinhole, POINTS, LENSES, linearised_at=partial(clamped, **IMAGE))


def test_without_distortion_it_is_a_pinhole() -> None:
    camera = cameras(RNG, len(POINTS)) | NO_LENS
    axes = RNG.normal(size=(len(POINTS), 3, 3))
    for function, arguments in ((camera_model.projectThrough, ()), (camera_model.projectAxesThrough, (axes, IMAGE))):
        assert_value(
            function["OpenCVPinhole"](camera, POINTS, *arguments), function["Pinhole"](camera, POINTS, *arguments), atol=1e-4
        )


def test_as_opencv() -> None:
    K = np.array([[30.0, 0, 5], [0, 40, 7], [0, 0, 1]])
    t = POINTS[:20]
    for lens in LENSES[:3]:
        # OpenCV's order: k1 k2 p1 p2 k3 k4 k5 k6 s1 s2 s3 s4.
        expected, _ = cv2.projectPoints(t, np.zeros(3), np.zeros(3), K, lens[[0, 1, 6, 7, 2, 3, 4, 5, 8, 9, 10, 11]])
        assert_value(camera_model.projectThrough["OpenCVPinhole"](CAMERA | fields_of(lens), t), expected[:, 0])


def test_what_would_be_folded_back_is_outside_the_domain() -> None:
    """r - r³/3 grows up to r = 1; a pole of the ratio; a dip in between; a lens that keeps everything."""
    slopes = np.array([0.0, 0.5, 0.9, 0.99, 1.01, 1.5, 2, 5, 100, 1000])
    t = np.stack([slopes * 0.6, slopes * -0.8, np.ones(10)], -1) * 3
    lens = np.zeros((4, 12))
    lens[0, 0] = -1 / 3
    lens[1, 3] = -1.0
    # r - r³ + 0.4 r⁵ falls from r² = 0.5, and grows again from r² = 1.
    lens[2, :2] = -1.0, 0.4
    lens[3, 0] = 0.1
    expected = slopes < np.array([1.0, 1.0, 0.5**0.5, np.inf])[:, None]
    for i, (coefficients, wanted) in enumerate(zip(lens, expected, strict=True)):
        inside = camera_model.isInDomainThrough["OpenCVPinhole"](CAMERA | fields_of(coefficients), t)
        # Of points far outside, a dip may lie between those at which it is looked for: they are far outside the image.
        np.testing.assert_array_equal(inside[:8], wanted[:8])
        assert i == 2 or (inside == wanted).all()
