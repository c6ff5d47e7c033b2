"""An image as blobs: its file, and its picture at any size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.fields import require_number
from splat_py.files import Layout, load_tensors, save_tensors
from splat_py.fit.checked import require_finite, require_layout, whole_number
from splat_py.fit.checkpoint import reading
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device, get_device
from splat_py.image.pictures import Picture
from splat_py.image.rasterizers import FLOATS, rasterizer_for

_KIND = "splat_py.image"


@dataclass(frozen=True, eq=False)
class ImageFit:
    """An image as blobs.

    Attributes:
        params: [9, N] raw floats: rows centre x, y; variance x, y; anisotropy; red, green, blue; opacity
            (squashed by splat/blob2d.slang). Index is order of depth, 0 in front.
        width, height: of the picture that was fitted, pixels.
        psnr: against that picture, dB.
    """

    params: NDArray[np.float32]
    width: int
    height: int
    psnr: float

    def render(self, width: int | None = None, height: int | None = None, *, device: Device | str | None = None) -> Picture:
        """The picture [height, width, 3], 0 to 1, at any size; by default that of the original, and if one side is given, in
        its proportions.

        Args:
            device: where to render; the default device if None.
        """
        if width is None and height is None:
            width, height = self.width, self.height
        elif width is None:
            width = max(round(int(height or 0) * self.width / self.height), 1)
        elif height is None:
            height = max(round(width * self.height / self.width), 1)
        width, height = check_size(width, height or 0)
        # Blobs are as sharp as the picture they were fitted to: a smaller one is the mean of what would alias.
        across, down = -(-self.width // width), -(-self.height // height)
        device = get_device(device)
        image = draw(device, device.memory.array(check_params(self.params)), across * width, down * height)
        return image.reshape(height, down, width, across, 3).mean(axis=(1, 3))

    def save(self, path: str | Path) -> None:
        """Write to a .safetensors file, atomically."""
        header = {"width": self.width, "height": self.height, "psnr": self.psnr}
        save_tensors(path, _KIND, header, {"params": self.params})

    @classmethod
    def load(cls, path: str | Path) -> ImageFit:
        """Read what `save` wrote.

        Raises:
            SplatError: the file is missing, damaged or something else.
        """
        path = Path(path)
        absent = "name a file that `splat fit-image` or ImageFit.save has written"
        with reading(path, "a file of image blobs", "fit the image again", absent=absent):
            header, tensors = load_tensors(path, _KIND, _check)
            require_finite(tensors)
            return cls(tensors["params"], header["width"], header["height"], float(header["psnr"]))


def _check(header: dict[str, Any], layout: Layout) -> None:
    """Raise if this is not what `ImageFit.save` leaves."""
    check_size(*(whole_number(header, side, 1, 65_535) for side in ("width", "height")))
    if type(header.get("psnr")) not in (int, float) or not abs(header["psnr"]) < 1e6:
        raise ValueError("it has no psnr")
    _, (*_, count) = layout["params"]
    if count == 0:
        raise ValueError("it has no blobs")
    require_layout(layout, {"params": (FLOATS, count)})


def draw(device: Device, parameters: Array, width: int, height: int) -> Picture:
    """Raw blobs [9, N] on the device → picture [height, width, 3]."""
    rasterizer = rasterizer_for(device, parameters.shape[1], width, height)
    rasterizer.reserve(parameters)
    image = device.memory.empty((height, width, 3))
    recorder = device.record()
    rasterizer.record_render(recorder, parameters, image)
    recorder.submit()
    return image.numpy().copy()


def check_params(params: NDArray) -> NDArray[np.float32]:
    """`params` as [9, N] float32.

    Raises:
        SplatError: it is not.
    """
    if params.ndim != 2 or params.shape[0] != FLOATS or params.shape[1] == 0:
        raise SplatError(f"params has shape {list(params.shape)}; it must be [9, N] with at least one blob")
    return np.ascontiguousarray(params, dtype=np.float32)


def check_size(width: int, height: int) -> tuple[int, int]:
    """The same two numbers.

    Raises:
        SplatError: one of them is no side of a picture.
    """
    require_number(width=width, height=height)
    if not (1 <= width <= 65_535 and 1 <= height <= 65_535 and int(width) == width and int(height) == height):
        raise SplatError(f"the size is {width}×{height}; both sides must be from 1 to 65,535 whole pixels")
    return int(width), int(height)
