"""Types that implement IColor (slang/splat/color.slang), and the features and weights that they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gpu.kernels import UserType
from splat_py.gpu.sources import constant
from splat_py.scene.gaussians import Gaussians
from splat_py.shaders.declarations import takes_of
from splat_py.shaders.loading import built_in_or_own

# Features of a lobe: its axis and its amplitude.
_LOBE = 6
_UNIT_WEIGHTS = constant("splat/color", "UNIT_WEIGHTS")
# What a thread holds at a time is unrolled.
_MOST_FEATURES, _MOST_WEIGHTS = 256, 4096
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
    return built_in_or_own("color", color, COLORS, "IColor")


def color_model(color: str | UserType, features: int, weights: int) -> ColorModel:
    """A type, for `features` numbers of each Gaussian and as many weights.

    Raises:
        SplatError: it takes other numbers of them.
    """
    if features > _MOST_FEATURES:
        raise SplatError(f"colors holds {features} features a Gaussian; shaders take {_MOST_FEATURES} at most")
    if weights > _MOST_WEIGHTS:
        raise SplatError(f"weights holds {weights} numbers; shaders take {_MOST_WEIGHTS} at most")
    if isinstance(color, UserType):
        takes = takes_of(color)
        for what, given, wanted in (("features", features, takes[0]), ("weights", weights, takes[1])):
            if wanted not in (None, given):
                raise SplatError(f"{color.name} takes {wanted} {what} and is given {given}; see its {what.upper()}")
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


def require_features(gaussians: Gaussians) -> tuple[Tensor, Tensor | None]:
    """Features and weights of Gaussians whose colours are no harmonics; None where there are no weights.

    Raises:
        SplatError: they have none.
    """
    if gaussians.features is None:
        raise SplatError(f"color is {gaussians.color}, and the scene has no features; give it some, or leave color out")
    weights = gaussians.weights
    return gaussians.features, weights if weights is not None and len(weights) else None


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
