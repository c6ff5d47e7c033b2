"""Pictures of all kinds as float32 [H, W, 3] from 0 to 1; the blobs of a fit, its checkpoints, and their files."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from splat_py.base.arguments import as_numpy, background_of
from splat_py.base.errors import SplatError
from splat_py.base.files import Layout, regular, save_tensors
from splat_py.fit.run_folder import reading, require_layout, whole_number
from splat_py.fit.steps import psnr_of
from splat_py.gpu.device import Device, get_device
from splat_py.image.rasterizers import FLOATS, check_shape, check_size, draw
from splat_py.scene.pictures import decode

Picture = NDArray[np.float32]


def read_picture(path: str | Path, background: ArrayLike = (1.0, 1.0, 1.0)) -> Picture:
    """Read a picture file: grey, RGB or RGBA, 8 or 16 bits a channel, turned as its EXIF data says.

    Raises:
        SplatError: the file is missing or not a picture.
    """
    path = Path(path)
    if path.is_dir():
        raise SplatError(f"{path} is a folder; name one picture in it")
    if not path.is_file():
        raise SplatError(f"{path} does not exist; name a picture, such as a .png or a .jpg")
    data = regular(path).read_bytes()
    pixels = decode(path, data, cv2.IMREAD_UNCHANGED)
    if pixels is not None and pixels.ndim == 3 and pixels.shape[2] == 3:
        # OpenCV applies the EXIF orientation only with these flags. Pictures with alpha, 16 bits or one channel rarely have it.
        pixels = decode(path, data, cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    if pixels is None:
        raise SplatError(f"{path} is not a picture that can be read, or is damaged; convert it to PNG or JPEG")
    if pixels.ndim == 3:
        pixels = pixels[..., [2, 1, 0, 3][: pixels.shape[2]]]
    return to_picture(pixels, background, str(path))


def to_picture(pixels: Any, background: ArrayLike = (1.0, 1.0, 1.0), name: str = "image") -> Picture:
    """Make a picture from an array [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]: uint8, uint16, or floats from 0 to 1.

    Args:
        background: rgb from 0 to 1, behind pictures with alpha.
        name: the array's name in messages.
    """
    behind, array = background_of(background), as_numpy(name, pixels)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or array.size == 0:
        raise SplatError(f"{name} has shape {list(np.shape(pixels))}; it must be [H, W], or [H, W, 1, 3 or 4]")
    if array.dtype in (np.uint8, np.uint16):
        values = array.astype(np.float32) / float(np.iinfo(array.dtype).max)
    elif np.issubdtype(array.dtype, np.floating):
        values = array.astype(np.float32)
        if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1):
            raise SplatError(f"{name} holds floats outside 0 … 1 (or NaN); divide by its largest value, or pass uint8")
    else:
        raise SplatError(f"{name} is of type {array.dtype}; use uint8, uint16, or floats from 0 to 1")
    if values.shape[2] == 4:
        values = values[..., :3] * values[..., 3:] + behind * (1 - values[..., 3:])
    return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], 3)))


def psnr(a: NDArray, b: NDArray) -> float:
    """Return the peak signal-to-noise ratio of two pictures from 0 to 1, dB."""
    return psnr_of(float(np.mean((a.astype(np.float64) - b) ** 2)))


_KIND, _CHECKPOINT_KIND = "splat_py.image", "splat_py.image.checkpoint"
_CHECKPOINT_TENSORS = ("params", "m", "v")


@dataclass(frozen=True, eq=False)
class ImageFit:
    """An image as blobs.

    Attributes:
        params: [9, N] raw floats: rows centre x, y; variance x, y; anisotropy; red, green, blue; opacity
            (squashed by splat/blob2d.slang). The index is the order of depth, 0 in front.
        width, height: size of the fitted picture, pixels.
        psnr: PSNR against the fitted picture, dB.
    """

    params: NDArray[np.float32]
    width: int
    height: int
    psnr: float

    def render(self, width: int | None = None, height: int | None = None, *, device: Device | str | None = None) -> Picture:
        """Return the picture [height, width, 3], 0 to 1, at any size: by default the original's, and if one side is given, in
        its proportions. It is rendered on `device`, the default device if None."""
        if width is None and height is None:
            width, height = self.width, self.height
        elif width is None:
            width = max(round(int(height or 0) * self.width / self.height), 1)
        elif height is None:
            height = max(round(width * self.height / self.width), 1)
        width, height = check_size(width, height or 0)
        # Blobs are as sharp as the fitted picture: a smaller one is the mean of a larger render, so that it does not alias.
        across, down = -(-self.width // width), -(-self.height // height)
        device = get_device(device)
        check_shape(self.params.shape)
        params = device.memory.array(np.ascontiguousarray(self.params, dtype=np.float32))
        image = draw(device, params, across * width, down * height).numpy()
        return image.reshape(height, down, width, across, 3).mean(axis=(1, 3))

    def save(self, path: str | Path) -> None:
        """Write to a .safetensors file, atomically."""
        header = {"width": self.width, "height": self.height, "psnr": self.psnr}
        save_tensors(path, _KIND, header, {"params": self.params})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote.

        Raises:
            SplatError: the file is missing, damaged or of another kind.
        """
        path = Path(path)
        absent = "name a file that `splat fit-image` or ImageFit.save has written"
        what, advice = "a file of image blobs", "fit the image again"
        with reading(path, _KIND, _check, what, advice, absent=absent) as (header, tensors):
            return cls(tensors["params"], header["width"], header["height"], float(header["psnr"]))


