"""What the splats of a scene are: a built-in type by its name, or Slang of the user's, and the parameters that it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from splat_py.errors import SplatError
from splat_py.scene.splat_source import MOST_PARAMS, SplatSource, require_name

if TYPE_CHECKING:
    from splat_py.gpu.kernels import UserType
    from splat_py.shaders import ShaderModule
    from splat_py.splats.config import TrainConfig


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


def begun_with(
    config: TrainConfig,
    splat: str | UserType | ShaderModule | None,
    params: Mapping[str, float] | None,
    *,
    resumed: bool,
    trust_source: bool,
) -> tuple[TrainConfig, str | UserType]:
    """The configuration of a run with the splats that are asked for, and these.

    Args:
        splat, params, trust_source: as for `Trainer`.
        resumed: `config` is of a run that goes on.

    Raises:
        SplatError: there is no such splat, it contradicts the run's, or its source is not trusted.
    """
    named = config.splat if splat is None and not config.splat_source else splat
    kind = named_type(named) if isinstance(named, str) else own_type(named) if named is not None else None
    asked = config
    if kind is not None:
        name, text = (kind, "") if isinstance(kind, str) else (kind.name, kind.text)
        asked = replace(asked, splat=name, splat_source=text)
    if params is not None:
        asked = replace(asked, splat_param=tuple(f"{name}={float(value)!r}" for name, value in params.items()))
    asked.validate()
    if resumed and asked.splat_source != config.splat_source and config.splat_source and asked.splat_source:
        raise _another_source("the checkpoint", config.splat)
    if resumed and (asked.splat, asked.parameters()) != (config.splat, config.parameters()):
        was, now = (" ".join((c.splat, *c.splat_param)) for c in (config, asked))
        raise SplatError(f"splat is {now}, but the checkpoint was begun with {was}; resume it without splat and params")
    if kind is None:
        kind = trusted(SplatSource(config.splat, config.splat_source), None, trust_source, "the checkpoint")
    return asked, kind


def named_type(name: str) -> str | UserType:
    """A built-in type's name, or the type in a Slang file.

    Raises:
        SplatError: there is neither.
    """
    if name in BUILT_IN:
        return name
    require_slang_file(name)
    from splat_py import shaders

    return own_type(shaders.load(name))


def require_slang_file(name: str) -> None:
    """Raise SplatError unless there is such a file."""
    from splat_py.files import is_file

    if not is_file(Path(name)):
        raise SplatError(f"splat is {name!r}; use {', '.join(BUILT_IN)}, or the name of a Slang file")


def own_type(splat: ShaderModule | UserType) -> UserType:
    """The type in a module."""
    from splat_py.user_types import user_type

    return user_type(splat, "IFalloff")


def trusted(splat: str | UserType | SplatSource, named: str | UserType | None, trust_source: bool, what: str) -> str | UserType:
    """Splats that may be compiled: those of a file only if the user has named their source again, or says so.

    Args:
        named: what the user names, if anything.
        what: carries the splats, for messages.

    Raises:
        SplatError: nobody says that the source is trusted, or `named` is something else.
    """
    own = splat if isinstance(splat, str) else splat.name
    if isinstance(named, str) or isinstance(splat, str):
        if named not in (None, splat):
            raise SplatError(f"{what} has splats of type {own}, and not {getattr(named, 'name', named)}; leave --splat out")
        if isinstance(splat, str):
            return splat
    if named is not None and not isinstance(named, str):
        if named.text != splat.text:
            raise _another_source(what, own)
        return named
    if not isinstance(splat, str | SplatSource):
        return splat
    if not trust_source:
        raise SplatError(
            f"{what} carries Slang source of its own, {own}, which could read and write any memory; "
            "name its file again (--splat FILE), or say that you trust it (--trust-source)"
        )
    from splat_py import shaders

    return own_type(shaders.source(splat.text))


def _another_source(what: str, name: str) -> SplatError:
    return SplatError(f"this source is not the one of {what}, of type {name}; name the one that it was trained with")
