"""Photographs: from the stored file to pixels, with their lens distortion or undistorted to a pinhole camera."""

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import TypeVar

import cv2
import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from splat_py.base.errors import SplatError
from splat_py.base.files import is_file
from splat_py.scene.camera import Camera, Distortion
from splat_py.scene.pictures import Pixels, UInt8Array, read_header, read_mask, read_picture

_T = TypeVar("_T")

Points = tuple[NDArray[np.float32], UInt8Array]

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".PNG", ".JPG", ".JPEG", ".webp", ".tif", ".tiff", ".bmp")
# Numbers of a lens, and of a frame in transforms.json, are smaller.
MOST_NUMBER = 1e9
# Seconds of loading before a progress bar appears.
_PATIENCE_SECONDS = 2.0


@dataclass(frozen=True)
class Lens:
    """The lens of a stored photograph in OpenCV's pinhole or fisheye model."""

    width: int  # of the stored photograph, pixels
    height: int
    fx: float  # focal lengths and principal point in pixels; the first pixel's centre is (0.5, 0.5)
    fy: float
    cx: float
    cy: float
    distortion: tuple[float, ...]  # (k1, k2, p1, p2, k3), optionally with (k4, k5, k6), or (k1, k2, k3, k4) if fisheye
    fisheye: bool = False  # the coefficients distort the angle from the axis instead of its tangent
    camera: int | None = None  # key of the camera in COLMAP's model; without one, photographs with equal lenses have one camera

    @property
    def K(self) -> NDArray[np.float64]:
        return np.array([[self.fx, 0, self.cx], [0, self.fy, self.cy], [0, 0, 1]])

    @property
    def is_pinhole(self) -> bool:
        """True if the lens has no distortion."""
        return not self.fisheye and not any(self.distortion)


@dataclass(frozen=True, eq=False)
class View:
    # The camera of the picture that `Dataset.image` returns, at its size, undistorted or with the lens's distortion.
    camera: Camera
    lens: Lens  # the lens of the stored photograph
    path: Path  # the stored photograph
    mask_path: Path | None  # a picture whose black pixels are ignored in the photograph, or None
    has_alpha: bool  # the stored photograph has an alpha channel
    # A picture or .npy file of depths with the stored photograph's aspect ratio, and the world units of a depth of 1.
    depth_path: Path | None = None
    depth_unit: float = 1.0
    cut_out: bool = False  # black pixels of the mask make the photograph transparent; only dark grey ones are ignored

    @property
    def name(self) -> str:
        """The photograph's path inside the dataset; views are sorted by it."""
        return self.camera.name

    @property
    def stored_camera(self) -> Camera:
        """The camera of the stored photograph, with its lens's distortion, at the size of `camera`."""
        if self.lens.is_pinhole or self.camera.model is not None:
            return self.camera
        return replace(self.camera, distortion=Distortion(self.lens.distortion, self.lens.fisheye))


@dataclass(frozen=True, eq=False)
class Capture:
    """A capture as read from a folder, at the stored size of its photographs, which are not decoded yet."""

    views: list[View]  # the photographs that exist, in the file's order
    missing: list[str]  # names of described photographs that do not exist
    points: Points | None  # xyz [P, 3] float32 and rgb [P, 3] uint8 in the views' frame, or None
    model: Path | None = None  # folder of the COLMAP model, or None


def open_view(name: str, viewmat: NDArray[np.float64], lens: Lens, path: Path, mask_path: Path | None) -> View:
    """The view of the photograph at `path`, at its stored size; `lens` may be calibrated at another size."""
    for number in (lens.fx, lens.fy, lens.cx, lens.cy, *lens.distortion):
        if not abs(number) < MOST_NUMBER:
            raise SplatError(f"{name}: its lens has the number {number:g}; it must be finite and below {MOST_NUMBER:g}")
    width, height, has_alpha = read_header(path)
    fitted = _fit(lens, width, height, path)
    return View(Camera(viewmat, fitted.K, width, height, name), fitted, path, mask_path, has_alpha)


def _fit(lens: Lens, width: int, height: int, path: Path) -> Lens:
    """`lens` rescaled from its calibrated size to the photograph at `path` of `width` × `height`."""
    if (lens.width, lens.height) == (width, height):
        return lens
    # One pixel is rounding; a larger difference means a cropped or rotated picture, which scaling K cannot describe.
    if abs(width * lens.height / lens.width - height) > max(1.0, 0.02 * height):
        what = f"{path} has {width}×{height} pixels but its lens was calibrated at {lens.width}×{lens.height}"
        if (height, width) == (lens.width, lens.height):
            upright = "if the poses are of upright photographs, rotate the files, for example `magick mogrify -auto-orient`"
            raise SplatError(f"{what}: it lies on its side, and EXIF orientation is ignored; {upright}")
        raise SplatError(
            f"{what}, another shape; use the photographs the poses were computed from, not rotated or cropped ones"
        )
    sx, sy = width / lens.width, height / lens.height
    fx, fy, cx, cy = lens.fx * sx, lens.fy * sy, lens.cx * sx, lens.cy * sy
    # The coefficients have no unit and do not scale.
    return replace(lens, width=width, height=height, fx=fx, fy=fy, cx=cx, cy=cy)


