"""PSNR with colours matched: by hand, and with pixels that do not count."""

from __future__ import annotations

import math

import numpy as np
import pytest

from splat_py.splats.color_correction import corrected_psnr


def photograph(*values: float, weight: int = 255) -> np.ndarray:
    """Grey pixels in a row."""
    rgb = np.repeat(np.asarray(values)[None, :, None], 3, -1)
    return np.dstack([rgb, np.full((1, len(values)), weight)]).astype(np.uint8)


def render(*values: float) -> np.ndarray:
    return np.repeat(np.asarray(values, np.float32)[None, :, None], 3, -1)


def test_affine_differences_cost_nothing() -> None:
    reference = photograph(51, 102, 204)
    assert corrected_psnr(render(0.3, 0.4, 0.6), reference) > 90


def test_by_hand() -> None:
    """Photograph 0, 0.2, 0.4 and render 0.1, 0.1, 0.4: variance 0.08 / 3, covariance 0.06 / 3, slope 0.75; means 0.2 and 0.2,
    offset 0.05. The render less 0.05, over 0.75, is 1/15, 1/15, 7/15."""
    squares = [(1 / 15) ** 2, (1 / 15 - 0.2) ** 2, (7 / 15 - 0.4) ** 2]
    expected = -10 * math.log10(sum(squares) / 3)
    assert corrected_psnr(render(0.1, 0.1, 0.4), photograph(0, 51, 102)) == pytest.approx(expected, abs=1e-4)


def test_only_pixels_that_count() -> None:
    image, reference = render(0.1, 0.1, 0.4, 0.9), photograph(0, 51, 102, 3)
    reference[0, 3, 3] = 0
    assert corrected_psnr(image, reference) == corrected_psnr(image[:, :3], reference[:, :3])
    assert math.isnan(corrected_psnr(image, photograph(1, 2, 3, 4, weight=0)))
