"""The oracle for radiance fields: the contract's quadrature in float64 NumPy, and its gradients as the contract has them.

Shares no code with splat_py. Everything of a ray is kept, so that each formula can be read off; `march_backward` is itself
checked by finite differences in test_march.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.reference import sh_basis

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Field:
    """density [X, Y, Z], sh [X, Y, Z, K, 3], box [2, 3], background [3]; contracted: all space is, but the box."""

    density: Array
    sh: Array
    box: Array
    background: Array
    contracted: bool = False


@dataclass(frozen=True)
class Samples:
    """One ray's samples: indices [N, 8, 3] and weights [N, 8] of voxels, and what they make."""

    t: Array
    step: float
    voxels: npt.NDArray[np.int64]
    weights: Array
    basis: Array
    # Before the clamps.
    raw_density: Array
    raw_color: Array
    alpha: Array
    # In front of each sample, and behind the last.
    T: Array
    w: Array

    @property
    def color(self) -> Array:
        return np.maximum(self.raw_color, 0)


def chord(origin: Array, direction: Array, box: Array) -> tuple[float, float]:
    """Distances between which the ray is in the box; the second is not larger where it misses."""
    near, far = 0.0, np.inf
    for axis in range(3):
        if direction[axis] == 0:
            if not box[0, axis] <= origin[axis] <= box[1, axis]:
                return 0.0, 0.0
            continue
        ends = (box[:, axis] - origin[axis]) / direction[axis]
        near, far = max(near, ends.min()), min(far, ends.max())
    return near, far


def squash(x: float, reach: float) -> float:
    """A distance, contracted beyond `reach`."""
    return x if abs(x) <= reach else float(np.sign(x) * (2 * reach - reach**2 / abs(x)))


def unsquash(x: float, reach: float) -> float:
    return x if abs(x) <= reach else float(np.sign(x) * reach**2 / (2 * reach - abs(x)))


