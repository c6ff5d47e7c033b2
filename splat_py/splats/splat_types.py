"""The built-in types of splats, and the parameters that they or types of the user's take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from splat_py.errors import SplatError
from splat_py.scene.slang_source import MOST_PARAMS, require_name

if TYPE_CHECKING:
    from splat_py.splats.config import TrainConfig


# What a splat of the user's own implements: of a module with types of both, the first.
SPLAT_INTERFACES = ("IFalloff2D", "IFalloff")


@dataclass(frozen=True)
class Parameter:
    """A number that each Gaussian has for its splat: where training begins, and what it stays between."""

    initial: float
    least: float = -math.inf
    largest: float = math.inf


# The built-in types (`SPLATS` in validation.py) and their parameters. An exponent that falls to zero would reach everywhere.
BUILT_IN: dict[str, dict[str, Parameter]] = {
    "Gaussian": {},
    "GeneralizedExponential": {"beta": Parameter(1.0, 0.2, 8.0)},
    "BetaKernel": {"b": Parameter(0.0, -4.0, 4.0)},
}


def read_parameters(splat: str, built_in: bool, given: Sequence[str]) -> dict[str, Parameter]:
    """The parameters of a splat, in their order.

    Args:
        given: "NAME=VALUE" each, initial values. Of a built-in type those that differ from its own; of a user's all.

    Raises:
        SplatError: one of them says something else.
    """
    known = dict(BUILT_IN[splat]) if built_in else {}
    names = []
    for text in given:
        name, equals, value = text.partition("=")
        names.append(name)
        try:
            initial = float(value) if equals else math.nan
        except ValueError:
            initial = math.nan
        if not math.isfinite(initial):
            raise SplatError(f"splat_param is {text[:60]!r}; write NAME=VALUE, such as beta=1")
        require_name("a parameter in splat_param", name)
        if built_in and name not in known:
            raise SplatError(f"splat_param is {text!r}; {splat} takes {', '.join(known) or 'none'}")
        limits = known.get(name, Parameter(initial))
        if not limits.least <= initial <= limits.largest:
            raise SplatError(f"splat_param is {text!r}; {name} must lie between {limits.least:g} and {limits.largest:g}")
        known[name] = Parameter(initial, limits.least, limits.largest)
    if len(set(names)) < len(names):
        raise SplatError(f"splat_param names a parameter twice: {' '.join(given)}")
    if len(known) > MOST_PARAMS:
        raise SplatError(f"splat_param has {len(known)} parameters; a splat has {MOST_PARAMS} at most")
    return known


def with_parameters(config: TrainConfig, params: Mapping[str, float] | None, resumed: bool) -> TrainConfig:
    """A configuration with other initial values.

    Raises:
        SplatError: they contradict those of the run that is resumed.
    """
    if params is None:
        return config
    asked = replace(config, splat_param=tuple(f"{name}={float(value)!r}" for name, value in params.items()))
    if resumed and asked.parameters() != config.parameters():
        was, now = (" ".join(each.splat_param) or "none" for each in (config, asked))
        raise SplatError(f"params has {now}, but the checkpoint was begun with {was}; resume it without params")
    return asked
