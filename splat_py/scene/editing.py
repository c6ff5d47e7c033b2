"""Editing of scenes: crop, transform and merge."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from splat_py.base.errors import SplatError
from splat_py.scene.formats.packing import FLOAT32_LOGS, StoredGaussians
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.similarity import Similarity


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
