"""Where an interrupted fit of a volume goes on from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.files import save_tensors
from splat_py.fit.checkpoint import load_file
from splat_py.volume.config import VolumeConfig
from splat_py.volume.marching import row_floats

_KIND = "splat_py"


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
        save_tensors(path, _KIND, {"step": self.step, "config": dataclasses.asdict(self.config)}, self.state)

    @classmethod
    def load(cls, path: Path) -> VolumeCheckpoint:
        """Read what `save` wrote.

        Raises:
            SplatError: the file is missing, damaged or not the checkpoint of a volume.
        """

        def parse(header: dict[str, Any], tensors: dict[str, NDArray]) -> VolumeCheckpoint:
            state = {name: tensors[name] for name in ("grid", "m", "v", "box", "background")}
            return cls(header["step"], VolumeConfig(**header["config"]), state)

        checkpoint = load_file(
            path,
            _KIND,
            parse,
            absent="there is no checkpoint to resume from",
            damaged="the checkpoint of a volume or is damaged; fit without --resume",
        )
        if checkpoint.state["grid"].shape[3:] != (row_floats((checkpoint.config.sh_degree + 1) ** 2),):
            raise SplatError(f"{path} was written by another version of splat_py; fit without --resume")
        return checkpoint
