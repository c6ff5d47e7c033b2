"""Pictures of Gaussians, without gradients."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from splat_py.errors import SplatError
from splat_py.files import atomic_path
from splat_py.scene.camera import Camera
from splat_py.scene.gaussians import Gaussians
from splat_py.splats.rasterization import rasterization


@torch.no_grad()
def render(
    gaussians: Gaussians,
    camera: Camera,
    background: ArrayLike = (0.0, 0.0, 0.0),
    *,
    antialiased: bool = False,
) -> NDArray[np.float32]:
    """What a camera sees: [H, W, 3], from 0 to 1.

    Args:
        background: rgb from 0 to 1.
        antialiased: as the Gaussians were trained.
    """

    def row(values: ArrayLike) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values, np.float32)[None], device=gaussians.means.device)

    images, _, _ = rasterization(
        gaussians.means,
        gaussians.quats,
        gaussians.scales,
        gaussians.opacities,
        gaussians.sh,
        row(camera.viewmat),
        row(camera.K),
        camera.width,
        camera.height,
        sh_degree=gaussians.sh_degree,
        backgrounds=row(background),
        rasterize_mode="antialiased" if antialiased else "classic",
        backend="native",
    )
    return images[0].clamp(0, 1).cpu().numpy()


def to_bytes(image: NDArray[np.floating]) -> NDArray[np.uint8]:
    """An image from 0 to 1 as bytes."""
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)


def beside(*images: NDArray[np.floating]) -> NDArray[np.floating]:
    """Images of one height side by side, a thin line between them."""
    line = np.ones((images[0].shape[0], max(images[0].shape[1] // 128, 1), 3), np.float32)
    parts = [part for image in images for part in (line, image)]
    return np.concatenate(parts[1:], axis=1)


def write_image(path: Path, image: NDArray[np.floating]) -> None:
    """Write an image from 0 to 1 as PNG or whatever the suffix says, atomically."""
    with atomic_path(path) as temporary:
        iio.imwrite(temporary, to_bytes(image))


def write_video(path: Path, frames: Iterable[NDArray[np.float32]], frames_per_second: int = 30) -> None:
    """Write frames from 0 to 1 as a video (H.264 for .mp4), atomically; odd sides lose a row or a column."""
    try:
        with atomic_path(path) as temporary:
            even = [to_bytes(frame)[: len(frame) // 2 * 2, : frame.shape[1] // 2 * 2] for frame in frames]
            iio.imwrite(temporary, even, plugin="FFMPEG", fps=frames_per_second, macro_block_size=2, quality=8)
    except ValueError as error:
        raise SplatError(f"cannot write a video to {path}: {error}; use a name that ends in .mp4") from error
