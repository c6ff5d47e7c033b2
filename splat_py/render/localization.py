"""The pose from which a photograph of a scene was taken: damped Gauss–Newton steps on a camera's pose, from coarse to fine
(Levenberg 1944, Marquardt 1963). A pose has six numbers, and one pass computes the forward derivatives of all pixels by all."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import gaussian_filter
from scipy.special import huber
from torch.func import jvp, vmap

from splat_py.base.arguments import as_integer, as_numpy, instances, require_instance
from splat_py.base.errors import SplatError
from splat_py.render.views import BLACK, render, render_tensor
from splat_py.scene.camera import Camera
from splat_py.scene.environment import Environment
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.pictures import shrunk

Floats = NDArray[np.floating[Any]]

# Longer sides of the pictures to compare, in pixels, and the deviations of the filters that blur their differences.
_LEVELS = (64, 6.0), (64, 2.0), (256, 2.0), (256, 0.0), (1024, 0.0)
# Longer side of the renders by which starts are chosen, and how many are tried.
_THUMBNAIL, _STARTS = 32, 3
# Differences beyond this many robust deviations count linearly (Huber 1964), and normal ones' deviation by their median.
_HUBER, _NORMAL = 1.5, 1.4826
# Gains and offsets that change nothing; and weights of a photograph's own, which are expected to deviate by 0.3 and 0.1, where
# colours differ by 0.05.
_NEUTRAL, _PRIOR = np.repeat([[1.0], [0.0]], 3, 1), 0.05 / np.repeat([0.3, 0.1], 3)
# Damping at a level's beginning, and its factors after a step that is taken and one that is not.
_DAMPING, _EASE, _TIGHTEN = 1e-3, 0.2, 10.0
# A level ends after so many renders, or before a step that would lower the sum of squares by so small a share. The sum counts
# as at least that of differences of two eight-bit steps.
_MOST_RENDERS, _SMALL_GAIN, _LEAST_DIFFERENCE = 6, 1e-4, 2 / 255


@dataclass(frozen=True, eq=False)
class Localization:
    """The result of `localize`."""

    camera: Camera
    # [2, 3] gains and offsets from the scene's red, green and blue to the photograph's.
    exposure: Floats
    # Root mean square of the differences that are left, of colours from 0 to 1, over the pixels that count.
    residual: float
    # [6, 6] of a rotation vector, radians, and a translation, world units, in the camera's frame; with `focal` [7, 7], also of
    # the logarithm of the focal lengths. That of independent pixels' errors, so neither an average over scenes nor a bound.
    covariance: Floats
    # Renders with derivatives.
    steps: int

    @property
    def degrees(self) -> float:
        """Standard deviation of the camera's rotation."""
        return float(np.degrees(np.sqrt(self.covariance.diagonal()[:3].sum())))

    @property
    def distance(self) -> float:
        """Standard deviation of the camera's place, world units."""
        return float(np.sqrt(self.covariance.diagonal()[3:6].sum()))


