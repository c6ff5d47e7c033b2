"""Pictures of Gaussians through cameras: `render`, in several modes; depths, normals and blending weights as numbers; and depth
of field, the mean of pictures from many points on a lens."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from splat_py.base.arguments import finite_array, require_instance
from splat_py.base.errors import SplatError
from splat_py.base.fields import shown
from splat_py.gpu.accumulation import Accumulate
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import UserType
from splat_py.render.rasterization import rasterization
from splat_py.render.surfels import depth_to_normal
from splat_py.scene.camera import Camera, directions_through
from splat_py.scene.dataset import NEAR, Dataset
from splat_py.scene.environment import Environment
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.similarity import rotation_matrices
from splat_py.scene.sources import MODES
from splat_py.shaders.declarations import SlangSource

# Pixels with this many contributions are white.
_HOTTEST = 1024
BLACK = (0.0, 0.0, 0.0)
# Points on the lens for depth of field.
_POINTS = 32
# Autofocus: the middle of a picture as a share of its sides, and the size of its depth map in pixels.
_MIDDLE, _SMALL = 0.2, 96
# Standard deviation, in frames, of the filter that smooths a video's focus.
_FOLLOWING = 8.0


@torch.no_grad()
def render(
    gaussians: Gaussians,
    camera: Camera,
    background: ArrayLike | Environment = BLACK,
    *,
    mode: str = "color",
    scene_scale: float = 1.0,
    antialiased: bool = False,
    near: float = NEAR,
    device: Device | str | None = None,
) -> NDArray[np.float32]:
    """Render what a camera sees, through its lens if it has one: a picture [H, W, 3] from 0 to 1.

    Args:
        background: rgb from 0 to 1, or the environment learnt with the scene.
        mode: "color"; "depth", grey as s / (s + depth) with s the `scene_scale`; "normals" as (normal + 1) / 2; "alpha";
            "contributions", how far into its tile's list a pixel was blended (`n_contrib`), by the square root from black
            through red and yellow to white, for 1024 and more. Depth and normals are black in empty pixels.
        antialiased: True if the Gaussians were trained with antialiasing.
        near: depth of the near plane, world units; `Dataset.near` of the Gaussians' capture.
        device: where to render; the default is that of `rasterization`.

    Raises:
        SplatError: the mode is unknown, or the scene carries Slang source that is not trusted.
    """
    require_instance(Gaussians, gaussians=gaussians)
    require_instance(Camera, camera=camera)
    how: dict[str, Any] = {"antialiased": antialiased, "near": near, "device": device}
    if not isinstance(mode, str) or mode not in MODES:
        raise SplatError(f"mode is {shown(mode)}; use {', '.join(MODES)}")
    if mode == "color":
        return render_tensor(gaussians, camera, background, **how).clamp(0, 1).cpu().numpy()
    if mode == "normals":
        normals = render_normals(gaussians, camera, **how)
        return np.where(normals.any(-1, keepdims=True), (normals + 1) / 2, 0).astype(np.float32)
    if mode == "depth":
        depths = render_depth(gaussians, camera, **how)[..., None]
        grey = np.where(depths > 0, scene_scale / (scene_scale + depths), 0)
    else:
        _, alphas, meta = rasterized(gaussians, camera, **how)
        if mode == "contributions":
            return heat((meta["n_contrib"][0].float() / _HOTTEST).sqrt().cpu().numpy())
        grey = alphas.clamp(0, 1).cpu().numpy()
    return np.repeat(grey, 3, axis=2).astype(np.float32)


def heat(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Colours [H, W, 3] of values [H, W] from 0, black, through red and yellow to 1, white."""
    return np.clip(3 * values[..., None] - np.arange(3, dtype=np.float32), 0, 1)


def render_tensor(
    gaussians: Gaussians,
    camera: Camera,
    background: ArrayLike | Environment = BLACK,
    *,
    viewmat: torch.Tensor | None = None,
    K: torch.Tensor | None = None,
    **how: Any,
) -> torch.Tensor:
    """Render colours [H, W, 3] without limiting them to 1. Differentiable in `viewmat` [4, 4] and `K` [3, 3], by default the
    camera's.

    Other arguments and errors are those of `render`.
    """
    behind = BLACK if isinstance(background, Environment) else background
    image, alphas, _ = rasterized(gaussians, camera, behind, viewmat=viewmat, K=K, **how)
    if isinstance(background, Environment):
        return image + (1 - alphas) * torch.from_numpy(background.colors(camera)).to(image.device)
    return image


