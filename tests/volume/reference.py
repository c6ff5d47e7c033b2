"""The oracle for radiance fields: the contract's quadrature in float64 torch, with autograd's gradients.

Shares no code with splat_py.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tests.reference.spherical_harmonics import basis_at

Array = npt.NDArray[np.float64]
# Densities [N] and colours [N, 3] at places [N, 3], seen along directions [N, 3].
Query: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
HIDDEN = 16


def f64(array: object) -> Tensor:
    return torch.as_tensor(np.asarray(array, np.float64))


@dataclass(frozen=True)
class Field:
    """density [X, Y, Z], sh [X, Y, Z, K, 3], box [2, 3], background [3]; `contracted` extends it to all space."""

    density: Array
    sh: Array
    box: Array
    background: Array
    contracted: bool = False


def chord(origin: Array, direction: Array, box: Array) -> tuple[float, float]:
    """Distances at which the ray enters and leaves the box; the second is not larger if it misses."""
    near, far = 0.0, np.inf
    for axis in range(3):
        if direction[axis] == 0:
            if not box[0, axis] <= origin[axis] <= box[1, axis]:
                return 0.0, 0.0
            continue
        ends = (box[:, axis] - origin[axis]) / direction[axis]
        near, far = max(near, ends.min()), min(far, ends.max())
    return near, far


def squash(x: Tensor, reach: Tensor | float) -> Tensor:
    """Distances, contracted beyond `reach`."""
    return torch.where(x.abs() > reach, (2 * reach - reach**2 / x.abs().clip(min=reach)) * x.sign(), x)


def unsquash(x: Tensor, reach: Tensor | float) -> Tensor:
    return torch.where(x.abs() > reach, reach**2 / (2 * reach - x.abs()) * x.sign(), x)


def contract(x: Tensor, box: Tensor) -> Tensor:
    """Places [N, 3] of all space, contracted to twice the box."""
    middle, half = box.mean(0), (box[1] - box[0]) / 2
    place = (x - middle) / half
    far_off = place.abs().amax(1, keepdim=True).clip(min=1)
    return middle + half * (2 - 1 / far_off) / far_off * place


def pcg4d(v: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """Mixed words [N, 4] (Jarzynski & Olano 2020)."""
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
    """Offsets of a ray's samples: the upper 24 bits of the x of pcg4d(ray, sample, seed, 0)."""
    counters = np.stack([np.full(count, ray), np.arange(count), np.full(count, seed), np.zeros(count, int)], axis=1)
    return (pcg4d(counters)[:, 0] >> np.uint32(8)) / 2.0**24


def march_through(
    query: Query,
    box: Tensor,
    background: Tensor,
    rays: tuple[Tensor, Tensor],
    steps_per_unit: float,
    seed: int | None = None,
    min_T: float = 1e-6,
    contracted: bool = False,
) -> Tensor:
    """Colour, transmittance and depth [R, 5] of rays with directions of any length; jittered with a seed."""
    results, reach = [], (box[1] - box[0]).max() / 2
    origins, directions = rays
    for ray, (origin, direction) in enumerate(zip(origins, directions / directions.norm(dim=1, keepdim=True), strict=True)):
        closest = (box.mean(0) - origin) @ direction
        near, far = (squash(x, reach) for x in (-closest, 64 * reach)) if contracted else chord(origin, direction, box)
        if far <= near:
            results.append(torch.cat([background, f64([1, 0])]))
            continue
        count = max(int(np.ceil(float((far - near).detach()) * steps_per_unit - 1e-3)), 1)
        step = (far - near) / count
        t = near + (torch.arange(count) + f64(np.full(count, 0.5) if seed is None else uniform(ray, count, seed))) * step
        if contracted:
            t = closest + unsquash(t, reach)
        density, color = query(origin + t[:, None] * direction, direction.expand(count, 3))
        through = torch.exp(-density * step)
        T = torch.cat([torch.ones(1, dtype=torch.float64), torch.cumprod(through, 0)])
        last = int((T[:-1] > min_T).sum())
        w = (T[:-1] * (1 - through))[:last]
        results.append(torch.cat([w @ color[:last] + T[last] * background, T[last : last + 1], (w @ t[:last])[None]]))
    return torch.stack(results)