def localize(
    gaussians: Gaussians,
    photograph: ArrayLike,
    camera: Camera | Sequence[Camera],
    background: ArrayLike | Environment = BLACK,
    *,
    focal: bool = False,
    exposure: bool = True,
    steps: int = 24,
    **how: Any,
) -> Localization:
    """Find the pose in which a camera takes a photograph of the scene, from one that is a few degrees off.

    Photograph and renders are compared at 64 pixels, at first with blurred differences, and then at up to 256 and 1024.

    Args:
        photograph: [H, W, 3] or, with weights of pixels, [H, W, 4]; uint8, or float from 0 to 1.
        camera: where to start; its lens and size are the photograph's. Of several cameras, those three are tried whose renders
            are most like the photograph, and the result with the least residual is returned.
        focal: also find a factor of both focal lengths.
        exposure: also find a gain and an offset of each channel; False if photograph and scene have the same colours.
        steps: the most renders with derivatives.
        how: `antialiased`, `near` and `device` of `render`.

    Raises:
        SplatError: the photograph has another size than the camera, no pixel counts, the camera sees nothing of the scene, or
            `steps` is below 1.
    """
    require_instance(Gaussians, gaussians=gaussians)
    steps = as_integer("steps", steps, 1)
    if not isinstance(camera, Camera):
        starts = _most_similar(gaussians, photograph, instances(Camera, "camera", camera), background, how)
        options: dict[str, Any] = {"focal": focal, "exposure": exposure, "steps": steps, **how}
        return min((localize(gaussians, photograph, each, background, **options) for each in starts), key=lambda r: r.residual)
    pixels = as_numpy("photograph", photograph)
    if pixels.shape not in ((camera.height, camera.width, 3), (camera.height, camera.width, 4)):
        size = f"[{camera.height}, {camera.width}, 3 or 4]"
        raise SplatError(f"photograph has shape {list(pixels.shape)}; the camera's size needs {size}")
    pixels = pixels.astype(np.float32) / (255 if pixels.dtype == np.uint8 else 1)
    if pixels.shape[2] == 3:
        pixels = np.concatenate([pixels, np.ones_like(pixels[..., :1])], 2)
    if not np.isfinite(pixels).all():
        raise SplatError("photograph holds NaN or infinity; pass colours from 0 to 1")
    if not pixels[..., 3].any():
        raise SplatError("photograph has no pixel that counts; correct its weights")

    weighted = np.concatenate([pixels[..., :3] * pixels[..., 3:], pixels[..., 3:]], 2)
    scene = _Scene(gaussians, background, bool(focal), bool(exposure), how)
    state, taken, side = _State(camera, _NEUTRAL), 0, max(camera.width, camera.height)
    level: _Level | None = None
    for longest, blur in dict.fromkeys((min(size, side), blur) for size, blur in _LEVELS):
        if taken < steps:
            level = _Level(scene, shrunk(weighted, longest), blur, state, level)
            level.improve(min(steps - taken, _MOST_RENDERS))
            state, taken = level.state, taken + level.taken
    assert level is not None
    return Localization(state.camera, state.exposure, *level.quality(), taken)


def _most_similar(
    gaussians: Gaussians, photograph: ArrayLike, cameras: Sequence[Camera], background: ArrayLike | Environment, how: Any
) -> list[Camera]:
    """Return the three cameras whose small renders correlate most with the photograph; SplatError if there is none."""
    if not cameras:
        raise SplatError("camera holds no camera; pass one or several to start from")
    pixels = as_numpy("photograph", photograph, np.float32)[..., :3]

    def unlike(camera: Camera) -> float:
        image = render(gaussians, camera.scaled(min(1.0, _THUMBNAIL / max(camera.width, camera.height))), background, **how)
        small = cv2.resize(pixels, image.shape[1::-1], interpolation=cv2.INTER_AREA)
        x, y = (each - each.mean((0, 1)) for each in (image, small))
        return -float((x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum() + 1e-12))

    return sorted(cameras, key=unlike)[:_STARTS]


@dataclass(frozen=True, eq=False)
class _State:
    """A candidate: a camera, and an exposure [2, 3]."""

    camera: Camera
    exposure: Floats

    def moved(self, step: Floats, scene: "_Scene") -> "_State":
        """Take a step of a rotation, a translation, the focal lengths' logarithm if it is learnt, and the exposure if it is."""
        K = self.camera.K.copy()
        K[(0, 1), (0, 1)] *= np.exp(step[6]) if scene.focal else 1.0
        change = step[-6:].reshape(2, 3) if scene.exposure else 0.0
        return _State(replace(self.camera.moved(step[:3], step[3:6]), K=K), self.exposure + change)


@dataclass(frozen=True, eq=False)
class _Scene:
    """The scene to render, and the numbers by which renders are differentiated."""

    gaussians: Gaussians
    background: ArrayLike | Environment
    focal: bool
    exposure: bool
    how: dict[str, Any]

    @torch.no_grad()
    def render(self, camera: Camera, size: tuple[int, int]) -> tuple[Floats, Floats]:
        """Return a picture [h, w, 3], and its derivatives [6 or 7, h, w, 3] by the camera's numbers. Smaller pictures than the
        camera's are antialiased, as photographs are."""
        height, width = size
        small = camera.resized(width, height)
        how = self.how | ({"antialiased": True} if width < camera.width else {})
        V, K = (torch.tensor(m, dtype=torch.float32) for m in (small.viewmat, small.K))
        v_V = torch.zeros(6 + self.focal, 4, 4)
        for k in range(3):
            v_V[k, :3] = torch.linalg.cross(torch.eye(3)[k].expand(4, 3), V[:3].T).T
            v_V[3 + k, k, 3] = 1
        v_K = torch.zeros(6 + self.focal, 3, 3)
        v_K[6:, (0, 1), (0, 1)] = K.diagonal()[:2]

        def draw(viewmat: torch.Tensor, K: torch.Tensor) -> torch.Tensor:
            return render_tensor(self.gaussians, small, self.background, viewmat=viewmat, K=K, **how)

        def along(v_V: torch.Tensor, v_K: torch.Tensor) -> Any:
            return jvp(draw, (V, K), (v_V, v_K))

        image, columns = vmap(along, out_dims=(None, 0))(v_V, v_K)  # type: ignore[arg-type]
        return image.cpu().double().numpy(), columns.cpu().double().numpy()