@torch.no_grad()
def render_depth(gaussians: Gaussians, camera: Camera, **how: Any) -> NDArray[np.float32]:
    """Render expected depths [H, W] in world units, 0 in empty pixels. Other arguments and errors are those of `render`."""
    images, alphas, _ = rasterized(gaussians, camera, render_mode="RGB+ED", **how)
    return torch.where(alphas > 0, images[..., 3:], 0.0)[..., 0].cpu().numpy()


@torch.no_grad()
def render_normals(gaussians: Gaussians, camera: Camera, **how: Any) -> NDArray[np.float32]:
    """Render normals [H, W, 3] of expected depths, in world space, towards the camera (`depth_to_normal`); zero at the edges
    and in empty pixels. The camera's lens is ignored.

    Other arguments and errors are those of `render`.

    Raises:
        SplatError: the camera is not a pinhole camera, even without its lens.
    """
    lens, model = camera.distortion, camera.model
    if model not in (None, "pinhole") or (lens is not None and lens.fisheye):
        raise SplatError(f"{camera.name or 'the camera'} is no pinhole camera, but normals need one; undistort the photographs")
    camera = replace(camera, distortion=None)
    images, alphas, _ = rasterized(gaussians, camera, render_mode="RGB+ED", **how)
    pose, K = (torch.tensor(m, dtype=torch.float32, device=images.device) for m in (np.linalg.inv(camera.viewmat), camera.K))
    normals = depth_to_normal(images[..., 3:], pose, K)
    return torch.where(alphas > 0, normals, 0.0).cpu().numpy()


@torch.no_grad()
def render_surface(gaussians: Gaussians, camera: Camera, **how: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Render the surface where half of a pixel's light ends: its depths [H, W] in world units, infinite where there is none,
    its colours [H, W, 3] from 0 to 1, and the median Gaussians [H, W], -1 where there is none.

    A depth is that of the median Gaussian's largest response along the pixel's ray, not of its mean, so large flat Gaussians
    are planes. The camera's lens and model are ignored. Other arguments and errors are those of `render`.
    """
    camera = replace(camera, distortion=None, model=None)
    images, alphas, meta = rasterized(gaussians, camera, return_medians=True, **how)
    ids = torch.where(alphas[..., 0] > 0.5, meta["median_ids"][0], -1)
    seen = ids >= 0
    medians, rows = ids[seen].unique(return_inverse=True)
    quats, scales, means = (
        part[medians].cpu().double().numpy() for part in (gaussians.quats, gaussians.scales, gaussians.means)
    )
    depths = torch.full_like(alphas[..., 0], torch.inf)
    if len(medians):
        # x → diag(1 / s) Rᵀ x makes Gaussians round, with unit deviation.
        largest = scales.max(-1, keepdims=True)
        whiten = rotation_matrices(quats).transpose(0, 2, 1) / np.maximum(scales, 1e-9 * largest)[:, :, None]
        v, u = np.nonzero(seen.cpu().numpy())
        rays = directions_through(camera, u, v)
        rows = rows.cpu().numpy()
        along = np.einsum("pij,pj->pi", whiten[rows], rays)
        to_means = np.einsum("nij,nj->ni", whiten, means - camera.position)[rows]
        found = (along * to_means).sum(-1) / (along * along).sum(-1)
        # A splat wider in the picture than its Gaussian has pixels whose rays pass it far away.
        at, reach = ((means - camera.position) @ camera.forward)[rows], 3 * largest[rows, 0]
        depths[seen] = torch.from_numpy(found.clip(at - reach, at + reach).astype(np.float32)).to(depths.device)
    return depths, (images / alphas.clamp(min=1e-6)).clamp(0, 1), ids


def blending_weights(gaussians: Gaussians, camera: Camera, counts: torch.Tensor, **how: Any) -> NDArray[np.float32]:
    """Σ α T [N] of each Gaussian over the pixels, weighted by `counts` [H, W]: the gradient of the weighted sum by its signal.

    Other arguments and errors are those of `render`; `accumulate` is that of `rasterization`.
    """
    with torch.enable_grad():
        ones = torch.ones(len(gaussians), 1, device=gaussians.means.device, requires_grad=True)
        _, _, meta = rasterized(gaussians, camera, extra_signals=ones, **how)
        signals = meta["render_extra_signals"][0, ..., 0]
        (signals * counts.to(signals)).sum().backward()
    assert ones.grad is not None
    return ones.grad[:, 0].cpu().numpy()


def rasterized(
    gaussians: Gaussians,
    camera: Camera,
    background: ArrayLike = BLACK,
    *,
    render_mode: Any = "RGB",
    extra_signals: torch.Tensor | None = None,
    viewmat: torch.Tensor | None = None,
    K: torch.Tensor | None = None,
    antialiased: bool = False,
    near: float = NEAR,
    accumulate: Accumulate = "auto",
    return_medians: bool = False,
    device: Device | str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Return an image [H, W, D], alphas [H, W, 1] and `rasterization`'s meta."""
    splat, color = (_compiled(kind) for kind in (gaussians.splat, gaussians.color))
    if color == "SphericalHarmonics":
        colors, weights, degree = gaussians.sh, None, gaussians.sh_degree
    else:
        (colors, weights), degree = _features_of(gaussians), None

    def row(values: ArrayLike) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values, np.float32)[None], device=gaussians.means.device)

    images, alphas, meta = rasterization(
        gaussians.means,
        gaussians.quats,
        gaussians.scales,
        gaussians.opacities,
        colors,
        row(camera.viewmat) if viewmat is None else viewmat[None].to(gaussians.means.device),
        row(camera.K) if K is None else K[None].to(gaussians.means.device),
        camera.width,
        camera.height,
        sh_degree=degree,
        color=color,
        weights=weights,
        extra_signals=extra_signals,
        backgrounds=row(finite_array("background", background, (3,))),
        near_plane=near,
        packed=False,
        render_mode=render_mode,
        accumulate=accumulate,
        rasterize_mode="antialiased" if antialiased else "classic",
        **_lens_of(camera, row),
        splat=splat,
        splat_params=gaussians.params,
        return_medians=return_medians,
        device=device,
    )
    return images[0], alphas[0], meta


