"""Pictures as files, and pictures side by side."""

from __future__ import annotations

from pathlib import Path

import imageio.v3 as iio
import numpy as np
from numpy.typing import NDArray

from splat_py.files import atomic_path

# Share of a side that a frame takes at most.
_FRAME = 0.05


def to_bytes(image: NDArray[np.floating]) -> NDArray[np.uint8]:
    """An image from 0 to 1 as bytes."""
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)


def beside(*images: NDArray[np.floating]) -> NDArray[np.floating]:
    """Images [H, W, 3] of one height side by side, a thin line between them."""
    line = np.ones((images[0].shape[0], max(images[0].shape[1] // 128, 1), 3), np.float32)
    parts = [part for image in images for part in (line, image)]
    return np.concatenate(parts[1:], axis=1)


def inside(weights: NDArray[np.uint8]) -> tuple[slice, slice]:
    """Rows and columns of a picture without the thin frame that its lens did not see, from its pixels' weights [H, W].

    Undistorting leaves pixels at the edges, of weight 0, that the photograph does not have. Where more than a twentieth of a
    side would go, it is no frame but a mask, and everything stays.
    """
    height, width = weights.shape
    top, bottom, left, right = 0, height, 0, width
    while top < bottom and left < right:
        part = weights[top:bottom, left:right] == 0
        sides = [part[0].mean(), part[-1].mean(), part[:, 0].mean(), part[:, -1].mean()]
        worst = int(np.argmax(sides))
        if not sides[worst]:
            break
        step = [int(side == worst) for side in range(4)]
        top, bottom, left, right = top + step[0], bottom - step[1], left + step[2], right - step[3]
    if max(top, height - bottom) > _FRAME * height + 1 or max(left, width - right) > _FRAME * width + 1:
        return slice(0, height), slice(0, width)
    return slice(top, bottom), slice(left, right)


def write_image(path: Path, image: NDArray[np.floating]) -> None:
    """Write an image [H, W, 3] from 0 to 1 as PNG or whatever the suffix says, atomically."""
    with atomic_path(path) as temporary:
        iio.imwrite(temporary, to_bytes(image))
