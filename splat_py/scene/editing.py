"""Editing of scenes: crop, clean, transform and merge."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from splat_py.base.errors import SplatError
from splat_py.scene.camera import Camera, find_focus, seen_by
from splat_py.scene.camera_paths import circled_subject
from splat_py.scene.formats.packing import FLOAT32_LOGS, StoredGaussians
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.similarity import Similarity

_NEIGHBOURS = 8
# The share of what a camera sees that may be floaters in front of it.
_NEAREST = 0.02


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
    """

    faint: float | None = 0.005
    huge: float | None = 0.5
    isolated: float | None = 20.0
    unseen: int | None = 2
    near: float | None = 0.5


def select(gaussians: Gaussians, rows: NDArray[np.bool_] | NDArray[np.integer]) -> Gaussians:
    """The Gaussians in some rows, given as a mask [N] or as indices."""
    kept = torch.from_numpy(np.ascontiguousarray(rows)).to(gaussians.means.device)
    return gaussians.mapped(lambda tensor: tensor[kept])


def remove_faulty(gaussians: Gaussians) -> tuple[Gaussians, int]:
    """Remove Gaussians with NaN, infinity or a zero quaternion, which some trainers write. Returns the rest and the count."""
    faulty = gaussians.faulty().cpu().numpy()
    return select(gaussians, np.asarray(~faulty)), int(faulty.sum())


def crop(gaussians: Gaussians, lowest: ArrayLike, highest: ArrayLike) -> Gaussians:
    """The Gaussians whose means are in the box from `lowest` to `highest`, world units [3] each. SplatError if it is empty."""
    low, high = np.asarray(lowest, np.float64), np.asarray(highest, np.float64)
    if low.shape != (3,) or high.shape != (3,) or not (low < high).all():
        raise SplatError(f"the box from {low.tolist()} to {high.tolist()} is empty; give the lowest corner first")
    means = gaussians.positions
    return select(gaussians, np.asarray(((means >= low) & (means <= high)).all(axis=1)))


def crop_sphere(gaussians: Gaussians, center: ArrayLike, radius: float) -> Gaussians:
    """The Gaussians whose means are within `radius` of `center` [3], world units. SplatError unless `radius` is above 0."""
    if not radius > 0:
        raise SplatError(f"the sphere's radius is {radius}; it must be above 0")
    away = np.linalg.norm(gaussians.positions - np.asarray(center, np.float64), axis=1)
    return select(gaussians, np.asarray(away <= radius))


def transform(gaussians: Gaussians, similarity: Similarity) -> Gaussians:
    """Move, turn and scale the scene; harmonics turn with it, exactly. SplatError for a rotation of colours other than
    harmonics, or if Gaussians become too far away, too large or too small for float32."""
    turned = not np.array_equal(similarity.rotation, np.eye(3))
    if turned and gaussians.color != "SphericalHarmonics":
        name = gaussians.types["color"][0]
        raise SplatError(f"colours of type {name} cannot be rotated; only move and scale, or write .spz or .splat first")
    before = gaussians.arrays()
    arrays = similarity.of_arrays(before)
    lost = int((_beyond_float32(arrays) & ~_beyond_float32(before)).sum())
    if lost:
        raise SplatError(
            f"scaled by {similarity.scale:g} and moved by {', '.join(f'{x:g}' for x in similarity.translation)}, "
            f"{lost:,} of {len(gaussians):,} Gaussians are too far away, too large or too small for float32; give less"
        )
    moved = Gaussians.of_arrays(arrays).to(gaussians.means.device)
    return replace(moved, splat=gaussians.splat, color=gaussians.color)


def _beyond_float32(arrays: StoredGaussians) -> NDArray[np.bool_]:
    """True for Gaussians [N] without a finite position, or whose largest deviation is 0 or infinite in float32."""
    largest = arrays.log_scales.max(axis=1)
    held = np.isfinite(arrays.means).all(axis=1) & (largest >= FLOAT32_LOGS[0]) & (largest <= FLOAT32_LOGS[1])
    return np.asarray(~held)


