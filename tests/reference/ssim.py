"""SSIM (Wang et al. 2004) with an 11×11 Gaussian window, and the training loss 0.8 L1 + 0.2 (1 − SSIM)."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import correlate1d

from tests.reference.arrays import Array

C1 = 0.01**2
C2 = 0.03**2
WINDOW = np.exp(-0.5 * (np.arange(-5, 6) / 1.5) ** 2)
WINDOW /= WINDOW.sum()


def _blur(image: Array) -> Array:
    """Zero-padded window over [H, W, C]. It is symmetric, so this is also its own transpose."""
    rows = correlate1d(image, WINDOW, axis=0, mode="constant")
    return np.asarray(correlate1d(rows, WINDOW, axis=1, mode="constant"))


def _terms(x: Array, y: Array) -> tuple[Array, Array, Array, Array, Array, Array]:
    mx, my = _blur(x), _blur(y)
    a1 = 2 * mx * my + C1
    a2 = 2 * (_blur(x * y) - mx * my) + C2
    b1 = mx * mx + my * my + C1
    b2 = _blur(x * x) + _blur(y * y) - mx * mx - my * my + C2
    return mx, my, a1, a2, b1, b2


def ssim_map(x: Array, y: Array) -> Array:
    """SSIM [H, W, C] of every pixel and channel of images [H, W, C] in [0, 1]."""
    _, _, a1, a2, b1, b2 = _terms(x, y)
    return a1 * a2 / (b1 * b2)


def ssim(x: Array, y: Array) -> float:
    """Mean SSIM over pixels and channels."""
    return float(np.mean(ssim_map(x, y)))


def ssim_backward(x: Array, y: Array) -> Array:
    """∂ssim/∂x [H, W, C].

    S is a function of the three blurs μ = G∗x, G∗x² and G∗xy; each one's adjoint is blurred back.
    """
    mx, my, a1, a2, b1, b2 = _terms(x, y)
    s = a1 * a2 / (b1 * b2)
    v_mean = 2 * my * (a2 - a1) / (b1 * b2) - 2 * mx * s * (1 / b1 - 1 / b2)
    v_xx = -s / b2
    v_xy = 2 * a1 / (b1 * b2)
    return (_blur(v_mean) + 2 * x * _blur(v_xx) + y * _blur(v_xy)) / x.size


def _masked(x: Array, y: Array, mask: Array | None) -> tuple[Array, Array]:
    return (x, y) if mask is None else (x * mask[..., None], y * mask[..., None])


def l1_ssim_loss(x: Array, y: Array, mask: Array | None = None) -> float:
    """0.8 mean|x − y| + 0.2 (1 − ssim) of images [H, W, C].

    A mask [H, W] of weights multiplies both images first; the means still run over all pixels.
    """
    x, y = _masked(x, y, mask)
    return 0.8 * float(np.mean(np.abs(x - y))) + 0.2 * (1 - ssim(x, y))


def l1_ssim_loss_backward(x: Array, y: Array, mask: Array | None = None) -> Array:
    """∂loss/∂x [H, W, C]; |·| has gradient 0 at 0."""
    x, y = _masked(x, y, mask)
    v_x = 0.8 * np.sign(x - y) / x.size - 0.2 * ssim_backward(x, y)
    return v_x if mask is None else v_x * mask[..., None]
