"""A scene moved, turned and scaled: its Gaussians' positions, shapes and colours."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from splat_py.errors import SplatError
from splat_py.scene.harmonics import rotate_harmonics
from splat_py.scene.ply import GaussianArrays
from splat_py.scene.rotations import rotation_matrices

# How far from a rotation's the numbers of a file may be.
_TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class Similarity:
    """x' = scale · rotation · x + translation.

    Attributes:
        rotation: [3, 3] float64, orthonormal, no mirror.
        scale: above zero.
        translation: [3] float64.
    """

    rotation: NDArray[np.float64] = field(default_factory=lambda: np.eye(3))
    scale: float = 1.0
    translation: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))

    def __post_init__(self) -> None:
        if not (np.isfinite(self.rotation).all() and np.isfinite(self.translation).all() and 0 < self.scale < np.inf):
            raise SplatError("a transform's numbers must be finite, and its scale above zero")
        off = np.abs(self.rotation @ self.rotation.T - np.eye(3)).max()
        if off > _TOLERANCE or np.linalg.det(self.rotation) < 0:
            raise SplatError("a transform that mirrors or shears cannot be applied to Gaussians")

    @classmethod
    def of_matrix(cls, matrix: NDArray[np.float64]) -> Similarity:
        """That of a matrix [4, 4].

        Raises:
            SplatError: it mirrors, shears, or scales differently by direction.
        """
        scale = float(np.cbrt(np.linalg.det(matrix[:3, :3])))
        return cls(matrix[:3, :3] / scale if scale > 0 else -np.eye(3), scale if scale > 0 else 1.0, matrix[:3, 3])

    @classmethod
    def from_degrees(cls, x: float, y: float, z: float) -> Similarity:
        """Turned about the axis x, then y, then z, each fixed, by so many degrees."""
        turn = np.eye(3)
        for axis, degrees in enumerate((x, y, z)):
            cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
            about = np.eye(3)
            first, second = (axis + 1) % 3, (axis + 2) % 3
            about[[first, first, second, second], [first, second, first, second]] = cos, -sin, sin, cos
            turn = about @ turn
        return cls(turn)

    @classmethod
    def from_quat(cls, quat: ArrayLike) -> Similarity:
        """Turned by a quaternion w x y z of any length but zero."""
        return cls(rotation_matrices(np.asarray(quat, np.float64) / max(float(np.linalg.norm(quat)), 1e-300)))

    @property
    def quat(self) -> NDArray[np.float64]:
        """The rotation as a unit quaternion w x y z: an eigenvector, of the largest eigenvalue (Bar-Itzhack 2000)."""
        (a, b, c), (d, e, f), (g, h, i) = self.rotation
        matrix = np.array(
            [[a + e + i, h - f, c - g, d - b], [0, a - e - i, b + d, c + g], [0, 0, e - a - i, f + h], [0, 0, 0, i - a - e]]
        )
        return np.linalg.eigh(matrix, UPLO="U")[1][:, -1]

    def points(self, xyz: NDArray[np.floating]) -> NDArray[np.float64]:
        """Points [N, 3] where they come to be."""
        return self.scale * xyz.astype(np.float64) @ self.rotation.T + self.translation

    def of_arrays(self, gaussians: GaussianArrays) -> GaussianArrays:
        """The Gaussians where they come to be. What is no harmonic of their colours stays as it is."""
        turned = not np.array_equal(self.rotation, np.eye(3))
        with np.errstate(over="ignore"):  # what is beyond float32 becomes infinite, which is never written
            means = self.points(gaussians.means).astype(np.float32)
        return gaussians._replace(
            means=means,
            quats=_product(self.quat, gaussians.quats) if turned else gaussians.quats,
            log_scales=gaussians.log_scales + np.float32(np.log(self.scale)),
            sh=rotate_harmonics(gaussians.sh, self.rotation) if turned else gaussians.sh,
        )


def _product(a: NDArray[np.float64], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """The quaternions a · b, w x y z, of one [4] and many [N, 4]."""
    w, x, y, z = a
    matrix = np.array([[w, -x, -y, -z], [x, w, -z, y], [y, z, w, -x], [z, -y, x, w]])
    return (b.astype(np.float64) @ matrix.T).astype(np.float32)
