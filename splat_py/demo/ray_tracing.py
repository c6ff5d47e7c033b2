"""The ground truth: the still life, ray traced under a lamp and a sky, for any camera and not only for the pictures on disk."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from splat_py.demo.shapes import EPSILON, Array, dot, unit
from splat_py.demo.still_life import still_life

SUBPIXELS = 3  # a side: 9 rays a pixel, each with its own direction to the lamp and to the sky
LAMP = unit(np.array([0.55, -0.35, 0.85], np.float32))
LAMP_COLOR = np.array([1.16, 1.09, 0.98], np.float32)
SKY_COLOR = np.array([0.60, 0.69, 0.82], np.float32)
BOUNCE_COLOR = np.array([0.10, 0.09, 0.08], np.float32)


@cache
def enclosing_spheres() -> tuple[Array, Array]:
    """Centres [S, 3] and radii [S, 1] of spheres that hold the surfaces, a little large against rounding."""
    surfaces = still_life()
    centers = np.array([surface.center for surface in surfaces], np.float32)
    return centers, np.array([[surface.shape.bound + 0.01] for surface in surfaces], np.float32)


def trace(origins: Array, directions: Array) -> tuple[Array, NDArray[np.int64]]:
    """Distance to the first surface along each ray [N] (`inf`: none), and its index in `still_life` [N]."""
    distance = np.full(len(origins), np.inf, np.float32)
    index = np.full(len(origins), -1)
    centers, bounds = enclosing_spheres()
    along = dot(origins, directions) - centers @ directions.T
    apart = dot(origins, origins) - 2 * centers @ origins.T + dot(centers, centers)[:, None]
    candidates = (apart - along**2 < bounds**2) & (along < bounds)
    for i, surface in enumerate(still_life()):
        rays = np.flatnonzero(candidates[i])
        if not len(rays):
            continue
        t = surface.shape.hit(surface.to_local(origins[rays] - centers[i]), surface.to_local(directions[rays]))
        closer = t < distance[rays]
        distance[rays[closer]] = t[closer]
        index[rays[closer]] = i
    return distance, index


@cache
def light_samples() -> list[tuple[Array, Array]]:
    """A direction to the lamp (a disc) and one to the sky (the upper hemisphere) for each ray of a pixel."""
    count = SUBPIXELS**2
    order = np.random.default_rng(3).permutation(count)  # so that the lamp's direction says nothing of the sky's
    k = np.arange(count) + 0.5
    angle = k * np.pi * (3 - np.sqrt(5))
    radius = 0.13 * np.sqrt(k / count)
    side = np.cross(LAMP, [0, 0, 1])
    disc = np.cos(angle)[:, None] * side + np.sin(angle)[:, None] * np.cross(side, LAMP)
    lamp = LAMP + radius[:, None] * disc
    z = k / count
    sky = np.stack([np.sqrt(1 - z**2) * np.cos(angle), np.sqrt(1 - z**2) * np.sin(angle), z], axis=-1)
    return list(zip(unit(lamp.astype(np.float32)), sky.astype(np.float32)[order], strict=True))


def lit(points: Array, normals: Array, direction: Array) -> Array:
    """Cosine of a light's direction at each point, zero in its shadow [N]."""
    cosine = np.maximum(normals @ direction, 0)
    facing = np.flatnonzero(cosine > 0)
    origins = points[facing] + np.float32(EPSILON) * normals[facing]
    _, blocker = trace(origins, np.broadcast_to(direction, origins.shape))
    cosine[facing[blocker >= 0]] = 0
    return cosine


def radiance(origins: Array, directions: Array, lamp: Array, sky: Array) -> Array:
    """Display-space RGB in [0, 1] along each ray [N, 3], black where there is nothing."""
    distance, index = trace(origins, directions)
    color = np.zeros_like(directions)
    hit = np.flatnonzero(index >= 0)
    points = origins[hit] + distance[hit, None] * directions[hit]
    albedo, normals, gloss = np.zeros_like(points), np.zeros_like(points), np.zeros(len(hit), np.float32)
    for i, surface in enumerate(still_life()):
        mine = index[hit] == i
        local = surface.to_local(points[mine] - np.array(surface.center, np.float32))
        albedo[mine] = surface.texture(local)
        normals[mine] = surface.shape.normal(local) @ surface.rotation.T
        gloss[mine] = surface.gloss

    from_lamp, from_sky = lit(points, normals, lamp), lit(points, normals, sky)
    color[hit] = albedo * (from_lamp[:, None] * LAMP_COLOR + from_sky[:, None] * SKY_COLOR + BOUNCE_COLOR)

    # Wide lobes only: a highlight is to challenge third-degree spherical harmonics, not to defeat them.
    view = -directions[hit]
    cosine = dot(normals, view)
    mirrored = 2 * cosine[:, None] * normals - view
    fresnel = 0.06 + 0.5 * (1 - np.clip(cosine, 0, 1)) ** 3
    reflected = fresnel * np.clip(0.5 + 0.5 * mirrored[:, 2], 0, 1) ** 2
    highlight = 0.9 * (from_lamp > 0) * np.clip(mirrored @ LAMP, 0, 1) ** 14
    color[hit] += gloss[:, None] * (reflected[:, None] * SKY_COLOR + highlight[:, None] * LAMP_COLOR)
    return np.clip(color, 0, 1) ** np.float32(1 / 2.2)


def camera_rays(
    viewmat: NDArray[np.floating], K: NDArray[np.floating], width: int, height: int, subpixels: int
) -> Iterator[tuple[Array, Array]]:
    """Origins and unit directions [height · width, 3] of a ray a pixel, for each of its subpixels."""
    rotation, translation = np.asarray(viewmat)[:3, :3], np.asarray(viewmat)[:3, 3]
    to_world = rotation.T @ np.linalg.inv(K)
    y, x = np.mgrid[:height, :width].reshape(2, -1)
    origins = np.broadcast_to((-rotation.T @ translation).astype(np.float32), (width * height, 3))
    for sample in range(subpixels**2):
        dy, dx = (np.array(divmod(sample, subpixels)) + 0.5) / subpixels
        pixels = np.stack([x + dx, y + dy, np.ones(len(x))], axis=-1)
        yield origins, unit((pixels @ to_world.T).astype(np.float32))


def render_view(viewmat: NDArray[np.floating], K: NDArray[np.floating], width: int, height: int) -> Array:
    """The ground truth for any camera outside the objects.

    Args:
        viewmat: world → camera, rigid, OpenCV axes [4, 4].
        K: pinhole intrinsics in pixels, pixel centres at +0.5 [3, 3].
        width, height: pixels.

    Returns:
        RGB in [0, 1], display-referred, a box filter over each pixel [height, width, 3].
    """
    image = np.zeros((width * height, 3), np.float32)
    # Averaged in display space, where alpha blending, and so splatting, happens.
    rays = camera_rays(viewmat, K, width, height, SUBPIXELS)
    for (origins, directions), (lamp, sky) in zip(rays, light_samples(), strict=True):
        image += radiance(origins, directions, lamp, sky)
    return (image / SUBPIXELS**2).reshape(height, width, 3)