@lru_cache(maxsize=2)
def _undistortion_maps(lens: Lens) -> tuple[Pixels, Pixels]:
    """Positions x and y [H, W] in the photograph of each pixel of the undistorted picture, for cv2.remap."""
    K = lens.K
    K[:2, 2] -= 0.5  # OpenCV counts pixel centres at whole numbers
    size, coefficients = (lens.width, lens.height), np.array(lens.distortion)
    initialise = cv2.fisheye.initUndistortRectifyMap if lens.fisheye else cv2.initUndistortRectifyMap
    map_x, map_y = initialise(K, coefficients, np.eye(3), K, size, cv2.CV_32FC1)

    # Beyond the radius at which the distorted radius stops growing, the formula maps places outside the lens's view
    # back into the photograph. Send them far away: the lens never saw them.
    turn, _ = _turn(lens)
    if lens.fisheye:
        turn = math.tan(turn) if turn < math.pi / 2 else math.inf
    unseen = _radii(lens) > turn
    map_x[unseen] = map_y[unseen] = -1e4
    return map_x, map_y


def undistorted(pixels: Pixels, lens: Lens, interpolation: int, outside: float = 0) -> Pixels:
    """Undistort a stored photograph, or a map of its size, to a pinhole camera."""
    map_x, map_y = _undistortion_maps(lens)
    return cv2.remap(pixels, map_x, map_y, interpolation, borderMode=cv2.BORDER_CONSTANT, borderValue=(outside,))


def _turn(lens: Lens) -> tuple[float, float]:
    """The radius on the plane z = 1, or the angle of a fisheye, at which the distorted radius stops growing, and the distorted
    radius there; infinity for both if it never stops."""
    d = lens.distortion
    # r_d = r N(s) / D(s) with s = r² grows while (N + 2 s N') D - 2 s N D' and D are positive.
    radial, divisor = (d, ()) if lens.fisheye else ((d[0], d[1], d[4]), d[5:8])
    s = Polynomial([0.0, 1.0])
    N, D = Polynomial([1.0, *radial]), Polynomial([1.0, *divisor])
    slope = (N + 2 * s * N.deriv()) * D - 2 * s * N * D.deriv()
    # A smaller coefficient bends no ray within a degree of a right angle to the axis; its roots could overflow.
    roots = [complex(root) for polynomial in (slope, D) for root in polynomial.trim(1e-30).roots()]
    turns = [root.real for root in roots if abs(root.imag) < 1e-9 and root.real > 0]
    if not turns:
        return math.inf, math.inf
    turn = math.sqrt(min(turns))
    return turn, turn * float(N(turn**2) / D(turn**2))


@lru_cache(maxsize=2)
def _out_of_reach(lens: Lens) -> NDArray[np.bool_]:
    """True for pixels [H, W] of the photograph that the lens formula reaches from no point in front of the camera."""
    return _radii(lens) > _turn(lens)[1]


def _radii(lens: Lens) -> NDArray[np.float64]:
    """Each pixel's distance [H, W] from the principal point, on the plane z = 1."""
    x = (np.arange(lens.width) + 0.5 - lens.cx) / lens.fx
    y = (np.arange(lens.height) + 0.5 - lens.cy) / lens.fy
    return np.hypot(x[None, :], y[:, None])


