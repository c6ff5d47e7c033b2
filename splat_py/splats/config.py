"""What a training run is told, and how its rates and its degree change with the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from splat_py.errors import SplatError
from splat_py.gpu.accumulation import Accumulate


@dataclass(frozen=True)
class TrainConfig:
    """Defaults are the field's: Kerbl et al. 2023 and gsplat's trainer, for runs of 30,000 steps; shorter runs raise the
    degree, densify and stop densifying earlier."""

    # Steps of the whole run; one photograph a step.
    steps: int = 30_000
    # Highest degree of the spherical harmonics, 0 to 3.
    sh_degree: int = 3
    # The degree starts at 0 and rises every so many steps.
    sh_interval: int = 1000
    # Where Gaussians start: the dataset's points if it has any ("auto"), those ("points"), or anywhere in the cameras' box.
    init: Literal["auto", "points", "random"] = "auto"
    # How many Gaussians there are at first, if they start anywhere.
    random_points: int = 10_000

    # Share of 1 - SSIM in the loss, against L1.
    ssim_share: float = 0.2
    # Adam's rate for means, times the scene's scale; it falls exponentially to a hundredth.
    rate_means: float = 1.6e-4
    # Adam's rate for quaternions.
    rate_quats: float = 1e-3
    # Adam's rate for log-scales.
    rate_scales: float = 5e-3
    # Adam's rate for opacity logits.
    rate_opacities: float = 5e-2
    # Adam's rate for the constant coefficient of the colour; the others learn at a twentieth of it.
    rate_sh: float = 2.5e-3

    # Gaussians are cloned, split and pruned every so many steps.
    densify_every: int = 100
    # Not before this step, or a tenth of the run.
    densify_start: int = 500
    # Nor after this step, or half of the run.
    densify_stop: int = 15_000
    # Pull of the image on a centre (normalised device coordinates) above which a Gaussian is cloned or split.
    densify_gradient: float = 2e-4
    # Above this share of the scene's scale it is split, not cloned.
    split_scale: float = 0.01
    # Fainter Gaussians are removed.
    prune_opacity: float = 0.005
    # Larger ones, as a share of the scene's scale, are removed once opacities have been reset.
    prune_scale: float = 0.1
    # Opacities are pulled down every so many steps, so that what is not needed fades.
    opacity_reset_every: int = 3000
    # Never more Gaussians than this.
    max_gaussians: int = 1_000_000

    # Dim splats by what the low-pass filter enlarges them (Yu et al. 2024, Mip-Splatting).
    antialiased: bool = False
    # How gradients add up over pixels: "pair" gives the same bits from run to run, whatever runs beside; see `rasterization`.
    accumulate: Accumulate = "auto"
    # A kill at any moment loses at most the steps since the last checkpoint.
    checkpoint_every: int = 500
    # Of everything random: the order of photographs, initial points, splits.
    seed: int = 42

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> TrainConfig:
        """The configuration that a run.json or a checkpoint holds."""
        return cls(**content)

    def validate(self) -> None:
        """Raise SplatError where a number makes no sense."""
        for name in (
            "steps",
            "sh_interval",
            "densify_every",
            "checkpoint_every",
            "random_points",
            "max_gaussians",
        ):
            if getattr(self, name) < 1:
                raise SplatError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.sh_degree not in (0, 1, 2, 3):
            raise SplatError(f"sh_degree is {self.sh_degree}; use 0, 1, 2 or 3")
        if not 0 <= self.ssim_share <= 1:
            raise SplatError(f"ssim_share is {self.ssim_share}; it must lie between 0 and 1")

    def degree_at(self, step: int) -> int:
        """Degree in use: the whole run's shape is kept if it is short."""
        interval = max(min(self.sh_interval, self.steps // (4 * max(self.sh_degree, 1))), 1)
        return min(step // interval, self.sh_degree)

    def rate_means_at(self, step: int, scene_scale: float) -> float:
        """Adam's rate for the means."""
        return self.rate_means * scene_scale * 0.01 ** (step / self.steps)

    def densifies_at(self, step: int) -> bool:
        """Whether Gaussians are cloned, split and pruned after this step."""
        start = min(self.densify_start, self.steps // 10)
        stop = min(self.densify_stop, self.steps // 2)
        return start <= step < stop and (step + 1) % self.densify_every == 0

    def resets_opacities_at(self, step: int) -> bool:
        """Whether opacities are pulled down after this step."""
        stop = min(self.densify_stop, self.steps // 2)
        return (step + 1) % self.opacity_reset_every == 0 and step + 1 < stop
