"""What the self-test feeds to the kernels: small scenes from integer arithmetic, the same on every machine and every NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splat_py.scene.camera import Camera

Floats = NDArray[np.float32]

# Sides that are no multiples of a tile's.
WIDTH, HEIGHT = 25, 19
GAUSSIANS = 36
# Splats behind the pixels of the crowded tile: several batches of any kernel. Gradients of every 16th are compared.
CROWD, CROWD_EVERY = 3000, 16
CROWD_SIDE = 12
# Keys and values that take more than one block on every device.
KEYS, VALUES = 6000, 5000
BLOBS = 20
VOLUME_BOX = ((-1.0, -0.8, -1.2), (1.0, 0.9, 1.1))
VOLUME_SIZE = (5, 4, 6)
STEPS_PER_UNIT = 5.0
JITTER_SEED = 7


def bits(key: int, *shape: int) -> NDArray[np.uint32]:
    """Well mixed words: a hash (Wang 2007) of each element's number and of `key`."""
    x = np.arange(int(np.prod(shape)), dtype=np.uint32) + np.uint32(key * 0x9E3779B9 & 0xFFFFFFFF)
    with np.errstate(over="ignore"):
        for _ in range(2):
            x = (x ^ np.uint32(61)) ^ (x >> np.uint32(16))
            x = x * np.uint32(9)
            x = x ^ (x >> np.uint32(4))
            x = x * np.uint32(0x27D4EB2D)
            x = x ^ (x >> np.uint32(15))
    return x.reshape(shape)


def uniform(key: int, low: float, high: float, *shape: int) -> Floats:
    """Floats from `low` to `high`."""
    return (low + (high - low) * (bits(key, *shape) / 2.0**32)).astype(np.float32)


@dataclass(frozen=True)
class Scene:
    """Gaussians [N, …], activated, and C cameras that look at them."""

    means: Floats
    quats: Floats
    scales: Floats
    opacities: Floats
    # [N, 16, 3]
    sh: Floats
    viewmats: Floats
    Ks: Floats
    backgrounds: Floats


def scene(cameras: int = 1) -> Scene:
    """Overlapping Gaussians of all shapes around (0, 0, 4), some of them beyond the images' edges."""
    n = GAUSSIANS
    means = uniform(1, -1, 1, n, 3) * np.array([1.6, 1.4, 1.0], np.float32) + np.array([0, 0, 4], np.float32)
    scales = np.exp(uniform(3, np.log(0.05), np.log(0.5), n, 3))
    viewmats = np.tile(np.eye(4), (cameras, 1, 1))
    for viewmat, w in zip(viewmats, uniform(4, -0.1, 0.1, cameras, 3), strict=True):
        # Rodrigues' formula.
        angle, cross = np.linalg.norm(w), np.cross(np.eye(3), w)
        viewmat[:3, :3] = np.eye(3) + np.sin(angle) / angle * cross + (1 - np.cos(angle)) / angle**2 * cross @ cross
    viewmats[:, :3, 3] = uniform(5, -0.2, 0.2, cameras, 3)
    K = np.array([[1.1 * WIDTH, 0, 0.53 * WIDTH], [0, 1.4 * HEIGHT, 0.45 * HEIGHT], [0, 0, 1]], np.float32)
    return Scene(
        means,
        uniform(2, -1, 1, n, 4),
        scales,
        uniform(6, 0.1, 0.97, n),
        uniform(7, -0.6, 0.6, n, 16, 3),
        viewmats.astype(np.float32),
        np.tile(K, (cameras, 1, 1)),
        uniform(8, 0, 1, cameras, 3),
    )


@dataclass(frozen=True)
class Splats:
    """Gaussians on an image, [1, N, …]."""

    means2d: Floats
    depths: Floats
    conics: Floats
    opacities: Floats
    # [1, N, channels] and [1, channels]
    colors: Floats
    backgrounds: Floats


