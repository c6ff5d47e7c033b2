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
from splat_py.gpu.device import Device, get_device
from splat_py.scene.camera import Camera
from splat_py.scene.dataset import Dataset
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.picture_names import picture_names
from splat_py.scene.pictures import beside, inside, write_image
from splat_py.splats.color_correction import corrected_psnr
from splat_py.splats.environment import Environment
from splat_py.splats.loss import SUMS, PhotometricLoss, pack
from splat_py.splats.pose_alignment import align_pose
from splat_py.splats.rendering import render


@dataclass(frozen=True)
class ViewScore:
    """One view's PSNR in dB over the pixels that count, SSIM (11×11 Gaussian window, σ 1.5, zero-padded), and PSNR once the
    render's colours are matched to the photograph's (`corrected_psnr`)."""

    name: str
    psnr: float
    ssim: float
    corrected_psnr: float = math.nan


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

    def to_json(self) -> dict[str, Any]:
        """For a metrics file."""
        means = {"psnr": self.psnr, "ssim": self.ssim, "corrected_psnr": self.corrected_psnr}
        return means | {"views": [asdict(view) for view in self.views]}


def evaluate(
    gaussians: Gaussians,
    dataset: Dataset,
    *,
    antialiased: bool = False,
    align_poses: bool = False,
    environment: Environment | None = None,
    pictures: Path | None = None,
    device: Device | None = None,
) -> Scores:
    """Render the held-out views and compare.

    Args:
        align_poses: move each camera to where its photograph fits the scene best (`align_pose`), as is done for scenes that
            were trained with refined poses.
        environment: behind the scene, in the place of the dataset's background.
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

    return evaluate_views(draw, dataset, dataset.test, pictures, device=device)


def evaluate_views(
    draw: Callable[[Camera], NDArray[np.float32]],
    dataset: Dataset,
    views: Iterable[int],
    pictures: Path | None = None,
    *,
    device: Device | None = None,
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
        measured = *compare(image, photograph, device=device), corrected_psnr(image, photograph)
        scores.append(ViewScore(view.name, *measured))
        if pictures is not None:
            rows, columns = inside(photograph[..., 3])
            pair = beside(photograph[rows, columns, :3] / np.float32(255), image[rows, columns])
            write_image(pictures / names[index], pair)
    if not scores:
        raise SplatError(f"no photograph of {dataset.root} that is held out has a pixel that counts; correct the masks")
    return Scores(scores)


def compare(image: NDArray[np.float32], photograph: NDArray[np.uint8], *, device: Device | None = None) -> tuple[float, float]:
    """PSNR and SSIM of an image [H, W, 3] from 0 to 1 against a photograph [H, W, 4] (rgb, weight); NaN if no pixel counts."""
    device = device or get_device()
    height, width, _ = image.shape
    loss = PhotometricLoss(device, width, height, ssim_lambda=0.2)
    sums = device.memory.empty(SUMS)
    recorder = device.record()
    loss.record(recorder, device.memory.array(image[None]), device.memory.array(pack(photograph)), sums)
    recorder.submit()
    values = loss.values(sums)
    return (values.psnr, values.ssim) if photograph[..., 3].any() else (math.nan, math.nan)
