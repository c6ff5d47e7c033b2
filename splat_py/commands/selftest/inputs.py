"""The self-test's `Case`, and small scenes from integer arithmetic, identical on every machine and NumPy version."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splat_py.gpu.device import Device, Operator
from splat_py.scene.camera import Camera, affine

Floats = NDArray[np.float32]
Arrays = dict[str, NDArray[Any]]

# Sides that are not multiples of a tile's side.
WIDTH, HEIGHT = 25, 19
GAUSSIANS = 36
# Splats of the crowded tile, several batches of any kernel; gradients of every 16th are compared.
CROWD, CROWD_EVERY = 3000, 16
CROWD_SIDE = 12
# Keys to sort and values to sum, more than one workgroup does alone on any device; every 4th and every 64th result is compared.
KEYS, KEYS_EVERY = 40_000, 4
VALUES, VALUES_EVERY = 36_000, 64
BLOBS = 20
VOLUME_BOX = ((-1.0, -0.8, -1.2), (1.0, 0.9, 1.1))
VOLUME_SIZE = (5, 4, 6)
STEPS_PER_UNIT = 5.0
JITTER_SEED = 7


@dataclass(frozen=True)
class Case:
    """A case; `run` gets the device and the stored results, and returns the device's results by the same names."""

    name: str
    # Name of the stored results; cases that differ only in the kernels' method share them.
    reference: str
    run: Callable[[Device, Arrays], Arrays]
    allowed: float = 1e-4  # see `checking.error`
    # Operators that the device must have.
    needs: tuple[Operator, ...] = (Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD)


def leaves_of(**arrays: Floats) -> dict[str, Any]:
    return {name: torch.from_numpy(np.ascontiguousarray(array)).requires_grad_() for name, array in arrays.items()}


