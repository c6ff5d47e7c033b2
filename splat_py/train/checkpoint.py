"""The start of a run: initial Gaussians or a checkpoint.

Initial Gaussians lie at the dataset's points, or at random in the box that its cameras see.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import pad

from splat_py.base.errors import SplatError
from splat_py.base.files import Layout, save_tensors
from splat_py.fit.run_folder import reading, require_layout, whole_number
from splat_py.fit.steps import with_moments
from splat_py.gpu.kernels import UserType
from splat_py.render.colors import color_model, initial_network, network_weights
from splat_py.scene.dataset import Dataset
from splat_py.scene.gaussians import SH_C0, Gaussians
from splat_py.shaders.custom_types import COLOR, SPLAT
from splat_py.shaders.declarations import takes_of
from splat_py.train.capture_model import capture_shapes, is_of_capture
from splat_py.train.config import TrainConfig
from splat_py.train.parameters import EXTRAS, FEATURES, FILTER, MEAN, WEIGHTS, Parameters, State, averaged_groups, gaussians_of

# The most intersections that an index can number.
_MOST_ISECTS = (1 << 31) - 1
# Default features per Gaussian (SphericalGaussians: 3 lobes), and hidden units of a ColorNetwork.
_FEATURES = {"SphericalGaussians": 21, "ColorNetwork": 12}
_HIDDEN = 16
# Initial sharpness of lobes: about 30 degrees wide.
_SHARPNESS = 4.0
_NOISE = 0.1
# Logarithm of a surfel's initial width over its thickness, which is not trained.
_FLATTER = 7.0


def numbers_of(splat_params: Mapping[str, ArrayLike | Tensor]) -> dict[str, Tensor]:
    """Return initial splat parameters as float64 tensors, [] or [N]; SplatError for anything else."""
    numbers = {}
    for name, values in splat_params.items():
        try:
            numbers[name] = torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()
        except (TypeError, ValueError, RuntimeError) as error:
            raise SplatError(f"splat_params[{name!r}] does not hold numbers; pass a number or a tensor [N]") from error
        if numbers[name].numel() == 0:
            raise SplatError(f"splat_params[{name!r}] is empty; pass a number or a tensor [N]")
    return numbers


def initial_gaussians(
    dataset: Dataset, config: TrainConfig, given: Gaussians | None = None, params: Mapping[str, Tensor] | None = None
) -> Gaussians:
    """Return the Gaussians before the first step, with splat parameters and colour features: those `given`, or at the dataset's
    points, or at random; `params` is from `numbers_of`. SplatError if the dataset lacks the points that `config.init` asks for,
    there are more than `config.max_gaussians`, or `given` or `params` do not fit the run."""
    points = None if config.init == "random" else dataset.points
    count = initial_count(config, dataset) if given is None else len(given)
    if given is None and config.init == "points" and points is None:
        raise SplatError(f"{dataset.root} holds no points; use --init random")
    what = "given" if given is not None else f"points of {dataset.root}" if points else "Gaussians of init_num_pts"
    if count > config.max_gaussians:
        raise SplatError(f"max_gaussians is {config.max_gaussians:,}, less than the {count:,} {what} to begin with; raise it")
    if given is not None:
        gaussians = _fitted(given, config)
    elif points is None:
        rng = np.random.default_rng(config.seed)
        low, high = dataset.bounds
        xyz = rng.uniform(low, high, (count, 3))
        gaussians = Gaussians.from_points(xyz, rng.uniform(0, 1, xyz.shape), sh_degree=config.sh_degree)
    else:
        gaussians = Gaussians.from_points(*points, sh_degree=config.sh_degree)
    begun = {}
    for name, number in config.parameters().items():
        values = (params or {}).get(name, gaussians.params.get(name, torch.tensor(number.initial))).float()
        if values.shape not in ((), (count,)):
            raise SplatError(
                f"splat_params[{name!r}] has shape {list(values.shape)}; there are {count:,} Gaussians to begin with"
            )
        if not ((values >= number.least) & (values <= number.largest) & values.isfinite()).all():
            raise SplatError(f"splat_params[{name!r}] must be finite, from {number.least:g} to {number.largest:g}")
        begun[name] = values.expand(count).contiguous()
    if config.has_surfels and given is None:
        # They face all directions, and have no thickness for viewers that draw Gaussians.
        rng = np.random.default_rng((config.seed, 2))
        quats = torch.from_numpy(rng.normal(size=(count, 4)).astype(np.float32))
        flat = torch.cat([gaussians.log_scales[:, :2], gaussians.log_scales[:, 2:] - _FLATTER], 1)
        gaussians = replace(gaussians, quats=quats, log_scales=flat)
    return replace(_with_features(gaussians, config), params=begun)


def _fitted(given: Gaussians, config: TrainConfig) -> Gaussians:
    """Return the user's Gaussians on the host, with harmonics of `config.sh_degree`."""
    given.validate()
    if not len(given):
        raise SplatError("gaussians is empty; pass one Gaussian at least")
    for slot in (SPLAT, COLOR):
        was, now = given.types[slot.option], slot.fields(config)
        if was not in (now, (slot.names[0], "")) or (slot is SPLAT and config.has_surfels and was != now):
            raise SplatError(f"gaussians has the {slot.option} {was[0]}, and the run {now[0]}; pass {slot.option}={was[0]}")
    if given.features is not None:
        sizes = given.features.shape[1], 0 if given.weights is None else len(given.weights)
        if sizes != (config.color_features, config.color_weights):
            raise SplatError(
                f"gaussians has {sizes[0]} features and {sizes[1]} weights, and the run {config.color_features} and "
                f"{config.color_weights}; set color_features and color_weights"
            )
    most = (config.sh_degree + 1) ** 2
    sh = pad(given.sh[:, :most], (0, 0, 0, max(most - given.sh.shape[1], 0)))
    weights = None if given.weights is None else given.weights.detach()
    return replace(given, sh=sh, weights=weights).mapped(lambda tensor: tensor.detach().contiguous()).to("cpu")


