"""Scores of renders against held-out photographs: PSNR, also after matching the render's colours (as RawNeRF's and multinerf's
evaluations do), SSIM, and LPIPS (Zhang et al. 2018)."""

import math
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.base.files import is_file, reason
from splat_py.fit.steps import psnr_of
from splat_py.gpu.device import Device, get_device
from splat_py.render.localization import localize
from splat_py.render.views import render
from splat_py.scene.camera import Camera
from splat_py.scene.dataset import Dataset
from splat_py.scene.environment import Environment
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.partition import visible_points
from splat_py.scene.pictures import beside, inside, picture_names, write_image
from splat_py.train.capture_model import cameras_of
from splat_py.train.learnt_parts import SHARED, Looks
from splat_py.train.photometric_loss import SUMS, WINDOW, Comparison, SsimPasses

# Variances and slopes below this count as 0.
_SMALL = 1e-8
# Views that share less than this with the training views are isolated; points that are enough to tell; names to list.
_SHARED, _MOST_POINTS, _LISTED = 0.1, 1000, 5
# The file of AlexNet's weights in torch's cache, named by torchvision, and the smallest side that AlexNet accepts.
_WEIGHTS, _LEAST = "alexnet-owt-7be5be79.pth", 32


@dataclass(frozen=True)
class ViewScore:
    """Scores of one view: PSNR in dB over the pixels that count; SSIM as in torchmetrics (11×11 Gaussian window, σ 1.5, the
    image mirrored at its edges); PSNR after matching the render's colours to the photograph's (`corrected_psnr`); LPIPS if
    requested; and if the photograph overlaps hardly any training photograph (`isolated_views`)."""

    name: str
    psnr: float
    ssim: float
    corrected_psnr: float = math.nan
    lpips: float | None = None
    isolated: bool = False


@dataclass(frozen=True)
class Scores:
    """Scores of views, and their means."""

    views: list[ViewScore]

    psnr: float = field(init=False)
    ssim: float = field(init=False)
    corrected_psnr: float = field(init=False)
    # None if no view has it.
    lpips: float | None = field(init=False)

    def __post_init__(self) -> None:
        for name in ("psnr", "ssim", "corrected_psnr", "lpips"):
            found = [value for view in self.views if (value := getattr(view, name)) is not None]
            object.__setattr__(self, name, float(np.mean(found)) if found else None)

    def to_json(self) -> dict[str, Any]:
        views = [{name: value for name, value in asdict(view).items() if value is not None} for view in self.views]
        means = {name: value for name, value in vars(self).items() if value is not None and name != "views"}
        return means | {"views": views}


