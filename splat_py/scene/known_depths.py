"""Depths that a capture knows: maps beside its photographs, or else the points that COLMAP saw in each of them."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.files import reason
from splat_py.scene.camera import MOST_DISTANCE, Camera
from splat_py.scene.colmap import read_observations
from splat_py.scene.dataset import Dataset
from splat_py.scene.images import Pixels, View, read_picture, undistorted

# Of an array in a .npy file, as of a picture.
_MOST_PIXELS = 1 << 28
# Of depths, world units.
_LEAST = 1e-6


class KnownDepths:
    """Depths [H, W] float32 along the cameras' axes at the pixels of a dataset's photographs, world units, 0 where not known.

    Raises:
        SplatError: the capture has neither maps nor observed points; or cameras whose depth is not along the axis.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._points: dict[str, NDArray[np.float64]] = {}
        if any(view.camera.distortion is not None and view.camera.distortion.fisheye for view in dataset.views):
            raise SplatError(f"{dataset.root} has fisheye photographs, whose depths are distances; use --undistort")
        if all(view.depth_path is None for view in dataset.views):
            if dataset.model is None:
                raise SplatError(
                    f"{dataset.root} knows no depths; give a depth_file_path to frames of transforms.json, or a COLMAP model"
                )
            self._points = read_observations(dataset.model)
            if not any(view.name in self._points for view in dataset.views):
                raise SplatError(f"{dataset.model}: no photograph sees a point; triangulate points with COLMAP")

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        """View `index`'s. Pixels that do not count are not known.

        Raises:
            SplatError: its file is unusable.
        """
        view = self._dataset.views[index]
        size = view.camera.height, view.camera.width
        if view.depth_path is not None:
            depths = load_depths(view)
        elif view.name in self._points:
            depths = depths_of_points(view.camera, self._points[view.name])
        else:
            depths = np.zeros(size, np.float32)
        depths[self._dataset.image(index)[..., 3] == 0] = 0
        return depths


def depths_of_points(camera: Camera, points: NDArray[np.float64]) -> NDArray[np.float32]:
    """Depths [H, W] at the pixels where points [P, 3] lie, through the camera's lens if it has one; of the nearest."""
    depths = np.full((camera.height, camera.width), np.inf, np.float32)
    t = points @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]
    t = t[np.isfinite(t).all(1) & (t[:, 2] > _LEAST) & (t[:, 2] < MOST_DISTANCE)]
    if len(t):
        K = camera.K.copy()
        coefficients = None if camera.distortion is None else np.array(camera.distortion.coefficients)
        pixels = cv2.projectPoints(t, np.zeros(3), np.zeros(3), K, coefficients)[0][:, 0]
        inside = ((pixels >= 0) & (pixels < (camera.width, camera.height))).all(1)
        x, y = pixels[inside].astype(int).T
        np.minimum.at(depths, (y, x), t[inside, 2].astype(np.float32))
    return np.where(np.isinf(depths), np.float32(0), depths)


def load_depths(view: View) -> NDArray[np.float32]:
    """A view's map at its camera's size. The nearest pixel's depth is taken: means of edges lie nowhere.

    Raises:
        SplatError: the file is unusable, or not of the photograph's shape.
    """
    path, lens = view.depth_path, view.lens
    assert path is not None
    stored = _read_array(path) if path.suffix.lower() == ".npy" else _read_picture(path)
    height, width = stored.shape
    if abs(width * lens.height / height - lens.width) > max(1.0, 0.02 * lens.width):
        raise SplatError(
            f"{path} has {width}×{height} pixels and its photograph {lens.width}×{lens.height}; make them the same shape"
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
        raise SplatError(f"{path} has {channels} channels of {pixels.dtype}; store depths as grey PNG of 16 bits, or as .npy")
    return pixels


def _read_array(path: Path) -> Pixels:
    try:
        # Mapped, so that nothing is allocated for what the header says.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy raises what it likes
        raise SplatError(f"{path} is not a readable .npy file ({reason(error)}); store it again") from error
    shape: tuple[int, ...] = getattr(array, "shape", ())
    kind = getattr(array, "dtype", np.dtype(object)).kind
    if len(shape) == 3 and shape[2] == 1:
        array, shape = array[..., 0], shape[:2]
    if len(shape) != 2 or kind not in "fui" or min(shape) < 1 or shape[0] * shape[1] > _MOST_PIXELS:
        raise SplatError(f"{path} holds an array {list(shape)} of kind {kind!r}; depths are numbers [H, W]")
    return array
