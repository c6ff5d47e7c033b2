"""A hash grid with its networks as a user holds it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.files import Layout, reason
from splat_py.fit.checked import require_layout
from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import opaque
from splat_py.gpu.device import Device, get_device
from splat_py.scene.camera import Camera
from splat_py.volume.box import Box
from splat_py.volume.field import check_background
from splat_py.volume.field_files import existing_field, read_field, save_field
from splat_py.volume.half_storage import stored
from splat_py.volume.hash_volume import FEATURES, MOST_LEVELS, MOST_SIZE, HashShape, HashVolume
from splat_py.volume.marching import March
from splat_py.volume.rendering import check_rays, march_rays, picture_of, steps_of

# Cells of the finest level from one sample to the next.
CELLS_PER_STEP = 4


@dataclass(frozen=True, eq=False)
class HashRadianceField:
    """A multiresolution hash grid and two small networks (Müller et al. 2022, Instant Neural Graphics Primitives).

    Levels of features at the vertices of finer and finer grids, in tables that vertices share where they are too many, are
    interpolated trilinearly. A network with one hidden layer of 16 ReLU makes a density of them, exp(y) / the box's longest
    side, and another one, which is given spherical harmonics of the direction too, a colour, 1 / (1 + exp(-y)).

    Attributes:
        table: [entries, 2] float32 or float16, level after level; halves are computed with as float32 (`volume.render`).
        weights: float32, both networks' rows: of each hidden unit its inputs, a bias and its outputs.
        shape: the levels' sizes.
        box: [2, 3] lower and upper corner in the world.
        background: [3] rgb behind the box.

    Raises:
        SplatError: arrays that do not fit together, numbers that are not finite, a box without volume.
    """

    table: Tensor
    weights: Tensor
    shape: HashShape
    box: NDArray[np.float64]
    background: NDArray[np.float32]

    def __post_init__(self) -> None:
        shapes = {"table": (self.shape.entries, FEATURES), "weights": (self.shape.weights,)}
        for name, expected in shapes.items():
            tensor: Tensor = getattr(self, name)
            half = tensor.dtype == torch.float16 and name == "table"
            if tuple(tensor.shape) != expected or not (half or tensor.dtype == torch.float32):
                raise SplatError(f"{name} is {tensor.dtype} {list(tensor.shape)}; it must be torch.float32 {list(expected)}")
            if not torch.isfinite(tensor).all():
                raise SplatError(f"{name} holds a number that is not finite; check where it comes from")
        object.__setattr__(self, "box", Box.of(self.box).numpy())
        object.__setattr__(self, "background", check_background(self.background))

    @property
    def steps_per_unit(self) -> float:
        """Samples a world unit where nobody says otherwise: one every four cells of the finest level."""
        return max(self.shape.cells) / CELLS_PER_STEP / float(Box.of(self.box).sides.max())

    @opaque
    def march(
        self,
        rays_o: Tensor,
        rays_d: Tensor,
        *,
        background: Tensor | None = None,
        steps_per_unit: float | None = None,
        jitter: bool = False,
        seed: int = 0,
        skip_empty: bool = True,
        device: Device | str | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Colours [..., 3], transmittances [...] and depths [...] of rays, as `volume.render` has them of a grid.

        Differentiable in table, weights, background and rays.

        Args:
            background: [3] rgb; the field's by default.
            skip_empty: pass over cells, 32 along the longest side, where 4³ probes find no density that would take a thousandth
                of the light away in a step. This changes results by as much.

        Raises:
            SplatError: an argument has the wrong shape, dtype, device or value.
        """
        if background is None:
            background = torch.from_numpy(self.background).to(self.table.device)
        tensors = {"table": self.table, "weights": self.weights, "rays_o": rays_o, "rays_d": rays_d, "background": background}
        check_rays(tensors, features=("table",))
        steps = steps_of(self.steps_per_unit if steps_per_unit is None else steps_per_unit)
        march = March(Box.of(self.box), steps, jitter, seed, skip_empty)
        return march_rays(self._parameters(), rays_o, rays_d, background, march, device, self._volume)

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
        """What a camera sees: [height, width, 3], from 0 to 1. See `RadianceField.render`."""
        camera = Camera(np.asarray(viewmat, np.float64), np.asarray(K, np.float64), width, height)
        device = get_device(device)
        volume = self._volume(device, *(stored(device, part.detach()) for part in self._parameters()))
        march = March(Box.of(self.box), steps_per_unit or self.steps_per_unit)
        return picture_of(volume, march, camera, self.background)

    def _parameters(self) -> list[Tensor]:
        """As they lie on the device: table and weights, padded; in one piece, unless the table is of halves."""
        parts = []
        for part, floats in zip((self.table.flatten(), self.weights), self.shape.parts, strict=True):
            parts.append(torch.nn.functional.pad(part, (0, floats - len(part))))
        return parts if self.table.dtype == torch.float16 else [torch.cat(parts)]

    def _volume(self, device: Device, parameters: Array, weights: Array | None = None) -> HashVolume:
        return HashVolume(device, parameters, self.shape, weights)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a .safetensors or .npz file, atomically."""
        arrays = {
            "table": self.table.detach().numpy(),
            "weights": self.weights.detach().numpy(),
            "cells": np.array(self.shape.cells, np.int32),
            "size": np.array([self.shape.size], np.int32),
            "box": self.box,
            "background": self.background,
        }
        save_field(path, "hash grid", arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> HashRadianceField:
        """Read what `save` wrote.

        Raises:
            SplatError: the file is missing, damaged or something else.
        """
        path = existing_field(path)
        try:
            arrays = read_field(path, _check)
            shape = HashShape(tuple(map(int, arrays["cells"])), int(arrays["size"][0]))
            table, weights = (torch.from_numpy(arrays[name]) for name in ("table", "weights"))
            return cls(table, weights, shape, arrays["box"], arrays["background"])
        except Exception as error:  # zipfile and NumPy let their parsers' errors through
            raise SplatError(f"{path} is not a hash grid of splat_py or is damaged: {reason(error)}") from error


def _check(header: dict[str, Any], layout: Layout) -> None:
    """Raise if these are not the arrays that `HashRadianceField.save` leaves."""
    (levels,), (entries, _) = layout["cells"][1], layout["table"][1]
    if not 1 <= levels <= MOST_LEVELS or not 1 <= entries <= levels * MOST_SIZE:
        raise ValueError(f"it has {levels} levels with {entries} entries")
    weights = HashShape((1,) * levels, MOST_SIZE).weights
    shapes = {"table": (entries, FEATURES), "weights": (weights,), "cells": (levels,), "size": (1,), "box": (2, 3)}
    kinds = {"cells": "I32", "size": "I32", "box": "F64", "table": "F16" if layout["table"][0] == "F16" else "F32"}
    require_layout(layout, {**shapes, "background": (3,)}, kinds)
