"""Options of every configuration: whatever they are, they are valid or refused by name."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest

from splat_py.errors import SplatError
from splat_py.image.fitting import Rates
from splat_py.splats.config import TrainConfig
from splat_py.volume.config import VolumeConfig

NONSENSE = [math.nan, math.inf, -math.inf, 1e38, -1, -1e-9, 10**400, -(10**5000), None, "x" * 1000, [], True, 1j]
CASES = [(kind, field.name) for kind in (TrainConfig, VolumeConfig, Rates) for field in fields(kind)]


def build(kind: Any, name: str, value: object) -> Any:
    config = replace(kind(), **{name: value})
    if isinstance(config, TrainConfig):
        config.validate()
    return config


@pytest.mark.parametrize(("kind", "name"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_nonsense_is_refused_by_name(kind: type, name: str) -> None:
    for value in NONSENSE:
        if value is True and isinstance(getattr(kind(), name), bool):
            continue
        # No parameters, and any text as a source, of which nothing is done.
        if (value == [] and name == "splat_param") or (isinstance(value, str) and name.endswith("_source")):
            continue
        with pytest.raises(SplatError, match=rf"^{name} ") as error:
            build(kind, name, value)
        assert len(str(error.value)) < 200


@pytest.mark.parametrize("kind", [TrainConfig, VolumeConfig, Rates])
def test_defaults_are_valid(kind: type) -> None:
    for field in fields(kind):
        build(kind, field.name, getattr(kind(), field.name))


def test_fields_of_files_are_checked() -> None:
    """What is pasted into shaders is what it says it is."""
    for field in ({"antialiased": "true; } int x = 1"}, {"accumulate": "hash"}, {"steps": 0}):
        with pytest.raises((SplatError, TypeError), match=f"{next(iter(field))} is "):
            TrainConfig.from_dict(field)
    with pytest.raises(SplatError, match="jitter is 1"):
        VolumeConfig(jitter=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("resolutions", [1022.0, "64", (64, "x"), (64, 2.5), (64, math.nan), (), (10**400,), 7, None])
def test_resolutions(resolutions: object) -> None:
    with pytest.raises(SplatError, match=r"^resolutions "):
        VolumeConfig(resolutions)  # type: ignore[arg-type]
