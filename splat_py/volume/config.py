"""The options of a volume's fit."""

from __future__ import annotations

from dataclasses import dataclass

from splat_py.errors import SplatError


@dataclass(frozen=True)
class VolumeConfig:
    """How a volume is fitted: on the schedule of Mitsuba 3's radiance-field tutorial (Jakob et al. 2022), by squared error."""

    # Voxels along the longest side of the box, stage by stage.
    resolutions: tuple[int, ...] = (16, 32, 64)
    # Steps of each stage.
    steps_per_resolution: int = 15
    # Degree of the spherical harmonics, 0 to 2.
    sh_degree: int = 2
    # Learning rate of the constant coefficients of the colour, at the beginning of a stage.
    rate: float = 0.2
    # Samples a voxel.
    steps_per_voxel: float = 1.0
    # Place samples at random in their steps.
    jitter: bool = False
    # Weight of the total variation of coefficients and of densities (times the longest side), a mean over voxels.
    total_variation: float = 0.0
    # At most about this many rays a step: all photographs, if they have no more, else some of them in turn.
    rays_per_step: int = 1 << 18
    # A kill at any moment loses at most the steps since the last checkpoint.
    checkpoint_every: int = 50
    # Of everything random: jitter, the order of photographs.
    seed: int = 42

    def __post_init__(self) -> None:
        object.__setattr__(self, "resolutions", tuple(self.resolutions))
        if not self.resolutions or not all(2 <= n <= 1022 for n in self.resolutions):
            raise SplatError(f"resolutions is {self.resolutions}; give one or more from 2 to 1022")
        for name in ("steps_per_resolution", "rays_per_step", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise SplatError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.sh_degree not in (0, 1, 2):
            raise SplatError(f"sh_degree is {self.sh_degree}; use 0, 1 or 2")
        for name in ("rate", "steps_per_voxel"):
            if not 0 < getattr(self, name) < float("inf"):
                raise SplatError(f"{name} is {getattr(self, name)}; it must be above 0")
        if not 0 <= self.total_variation < float("inf"):
            raise SplatError(f"total_variation is {self.total_variation}; it must be 0 or more")

    @property
    def steps(self) -> int:
        """Of all stages."""
        return len(self.resolutions) * self.steps_per_resolution
