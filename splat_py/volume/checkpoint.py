"""Where an interrupted fit of a volume goes on from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from splat_py.files import Layout, load_tensors, save_tensors
from splat_py.fit.checked import require_finite, require_layout, whole_number
from splat_py.fit.checkpoint import reading
from splat_py.volume.box import Box
from splat_py.volume.config import VolumeConfig
from splat_py.volume.hash_volume import MOST_LEVELS, MOST_SIZE, OCCUPANCY, HashShape
from splat_py.volume.marching import row_floats
from splat_py.volume.own_volume import MOST_PARAMS


@dataclasses.dataclass(frozen=True)
class VolumeCheckpoint:
    """Everything that a fit needs to go on as if it had not stopped."""

    # Steps done.
    step: int
    config: VolumeConfig
    # grid, m, v: [X, Y, Z, row]; of a hash grid parameters, m, v: [floats], cells [levels], size [1], occupied; of a field of
    # the user's own parameters, m, v: [PARAMS]. Of all box [2, 3] and background [3].
    state: dict[str, NDArray]

    def save(self, path: Path) -> None:
        """Write to a .safetensors file, atomically."""
        save_tensors(path, "splat_py", {"step": self.step, "config": dataclasses.asdict(self.config)}, self.state)

    @classmethod
    def load(cls, path: Path) -> VolumeCheckpoint:
        """Read what `save` wrote.

        Raises:
            SplatError: the file is missing, damaged or not the checkpoint of a volume.
        """
        absent = "there is no checkpoint to resume from"
        with reading(path, "the checkpoint of a volume", "fit without --resume", absent=absent):
            header, state = load_tensors(path, "splat_py", _check)
            require_finite(state, ("v",))
            Box.of(state["box"])
            config = VolumeConfig.from_dict(header["config"])
            if config.field == "hash":
                shape = HashShape(tuple(map(int, state["cells"])), int(state["size"][0]))
                if shape.floats != len(state["parameters"]):
                    raise ValueError(f"parameters has {len(state['parameters'])} numbers, and its levels take {shape.floats}")
            return cls(header["step"], config, state)


def _check(header: dict[str, Any], layout: Layout) -> None:
    """Raise if this is not what `VolumeCheckpoint.save` leaves."""
    config = VolumeConfig.from_dict(header["config"])
    step = whole_number(header, "step", 0, config.steps)
    if config.is_own:
        (floats,) = layout["parameters"][1]
        if not 1 <= floats <= MOST_PARAMS:
            raise ValueError(f"its field has {floats} numbers")
        shapes = {**dict.fromkeys(("parameters", "m", "v"), (floats,)), "box": (2, 3), "background": (3,)}
        require_layout(layout, shapes, {"box": "F64"})
        return
    if config.field == "hash":
        (floats,), (levels,) = layout["parameters"][1], layout["cells"][1]
        if not 1 <= levels <= MOST_LEVELS or not 1 <= floats <= 4 * levels * MOST_SIZE:
            raise ValueError(f"it has {levels} levels with {floats} numbers")
        tables = dict.fromkeys(("parameters", "m", "v"), (floats,))
        shapes = {**tables, "cells": (levels,), "size": (1,), "occupied": (OCCUPANCY**3,), "box": (2, 3), "background": (3,)}
        require_layout(layout, shapes, {"cells": "I32", "size": "I32", "occupied": "U8", "box": "F64"})
        return
    _, (x, y, z, row) = layout["grid"]
    if row != row_floats((config.sh_degree + 1) ** 2):
        raise ValueError("it was written by another version of splat_py")
    # The grid is enlarged by the first step of a stage.
    voxels = config.resolutions[max(step - 1, 0) // config.steps_per_resolution]
    if max(x, y, z) != voxels or min(x, y, z) < 1:
        raise ValueError(f"the grid has {x}×{y}×{z} voxels, not {voxels} along its longest side")
    grids = dict.fromkeys(("grid", "m", "v"), (x, y, z, row))
    require_layout(layout, {**grids, "box": (2, 3), "background": (3,)}, {"box": "F64"})
