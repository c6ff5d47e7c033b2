"""The options of a training run, and how learning rates and the degree follow from the step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self

from tyro.conf import Suppress, UseAppendAction

from splat_py.base.errors import SplatError
from splat_py.base.fields import LARGEST, Range, check_fields, dataclass_of
from splat_py.gpu.accumulation import Accumulate
from splat_py.shaders.custom_types import SLOTS
from splat_py.shaders.declarations import BUILT_IN, Parameter, read_parameters

# Coefficients of degree 3 take 192 bytes a Gaussian: so many are what a buffer of 2 GiB holds.
_MOST_GAUSSIANS = 11_000_000
# Steps that learning rates are meant for, and by what shorter runs raise them at most.
_FULL_RUN, _MOST_HASTE = 30_000, 8.0
# Gaussians a √(steps · pixels), measured: more cost steps their time and are not trained long enough, fewer leave detail out
# (benchmarks/README.md). And a Gaussian at first: densification places Gaussians better than any structure from motion.
_BUDGET_OF_STEPS, _BUDGET_OF_INITIAL = 5.5, 1.5
# Steps over which gradients are averaged at least, before they say where Gaussians are missing.
_SHORTEST_INTERVAL = 25
_RANGES: dict[str, Range] = {
    **dict.fromkeys(("steps", "sh_interval", "densify_every", "opacity_reset_every", "checkpoint_every"), (1, LARGEST)),
    **dict.fromkeys(("densify_start", "densify_stop", "coarse_stop"), (0, LARGEST)),
    **dict.fromkeys(
        ("means_lr", "quats_lr", "scales_lr", "opacities_lr", "sh0_lr", "splat_param_lr", "color_lr"), (0.0, 100.0)
    ),
    **dict.fromkeys(("depth_lambda", "opacity_reg", "scale_reg", "grow_grad2d", "split_scale"), (0.0, 1e6)),
    **dict.fromkeys(("init_num_pts", "max_gaussians"), (1, _MOST_GAUSSIANS)),
    "batch": (0, 1 << 16),
    "sh_degree": (0, 3),
    "ssim_lambda": (0.0, 1.0),
    "color_features": (0, 192),
    "color_weights": (0, 1 << 16),
    # Opacities are reset to twice as much, which has to be an opacity between 0 and 1.
    "prune_opacity": (1e-6, 0.499),
    "prune_scale": (1e-6, 1e6),
    "prune_contribution": (0.0, 1e9),
    "budget": (0, _MOST_GAUSSIANS),
    "seed": (0, (1 << 63) - 1),
}


@dataclass(frozen=True)
class TrainConfig:
    """Defaults are the field's: Kerbl et al. 2023 and gsplat's trainer, for runs of 30,000 steps, but for small photographs in
    the beginning and for what is left at the end, the mean over the last two epochs. Shorter runs learn faster, raise the
    degree, densify and stop densifying earlier, and have a budget."""

    # Steps of the whole run.
    steps: int = 30_000
    # Photographs a step, of all processes together: gradients are their mean, learning rates √batch times as large. 0 is one
    # for each process, so one where nobody has started several (torchrun --nproc-per-node N -m splat_py train ...).
    batch: int = field(default=0, kw_only=True)
    # Highest degree of the spherical harmonics, 0 to 3.
    sh_degree: int = 3
    # The degree starts at 0 and rises every so many steps.
    sh_interval: int = 1000
    # Where Gaussians start: the dataset's points if it has any ("auto"), those ("points"), or anywhere in the cameras' box.
    init: Literal["auto", "points", "random"] = "auto"
    # How many Gaussians there are at first, if they start anywhere.
    init_num_pts: int = 10_000

    # What splats are: Gaussian, GeneralizedExponential, BetaKernel, or a Slang file with a type that implements IFalloff or
    # IFalloff2D.
    splat: str = "Gaussian"
    # NAME=VALUE: a number that each Gaussian has for its splat, and what it is at first. A file's are all given, in the order
    # of extras.x, y, z, w; GeneralizedExponential begins with beta=1 and BetaKernel with b=0.
    splat_params: Annotated[tuple[str, ...], UseAppendAction] = ()
    # Their learning rate.
    splat_param_lr: float = 1e-3
    # What projects: what the capture says (dataset); pinhole, fisheye, ortho, equirectangular; or a Slang file with a type that
    # implements ICameraModel, which gets the coefficients of the capture's lenses.
    camera: str = "dataset"
    # How colours depend on the direction: SphericalHarmonics, SphericalGaussians, ColorNetwork, or a Slang file with a type
    # that implements IColor.
    color: str = "SphericalHarmonics"
    # Numbers of each Gaussian that colours which are no harmonics are made of, and weights that all share; 0 is what suits the
    # type, or what the file says as FEATURES and WEIGHTS.
    color_features: int = 0
    color_weights: int = 0
    # The learning rate of both.
    color_lr: float = 2.5e-3
    # The texts of Slang files; the options are then names of types in them.
    splat_source: Suppress[str] = ""
    camera_source: Suppress[str] = ""
    color_source: Suppress[str] = ""

    # λ of the loss, (1 - λ) L1 + λ (1 - SSIM).
    ssim_lambda: float = 0.2
    # Photographs are compared at a quarter and a half of their size, if that leaves sides of 64 pixels, until this step, or 0.3
    # of the run; 0 never does.
    coarse_stop: int = 3000

    # Weight of a loss of depth, the mean error of inverse depths in units of the scene's scale: by the maps that frames of
    # transforms.json name as depth_file_path, or else the points that COLMAP saw in a photograph. 0 is none, 0.01 usual.
    depth_lambda: float = 0.0
    # Weights of two more losses, the mean opacity and the mean scale in world units. 0 is none, but 0.01 with --strategy mcmc.
    opacity_reg: float = 0.0
    scale_reg: float = 0.0
    # Learning rate of means, times the scene's scale; it falls exponentially to a hundredth. Learning rates are those of 30,000
    # steps. Shorter runs learn faster: with r, the square root of how many times shorter one is, 8 at most, means and
    # coefficients r times as fast, quaternions, scales and opacities √r times; and means' rate falls to r√r hundredths only,
    # not with --strategy mcmc, whose noise follows it.
    means_lr: float = 1.6e-4
    # Learning rate of quaternions.
    quats_lr: float = 1e-3
    # Learning rate of log-scales.
    scales_lr: float = 5e-3
    # Learning rate of opacity logits.
    opacities_lr: float = 5e-2
    # Learning rate of the constant coefficient of the colour; the others learn at a twentieth of it.
    sh0_lr: float = 2.5e-3

    # How Gaussians spread: default (Kerbl et al. 2023) clones, splits and prunes; mcmc (Kheradmand et al. 2024) moves those
    # that faded to where opaque ones are, adds others there, up to --budget, and moves faint ones by noise.
    strategy: Literal["default", "mcmc"] = "default"
    # Gaussians are cloned, split and pruned, or moved and added, every so many steps, or a twentieth of the run, 25 at least;
    # as many as the run has, or more, is never.
    densify_every: int = 100
    # Not before this step, or a fiftieth of the run.
    densify_start: int = 500
    # Nor after this step, or half of the run; mcmc goes on for two thirds longer, or 5/6 of the run.
    densify_stop: int = 15_000
    # Gaussians whose mean gradient norm of means2d (normalised device coordinates) exceeds this are cloned or split.
    grow_grad2d: float = 2e-4
    # Those larger than this, times the scene's scale, are split, not cloned.
    split_scale: float = 0.01
    # Gaussians with a lower opacity are removed, or moved.
    prune_opacity: float = 0.005
    # Gaussians larger than this, times the scene's scale, are removed once opacities have been reset.
    prune_scale: float = 0.1
    # After three and after four fifths of the run, Gaussians are removed whose share of no photograph makes up so many pixels:
    # blending weights, summed. 0 keeps all.
    prune_contribution: float = 0.0
    # Opacities are capped every so many steps, so that what is not needed fades.
    opacity_reset_every: int = 3000
    # Gaussians when densification ends, if so many have large gradients; 0 is 5.5 √(steps · batch · pixels of a photograph),
    # half more than at first at least. Each time those with the largest grow, as many as lead there evenly.
    budget: int = 0
    # Never more Gaussians than this.
    max_gaussians: int = 1_000_000

    # Learn exposure and white balance of each photograph: an affine map of the scene's colours (Kerbl et al. 2024).
    exposure: bool = False
    # Learn corrections of poses, focal length, principal point and lens (Lin et al. 2021), and write transforms.json.
    refine_cameras: bool = False
    # Learn what is behind all Gaussians, such as a sky, by direction (spherical harmonics of degree 3).
    environment: bool = False
    # Render over another colour in each step, and photographs with an alpha channel too: nothing stays transparent by chance.
    random_background: bool = False

    # Dim splats by what the low-pass filter enlarges them (Yu et al. 2024, Mip-Splatting).
    antialiased: bool = False
    # No Gaussian is finer than what the photographs could sample, so that cameras nearer than theirs see no needles (the same's
    # 3D smoothing filter).
    filter_3d: bool = False
    # How gradients add up over pixels: "pair" gives the same bits from run to run, whatever runs beside; see `rasterization`.
    accumulate: Accumulate = "auto"
    # A kill at any moment loses at most the steps since the last checkpoint.
    checkpoint_every: int = 500
    # Of everything random: the order of photographs, initial points, splits.
    seed: int = 42

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Self:
        """From the fields as a checkpoint or a run.json has them; TypeError if this is no dictionary of them, SplatError if one
        has the wrong type or is out of range."""
        config = dataclass_of(cls, content)
        for slot in SLOTS:
            name, source = slot.fields(config)
            if not source and name not in slot.names:
                raise SplatError(f"{slot.option} is {name[:40]!r}, and its source is not there")
        config.validate()
        return config

    def validate(self) -> None:
        """Raise a SplatError that names a field of the wrong type or out of range."""
        check_fields(self, _RANGES)
        for slot in SLOTS:
            slot.validate(*slot.fields(self))
        self.parameters()
        if self.environment and self.random_background:
            raise SplatError("environment and random_background are both asked for; there is only one background, choose one")

    def parameters(self) -> dict[str, Parameter]:
        """The numbers that each Gaussian has for its splat, by name, in order."""
        built_in = not self.splat_source and self.splat in BUILT_IN
        return read_parameters(self.splat, built_in, self.splat_params)

    def with_parameters(self, params: Mapping[str, float] | None, resumed: bool) -> Self:
        """The same with other initial values of the splat's numbers; SplatError if they contradict those of the run that is
        resumed."""
        if params is None:
            return self
        asked = replace(self, splat_params=tuple(f"{name}={float(value)!r}" for name, value in params.items()))
        if resumed and asked.parameters() != self.parameters():
            was, now = (" ".join(each.splat_params) or "none" for each in (self, asked))
            raise SplatError(f"params has {now}, but the checkpoint was begun with {was}; resume it without params")
        return asked

    @property
    def has_harmonics(self) -> bool:
        return self.color == "SphericalHarmonics" and not self.color_source

    def degree_at(self, step: int) -> int:
        """Degree in use: the whole run's shape is kept if it is short."""
        interval = max(min(self.sh_interval, self.steps // (4 * max(self.sh_degree, 1))), 1)
        return min(step // interval, self.sh_degree)

    @property
    def photographs(self) -> int:  # of a step
        return max(self.batch, 1)

    @property
    def short_run_lr_scale(self) -> float:
        """By what the learning rates of means and coefficients are raised in runs of few photographs, from 1 to 8."""
        return min(max(math.sqrt(_FULL_RUN / (self.steps * self.photographs)), 1.0), _MOST_HASTE)

    def means_lr_at(self, step: int, scene_scale: float) -> float:
        # The scatter that a high one leaves averages out in the last epochs (parameters.py); MCMC's noise does not.
        fall = 0.01 if self.strategy == "mcmc" else 0.01 * self.short_run_lr_scale**1.5
        return self.short_run_lr_scale * self.means_lr * scene_scale * fall ** (step / self.steps) * math.sqrt(self.photographs)

    @property
    def coarse_end(self) -> int:
        """The first step that compares photographs at their size."""
        return min(self.coarse_stop, self.steps * 3 // 10)

    @property
    def densify_interval(self) -> int:
        """Steps from one densification to the next."""
        shortened = min(self.densify_every, max(self.steps // 20, _SHORTEST_INTERVAL))
        return shortened if self.densify_every < self.steps else self.densify_every

    @property
    def densify_end(self) -> int:
        """The first step that no longer densifies."""
        if self.strategy == "mcmc":
            return min(self.densify_stop * 5 // 3, self.steps * 5 // 6)
        return min(self.densify_stop, self.steps // 2)

    def densifies_at(self, step: int) -> bool:
        """True if Gaussians are cloned, split and pruned after this step."""
        start = min(self.densify_start, self.steps // 50)
        return start <= step < self.densify_end and (step + 1) % self.densify_interval == 0

    def resets_opacities_at(self, step: int) -> bool:
        """True if opacities are capped after this step."""
        return self.strategy == "default" and (step + 1) % self.opacity_reset_every == 0 and step + 1 < self.densify_end

    @property
    def regularizers(self) -> tuple[float, float]:
        """Weights of the mean opacity and of the mean scale."""
        usual = 0.01 if self.strategy == "mcmc" else 0.0
        return self.opacity_reg or usual, self.scale_reg or usual

    def prunes_contribution_at(self, step: int) -> bool:
        """True if Gaussians that contribute little are removed after this step."""
        return self.prune_contribution > 0 and step + 1 in (self.steps * 3 // 5, self.steps * 4 // 5)

    def budget_of(self, pixels: float, initial: int) -> int:
        """Gaussians at the end: `budget`, or by default 5.5 √(photographs of all steps · pixels of one, on average), or half
        more than the `initial` ones, if that is more. `max_gaussians` at most."""
        usual = max(_BUDGET_OF_STEPS * math.sqrt(self.steps * self.photographs * pixels), _BUDGET_OF_INITIAL * initial)
        return min(self.budget or math.ceil(usual), self.max_gaussians)

    def growth_limit(self, step: int, count: int, budget: int) -> int:
        """How many Gaussians `count` of them may become after a step that densifies: an equal share of those that are missing,
        so that the last such step reaches the budget. Never fewer than there are."""
        # Steps s from this one on, below the end, with s + 1 a multiple of the interval.
        left = max((self.densify_end - step + self.densify_interval - 1) // self.densify_interval, 1)
        return count + math.ceil(max(budget - count, 0) / left)

    def divisor_at(self, step: int, largest: int) -> int:
        """By what photographs' sides are divided in a step: `largest` at first, halved in steps of equal length, 1 from
        `coarse_end` on."""
        end, levels = self.coarse_end, largest.bit_length() - 1
        return largest >> step * levels // end if step < end else 1
