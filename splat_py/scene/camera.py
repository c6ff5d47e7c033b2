"""Cameras, and the extent, focus, up direction and subject of several cameras."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation

from splat_py.base.arguments import finite_array
from splat_py.base.errors import SplatError
from splat_py.base.fields import require_number, shown
from splat_py.base.html import table

if TYPE_CHECKING:
    from splat_py.gpu.kernels import UserType

Float64Array = NDArray[np.float64]

# Tolerance for orthonormal rows of a rotation: poses with four decimals pass, a scaled or sheared matrix does not.
_ORTHONORMAL_TOLERANCE = 1e-3
# `find_subject`: the standard deviation of the weight in a picture, as a share of its sides, and the most points it uses.
_CENTRAL, _MOST_POINTS = 0.15, 50_000
# Limit of a camera's distance from the origin and of lengths in pixels: map coordinates pass, overflowed numbers do not.
MOST_DISTANCE = 1e9
# Numbers of a user's model (`coefficient` in slang/splat/camera_model.slang).
_MOST_PARAMS = 12
# Pixels; a shorter focal length becomes 0 or its square does, in float32.
_LEAST_FOCAL = 1e-9


@dataclass(frozen=True)
class Distortion:
    """The distortion of a lens in OpenCV's formulas (docs.opencv.org, calib3d)."""

    coefficients: tuple[float, ...]  # (k1, k2, p1, p2, k3), (k1, k2, p1, p2, k3, k4, k5, k6), or (k1, k2, k3, k4) if fisheye
    # True if the coefficients distort the angle from the axis instead of its tangent (Kannala and Brandt 2006).
    fisheye: bool = False

    def __post_init__(self) -> None:
        counts = (4,) if self.fisheye else (5, 8)
        if len(self.coefficients) not in counts or not all(map(math.isfinite, self.coefficients)):
            expected = " or ".join(map(str, counts))
            raise SplatError(f"distortion has coefficients {self.coefficients}; pass {expected} finite numbers")

    @property
    def radial(self) -> tuple[float, ...]:
        """(k1, …, k6), padded with zeros."""
        k = self.coefficients
        k = k if self.fisheye else (*k[:2], *k[4:])
        return (*k, *[0.0] * (6 - len(k)))

    @property
    def tangential(self) -> tuple[float, ...]:
        return (0.0, 0.0) if self.fisheye else self.coefficients[2:4]


