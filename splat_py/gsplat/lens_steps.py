"""The pixels for which gsplat's lenses find a ray: a few steps of Newton's method from its first guess converge there (gsplat
1.6, camera objects). Sums are in gsplat's order, because rounding decides which last steps are short."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splat_py.render.cameras import ftheta_numbers

# Steps of each lens; the longest last one, in slopes, radians or pixels; and the smallest determinant that is divided by.
_PINHOLE_STEPS, _FISHEYE_STEPS, _FTHETA_STEPS = 5, 20, 3
_CONVERGED = 1e-6
_SMALLEST_DETERMINANT = 1e-6


def finds_pinhole_ray(slopes: Tensor, lens: Tensor) -> Tensor:
    """True for distorted slopes [..., M, 2] that five steps undistort, for OpenCV's lens [..., 1, 12]
    (`distort` in slang/splat/camera_models.slang)."""
    k1, k2, k3, k4, k5, k6, p1, p2, s1, s2, s3, s4 = lens.unbind(-1)
    x, y = slopes.unbind(-1)
    found, solvable = torch.zeros_like(x, dtype=torch.bool), torch.ones_like(x, dtype=torch.bool)
    for _ in range(_PINHOLE_STEPS):
        s = x * x + y * y
        above, below = 1 + s * (k1 + s * (k2 + s * k3)), 1 + s * (k4 + s * (k5 + s * k6))
        ratio = above / below
        u = ratio * x + 2 * p1 * x * y + p2 * (s + 2 * x * x) + s1 * s + s2 * (s * s) - slopes[..., 0]
        v = ratio * y + 2 * p2 * x * y + p1 * (s + 2 * y * y) + s3 * s + s4 * (s * s) - slopes[..., 1]

        growth = (k1 + s * (2 * k2 + s * 3 * k3)) * below - above * (k4 + s * (2 * k5 + s * 3 * k6))
        growth, bend, lift = 2 * growth / (below * below), 2 * (s1 + 2 * s2 * s), 2 * (s3 + 2 * s4 * s)
        u_x = ratio + growth * x * x + 2 * p1 * y + 6 * p2 * x + bend * x
        u_y = growth * x * y + 2 * p1 * x + 2 * p2 * y + bend * y
        v_x = growth * x * y + 2 * p1 * x + 2 * p2 * y + lift * x
        v_y = ratio + growth * y * y + 2 * p2 * x + 6 * p1 * y + lift * y
        determinant = u_x * v_y - u_y * v_x

        # A negative ratio would reach the other side of the axis.
        solvable = solvable & (ratio > 0) & (determinant.abs() >= _SMALLEST_DETERMINANT)
        right, down = (v * u_y - u * v_y) / determinant, (u * v_x - v * u_x) / determinant
        moves = solvable & ~found
        x, y = torch.where(moves, x + right, x), torch.where(moves, y + down, y)
        found = found | (solvable & (right.abs() < _CONVERGED) & (down.abs() < _CONVERGED))
    return found


def finds_fisheye_ray(slopes: Tensor, lens: Tensor, largest: Tensor, widest: Tensor) -> Tensor:
    """True for distorted slopes [..., M, 2] whose angles twenty steps find, for a fisheye [..., 1, 12] that ends at the angle
    `largest` [..., 1] or at its fold. The first guess is in proportion to that angle at the slope `widest` [..., 1]."""
    # Polynomials in the angle's square: the distorted slope over the angle, and the distorted slope's derivative.
    ratio = torch.cat([torch.ones_like(lens[..., :1]), lens[..., :4]], -1)
    slope = ratio * ratio.new_tensor([1, 3, 5, 7, 9])
    largest = torch.minimum(largest, _smallest_root(slope).sqrt())
    distances = slopes.norm(dim=-1)
    angles, found = _solved(
        lambda x: x * _value(ratio, x * x),
        lambda x: _value(slope, x * x),
        distances,
        distances * (largest / widest),
        _FISHEYE_STEPS,
    )
    return found & (angles >= 0) & (angles < largest)


def _smallest_root(polynomial: Tensor) -> Tensor:
    """The smallest positive root of polynomials [..., N] of ascending powers, [...]; infinity without one."""
    rows = []
    for row in polynomial.double().cpu().numpy().reshape(-1, polynomial.shape[-1]):
        roots = np.polynomial.polynomial.polyroots(np.trim_zeros(row, "b"))
        real = roots[np.abs(roots.imag) < 1e-9].real
        rows.append(min(real[real > 0], default=np.inf))
    return polynomial.new_tensor(rows).reshape(polynomial.shape[:-1])


def ftheta_rays(offsets: Tensor, coeffs: Any) -> tuple[Tensor, Tensor]:
    """Unit directions [..., M, 3] in camera space in which f-theta's pixels look, at `offsets` [..., M, 2] from the axis; and
    [..., M], True unless three steps from the other polynomial's angle do not find it. The axis then takes its place, as in
    gsplat. The largest angle plays no part."""
    sizes = {"linear_cde": 3, "pixeldist_to_angle_poly": 6, "angle_to_pixeldist_poly": 6}
    (c, d, e), to_angle, to_distance = (ftheta_numbers(coeffs, name, (size,), offsets).detach() for name, size in sizes.items())
    x, y = offsets.unbind(-1)
    v = torch.stack([x - d * y, c * y - e * x], -1) * (1 / (c - e * d))
    distances = v.norm(dim=-1)
    angles = _value(to_angle, distances)
    found = torch.ones_like(angles, dtype=torch.bool)
    if int(coeffs.reference_poly) == 1:
        slope = to_distance[1:] * torch.arange(1, len(to_distance)).to(to_distance)
        angles, found = _solved(partial(_value, to_distance), partial(_value, slope), distances, angles, _FTHETA_STEPS)
    across = v * (angles.sin() / distances.clamp(min=1e-9))[..., None]
    rays = torch.cat([across, angles.cos()[..., None]], -1)
    return torch.where(found[..., None], rays, rays.new_tensor([0, 0, 1])), found


Function = Callable[[Tensor], Tensor]


def _solved(value: Function, slope: Function, y: Tensor, x: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Solve value(x) = y [..., M] from a guess; return x, and True where the last step was short."""
    found = torch.zeros_like(x, dtype=torch.bool)
    for _ in range(steps):
        step = (value(x) - y) / slope(x)
        x = torch.where(found, x, x - step)
        found = found | (step.abs() < _CONVERGED)
    return x, found


def _value(polynomial: Tensor, x: Tensor) -> Tensor:
    """Polynomials [..., 1, N] of ascending powers, or [N], at x [..., M], by Horner's rule."""
    result = torch.zeros_like(x)
    for coefficient in polynomial.flip(-1).unbind(-1):
        result = result * x + coefficient
    return result
