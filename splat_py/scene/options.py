"""Which capture a command reads, and how: the options of `load_dataset` on the command line and in a run's run.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from splat_py.fit.checked import dataclass_of

if TYPE_CHECKING:
    from splat_py.scene.dataset import Dataset

Format = Literal["auto", "colmap", "transforms", "synthetic"]


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
    # Keep decoded photographs in memory up to this many MiB, and stream them from disk beyond.
    memory_limit: int = 4096

    def load(self) -> Dataset:
        """The dataset."""
        from splat_py.scene.dataset import load_dataset

        return load_dataset(
            self.data,
            downscale=self.downscale,
            format=self.format,
            test_every=self.test_every,
            memory_limit_bytes=self.memory_limit << 20,
        )

    def to_json(self) -> dict[str, Any]:
        """For run.json; the folder's path is absolute, so that commands find it from anywhere."""
        return {**asdict(self), "data": str(self.data.resolve())}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> DataOptions:
        """What `to_json` has written. Raises TypeError for anything else."""
        return dataclass_of(cls, content)
