"""Where training goes on from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from splat_py.files import load_tensors, save_tensors
from splat_py.fit.checkpoint import reading
from splat_py.scene.gaussians import Gaussians
from splat_py.splats.config import TrainConfig
from splat_py.splats.parameters import GROUPS, State


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Everything that a run needs to go on as if it had not stopped. What is random is drawn from (seed, step) alone."""

    # Steps done.
    step: int
    config: TrainConfig
    state: State
    # Of tile lists, in intersections, that the run had found to be enough.
    capacity: int

    def gaussians(self) -> Gaussians:
        """The Gaussians."""
        return Gaussians(*(torch.from_numpy(self.state[name]) for name in GROUPS))

    def save(self, path: Path) -> None:
        """Write to `path`, atomically."""
        header = {"step": self.step, "config": dataclasses.asdict(self.config), "capacity": self.capacity}
        save_tensors(path, "splat_py", header, self.state)

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read what `save` wrote.

        Raises:
            SplatError: the file is missing, damaged or not a checkpoint.
        """
        absent = "there is no checkpoint to resume from"
        with reading(path, "a checkpoint of splat_py", "train without --resume", absent=absent):
            header, state = load_tensors(path, "splat_py")
            return cls(header["step"], TrainConfig.from_dict(header["config"]), state, header["capacity"])