def pcg4d(v: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """[N, 4] words, mixed (Jarzynski & Olano 2020)."""
    v = np.array(v, np.uint32).T
    with np.errstate(over="ignore"):
        v = v * np.uint32(1664525) + np.uint32(1013904223)
        for shift in (True, False):
            for target, a, b in ((0, 1, 3), (1, 2, 0), (2, 0, 1), (3, 1, 2)):
                v[target] += v[a] * v[b]
            if shift:
                v ^= v >> np.uint32(16)
    return v.T


def uniform(ray: int, count: int, seed: int) -> Array:
    """Offsets of a ray's samples: pcg4d of (ray, sample, seed, 0), the upper 24 bits of its x."""
    counters = np.stack([np.full(count, ray), np.arange(count), np.full(count, seed), np.zeros(count, int)], axis=1)
    return (pcg4d(counters)[:, 0] >> np.uint32(8)) / 2.0**24


def sample(
    field: Field, origin: Array, direction: Array, steps_per_unit: float, offsets: Array | None, min_T: float
) -> Samples | None:
    """Look the field up along a ray; None where it misses."""
    half = np.ptp(field.box, axis=0) / 2
    closest = float((field.box.mean(0) - origin) @ direction)
    if field.contracted:
        near, far = (squash(x, half.max()) for x in (-closest, 64 * half.max()))
    else:
        near, far = chord(origin, direction, field.box)
    if far <= near:
        return None
    count = max(int(np.ceil((far - near) * steps_per_unit - 1e-3)), 1)
    step = (far - near) / count
    u = np.full(count, 0.5) if offsets is None else offsets[:count]
    t = near + (np.arange(count) + u) * step
    if field.contracted:
        t = closest + np.array([unsquash(x, half.max()) for x in t])
    size = np.array(field.density.shape)
    position = (origin + t[:, None] * direction - field.box.mean(0)) / half
    if field.contracted:
        far_off = np.maximum(np.abs(position).max(1, keepdims=True), 1)
        position = (2 - 1 / far_off) * position / far_off / 2
    position = (position + 1) / 2 * size - 0.5
    base = np.floor(position).astype(int)
    fraction = position - base
    corners = np.array([[i & 1, i >> 1 & 1, i >> 2] for i in range(8)])
    weights = np.where(corners == 1, fraction[:, None], 1 - fraction[:, None]).prod(-1)
    voxels = np.clip(base[:, None] + corners, 0, size - 1)
    basis = sh_basis(direction[None], int(np.sqrt(field.sh.shape[3])) - 1)[0]
    x, y, z = np.moveaxis(voxels, -1, 0)
    raw_density = (weights * field.density[x, y, z]).sum(1)
    raw_color = np.einsum("nc,nckr,k->nr", weights, field.sh[x, y, z], basis) + 0.5
    alpha = 1 - np.exp(-np.maximum(raw_density, 0) * step)
    T = np.concatenate([[1.0], np.cumprod(1 - alpha)])
    seen = int((T[:-1] > min_T).sum())
    keep = slice(0, seen)
    return Samples(
        t[keep],
        step,
        voxels[keep],
        weights[keep],
        basis,
        raw_density[keep],
        raw_color[keep],
        alpha[keep],
        T[: seen + 1],
        T[:seen] * alpha[keep],
    )


def march(
    field: Field,
    origins: Array,
    directions: Array,
    steps_per_unit: float,
    seed: int | None = None,
    min_T: float = 1e-6,
) -> tuple[Array, Array, Array]:
    """Colours [R, 3], transmittances [R] and depths [R]; jittered if there is a seed."""
    results = []
    for ray, samples in enumerate(_all(field, origins, directions, steps_per_unit, seed, min_T)):
        del ray
        if samples is None:
            results.append((*field.background, 1.0, 0.0))
            continue
        color = samples.w @ samples.color + samples.T[-1] * field.background
        results.append((*color, samples.T[-1], samples.w @ samples.t))
    array = np.array(results)
    return array[:, :3], array[:, 3], array[:, 4]


def march_backward(
    field: Field,
    origins: Array,
    directions: Array,
    steps_per_unit: float,
    v_color: Array,
    v_T: Array,
    v_depth: Array,
    seed: int | None = None,
    min_T: float = 1e-6,
) -> tuple[Array, Array, Array]:
    """Gradients of density, sh and background: ∂L/∂c_i = w_i, ∂L/∂σ_i = δ (T_i c_i - L_rem,i), for the colour and, with t_i in
    the colour's place, for the depth; ∂T_N/∂σ_i = -δ T_N."""
    v_density, v_sh = np.zeros_like(field.density), np.zeros_like(field.sh)
    v_background = np.zeros(3)
    for ray, s in enumerate(_all(field, origins, directions, steps_per_unit, seed, min_T)):
        if s is None:
            v_background += v_color[ray]
            continue
        v_background += s.T[-1] * v_color[ray]
        emitted = s.w[:, None] * s.color
        light = np.cumsum(emitted[::-1], 0)[::-1] + s.T[-1] * field.background
        far = np.cumsum((s.w * s.t)[::-1])[::-1]
        v_sigma = s.step * (
            (s.T[:-1, None] * s.color - light) @ v_color[ray] + (s.T[:-1] * s.t - far) * v_depth[ray] - s.T[-1] * v_T[ray]
        )
        v_sigma[s.raw_density <= 0] = 0
        v_c = np.where(s.raw_color > 0, s.w[:, None] * v_color[ray], 0)
        x, y, z = np.moveaxis(s.voxels, -1, 0)
        np.add.at(v_density, (x, y, z), s.weights * v_sigma[:, None])
        np.add.at(v_sh, (x, y, z), np.einsum("nc,nr,k->nckr", s.weights, v_c, s.basis))
    return v_density, v_sh, v_background


def _all(
    field: Field, origins: Array, directions: Array, steps_per_unit: float, seed: int | None, min_T: float
) -> list[Samples | None]:
    unit = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    return [
        sample(field, origin, direction, steps_per_unit, None if seed is None else uniform(ray, 4096, seed), min_T)
        for ray, (origin, direction) in enumerate(zip(origins, unit, strict=True))
    ]
