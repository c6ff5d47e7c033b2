"""Real spherical harmonics up to degree 3 in NumPy, with the order and signs of Kerbl et al. 2023, and how they rotate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Directions at which functions are compared: enough for the seven of degree 3, and in no symmetry.
_DIRECTIONS = 32


def harmonics_basis(d: NDArray[np.float64]) -> NDArray[np.float64]:
    """The 16 functions at unit directions [..., 3] (slang/splat/spherical_harmonics.slang)."""
    x, y, z = np.moveaxis(d, -1, 0)
    c1, c2, c3 = 0.4886025119029199, 1.0925484305920792, 0.5900435899266435
    terms = [
        np.full_like(x, 0.28209479177387814),
        *(-c1 * y, c1 * z, -c1 * x),
        *(c2 * x * y, -c2 * y * z, 0.31539156525252005 * (2 * z * z - x * x - y * y), -c2 * x * z, c2 / 2 * (x * x - y * y)),
        -c3 * y * (3 * x * x - y * y),
        2.890611442640554 * x * y * z,
        -0.4570457994644658 * y * (4 * z * z - x * x - y * y),
        0.3731763325901154 * z * (2 * z * z - 3 * x * x - 3 * y * y),
        -0.4570457994644658 * x * (4 * z * z - x * x - y * y),
        1.445305721320277 * z * (x * x - y * y),
        -c3 * x * (x * x - 3 * y * y),
    ]
    return np.stack(terms, -1)


def rotate_harmonics(sh: NDArray[Any], rotation: NDArray[np.float64]) -> NDArray[Any]:
    """Coefficients [N, K, C] of the same functions rotated: f'(d) = f(Rᵀ d) for the rotation R [3, 3].

    Functions of one degree stay among themselves, so the matrix of each degree follows from their values at a few directions,
    exactly but for rounding.
    """
    result = sh.copy()
    for band, matrix in _bands(sh.shape[1], rotation):
        result[:, band] = np.einsum("ij,njc->nic", matrix.astype(sh.dtype), sh[:, band])
    return result


def _bands(count: int, rotation: NDArray[np.float64]) -> Iterator[tuple[slice, NDArray[Any]]]:
    """The coefficients of each degree from 1, and the matrix that rotates them."""
    directions = np.random.default_rng(0).normal(size=(_DIRECTIONS, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    here, before = harmonics_basis(directions), harmonics_basis(directions @ rotation)
    for degree in range(1, 4):
        band = slice(degree**2, (degree + 1) ** 2)
        if band.stop <= count:
            yield band, np.linalg.lstsq(here[:, band], before[:, band], rcond=None)[0]
