"""Where blobs start: small and close where the picture has detail, large and far apart elsewhere, in its colours."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from splat_py.gpu.sources import constant
from splat_py.image.pictures import Picture

_MARGIN, _LARGEST_DEVIATION, _PIXEL_VARIANCE = (
    constant("splat/blob2d", name) for name in ("MARGIN", "LARGEST_DEVIATION", "PIXEL_VARIANCE")
)
# Share of the blobs that is spread evenly.
_EVEN_SHARE = 0.1
# Standard deviation of a blob where neighbours are one pixel apart.
_DEVIATION = 0.8
_OPACITY = 0.9
# Distance that sampled values keep from the ends of a squashed range.
_MARGIN_OF_RANGE = 0.02


def blobs_on_detail(picture: Picture, count: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Raw blobs [9, count] drawn with a density that follows the gradient's magnitude, the smaller in front."""
    detail = sum(np.hypot(*np.gradient(_padded(picture[..., k]))) for k in range(3))
    detail = gaussian_filter(np.asarray(detail)[: picture.shape[0], : picture.shape[1]], 1.0)
    density = (1 - _EVEN_SHARE) * detail / max(float(detail.sum()), 1e-12) + _EVEN_SHARE / detail.size
    density /= density.sum()
    chosen = rng.choice(density.size, count, p=density.ravel())
    spacing = 1 / np.sqrt(count * density.ravel()[chosen])
    chosen = chosen[np.argsort(spacing, kind="stable")]
    return _blobs_at(picture, chosen, np.sort(spacing, kind="stable"), rng)


def blobs_anywhere(picture: Picture, count: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Raw blobs [9, count] spread evenly at random, all of one size, in random colours: what `blobs_on_detail` is measured
    against."""
    pixels = picture.shape[0] * picture.shape[1]
    raw = _blobs_at(picture, rng.integers(pixels, size=count), np.full(count, np.sqrt(pixels / count)), rng)
    raw[5:8] = _logit(rng.uniform(size=(3, count)))
    return raw


def _blobs_at(picture: Picture, pixels: NDArray, spacing: NDArray, rng: np.random.Generator) -> NDArray[np.float32]:
    """Round blobs somewhere in the given pixels (flat indices), with the pixels' colours."""
    height, width = picture.shape[:2]
    size = np.array([[width], [height]])
    centers = (np.stack([pixels % width, pixels // width]) + rng.uniform(size=(2, len(pixels)))) / size
    variance = np.maximum((_DEVIATION * spacing) ** 2 - _PIXEL_VARIANCE, 0.2**2)
    raw = np.zeros((9, len(pixels)))
    raw[0:2] = _logit((centers + _MARGIN) / (1 + 2 * _MARGIN))
    raw[2:4] = _logit(np.sqrt(variance) / size / _LARGEST_DEVIATION, least=1e-6)
    raw[5:8] = _logit(picture.reshape(-1, 3)[pixels].T)
    raw[8] = _logit(np.array(_OPACITY))
    return raw.astype(np.float32)


def _padded(channel: NDArray) -> NDArray:
    """At least two pixels a side, as a gradient needs."""
    return np.pad(channel, [(0, max(2 - side, 0)) for side in channel.shape], mode="edge")


def _logit(share: NDArray, least: float = _MARGIN_OF_RANGE) -> NDArray:
    share = np.clip(share, least, 1 - _MARGIN_OF_RANGE)
    return np.log(share / (1 - share))
