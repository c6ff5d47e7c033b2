"""Where an interrupted fit of a volume goes on from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.files import load_tensors, save_tensors
from splat_py.fit.checkpoint import reading
from splat_py.volume.config import VolumeConfig
from splat_py.volume.marching import row_floats


@dataclasses.dataclass(frozen=True)
class VolumeCheckpoint:
    """Everything that a fit needs to go on as if it had not stopped."""

    # Steps done.
    step: int
    config: VolumeConfig
    # grid, m, v: [X, Y, Z, row]; box [2, 3]; background [3]
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
            header, tensors = load_tensors(path, "splat_py")
            state = {name: tensors[name] for name in ("grid", "m", "v", "box", "background")}
            checkpoint = cls(header["step"], VolumeConfig(**header["config"]), state)
        if checkpoint.state["grid"].shape[3:] != (row_floats((checkpoint.config.sh_degree + 1) ** 2),):
            raise SplatError(f"{path} was written by another version of splat_py; fit without --resume")
        return checkpoint
