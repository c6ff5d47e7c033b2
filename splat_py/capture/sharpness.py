"""How sharp a picture is, for comparison with others of the same scene."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

# Pixels of the longer side at which pictures are compared: noise of single pixels is not sharpness.
_SIDE = 1000


def sharpness(pixels: NDArray[Any]) -> float:
    """The Laplacian's variance, as a share of the brightness' (Pech-Pacheco et al. 2000): light and contrast cancel.

    Args:
        pixels: [H, W], [H, W, 3] or [H, W, 4], of 8 or 16 bits.
    """
    scale = _SIDE / max(pixels.shape[:2])
    if scale < 1:
        size = max(1, round(pixels.shape[1] * scale)), max(1, round(pixels.shape[0] * scale))
        pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    grey = pixels if pixels.ndim == 2 else pixels[..., :3].mean(axis=2, dtype=np.float32)
    grey = grey.astype(np.float32)
    return float(cv2.Laplacian(grey, cv2.CV_32F).var() / (grey.var() + 1e-6))
