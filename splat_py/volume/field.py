"""A radiance field as a user holds it."""

from __future__ import annotations

import math
import os
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from splat_py.errors import SplatError
from splat_py.files import Layout, atomic_path, load_tensors, reason, save_tensors
from splat_py.fit.checked import require_layout
from splat_py.gpu.device import Device, get_device
from splat_py.scene.camera import Camera
from splat_py.volume.marching import Box, Image, March, Volume
from splat_py.volume.rendering import check_grid, pack, voxels_per_unit
from splat_py.volume.views import camera_rays

# A camera that sees less than this share of what lies a voxel away stands in a wall.
_WALL = 0.01
# Along a side of the grid.
_MOST_VOXELS = 1022
# An .npz of empty space packs well, but not this well.
_MOST_UNPACKED = 1200


@dataclass(frozen=True, eq=False)
class RadianceField:
    """Voxels of density and view-dependent colour in a box; `splat_py.volume.render` says how they are looked at.

    Attributes:
        density: [X, Y, Z] float32 on the CPU, per world unit; below 0 counts as 0.
        sh: [X, Y, Z, K, 3] float32, K = 1, 4 or 9.
        box: [2, 3] lower and upper corner in the world.
        background: [3] rgb behind the box.

    Raises:
        SplatError: shapes that do not fit, numbers that are not finite, a box without volume.
    """

    density: torch.Tensor
    sh: torch.Tensor
    box: NDArray[np.float64]
    background: NDArray[np.float32]

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
        device: Device | None = None,
    ) -> NDArray[np.float32]:
        """What a camera sees: [height, width, 3], from 0 to 1.

        Args:
            viewmat: [4, 4] world → camera, OpenCV axes.
            K: [3, 3] intrinsics in pixels.
            steps_per_unit: samples a world unit; by default one a voxel.

        Warns:
            UserWarning: the camera stands in a wall, so that the picture shows nothing else.
        """
        camera = Camera(np.asarray(viewmat, np.float64), np.asarray(K, np.float64), width, height)
        self._warn_of_wall(camera)
        device = device or get_device()
        box = Box.of(self.box)
        march = March(box, steps_per_unit or voxels_per_unit(box, tuple(self.density.shape)))
        volume = Volume(device, device.memory.array(pack(self.density, self.sh)), self.sh.shape[3])
        image = Image.empty(device, camera.width * camera.height)
        recorder = device.record()
        volume.record_occupancy(recorder, march)
        rays = camera_rays(device, recorder, [camera])
        volume.record_forward(recorder, march, rays, device.memory.array(self.background), image)
        recorder.submit()
        return np.clip(image.colors.numpy(), 0, 1).reshape(camera.height, camera.width, 3)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write density, sh, box and background to a .safetensors or .npz file, atomically."""
        path = Path(path)
        arrays = {
            "density": self.density.numpy(),
            "sh": self.sh.numpy(),
            "box": self.box,
            "background": self.background,
        }
        _require_suffix(path)
        if path.suffix == ".npz":
            with atomic_path(path) as temporary, temporary.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
        else:
            save_tensors(path, "splat_py", {"kind": "radiance field"}, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RadianceField:
        """Read what `save` wrote.

        Raises:
            SplatError: the file is missing, damaged or something else.
        """
        path = Path(path)
        _require_suffix(path)
        if not path.is_file():
            raise SplatError(f"{path} does not exist; name a radiance field's .safetensors or .npz")
        try:
            arrays = _read_npz(path) if path.suffix == ".npz" else load_tensors(path, None, _check)[1]
            density, sh = (torch.from_numpy(np.asarray(arrays[name], np.float32)) for name in ("density", "sh"))
            return cls(density, sh, arrays["box"], arrays["background"])
        except Exception as error:  # zipfile and NumPy let their parsers' errors through
            raise SplatError(f"{path} is not a radiance field of splat_py or is damaged: {reason(error)}") from error

    def _warn_of_wall(self, camera: Camera) -> None:
        low, high = self.box
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
    if k not in (1, 4, 9) or not 1 <= min(x, y, z) <= max(x, y, z) <= _MOST_VOXELS:
        raise ValueError(f"sh has shape {list(sizes)}; it must be [X, Y, Z, K, 3], K = 1, 4 or 9")
    shapes = {"density": (x, y, z), "sh": (x, y, z, k, 3), "box": (2, 3), "background": (3,)}
    for name, (kind, _) in layout.items():
        if kind not in ("F16", "F32", "F64"):
            raise ValueError(f"{name} is {kind}, which are no floats")
    require_layout(layout, shapes, {name: kind for name, (kind, _) in layout.items()})


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz, of which nothing is allocated before it is clear what they are."""
    layout: Layout = {}
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > max(_MOST_UNPACKED * path.stat().st_size, 1 << 20):
            raise ValueError(f"it would unpack to more than {_MOST_UNPACKED} times its size")
        for member in members:
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(file)
            if math.prod(shape) * dtype.itemsize > member.file_size:
                raise ValueError(f"{member.filename} is shorter than it says")
            layout[member.filename.removesuffix(".npy")] = f"{dtype.kind.upper()}{8 * dtype.itemsize}", shape
    _check({}, layout)
    with np.load(path, allow_pickle=False) as loaded:
        return {name: loaded[name] for name in layout}


def check_background(background: ArrayLike) -> NDArray[np.float32]:
    """rgb as [3] float32.

    Raises:
        SplatError: it is not three finite numbers.
    """
    rgb = np.asarray(background, np.float32)
    if rgb.shape != (3,) or not np.isfinite(rgb).all():
        raise SplatError(f"background is {background!r}; give three finite numbers")
    return rgb


def _require_suffix(path: Path) -> None:
    if path.suffix not in (".npz", ".safetensors"):
        raise SplatError(f"{path} does not end in .safetensors or .npz, the formats of a radiance field")
