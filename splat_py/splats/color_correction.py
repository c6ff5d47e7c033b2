"""Colours of an image matched to those of another before they are compared, as RawNeRF's and multinerf's evaluations do."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.fit.psnr import psnr_of

# Below these, variances and slopes count as none.
_SMALL = 1e-8


def color_correct_affine(img: Tensor, ref: Tensor) -> Tensor:
    """The image by that affine map of each channel whose inverse fits the reference to the image best, clipped to [0, 1].

    Args:
        img, ref: [..., C], 0 to 1, the same number of pixels.

    Raises:
        SplatError: numbers of pixels or channels that differ.
    """
    images, references = _pixels(img, ref)
    centred = references - references.mean(0)
    variance = (centred**2).mean(0).clamp(min=_SMALL)
    slope = (centred * images).mean(0) / variance
    offset = images.mean(0) - slope * references.mean(0)
    slope = torch.where(slope.abs() < _SMALL, torch.ones_like(slope), slope)
    return ((images - offset) / slope).clip(0, 1).reshape(img.shape)


def corrected_psnr(image: NDArray[np.float32], photograph: NDArray[np.uint8]) -> float:
    """PSNR in dB of an image [H, W, 3] from 0 to 1, matched by `color_correct_affine` to a photograph [H, W, 4] (rgb, weight).

    Only pixels that count are matched and compared; NaN if none does. gsplat 1.5.3's trainer reports the same as cc_psnr.
    """
    counts = photograph[..., 3] > 0
    if not counts.any():
        return math.nan
    reference = torch.from_numpy(photograph[counts][:, :3].astype(np.float64) / 255)
    corrected = color_correct_affine(torch.from_numpy(image[counts].astype(np.float64)), reference)
    return psnr_of(float(((corrected - reference) ** 2).mean()))


def color_correct_quadratic(img: Tensor, ref: Tensor, num_iters: int = 5, eps: float = 0.5 / 255) -> Tensor:
    """The image by quadratic polynomials of all its channels that fit the reference best, clipped to [0, 1].

    Each of `num_iters` fits starts from the last one's result. A channel's fit leaves out those pixels where it is saturated
    (within `eps` of 0 or 1) in the image as given, as corrected so far, or in the reference.

    Args:
        img, ref: [..., C], 0 to 1, the same number of pixels.

    Raises:
        SplatError: numbers of pixels or channels that differ.
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
        warp = [_fit(terms, references[:, channel], counts[:, channel]) for channel in range(channels)]
        images = (terms @ torch.stack(warp, dim=1)).clip(0, 1)
    return images.reshape(img.shape)


def _fit(terms: Tensor, values: Tensor, counts: Tensor) -> Tensor:
    """The least squares solution over the rows that count."""
    rows, targets = terms * counts[:, None], values * counts
    # Where too few pixels are left for a unique solution, that of least norm; only the CPU has the method for it.
    solution = torch.linalg.lstsq(rows.cpu(), targets.cpu()[:, None], driver="gelsd").solution[:, 0]
    return solution.to(terms.device)


def _pixels(img: Tensor, ref: Tensor) -> tuple[Tensor, Tensor]:
    """Both as [P, C]."""
    if img.shape[-1] != ref.shape[-1] or img.numel() != ref.numel():
        raise SplatError(f"img has shape {list(img.shape)} and ref {list(ref.shape)}; they need as many pixels and channels")
    return img.reshape(-1, img.shape[-1]), ref.reshape(-1, img.shape[-1])
