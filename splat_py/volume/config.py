"""The options of a volume's fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from tyro.conf import Suppress

from splat_py.base.errors import SplatError
from splat_py.base.fields import LARGEST, Range, check_fields, check_number, dataclass_of, shown
from splat_py.shaders.custom_types import Slot

# The most voxels along a side of a grid.
MOST_VOXELS = 1022

FIELD = Slot("field", ("IFieldFunction",), ("grid", "hash"))
_RANGES: dict[str, Range] = {
    "steps_per_resolution": (1, 1_000_000),
    "sh_degree": (0, 2),
    "rate": (1e-9, 100.0),
    "steps_per_voxel": (1e-3, 1000.0),
    "total_variation": (0.0, 1e6),
    "table_mib": (0.001, 1024.0),
    "rays_per_step": (1, LARGEST),
    "checkpoint_every": (1, LARGEST),
    "seed": (0, (1 << 63) - 1),
}


@dataclass(frozen=True)
class VolumeConfig:
    """Options of a volume's fit by squared error, as in Mitsuba 3's radiance-field tutorial (Jakob et al. 2022)."""

    # Voxels along the longest side of the box, or of the box with its contracted surroundings, stage by stage.
    resolutions: tuple[int, ...] = (16, 32, 64)
    # Steps of each stage.
    steps_per_resolution: int = 15
    # Degree of the spherical harmonics, 0 to 2.
    sh_degree: int = 2
    # Learning rate of the constant coefficients of the colour, at the beginning of a stage.
    rate: float = 0.2
    # Samples per voxel along a ray.
    steps_per_voxel: float = 1.0
    # Place samples at random in their steps.
    jitter: bool = False
    # The field to fit: voxels (grid); a hash grid with small networks (hash; Müller et al. 2022); or a Slang file with a type
    # that implements IFieldFunction. The latter two have all their detail from the first step: stages only sample rays more
    # densely, the rate is 0.15 times --rate, and --sh-degree and --total-variation do not apply.
    field: str = "grid"
    # The text of the Slang file; `field` is then the name of the type in it.
    field_source: Suppress[str] = ""
    # Limit of a hash grid in MiB: 32 is the size of 64³ voxels of degree 2.
    table_mib: float = 32.0
    # Continue beyond the box to infinity, for voxels only: space around the box is contracted (Barron et al. 2022, Mip-NeRF
    # 360) into a shell half as thick as the box, so that half of the voxels along a side are inside.
    contract: bool = False
    # Weight of the total variation of coefficients and of densities (densities times the longest side), a mean over voxels.
    total_variation: float = 0.0
    # Rays per step, about this many at most: all photographs if they have no more, else some of them in turn.
    rays_per_step: int = 1 << 18
    # Steps between checkpoints; a killed run loses at most the steps since the last one.
    checkpoint_every: int = 50
    # Seed of all random numbers: jitter, the order of photographs.
    seed: int = 42

    def __post_init__(self) -> None:
        if not isinstance(self.resolutions, Sequence) or isinstance(self.resolutions, str):
            raise SplatError(f"resolutions is {shown(self.resolutions)}; give one or more whole numbers")
        object.__setattr__(self, "resolutions", tuple(self.resolutions))
        for resolution in self.resolutions:
            check_number("resolutions", resolution, int, (2, MOST_VOXELS))
        if not 1 <= len(self.resolutions) <= 100:
            raise SplatError(f"resolutions is {shown(self.resolutions)}; give from 1 to 100 of them")
        check_fields(self, _RANGES)
        FIELD.validate(self.field, self.field_source)
        if self.contract and self.field != "grid":
            raise SplatError(f"contract is for voxels, not for {shown(self.field)}; leave contract out, or choose a larger box")

    @classmethod
    def from_dict(cls, content: Any) -> Self:
        """Make a configuration from the fields in a checkpoint or a run.json."""
        if isinstance(content, dict) and not content.get("field_source") and content.get("field", "grid") not in FIELD.names:
            raise SplatError(f"field is {shown(content['field'])}, and its source is missing")
        return dataclass_of(cls, content)

    @property
    def is_own(self) -> bool:
        """True if the field is a function in a Slang file."""
        return bool(self.field_source) or self.field not in FIELD.names

    @property
    def steps(self) -> int:
        """Number of steps of all stages."""
        return len(self.resolutions) * self.steps_per_resolution
