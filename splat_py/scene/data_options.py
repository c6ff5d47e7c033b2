"""Options for reading or making a capture, on the command line and in a run's run.json."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from splat_py.base.fields import LARGEST, bytes_of, check_fields
from splat_py.scene.sources import OMITTED, Format, Split

if TYPE_CHECKING:
    from splat_py.scene.dataset import Dataset


@dataclass(frozen=True)
class DataOptions:
    """The capture, and how its photographs are read."""

    # A capture: COLMAP, nerfstudio / instant-ngp transforms.json, or NeRF-synthetic. `splat train` also takes a folder of
    # photographs or a video. With --resume it may be left out.
    data: Annotated[Positional[Path], arg(metavar="DATA", help_behavior_hint="")]
    # Divide the sides of photographs by this.
    downscale: float = 1.0
    # The format to read if a folder holds several.
    format: Format = "auto"
    # Hold out one of every n photographs in the order of their names; 0 holds out none.
    test_every: int = 8
    # Hold out the middle one of these n, or the first one, as papers do, for scores to compare with theirs.
    test_split: Split = "middle"
    # Undistort each photograph to a pinhole camera instead of rendering through its lens; `splat fit-volume` always does.
    undistort: bool = False
    # A folder of masks of an object, as `splat view` and `splat edit --masks` write: train it alone, as if the photographs were
    # transparent where they are black. Photographs without a mask are left out. `splat train` then uses --random-background.
    cut_out: Path | None = None
    # Memory limit of the run, such as 8GB; by default three quarters of the free memory. `splat train` predicts its memory and
    # stops before it starts if that is more; it streams photographs from disk if they do not fit as well.
    max_memory: str | None = None

    def validate(self) -> None:
        """Raise SplatError if an option has a wrong type or is out of its range."""
        check_fields(self, {"downscale": (1.0, 1e6), "test_every": (0, LARGEST)})
        self.max_bytes  # noqa: B018

    @property
    def max_bytes(self) -> int | None:
        return None if self.max_memory is None else bytes_of("max_memory", self.max_memory)

    def load(self, memory_limit_bytes: int | None = None) -> "Dataset":
        """Load the dataset with this limit for decoded photographs; the default is half of `max_memory`, or 4 GiB."""
        from splat_py.scene.dataset import DEFAULT_MEMORY_LIMIT, load_dataset

        self.validate()
        if memory_limit_bytes is None:
            memory_limit_bytes = DEFAULT_MEMORY_LIMIT if self.max_bytes is None else self.max_bytes // 2
        return load_dataset(
            self.data,
            downscale=self.downscale,
            format=self.format,
            test_every=self.test_every,
            test_split=self.test_split,
            memory_limit_bytes=memory_limit_bytes,
            undistort=self.undistort,
            cut_out=self.cut_out,
        )


# Placeholder of commands that read DATA from a run's record.
OMITTED_DATA = DataOptions(OMITTED)


@dataclass(frozen=True)
class CaptureOptions:
    """Options for finding poses."""

    # Photographs are in order of their names: match each with its neighbours and with similar ones instead of with all. Frames
    # of a video always are.
    ordered: bool = False
    # Number of frames of a video, the sharpest in each of as many equal intervals; 0 means two a second, from 24 to 150.
    frames: int = 0
    # The way to cameras and points from matches: one photograph at a time (incremental) or all at once (global). The default,
    # auto, is incremental; if that misses photographs, it also tries global and keeps the result with more photographs.
    mapper: Literal["auto", "incremental", "global"] = "auto"
    # Longer side, in pixels, to which photographs shrink before the search for features.
    size: int = 1600
    # Maximum number of features a photograph.
    features: int = 4096

    def validate(self) -> None:
        """Raise SplatError if an option has a wrong type or is out of its range."""
        check_fields(self, {"frames": (0, 100_000), "size": (64, 20_000), "features": (64, 100_000)})
