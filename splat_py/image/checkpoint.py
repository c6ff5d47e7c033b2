"""Where a fit of a picture goes on from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.files import Layout, load_tensors, save_tensors
from splat_py.fit.checked import require_finite, require_layout, whole_number
from splat_py.fit.checkpoint import reading
from splat_py.image.pictures import Picture
from splat_py.image.rasterizers import FLOATS

_KIND = "splat_py.image.checkpoint"
_TENSORS = ("params", "m", "v")


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
        absent = "there is no fit to resume"
        with reading(path, "the checkpoint of a picture's fit", "fit without --resume", absent=absent):
            header, tensors = load_tensors(path, _KIND, _check)
            require_finite(tensors, ("v",))
            return cls(header["step"], header["steps"], header["picture"], *(tensors[name] for name in _TENSORS))

    def check_picture(self, picture: Picture) -> None:
        """Raise SplatError if this is of another picture."""
        if self.picture != fingerprint(picture):
            raise SplatError("the checkpoint is of another picture, or of another background behind it; fit without --resume")


def _check(header: dict[str, Any], layout: Layout) -> None:
    """Raise if this is not what `FitCheckpoint.save` leaves."""
    whole_number(header, "step", 0, whole_number(header, "steps", 1, 1 << 31))
    if not isinstance(header.get("picture"), str):
        raise ValueError("it does not say of which picture it is")
    _, (*_, count) = layout["params"]
    if count == 0:
        raise ValueError("it has no blobs")
    require_layout(layout, dict.fromkeys(_TENSORS, (FLOATS, count)))


def fingerprint(picture: Picture) -> str:
    """Tells one picture from another."""
    return hashlib.sha256(repr(picture.shape).encode() + np.ascontiguousarray(picture).tobytes()).hexdigest()
