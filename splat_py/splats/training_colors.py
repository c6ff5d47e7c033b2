"""Colours of a training run that are no spherical harmonics: how many numbers they are made of, and where these begin."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from splat_py.errors import SplatError
from splat_py.gpu.sources import constant_of
from splat_py.scene.gaussians import SH_C0, Gaussians
from splat_py.splats.colors import ColorModel, color_model, network_weights

if TYPE_CHECKING:
    from splat_py.gpu.kernels import UserType
    from splat_py.splats.config import TrainConfig

# Of SphericalGaussians 3 lobes; of a ColorNetwork, and its hidden units.
_FEATURES = {"SphericalGaussians": 21, "ColorNetwork": 12}
_HIDDEN = 16
# Of lobes to begin with: about 30 degrees wide.
_SHARPNESS = 4.0
_NOISE = 0.1


def with_sizes(config: TrainConfig, color: str | UserType) -> TrainConfig:
    """A configuration that says how many features and weights its colours have.

    Raises:
        SplatError: a type of one's own does not say so, nor does `config`, or they do not fit.
    """
    if color == "SphericalHarmonics":
        for name in ("color_features", "color_weights"):
            if number := getattr(config, name):
                raise SplatError(f"{name} is {number}, which harmonics have none of; leave it out, or choose a color")
        return config
    features, weights = config.color_features, config.color_weights
    if isinstance(color, str):
        features = features or _FEATURES[color]
        weights = weights or (network_weights(features, _HIDDEN) if color == "ColorNetwork" else 0)
    else:
        features = features or constant_of(color.text, "FEATURES", 0)
        weights = weights or constant_of(color.text, "WEIGHTS", 0)
    config = replace(config, color_features=features, color_weights=weights)
    config.validate()
    color_model(color, features, weights)
    return config


def model_of(config: TrainConfig, color: str | UserType) -> ColorModel | None:
    """What shades; None are harmonics, whose degree rises."""
    if color == "SphericalHarmonics":
        return None
    return color_model(color, config.color_features, config.color_weights)


def with_features(gaussians: Gaussians, config: TrainConfig) -> Gaussians:
    """Gaussians with features that begin with their colour less ½, and with weights.

    Lobes of SphericalGaussians have axes anywhere and no amplitude; other features are small random numbers, as weights are.
    """
    if not config.color_features:
        return gaussians
    count, size = len(gaussians), config.color_features
    rng = np.random.default_rng((config.seed, 1))
    features = rng.normal(0, _NOISE, (count, size)).astype(np.float32)
    if config.color == "SphericalGaussians" and not config.color_source:
        lobes = features[:, 3:].reshape(count, -1, 2, 3)
        lobes[:, :, 0] *= _SHARPNESS / np.maximum(np.linalg.norm(lobes[:, :, 0], axis=-1, keepdims=True), 1e-9)
        lobes[:, :, 1] = 0
    base = (gaussians.sh[:, 0] * SH_C0).numpy()
    features[:, :3] = base[:, :size]
    weights = rng.normal(0, _NOISE, config.color_weights).astype(np.float32)
    if config.color == "ColorNetwork" and not config.color_source:
        weights = _network(config, rng)
    return replace(
        gaussians,
        sh=gaussians.sh[:, :1].contiguous(),
        features=torch.from_numpy(features),
        weights=torch.from_numpy(weights),
    )


def _network(config: TrainConfig, rng: np.random.Generator) -> np.ndarray:
    """Rows, one a hidden unit (slang/splat/color_network.slang), as He et al. 2015 begin with them."""
    row = network_weights(config.color_features, 1) - 3
    units = (config.color_weights - 3) // row
    weights = np.zeros((units, row), np.float32)
    weights[:, : row - 4] = rng.normal(0, np.sqrt(2 / (row - 4)), (units, row - 4))
    weights[:, row - 3 :] = rng.normal(0, np.sqrt(1 / units), (units, 3))
    return np.concatenate([weights.ravel(), np.zeros(3, np.float32)])


def shown_color(features: torch.Tensor) -> torch.Tensor:
    """[N, 1, 3] harmonics that viewers who know no other colours may show, of features [N, F]."""
    base = torch.nn.functional.pad(features[:, :3], (0, max(3 - features.shape[1], 0)))
    return (base / SH_C0)[:, None].contiguous()


def require_features(gaussians: Gaussians) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Features and weights of Gaussians whose colours are no harmonics; None where there are no weights.

    Raises:
        SplatError: they have none.
    """
    if gaussians.features is None:
        raise SplatError(f"color is {gaussians.color}, and the scene has no features; give it some, or leave color out")
    weights = gaussians.weights
    return gaussians.features, weights if weights is not None and len(weights) else None