def _compiled(kind: str | UserType | SlangSource) -> str | UserType:
    if isinstance(kind, SlangSource):
        raise SplatError(
            f"the scene carries Slang source of its own, {kind.name}, which could read and write any memory; "
            "call its trust_source() if you trust it"
        )
    return kind


def _features_of(gaussians: Gaussians) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the features and weights of Gaussians without spherical harmonics; weights may be None. SplatError if there are no
    features."""
    if gaussians.features is None:
        raise SplatError(f"color is {gaussians.color}, but the scene has no features; give it some, or leave color out")
    weights = gaussians.weights
    return gaussians.features, weights if weights is not None and len(weights) else None


def through(dataset: Dataset, model: str | UserType, params: tuple[float, ...] = ()) -> Dataset:
    """Return the dataset with all cameras set to `model`, with `params` if there are any; "dataset" keeps their own models."""
    if model == "dataset":
        return dataset
    views = [replace(view, camera=with_model(view.camera, model, params)) for view in dataset.views]
    return replace(dataset, views=views, _images=dataset._images)


def with_model(camera: Camera, model: str | UserType, params: tuple[float, ...] = ()) -> Camera:
    """Return the camera with another model; lens coefficients stay if they fit the model, and its params unless others are
    given."""
    lens = camera.distortion
    means = lens is not None and model == ("fisheye" if lens.fisheye else "pinhole")
    lens = lens if means or not isinstance(model, str) else None
    return replace(camera, model=model, distortion=lens, params=params or camera.params)


def _lens_of(camera: Camera, row: Callable[[ArrayLike], torch.Tensor]) -> dict[str, Any]:
    """The camera arguments of `rasterization`."""
    lens, model = camera.distortion, camera.model
    if model is not None and not isinstance(model, str):
        return {"camera_model": model, "camera_params": row(camera.coefficients) if camera.coefficients else None}
    if lens is None:
        return {"camera_model": model or "pinhole"}
    if lens.fisheye:
        return {"camera_model": model or "fisheye", "radial_coeffs": row(lens.radial[:4])}
    coefficients = {"radial_coeffs": row(lens.radial[:6]), "tangential_coeffs": row(lens.tangential)}
    return {"camera_model": model or "pinhole", **coefficients}


@dataclass(frozen=True, eq=False)
class RenderSettings:
    """Settings for drawing a scene in any mode: arguments of `render`. `scene_scale` is the depth shown as middle grey."""

    background: ArrayLike | Environment
    scene_scale: float
    antialiased: bool
    near: float
    device: Device | None = None

    def draw(self, gaussians: Gaussians, camera: Camera, mode: str = "color") -> NDArray[np.float32]:
        """Render a picture [H, W, 3] from 0 to 1 in one of `MODES`."""
        return render(gaussians, camera, self.background, mode=mode, scene_scale=self.scene_scale, **self.how)

    def depths(self, gaussians: Gaussians, camera: Camera) -> NDArray[np.float32]:
        """Render expected depths [H, W] in world units, 0 in empty pixels."""
        return render_depth(gaussians, camera, **self.how)

    @property
    def how(self) -> dict[str, Any]:
        """The settings that functions of pictures take beside the background."""
        return {"antialiased": self.antialiased, "near": self.near, "device": self.device}


def through_lens(
    draw: Callable[[Camera], NDArray[np.float32]], camera: Camera, aperture: float, focus: float
) -> NDArray[np.float32]:
    """Render a picture [H, W, 3] from 0 to 1, sharp only at depth `focus`, with a lens of diameter `aperture`, world units.

    The mean is of light, not of sRGB values (IEC 61966-2-1), which are about its square roots: bright points out of focus stay
    bright discs, as in photographs. An aperture of 0 gives `draw(camera)`.
    """
    if aperture == 0:
        return draw(camera)
    pictures = map(draw, lens_cameras(camera, aperture, focus))
    light = sum(linear(x).astype(np.float32) for x in pictures) / np.float32(_POINTS)
    return np.where(light <= 0.0031308, light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055).astype(np.float32)


def linear(srgb: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the light, 0 to 1, of sRGB values from 0 to 1 (IEC 61966-2-1)."""
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def lens_cameras(camera: Camera, aperture: float, focus: float) -> list[Camera]:
    """Return pinhole cameras at points on a lens of diameter `aperture` around a camera, whose pictures coincide at depth
    `focus`. The points lie on Vogel's spiral (1979), at equal areas."""
    cameras = []
    for i in range(_POINTS):
        radius, angle = 0.5 * aperture * math.sqrt((i + 0.5) / _POINTS), i * math.pi * (3 - math.sqrt(5))
        x, y = radius * math.cos(angle), radius * math.sin(angle)
        viewmat, K = camera.viewmat.copy(), camera.K.copy()
        viewmat[:2, 3] -= x, y
        K[:2, 2] += K[0, 0] * x / focus, K[1, 1] * y / focus
        cameras.append(replace(camera, viewmat=viewmat, K=K, distortion=None))
    return cameras


def focuses(depths: Callable[[Camera], NDArray[np.float32]], cameras: Iterable[Camera], default: float) -> NDArray[np.float64]:
    """Return a focus [N] for each camera of a path: the median depth in the middle of its picture, smoothed along the path;
    `default` if all middles are empty."""
    from scipy.ndimage import gaussian_filter1d

    medians = []
    for camera in cameras:
        small = depths(camera.scaled(min(1.0, _SMALL / max(camera.width, camera.height))))
        rows, columns = (slice(int(n * (0.5 - _MIDDLE / 2)), math.ceil(n * (0.5 + _MIDDLE / 2))) for n in small.shape)
        middle = small[rows, columns]
        medians.append(np.median(middle[middle > 0]) if (middle > 0).any() else math.nan)
    known = np.array(medians)
    present = np.isfinite(known)
    if not present.any():
        return np.full(len(known), default)
    at = np.arange(len(known))
    following = min(_FOLLOWING, len(known) / 30)
    return np.exp(gaussian_filter1d(np.log(np.interp(at, at[present], known[present])), following, mode="nearest"))
