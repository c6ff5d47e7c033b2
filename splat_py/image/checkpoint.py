"""Where an interrupted fit of a picture goes on from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splat_py.files import load_tensors, save_tensors
from splat_py.fit.checkpoint import reading
from splat_py.image.pictures import Picture

_KIND = "splat_py.image.checkpoint"


@dataclass(frozen=True, eq=False)
class FitCheckpoint:
    """Everything that a fit needs to go on as if it had not stopped."""

    # Steps done, and of the whole run.
    step: int
    steps: int
    # Of the picture that is fitted: `fingerprint`.
    picture: str
    # Raw blobs and Adam's moments, [9, N] each.
    params: NDArray[np.float32]
    m: NDArray[np.float32]
    v: NDArray[np.float32]

    def save(self, path: Path) -> None:
        """Write to a .safetensors file, atomically."""
        header = {"step": self.step, "steps": self.steps, "picture": self.picture}
        save_tensors(path, _KIND, header, {"params": self.params, "m": self.m, "v": self.v})

    @classmethod
    def load(cls, path: Path) -> FitCheckpoint:
        """Read what `save` wrote.

        Raises:
            SplatError: the file is missing, damaged or something else.
        """
        absent = "there is no unfinished fit to resume"
        with reading(path, "the checkpoint of a picture's fit", "fit without --resume", absent=absent):
            header, tensors = load_tensors(path, _KIND)
            return cls(header["step"], header["steps"], header["picture"], *(tensors[name] for name in ("params", "m", "v")))


def fingerprint(picture: Picture) -> str:
    """Tells one picture from another."""
    return hashlib.sha256(repr(picture.shape).encode() + np.ascontiguousarray(picture).tobytes()).hexdigest()
