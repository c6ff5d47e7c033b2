"""Captured scenes, whatever described them: posed photographs, a split, and where to start."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from splat_py.errors import SplatError
from splat_py.fields import LARGEST, require_number
from splat_py.scene.camera import Camera, Distortion, camera_extent, find_focus
from splat_py.scene.colmap import read_colmap
from splat_py.scene.images import Capture, ImageStore, Points, UInt8Array, View
from splat_py.scene.missing_poses import find_model, require_capture
from splat_py.scene.options import Format
from splat_py.scene.transforms import read_transforms

DEFAULT_MEMORY_LIMIT = 4 << 30
NEAR = 0.01


@dataclass(frozen=True, eq=False)
class Dataset:
    """Posed photographs, in the frame and units of the files they came from.

    Attributes:
        root: the folder.
        views: sorted by name.
        train, test: indices into `views`; together all of them, never overlapping.
        points: initial points, xyz [P, 3] float32 and rgb [P, 3] uint8, or None.
        scene_scale: 1.1 × the largest distance of a training camera to their mean, world units, above 0.
        bounds: [2, 3] float64, lower and upper corner of a box to draw random initial points from.
        background: [3] float32 rgb from 0 to 1: what transparent pixels were composited over, and what to
            render onto.
        model: folder of the COLMAP model that it was read from, or None.
    """

    root: Path
    views: list[View]
    train: list[int]
    test: list[int]
    points: Points | None
    scene_scale: float
    bounds: NDArray[np.float64]
    background: NDArray[np.float32]
    _images: ImageStore = field(repr=False)
    model: Path | None = None

    def __len__(self) -> int:
        return len(self.views)

    @property
    def near(self) -> float:
        """Depth of the near plane, world units: gsplat's 0.01, and less in a scene so small that this would hide it."""
        return min(NEAR, NEAR * self.scene_scale)

    def hold(self, memory_limit_bytes: int) -> None:
        """Keep decoded photographs up to so many bytes, all of them from now on if they take no more."""
        self._images.hold(memory_limit_bytes)

    def image(self, index: int) -> UInt8Array:
        """View `index` as [H, W, 4] uint8: rgb, and each pixel's weight: 255 counts, 0 is left out.

        Shared with later callers: do not change it. Any thread may call.
        """
        return self._images[range(len(self.views))[index]]


def load_dataset(
    path: str | os.PathLike[str],
    *,
    format: Format = "auto",
    downscale: float = 1,
    test_every: int = 8,
    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT,
    background: ArrayLike | None = None,
    undistort: bool = True,
) -> Dataset:
    """Load a folder of posed photographs, undistorted to pinhole cameras or as they were taken.

    Args:
        path: the folder. COLMAP: images/ and sparse/0, sparse, colmap/sparse/0 or the model's files themselves. Nerfstudio,
            instant-ngp: transforms.json. NeRF-synthetic: transforms_train.json, transforms_test.json (or
            transforms_val.json).
        format: "colmap", "transforms" or "synthetic"; "auto" takes the first of these that the folder holds.
        downscale: divides the pictures' sides by averaging areas, 1 or more.
        test_every: holds out every so many photographs by sorted name, starting with the first; 0 holds out
            none. NeRF-synthetic brings its own split.
        memory_limit_bytes: above this the decoded photographs stay on disk, except the most recently used
            ones.
        background: rgb from 0 to 1; None is white where photographs have an alpha channel and black
            elsewhere.
        undistort: make of each photograph what a pinhole camera would have taken; what it then lacks at the edges does not
            count. Otherwise photographs stay as they are, and cameras have their lenses' `distortion`.

    Raises:
        SplatError: an argument, a file or the folder is unusable; the message says which and why.

    Warns:
        UserWarning: photographs that are described but do not exist, once, with their number.
    """
    root = Path(path)
    require_number(downscale=downscale, test_every=test_every, memory_limit_bytes=memory_limit_bytes)
    if not downscale >= 1:
        raise SplatError(f"downscale is {downscale}; it must be 1 or more")
    if test_every != int(test_every) or not 0 <= test_every <= LARGEST or test_every == 1:
        raise SplatError(f"test_every is {test_every}; it must be 0 (hold out nothing) or a whole number from 2")
    if memory_limit_bytes < 0:
        raise SplatError(f"memory_limit_bytes is {memory_limit_bytes}; it must be 0 or more")
    require_capture(root)

    captures, held_out = _read(root, format)
    missing = [name for capture in captures for name in capture.missing]
    found = sorted(
        ((view, split) for split, capture in enumerate(captures) for view in capture.views),
        key=lambda pair: pair[0].name,
    )
    if not found:
        if not missing:
            raise SplatError(f"{root} describes the poses of no photograph; compute or export them again")
        none = f"none of the {len(missing)} photographs it describes exists"
        raise SplatError(f"{root}: {none}; put them where the poses' file expects them{_first(missing)}")
    if missing:
        total = len(missing) + len(found)
        warnings.warn(
            f"{root}: {len(missing)} of {total} photographs do not exist and are skipped{_first(missing)}",
            stacklevel=2,
        )

    views = [_downscaled(view if undistort else _with_distortion(view), downscale) for view, _ in found]
    if held_out is not None:
        test = [i for i, (_, split) in enumerate(found) if split == held_out]
    else:
        test = list(range(0, len(views), test_every)) if test_every and len(views) > 1 else []
    train = sorted(set(range(len(views))) - set(test))
    if not train:
        raise SplatError(f"{root}: every photograph is held out and none is left to train on; add some")

    cameras = [views[i].camera for i in train]
    points = _finite(next((capture.points for capture in captures if capture.points is not None), None), root)
    color = _background(background, views)
    return Dataset(
        root=root,
        views=views,
        train=train,
        test=test,
        points=points,
        scene_scale=_scene_scale(cameras, points),
        bounds=_bounds(cameras),
        background=color,
        _images=ImageStore(views, color, memory_limit_bytes),
        model=captures[0].model,
    )