def splats(channels: int) -> Splats:
    """Ellipses on and around the image."""
    n = GAUSSIANS
    means2d = uniform(11, -4, 4, 1, n, 2) + uniform(12, 0, 1, 1, n, 2) * np.array([WIDTH, HEIGHT], np.float32)
    return Splats(
        means2d,
        uniform(13, 1, 9, 1, n),
        _conics(n, 0.8, 7.0),
        uniform(14, 0.05, 0.95, 1, n),
        uniform(15, 0, 1, 1, n, channels),
        uniform(16, 0, 1, 1, channels),
    )


def crowd() -> Splats:
    """Faint splats that all cover the same few pixels."""
    return Splats(
        uniform(21, 2, CROWD_SIDE - 2, 1, CROWD, 2),
        uniform(22, 1, 9, 1, CROWD),
        _conics(CROWD, 3.0, 6.0),
        uniform(23, 0.006, 0.012, 1, CROWD),
        uniform(24, 0, 1, 1, CROWD, 3),
        uniform(25, 0, 1, 1, 3),
    )


def _conics(count: int, smallest: float, largest: float) -> Floats:
    """Inverse covariances of ellipses with these standard deviations, pixels."""
    p, q = uniform(17, smallest, largest, count) ** -2.0, uniform(18, smallest, largest, count) ** -2.0
    c, s = np.cos(uniform(19, 0, np.pi, count)), np.sin(uniform(19, 0, np.pi, count))
    return np.stack([c * c * p + s * s * q, c * s * (p - q), s * s * p + c * c * q], axis=-1)[None].astype(np.float32)


def photograph() -> NDArray[np.uint8]:
    """[HEIGHT, WIDTH, 4]: rgb, and weights of which some are 0."""
    pixels = (bits(31, HEIGHT, WIDTH, 4) >> np.uint32(24)).astype(np.uint8)
    pixels[..., 3] = np.where(pixels[..., 3] < 40, 0, 255)
    return pixels


def stored_gaussians() -> dict[str, Floats]:
    """The scene as an optimiser holds it, by name."""
    s = scene()
    return {
        "means": s.means,
        "quats": s.quats,
        "log_scales": np.log(s.scales),
        "logit_opacities": np.log(s.opacities / (1 - s.opacities)),
        "sh": s.sh,
    }


def camera() -> Camera:
    """The scene's camera."""
    s = scene()
    return Camera(s.viewmats[0].astype(np.float64), s.Ks[0].astype(np.float64), WIDTH, HEIGHT, "selftest")


def blobs() -> Floats:
    """Raw blobs [9, BLOBS] of an image."""
    raw = uniform(41, -2, 2, 9, BLOBS)
    raw[2:4] = uniform(42, -3, -0.8, 2, BLOBS)
    return raw


@dataclass(frozen=True)
class Field:
    """A voxel grid [X, Y, Z, …] and rays [R, 3] through it."""

    density: Floats
    sh: Floats
    background: Floats
    origins: Floats
    directions: Floats


def field(coefficients: int) -> Field:
    """A grid with empty places, and rays of which some miss it."""
    count = 40
    return Field(
        uniform(51, -1.5, 4, *VOLUME_SIZE),
        uniform(52, -0.7, 0.7, *VOLUME_SIZE, coefficients, 3),
        uniform(53, 0, 1, 3),
        uniform(54, -1, 1, count, 3) + np.array([0, 0, -3], np.float32),
        uniform(55, -0.5, 0.5, count, 3) + np.array([0, 0, 1], np.float32),
    )


def hash_grid(entries: int, weights: int) -> tuple[Floats, Floats]:
    """Its table and the weights of its networks."""
    return uniform(71, -1.5, 1.5, entries, 2), uniform(72, -0.5, 0.5, weights)


def volume_camera() -> Camera:
    """A small camera in front of the box."""
    K = np.array([[11.0, 0, 5.2], [0, 12.0, 3.7], [0, 0, 1]])
    viewmat = np.eye(4)
    viewmat[:3, 3] = [0.1, -0.05, 3.1]
    return Camera(viewmat, K, 10, 8, "selftest")


def v(key: int, reference: NDArray[Any]) -> Floats:
    """∂L/∂(an image), where the backward pass begins: 0 where the reference says nothing (NaN), because float32 may decide
    otherwise than float64 on a threshold there."""
    return np.where(np.isfinite(reference), uniform(key, -1, 1, *reference.shape), 0).astype(np.float32)