def with_gradients(
    outputs: dict[str, Tensor], leaves: dict[str, Tensor], key: int, stored: Arrays, **weights: Floats
) -> Arrays:
    """The outputs, and as `v_*` the gradients of the leaves. ∂L/∂outputs is `v` with the keys from `key` on, times
    `weights`."""
    adjoints = [v(key + i, stored[name]) * weights.get(name, np.float32(1)) for i, name in enumerate(outputs)]
    tensors = [torch.from_numpy(a).reshape(output.shape) for a, output in zip(adjoints, outputs.values(), strict=True)]
    arguments = list(outputs.values()), list(leaves.values()), tensors
    gradients = torch.autograd.grad(*arguments, allow_unused=True, materialize_grads=True)
    results = outputs | {f"v_{name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in results.items()}
    v_viewmats, v_Ks = arrays.pop("v_viewmats", None), arrays.pop("v_Ks", None)
    if v_viewmats is not None:
        arrays |= {"v_rotations": v_viewmats[:, :3, :3], "v_translations": v_viewmats[:, :3, 3]}
    if v_Ks is not None:
        arrays |= {"v_focal": v_Ks[:, (0, 1), (0, 1)], "v_principal": v_Ks[:, :2, 2]}
    return arrays


def bits(key: int, *shape: int) -> NDArray[np.uint32]:
    """Well mixed words: a hash (Wang 2007) of each element's index and `key`."""
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
    return (low + (high - low) * (bits(key, *shape) / 2.0**32)).astype(np.float32)


def scene(cameras: int = 1) -> SimpleNamespace:
    """Overlapping activated Gaussians of all shapes around (0, 0, 4), and cameras with some of them at or beyond the edges."""
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
    return SimpleNamespace(
        means=means,
        quats=uniform(2, -1, 1, n, 4),
        scales=scales,
        opacities=uniform(6, 0.1, 0.97, n),
        sh=uniform(7, -0.6, 0.6, n, 16, 3),
        viewmats=viewmats.astype(np.float32),
        Ks=np.tile(K, (cameras, 1, 1)),
        backgrounds=uniform(8, 0, 1, cameras, 3),
    )


def splats(channels: int) -> SimpleNamespace:
    """Splats [1, N, …]: ellipses on and around the image."""
    n = GAUSSIANS
    means2d = uniform(11, -4, 4, 1, n, 2) + uniform(12, 0, 1, 1, n, 2) * np.array([WIDTH, HEIGHT], np.float32)
    return _splats(13, means2d, _conics(n, 0.8, 7.0), (0.05, 0.95), channels)


def crowd() -> SimpleNamespace:
    """Faint splats that all cover the same few pixels."""
    return _splats(22, uniform(21, 2, CROWD_SIDE - 2, 1, CROWD, 2), _conics(CROWD, 3.0, 6.0), (0.006, 0.012), channels=3)


def _splats(key: int, means2d: Floats, conics: Floats, opacities: tuple[float, float], channels: int) -> SimpleNamespace:
    n = means2d.shape[1]
    return SimpleNamespace(
        means2d=means2d,
        depths=uniform(key, 1, 9, 1, n),
        conics=conics,
        opacities=uniform(key + 1, *opacities, 1, n),
        colors=uniform(key + 2, 0, 1, 1, n, channels),
        backgrounds=uniform(key + 3, 0, 1, 1, channels),
    )


def _conics(count: int, smallest: float, largest: float) -> Floats:
    """Inverse covariances of ellipses with these standard deviations, pixels."""
    p, q = uniform(17, smallest, largest, count) ** -2.0, uniform(18, smallest, largest, count) ** -2.0
    c, s = np.cos(uniform(19, 0, np.pi, count)), np.sin(uniform(19, 0, np.pi, count))
    return np.stack([c * c * p + s * s * q, c * s * (p - q), s * s * p + c * c * q], axis=-1)[None].astype(np.float32)


def photograph() -> NDArray[np.uint8]:
    """A photograph [HEIGHT, WIDTH, 4]: rgb and weights, some of them 0."""
    pixels = (bits(31, HEIGHT, WIDTH, 4) >> np.uint32(24)).astype(np.uint8)
    pixels[..., 3] = np.where(pixels[..., 3] < 40, 0, 255)
    return pixels


def stored_gaussians() -> dict[str, Floats]:
    s = scene()
    return {
        "means": s.means,
        "quats": s.quats,
        "log_scales": np.log(s.scales),
        "logit_opacities": np.log(s.opacities / (1 - s.opacities)),
        "sh": s.sh,
    }


def camera() -> Camera:
    s = scene()
    return Camera(s.viewmats[0].astype(np.float64), s.Ks[0].astype(np.float64), WIDTH, HEIGHT, "selftest")


def blobs() -> Floats:
    raw = uniform(41, -2, 2, 9, BLOBS)
    raw[2:4] = uniform(42, -3, -0.8, 2, BLOBS)
    return raw


def field(coefficients: int) -> SimpleNamespace:
    """A voxel grid [X, Y, Z, …] with empty voxels, and rays [R, 3], some of which miss it."""
    count = 40
    return SimpleNamespace(
        density=uniform(51, -1.5, 4, *VOLUME_SIZE),
        sh=uniform(52, -0.7, 0.7, *VOLUME_SIZE, coefficients, 3),
        background=uniform(53, 0, 1, 3),
        origins=uniform(54, -1, 1, count, 3) + np.array([0, 0, -3], np.float32),
        directions=uniform(55, -0.5, 0.5, count, 3) + np.array([0, 0, 1], np.float32),
    )


def hash_grid(entries: int, weights: int) -> tuple[Floats, Floats]:
    return uniform(71, -1.5, 1.5, entries, 2), uniform(72, -0.5, 0.5, weights)


def volume_camera() -> Camera:
    K = np.array([[11.0, 0, 5.2], [0, 12.0, 3.7], [0, 0, 1]])
    return Camera(affine(np.eye(3), (0.1, -0.05, 3.1)), K, 10, 8, "selftest")


def v(key: int, reference: NDArray[Any]) -> Floats:
    """∂L/∂(an image) for the backward pass. It is 0 where the reference is NaN: float32 and float64 may decide differently at a
    threshold there."""
    return np.where(np.isfinite(reference), uniform(key, -1, 1, *reference.shape), 0).astype(np.float32)
