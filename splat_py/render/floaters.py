"""Floaters of a scene: Gaussians that are faint, huge, isolated, unseen, right before a camera, or smeared."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from splat_py.base.errors import SplatError
from splat_py.gpu.device import Device
from splat_py.render.cameras import CAMERA_MODELS
from splat_py.render.views import blending_weights
from splat_py.scene.camera import Camera, find_focus, seen_by
from splat_py.scene.camera_paths import circled_subject
from splat_py.scene.dataset import NEAR
from splat_py.scene.editing import crop_sphere, select
from splat_py.scene.gaussians import Gaussians

_NEIGHBOURS = 8
# The share of what a camera sees that may be floaters in front of it.
_NEAREST = 0.02
# The share of a Gaussian's pixels in one photograph from which another one shows it, too.
_LEAST_SHARE = 0.05
# The most pixels of a picture that shows which Gaussians a camera sees.
_MOST_PIXELS = 2**17


@dataclass(frozen=True)
class Floaters:
    """Kinds of floaters and their thresholds; None keeps Gaussians of that kind.

    Attributes:
        faint: remove Gaussians with a lower opacity. Below 1/255 no pixel is drawn; Kerbl et al. 2023 prune at 0.005.
        huge: remove Gaussians whose largest standard deviation exceeds this share of the scene's extent, the distance from the
            median that holds nine tenths of the means, and half their own distance from it: a sky stays.
        isolated: remove Gaussians whose mean distance to their eight nearest neighbours exceeds this multiple of the scene's
            median, and five of their own largest standard deviations.
        unseen: with cameras, remove Gaussians that fewer of them see: one photograph does not say how far away something is.
        near: with cameras, remove Gaussians nearer to one that has their mean in its picture than this share of the depth
            behind which 98 % of what it sees lies.
        smeared: with cameras, remove Gaussians that a single photograph shows, others less than a twentieth of their pixels
            there, and whose largest standard deviation takes more of the camera's view than this, in radians. Smaller ones
            are mostly what is there.
    """

    faint: float | None = 0.005
    huge: float | None = 0.5
    isolated: float | None = 20.0
    unseen: int | None = 2
    near: float | None = 0.5
    smeared: float | None = 0.04


def remove_floaters(
    gaussians: Gaussians,
    floaters: Floaters = Floaters(),
    cameras: Iterable[Camera] = (),
    device: Device | str | None = None,
) -> tuple[Gaussians, dict[str, int]]:
    """Remove faint, huge and isolated Gaussians, and with the cameras of a capture, unseen, near and smeared ones.

    Args:
        cameras: those of the photographs that the scene was trained on; to find smears, each renders it.
        device: where to render; the default is that of `rasterization`.

    Returns:
        The scene, and the number of each kind; a Gaussian of several kinds counts once.

    Raises:
        SplatError: a threshold is negative or NaN.
        NoDeviceError: smears are to be found, and there is no device to render on.
    """
    for name, value in vars(floaters).items():
        if value is not None and not value >= 0:
            raise SplatError(f"{name} is {value}; it must be at least 0")
    keep, counts = np.ones(len(gaussians), bool), {}

    def remove(kind: str, which: NDArray[np.bool_]) -> None:
        counts[kind] = int((keep & which).sum())
        keep[which] = False

    means = gaussians.positions
    largest = gaussians.scales.detach().cpu().double().numpy().max(1, initial=0)
    if floaters.faint is not None:
        remove("faint", gaussians.opacities.detach().cpu().numpy() < floaters.faint)
    if floaters.huge is not None and keep.any():
        away = np.linalg.norm(means - np.median(means[keep], axis=0), axis=1)
        extent = float(np.quantile(away[keep], 0.9))
        remove("huge", (largest > floaters.huge * extent) & (largest > 0.5 * away))
    if floaters.isolated is not None and keep.sum() > _NEIGHBOURS:
        rows = np.flatnonzero(keep)
        distances, _ = cKDTree(means[rows]).query(means[rows], k=_NEIGHBOURS + 1)
        gaps = distances[:, 1:].mean(1)
        lonely = np.zeros(len(keep), bool)
        lonely[rows] = (gaps > floaters.isolated * np.median(gaps)) & (gaps > 5 * largest[rows])
        remove("isolated", lonely)
    seen, near, photographs = np.zeros(len(keep), int), np.zeros(len(keep), bool), 0
    # Pixels in the photograph that shows most of a Gaussian, and in the next one, and the Gaussian's size there, in radians.
    first, second, size = np.zeros((3, len(keep)))
    for photographs, camera in enumerate(cameras, 1):  # noqa: B007
        depths, sees = seen_by(camera, means, 3 * largest)
        seen += sees
        shown = depths[sees & keep]
        if floaters.near is not None and len(shown):
            close = np.flatnonzero(sees & (depths < floaters.near * np.quantile(shown, _NEAREST)))
            # Large ones that reach into the picture from beside it are mostly surfaces.
            near[close] |= seen_by(camera, means[close], np.zeros(len(close)))[1]
        if floaters.smeared is not None and len(shown):
            pixels = _pixels_of(gaussians, camera, float(np.median(shown)), device)
            size = np.where(pixels > first, largest / np.maximum(depths, 1e-12), size)
            first, second = np.maximum(first, pixels), np.maximum(second, np.minimum(first, pixels))
    if photographs and floaters.unseen is not None:
        remove("unseen", seen < min(floaters.unseen, photographs))
    if photographs and floaters.near is not None:
        remove("near", near)
    if photographs > 1 and floaters.smeared is not None:
        remove("smeared", (second < _LEAST_SHARE * first) & (size > floaters.smeared))
    return select(gaussians, keep), counts


def _pixels_of(gaussians: Gaussians, camera: Camera, depth: float, device: Device | str | None) -> NDArray[np.float32]:
    """Pixels [N] of a small picture that each Gaussian makes up, by blending weights; 1 for a camera of one's own type. `depth`
    is about that of the scene."""
    if camera.model not in (None, *CAMERA_MODELS):
        return np.ones(len(gaussians), np.float32)
    small = camera.scaled(min(1.0, (_MOST_PIXELS / (camera.width * camera.height)) ** 0.5))
    # Types of one's own are not compiled for this.
    plain = replace(gaussians, sh=gaussians.sh[:, :1], params={}, splat="Gaussian", color="SphericalHarmonics")
    near = min(NEAR, NEAR * depth)
    # Not antialiased, which would leave small Gaussians out of a small picture.
    return blending_weights(plain, small, torch.ones(small.height, small.width), near=near, device=device)


def cleaned(
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    track: Callable[[Iterable[Camera]], Iterable[Camera]] = iter,
    device: Device | str | None = None,
) -> tuple[Gaussians, dict[str, int]]:
    """A scene to send to others: without floaters if its cameras look at one place, and if they go around a subject only that
    (`circled_subject`). Returns it and the number of each kind that was removed: nothing if none would be left.

    Args:
        track: shows progress while it passes the cameras on.
    """
    if not (cameras and find_focus(cameras)[1]):
        return gaussians, {}
    clean, counts = remove_floaters(gaussians, cameras=track(cameras), device=device)
    opaque = clean.opacities.detach().cpu().numpy() > 0.5
    if (sphere := circled_subject(cameras, clean.positions[opaque])) is not None:
        before, clean = len(clean), crop_sphere(clean, *sphere)
        counts["around the subject"] = before - len(clean)
    return (clean, counts) if len(clean) else (gaussians, {})
