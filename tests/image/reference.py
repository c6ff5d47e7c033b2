"""The image-splatting contract in float64 NumPy: every pixel blends every blob. Works on complex numbers, so complex
steps (Squire & Trapp 1998) give exact derivatives. Shares no code with splat_py."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MIN_ALPHA, MAX_ALPHA, MIN_T = 1 / 255, 0.999, 1 / 255
_STEP = 1e-30
# Relative distance from a threshold within which float32 may decide differently.
_NEAR = 2e-5


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def evaluate(raw: Array, width: int, height: int) -> dict[str, Array]:
    """Raw blobs [9, N] → means, covariances, opacities and colours in the image."""
    size = np.array([[width], [height]])
    mean = (sigmoid(raw[0:2]) * 1.5 - 0.25) * size
    deviation = 0.5 * sigmoid(raw[2:4]) * size
    correlation = 0.98 * (2 * sigmoid(raw[4]) - 1)
    xx, yy = deviation**2 + 1 / 12
    xy = correlation * deviation[0] * deviation[1]
    return {"mean": mean, "covariance": np.stack([xx, xy, yy]), "color": sigmoid(raw[5:8]), "opacity": sigmoid(raw[8])}


def alphas(blobs: dict[str, Array], width: int, height: int) -> Array:
    """α [N, H, W], clamped to the largest alpha but before any other threshold."""
    x, y = np.arange(width) + 0.5, np.arange(height)[:, None] + 0.5
    dx, dy = (c - m[:, None, None] for c, m in zip((x[None, None], y[None]), blobs["mean"], strict=True))
    xx, xy, yy = blobs["covariance"][:, :, None, None]
    sigma = (yy * dx * dx - 2 * xy * dx * dy + xx * dy * dy) / (xx * yy - xy * xy)
    alpha = blobs["opacity"][:, None, None] * np.exp(-sigma / 2)
    return np.where(alpha.real > MAX_ALPHA, MAX_ALPHA, alpha)


def render(raw: Array, width: int, height: int) -> tuple[Array, npt.NDArray[np.bool_]]:
    """The picture [H, W, 3], and the pixels [H, W] in which float32 may decide differently at a threshold."""
    blobs = evaluate(raw, width, height)
    T = np.ones((height, width), raw.dtype)
    image = np.zeros((height, width, 3), raw.dtype)
    near = np.zeros((height, width), bool)
    for alpha, color in zip(alphas(blobs, width, height), blobs["color"].T, strict=True):
        for value, threshold in ((alpha, MIN_ALPHA), (T, MIN_T)):
            near |= np.abs(value.real - threshold) < _NEAR * threshold
        weight = np.where((alpha.real >= MIN_ALPHA) & (T.real >= MIN_T), alpha, 0)
        image += (T * weight)[..., None] * color
        T = T * (1 - weight)
    return image, near


def gradient(raw: Array, v_image: Array) -> Array:
    """∂(Σ image · v_image)/∂raw, [9, N]."""
    height, width, _ = v_image.shape
    result = np.zeros(raw.shape)
    for index in np.ndindex(raw.shape):
        moved = raw.astype(complex)
        moved[index] += 1j * _STEP
        result[index] = np.sum(render(moved, width, height)[0].imag * v_image) / _STEP
    return result
