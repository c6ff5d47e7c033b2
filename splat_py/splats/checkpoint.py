"""Where training goes on from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from splat_py.files import Layout, load_tensors, save_tensors
from splat_py.fit.checked import require_finite, require_layout, whole_number
from splat_py.fit.checkpoint import reading
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.slang_source import SlangSource
from splat_py.splats.capture_model import capture_shapes
from splat_py.splats.config import TrainConfig
from splat_py.splats.filter_3d import FILTER, filtered
from splat_py.splats.own_types import COLOR, SPLAT
from splat_py.splats.parameter_means import MEAN, averaged, averaged_groups
from splat_py.splats.parameters import EXTRAS, FEATURES, GROUPS, MOMENTS, WEIGHTS, Parameters, State, groups_of
from splat_py.splats.training_colors import shown_color

if TYPE_CHECKING:
    from splat_py.gpu.kernels import UserType

# More do not fit into an index.
_MOST_ISECTS = (1 << 31) - 1


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Everything that a run needs to go on as if it had not stopped. What is random is drawn from (seed, step) alone."""

    # Steps done.
    step: int
    config: TrainConfig
    state: State
    # Of tile lists, in intersections, that the run had found to be enough.
    capacity: int

    def gaussians(self) -> Gaussians:
        """The Gaussians. What their splats are may be a `SlangSource`."""
        config = self.config
        return gaussians_of(self.state, config, SPLAT.of(config), COLOR.of(config))

    def save(self, path: Path) -> None:
        """Write to `path`, atomically."""
        header = {"step": self.step, "config": dataclasses.asdict(self.config), "capacity": self.capacity}
        save_tensors(path, "splat_py", header, self.state)

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read what `save` wrote.

        Raises:
            SplatError: the file is missing, damaged or not a checkpoint.
        """
        absent = "there is no checkpoint to resume from"
        with reading(path, "a checkpoint of splat_py", "train without --resume", absent=absent):
            header, state = load_tensors(path, "splat_py", _check)
            require_finite(state, (*(name for name in state if name.endswith(".v")), FILTER))
            return cls(header["step"], TrainConfig.from_dict(header["config"]), state, header["capacity"])


def gaussians_of(
    state: State, config: TrainConfig, splat: str | UserType | SlangSource, color: str | UserType | SlangSource
) -> Gaussians:
    """The Gaussians of a state. Its arrays are theirs."""
    state = filtered(averaged(state))
    tensors = {name: torch.from_numpy(state[name]) for name in groups_of(state)}
    features = tensors.get(FEATURES)
    weights = torch.from_numpy(state[WEIGHTS]) if WEIGHTS in state else None
    params = {name: tensors[EXTRAS][:, i].contiguous() for i, name in enumerate(config.parameters())}
    sh = tensors["sh"] if features is None else shown_color(features)
    means, quats, log_scales, logit_opacities = (tensors[name] for name in GROUPS[:4])
    antialiased = config.antialiased
    return Gaussians(means, quats, log_scales, logit_opacities, sh, params, splat, color, features, weights, antialiased)


def _check(header: dict[str, Any], layout: Layout) -> None:
    """Raise if this is not what `Checkpoint.save` leaves."""
    config = TrainConfig.from_dict(header["config"])
    config.validate()
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
        raise ValueError("color_features is not there")
    if config.parameters():
        rows[EXTRAS] = (len(config.parameters()),)
    of_each = (*Parameters.STATISTICS, *((FILTER,) if config.filter_3d else ()))
    shapes = {f"{name}{suffix}": (count, *row) for name, row in rows.items() for suffix in ("", *(f".{m}" for m in MOMENTS))}
    if config.color_weights and not config.has_harmonics:
        shapes |= {f"{WEIGHTS}{suffix}": (config.color_weights,) for suffix in ("", *(f".{m}" for m in MOMENTS))}
    if any(name.endswith(MEAN) for name in layout):
        shapes |= {name + MEAN: shapes[name] for name in averaged_groups(shapes)}
    shapes |= capture_shapes(config, layout)
    require_layout(layout, shapes | dict.fromkeys(of_each, (count,)))