def load_view(view: View, background: NDArray[np.float32]) -> UInt8Array:
    """Decode a view as [H, W, 4] uint8 at its camera's size, undistorted if the camera is. The fourth channel is 255 if a
    pixel counts, 0 if mask or lens exclude any part of it. Transparent pixels are composited over `background`, 0 to 1."""
    rgb: Pixels = _decode(view.path, background)
    height, width = rgb.shape[:2]
    if (width, height) != (view.lens.width, view.lens.height):
        raise SplatError(f"{view.path} changed its size while the dataset was in use; load the dataset again")
    ignored: Pixels = np.zeros((height, width), np.uint8)
    if view.mask_path is not None:
        mask = read_mask(view.mask_path, width, height)
        ignored[mask <= mask.max() // 2] = 255
        if view.cut_out:
            ignored[mask == 0] = 0
            rgb[mask == 0] = np.rint(255 * background)

    if view.camera.distortion is not None:
        ignored[_out_of_reach(view.lens)] = 255
    elif not view.lens.is_pinhole:
        rgb = undistorted(rgb, view.lens, cv2.INTER_LINEAR)
        ignored = undistorted(ignored, view.lens, cv2.INTER_LINEAR, outside=255)
    image = averaged(rgb, ignored, view.camera)
    if not image[..., 3].any():
        what = view.mask_path or view.path
        raise SplatError(f"{what} excludes every pixel of {view.name}; correct it or remove the photograph")
    return image


def averaged(rgb: Pixels, ignored: Pixels, camera: Camera) -> UInt8Array:
    """Shrink a photograph [H, W, 3] to a camera's size by averaging areas, and add weights: a pixel counts only if `ignored`
    [H, W] is 0 at all pixels that it averages."""
    size = camera.width, camera.height
    if rgb.shape[1::-1] != size:
        rgb = cv2.resize(np.ascontiguousarray(rgb), size, interpolation=cv2.INTER_AREA)
        # float32 keeps the trace of a single ignored pixel among thousands; uint8 would round it away.
        ignored = cv2.resize((ignored > 0).astype(np.float32), size, interpolation=cv2.INTER_AREA)
    return np.dstack([rgb, np.where(ignored > 0, 0, 255).astype(np.uint8)])


def find_mask(root: Path, path: Path) -> Path | None:
    """The mask in `root`/masks of a photograph in `root`/images: it has the same stem, or (COLMAP) the name + .png."""
    images = root / "images"
    return mask_in(root / "masks", path.relative_to(images)) if path.is_relative_to(images) else None


def inner_name(root: Path, path: Path) -> Path:
    """The relative path of a photograph's mask in a folder of masks, without its ending: that of the photograph inside of
    `root`/images, or of `root`. SplatError if the photograph is elsewhere."""
    for folder in (root / "images", root):
        if path.is_relative_to(folder) and ".." not in (name := path.relative_to(folder)).parts:
            return name
    raise SplatError(f"{path} lies outside of the capture {root}, so its mask has no name; name the capture that holds it")


def mask_in(folder: Path, name: Path) -> Path | None:
    """The mask in `folder` for the photograph with the relative path `name`."""
    base = folder / name
    candidates = [base.with_name(base.name + ".png"), *(base.with_suffix(suffix) for suffix in IMAGE_SUFFIXES)]
    return next((candidate for candidate in candidates if is_file(candidate)), None)


def _decode(path: Path, background: NDArray[np.float32]) -> UInt8Array:
    """Decode pixels as stored, [H, W, 3] uint8 rgb; EXIF rotation is ignored, since poses refer to the stored pixels."""
    pixels = read_picture(path, cv2.IMREAD_UNCHANGED)
    if pixels.dtype == np.uint16:
        pixels = (pixels.astype(np.uint32) * 255 + 32767) // 65535
    elif pixels.dtype != np.uint8:
        raise SplatError(f"{path} holds {pixels.dtype} values; convert it to 8 or 16 bits per channel")
    pixels = pixels.astype(np.uint8, copy=False)
    if pixels.ndim == 2:
        return np.repeat(pixels[..., None], 3, axis=2)
    if pixels.shape[2] == 3:
        return np.ascontiguousarray(pixels[..., ::-1])
    if pixels.shape[2] != 4:
        raise SplatError(f"{path} has {pixels.shape[2]} channels; convert it to grey, RGB or RGBA")
    alpha = pixels[..., 3:].astype(np.float32) / 255
    return np.rint(pixels[..., 2::-1] * alpha + 255 * background * (1 - alpha)).astype(np.uint8)


class ImageStore:
    """A thread-safe cache of a dataset's decoded photographs: all of them, or above a limit the most recently used ones."""

    def __init__(self, views: Sequence[View], background: NDArray[np.float32], memory_limit_bytes: int) -> None:
        self._views, self._background = views, background
        self.hold(memory_limit_bytes)

    def hold(self, memory_limit_bytes: int) -> None:
        views, background = self._views, self._background
        sizes = [4 * view.camera.width * view.camera.height for view in views]
        fits = sum(sizes) <= memory_limit_bytes
        capacity = len(sizes) if fits else max(1, memory_limit_bytes // max(sizes))
        self._load = lru_cache(capacity)(lambda index: load_view(views[index], background))
        if not fits:
            return
        pool = ThreadPoolExecutor()
        try:
            for _ in late_progress(pool.map(self._load, range(len(sizes))), "Photographs", len(sizes)):
                pass
        finally:
            pool.shutdown(cancel_futures=True)
            _undistortion_maps.cache_clear()
            _out_of_reach.cache_clear()

    def __getitem__(self, index: int) -> UInt8Array:
        return self._load(index)


def late_progress(items: Iterable[_T], what: str, total: int) -> Iterator[_T]:
    """Yield the items, with a progress bar on stderr that appears after two seconds."""
    began, progress = monotonic(), Progress(console=Console(stderr=True), transient=True)
    bar = progress.add_task(what, total=total)
    try:
        for item in items:
            yield item
            progress.advance(bar)
            if monotonic() - began > _PATIENCE_SECONDS:
                progress.start()
    finally:
        if progress.live.is_started:
            progress.stop()
