"""Front-to-back compositing of 2D Gaussians and its reverse loop, one Gaussian at a time over all its pixels.

Per pixel, in the order of depth: α = min(0.999, o exp(−σ/2)); skip α < 1/255; stop before T would fall to
1e-4 or below; C += c α T; T ← T (1 − α). At the end C += T background.

Hard decisions. `smooth=True` leaves out all three (skip, clamp, stop). The image is then a smooth function, and
finite differences hold everywhere (for opacities < 1, since the reverse loop divides by 1 − α).
With them, a float32 renderer may decide differently from float64 at a threshold, and one
such decision changes a pixel by up to 1/255 and its gradients by more. `near_threshold` marks those pixels.
A test compares only the other pixels and sets the incoming gradient of the marked ones to zero.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.reference.arrays import Array, Mask

MAX_ALPHA = 0.999
MIN_ALPHA = 1 / 255
MIN_TRANSMITTANCE = 1e-4


@dataclass(frozen=True)
class Rasterized:
    colors: Array  # [H, W, D] with the background
    alphas: Array  # [H, W] 1 − T_final
    T_final: Array  # [H, W]
    n_contrib: npt.NDArray[np.int64]  # one past the last blended one in depth order, [H, W]
    n_blended: npt.NDArray[np.int64]  # [H, W] number of blended ones


@dataclass(frozen=True)
class RasterizedGradients:
    means2d: Array  # [N, 2]
    means2d_abs: Array  # [N, 2] sum of |gradient| over pixels, for AbsGS densification
    conics: Array  # [N, 3]
    opacities: Array  # [N]
    colors: Array  # [N, D]
    background: Array  # [D]


@dataclass(frozen=True)
class _Footprint:
    """One Gaussian over the rectangle of pixels it may reach."""

    rank: int  # position in the depth order
    index: int  # position in the arrays
    pixels: tuple[slice, slice]
    dx: Array  # pixel − mean2d
    dy: Array
    falloff: Array  # exp(−σ/2)
    raw: Array  # opacity times falloff
    alpha: Array  # raw, clamped


def _footprints(
    means2d: Array,
    conics: Array,
    opacities: Array,
    depths: Array,
    width: int,
    height: int,
    min_alpha: float,
    *,
    reverse: bool = False,
) -> Iterator[_Footprint]:
    """Every Gaussian in stable depth order, over a rectangle outside which α < min_alpha; at 0 nothing is clamped."""
    columns, rows = np.arange(width) + 0.5, np.arange(height) + 0.5
    order = np.argsort(depths, kind="stable")
    ranks = range(len(order) - 1, -1, -1) if reverse else range(len(order))
    for rank in ranks:
        i = int(order[rank])
        (x, y), (a, b, c) = means2d[i], conics[i]
        pixels = (slice(0, height), slice(0, width))
        if min_alpha > 0:
            if opacities[i] < min_alpha:
                continue
            determinant = a * c - b * b
            if determinant > 0:
                # σ ≤ reach is an ellipse with half sides √(reach Σ₂ₓₓ) and √(reach Σ₂ᵧᵧ). One pixel spare.
                reach = 2 * np.log(opacities[i] / min_alpha) / determinant
                half_x, half_y = np.sqrt(reach * c) + 1, np.sqrt(reach * a) + 1
                x0, x1 = (int(np.clip(side, 0, width)) for side in (x - half_x, x + half_x + 1))
                y0, y1 = (int(np.clip(side, 0, height)) for side in (y - half_y, y + half_y + 1))
                if x0 >= x1 or y0 >= y1:
                    continue
                pixels = (slice(y0, y1), slice(x0, x1))
        dx, dy = columns[None, pixels[1]] - x, rows[pixels[0], None] - y
        falloff = np.exp(-0.5 * (a * dx * dx + 2 * b * dx * dy + c * dy * dy))
        raw = opacities[i] * falloff
        alpha = np.minimum(MAX_ALPHA, raw) if min_alpha > 0 else raw
        yield _Footprint(rank, i, pixels, dx, dy, falloff, raw, alpha)


def rasterize(
    means2d: Array,
    conics: Array,
    opacities: Array,
    colors: Array,
    depths: Array,
    width: int,
    height: int,
    background: Array | None = None,
    *,
    smooth: bool = False,
) -> Rasterized:
    """Blend N Gaussians into an image.

    Args:
        means2d [N, 2], conics [N, 3], opacities [N], colors [N, D], depths [N] (only their order counts).
        background: [D], default black.
        smooth: leave out the skip, the clamp and the stop.
    """
    image, T = np.zeros((height, width, colors.shape[1])), np.ones((height, width))
    running = np.ones((height, width), dtype=bool)
    n_contrib = np.zeros((height, width), dtype=np.int64)
    n_blended = np.zeros((height, width), dtype=np.int64)
    for splat in _footprints(means2d, conics, opacities, depths, width, height, 0.0 if smooth else MIN_ALPHA):
        alpha, here = splat.alpha, splat.pixels
        blend = np.ones_like(alpha, dtype=bool)
        if not smooth:
            candidate = running[here] & (alpha >= MIN_ALPHA)
            stop = candidate & (T[here] * (1 - alpha) <= MIN_TRANSMITTANCE)
            running[here] &= ~stop
            blend = candidate & ~stop
        weight = np.where(blend, alpha * T[here], 0.0)
        image[here] += weight[..., None] * colors[splat.index]
        T[here] *= np.where(blend, 1 - alpha, 1.0)
        n_contrib[here] = np.where(blend, splat.rank + 1, n_contrib[here])
        n_blended[here] += blend
    if background is not None:
        image += T[..., None] * background
    return Rasterized(image, 1 - T, T, n_contrib, n_blended)


def rasterize_backward(
    means2d: Array,
    conics: Array,
    opacities: Array,
    colors: Array,
    depths: Array,
    width: int,
    height: int,
    background: Array | None,
    out: Rasterized,
    v_colors: Array,
    v_alphas: Array,
    *,
    smooth: bool = False,
) -> RasterizedGradients:
    """Gradients from v_colors [H, W, D] and v_alphas [H, W], back to front, T undone step by step.

    It only reads T_final and n_contrib of `out`.
    """
    count, channels = colors.shape
    v_means2d, v_means2d_abs = np.zeros((count, 2)), np.zeros((count, 2))
    v_conics, v_opacities, v_colors_in = np.zeros((count, 3)), np.zeros(count), np.zeros((count, channels))
    v_background = np.einsum("hw,hwd->d", out.T_final, v_colors)

    T = out.T_final.copy()
    tau = -v_alphas  # alpha = 1 − T_final
    if background is not None:
        tau = tau + v_colors @ background
    for splat in _footprints(means2d, conics, opacities, depths, width, height, 0.0 if smooth else MIN_ALPHA, reverse=True):
        i, here = splat.index, splat.pixels
        alpha = splat.alpha
        blend = splat.rank < out.n_contrib[here]
        if not smooth:
            blend &= alpha >= MIN_ALPHA
        alpha = np.where(blend, alpha, 0.0)  # an unblended Gaussian is one with α = 0, but without a gradient
        before = T[here] / (1 - alpha)
        g = v_colors[here]
        g_dot_c = g @ colors[i]
        v_colors_in[i] = np.einsum("hw,hwd->d", alpha * before, g)
        v_alpha = np.where(blend, before * (g_dot_c - tau[here]), 0.0)
        if not smooth:
            v_alpha = np.where(splat.raw > MAX_ALPHA, 0.0, v_alpha)
        tau[here] = (1 - alpha) * tau[here] + alpha * g_dot_c
        T[here] = before

        v_opacities[i] = np.sum(v_alpha * splat.falloff)
        v_sigma = -0.5 * alpha * v_alpha
        dx, dy = splat.dx, splat.dy
        a, b, c = conics[i]
        v_conics[i] = np.sum(v_sigma * dx * dx), 2 * np.sum(v_sigma * dx * dy), np.sum(v_sigma * dy * dy)
        v_x, v_y = -2 * v_sigma * (a * dx + b * dy), -2 * v_sigma * (b * dx + c * dy)
        v_means2d[i] = v_x.sum(), v_y.sum()
        v_means2d_abs[i] = np.abs(v_x).sum(), np.abs(v_y).sum()
    return RasterizedGradients(v_means2d, v_means2d_abs, v_conics, v_opacities, v_colors_in, v_background)


def near_threshold(
    means2d: Array,
    conics: Array,
    opacities: Array,
    depths: Array,
    width: int,
    height: int,
    *,
    margin: float = 1e-4,
    depth_margin: float = 1e-6,
) -> Mask:
    """Pixels [H, W] that a test must not compare, since rounding may decide differently from float64 there.

    A pixel is marked if, before it stops, any Gaussian has α within the relative `margin` of 1/255 or (before
    the clamp) of 0.999, or would bring T within it of 1e-4; or if two consecutive Gaussians there have depths that
    differ by less than the relative `depth_margin`, as rounding may swap them.
    (Equal depths keep their input order in any precision.) Use it on both sides: compare colours outside the
    mask, and set v_colors and v_alphas to zero inside it before running either backward.

    The relative error of α is |conic Δ| times the position's error, up to 6 a pixel for the sharpest splat at
    its rim. 1e-4 covers float32 positions up to about a hundred pixels; take 1e-3 for larger images.
    """
    marked = np.zeros((height, width), dtype=bool)
    T, last_depth = np.ones((height, width)), np.full((height, width), -np.inf)
    running = np.ones((height, width), dtype=bool)

    def close(value: Array, threshold: float) -> Mask:
        return np.asarray(np.abs(value - threshold) < margin * threshold)

    for splat in _footprints(means2d, conics, opacities, depths, width, height, MIN_ALPHA * (1 - 2 * margin)):
        here, depth = splat.pixels, depths[splat.index]
        raw, alpha = splat.raw, splat.alpha
        candidate = running[here] & (alpha >= MIN_ALPHA)
        after = T[here] * (1 - alpha)
        gap = depth - last_depth[here]
        marked[here] |= running[here] & close(raw, MIN_ALPHA)
        marked[here] |= candidate & (close(raw, MAX_ALPHA) | close(after, MIN_TRANSMITTANCE))
        marked[here] |= candidate & (gap > 0) & (gap < depth_margin * depth)
        stop = candidate & (after <= MIN_TRANSMITTANCE)
        running[here] &= ~stop
        T[here] = np.where(candidate, after, T[here])
        last_depth[here] = np.where(candidate, depth, last_depth[here])
    return marked
