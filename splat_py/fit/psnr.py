"""Peak signal-to-noise ratio, what reports of a fit are about."""

from __future__ import annotations

import numpy as np


def psnr_of(squared_error: float) -> float:
    """dB, from the mean squared error of values from 0 to 1."""
    return -10 * float(np.log10(max(squared_error, 1e-10)))