def _query_of(density: Tensor, sh: Tensor, box: Tensor, contracted: bool) -> Query:
    """A grid of voxels, interpolated between their centres."""
    size, corners = torch.tensor(density.shape), torch.tensor(list(np.ndindex(2, 2, 2)))

    def query(x: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        low, high = (2 * box - box.mean(0)) if contracted else box
        place = ((contract(x, box) if contracted else x) - low) / (high - low) * size - 0.5
        base = place.detach().floor()
        fraction = (place - base)[:, None]
        weights = torch.where(corners == 1, fraction, 1 - fraction).prod(-1)
        i, j, k = (base.long()[:, None] + corners).clip(min=0).minimum(size - 1).unbind(-1)
        basis = basis_at(directions, math.isqrt(sh.shape[3]) - 1)
        color = torch.einsum("nc,nckr,nk->nr", weights, sh[i, j, k], basis) + 0.5
        return torch.relu((weights * density[i, j, k]).sum(1)), torch.relu(color)

    return query


def _marched(field: Field, origins: Array, directions: Array, *how: float | None) -> tuple[list[Tensor], Tensor]:
    arrays = field.density, field.sh, field.background, origins, directions
    density, sh, background, *rays = leaves = [f64(array).requires_grad_() for array in arrays]
    box = f64(field.box)
    query = _query_of(density, sh, box, field.contracted)
    return leaves, march_through(query, box, background, tuple(rays), *how, contracted=field.contracted)


def march(
    field: Field, origins: Array, directions: Array, steps_per_unit: float, seed: int | None = None, min_T: float = 1e-6
) -> tuple[Array, Array, Array]:
    """Colours [R, 3], transmittances [R] and depths [R]; jittered with a seed."""
    found = _marched(field, origins, directions, steps_per_unit, seed, min_T)[1].detach().numpy()
    return found[:, :3], found[:, 3], found[:, 4]


def march_backward(
    field: Field,
    origins: Array,
    directions: Array,
    steps_per_unit: float,
    v_color: Array,
    v_T: Array,
    v_depth: Array,
    seed: int | None = None,
) -> list[Array]:
    """Gradients of density, sh, background, origins and directions."""
    leaves, found = _marched(field, origins, directions, steps_per_unit, seed)
    v = f64(np.column_stack([v_color, v_T, v_depth]))
    return [gradient.numpy() for gradient in torch.autograd.grad(found, leaves, v, allow_unused=True, materialize_grads=True)]


def entries_of(cells: list[int], size: int) -> list[int]:
    return [min((n + 1) ** 3, size) for n in cells]


def weight_count(levels: int) -> int:
    return HIDDEN * (2 * levels + 2) + HIDDEN * (2 * levels + 9 + 4)


@dataclass(frozen=True)
class HashGrid:
    """Müller et al. 2022: table [entries, 2], weights as in `weight_count`, the levels' cells and most entries, and the density
    where the network gives 0."""

    table: Tensor
    weights: Tensor
    cells: list[int]
    size: int
    unit_density: float

    def features(self, places: Tensor) -> Tensor:
        """Features [N, 2 · levels] at places [N, 3] of the unit cube."""
        found, first = [], 0
        for cells, entries in zip(self.cells, entries_of(self.cells, self.size), strict=True):
            base = torch.clip(torch.floor(places.detach() * cells), 0, cells - 1)
            fraction = places * cells - base
            level = torch.zeros(len(places), 2, dtype=torch.float64)
            for corner in np.ndindex(2, 2, 2):
                x, y, z = (base.long() + torch.tensor(corner)).unbind(1)
                if (cells + 1) ** 3 <= self.size:
                    index = x + (cells + 1) * (y + (cells + 1) * z)
                else:
                    # The product is below 2⁶³, and its lowest bits are those of 32-bit arithmetic.
                    index = (x ^ (y * 2654435761) ^ (z * 805459861)) % self.size
                weight = torch.where(torch.tensor(corner) == 1, fraction, 1 - fraction).prod(1)
                level = level + weight[:, None] * self.table[first + index]
            found.append(level)
            first += entries
        return torch.cat(found, 1)

    def query(self, places: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Densities [N] and colours [N, 3]."""
        x = self.features(places)
        n = x.shape[1]
        dense = self.weights[: HIDDEN * (n + 2)].reshape(HIDDEN, n + 2)
        color = self.weights[HIDDEN * (n + 2) :].reshape(HIDDEN, n + 13)
        logarithm = torch.relu(x @ dense[:, :n].T + dense[:, n]) @ dense[:, n + 1]
        seen = torch.cat([x, basis_at(directions, 2)], 1)
        rgb = torch.relu(seen @ color[:, : n + 9].T + color[:, n + 9]) @ color[:, n + 10 :]
        return torch.exp(torch.clip(logarithm, max=15)) * self.unit_density, torch.sigmoid(rgb)


def variation_gradient(grid: Array, density_scale: float) -> Array:
    """Gradient of Σ √(d² + 0.001²) over the differences d of neighbouring rows [X, Y, Z, C], with densities scaled."""
    scaled = f64(grid).requires_grad_()
    scale = torch.ones(grid.shape[-1], dtype=torch.float64)
    scale[0] = density_scale
    variation = sum((((scaled.diff(dim=axis) * scale) ** 2 + 1e-6).sqrt().sum() for axis in range(3)), torch.tensor(0.0))
    return torch.autograd.grad(variation, scaled)[0].numpy()
