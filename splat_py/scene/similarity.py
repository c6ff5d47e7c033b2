"""Similarity transforms of Gaussians: positions, shapes, and the spherical harmonics of their colours.

Real spherical harmonics up to degree 3 have the order and signs of Kerbl et al. 2023.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation

from splat_py.base.errors import SplatError
from splat_py.scene.formats.packing import StoredGaussians


@dataclass(frozen=True, eq=False)
class Similarity:
    """x' = scale · rotation · x + translation.

    Attributes:
        rotation: [3, 3] float64, orthonormal, without mirroring.
        scale: above zero.
        translation: [3] float64.
    """

    rotation: NDArray[np.float64] = field(default_factory=lambda: np.eye(3))
    scale: float = 1.0
    translation: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))

    def __post_init__(self) -> None:
        if not (np.isfinite(self.rotation).all() and np.isfinite(self.translation).all() and 0 < self.scale < np.inf):
            raise SplatError("a transform needs finite numbers and a scale above zero")
        # Rotations that are read from files are rounded.
        off = np.abs(self.rotation @ self.rotation.T - np.eye(3)).max()
        if off > 1e-4 or np.linalg.det(self.rotation) < 0:
            raise SplatError("a transform that mirrors or shears cannot be applied to Gaussians")

    @classmethod
    def of_matrix(cls, matrix: NDArray[np.float64]) -> Self:
        """The similarity of a matrix [4, 4]. SplatError if it mirrors, shears, or scales differently by direction."""
        scale = float(np.cbrt(np.linalg.det(matrix[:3, :3])))
        return cls(matrix[:3, :3] / scale if scale > 0 else -np.eye(3), scale if scale > 0 else 1.0, matrix[:3, 3])

    @classmethod
    def from_degrees(cls, x: float, y: float, z: float) -> Self:
        """A rotation about the fixed axes x, then y, then z, in degrees."""
        return cls(Rotation.from_euler("xyz", (x, y, z), degrees=True).as_matrix())

    @property
    def quat(self) -> NDArray[np.float64]:
        """The rotation as a unit quaternion w x y z."""
        return np.array(quaternion_of(self.rotation))

    def points(self, xyz: NDArray[np.floating]) -> NDArray[np.float64]:
        return self.scale * xyz.astype(np.float64) @ self.rotation.T + self.translation

    def of_arrays(self, gaussians: StoredGaussians) -> StoredGaussians:
        """Transform Gaussians. Colours other than harmonics stay unchanged."""
        turned = not np.array_equal(self.rotation, np.eye(3))
        with np.errstate(over="ignore"):  # numbers beyond float32 become infinite, which is never written
            means = self.points(gaussians.means).astype(np.float32)
        w, x, y, z = quaternion_of(self.rotation)
        product = np.array([[w, -x, -y, -z], [x, w, -z, y], [y, z, w, -x], [z, -y, x, w]])
        return gaussians._replace(
            means=means,
            quats=(gaussians.quats.astype(np.float64) @ product.T).astype(np.float32) if turned else gaussians.quats,
            log_scales=gaussians.log_scales + np.float32(np.log(self.scale)),
            sh=rotate_harmonics(gaussians.sh, self.rotation) if turned else gaussians.sh,
        )


def scale_of(reference: Sequence[float]) -> float:
    """The factor to real units: `reference` has two points, x y z each, and their real distance, all in one row [7]. SplatError
    unless the points differ and the distance is finite and above 0."""
    apart = math.dist(reference[:3], reference[3:6])
    if not (0 < apart < math.inf and 0 < reference[6] < math.inf):
        given = " ".join(f"{x:g}" for x in reference)
        raise SplatError(f"--scale-reference is {given}; give two different points, x y z each, and their distance above 0")
    return reference[6] / apart


def harmonics_basis(d: NDArray[np.float64]) -> NDArray[np.float64]:
    """The 16 basis functions at unit directions [..., 3] (slang/splat/spherical_harmonics.slang)."""
    x, y, z = np.moveaxis(d, -1, 0)
    c1, c2, c3 = 0.4886025119029199, 1.0925484305920792, 0.5900435899266435
    terms = [
        np.full_like(x, 0.28209479177387814),
        *(-c1 * y, c1 * z, -c1 * x),
        *(c2 * x * y, -c2 * y * z, 0.31539156525252005 * (2 * z * z - x * x - y * y), -c2 * x * z, c2 / 2 * (x * x - y * y)),
        -c3 * y * (3 * x * x - y * y),
        2.890611442640554 * x * y * z,
        -0.4570457994644658 * y * (4 * z * z - x * x - y * y),
        0.3731763325901154 * z * (2 * z * z - 3 * x * x - 3 * y * y),
        -0.4570457994644658 * x * (4 * z * z - x * x - y * y),
        1.445305721320277 * z * (x * x - y * y),
        -c3 * x * (x * x - 3 * y * y),
    ]
    return np.stack(terms, -1)


def rotate_harmonics(sh: NDArray[Any], rotation: NDArray[np.float64]) -> NDArray[Any]:
    """Rotate functions with coefficients [N, K, C] by R [3, 3]: f'(d) = f(Rᵀ d). The matrix of each degree follows from values
    at a few directions, exactly except for rounding."""
    directions = np.random.default_rng(0).normal(size=(32, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    here, before = harmonics_basis(directions), harmonics_basis(directions @ rotation)
    result = sh.copy()
    for degree in range(1, math.isqrt(sh.shape[1])):
        band = slice(degree**2, (degree + 1) ** 2)
        matrix = np.linalg.lstsq(here[:, band], before[:, band], rcond=None)[0]
        result[:, band] = np.einsum("ij,njc->nic", matrix.astype(sh.dtype), sh[:, band])
    return result


def quaternion_of(rotation: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """The unit quaternion (w, x, y, z) of a rotation matrix [3, 3]."""
    x, y, z, w = map(float, Rotation.from_matrix(rotation).as_quat())
    return w, x, y, z


def rotation_matrices(quats: ArrayLike) -> NDArray[np.float64]:
    """Rotation matrices [3, 3] or [N, 3, 3] of quaternions w x y z [4] or [N, 4] of any length. ValueError for length zero."""
    return Rotation.from_quat(np.roll(np.asarray(quats, np.float64), -1, axis=-1)).as_matrix()
