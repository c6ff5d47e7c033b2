"""The sky behind a scene as a function of the viewing direction."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splat_py.base.errors import SplatError
from splat_py.scene.camera import Camera
from splat_py.scene.similarity import harmonics_basis


@dataclass(frozen=True, eq=False)
class Environment:
    """The sky behind a scene: sh [16, 3] float32, spherical harmonics of the world direction in the Gaussians' order."""

    sh: NDArray[np.float32]

    def colors(self, camera: Camera) -> NDArray[np.float32]:
        """A camera's picture of the sky alone: [H, W, 3], not below 0. SplatError if the camera is not a pinhole."""
        require_pinhole(camera)
        x = (np.arange(camera.width) + 0.5 - camera.K[0, 2]) / camera.K[0, 0]
        y = (np.arange(camera.height) + 0.5 - camera.K[1, 2]) / camera.K[1, 1]
        rays = np.stack(np.broadcast_arrays(x[None, :], y[:, None], 1.0), -1) @ camera.viewmat[:3, :3]
        basis = harmonics_basis(rays / np.linalg.norm(rays, axis=-1, keepdims=True))
        return np.maximum(basis @ self.sh.astype(np.float64) + 0.5, 0).astype(np.float32)


def require_pinhole(camera: Camera) -> None:
    """Raise SplatError unless the camera is a pinhole without lens distortion."""
    if camera.distortion is not None or camera.model not in (None, "pinhole"):
        raise SplatError(f"{camera.name or 'a view'} has no pinhole camera, which environment needs; add undistort")
