"""The capture that a command reads or makes, and how: options on the command line and in a run's run.json."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from splat_py.base.fields import LARGEST, Range, bytes_of, check_fields, dataclass_of
from splat_py.scene.sources import Format

if TYPE_CHECKING:
    from splat_py.scene.dataset import Dataset

_CAPTURE_RANGES: dict[str, Range] = {"frames": (0, 100_000), "size": (64, 20_000), "features": (64, 100_000)}
_RANGES: dict[str, Range] = {"downscale": (1.0, 1e6), "test_every": (0, LARGEST)}


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
        return None if self.max_memory is None else bytes_of("max_memory", self.max_memory)

    def load(self, memory_limit_bytes: int | None = None) -> "Dataset":
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
    def from_json(cls, content: dict[str, Any]) -> "DataOptions":
        """The options that `to_json` has written; TypeError or SplatError if it has not."""
        options = dataclass_of(cls, content)
        options.validate()
        return options


@dataclass(frozen=True)
class CaptureOptions:
    """How poses are found."""

    # Photographs were taken one after the other, in the order of their names: each is matched with its neighbours and those
    # that look alike, instead of with all. A video's frames always are.
    ordered: bool = False
    # How many frames of a video to take, the sharpest of as many equal intervals; 0 takes two a second, from 24 to 150.
    frames: int = 0
    # How cameras and points are found from matches: one photograph after the other, or all at once. By default one after the
    # other, and where that leaves photographs out, all at once too; what has more photographs is kept.
    mapper: Literal["auto", "incremental", "global"] = "auto"
    # Features are sought in photographs whose longer side is at most this.
    size: int = 1600
    # Most features of a photograph.
    features: int = 4096

    def validate(self) -> None:
        """Raise SplatError if an option has a wrong type or is out of its range."""
        check_fields(self, _CAPTURE_RANGES)