class Lpips:
    """Perceptual distance of two images [H, W, 3] from 0 to 1, by AlexNet's features; 0 for equal images. Sides below 32 pixels
    are padded with the edge pixels. `network` accepts two images [1, 3, H, W] from -1 to 1."""

    def __init__(self, network: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._network = network

    @torch.no_grad()
    def __call__(self, x: NDArray[np.float32], y: NDArray[np.float32]) -> float:
        height, width, _ = x.shape
        border = (0, max(_LEAST - height, 0)), (0, max(_LEAST - width, 0)), (0, 0)
        padded = (torch.from_numpy(np.pad(image, border, mode="edge")).permute(2, 0, 1)[None] for image in (x, y))
        return float(self._network(*(image.clamp(0, 1) * 2 - 1 for image in padded)))


def evaluate(
    gaussians: Gaussians,
    dataset: Dataset,
    *,
    antialiased: bool = False,
    align_poses: bool = False,
    environment: Environment | None = None,
    response: NDArray[np.float32] | None = None,
    pictures: Path | None = None,
    lpips: Lpips | None = None,
    device: Device | str | None = None,
) -> Scores:
    """Render the held-out views and compare them with their photographs.

    Args:
        align_poses: move each camera to where its photograph fits the scene best (`localize`), for scenes trained with refined
            poses: these have moved the scene, so a score at the captured pose would measure the pose instead (Lin et al. 2021,
            BARF, section 4.2).
        environment: shown behind the scene instead of the dataset's background.
        response: vignetting and response of each camera, [cameras, 27], that a run has learnt with `ppisp`
            (`LearntCapture.response`), applied to renders. Photographs of cameras that it has not learnt get the mean.
        lpips: also compute LPIPS.
        pictures: folder for PNGs that show each photograph beside its render.
        device: where to render and to compare; the default device if None.

    Raises:
        SplatError: the dataset holds out no view, or `response` has another number of cameras.
    """
    if not dataset.test:
        raise SplatError(f"{dataset.root} holds out no view to evaluate; load it with test_every of 2 or more")

    background = dataset.background if environment is None else environment
    how: dict[str, Any] = {"background": background, "antialiased": antialiased, "near": dataset.near, "device": device}
    if align_poses:
        views = list(dataset.views)
        for index in dataset.test:
            view, photograph = views[index], dataset.image(index)
            # A masked photograph, or a scene of a few steps, shows nothing to go by.
            with suppress(SplatError):
                views[index] = replace(view, camera=localize(gaussians, photograph, view.camera, **how).camera)
        dataset = replace(dataset, views=views, _images=dataset._images)

    responses = {}
    if response is not None:
        rows = response.reshape(-1, SHARED)
        of_views = np.vstack([rows, rows.mean(0)])[cameras_of(dataset, response)]
        responses = {view.name: row for view, row in zip(dataset.views, of_views, strict=True)}

    def draw(camera: Camera) -> NDArray[np.float32]:
        image = render(gaussians, camera, **how)
        return Looks.develop(get_device(device), image, responses[camera.name]) if responses else image

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
    """Compare some of a dataset's views with `draw(camera)`, [H, W, 3] from 0 to 1. A photograph without a pixel that counts is
    left out, with a warning; SplatError if all are. Another warning names photographs that overlap hardly any other."""
    scores, names = [], picture_names([view.name for view in dataset.views])
    isolated = isolated_views(dataset)
    for index in views:
        view, photograph = dataset.views[index], dataset.image(index)
        if not photograph[..., 3].any():
            warnings.warn(f"{view.name} is left out, because its mask excludes every pixel; correct the mask", stacklevel=2)
            continue
        image = draw(view.camera)
        psnr, ssim = compare(image, photograph, device=device)
        perceived = None if lpips is None else lpips(*both(image, photograph))
        scores.append(ViewScore(view.name, psnr, ssim, corrected_psnr(image, photograph), perceived, index in isolated))
        if pictures is not None:
            rows, columns = inside(photograph[..., 3])
            pair = beside(photograph[rows, columns, :3] / np.float32(255), image[rows, columns])
            write_image(pictures / names[index], pair)
    if not scores:
        raise SplatError(f"the masks of {dataset.root} exclude every pixel of the photographs to compare; correct the masks")
    apart = [score.name for score in scores if score.isolated]
    if apart:
        listed = ", ".join(apart[:_LISTED]) + (" …" if len(apart) > _LISTED else "")
        share = f"{len(apart)} of {len(scores)} held-out photographs show"
        warnings.warn(f"{share} hardly anything that training saw, and lower the scores: {listed}", stacklevel=2)
    return Scores(scores)


def isolated_views(dataset: Dataset) -> set[int]:
    """Return the held-out views that share fewer points with the training views than a tenth of what one of these sees in the
    median. Points are those that COLMAP matched, or those in the cameras' pictures; without any, no view is isolated."""
    if dataset.points is None:
        return set()
    points = dataset.points[0][:: len(dataset.points[0]) // _MOST_POINTS + 1].astype(np.float64)
    seen = visible_points(dataset, points)
    trained, usual = np.concatenate([seen[i] for i in dataset.train]), np.median([len(seen[i]) for i in dataset.train])
    return {i for i in dataset.test if np.isin(seen[i], trained).sum() < _SHARED * usual}


def compare(
    image: NDArray[np.float32], photograph: NDArray[np.uint8], *, device: Device | str | None = None
) -> tuple[float, float]:
    """Return PSNR and SSIM, as in torchmetrics, of an image [H, W, 3] from 0 to 1 against a photograph [H, W, 4] (rgb, weight).

    For SSIM, both are black where the photograph does not count. Both scores are NaN if no pixel counts.
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
    sweeps = SsimPasses(device, width, height, Comparison(0.0, 1.0, packed=False, whole_windows=True))
    with device.recording() as recorder:
        sums = recorder.zeros(SUMS)
        sweeps.record(recorder, arrays[0], arrays[1].as_uint32, sums, None)
    return psnr, float(sums.numpy().sum(0, dtype=np.float64)[1]) / sweeps.ssim_count


def both(image: NDArray[np.float32], photograph: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return an image and a photograph, both [H, W, 3] from 0 to 1, black where the photograph does not count."""
    pixels = photograph.astype(np.float32) / np.float32(255)
    return image * pixels[..., 3:], pixels[..., :3] * pixels[..., 3:]


def color_correct_affine(img: Tensor, ref: Tensor) -> Tensor:
    """Correct each channel of the image by the affine map whose inverse best fits the reference to the image; clip to [0, 1].

    Args:
        img, ref: [..., C], 0 to 1, the same number of pixels.

    Raises:
        SplatError: `img` and `ref` differ in their numbers of pixels or channels.
    """
    images, references = _pixels(img, ref)
    centred = references - references.mean(0)
    variance = (centred**2).mean(0).clamp(min=_SMALL)
    slope = (centred * images).mean(0) / variance
    offset = images.mean(0) - slope * references.mean(0)
    slope = torch.where(slope.abs() < _SMALL, torch.ones_like(slope), slope)
    return ((images - offset) / slope).clip(0, 1).reshape(img.shape)


def corrected_psnr(image: NDArray[np.float32], photograph: NDArray[np.uint8]) -> float:
    """Return the PSNR in dB of an image [H, W, 3] from 0 to 1, after `color_correct_affine`, to a photograph [H, W, 4].

    Only pixels with weight are matched and compared; NaN if there are none. gsplat 1.5.3's trainer reports this as cc_psnr.
    """
    counts = photograph[..., 3] > 0
    if not counts.any():
        return math.nan
    reference = torch.from_numpy(photograph[counts][:, :3].astype(np.float64) / 255)
    corrected = color_correct_affine(torch.from_numpy(image[counts].astype(np.float64)), reference)
    return psnr_of(float(((corrected - reference) ** 2).mean()))


def color_correct_quadratic(img: Tensor, ref: Tensor, num_iters: int = 5, eps: float = 0.5 / 255) -> Tensor:
    """Correct the image by quadratic polynomials of all its channels that best fit the reference; clip to [0, 1].

    Each of `num_iters` fits starts from the result of the last one. A channel's fit leaves out pixels where the channel is
    saturated (within `eps` of 0 or 1) in the given image, in the image corrected so far, or in the reference. Other arguments
    and errors are those of `color_correct_affine`.
    """
    images, references = _pixels(img, ref)
    channels = images.shape[1]
    first, second = torch.triu_indices(channels, channels, device=images.device)

    def unclipped(values: Tensor) -> Tensor:
        return (values >= eps) & (values <= 1 - eps)

    usable = unclipped(images) & unclipped(references)
    for _ in range(num_iters):
        terms = torch.cat([images[:, first] * images[:, second], images, torch.ones_like(images[:, :1])], dim=1)
        counts = usable & unclipped(images)
        warp = []
        for values, known in zip(references.T, counts.T, strict=True):
            rows, targets = (terms * known[:, None]).cpu(), (values * known).cpu()[:, None]
            # gelsd, which torch has only on the CPU, returns the least-norm solution if too few pixels are left.
            warp.append(torch.linalg.lstsq(rows, targets, driver="gelsd").solution[:, 0].to(terms.device))
        images = (terms @ torch.stack(warp, dim=1)).clip(0, 1)
    return images.reshape(img.shape)


def _pixels(img: Tensor, ref: Tensor) -> tuple[Tensor, Tensor]:
    """Reshape both to [P, C]."""
    if img.shape[-1] != ref.shape[-1] or img.numel() != ref.numel():
        raise SplatError(f"img has shape {list(img.shape)} and ref {list(ref.shape)}; their pixels and channels must match")
    return img.reshape(-1, img.shape[-1]), ref.reshape(-1, img.shape[-1])


def open_lpips() -> Lpips | str:
    """Open LPIPS from torchmetrics or lpips, without any download. Returns a clause that says why not if the package or
    AlexNet's weights are not on this machine."""
    if find_spec("torchvision") is None:
        return "torchvision is not installed"
    package = next((name for name in ("torchmetrics", "lpips") if find_spec(name) is not None), None)
    if package is None:
        return "neither torchmetrics nor lpips is installed"
    weights = Path(torch.hub.get_dir()) / "checkpoints" / _WEIGHTS
    if not is_file(weights):
        return f"AlexNet's weights are not on this machine; put {_WEIGHTS} into {weights.parent}"

    def refuse(url: str, *_: Any, **__: Any) -> None:
        raise OSError(f"{url} is not on this machine")

    try:
        with patch.object(torch.hub, "download_url_to_file", refuse):
            if package == "lpips":
                return Lpips(import_module("lpips").LPIPS(net="alex", verbose=False).eval())
            module = import_module("torchmetrics.image.lpip").LearnedPerceptualImagePatchSimilarity
            return Lpips(module(net_type="alex").eval())
    except Exception as error:  # other libraries raise any exception
        return f"{package} cannot open it ({reason(error)})"
