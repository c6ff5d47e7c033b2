"""Corrected cameras, in the layout of their gradients: [R|t] 12, fx, fy, cx, cy, lens 12. Accepts complex numbers."""

import math

import numpy as np

from tests.reference.arrays import Array


def rotation_of_vector(r: Array) -> Array:
    """[..., 3] → [..., 3, 3], by the power series of sin and cos."""
    s = (r * r).sum(-1)
    a = sum((-s) ** k / math.factorial(2 * k + 1) for k in range(14))
    b = sum((-s) ** k / math.factorial(2 * k + 2) for k in range(14))
    zero = np.zeros_like(s)
    x, y, z = np.moveaxis(r, -1, 0)
    cross = np.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).reshape(*s.shape, 3, 3)
    outer = r[..., :, None] * r[..., None, :]
    scaled: Array = np.asarray(1 - b * s)[..., None, None] * np.eye(3) + np.asarray(a)[..., None, None] * cross
    return scaled + np.asarray(b)[..., None, None] * outer


def correct(viewmat: Array, K: Array, lens: Array, size: tuple[int, int], pose: Array, intrinsics: Array) -> Array:
    """One camera with pose corrections [B, 6] and corrections of intrinsics [B, 7], or [B, 15] of an own camera → [B, 28]."""
    turn = rotation_of_vector(pose[:, :3])
    moved = turn @ viewmat[:3]
    moved[:, :, 3] += pose[:, 3:]
    focal = K[(0, 1), (0, 1)] * np.exp(intrinsics[:, :1])
    principal = K[:2, 2] + intrinsics[:, 1:3] * np.array(size)
    bent = lens + np.zeros((len(pose), 1)) * intrinsics[:, :1]
    bent[:, [0, 1, 6, 7] if intrinsics.shape[1] == 7 else slice(None)] += intrinsics[:, 3:]
    return np.concatenate([moved.reshape(-1, 12), focal, principal, bent], 1)
