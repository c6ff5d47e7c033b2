"""EWA projection (Zwicker et al. 2001): a 3D Gaussian → its pixel position, depth, conic and opacity.

The clamp. J is taken at t with x/z and y/z clamped to a frame 30 % of half the field of view wider than the
image; the pixel position is not clamped. With u = clamp(x/z), J₀₂ = −fx u/z: where the clamp is active
∂u/∂x = ∂u/∂z = 0, but J₀₂ still depends on z through 1/z, and on K through the limit u itself, which is
(b − cx)/fx with a constant b: ∂u/∂fx = −u/fx and ∂u/∂cx = −1/fx.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.arrays import Array, Mask
from tests.reference.gaussian import covariance, covariance_backward

EPS2D = 0.3
NEAR = 0.01
FAR = 1e10
MIN_DETERMINANT = 1e-6
MIN_COMPENSATION = 2.5e-5  # of ρ², that is ρ ≥ 0.005


@dataclass(frozen=True)
class Projected:
    """What blending needs of every Gaussian. A culled one has zeros everywhere."""

    means2d: Array  # [N, 2] pixels
    depths: Array  # [N] z in the camera's frame
    conics: Array  # [N, 3] (a, b, c) of the inverse covariance [[a, b], [b, c]] in 1/pixel²
    opacities: Array  # [N] times the antialiasing compensation ρ where asked for
    visible: Mask  # [N] near ≤ z ≤ far and everything finite


@dataclass(frozen=True)
class ProjectionGradients:
    means: Array  # [N, 3]
    quats: Array  # [N, 4]
    scales: Array  # [N, 3]
    opacities: Array  # [N]
    viewmat: Array  # [4, 4] the twelve entries of [R | t] as independent numbers, last row zero
    K: Array  # [3, 3] zero but for fx, fy, cx, cy


def frustum_limits(K: Array, width: int, height: int) -> Array:
    """[2, 2]: rows x and y, columns the lower and upper bound of x/z and y/z inside J."""
    focal, centre, side = np.array([K[0, 0], K[1, 1]]), K[:2, 2], np.array([width, height])
    margin = 0.3 * side / (2 * focal)
    return np.stack([-(centre / focal + margin), (side - centre) / focal + margin], axis=-1)


def perspective_jacobian(t: Array, K: Array, width: int, height: int) -> Array:
    """J [N, 2, 3] = ∂(pixel)/∂t at camera-space points t [N, 3], clamped to `frustum_limits`."""
    fx, fy = K[0, 0], K[1, 1]
    z = t[:, 2]
    limits = frustum_limits(K, width, height)
    u, v = np.clip(t[:, :2] / z[:, None], limits[:, 0], limits[:, 1]).T
    zero = np.zeros_like(z)
    return np.stack(
        [np.stack([fx / z, zero, -fx * u / z], axis=-1), np.stack([zero, fy / z, -fy * v / z], axis=-1)],
        axis=-2,
    )


def perspective_jacobian_backward(
    t: Array, K: Array, width: int, height: int, v_J: Array
) -> tuple[Array, Array]:
    """v_t [N, 3] and v_K [3, 3] from v_J [N, 2, 3]."""
    z = t[:, 2]
    limits = frustum_limits(K, width, height)
    v_t, v_K = np.zeros_like(t), np.zeros((3, 3))
    for i in range(2):  # the rows of J are the same function of (x, z, fx) and (y, z, fy)
        focal, slope = K[i, i], t[:, i] / z
        clamped = np.clip(slope, limits[i, 0], limits[i, 1])
        v_diagonal, v_last = v_J[:, i, i], v_J[:, i, 2]
        v_K[i, i] = np.sum((v_diagonal - v_last * clamped) / z)
        v_t[:, 2] += focal * (v_last * clamped - v_diagonal) / z**2
        v_clamped = -focal * v_last / z
        v_slope = np.where(slope == clamped, v_clamped, 0.0)
        v_limit = v_clamped - v_slope
        v_K[i, i] -= np.sum(v_limit * clamped) / focal
        v_K[i, 2] = -np.sum(v_limit) / focal
        v_t[:, i] += v_slope / z
        v_t[:, 2] -= v_slope * slope / z
    return v_t, v_K


def conic(cov2d: Array) -> Array:
    """(a, b, c) [N, 3] of the inverse of symmetric cov2d [N, 2, 2], whose determinant is held ≥ 1e-6."""
    determinant = np.maximum(np.linalg.det(cov2d), MIN_DETERMINANT)
    adjugate = np.stack([cov2d[:, 1, 1], -cov2d[:, 0, 1], cov2d[:, 0, 0]], axis=-1)
    return np.asarray(adjugate / determinant[:, None])


def conic_backward(cov2d: Array, v_conics: Array) -> Array:
    """Symmetric v_cov2d [N, 2, 2] from v_conics [N, 3].

    −conic G conic, with G's off-diagonal entries half of the packed b's gradient. Where the guard holds the
    determinant, the conic is the adjugate over a constant, and only the adjugate has a gradient.
    """
    a, b, c = conic(cov2d).T
    v_a, v_b, v_c = v_conics.T
    inverse = np.stack([np.stack([a, b], -1), np.stack([b, c], -1)], -2)
    g = np.stack([np.stack([v_a, v_b / 2], -1), np.stack([v_b / 2, v_c], -1)], -2)
    of_adjugate = np.stack([np.stack([v_c, -v_b / 2], -1), np.stack([-v_b / 2, v_a], -1)], -2)
    guarded = np.linalg.det(cov2d) < MIN_DETERMINANT
    return np.where(guarded[:, None, None], of_adjugate / MIN_DETERMINANT, -inverse @ g @ inverse)


def _compensation(cov2d: Array, blurred: Array) -> tuple[Array, Array, Array]:
    """ρ [N] of the Mip filter (Yu et al. 2024), and the two determinants it is made of."""
    sharp = np.linalg.det(cov2d)
    wide = np.maximum(np.linalg.det(blurred), MIN_DETERMINANT)
    return np.sqrt(np.maximum(sharp / wide, MIN_COMPENSATION)), sharp, wide


def _adjugate(m: Array) -> Array:
    """∂det/∂m of symmetric m [N, 2, 2]."""
    return np.stack([np.stack([m[:, 1, 1], -m[:, 0, 1]], -1), np.stack([-m[:, 0, 1], m[:, 0, 0]], -1)], -2)


def project(
    means: Array,
    quats: Array,
    scales: Array,
    opacities: Array,
    viewmat: Array,
    K: Array,
    width: int,
    height: int,
    *,
    eps2d: float = EPS2D,
    near: float = NEAR,
    far: float = FAR,
    antialiased: bool = False,
) -> Projected:
    """Project N Gaussians into one camera.

    Args:
        means [N, 3], quats [N, 4], scales [N, 3] (activated), opacities [N] (activated).
        viewmat [4, 4], K [3, 3], width and height in pixels.
        eps2d: added to the diagonal of the 2D covariance, pixel².
        antialiased: multiply the opacity by ρ = √max(det Σ₂ / det(Σ₂ + eps2d I), 2.5e-5).
    """
    rotation = viewmat[:3, :3]
    t = means @ rotation.T + viewmat[:3, 3]
    depths = t[:, 2]
    with np.errstate(all="ignore"):  # culled Gaussians may divide by zero; they are zeroed below
        means2d = t[:, :2] / depths[:, None] * [K[0, 0], K[1, 1]] + K[:2, 2]
        P = perspective_jacobian(t, K, width, height) @ rotation
        cov2d = P @ covariance(quats, scales) @ P.swapaxes(-1, -2)
        blurred = cov2d + eps2d * np.eye(2)
        conics = conic(blurred)
        compensation = _compensation(cov2d, blurred)[0] if antialiased else np.ones_like(opacities)
        everything = np.concatenate(
            [means2d, conics, np.stack([depths, opacities * compensation], -1)], axis=-1
        )
        visible = np.isfinite(everything).all(axis=-1) & (depths >= near) & (depths <= far)
    everything = np.where(visible[:, None], everything, 0.0)
    return Projected(everything[:, :2], everything[:, 5], everything[:, 2:5], everything[:, 6], visible)


def project_backward(
    means: Array,
    quats: Array,
    scales: Array,
    opacities: Array,
    viewmat: Array,
    K: Array,
    width: int,
    height: int,
    v_means2d: Array,
    v_depths: Array,
    v_conics: Array,
    v_opacities: Array,
    *,
    eps2d: float = EPS2D,
    near: float = NEAR,
    far: float = FAR,
    antialiased: bool = False,
) -> ProjectionGradients:
    """Gradients of `project`'s inputs from those of its outputs; culled Gaussians get and give zero."""
    visible = project(
        means, quats, scales, opacities, viewmat, K, width, height,
        eps2d=eps2d, near=near, far=far, antialiased=antialiased,
    ).visible  # fmt: skip
    count = len(means)
    v_means, v_quats, v_scales = np.zeros((count, 3)), np.zeros((count, 4)), np.zeros((count, 3))
    v_opacities_in, v_viewmat, v_K = np.zeros(count), np.zeros((4, 4)), np.zeros((3, 3))

    means, quats, scales, opacities = means[visible], quats[visible], scales[visible], opacities[visible]
    v_means2d, v_depths = v_means2d[visible], v_depths[visible]
    v_conics, v_opacities = v_conics[visible], v_opacities[visible]
    rotation = viewmat[:3, :3]
    t = means @ rotation.T + viewmat[:3, 3]
    J = perspective_jacobian(t, K, width, height)
    P = J @ rotation
    cov3d = covariance(quats, scales)
    cov2d = P @ cov3d @ P.swapaxes(-1, -2)
    blurred = cov2d + eps2d * np.eye(2)

    # Conic and compensation → Σ₂ (the blurred and the sharp one have the same gradient in Σ₂'s entries).
    v_cov2d = conic_backward(blurred, v_conics)
    v_opacities_in[visible] = v_opacities
    if antialiased:
        rho, sharp, wide = _compensation(cov2d, blurred)
        v_opacities_in[visible] *= rho
        floored = sharp / wide < MIN_COMPENSATION
        v_ratio = np.where(floored, 0.0, v_opacities * opacities / (2 * rho))
        v_wide = np.where(np.linalg.det(blurred) < MIN_DETERMINANT, 0.0, -v_ratio * sharp / wide**2)
        v_cov2d += (v_ratio / wide)[:, None, None] * _adjugate(cov2d)
        v_cov2d += v_wide[:, None, None] * _adjugate(blurred)

    # Σ₂ = P Σ Pᵀ with P = J W.
    v_cov3d = P.swapaxes(-1, -2) @ v_cov2d @ P
    v_P = 2 * v_cov2d @ P @ cov3d
    v_quats[visible], v_scales[visible] = covariance_backward(quats, scales, v_cov3d)
    v_t, v_K = perspective_jacobian_backward(t, K, width, height, v_P @ rotation.T)
    v_viewmat[:3, :3] = np.sum(J.swapaxes(-1, -2) @ v_P, axis=0)

    # Pixel position and depth → t.
    x, y, z = t.T
    fx, fy = K[0, 0], K[1, 1]
    v_u, v_v = v_means2d.T
    v_t[:, 0] += fx * v_u / z
    v_t[:, 1] += fy * v_v / z
    v_t[:, 2] += v_depths - (fx * x * v_u + fy * y * v_v) / z**2
    v_K[0, 0] += np.sum(v_u * x / z)
    v_K[1, 1] += np.sum(v_v * y / z)
    v_K[:2, 2] += v_means2d.sum(axis=0)

    # t = W μ + T.
    v_means[visible] = v_t @ rotation
    v_viewmat[:3, :3] += v_t.T @ means
    v_viewmat[:3, 3] = v_t.sum(axis=0)
    return ProjectionGradients(v_means, v_quats, v_scales, v_opacities_in, v_viewmat, v_K)