@dataclass(frozen=True, eq=False)
class Camera:
    """A pinhole camera with a pose and optional lens distortion.

    Attributes:
        viewmat: [4, 4] float64, world → camera, a rotation and a translation in the dataset's units; OpenCV
            axes: +x right, +y down, +z forward.
        K: [3, 3] float64, [[fx, 0, cx], [0, fy, cy], [0, 0, 1]] in pixels, the first pixel's centre at 0.5.
        width, height: the picture's sides in pixels.
        name: the view's name in files and messages.
        distortion: the lens distortion; None for a pinhole.
        model: the camera model, as in `rasterization`; None derives it from the lens.
        params: up to 12 numbers for a model of your own, in the place of the lens's coefficients.

    SplatError for a wrong shape, a number that is not finite, a pose that is not rigid, or a focal length or side not above 0.
    """

    viewmat: Float64Array
    K: Float64Array
    width: int
    height: int
    name: str = ""
    distortion: Distortion | None = None
    model: "str | UserType | None" = None
    params: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        label = f"camera {self.name!r}" if self.name else "camera"
        for field, shape in (("viewmat", (4, 4)), ("K", (3, 3))):
            matrix = finite_array(f"{label}: {field}", getattr(self, field), shape)
            matrix.flags.writeable = False
            object.__setattr__(self, field, matrix)
        most = np.abs(self.viewmat).max()
        if most > MOST_DISTANCE:
            raise SplatError(f"{label}: viewmat holds {most:g}; rescale the scene to numbers below {MOST_DISTANCE:g}")
        if not np.array_equal(self.viewmat[3], (0, 0, 0, 1)):
            raise SplatError(f"{label}: the last row of viewmat must be 0 0 0 1, not {self.viewmat[3]}")
        rotation = self.viewmat[:3, :3]
        if np.linalg.matrix_rank(rotation) < 3:
            raise SplatError(f"{label}: viewmat is singular; pass a world → camera rotation and translation")
        if np.abs(rotation @ rotation.T - np.eye(3)).max() > _ORTHONORMAL_TOLERANCE or np.linalg.det(rotation) < 0:
            raise SplatError(f"{label}: viewmat's rotation is scaled, sheared or mirrored; pass a rigid pose")
        fx, fy, cx, cy = self.K[0, 0], self.K[1, 1], self.K[0, 2], self.K[1, 2]
        if not np.array_equal(self.K, [[fx, 0, cx], [0, fy, cy], [0, 0, 1]]):
            raise SplatError(f"{label}: K must read [[fx, 0, cx], [0, fy, cy], [0, 0, 1]] (no skew)")
        if not min(fx, fy) >= _LEAST_FOCAL:
            raise SplatError(f"{label}: the focal lengths in K are {fx:g} and {fy:g}; they must be {_LEAST_FOCAL:g} or more")
        for field, pixels in (("focal length", max(fx, fy)), ("principal point", max(abs(cx), abs(cy)))):
            if pixels > MOST_DISTANCE:
                raise SplatError(f"{label}: the {field} in K is {pixels:g} pixels; calibrate the camera again")
        for field in ("width", "height"):
            side = getattr(self, field)
            require_number(**{f"{label}: {field}": side})
            if not 1 <= side <= MOST_DISTANCE or int(side) != side:
                raise SplatError(f"{label}: {field} is {side}; it must be a whole number from 1")
            object.__setattr__(self, field, int(side))
        if len(self.params) > _MOST_PARAMS or not all(map(math.isfinite, self.params)):
            raise SplatError(f"{label}: params are {shown(self.params)}; pass at most {_MOST_PARAMS} finite numbers")

    def _repr_html_(self) -> str:
        model = self.model
        own = None if isinstance(model, str | None) else f"{model.name} {self.coefficients}"
        rows = {
            "size": f"{self.width}×{self.height}",
            "focal lengths": f"{self.K[0, 0]:.5g}, {self.K[1, 1]:.5g} pixels",
            "principal point": f"{self.K[0, 2]:.5g}, {self.K[1, 2]:.5g}",
            "position": np.array2string(self.position, precision=4),
            "forward": np.array2string(self.forward, precision=4),
            "lens": own or self.distortion or model or "pinhole",
        }
        return table(f"Camera {self.name}", rows)

    @property
    def position(self) -> Float64Array:
        """The camera's centre in the world, [3]."""
        return -self.viewmat[:3, :3].T @ self.viewmat[:3, 3]

    @property
    def coefficients(self) -> tuple[float, ...]:
        """The numbers that the model gets: the lens's (k1, …, k6, p1, p2) or none; `params` if they belong to the model."""
        if self.params and not isinstance(self.model, str | None):
            return self.params
        return () if self.distortion is None else (*self.distortion.radial, *self.distortion.tangential)

    @property
    def forward(self) -> Float64Array:
        return self.viewmat[2, :3]

    @classmethod
    def look_at(
        cls, eye: ArrayLike, target: ArrayLike, up: ArrayLike, fov_y_degrees: float, width: int, height: int, name: str = ""
    ) -> "Camera":
        """A camera at `eye` [3] with `target` [3] in the middle of its picture, `up` [3] upwards in it, and square pixels.
        `fov_y_degrees` is the angle between the picture's upper and lower edge, between 0 and 180."""
        viewmat = look_at_matrix(*(finite_array(name, v, (3,)) for name, v in (("eye", eye), ("target", target), ("up", up))))
        return cls(viewmat, _intrinsics(fov_y_degrees, width, height), width, height, name)

    @classmethod
    def posed(
        cls, position: Float64Array, turn: Float64Array, fov_y_degrees: float, width: int, height: int, name: str = ""
    ) -> "Camera":
        """A pinhole camera at `position` [3] with its axes in the columns of `turn` [3, 3], camera → world."""
        position, turn = finite_array("position", position, (3,)), finite_array("turn", turn, (3, 3))
        return cls(affine(turn.T, -turn.T @ position), _intrinsics(fov_y_degrees, width, height), width, height, name)

    def resized(self, width: int, height: int) -> "Camera":
        """The same view on `width` × `height` pixels: K scales by the exact ratio of the sides."""
        require_number(width=width, height=height)
        K = self.K * np.array([[width / self.width], [height / self.height], [1.0]])
        return replace(self, K=K, width=width, height=height)

    def moved(self, rotation: ArrayLike, translation: ArrayLike) -> "Camera":
        """The camera with its view turned by a rotation vector [3], radians, and then moved by a translation [3], world units,
        both in the camera's frame."""
        turn, shift = finite_array("rotation", rotation, (3,)), finite_array("translation", translation, (3,))
        return replace(self, viewmat=affine(Rotation.from_rotvec(turn).as_matrix(), shift) @ self.viewmat)

    def scaled(self, factor: float) -> "Camera":
        """The same view with its sides multiplied by `factor` > 0 and rounded to whole pixels, at least one."""
        require_number(factor=factor)
        if not factor > 0:
            raise SplatError(f"a camera cannot be scaled by {factor}; pass a factor above 0")
        return self.resized(max(1, round(self.width * factor)), max(1, round(self.height * factor)))


