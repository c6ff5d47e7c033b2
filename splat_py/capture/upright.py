"""Which way is up in a scene, from how its photographs were held."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from splat_py.scene.camera import Camera, mean_up


def upright_rotation(viewmats: NDArray[np.float64]) -> NDArray[np.float64]:
    """The smallest rotation [3, 3] of the world that makes its up direction +z.

    Args:
        viewmats: world → camera [C, 3, 4], OpenCV axes, of upright photographs.
    """
    cameras = [Camera(np.vstack([viewmat, (0, 0, 0, 1)]), np.diag([1.0, 1, 1]), 1, 1, "") for viewmat in viewmats]
    up = mean_up(cameras)
    target = np.array([0.0, 0.0, 1.0])
    axis, cosine = np.cross(up, target), float(up @ target)
    if cosine < -1 + 1e-9:
        return np.diag([1.0, -1.0, -1.0])
    cross = np.array([[0, -axis[2], axis[1]], [axis[2], 0, -axis[0]], [-axis[1], axis[0], 0]])
    return np.eye(3) + cross + cross @ cross / (1 + cosine)
