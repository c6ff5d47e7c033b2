"""A radiance field as a user holds it."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from splat_py.errors import SplatError
from splat_py.files import Layout, reason
from splat_py.fit.checked import require_layout
from splat_py.gpu.device import Device, get_device
from splat_py.scene.camera import Camera
from splat_py.volume.box import Box
from splat_py.volume.config import MOST_VOXELS
from splat_py.volume.field_files import existing_field, read_field, save_field
from splat_py.volume.half_storage import stored
from splat_py.volume.marching import March, Volume
from splat_py.volume.rendering import check_grid, pack, picture_of, voxels_per_unit

# A camera that sees less than this share of what lies a voxel away is in a wall.
_WALL = 0.01


@dataclass(frozen=True, eq=False)
class RadianceField:
    """Voxels of density and view-dependent colour in a box; `splat_py.volume.render` says how they are looked at.

    Attributes:
        density: [X, Y, Z] float32 or float16 on the CPU, per world unit; below 0 counts as 0.
        sh: [X, Y, Z, K, 3] of the same dtype, K = 1, 4 or 9.
        box: [2, 3] lower and upper corner in the world.
        background: [3] rgb behind the box.
        contracted: whether the field goes on beyond the box, in contracted space; see `splat_py.volume.render`.

    Raises:
        SplatError: shapes that do not fit, numbers that are not finite, a box without volume.
    """

    density: torch.Tensor
    sh: torch.Tensor
    box: NDArray[np.float64]
    background: NDArray[np.float32]
    contracted: bool = False

    def __post_init__(self) -> None:
        check_grid(self.density, self.sh)
        object.__setattr__(self, "box", Box.of(self.box).numpy())
        object.__setattr__(self, "background", check_background(self.background))

    @property
    def sh_degree(self) -> int:
        """0, 1 or 2."""
        return int(self.sh.shape[3] ** 0.5) - 1

    def render(
        self,
        viewmat: ArrayLike,
        K: ArrayLike,
        width: int,
        height: int,
        *,
        steps_per_unit: float | None = None,
        device: Device | str | None = None,
    ) -> NDArray[np.float32]:
        """What a camera sees: [height, width, 3], from 0 to 1.

        Args:
            viewmat: [4, 4] world → camera, OpenCV axes.
            K: [3, 3] intrinsics in pixels.
            steps_per_unit: samples a world unit; by default one a voxel.

        Warns:
            UserWarning: the camera is in a wall, so that the picture shows nothing else.
        """
        camera = Camera(np.asarray(viewmat, np.float64), np.asarray(K, np.float64), width, height)
        self._warn_of_wall(camera)
        device = get_device(device)
        box = Box.of(self.box)
        steps = steps_per_unit or voxels_per_unit(box, tuple(self.density.shape), self.contracted)
        march = March(box, steps, contracted=self.contracted)
        volume = Volume(device, stored(device, pack(self.density, self.sh)), self.sh.shape[3])
        return picture_of(volume, march, camera, self.background)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write density, sh, box and background to a .safetensors or .npz file, atomically."""
        arrays = {
            "density": self.density.numpy(),
            "sh": self.sh.numpy(),
            "box": self.box,
            "background": self.background,
            **({"contracted": np.ones(1, np.float32)} if self.contracted else {}),
        }
        save_field(path, "radiance field", arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RadianceField:
        """Read what `save` wrote.

        Raises:
            SplatError: the file is missing, damaged or something else.
        """
        path = existing_field(path)
        try:
            arrays = read_field(path, _check)
            halves = all(arrays[name].dtype == np.float16 for name in ("density", "sh"))
            dtype = np.float16 if halves else np.float32
            density, sh = (torch.from_numpy(np.asarray(arrays[name], dtype)) for name in ("density", "sh"))
            return cls(density, sh, arrays["box"], arrays["background"], "contracted" in arrays)
        except Exception as error:  # zipfile and NumPy let their parsers' errors through
            raise SplatError(f"{path} is not a radiance field of splat_py or is damaged: {reason(error)}") from error

    def _warn_of_wall(self, camera: Camera) -> None:
        low, high = self.box
        if self.contracted:
            low, high = low - (high - low) / 2, high + (high - low) / 2
        size = np.array(self.density.shape)
        inside = (camera.position >= low) & (camera.position <= high)
        if not inside.all():
            return
        voxel = np.clip(((camera.position - low) / (high - low) * size).astype(int), 0, size - 1)
        density = float(self.density[tuple(voxel)])
        if np.exp(-max(density, 0.0) * ((high - low) / size).min()) < _WALL:
            place = ", ".join(f"{x:.3g}" for x in camera.position)
            warnings.warn(
                f"the camera at ({place}) stands inside a wall, where the density is {density:.3g}; move it into the open",
                stacklevel=3,
            )


def _check(header: dict[str, Any], layout: Layout) -> None:
    """Raise if these are not the arrays that `RadianceField.save` leaves; they may be of other floats."""
    _, sizes = layout["sh"]
    x, y, z, k, _ = sizes
    if k not in (1, 4, 9) or not 1 <= min(x, y, z) <= max(x, y, z) <= MOST_VOXELS:
        raise ValueError(f"sh has shape {list(sizes)}; it must be [X, Y, Z, K, 3], K = 1, 4 or 9")
    shapes = {"density": (x, y, z), "sh": (x, y, z, k, 3), "box": (2, 3), "background": (3,)}
    if "contracted" in layout:
        shapes["contracted"] = (1,)
    for name, (kind, _) in layout.items():
        if kind not in ("F16", "F32", "F64"):
            raise ValueError(f"{name} is {kind}, which are no floats")
    require_layout(layout, shapes, {name: kind for name, (kind, _) in layout.items()})


def check_background(background: ArrayLike) -> NDArray[np.float32]:
    """rgb as [3] float32.

    Raises:
        SplatError: it is not three finite numbers.
    """
    rgb = np.asarray(background, np.float32)
    if rgb.shape != (3,) or not np.isfinite(rgb).all():
        raise SplatError(f"background is {background!r}; give three finite numbers")
    return rgb