def _read(root: Path, format: str) -> tuple[list[Capture], int | None]:
    """What the folder holds, and which of the captures is the test set where the files say so."""
    transforms, train = root / "transforms.json", root / "transforms_train.json"
    held_out = [root / f"transforms_{split}.json" for split in ("test", "val")]
    available = {
        "colmap": find_model(root) is not None,
        "transforms": transforms.is_file(),
        "synthetic": train.is_file(),
    }
    if format == "auto":
        format = next(name for name, present in available.items() if present)
    if format not in available:
        raise SplatError(f"format is {format!r}; it must be auto, {', '.join(available)}")
    if not available[format]:
        raise SplatError(f"{root} holds no capture of format {format!r}; it has {_names(available)}")
    if format == "colmap":
        return [read_colmap(root)], None
    if format == "transforms":
        return [read_transforms(transforms)], None
    split = next((file for file in held_out if file.is_file()), None)
    if split is None:
        return [read_transforms(train)], None
    return [read_transforms(train), read_transforms(split)], 1


def _names(available: dict[str, bool]) -> str:
    return ", ".join(name for name, present in available.items() if present) or "none that is known"


def _first(missing: list[str]) -> str:
    return f" (the first is {min(missing)[:300]})" if missing else ""


def _with_distortion(view: View) -> View:
    lens = view.lens
    distortion = None if lens.is_pinhole else Distortion(lens.distortion, lens.fisheye)
    return replace(view, camera=replace(view.camera, distortion=distortion))


def _downscaled(view: View, downscale: float) -> View:
    camera = view.camera
    if min(camera.width, camera.height) < downscale:
        raise SplatError(
            f"{view.path} has only {camera.width}×{camera.height} pixels; downscale must not exceed the smaller side"
        )
    return replace(view, camera=camera.scaled(1 / downscale))


def _finite(points: Points | None, root: Path) -> Points | None:
    if points is None:
        return None
    finite = np.isfinite(points[0]).all(axis=1)
    if not finite.all():
        warnings.warn(f"{root}: {int((~finite).sum())} of {finite.size} points are not finite: skipped", stacklevel=3)
    return (points[0][finite], points[1][finite]) if finite.any() else None


def _background(background: ArrayLike | None, views: Sequence[View]) -> NDArray[np.float32]:
    if background is None:
        return np.full(3, any(view.has_alpha for view in views), dtype=np.float32)
    color = np.asarray(background, dtype=np.float32)
    if color.shape != (3,) or not ((color >= 0) & (color <= 1)).all():
        raise SplatError(f"background is {background}; it must be three numbers from 0 to 1")
    return color


def _scene_scale(cameras: Sequence[Camera], points: Points | None) -> float:
    """Inria's scene scale; for cameras in one place the points' median distance, or 1 without points."""
    extent = camera_extent(cameras)
    if extent == 0 and points is not None:
        extent = float(np.median(np.linalg.norm(points[0] - cameras[0].position, axis=1)))
    return extent or 1.0


def _bounds(cameras: Sequence[Camera]) -> NDArray[np.float64]:
    """[2, 3] corners of the cube in which random initial points are worth their memory.

    Around a common focus: as far as the pictures' longer sides reach at the focus (median over the cameras),
    at most to the cameras themselves. Without one: three camera extents around the place four extents ahead,
    so that the box begins one extent before forward-facing cameras and encloses those that look outwards.
    """
    focus, common = find_focus(cameras)
    if common:
        half_sides = [
            float(np.linalg.norm(c.position - focus)) * min(1.0, 0.5 * max(c.width / c.K[0, 0], c.height / c.K[1, 1]))
            for c in cameras
        ]
        half = float(np.median(half_sides))
    else:
        half = 3 * (camera_extent(cameras) or 1.0)
    return np.stack([focus - half, focus + half])
