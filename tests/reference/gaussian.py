"""A Gaussian's shape: quaternion → rotation → covariance Σ = M Mᵀ, M = R(q) diag(s)."""

from __future__ import annotations

import numpy as np

from tests.reference.arrays import Array

MIN_NORM = 1e-8  # below it the norm is replaced by this constant, which then has no gradient


def guarded_normalize(v: Array) -> tuple[Array, Array]:
    """Return v / max(‖v‖, 1e-8) [N, C] and the divisor [N, 1]."""
    norm = np.maximum(np.linalg.norm(v, axis=-1, keepdims=True), MIN_NORM)
    return v / norm, norm


def guarded_normalize_backward(v: Array, v_unit: Array) -> Array:
    """(I − u uᵀ) v_unit / ‖v‖, without the projection where the guard replaced the norm by a constant."""
    unit, norm = guarded_normalize(v)
    radial = np.sum(unit * v_unit, axis=-1, keepdims=True)
    return (v_unit - np.where(norm > MIN_NORM, radial, 0.0) * unit) / norm


def quat_to_rotmat(quats: Array) -> Array:
    """Rotation matrices [N, 3, 3] of quaternions [N, 4], (w, x, y, z), normalised in here."""
    w, x, y, z = guarded_normalize(quats)[0].T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def quat_to_rotmat_backward(quats: Array, v_rotmats: Array) -> Array:
    """v_quats [N, 4] from v_rotmats [N, 3, 3], through the normalisation."""
    w, x, y, z = guarded_normalize(quats)[0].T
    g = np.moveaxis(v_rotmats, 0, -1)  # g[i, j] is [N]
    v_unit = 2 * np.stack(
        [
            x * (g[2, 1] - g[1, 2]) + y * (g[0, 2] - g[2, 0]) + z * (g[1, 0] - g[0, 1]),
            -2 * x * (g[1, 1] + g[2, 2])
            + y * (g[0, 1] + g[1, 0])
            + z * (g[0, 2] + g[2, 0])
            + w * (g[2, 1] - g[1, 2]),
            -2 * y * (g[0, 0] + g[2, 2])
            + x * (g[0, 1] + g[1, 0])
            + z * (g[1, 2] + g[2, 1])
            + w * (g[0, 2] - g[2, 0]),
            -2 * z * (g[0, 0] + g[1, 1])
            + x * (g[0, 2] + g[2, 0])
            + y * (g[1, 2] + g[2, 1])
            + w * (g[1, 0] - g[0, 1]),
        ],
        axis=-1,
    )
    return guarded_normalize_backward(quats, v_unit)


def covariance(quats: Array, scales: Array) -> Array:
    """World-space covariances [N, 3, 3] of quats [N, 4] and standard deviations `scales` [N, 3]."""
    m = quat_to_rotmat(quats) * scales[:, None, :]
    return m @ m.swapaxes(-1, -2)


def covariance_backward(quats: Array, scales: Array, v_covariance: Array) -> tuple[Array, Array]:
    """v_quats [N, 4] and v_scales [N, 3] from v_covariance [N, 3, 3].

    The nine entries count as independent, so v_covariance need not be symmetric: ∂L/∂M = (G + Gᵀ) M, which is
    the contract's 2 G M for a symmetric G.
    """
    rotmats = quat_to_rotmat(quats)
    v_m = (v_covariance + v_covariance.swapaxes(-1, -2)) @ (rotmats * scales[:, None, :])
    v_scales = np.sum(rotmats * v_m, axis=-2)
    return quat_to_rotmat_backward(quats, v_m * scales[:, None, :]), v_scales