class _Level:
    """A photograph [h, w, 4], weights and colours multiplied by them, beside renders of its size; their differences are blurred
    by a Gaussian of deviation `blur`, pixels."""

    def __init__(
        self, scene: _Scene, photograph: NDArray[np.float32], blur: float, state: _State, last: "_Level | None"
    ) -> None:
        self._scene, self._blur, self.state, self.taken = scene, blur, state, 0
        self._colors, self._weights = np.split(photograph.astype(np.float64), [3], 2)
        # The picture [h, w, 3] of the state, and its derivatives.
        self._image: Floats
        self._columns: Floats
        if last is not None and last._colors.shape == self._colors.shape:
            self._image, self._columns = last._image, last._columns
        else:
            self._image, self._columns = self._render(state)

    def improve(self, steps: int) -> None:
        """Take steps until they gain little, at most so many."""
        damping, residuals = _DAMPING, self._residuals(self.state, self._image)
        scale = _HUBER * max(_NORMAL * float(np.median(np.abs(residuals))), 1e-4)
        least = 0.5 * 3 * self._weights.sum() * _LEAST_DIFFERENCE**2
        while self.taken < steps:
            matrix = self._matrix()
            weighted = matrix * np.minimum(1, scale / np.maximum(np.abs(residuals), 1e-12))[:, None]
            normal = weighted.T @ matrix
            if not normal.diagonal().all():
                raise SplatError("the camera sees nothing of the scene; start from a place nearer to the photograph's")
            downhill = -weighted.T @ residuals
            step = np.linalg.solve(normal + damping * np.diag(normal.diagonal()), downhill)
            before = float(huber(scale, residuals).sum())
            if 0.5 * downhill @ step < _SMALL_GAIN * max(before, least):
                break
            moved = self.state.moved(step, self._scene)
            image, columns = self._render(moved)
            after = self._residuals(moved, image)
            if huber(scale, after).sum() >= before:
                damping *= _TIGHTEN
                continue
            self.state, self._image, self._columns, residuals = moved, image, columns, after
            damping *= _EASE

    def quality(self) -> tuple[float, Floats]:
        """Return the root mean square of the differences, and the covariance of the camera's numbers."""
        variance = float((self._residuals(self.state, self._image) ** 2).sum() / (3 * self._weights.sum()))
        matrix = self._matrix()
        cameras = 6 + self._scene.focal
        return variance**0.5, variance * np.linalg.pinv(matrix.T @ matrix)[:cameras, :cameras]

    def _render(self, state: _State) -> tuple[Floats, Floats]:
        self.taken += 1
        return self._scene.render(state.camera, self._colors.shape[:2])

    def _residuals(self, state: _State, image: Floats) -> Floats:
        """Return the differences, and how unusual the exposure is, as numbers of equal deviations."""
        gain, offset = state.exposure
        differences = self._blurred((image * gain + offset) * self._weights - self._colors).ravel()
        prior = (state.exposure - _NEUTRAL).ravel() * _PRIOR
        return np.concatenate([differences, prior]) if self._scene.exposure else differences

    def _matrix(self) -> Floats:
        """Return the derivatives of `_residuals` [rows, numbers] by what is to be found."""
        columns = self._columns * self.state.exposure[0]
        if self._scene.exposure:
            of_each = np.eye(3)[:, None, None]
            columns = np.concatenate([columns, of_each * self._image, of_each * np.ones_like(self._image)])
        matrix = self._blurred(columns * self._weights).reshape(len(columns), -1).T
        prior = np.eye(6, len(columns), len(columns) - 6) * _PRIOR[:, None]
        return np.concatenate([matrix, prior]) if self._scene.exposure else matrix

    def _blurred(self, pictures: Floats) -> Floats:
        sigmas = (*(0,) * (pictures.ndim - 3), self._blur, self._blur, 0)
        return gaussian_filter(pictures, sigmas, mode="nearest") if self._blur else pictures