def film_camera(camera: Camera, scale: float | None) -> Camera:
    """A camera for a video: sides times `scale`, or at least 480 rows if it is None; even sides, as encoders need."""
    scaled = camera.scaled(max(1.0, 480 / camera.height) if scale is None else scale)
    return camera.resized(*(max(2, side + side % 2) for side in (scaled.width, scaled.height)))


def _intrinsics(fov_y_degrees: float, width: int, height: int) -> Float64Array:
    require_number(fov_y_degrees=fov_y_degrees, width=width, height=height)
    if not 0 < fov_y_degrees < 180:
        raise SplatError(f"fov_y_degrees is {fov_y_degrees}; it must lie between 0 and 180")
    focal = 0.5 * height / math.tan(math.radians(fov_y_degrees) / 2)
    return np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])


def look_at_matrix(eye: Float64Array, target: Float64Array, up: Float64Array) -> Float64Array:
    """The world → camera matrix [4, 4] of a camera at `eye` that faces `target`."""
    forward = target - eye
    right = np.cross(forward, up)
    if not np.linalg.norm(right) > 1e-9 * np.linalg.norm(forward) * np.linalg.norm(up):
        raise SplatError("look_at needs a target away from the eye and an up direction not along the view; change one")
    forward /= np.linalg.norm(forward)
    right /= np.linalg.norm(right)
    rotation = np.stack([right, np.cross(forward, right), forward])
    return affine(rotation, -rotation @ eye)


def affine(linear: ArrayLike, translation: ArrayLike) -> Float64Array:
    """The matrix [4, 4] of x' = linear · x + translation."""
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = linear, translation
    return matrix


def camera_extent(cameras: Sequence[Camera]) -> float:
    """1.1 × the largest distance of a camera from their mean (Inria's scene scale), 0 if all coincide."""
    positions = np.stack([camera.position for camera in cameras])
    mean = positions.mean(0)
    distance = float(np.linalg.norm(positions - mean, axis=1).max())
    # Smaller differences are rounding of the poses, not camera movement.
    return 1.1 * distance if distance > 1e-6 * max(1.0, float(np.abs(mean).max())) else 0.0


def find_focus(cameras: Sequence[Camera]) -> tuple[Float64Array, bool]:
    """The point [3] that the cameras look at, and true if their viewing axes pass close to one point.

    The point minimises the summed squared distances to the axes: Σ (I − d dᵀ)(x − o) = 0. If the axes are nearly parallel or
    the point is not in front of the cameras (a room seen from its middle), return a point ahead of the mean camera and False:
    four camera extents away, or closer the more the directions differ.
    """
    positions = np.stack([camera.position for camera in cameras])
    forwards = np.stack([camera.forward for camera in cameras])
    extent = camera_extent(cameras) or 1.0
    across = np.eye(3) - forwards[:, :, None] * forwards[:, None, :]  # [C, 3, 3]
    normal = across.mean(0)
    # The smallest eigenvalue is the mean squared sine of the angles to the common axis; 0.01 means about six degrees.
    if np.linalg.eigvalsh(normal)[0] > 0.01:
        focus = np.linalg.solve(normal, (across @ positions[:, :, None]).mean(0)[:, 0])
        depths = ((focus - positions) * forwards).sum(1)
        if np.median(depths) > 0.1 * extent and (depths > 0).mean() > 0.8:
            return focus, True
    return positions.mean(0) + 4 * extent * forwards.mean(0), False


def mean_up(cameras: Sequence[Camera]) -> Float64Array:
    """The captured scene's up direction, unit [3].

    People hold cameras level: the pictures' x axes lie in the ground plane, which fixes up even if every camera looks down.
    The mean of the cameras' up directions chooses the sign, and decides alone if all x axes agree.
    """
    right = np.stack([camera.viewmat[0, :3] for camera in cameras])
    own = -np.stack([camera.viewmat[1, :3] for camera in cameras]).mean(0)
    norm = np.linalg.norm(own)
    if norm < 1e-6:
        return -cameras[0].viewmat[1, :3]
    own /= norm
    tilt = right.T @ right / len(cameras) + 0.01 * (np.eye(3) - np.outer(own, own))
    up = np.linalg.eigh(tilt)[1][:, 0]
    return up if up @ own >= 0 else -up


