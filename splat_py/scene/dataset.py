"""Captured scenes in any supported description: posed photographs, a split, initial points and known depths."""

import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from splat_py.base.arguments import background_of
from splat_py.base.errors import SplatError
from splat_py.base.fields import LARGEST, require_number, shown
from splat_py.base.files import refusing, regular
from splat_py.base.html import table
from splat_py.scene.camera import MOST_DISTANCE, Camera, camera_extent, find_focus
from splat_py.scene.colmap import read_colmap, read_observations
from splat_py.scene.images import Capture, ImageStore, Points, View, inner_name, late_progress, mask_in, undistorted
from splat_py.scene.pictures import Pixels, UInt8Array, read_picture, thumbnail
from splat_py.scene.sources import Format, Split, find_model, require_capture
from splat_py.scene.transforms import read_transforms

DEFAULT_MEMORY_LIMIT = 4 << 30
NEAR = 0.01
# Photographs that a notebook shows.
_THUMBNAILS = 8
# The most numbers in a .npy file, and the smallest depth in world units.
_MOST_PIXELS, _LEAST = 1 << 28, 1e-6


@dataclass(frozen=True, eq=False)
class Dataset:
    """Posed photographs in the frame and units of their files.

    Attributes:
        root: the capture's folder.
        views: sorted by name.
        train, test: indices into `views`; each view is in exactly one of them.
        points: initial points, xyz [P, 3] float32 and rgb [P, 3] uint8, or None.
        scene_scale: 1.1 × the largest distance of a training camera from their mean, world units, above 0.
        bounds: [2, 3] float64, lower and upper corner of a box for random initial points.
        background: [3] float32 rgb from 0 to 1, behind transparent pixels of photographs and behind rendered views.
        model: folder of the COLMAP model that describes the capture, or None.
    """

    root: Path
    views: list[View]
    train: list[int]
    test: list[int]
    points: Points | None
    scene_scale: float
    bounds: NDArray[np.float64]
    background: NDArray[np.float32]
    _images: ImageStore
    model: Path | None = None

    def __len__(self) -> int:
        return len(self.views)

    def __repr__(self) -> str:
        return f"Dataset({str(self.root)!r}, {len(self.train)} photographs to train on, {len(self.test)} held out)"

    def _repr_html_(self) -> str:
        camera = self.views[0].camera
        rows = {
            "photographs": f"{len(self.train)} to train on, {len(self.test)} held out",
            "size": f"{camera.width}×{camera.height}",
            "points": 0 if self.points is None else f"{len(self.points[0]):,}",
            "scene_scale": f"{self.scene_scale:.4g}",
        }
        shown = range(0, len(self), -(-len(self) // _THUMBNAILS))
        return table(self.root.name, rows) + "".join(thumbnail(partial(self.image, i), self.views[i].name) for i in shown)

    @property
    def train_cameras(self) -> list[Camera]:
        """Cameras of the photographs to train on."""
        return [self.views[view].camera for view in self.train]

    @property
    def pixels(self) -> float:
        """The mean number of pixels of the photographs to train on."""
        return float(np.mean([camera.width * camera.height for camera in self.train_cameras]))

    @property
    def near(self) -> float:
        """Depth of the near plane, world units: gsplat's 0.01, or less if the scene is so small that 0.01 would hide it."""
        return min(NEAR, NEAR * self.scene_scale)

    def hold(self, memory_limit_bytes: int) -> None:
        """Keep decoded photographs up to this many bytes; load all of them now if they fit."""
        self._images.hold(memory_limit_bytes)

    def image(self, index: int) -> UInt8Array:
        """View `index` as [H, W, 4] uint8: rgb and a weight, 255 for pixels that count and 0 for ignored ones.

        The array is shared with later callers: do not change it. Thread-safe.
        """
        return self._images[range(len(self.views))[index]]


def load_dataset(
    path: str | os.PathLike[str],
    *,
    format: Format = "auto",
    downscale: float = 1,
    test_every: int = 8,
    test_split: Split = "middle",
    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT,
    background: ArrayLike | None = None,
    undistort: bool = True,
    cut_out: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Load a folder of posed photographs, undistorted to pinhole cameras or with their lens distortion.

    Args:
        path: the folder. COLMAP: images/ and sparse/0, sparse, colmap/sparse/0 or the model's files themselves. Nerfstudio,
            instant-ngp: transforms.json. NeRF-synthetic: transforms_train.json, transforms_test.json (or transforms_val.json).
        format: "colmap", "transforms" or "synthetic"; "auto" picks the first of these that the folder holds.
        downscale: divides the pictures' sides, by averaging areas; 1 or more.
        test_every: holds out every n-th photograph by sorted name; 0 holds out none. NeRF-synthetic has its own split.
        test_split: "middle" holds out the middle one of n photographs; "first" the first one, as the scores in papers do
            (Barron et al. 2022, Mip-NeRF 360; gsplat's trainer), although it is the end of a walk.
        memory_limit_bytes: if the decoded photographs need more than this, only the most recently used ones stay in memory.
        background: rgb from 0 to 1; None means white if any photograph has an alpha channel, otherwise black.
        undistort: resample each photograph to a pinhole camera; pixels outside the original photograph do not
            count. Otherwise photographs stay unchanged, and cameras have the `distortion` of their lenses.
        cut_out: a folder of masks of an object in place of the capture's masks, under the photographs' paths in images/ (or in
            `path`) + .png, or with another ending. Photographs become transparent where their mask is black, dark grey pixels
            do not count (something hides the object there), and photographs without a mask are left out.

    Raises:
        SplatError: an argument, a file or the folder is unusable; the message says which and why.

    Warns:
        UserWarning: some described photographs do not exist; one warning counts them.
    """
    root = Path(path)
    require_number(downscale=downscale, test_every=test_every, memory_limit_bytes=memory_limit_bytes)
    if not downscale >= 1:
        raise SplatError(f"downscale is {downscale}; it must be 1 or more")
    if test_every != int(test_every) or not 0 <= test_every <= LARGEST or test_every == 1:
        raise SplatError(f"test_every is {test_every}; it must be 0 (hold out nothing) or a whole number from 2")
    if test_split not in get_args(Split):
        raise SplatError(f"test_split is {shown(test_split)}; use {' or '.join(get_args(Split))}")
    if memory_limit_bytes < 0:
        raise SplatError(f"memory_limit_bytes is {memory_limit_bytes}; it must be 0 or more")
    require_capture(root)

    captures, held_out = _read(root, format)
    missing = [name for capture in captures for name in capture.missing]
    first = f" (the first is {min(missing)[:300]})" if missing else ""
    pairs = ((view, split) for split, capture in enumerate(captures) for view in capture.views)
    found = sorted(pairs, key=lambda pair: pair[0].name)
    if cut_out is not None:
        masks = [mask_in(Path(cut_out), inner_name(root, view.path)) for view, _ in found]
        if found and not any(masks):
            raise SplatError(f"{cut_out} holds no mask with the name of a photograph in {root}; name another folder of masks")
        found = [
            (replace(view, mask_path=mask, cut_out=True, has_alpha=True), split)
            for (view, split), mask in zip(found, masks, strict=True)
            if mask is not None
        ]
        if len(found) < len(masks):
            alone = f"{len(masks) - len(found)} of {len(masks)} photographs have no mask in {cut_out} and are left out"
            warnings.warn(alone, stacklevel=2)
    if not found:
        if not missing:
            raise SplatError(f"{root} describes no posed photograph; compute or export the poses again")
        none = f"none of the {len(missing)} described photographs exists"
        raise SplatError(f"{root}: {none}; put them where the file with the poses expects them{first}")
    if missing:
        total = len(missing) + len(found)
        warnings.warn(f"{root}: {len(missing)} of {total} photographs do not exist and are skipped{first}", stacklevel=2)

    views = []
    for view, _ in found:
        camera = view.camera if undistort else view.stored_camera
        if min(camera.width, camera.height) < downscale:
            size = f"{camera.width}×{camera.height}"
            raise SplatError(f"{view.path} has only {size} pixels; downscale must not exceed the smaller side")
        views.append(replace(view, camera=camera.scaled(1 / downscale)))
    if held_out is not None:
        test = [i for i, (_, split) in enumerate(found) if split == held_out]
    else:
        start = min(test_every, len(views)) // 2 if test_split == "middle" else 0
        test = list(range(start, len(views), test_every)) if test_every and len(views) > 1 else []
    train = sorted(set(range(len(views))) - set(test))
    if not train:
        raise SplatError(f"{root}: every photograph is held out, so none is left for training; add photographs")

    cameras = [views[i].camera for i in train]
    points = next((capture.points for capture in captures if capture.points is not None), None)
    if points is not None:
        finite = np.isfinite(points[0]).all(axis=1)
        if not finite.all():
            warnings.warn(f"{root}: {int((~finite).sum())} of {finite.size} points are not finite; skipped", stacklevel=2)
        points = (points[0][finite], points[1][finite]) if finite.any() else None
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
    """The captures in the folder, and the index of the test set if the files define one."""
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
        found = ", ".join(name for name, present in available.items() if present) or "no known format"
        raise SplatError(f"{root} holds no capture of format {format!r}; it has {found}")
    if format == "colmap":
        return [read_colmap(root)], None
    if format == "transforms":
        return [read_transforms(transforms)], None
    splits = [train, *filter(Path.is_file, held_out)][:2]
    return [read_transforms(file) for file in splits], 1 if len(splits) == 2 else None


def _background(background: ArrayLike | None, views: Sequence[View]) -> NDArray[np.float32]:
    if background is None:
        return np.full(3, any(view.has_alpha for view in views), dtype=np.float32)
    return background_of(background)


def _scene_scale(cameras: Sequence[Camera], points: Points | None) -> float:
    """Inria's scene scale; if all cameras coincide, the points' median distance, or 1 without points."""
    extent = camera_extent(cameras)
    if extent == 0 and points is not None:
        extent = float(np.median(np.linalg.norm(points[0] - cameras[0].position, axis=1)))
    return extent or 1.0


def _bounds(cameras: Sequence[Camera]) -> NDArray[np.float64]:
    """Corners [2, 3] of the cube for random initial points.

    With a common focus, the cube is centred there and spans the longer side of the pictures at that distance (median over
    the cameras), at most up to the cameras. Otherwise its half side is three camera extents and its centre lies four extents
    ahead: it begins one extent in front of forward-facing cameras and encloses cameras that look outwards.
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


def fingerprint(dataset: Dataset) -> str:
    """A digest of names, sizes, cameras and split that identifies a dataset without decoding its photographs."""

    def rounded(matrix: NDArray[np.float64]) -> list[float]:
        # The last decimals may differ between machines.
        return (matrix.round(5) + 0.0).ravel().tolist()

    views = []
    for view in dataset.views:
        camera = view.camera
        sizes = view.path.stat().st_size, camera.width, camera.height
        lens = [] if camera.distortion is None else [astuple(camera.distortion)]
        views.append((view.name, *sizes, rounded(camera.viewmat), rounded(camera.K), *lens))
    return _digest([views, dataset.train])


def contents_of(dataset: Dataset, known: tuple[str, str] | None = None) -> tuple[str, str]:
    """A digest of the names, sizes and times of all files that a training reads, and one of their bytes. `known` has earlier
    digests; while the first is the same, the second is not computed again."""
    paths = {path for view in dataset.views for path in (view.path, view.mask_path, view.depth_path) if path is not None}
    if dataset.model is not None:
        paths.update(path for path in dataset.model.iterdir() if path.suffix in (".bin", ".txt"))
    names = sorted((os.path.relpath(path, dataset.root), path) for path in paths)
    statuses = [(name, path.stat()) for name, path in names]
    stamps = _digest([(name, status.st_size, status.st_mtime_ns) for name, status in statuses])
    if known is not None and known[0] == stamps:
        return known

    def hashed(path: Path) -> str:
        with regular(path).open("rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()

    with ThreadPoolExecutor() as pool:
        digests = list(late_progress(pool.map(hashed, (path for _, path in names)), "Checking files", len(names)))
    return stamps, _digest([[name, digest] for (name, _), digest in zip(names, digests, strict=True)])


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode("utf-8", "surrogateescape")).hexdigest()


class KnownDepths:
    """Depths [H, W] along the camera axes at the pixels of a dataset's photographs, world units, 0 where unknown."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._points: dict[str, NDArray[np.float64]] = {}
        if any(view.camera.distortion is not None and view.camera.distortion.fisheye for view in dataset.views):
            raise SplatError(f"{dataset.root} has fisheye photographs, whose rendered depths are distances; use --undistort")
        if all(view.depth_path is None for view in dataset.views):
            if dataset.model is None:
                raise SplatError(
                    f"{dataset.root} has no depths; add depth_file_path to frames of transforms.json, or a COLMAP model"
                )
            self._points = read_observations(dataset.model)
            if not any(view.name in self._points for view in dataset.views):
                raise SplatError(f"{dataset.model}: no photograph sees a point; triangulate points with COLMAP")

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        """The depths of view `index`, 0 at pixels that do not count."""
        view = self._dataset.views[index]
        if view.depth_path is not None:
            depths = load_depths(view)
        elif view.name in self._points:
            depths = depths_of_points(view.camera, self._points[view.name])
        else:
            depths = np.zeros((view.camera.height, view.camera.width), np.float32)
        depths[self._dataset.image(index)[..., 3] == 0] = 0
        return depths


def pixels_of_points(camera: Camera, points: NDArray[np.float64]) -> tuple[NDArray, tuple[NDArray, NDArray], NDArray]:
    """Points [P, 3] in a camera's picture, through its lens: their indices [M], rows and columns [M], and depths [M]."""
    t = points @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]
    ahead = np.flatnonzero(np.isfinite(t).all(1) & (t[:, 2] > _LEAST) & (t[:, 2] < MOST_DISTANCE))
    if not len(ahead):
        return ahead, (ahead, ahead), np.zeros(0)
    coefficients = None if camera.distortion is None else np.array(camera.distortion.coefficients)
    pixels = cv2.projectPoints(t[ahead], np.zeros(3), np.zeros(3), camera.K.copy(), coefficients)[0][:, 0]
    inside = ((pixels >= 0) & (pixels < (camera.width, camera.height))).all(1)
    x, y = pixels[inside].astype(int).T
    return ahead[inside], (y, x), t[ahead[inside], 2]


def depths_of_points(camera: Camera, points: NDArray[np.float64]) -> NDArray[np.float32]:
    """Depths [H, W] of points [P, 3] projected through the camera and its lens; the nearest point wins, 0 elsewhere."""
    depths = np.full((camera.height, camera.width), np.inf, np.float32)
    _, pixels, found = pixels_of_points(camera, points)
    np.minimum.at(depths, pixels, found.astype(np.float32))
    return np.where(np.isinf(depths), np.float32(0), depths)


def surface_pixels(camera: Camera, points: Points | None) -> NDArray[np.bool_]:
    """Pixels [H, W] whose rays meet a surface: those of the capture's points, and all between them that no disc without a
    point, a tenth as wide as the longer side, can cover (a morphological closing, which stays inside their outline)."""
    if points is None:
        return np.zeros((camera.height, camera.width), bool)
    known = (depths_of_points(camera, points[0].astype(np.float64)) > 0).astype(np.uint8)
    side = max(camera.width, camera.height) // 10 | 1
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (side, side))
    # Without a margin, all that is outside the picture would count as a surface.
    closed = cv2.morphologyEx(np.pad(known, side), cv2.MORPH_CLOSE, disc)
    return np.asarray(closed[side:-side, side:-side] > 0)


def load_depths(view: View) -> NDArray[np.float32]:
    """A view's depth map at its camera's size, resampled to the nearest pixel: a mean across an edge lies on no surface."""
    path, lens = view.depth_path, view.lens
    assert path is not None
    stored = _read_array(path) if path.suffix.lower() == ".npy" else _read_picture(path)
    height, width = stored.shape
    if abs(width * lens.height / height - lens.width) > max(1.0, 0.02 * lens.width):
        raise SplatError(
            f"{path} has {width}×{height} pixels but its photograph {lens.width}×{lens.height}; make them the same shape"
        )
    with np.errstate(all="ignore"):
        known: NDArray[np.float32] = np.asarray(stored).astype(np.float32)
        np.multiply(known, np.float32(view.depth_unit), out=known)
        known[~((known > _LEAST) & (known < MOST_DISTANCE))] = 0
    if view.camera.distortion is None and not lens.is_pinhole:
        known = undistorted(_resized(known, lens.width, lens.height), lens, cv2.INTER_NEAREST)
    return _resized(known, view.camera.width, view.camera.height)


def _resized(depths: Pixels, width: int, height: int) -> Pixels:
    return cv2.resize(depths, (width, height), interpolation=cv2.INTER_NEAREST_EXACT)


def _read_picture(path: Path) -> Pixels:
    pixels = read_picture(path, cv2.IMREAD_UNCHANGED)
    if pixels.dtype != np.uint16 or pixels.ndim != 2:
        channels = 1 if pixels.ndim == 2 else pixels.shape[2]
        raise SplatError(f"{path} has {channels} channels of {pixels.dtype}; store depths as 16-bit grey PNG or as .npy")
    return pixels


def _read_array(path: Path) -> Pixels:
    with refusing(f"{path} is not a readable .npy file", "store it again", Exception):  # NumPy raises many types
        # Mapped: a wrong size in the header allocates nothing.
        array = np.load(regular(path), mmap_mode="r", allow_pickle=False)
    shape: tuple[int, ...] = getattr(array, "shape", ())
    kind = getattr(array, "dtype", np.dtype(object)).kind
    if len(shape) == 3 and shape[2] == 1:
        array, shape = array[..., 0], shape[:2]
    if len(shape) != 2 or kind not in "fui" or min(shape) < 1 or shape[0] * shape[1] > _MOST_PIXELS:
        raise SplatError(f"{path} holds an array {list(shape)} of kind {kind!r}; store depths as numbers [H, W]")
    return array