def _check(header: dict[str, Any], layout: Layout) -> None:
    """Raise an error unless this is what `ImageFit.save` writes."""
    check_size(*(whole_number(header, side, 1, 65_535) for side in ("width", "height")))
    if type(header.get("psnr")) not in (int, float) or not abs(header["psnr"]) < 1e6:
        raise ValueError("it has no psnr")
    _require_blobs(layout, "params")


def _require_blobs(layout: Layout, *names: str) -> None:
    _, (*_, count) = layout["params"]
    if count == 0:
        raise ValueError("it has no blobs")
    require_layout(layout, dict.fromkeys(names, (FLOATS, count)))


@dataclass(frozen=True, eq=False)
class FitCheckpoint:
    """Everything that a fit needs to continue as if it had not stopped."""

    # Steps done, and of the whole run.
    step: int
    steps: int
    # `fingerprint` of the fitted picture.
    picture: str
    # Raw blobs and Adam's moments, [9, N] each.
    params: NDArray[np.float32]
    m: NDArray[np.float32]
    v: NDArray[np.float32]

    def save(self, path: Path) -> None:
        header = {"step": self.step, "steps": self.steps, "picture": self.picture}
        save_tensors(path, _CHECKPOINT_KIND, header, {"params": self.params, "m": self.m, "v": self.v})

    @classmethod
    def load(cls, path: Path) -> Self:
        what, advice, absent = "the checkpoint of a picture's fit", "fit without --resume", "there is no fit to resume"
        with reading(path, _CHECKPOINT_KIND, _check_checkpoint, what, advice, absent=absent) as (header, tensors):
            return cls(header["step"], header["steps"], header["picture"], *(tensors[name] for name in _CHECKPOINT_TENSORS))

    def check_picture(self, picture: Picture) -> None:
        if self.picture != fingerprint(picture):
            raise SplatError("the checkpoint is of another picture, or of another background behind it; fit without --resume")


def _check_checkpoint(header: dict[str, Any], layout: Layout) -> None:
    """Raise an error unless this is what `FitCheckpoint.save` writes."""
    whole_number(header, "step", 0, whole_number(header, "steps", 1, 1 << 31))
    if not isinstance(header.get("picture"), str):
        raise ValueError("it does not name its picture")
    _require_blobs(layout, *_CHECKPOINT_TENSORS)


def fingerprint(picture: Picture) -> str:
    """Return a hash that identifies a picture."""
    return hashlib.sha256(repr(picture.shape).encode() + np.ascontiguousarray(picture).tobytes()).hexdigest()
