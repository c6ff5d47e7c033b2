"""Which capture a command reads, and how: the options of `load_dataset` on the command line and in a run's run.json."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from splat_py.byte_sizes import bytes_of
from splat_py.fields import LARGEST, Range, check_fields, dataclass_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from splat_py.scene.dataset import Dataset

Format = Literal["auto", "colmap", "transforms", "synthetic"]

_RANGES: dict[str, Range] = {"downscale": (1.0, 1e6), "test_every": (0, LARGEST)}
# A field of run.json that is no longer one.
_OLD_LIMIT = "memory_limit"
# Decimals of poses and intrinsics that a fingerprint keeps: another machine may compute the last ones differently.
_DECIMALS = 5


@dataclass(frozen=True)
class DataOptions:
    """Which photographs, and how they are read."""

    # Folder of the capture: COLMAP, nerfstudio / instant-ngp transforms.json, or NeRF-synthetic.
    data: Annotated[Positional[Path], arg(metavar="DATA")]
    # Divide the photographs' sides by this.
    downscale: float = 1.0
    # Which description to read where a folder holds several.
    format: Format = "auto"
    # Hold out every so many photographs by name, from the first; 0 holds out none.
    test_every: int = 8
    # Make of each photograph what a pinhole camera would have taken, instead of rendering through its lens; `splat fit-volume`
    # always does.
    undistort: bool = False
    # Memory that the run may take, such as 8GB; by default three quarters of what is free. What `splat train` would take is
    # predicted, and refused if it is more; photographs are streamed from disk where they do not fit beside the rest.
    max_memory: str | None = None

    def validate(self) -> None:
        """Raise SplatError if an option has a wrong type or is out of its range."""
        check_fields(self, _RANGES)
        self.max_bytes  # noqa: B018

    @property
    def max_bytes(self) -> int | None:
        """`max_memory` in bytes."""
        return None if self.max_memory is None else bytes_of("max_memory", self.max_memory)

    def load(self, memory_limit_bytes: int | None = None) -> Dataset:
        """The dataset, which keeps decoded photographs up to so many bytes; by default half of `max_memory`, or 4 GiB."""
        from splat_py.scene.dataset import DEFAULT_MEMORY_LIMIT, load_dataset

        self.validate()
        if memory_limit_bytes is None:
            memory_limit_bytes = DEFAULT_MEMORY_LIMIT if self.max_bytes is None else self.max_bytes // 2
        return load_dataset(
            self.data,
            downscale=self.downscale,
            format=self.format,
            test_every=self.test_every,
            memory_limit_bytes=memory_limit_bytes,
            undistort=self.undistort,
        )

    def to_json(self) -> dict[str, Any]:
        """For run.json; the folder's path is absolute, so that commands find it from anywhere."""
        return {**asdict(self), "data": str(self.data.resolve())}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> DataOptions:
        """What `to_json` has written, in any version: the first ones undistorted, and had a limit of decoded photographs.

        Raises:
            TypeError, SplatError: it has not.
        """
        if isinstance(content, dict):
            content = {"undistort": True, **{name: value for name, value in content.items() if name != _OLD_LIMIT}}
        options = dataclass_of(cls, content)
        options.validate()
        return options


def fingerprint(dataset: Dataset) -> str:
    """Tells one dataset from another without decoding a photograph: by names, sizes, cameras and split."""

    def rounded(matrix: NDArray[np.float64]) -> list[float]:
        return (matrix.round(_DECIMALS) + 0.0).ravel().tolist()

    views = []
    for view in dataset.views:
        camera = view.camera
        sizes = view.path.stat().st_size, camera.width, camera.height
        lens = [] if camera.distortion is None else [astuple(camera.distortion)]
        views.append((view.name, *sizes, rounded(camera.viewmat), rounded(camera.K), *lens))
    content = json.dumps([views, dataset.train])
    return hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()
