"""Checkpoints: one safetensors file whose header carries the rest as JSON, so that a kill leaves the old or the new one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch
from safetensors import SafetensorError

from splat_py.errors import SplatError
from splat_py.files import load_tensors, save_tensors
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
    # Room for tile lists that the run had found to be enough, in pairs.
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
        if not path.is_file():
            raise SplatError(f"{path} does not exist; there is no checkpoint to resume from")
        try:
            header, state = load_tensors(path, "splat_py")
            return cls(header["step"], TrainConfig(**header["config"]), state, header["capacity"])
        except (SafetensorError, KeyError, TypeError, json.JSONDecodeError, OSError) as error:
            raise SplatError(f"{path} is not a checkpoint of splat_py or is damaged; train without --resume") from error
