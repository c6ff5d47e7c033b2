"""Cameras of pages: what viser says of them, checked, and moving them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.scene.camera import Camera
from splat_py.scene.keyframes import camera_at

if TYPE_CHECKING:
    import viser

# A page's frame has so many pixels at most, and sides of so many.
_MOST_PIXELS, _MOST_SIDE = 1 << 21, 4096
_FIELD_OF_VIEW = math.radians(1), math.radians(170)


def camera_of(handle: Any) -> Camera | None:
    """The camera of a page, at its window's size or what is the most of it; None if what the page says makes no sense."""
    try:
        wxyz = np.asarray(handle.wxyz, dtype=np.float64).reshape(4)
        position = np.asarray(handle.position, dtype=np.float64).reshape(3)
        fov, width, height = float(handle.fov), int(handle.image_width), int(handle.image_height)
        norm = float(np.linalg.norm(wxyz))
        if not (_FIELD_OF_VIEW[0] <= fov <= _FIELD_OF_VIEW[1] and 1e-6 < norm < math.inf):
            return None
        if width < 1 or height < 1:
            return None
        factor = min(1.0, _MOST_SIDE / max(width, height), math.sqrt(_MOST_PIXELS / (width * height)))
        size = max(1, round(width * factor)), max(1, round(height * factor))
        return camera_at(position, rotation_of(wxyz / norm), math.degrees(fov), size, "page")
    except (SplatError, TypeError, ValueError, ArithmeticError, AssertionError, AttributeError):
        return None


def rotation_of(wxyz: NDArray[np.float64]) -> NDArray[np.float64]:
    """The matrix [3, 3] of a quaternion."""
    from scipy.spatial.transform import Rotation

    return Rotation.from_quat(np.roll(wxyz, -1)).as_matrix()


def quaternion_of(rotation: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """(w, x, y, z) of a matrix [3, 3]."""
    from scipy.spatial.transform import Rotation

    x, y, z, w = map(float, Rotation.from_matrix(rotation).as_quat())
    return w, x, y, z


def same_view(one: Camera, other: Camera) -> bool:
    """Whether two cameras see the same."""
    sizes = (one.width, one.height) == (other.width, other.height)
    return sizes and np.array_equal(one.viewmat, other.viewmat) and np.array_equal(one.K, other.K)


def axis_of(camera: Camera, up: NDArray[np.float64]) -> NDArray[np.float64]:
    """The axis [3] that a page at a camera turns around: as upright as the camera's roll allows, or the horizon would tilt."""
    right, own = camera.viewmat[0, :3], -camera.viewmat[1, :3]
    axis: NDArray[np.float64] = up - (up @ right) * right
    return axis / np.linalg.norm(axis) if axis @ own > 0.05 else own


def aim(client: viser.ClientHandle, camera: Camera, distance: float, up: NDArray[np.float64]) -> None:
    """Move a page's camera to where `camera` is, so that all of its picture is seen, to turn around what is at `distance`, with
    `up` [3] upwards where the camera is held level."""
    page = client.camera
    fov_x, fov_y = (2 * math.atan(0.5 * side / camera.K[i, i]) for i, side in enumerate((camera.width, camera.height)))
    aspect = page.aspect if page.image_height else 1.0
    # Where the window is narrower than the picture, its width decides.
    fov = max(fov_y, 2 * math.atan(math.tan(fov_x / 2) / max(aspect, 1e-3)))
    with client.atomic():
        page.position = camera.position
        page.look_at = camera.position + distance * camera.forward
        page.up_direction = axis_of(camera, up)
        page.fov = fov
