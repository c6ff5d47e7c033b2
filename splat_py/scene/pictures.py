"""Pictures as files, and pictures side by side."""

from __future__ import annotations

from pathlib import Path

import imageio.v3 as iio
import numpy as np
from numpy.typing import NDArray

from splat_py.files import atomic_path


def to_bytes(image: NDArray[np.floating]) -> NDArray[np.uint8]:
    """An image from 0 to 1 as bytes."""
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)


def beside(*images: NDArray[np.floating]) -> NDArray[np.floating]:
    """Images [H, W, 3] of one height side by side, a thin line between them."""
    line = np.ones((images[0].shape[0], max(images[0].shape[1] // 128, 1), 3), np.float32)
    parts = [part for image in images for part in (line, image)]
    return np.concatenate(parts[1:], axis=1)


def write_image(path: Path, image: NDArray[np.floating]) -> None:
    """Write an image [H, W, 3] from 0 to 1 as PNG or whatever the suffix says, atomically."""
    with atomic_path(path) as temporary:
        iio.imwrite(temporary, to_bytes(image))
