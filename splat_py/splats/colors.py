"""Types that implement IColor (slang/splat/color.slang), and the features and weights that they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.gpu.kernels import UserType
from splat_py.gpu.sources import constant, constant_of
from splat_py.shaders import ShaderModule
from splat_py.user_types import user_type

# Features of a lobe: its axis and its amplitude.
_LOBE = 6
_UNIT_WEIGHTS = constant("splat/color_network", "UNIT_WEIGHTS")
COLORS = ("SphericalHarmonics", "SphericalGaussians", "ColorNetwork")


@dataclass(frozen=True)
class ColorModel:
    """A type that implements IColor.

    Attributes:
        features: of each Gaussian, as many as are used.
        weights: that all share.
    """

    type: str | UserType
    features: int
    weights: int = 0

    def constants(self) -> dict[str, str | int | UserType]:
        """What shading is specialised by."""
        constants: dict[str, str | int | UserType] = {"FEATURES": self.features}
        if self.type != "SphericalHarmonics":
            constants["Color"] = self.type
        if self.weights:
            constants["WEIGHTS"] = self.weights
        return constants


def harmonics(degree: int, as_color: bool = True) -> ColorModel:
    """Spherical harmonics: max(0, Σ Y_k sh_k + ½), or the sum as it is."""
    return ColorModel("SphericalHarmonics" if as_color else "HarmonicSum", 3 * (degree + 1) ** 2)


def color_type(color: Any) -> str | UserType:
    """What `rasterization` is given: a built-in type's name, or a caller's own type.

    Raises:
        SplatError: it is neither.
    """
    if isinstance(color, UserType | ShaderModule):
        return user_type(color, "IColor")
    if not isinstance(color, str) or color not in COLORS:
        given = repr(color) if isinstance(color, str) else f"a {type(color).__name__}"
        raise SplatError(f"color is {given}; use {', '.join(COLORS)}, or a type from splat_py.shaders.source")
    return color


def color_model(color: str | UserType, features: int, weights: int) -> ColorModel:
    """A type, for `features` numbers of each Gaussian and as many weights.

    Raises:
        SplatError: it takes other numbers of them.
    """
    if isinstance(color, UserType):
        for what, given, name, default in (("features", features, "FEATURES", None), ("weights", weights, "WEIGHTS", 0)):
            wanted = constant_of(color.text, name, default)
            if wanted not in (None, given):
                raise SplatError(f"{color.name} takes {wanted} {what} and is given {given}; see its {name}")
    elif color == "SphericalGaussians":
        if weights:
            raise SplatError("weights are given, which SphericalGaussians do not have; leave weights out")
        if features % _LOBE != 3:
            raise SplatError(
                f"colors holds {features} features a Gaussian; SphericalGaussians take 3 and {_LOBE} for each of their lobes"
            )
    elif color == "ColorNetwork" and (weights <= 3 or (weights - 3) % _unit(features)):
        each = f"3 and {_unit(features)} for each hidden unit"
        raise SplatError(f"weights holds {weights} numbers; a ColorNetwork of {features} features takes {each}")
    return ColorModel(color, features, weights)


def network_weights(features: int, hidden: int) -> int:
    """How many weights a ColorNetwork has."""
    return _unit(features) * hidden + 3


def initial_network(features: int, hidden: int, seed: int = 0) -> NDArray[np.float32]:
    """Weights [W] of a ColorNetwork to begin with: random directions, no biases, outputs near the middle (He et al. 2015)."""
    rows = np.random.default_rng(seed).normal(size=(hidden, _unit(features)))
    rows[:, :-4] *= np.sqrt(2 / (rows.shape[1] - 4))
    rows[:, -4] = 0
    rows[:, -3:] *= np.sqrt(1 / hidden)
    return np.append(rows, np.zeros(3)).astype(np.float32)


def _unit(features: int) -> int:
    # Features come in threes.
    return -(-features // 3) * 3 + _UNIT_WEIGHTS