def initial_count(config: TrainConfig, dataset: Dataset) -> int:
    return config.init_num_pts if config.init == "random" or dataset.points is None else len(dataset.points[0])


def with_sizes(config: TrainConfig, color: str | UserType) -> TrainConfig:
    """Return `config` with its `color_features` and `color_weights` filled in; SplatError if neither the user's type nor
    `config` gives their numbers, or they do not fit."""
    if color == "SphericalHarmonics":
        for name in ("color_features", "color_weights"):
            if number := getattr(config, name):
                raise SplatError(f"{name} is {number}, but SphericalHarmonics has no {name}; leave it out, or choose a color")
        return config
    features, weights = config.color_features, config.color_weights
    if isinstance(color, str):
        features = features or _FEATURES[color]
        weights = weights or (network_weights(features, _HIDDEN) if color == "ColorNetwork" else 0)
    else:
        declared = takes_of(color)
        features, weights = features or declared[0] or 0, weights or declared[1]
    config = replace(config, color_features=features, color_weights=weights)
    config.validate()
    color_model(color, features, weights)
    return config


def _with_features(gaussians: Gaussians, config: TrainConfig) -> Gaussians:
    """Return Gaussians with weights, and with features that start with the colour minus ½.

    Lobes of SphericalGaussians get random axes and zero amplitude; other features and weights are small random numbers.
    """
    if not config.color_features or gaussians.features is not None:
        return gaussians
    count, size = len(gaussians), config.color_features
    rng = np.random.default_rng((config.seed, 1))
    features = rng.normal(0, _NOISE, (count, size)).astype(np.float32)
    if config.color == "SphericalGaussians" and not config.color_source:
        lobes = features[:, 3:].reshape(count, -1, 2, 3)
        lobes[:, :, 0] *= _SHARPNESS / np.maximum(np.linalg.norm(lobes[:, :, 0], axis=-1, keepdims=True), 1e-9)
        lobes[:, :, 1] = 0
    features[:, :3] = (gaussians.sh[:, 0] * SH_C0).numpy()[:, :size]
    weights = rng.normal(0, _NOISE, config.color_weights).astype(np.float32)
    if config.color == "ColorNetwork" and not config.color_source:
        hidden = (config.color_weights - 3) // (network_weights(size, 1) - 3)
        weights = initial_network(size, hidden, config.seed)
    sh = gaussians.sh[:, :1].contiguous()
    return replace(gaussians, sh=sh, features=torch.from_numpy(features), weights=torch.from_numpy(weights))


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a run needs to continue as if it had not stopped. Random numbers depend on (seed, step) alone."""

    # Steps done.
    step: int
    config: TrainConfig
    state: State
    # Capacity of the tile lists, in intersections, that the run has reached.
    capacity: int

    def gaussians(self) -> Gaussians:
        """Return the Gaussians; their splat and color may be a `SlangSource`."""
        return gaussians_of(self.state, self.config, SPLAT.of(self.config), COLOR.of(self.config))

    def parameters(self) -> State:
        """Return the state of `Parameters`: without filters, means and learnt parts of the capture."""
        beside = {name for name in self.state if name == FILTER or name.endswith(MEAN) or is_of_capture(name)}
        return {name: values for name, values in self.state.items() if name not in beside}

    def save(self, path: Path) -> None:
        header = {"step": self.step, "config": asdict(self.config), "capacity": self.capacity}
        save_tensors(path, "splat_py", header, self.state)

    @classmethod
    def load(cls, path: Path) -> "Checkpoint":
        """Read what `save` wrote; SplatError if the file is missing, damaged or not a checkpoint."""
        what, advice, absent = "a checkpoint of splat_py", "train without --resume", "there is no checkpoint to resume from"
        with reading(path, "splat_py", _check, what, advice, absent=absent, squares=("v", FILTER)) as (header, state):
            return cls(header["step"], TrainConfig.from_dict(header["config"]), state, header["capacity"])


def _check(header: dict[str, Any], layout: Layout) -> None:
    config = TrainConfig.from_dict(header["config"])
    whole_number(header, "step", 0, config.steps)
    whole_number(header, "capacity", 1, _MOST_ISECTS)
    _, (count, *_) = layout["means"]
    if count == 0:
        raise ValueError("it has no Gaussians")
    rows: dict[str, tuple[int, ...]] = {"means": (3,), "quats": (4,), "log_scales": (3,), "logit_opacities": ()}
    if config.has_harmonics:
        rows["sh"] = ((config.sh_degree + 1) ** 2, 3)
    elif config.color_features:
        rows[FEATURES] = (config.color_features,)
    else:
        raise ValueError("color_features is missing")
    if config.parameters():
        rows[EXTRAS] = (len(config.parameters()),)
    of_each = (*Parameters.STATISTICS, *((FILTER,) if config.filter_3d else ()))
    shapes = {name: (count, *row) for name, row in rows.items()}
    if config.color_weights and not config.has_harmonics:
        shapes[WEIGHTS] = (config.color_weights,)
    shapes = {with_moment: shape for name, shape in shapes.items() for with_moment in with_moments(name)}
    if any(name.endswith(MEAN) for name in layout):
        shapes |= {name + MEAN: shapes[name] for name in averaged_groups(shapes)}
    shapes |= capture_shapes(config, layout)
    require_layout(layout, shapes | dict.fromkeys(of_each, (count,)))
