"""Common parts of the formats: their arrays, quantised numbers, packed quaternions, an order that compresses well, and files
in parts."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray

from splat_py.base.fields import shown_bytes

Float32Array = NDArray[np.float32]

# Y_0: rgb = 0.5 + Y_0 · sh[0].
SH_C0 = 0.28209479177387814
# The default types of splats and colours: a name and an empty source.
USUAL_TYPES = {"splat": ("Gaussian", ""), "color": ("SphericalHarmonics", "")}
# Logarithms of the smallest and the largest standard deviation in float32.
FLOAT32_LOGS = (float(np.log(np.finfo(np.float32).tiny)), float(np.log(np.finfo(np.float32).max)))
# Opacities of exactly 0 and 1 would have infinite logits.
_LEAST_OPACITY = 1e-6
# Numbers of a Gaussian with harmonics of degree 3.
MOST_NUMBERS = 59
# Gaussians that a file of any size may hold, and copies of all numbers while a file is decoded.
_FEW, _COPIES = 1 << 18, 3
_SQRT2 = 2**0.5
# Distance from the middle, in medians of it, from which Gaussians count as far.
_FAR = 20.0
# Indices of the stored components if component 0, 1, 2 or 3 is left out.
_OTHERS = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])


class StoredGaussians(NamedTuple):
    """The contents of a file, N Gaussians with K spherical-harmonics coefficients each; all float32."""

    means: Float32Array  # [N, 3]
    quats: Float32Array  # [N, 4], w x y z
    log_scales: Float32Array  # [N, 3]
    logit_opacities: Float32Array  # [N]
    sh: Float32Array  # [N, K, 3]
    params: Mapping[str, Float32Array] = MappingProxyType({})  # [N] each, parameters of the splat type
    features: Float32Array | None = None  # [N, F], for colours other than harmonics
    weights: Float32Array | None = None  # [W]
    # "splat" and "color": the name of a built-in type and "", or a user's type and its source.
    types: Mapping[str, tuple[str, str]] = MappingProxyType(USUAL_TYPES)
    # True if trained with `antialiased` rendering.
    antialiased: bool = False

    @property
    def scales(self) -> Float32Array:
        """Standard deviations [N, 3], clamped to the largest float32."""
        with np.errstate(over="ignore"):
            return np.minimum(np.exp(self.log_scales), np.finfo(np.float32).max)

    @property
    def opacities(self) -> NDArray[np.float64]:
        return 1 / (1 + np.exp(-np.clip(self.logit_opacities.astype(np.float64), -700, 700)))

    @property
    def colors(self) -> NDArray[np.float64]:
        """The rgb [N, 3] of the harmonic of degree 0, not clamped to 0 to 1."""
        return self.sh[:, 0].astype(np.float64) * SH_C0 + 0.5


def require_room(count: int, numbers: int, nbytes: int, each: float) -> None:
    """Raise ValueError, before arrays of `count` Gaussians are allocated, if a file of `nbytes` is too small for them at `each`
    bytes a Gaussian, or memory is too small for their `numbers` floats. A few Gaussians always have room."""
    if count > _FEW and count * each > nbytes:
        raise ValueError(f"it claims {count:,} Gaussians in {nbytes:,} bytes")
    needed = _COPIES * 4 * numbers * count
    if needed > psutil.virtual_memory().available:
        raise ValueError(f"its {count:,} Gaussians need {shown_bytes(needed)}, more than the free memory")


def logits_of(opacities: NDArray[Any]) -> Float32Array:
    """The logits log(o / (1 - o)), finite for 0 and 1 too."""
    safe = np.clip(opacities.astype(np.float64), _LEAST_OPACITY, 1 - _LEAST_OPACITY)
    return np.log(safe / (1 - safe)).astype(np.float32)


def to_levels(values: NDArray[Any], levels: int) -> NDArray[np.uint32]:
    """Round numbers from 0 to 1 to whole numbers from 0 to `levels`."""
    return np.rint(np.clip(values, 0, 1) * levels).astype(np.uint32)


def log_scales_of(scales: NDArray[Any]) -> NDArray[Any]:
    """Natural logarithms of a file's standard deviations: zero counts as the smallest float32, negative and NaN give NaN."""
    with np.errstate(invalid="ignore"):
        return np.log(np.where(scales == 0, np.finfo(np.float32).tiny, scales).astype(np.float32))


def base_of(colors: NDArray[Any]) -> NDArray[np.float64]:
    """The inverse of `colors`: coefficients [N, 3] of the harmonic of degree 0."""
    return (colors.astype(np.float64) - 0.5) / SH_C0


def normalized(quats: NDArray[Any]) -> NDArray[np.float64]:
    """Quaternions of length 1; zero quaternions become the identity."""
    quats = quats.astype(np.float64)
    lengths = np.linalg.norm(quats, axis=1, keepdims=True)
    return np.where(lengths > 0, quats / np.where(lengths > 0, lengths, 1), [1.0, 0, 0, 0])


def drop_largest(quats: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The index [N] of the largest component, made positive, and the other three [N, 3] divided by √½, -1 to 1."""
    quats = normalized(quats)
    largest = np.abs(quats).argmax(1)
    rows = np.arange(len(quats))
    signed = quats * np.where(quats[rows, largest] < 0, -_SQRT2, _SQRT2)[:, None]
    return largest, np.take_along_axis(signed, _OTHERS[largest], 1)


def restore_largest(largest: NDArray[Any], others: NDArray[Any]) -> Float32Array:
    """The inverse of `drop_largest`, [N, 4]."""
    others = others.astype(np.float64) / _SQRT2
    quats = np.empty((len(others), 4))
    np.put_along_axis(quats, _OTHERS[largest], others, 1)
    quats[np.arange(len(quats)), largest] = np.sqrt(np.maximum(0, 1 - (others**2).sum(1)))
    return normalized(quats).astype(np.float32)


def joined(parts: Sequence[StoredGaussians]) -> StoredGaussians:
    """Concatenate the Gaussians of one or more parts of a file; missing coefficients are zero."""
    most = max(part.sh.shape[1] for part in parts)
    sh = [np.pad(part.sh, ((0, 0), (0, most - part.sh.shape[1]), (0, 0))) for part in parts]
    means, quats, log_scales, logits = (np.concatenate(columns) for columns in zip(*(part[:4] for part in parts), strict=True))
    return StoredGaussians(means, quats, log_scales, logits, np.concatenate(sh))


def morton_order(means: Float32Array) -> NDArray[np.intp]:
    """The order [N] of means [N, 3] along a Z-curve, which puts similar Gaussians next to each other. Far ones, such as a sky,
    come last: beside near ones they would cost these their precision (3 dB of a compressed PLY with a shell)."""
    if not len(means):
        return np.zeros(0, np.intp)
    away = np.abs(means - np.median(means, axis=0).astype(np.float64)).max(1)
    far = away > _FAR * np.median(away)
    parts = np.flatnonzero(~far), np.flatnonzero(far)
    return np.concatenate([rows[_along_curve(means[rows])] for rows in parts if len(rows)])


def _along_curve(means: Float32Array) -> NDArray[np.intp]:
    lowest = means.min(0).astype(np.float64)
    extent = np.maximum(means.max(0) - lowest, 1e-30)
    cells = ((means - lowest) / extent * 1023).astype(np.uint64)
    key = np.zeros(len(means), np.uint64)
    for bit in range(10):
        for axis in range(3):
            key |= ((cells[:, axis] >> np.uint64(bit)) & np.uint64(1)) << np.uint64(3 * bit + axis)
    return np.argsort(key, kind="stable")
