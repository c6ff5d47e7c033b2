"""Kinds of colours: types that implement IColor (slang/splat/color.slang), and what they compute colours from."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splat_py.base.errors import SplatError
from splat_py.gpu.kernels import UserType
from splat_py.gpu.sources import constant
from splat_py.shaders.declarations import takes_of

# Features per lobe: its axis and its amplitude.
_LOBE = 6
_UNIT_WEIGHTS = constant("splat/color", "UNIT_WEIGHTS")
# Limits, because a thread's code is unrolled over features and weights.
_MOST_FEATURES, _MOST_WEIGHTS = 256, 4096
# The built-in types, by their names in `rasterization`.
COLORS = ("SphericalHarmonics", "SphericalGaussians", "ColorNetwork")


@dataclass(frozen=True)
class ColorModel:
    """A type that implements IColor.

    Attributes:
        features: the number of features in use per Gaussian.
        weights: the number of weights that all Gaussians share.
    """

    type: str | UserType
    features: int
    weights: int = 0


def harmonics(degree: int, as_color: bool = True) -> ColorModel:
    """Spherical harmonics: max(0, Σ Y_k sh_k + ½), or with `as_color` off the sum itself."""
    return ColorModel("SphericalHarmonics" if as_color else "HarmonicSum", 3 * (degree + 1) ** 2)


def color_model(color: str | UserType, features: int, weights: int) -> ColorModel:
    """Make the model of a type with `features` features per Gaussian and `weights` shared weights. SplatError if the type needs
    other numbers of them."""
    if features > _MOST_FEATURES:
        raise SplatError(f"colors holds {features} features per Gaussian; shaders accept at most {_MOST_FEATURES}")
    if weights > _MOST_WEIGHTS:
        raise SplatError(f"weights holds {weights} numbers; shaders accept at most {_MOST_WEIGHTS}")
    if isinstance(color, UserType):
        takes = takes_of(color)
        for what, given, wanted in (("features", features, takes[0]), ("weights", weights, takes[1])):
            if wanted not in (None, given):
                raise SplatError(f"{color.name} takes {wanted} {what} and is given {given}; see its {what.upper()}")
    elif color == "SphericalGaussians":
        if weights:
            raise SplatError("weights are given, but SphericalGaussians have none; leave weights out")
        if features % _LOBE != 3:
            raise SplatError(f"colors holds {features} features per Gaussian; SphericalGaussians need 3 + {_LOBE} per lobe")
    elif color == "ColorNetwork" and (weights <= 3 or (weights - 3) % _unit(features)):
        each = f"3 + {_unit(features)} per hidden unit"
        raise SplatError(f"weights holds {weights} numbers; a ColorNetwork of {features} features needs {each}")
    return ColorModel(color, features, weights)


def network_weights(features: int, hidden: int) -> int:
    """The number of weights of a ColorNetwork."""
    return _unit(features) * hidden + 3


def initial_network(features: int, hidden: int, seed: int = 0) -> NDArray[np.float32]:
    """Initial weights [W] of a ColorNetwork: random directions, zero biases, outputs near the middle (He et al. 2015)."""
    rows = np.random.default_rng(seed).normal(size=(hidden, _unit(features)))
    rows[:, :-4] *= np.sqrt(2 / (rows.shape[1] - 4))
    rows[:, -4] = 0
    rows[:, -3:] *= np.sqrt(1 / hidden)
    return np.append(rows, np.zeros(3)).astype(np.float32)


def _unit(features: int) -> int:
    # Features are padded to whole float3s.
    return -(-features // 3) * 3 + _UNIT_WEIGHTS
