"""Slang of your own inside the renderer: a type that kernels are linked with, and a check of what its interface promises."""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.gpu.kernels import UserType
from splat_py.gpu.sources import constant, shader_folder
from splat_py.shaders import ShaderModule, gradients, load

# What checks sample, and the share of it that may be off: functions may have kinks.
_SAMPLES, _KINKS = 2000, 0.02
_ALPHA_MIN = constant("splat/blending", "ALPHA_MIN")


def source(text: str) -> ShaderModule:
    """Slang source of your own, which may import all of `splat.…`; its public functions are attributes.

    The module serves wherever the name of a built-in type does, if it declares a type that implements the interface there.

    Raises:
        SplatError: it cannot be compiled; the message has the line.
    """
    path = _folder() / f"source_{hashlib.sha256(text.encode()).hexdigest()[:16]}.slang"
    path.write_text(text, encoding="utf-8")
    try:
        return load(path)
    except SplatError as error:
        raise SplatError(str(error).replace(str(path), "the source")) from error


@cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="splat_py-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def user_type(module: ShaderModule | UserType, interface: str) -> UserType:
    """The type of a module that implements an interface.

    Raises:
        SplatError: there is none, or more than one.
    """
    if isinstance(module, UserType):
        return module
    return UserType(module.type_of(interface), module.text)


def check(splat: ShaderModule | UserType | str, **ranges: tuple[float, float]) -> None:
    """Compare a falloff's derivatives with finite differences, and its `sigmaMax` with its values, at random places.

    Args:
        splat: from `source` or `load`, or the name of a built-in one.
        ranges: of each extra number, in the order in which `extras` has them: the lowest and the highest value.

    Raises:
        SplatError: a derivative is wrong, something visible lies beyond `sigmaMax`, or a value is more than 1 or not finite.
    """
    if len(ranges) > 4:
        raise SplatError(f"{len(ranges)} ranges are given; a splat has four extra numbers at most")
    probe = _probe(splat)
    rng = np.random.default_rng(0)
    extras = np.zeros((_SAMPLES, 4), np.float32)
    for column, (low, high) in enumerate(ranges.values()):
        extras[:, column] = rng.uniform(low, high, _SAMPLES)
    opacity = np.exp(rng.uniform(np.log(1.001 * _ALPHA_MIN), 0, _SAMPLES)).astype(np.float32)
    furthest = np.asarray(probe.probeSigmaMax(opacity, extras))
    _refuse(~(np.isfinite(furthest) & (furthest >= 0)), "sigmaMax is {}", furthest, opacity, extras)

    for beyond in (1.002, 1.1, 1.5, 2, 4, 10):
        sigma = (furthest * beyond + 1e-3).astype(np.float32)
        alpha = opacity * np.asarray(probe.probeValue(sigma, extras))
        text = f"opacity · value is {{}} and not below 1/255 at {beyond:g} times sigmaMax; let that return more"
        _refuse(~(alpha < _ALPHA_MIN * 1.001), text, alpha, opacity, extras)

    sigma = (furthest * rng.uniform(0, 1, _SAMPLES)).astype(np.float32)
    value = np.asarray(probe.probeValue(sigma, extras))
    _refuse(~((value >= 0) & (value <= 1 + 1e-5)), "value is {}, and not from 0 to 1,", value, opacity, extras)
    _check_gradients(probe, sigma, extras, list(ranges))


def _probe(splat: ShaderModule | UserType | str) -> ShaderModule:
    """Functions that call the type's, in one module with it."""
    if isinstance(splat, str):
        homes = {file.stem: file for file in (shader_folder() / "splat").glob("*.slang")}
        home = next((name for name, file in homes.items() if f"struct {splat} : IFalloff" in file.read_text("utf-8")), None)
        if home is None:
            raise SplatError(f"there is no built-in type {splat!r} that implements IFalloff")
        name, text = splat, f"import splat.{home};\nimport splat.falloff;\n"
    else:
        kind = user_type(splat, "IFalloff")
        name, text = kind.name, f"{kind.text}\n"
    return source(
        text
        + f"""[Differentiable]
public float probeValue(float sigma, float4 extras) {{ return falloffOf<{name}>(sigma, extras); }}
public float probeSigmaMax(float opacity, float4 extras) {{ return {name}.sigmaMax(opacity, extras); }}
"""
    )


def _check_gradients(probe: ShaderModule, sigma: NDArray, extras: NDArray, names: list[str]) -> None:
    """Against central differences, whose errors are their steps' squares and float32's."""
    v_sigma, v_extras = gradients(probe.probeValue, 1.0, sigma, extras)
    found = {"sigma": v_sigma} | {name: v_extras[:, i] for i, name in enumerate(names)}
    for name, actual in found.items():
        column = None if name == "sigma" else names.index(name)
        at = sigma if column is None else extras[:, column]
        step = (1e-2 * np.maximum(np.abs(at), 0.1)).astype(np.float32)
        ends = []
        for sign in (1, -1):
            moved = (at + sign * step).astype(np.float32)
            others = extras.copy()
            if column is None:
                moved = np.maximum(moved, 0)
            else:
                others[:, column] = moved
            ends.append((moved, np.asarray(probe.probeValue(moved if column is None else sigma, others))))
        (above, high), (below, low) = ends
        expected = (np.asarray(high, np.float64) - low) / (above - below)
        error = np.abs(actual - expected) - 0.02 * np.abs(expected)
        wrong = error > 0.02 * np.sqrt(np.mean(expected**2)) + 1e-4
        if np.mean(wrong) > _KINKS:
            worst = int(np.argmax(error))
            place = f"σ = {sigma[worst]:.3g}" + "".join(f", {n} = {extras[worst, i]:.3g}" for i, n in enumerate(names))
            raise SplatError(
                f"the derivative of value by {name} is {actual[worst]:.4g} at {place}, where finite differences have "
                f"{expected[worst]:.4g}; is every function in it [Differentiable], and no bare scalar left of a vector?"
            )


def _refuse(wrong: NDArray, what: str, values: NDArray, opacity: NDArray, extras: NDArray) -> None:
    if wrong.any():
        i = int(np.argmax(wrong))
        place: Any = ", ".join(f"{x:.3g}" for x in extras[i])
        raise SplatError(f"{what.format(f'{values[i]:.4g}')} with opacity {opacity[i]:.3g} and extras ({place})")