def best_covered(cameras: Sequence[Camera], points: ArrayLike) -> Camera:
    """The camera with the most points [P, 3] around the middle of its picture, each counted as often as others show it there: a
    first view of the scene. What only one camera shows is least likely to be right."""
    world = np.asarray(points, dtype=np.float64)
    world = world[:: max(1, len(world) // _MOST_POINTS)]
    central = np.stack([_centrality(camera, world)[0].astype(np.float32) for camera in cameras])
    return cameras[int(np.argmax(central @ central.sum(0)))]


def _centrality(camera: Camera, world: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Weights [P] of points, a normal distribution around the middle of a camera's picture and 0 behind it; and depths [P]."""
    x, y, depth = camera.K @ (camera.viewmat[:3, :3] @ world.T + camera.viewmat[:3, 3:])
    safe = np.where(depth > 1e-9, depth, 1.0)
    off = np.hypot(x / safe / camera.width - 0.5, y / safe / camera.height - 0.5)
    return np.where(depth > 1e-9, np.exp(-0.5 * (off / _CENTRAL) ** 2), 0.0), depth


def directions_through(camera: Camera, u: NDArray, v: NDArray) -> Float64Array:
    """The world directions [..., 3], of depth 1, of the rays through pixels u [...] and v [...]. The lens is ignored."""
    return np.stack([u + 0.5, v + 0.5, np.ones(u.shape)], -1) @ np.linalg.inv(camera.K).T @ camera.viewmat[:3, :3]


def subject_sphere(cameras: Sequence[Camera]) -> tuple[Float64Array, float]:
    """The centre [3] and radius of the sphere around `find_focus` that just fits between the farther sides of pictures, for a
    quarter of the cameras: others come close to parts. Lens distortion is ignored. SplatError if the cameras do not look at a
    common point."""
    focus, common = find_focus(cameras)
    if not common:
        raise SplatError("the cameras look at no common subject; say where it is with --crop or --crop-sphere")
    radii = []
    for camera in cameras:
        half = max(camera.width / camera.K[0, 0], camera.height / camera.K[1, 1]) / 2
        wide = camera.distortion is not None and camera.distortion.fisheye
        radii.append(math.dist(camera.position, focus) * math.sin(min(half if wide else math.atan(half), math.pi / 2)))
    return focus, float(np.quantile(radii, 0.75))


def seen_by(camera: Camera, points: Float64Array, radii: Float64Array) -> tuple[Float64Array, NDArray[np.bool_]]:
    """Depths [P] of points [P, 3], and true [P] where balls of `radii` [P] reach into the picture, or for the sake of its lens
    into 15 % of its sides beyond. A camera that is no pinhole counts as seeing everything, and its depths are distances."""
    local = points @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]
    x, y, depths = local.T
    if camera.model not in (None, "pinhole") or (camera.distortion is not None and camera.distortion.fisheye):
        return np.linalg.norm(local, axis=1), np.ones(len(points), bool)
    safe = np.where(depths > 0, depths, np.inf)
    inside = depths > 0
    for along, focal, principal, side in (
        (x, camera.K[0, 0], camera.K[0, 2], camera.width),
        (y, camera.K[1, 1], camera.K[1, 2], camera.height),
    ):
        off = np.abs(focal * along / safe + principal - side / 2)
        inside &= off < 0.65 * side + focal * radii / safe
    return depths, inside


def find_subject(cameras: Sequence[Camera], points: ArrayLike) -> Float64Array | None:
    """The weighted mean [3] of the points [P, 3] in the middle of the cameras' pictures, or None if there are no such points.

    People aim by eye, so viewing axes often cross behind the subject, on a wall, or beside it. A point's weight is squared
    after summing over all cameras a normal distribution around the picture's middle times (median depth / depth)⁴: a subject
    stands in front of its background.
    """
    world = np.asarray(points, dtype=np.float64)
    world = world[:: max(1, len(world) // _MOST_POINTS)]
    weights = np.zeros(len(world))
    for camera in cameras:
        central, depth = _centrality(camera, world)
        ahead = depth > 1e-9
        if ahead.any():
            weights[ahead] += np.minimum(np.median(depth[ahead]) / depth[ahead], 3) ** 4 * central[ahead]
    weights **= 2
    return np.average(world, axis=0, weights=weights) if weights.sum() > 1e-12 * len(cameras) ** 2 else None