def keep_degree(gaussians: Gaussians, degree: int) -> Gaussians:
    """Drop harmonics above `degree`, 0 to 3. SplatError for another degree."""
    if degree not in range(4):
        raise SplatError(f"the degree of harmonics is {degree}; it must be 0, 1, 2 or 3")
    return replace(gaussians, sh=gaussians.sh[:, : (degree + 1) ** 2].contiguous())


def remove_floaters(
    gaussians: Gaussians, floaters: Floaters = Floaters(), cameras: Iterable[Camera] = ()
) -> tuple[Gaussians, dict[str, int]]:
    """Remove faint, huge and isolated Gaussians, and with the capture's cameras unseen and near ones. Returns the scene and the
    number of each kind; a Gaussian of several kinds counts once. SplatError if a threshold is negative or NaN."""
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
    for photographs, camera in enumerate(cameras, 1):  # noqa: B007
        depths, sees = seen_by(camera, means, 3 * largest)
        seen += sees
        if floaters.near is not None and (sees & keep).any():
            close = np.flatnonzero(sees & (depths < floaters.near * np.quantile(depths[sees & keep], _NEAREST)))
            # Large ones that reach into the picture from beside it are mostly surfaces.
            near[close] |= seen_by(camera, means[close], np.zeros(len(close)))[1]
    if photographs and floaters.unseen is not None:
        remove("unseen", seen < min(floaters.unseen, photographs))
    if photographs and floaters.near is not None:
        remove("near", near)
    return select(gaussians, keep), counts


def cleaned(gaussians: Gaussians, cameras: Sequence[Camera]) -> tuple[Gaussians, dict[str, int]]:
    """A scene to send to others: without floaters if its cameras look at one place, and if they go around a subject only that
    (`circled_subject`). Returns it and the number of each kind that was removed: nothing if none would be left."""
    if not (cameras and find_focus(cameras)[1]):
        return gaussians, {}
    clean, counts = remove_floaters(gaussians, cameras=cameras)
    opaque = clean.opacities.detach().cpu().numpy() > 0.5
    if (sphere := circled_subject(cameras, clean.positions[opaque])) is not None:
        before, clean = len(clean), crop_sphere(clean, *sphere)
        counts["around the subject"] = before - len(clean)
    return (clean, counts) if len(clean) else (gaussians, {})


def merge(scenes: Sequence[Gaussians]) -> Gaussians:
    """Merge several scenes into one with the highest harmonics degree among them. SplatError if `scenes` is empty, types
    differ, or some were trained antialiased and others not."""
    if not scenes:
        raise SplatError("there is no scene to merge")
    first = scenes[0]
    if any((scene.types, tuple(scene.params)) != (first.types, tuple(first.params)) for scene in scenes):
        raise SplatError("the scenes have different types of splats or colours; merge scenes of the same types")
    if len(scenes) > 1 and (first.features is not None or first.weights is not None):
        raise SplatError(f"colours of type {first.types['color'][0]} cannot be merged: each scene has its own weights")
    if len({scene.antialiased for scene in scenes}) > 1:
        raise SplatError("some scenes were trained antialiased and others not; merge scenes that agree")
    most = max(scene.sh.shape[1] for scene in scenes)
    padded = [torch.nn.functional.pad(scene.sh, (0, 0, 0, most - scene.sh.shape[1])) for scene in scenes]
    if len(scenes) == 1:
        return first
    names = ("means", "quats", "log_scales", "logit_opacities")
    params = {name: torch.cat([scene.params[name] for scene in scenes]) for name in first.params}
    joined: dict[str, Any] = {name: torch.cat([getattr(scene, name) for scene in scenes]) for name in names}
    return replace(first, sh=torch.cat(padded), params=params, **joined)
