"""The sky behind a scene as a function of the viewing direction."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from splat_py.base.errors import SplatError
from splat_py.scene.camera import Camera
from splat_py.scene.editing import merge
from splat_py.scene.gaussians import SH_C0, Gaussians
from splat_py.scene.similarity import harmonics_basis

# Gaussians of a shell, their standard deviation in units of √(area of each), and the shell's radius in extents of the scene.
# A scene outdoors looks the same to 41.9 dB; to 40.3 with 2,500 Gaussians, 40.0 at 5 extents, 36.0 with a width of 0.6.
_SHELL, _WIDTH, _RADIUS = 5000, 0.7, 10.0


@dataclass(frozen=True, eq=False)
class Environment:
    """The sky behind a scene: sh [16, 3] float32, spherical harmonics of the world direction in the Gaussians' order."""

    sh: NDArray[np.float32]

    def toward(self, directions: NDArray[np.floating]) -> NDArray[np.float32]:
        """The sky's rgb, not below 0, in unit directions [..., 3] of the world: [..., 3]."""
        basis = harmonics_basis(directions.astype(np.float64))
        return np.maximum(basis @ self.sh.astype(np.float64) + 0.5, 0).astype(np.float32)

    def colors(self, camera: Camera) -> NDArray[np.float32]:
        """A camera's picture of the sky alone: [H, W, 3], not below 0. SplatError if the camera is not a pinhole."""
        require_pinhole(camera)
        x = (np.arange(camera.width) + 0.5 - camera.K[0, 2]) / camera.K[0, 0]
        y = (np.arange(camera.height) + 0.5 - camera.K[1, 2]) / camera.K[1, 1]
        rays = np.stack(np.broadcast_arrays(x[None, :], y[:, None], 1.0), -1) @ camera.viewmat[:3, :3]
        return self.toward(rays / np.linalg.norm(rays, axis=-1, keepdims=True))

    def baked(self, gaussians: Gaussians) -> Gaussians:
        """The scene in a shell of opaque, far Gaussians with the sky's colours, for files and viewers that hold no environment.
        SplatError if the scene has splats or colours of another type."""
        if gaussians.splat != "Gaussian" or gaussians.color != "SphericalHarmonics":
            raise SplatError("the scene has splats or colours of another type, which a sky of Gaussians cannot join")
        middle = np.median(gaussians.positions, axis=0)
        # Single Gaussians may be lost far away.
        extent = float(np.quantile(np.linalg.norm(gaussians.positions - middle, axis=1), 0.999)) or 1.0
        # A Fibonacci lattice: equal areas, at the golden angle from one to the next.
        k = np.arange(_SHELL) + 0.5
        z, angle = 1 - 2 * k / _SHELL, np.pi * (3 - np.sqrt(5)) * k
        directions = np.stack([np.sqrt(1 - z * z) * np.cos(angle), np.sqrt(1 - z * z) * np.sin(angle), z], -1)
        sh = np.zeros((_SHELL, gaussians.sh.shape[1], 3), np.float32)
        sh[:, 0] = (self.toward(directions) - 0.5) / SH_C0
        size = _WIDTH * np.sqrt(4 * np.pi / _SHELL)
        shell = Gaussians(
            torch.from_numpy((middle + _RADIUS * extent * directions).astype(np.float32)),
            torch.tensor([[1.0, 0, 0, 0]]).repeat(_SHELL, 1),
            torch.full((_SHELL, 3), float(np.log(size * _RADIUS * extent))),
            torch.full((_SHELL,), 7.0),
            torch.from_numpy(sh),
            antialiased=gaussians.antialiased,
        )
        return merge([gaussians, shell.to(gaussians.means.device)])


def require_pinhole(camera: Camera, needed_by: str = "environment") -> None:
    """Raise SplatError unless the camera is a pinhole without lens distortion."""
    if camera.distortion is not None or camera.model not in (None, "pinhole"):
        raise SplatError(f"{camera.name or 'a view'} has no pinhole camera, which {needed_by} needs; add undistort")
