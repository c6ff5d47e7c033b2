"""How well Gaussians predict the photographs that were held out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.fit.psnr import psnr_of
from splat_py.gpu.device import Device, get_device
from splat_py.scene.camera import Camera
from splat_py.scene.dataset import Dataset
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.picture_names import picture_names
from splat_py.scene.pictures import beside, inside, write_image
from splat_py.splats.color_correction import corrected_psnr
from splat_py.splats.environment import Environment
from splat_py.splats.loss import SUMS, WINDOW, Comparison, Sweeps
from splat_py.splats.lpips import Lpips
from splat_py.splats.pose_alignment import align_pose
from splat_py.splats.rendering import render


@dataclass(frozen=True)
class ViewScore:
    """One view's PSNR in dB over the pixels that count; SSIM (11×11 Gaussian window, σ 1.5, the image mirrored at its edges)
    as torchmetrics has it; PSNR once the render's colours are matched to the photograph's (`corrected_psnr`); and LPIPS where
    it is asked for."""

    name: str
    psnr: float
    ssim: float
    corrected_psnr: float = math.nan
    lpips: float | None = None


@dataclass(frozen=True)
class Scores:
    """Views and their means."""

    views: list[ViewScore]

    @property
    def psnr(self) -> float:
        """Mean over views, dB."""
        return float(np.mean([view.psnr for view in self.views]))

    @property
    def ssim(self) -> float:
        """Mean over views."""
        return float(np.mean([view.ssim for view in self.views]))

    @property
    def corrected_psnr(self) -> float:
        """Mean over views, dB."""
        return float(np.mean([view.corrected_psnr for view in self.views]))

    @property
    def lpips(self) -> float | None:
        """Mean over views, if they have it."""
        found = [view.lpips for view in self.views if view.lpips is not None]
        return float(np.mean(found)) if found else None

    def to_json(self) -> dict[str, Any]:
        """For a metrics file."""
        views = [{name: value for name, value in asdict(view).items() if value is not None} for view in self.views]
        means = {"psnr": self.psnr, "ssim": self.ssim, "corrected_psnr": self.corrected_psnr, "lpips": self.lpips}
        return {**{name: value for name, value in means.items() if value is not None}, "views": views}


def evaluate(
    gaussians: Gaussians,
    dataset: Dataset,
    *,
    antialiased: bool = False,
    align_poses: bool = False,
    environment: Environment | None = None,
    pictures: Path | None = None,
    lpips: Lpips | None = None,
    device: Device | str | None = None,
) -> Scores:
    """Render the held-out views and compare.

    Args:
        align_poses: move each camera to where its photograph fits the scene best (`align_pose`), as is done for scenes that
            were trained with refined poses.
        environment: behind the scene, in the place of the dataset's background.
        lpips: also compute LPIPS (splat_py/splats/lpips.py).
        pictures: where to put each photograph beside its render, as PNG.
        device: where to render and to compare; the default device if None.

    Raises:
        SplatError: the dataset holds out no view.
    """
    if not dataset.test:
        raise SplatError(f"{dataset.root} holds out no view to evaluate; load it with test_every of 2 or more")

    background = dataset.background if environment is None else environment
    how: dict[str, Any] = {"background": background, "antialiased": antialiased, "near": dataset.near, "device": device}
    if align_poses:
        views = list(dataset.views)
        for index in dataset.test:
            view, photograph = views[index], dataset.image(index)
            if photograph[..., 3].any():
                camera = align_pose(gaussians, view.camera, photograph, dataset.scene_scale, **how)
                views[index] = replace(view, camera=camera)
        dataset = replace(dataset, views=views, _images=dataset._images)

    def draw(camera: Camera) -> NDArray[np.float32]:
        return render(gaussians, camera, **how)

    return evaluate_views(draw, dataset, dataset.test, pictures, lpips=lpips, device=device)


def evaluate_views(
    draw: Callable[[Camera], NDArray[np.float32]],
    dataset: Dataset,
    views: Iterable[int],
    pictures: Path | None = None,
    *,
    lpips: Lpips | None = None,
    device: Device | str | None = None,
) -> Scores:
    """Compare some of a dataset's views with what `draw` makes of their cameras: [H, W, 3], from 0 to 1.

    Raises:
        SplatError: no pixel of any photograph counts.

    Warns:
        UserWarning: none of one photograph does. It is left out.
    """
    scores, names = [], picture_names([view.name for view in dataset.views])
    for index in views:
        view, photograph = dataset.views[index], dataset.image(index)
        if not photograph[..., 3].any():
            warnings.warn(f"no pixel of {view.name} counts, so that it is left out; correct its mask", stacklevel=2)
            continue
        image = draw(view.camera)
        psnr, ssim = compare(image, photograph, device=device)
        perceived = None if lpips is None else lpips(*both(image, photograph))
        scores.append(ViewScore(view.name, psnr, ssim, corrected_psnr(image, photograph), perceived))
        if pictures is not None:
            rows, columns = inside(photograph[..., 3])
            pair = beside(photograph[rows, columns, :3] / np.float32(255), image[rows, columns])
            write_image(pictures / names[index], pair)
    if not scores:
        raise SplatError(f"no photograph of {dataset.root} that is held out has a pixel that counts; correct the masks")
    return Scores(scores)


def compare(
    image: NDArray[np.float32], photograph: NDArray[np.uint8], *, device: Device | str | None = None
) -> tuple[float, float]:
    """PSNR and SSIM, as torchmetrics has them, of an image [H, W, 3] from 0 to 1 against a photograph [H, W, 4] (rgb, weight).

    Both are black where the photograph does not count, for SSIM. NaN if no pixel counts.
    """
    if not photograph[..., 3].any():
        return math.nan, math.nan
    x, y = both(image, photograph)
    squared = (x.astype(np.float64) - y) ** 2
    psnr = psnr_of(float(squared.sum() / (3 * (photograph[..., 3] / 255).sum())))
    device = get_device(device)
    border = WINDOW // 2
    arrays = [device.memory.array(np.pad(a, ((border, border), (border, border), (0, 0)), mode="reflect")) for a in (x, y)]
    height, width, _ = arrays[0].shape
    sweeps = Sweeps(device, width, height, Comparison(0.0, 1.0, packed=False, whole_windows=True))
    sums = device.memory.empty(SUMS)
    recorder = device.record()
    recorder.clear(sums)
    sweeps.record(recorder, arrays[0], arrays[1].bits, sums, None)
    recorder.submit()
    return psnr, float(sums.numpy().sum(0, dtype=np.float64)[1]) / sweeps.ssim_count


def both(image: NDArray[np.float32], photograph: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """An image and a photograph, both [H, W, 3] from 0 to 1, black where the photograph does not count."""
    pixels = photograph.astype(np.float32) / np.float32(255)
    return image * pixels[..., 3:], pixels[..., :3] * pixels[..., 3:]
