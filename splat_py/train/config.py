"""The options of a training run, and the learning rates and spherical-harmonics degree at each step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self

from tyro.conf import Suppress, UseAppendAction

from splat_py.base.errors import SplatError
from splat_py.base.fields import LARGEST, Range, check_fields, dataclass_of
from splat_py.gpu.accumulation import Accumulate
from splat_py.shaders.custom_types import CAMERA, SLOTS
from splat_py.shaders.declarations import BUILT_IN, Parameter, along_rays, read_parameters

# A buffer of 2 GiB holds the degree-3 coefficients of so many Gaussians, 192 bytes each.
_MOST_GAUSSIANS = 11_000_000
# Steps that the learning rates are meant for, and the largest factor by which shorter runs raise them.
_FULL_RUN, _MOST_HASTE = 30_000, 8.0
# Budget per √(steps · pixels), measured: more Gaussians slow steps down and are not trained long enough, fewer leave detail out
# (benchmarks/levers.md). And budget per initial Gaussian: densification places Gaussians better than any structure from motion.
_BUDGET_OF_STEPS, _BUDGET_OF_INITIAL = 5.5, 1.5
# Fewest steps over which gradients are averaged before they decide where Gaussians are missing.
_SHORTEST_INTERVAL = 25
_RANGES: dict[str, Range] = {
    **dict.fromkeys(("steps", "sh_interval", "densify_every", "opacity_reset_every", "checkpoint_every"), (1, LARGEST)),
    **dict.fromkeys(("densify_start", "densify_stop", "coarse_stop"), (0, LARGEST)),
    **dict.fromkeys(
        ("means_lr", "quats_lr", "scales_lr", "opacities_lr", "sh0_lr", "splat_param_lr", "camera_param_lr", "color_lr"),
        (0.0, 100.0),
    ),
    **dict.fromkeys(("depth_lambda", "opacity_reg", "scale_reg", "grow_grad2d", "split_scale"), (0.0, 1e6)),
    **dict.fromkeys(("init_num_pts", "max_gaussians"), (1, _MOST_GAUSSIANS)),
    "batch": (0, 1 << 16),
    "sh_degree": (0, 3),
    "ssim_lambda": (0.0, 1.0),
    "color_features": (0, 192),
    "color_weights": (0, 1 << 16),
    # Opacities are reset to twice as much, which must stay below 1.
    "prune_opacity": (1e-6, 0.499),
    "prune_scale": (1e-6, 1e6),
    "prune_contribution": (0.0, 1e9),
    "prune_information": (0.0, 0.99),
    "budget": (0, _MOST_GAUSSIANS),
    "seed": (0, (1 << 63) - 1),
}


@dataclass(frozen=True)
class TrainConfig:
    """Defaults follow Kerbl et al. 2023 and gsplat's trainer for runs of 30,000 steps, except that training starts on small
    photographs and returns the mean over the last two epochs. Shorter runs learn faster, and raise the degree, densify and stop
    densifying earlier. Every run has a budget of Gaussians."""

    # Steps of the whole run.
    steps: int = 30_000
    # Photographs per step, over all processes: gradients are averaged, and learning rates multiplied by √batch. 0 is one per
    # process, so one unless several were started (torchrun --nproc-per-node N -m splat_py train ...).
    batch: int = field(default=0, kw_only=True)
    # Highest degree of the spherical harmonics, 0 to 3.
    sh_degree: int = 3
    # The degree starts at 0 and rises by one every so many steps.
    sh_interval: int = 1000
    # Gaussians' first places: at the dataset's points, at random in the cameras' box, or, by default, at the points if any.
    init: Literal["auto", "points", "random"] = "auto"
    # Number of Gaussians to start with, if they start at random.
    init_num_pts: int = 10_000

    # The splat type: Gaussian, GeneralizedExponential, BetaKernel; Surfel, flat Gaussians that lie on surfaces, for meshes
    # (Huang et al. 2024); or a Slang file with a type that implements IFalloff, IFalloff2D, IFalloff3D or ISplatColor.
    splat: str = "Gaussian"
    # NAME=VALUE: a splat parameter of each Gaussian, and its initial value. Give all fields of a Slang file's type;
    # GeneralizedExponential starts with beta=1 and BetaKernel with b=0.
    splat_params: Annotated[tuple[str, ...], UseAppendAction] = ()
    # Learning rate of the splat parameters.
    splat_param_lr: float = 1e-3
    # NAME=RATE: another learning rate for one of them.
    splat_param_lrs: Annotated[tuple[str, ...], UseAppendAction] = field(default=(), kw_only=True)
    # The camera model: the capture's own (dataset); pinhole, fisheye, ortho, equirectangular; or a Slang file with a type that
    # implements ICameraModel, which gets the coefficients of the capture's lenses, or camera_params.
    camera: str = "dataset"
    # Numbers of a Slang file's camera, up to 12, the same for all photographs. They are learnt with --refine-cameras.
    camera_params: tuple[float, ...] = field(default=(), kw_only=True)
    # Their initial learning rate. It falls to zero: a number moves by a fifth of steps times this at most.
    camera_param_lr: float = field(default=1e-3, kw_only=True)
    # The type of view-dependent colour: SphericalHarmonics, SphericalGaussians, ColorNetwork, or a Slang file with a type that
    # implements IColor.
    color: str = "SphericalHarmonics"
    # Features per Gaussian, and weights that all Gaussians share, of colours other than harmonics; 0 is the type's default, or
    # FEATURES and WEIGHTS in the Slang file.
    color_features: int = 0
    color_weights: int = 0
    # Learning rate of colour features and weights.
    color_lr: float = 2.5e-3
    # A pixel's loss beside SSIM: L1, L2, Charbonnier, or a Slang file with a type that implements IPixelLoss.
    pixel_loss: str = field(default="L1", kw_only=True)
    # The texts of Slang files; `splat`, `camera`, `color` and `pixel_loss` are then names of types in them.
    splat_source: Suppress[str] = ""
    camera_source: Suppress[str] = ""
    color_source: Suppress[str] = ""
    pixel_loss_source: Suppress[str] = field(default="", kw_only=True)

    # λ of the loss, (1 - λ) pixel loss + λ (1 - SSIM).
    ssim_lambda: float = 0.2
    # Photographs are compared at a quarter, then at half of their size until this step, or 0.3 of the run if that is earlier.
    # Sides keep at least 64 pixels. 0 always compares at full size.
    coarse_stop: int = 3000

    # Weight of the depth loss, the mean error of inverse depths in units of the scene's scale. Known depths are the maps named
    # by depth_file_path in transforms.json, or else the points that COLMAP saw in a photograph. 0 is off, 0.01 is usual.
    depth_lambda: float = 0.0
    # Weights of two regularisers, the mean opacity and the mean scale in world units. 0 is off, but 0.01 with --strategy mcmc.
    opacity_reg: float = 0.0
    scale_reg: float = 0.0
    # Learning rate of means, times the scene's scale; it falls exponentially to a hundredth. Rates are meant for 30,000 steps.
    # A run with n = steps · batch < 30,000 learns faster by r = √(30,000 / n), 8 at most: means and coefficients r times,
    # quaternions, scales and opacities √r times. The rate of means then falls only to r√r hundredths, except with
    # --strategy mcmc, whose noise follows it.
    means_lr: float = 1.6e-4
    # Learning rate of quaternions.
    quats_lr: float = 1e-3
    # Learning rate of log-scales.
    scales_lr: float = 5e-3
    # Learning rate of opacity logits.
    opacities_lr: float = 5e-2
    # Learning rate of the colour's constant coefficient; the other coefficients learn at a twentieth of it.
    sh0_lr: float = 2.5e-3

    # The way Gaussians spread: default (Kerbl et al. 2023) clones, splits and prunes; mcmc (Kheradmand et al. 2024) moves
    # faded Gaussians to opaque ones, adds more there, up to --budget, and moves faint ones by noise.
    strategy: Literal["default", "mcmc"] = "default"
    # `Trainer` was given a strategy object, which adds and removes Gaussians instead.
    own_strategy: Suppress[bool] = field(default=False, kw_only=True)
    # Steps from one densification (clone, split and prune, or move and add) to the next; in short runs a twentieth of the run,
    # 25 at least. As many steps as the run has, or more, is never.
    densify_every: int = 100
    # First step that may densify, or a fiftieth of the run if that is earlier.
    densify_start: int = 500
    # First step that no longer densifies, or half of the run if earlier; mcmc stops two thirds later, or at 5/6 of the run.
    densify_stop: int = 15_000
    # Gaussians whose mean gradient norm of means2d (normalised device coordinates) exceeds this are cloned or split.
    grow_grad2d: float = 2e-4
    # Gaussians larger than this, times the scene's scale, are split instead of cloned.
    split_scale: float = 0.01
    # Gaussians with a lower opacity are removed, or moved with mcmc.
    prune_opacity: float = 0.005
    # Gaussians larger than this, times the scene's scale, are removed once opacities have been reset.
    prune_scale: float = 0.1
    # After three and after four fifths of the run, remove Gaussians that contribute fewer pixels than this (blending weights,
    # summed) to every photograph. 0 keeps all.
    prune_contribution: float = 0.0
    # At the same two steps, remove this share of the Gaussians, 0 to 0.99: those about whose opacities the photographs hold the
    # least Fisher information. For scenes that must be far smaller. Not with mcmc, which adds as many again.
    prune_information: float = field(default=0.0, kw_only=True)
    # Opacities are capped every so many steps, so that unneeded Gaussians fade.
    opacity_reset_every: int = 3000
    # Gaussians when densification ends, if enough have large gradients; 0 is 5.5 √(steps · batch · pixels of a photograph), at
    # least 1.5 times the initial number. The Gaussians with the largest gradients grow, at an even pace towards the budget.
    budget: int = 0
    # Upper limit of the number of Gaussians.
    max_gaussians: int = 1_000_000

    # Learn exposure and white balance of each photograph: an affine map of the scene's colours (Kerbl et al. 2024).
    exposure: bool = False
    # Learn what cameras do to colours (Deutsch et al. 2026, PPISP): exposure and white balance of each photograph, vignetting
    # and response of each camera. In the place of `exposure`.
    ppisp: bool = False
    # Learn a bilateral grid of each photograph (Wang et al. 2024): 16 x 16 x 8 affine maps of colours, by place and brightness,
    # for photographs whose parts were toned differently, by a phone or a program. In the place of `exposure`.
    bilateral_grid: bool = False
    # Learn corrections of poses, focal length, principal point and lens (Lin et al. 2021), and write them to transforms.json;
    # and camera_params in the place of a lens, and write them to metrics.json.
    refine_cameras: bool = False
    # Learn a background behind all Gaussians, such as a sky, by direction (spherical harmonics of degree 3). Pages show it, and
    # exported files get it as far Gaussians.
    environment: bool = False
    # Render over a new colour in each step, also photographs with an alpha channel: nothing opaque stays transparent by chance.
    random_background: bool = False

    # Dim splats by as much as the low-pass filter enlarges them (Yu et al. 2024, Mip-Splatting), so that cameras at other
    # distances see surfaces as thick and as opaque.
    antialiased: bool = False
    # Keep Gaussians at least as large as the photographs could sample, so that closer cameras see no needles (Mip-Splatting's
    # 3D smoothing filter). Best together with --antialiased.
    filter_3d: bool = False
    # The way gradients add up over pixels: "pair" gives the same bits in every run; see `rasterization`.
    accumulate: Accumulate = "auto"
    # Steps between checkpoints; a killed run loses at most the steps since the last one.
    checkpoint_every: int = 500
    # Seed of all random numbers: the order of photographs, initial points, splits.
    seed: int = 42

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Self:
        """Make a configuration from the fields in a checkpoint or a run.json; TypeError if `content` is not a dictionary of
        them, SplatError if one has the wrong type or is out of range."""
        config = dataclass_of(cls, content)
        for slot in SLOTS:
            name, source = slot.fields(config)
            if not source and name not in slot.names:
                raise SplatError(f"{slot.option} is {name[:40]!r}, and its source is missing")
        config.validate()
        return config

    def validate(self) -> None:
        """Raise a SplatError that names a field of the wrong type or out of range."""
        check_fields(self, _RANGES)
        for slot in SLOTS:
            slot.validate(*slot.fields(self))
        self.parameters()
        if along_rays(self.splat_source) and self.antialiased:
            raise SplatError(f"splat {self.splat} is evaluated along rays, which antialiased does not reach; leave it out")
        if self.camera_params and self.camera in CAMERA.names and not self.camera_source:
            raise SplatError("camera_params are numbers of a camera of your own; name its Slang file or module with camera")
        looks = [name for name in ("exposure", "ppisp", "bilateral_grid") if getattr(self, name)]
        if len(looks) > 1:
            raise SplatError(f"{looks[0]} and {looks[1]} exclude each other: both learn how bright a photograph is; choose one")
        if self.environment and self.random_background:
            raise SplatError("environment and random_background exclude each other: there is only one background; choose one")
        for other in ("antialiased", "filter_3d", "depth_lambda", "environment", "random_background") * self.has_surfels:
            if getattr(self, other):
                raise SplatError(f"splat Surfel cannot be combined with {other}; leave out one")
        if self.own_strategy and self.photographs > 1:
            raise SplatError("a strategy object sees one photograph in a step; leave out batch, or see examples/own_trainer.py")
        if self.prune_information and self.strategy == "mcmc":
            raise SplatError(
                "prune_information and strategy mcmc exclude each other: mcmc adds as many again; choose a smaller budget"
            )

    def parameters(self) -> dict[str, Parameter]:
        """Return the splat parameters of each Gaussian, by name, in order."""
        built_in = not self.splat_source and self.splat in BUILT_IN
        return read_parameters(self.splat, built_in, self.splat_params, self.splat_param_lrs)

    def with_parameters(self, params: Mapping[str, float] | None, resumed: bool) -> Self:
        """Return a copy with other initial splat parameters; SplatError if they contradict those of the resumed run."""
        if params is None:
            return self
        asked = replace(self, splat_params=tuple(f"{name}={float(value)!r}" for name, value in params.items()))
        if resumed and asked.parameters() != self.parameters():
            was, now = (" ".join(each.splat_params) or "none" for each in (self, asked))
            raise SplatError(f"params has {now}, but the checkpoint was begun with {was}; resume it without params")
        return asked

    @property
    def has_surfels(self) -> bool:
        return self.splat == "Surfel" and not self.splat_source

    @property
    def has_harmonics(self) -> bool:
        return self.color == "SphericalHarmonics" and not self.color_source

    @property
    def learns_in_shading(self) -> bool:
        """True if harmonics take Adam's step in their backward pass: for one photograph, in rows of float4s (odd degrees)."""
        return self.has_harmonics and self.photographs == 1 and self.sh_degree % 2 == 1

    def degree_at(self, step: int) -> int:
        """Return the degree in use at a step; short runs raise it earlier."""
        interval = max(min(self.sh_interval, self.steps // (4 * max(self.sh_degree, 1))), 1)
        return min(step // interval, self.sh_degree)

    @property
    def photographs(self) -> int:  # per step
        return max(self.batch, 1)

    @property
    def short_run_lr_scale(self) -> float:
        """The factor, from 1 to 8, by which short runs raise the learning rates of means and coefficients."""
        return min(max(math.sqrt(_FULL_RUN / (self.steps * self.photographs)), 1.0), _MOST_HASTE)

    def means_lr_at(self, step: int, scene_scale: float) -> float:
        # The mean over the last epochs removes the scatter of a high final rate (parameters.py), but not MCMC's noise.
        fall = 0.01 if self.strategy == "mcmc" else 0.01 * self.short_run_lr_scale**1.5
        return self.short_run_lr_scale * self.means_lr * scene_scale * fall ** (step / self.steps) * math.sqrt(self.photographs)

    @property
    def coarse_end(self) -> int:
        """The first step that compares photographs at full size."""
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
        within = start <= step < self.densify_end and not self.own_strategy
        return within and (step + 1) % self.densify_interval == 0

    def resets_opacities_at(self, step: int) -> bool:
        """True if opacities are capped after this step."""
        resets = self.strategy == "default" and not self.own_strategy
        return resets and (step + 1) % self.opacity_reset_every == 0 and step + 1 < self.densify_end

    @property
    def regularizers(self) -> tuple[float, float]:
        """Weights of the mean opacity and of the mean scale."""
        usual = 0.01 if self.strategy == "mcmc" else 0.0
        return self.opacity_reg or usual, self.scale_reg or usual

    def prunes_at(self, step: int) -> bool:
        """True if Gaussians that contribute little, or with little information, are removed after this step."""
        prunes = max(self.prune_contribution, self.prune_information) > 0
        return prunes and step + 1 in (self.steps * 3 // 5, self.steps * 4 // 5)

    def budget_of(self, pixels: float, initial: int) -> int:
        """Return the final number of Gaussians: `budget`, or by default 5.5 √(steps · batch · mean pixels of a photograph), at
        least 1.5 times the `initial` ones. `max_gaussians` at most."""
        usual = max(_BUDGET_OF_STEPS * math.sqrt(self.steps * self.photographs * pixels), _BUDGET_OF_INITIAL * initial)
        return min(self.budget or math.ceil(usual), self.max_gaussians)

    def growth_limit(self, step: int, count: int, budget: int) -> int:
        """Return how many Gaussians `count` may become in a step that densifies. Each such step adds an equal share of those
        still missing, so that the last one reaches the budget. Never less than `count`."""
        # The number of steps s from this one to the end with s + 1 a multiple of the interval.
        left = max((self.densify_end - step + self.densify_interval - 1) // self.densify_interval, 1)
        return count + math.ceil(max(budget - count, 0) / left)

    def divisor_at(self, step: int, largest: int) -> int:
        """Return the divisor of photographs' sides at a step: `largest` at first, halved after equal numbers of steps, 1 from
        `coarse_end` on."""
        end, levels = self.coarse_end, largest.bit_length() - 1
        return largest >> step * levels // end if step < end else 1
