"""What a camera sees of Gaussians, without gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from splat_py.errors import SplatError
from splat_py.gpu.accumulation import Accumulate
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import UserType
from splat_py.scene.camera import Camera
from splat_py.scene.dataset import NEAR, Dataset
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.slang_source import SlangSource
from splat_py.splats.depth_maps import depth_to_normal
from splat_py.splats.environment import Environment
from splat_py.splats.rasterization import rasterization
from splat_py.splats.training_colors import require_features

# So many contributions to a pixel are shown white.
_HOTTEST = 1024


@torch.no_grad()
def render(
    gaussians: Gaussians,
    camera: Camera,
    background: ArrayLike | Environment = (0.0, 0.0, 0.0),
    *,
    antialiased: bool = False,
    near: float = NEAR,
    device: Device | str | None = None,
) -> NDArray[np.float32]:
    """What a camera sees, through its lens if it has one: [H, W, 3], from 0 to 1.

    Args:
        background: rgb from 0 to 1, or what was learnt with the scene.
        antialiased: as the Gaussians were trained.
        near: depth of the near plane, world units; `Dataset.near` of the Gaussians' capture.
        device: where to render; by default as `rasterization`.

    Raises:
        SplatError: the splats are of Slang source from a file, which nobody has trusted.
    """
    image = renders(gaussians, camera, background, antialiased=antialiased, near=near, device=device)
    return image.clamp(0, 1).cpu().numpy()


def renders(
    gaussians: Gaussians,
    camera: Camera,
    background: ArrayLike | Environment = (0.0, 0.0, 0.0),
    *,
    viewmat: torch.Tensor | None = None,
    antialiased: bool = False,
    near: float = NEAR,
    device: Device | str | None = None,
) -> torch.Tensor:
    """The same before it is limited to 1: [H, W, 3], differentiable in `viewmat` [4, 4], the camera's if None."""
    behind = (0.0, 0.0, 0.0) if isinstance(background, Environment) else background
    how = _Rendering(antialiased, near, device, viewmat=viewmat)
    image, alphas, _ = _rasterized(gaussians, camera, behind, "RGB", how)
    if isinstance(background, Environment):
        return image + (1 - alphas) * torch.from_numpy(background.colors(camera)).to(image.device)
    return image


@torch.no_grad()
def render_depth(
    gaussians: Gaussians,
    camera: Camera,
    *,
    antialiased: bool = False,
    near: float = NEAR,
    device: Device | str | None = None,
) -> NDArray[np.float32]:
    """Expected depths [H, W] in world units, 0 where there is nothing. Arguments and errors as of `render`."""
    images, alphas, _ = _rasterized(gaussians, camera, (0.0, 0.0, 0.0), "RGB+ED", _Rendering(antialiased, near, device))
    return torch.where(alphas > 0, images[..., 3:], 0.0)[..., 0].cpu().numpy()


@torch.no_grad()
def render_normals(
    gaussians: Gaussians,
    camera: Camera,
    *,
    antialiased: bool = False,
    near: float = NEAR,
    device: Device | str | None = None,
) -> NDArray[np.float32]:
    """Normals [H, W, 3] in the world's frame, towards the camera, of the surface that expected depths are
    (splat_py/splats/depth_maps.py); zero at the edges, and where there is nothing. Of a lens only the pinhole is taken.

    Arguments and errors as of `render`.

    Raises:
        SplatError: the camera is no pinhole camera without its lens either.
    """
    lens, model = camera.distortion, camera.model
    if model not in (None, "pinhole") or (lens is not None and lens.fisheye):
        raise SplatError(f"{camera.name or 'the camera'} is no pinhole camera, and normals need one; undistort the photographs")
    camera = replace(camera, distortion=None)
    images, alphas, _ = _rasterized(gaussians, camera, (0.0, 0.0, 0.0), "RGB+ED", _Rendering(antialiased, near, device))
    pose, K = (torch.tensor(m, dtype=torch.float32, device=images.device) for m in (np.linalg.inv(camera.viewmat), camera.K))
    normals = depth_to_normal(images[..., 3:], pose, K)
    return torch.where(alphas > 0, normals, 0.0).cpu().numpy()


def blending_weights(
    gaussians: Gaussians,
    camera: Camera,
    counts: torch.Tensor,
    *,
    antialiased: bool = False,
    near: float = NEAR,
    accumulate: Accumulate = "auto",
    device: Device | str | None = None,
) -> NDArray[np.float32]:
    """Σ α T [N] of each Gaussian over the pixels, times `counts` [H, W]: the gradient of the sum of a picture for its colour.

    Arguments and errors else as of `render`.
    """
    with torch.enable_grad():
        colors = torch.ones(len(gaussians), 3, device=gaussians.means.device, requires_grad=True)
        how = _Rendering(antialiased, near, device, accumulate)
        images, _, _ = _rasterized(gaussians, camera, (0.0, 0.0, 0.0), "RGB", how, colors)
        (images[..., 0] * counts.to(images)).sum().backward()
    assert colors.grad is not None
    return colors.grad[:, 0].cpu().numpy()


def shown_depth(gaussians: Gaussians, camera: Camera, scene_scale: float, **how: Any) -> NDArray[np.float32]:
    """`render_depth` as a grey picture [H, W, 3]: s / (s + depth) of the scene's scale s, black where there is nothing."""
    depths = render_depth(gaussians, camera, **how)[..., None]
    grey = np.where(depths > 0, scene_scale / (scene_scale + depths), 0)
    return np.repeat(grey, 3, axis=2).astype(np.float32)


def shown_normals(gaussians: Gaussians, camera: Camera, **how: Any) -> NDArray[np.float32]:
    """`render_normals` as a picture [H, W, 3]: (normal + 1) / 2, black where there is none."""
    normals = render_normals(gaussians, camera, **how)
    return np.where(normals.any(-1, keepdims=True), (normals + 1) / 2, 0).astype(np.float32)


@torch.no_grad()
def shown_alpha(
    gaussians: Gaussians,
    camera: Camera,
    *,
    antialiased: bool = False,
    near: float = NEAR,
    device: Device | str | None = None,
) -> NDArray[np.float32]:
    """How opaque the scene is, as a grey picture [H, W, 3]. Arguments and errors as of `render`."""
    _, alphas, _ = _rasterized(gaussians, camera, (0.0, 0.0, 0.0), "RGB", _Rendering(antialiased, near, device))
    return np.repeat(alphas.clamp(0, 1).cpu().numpy(), 3, axis=2)


@torch.no_grad()
def shown_contributions(
    gaussians: Gaussians,
    camera: Camera,
    *,
    antialiased: bool = False,
    near: float = NEAR,
    device: Device | str | None = None,
) -> NDArray[np.float32]:
    """`n_contrib`, how many splats of its tile's list a pixel was blended from, as a picture [H, W, 3]: from black by red and
    yellow to white, which is 1024 and more, by their square root. Arguments and errors as of `render`."""
    _, _, meta = _rasterized(gaussians, camera, (0.0, 0.0, 0.0), "RGB", _Rendering(antialiased, near, device))
    heat = (meta["n_contrib"][0].float() / _HOTTEST).sqrt()[..., None].cpu().numpy()
    return np.clip(3 * heat - np.arange(3, dtype=np.float32), 0, 1)


@dataclass(frozen=True)
class _Rendering:
    """What `render` is told besides the scene and its camera."""

    antialiased: bool
    near: float
    device: Device | str | None
    accumulate: Accumulate = "auto"
    viewmat: torch.Tensor | None = None


def _rasterized(
    gaussians: Gaussians,
    camera: Camera,
    background: ArrayLike,
    mode: Literal["RGB", "RGB+ED"],
    how: _Rendering,
    plain: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """An image [H, W, D], alphas [H, W, 1] and `rasterization`'s meta; of colours `plain` [N, 3] in the place of their own."""
    splat, color = (_compiled(kind) for kind in (gaussians.splat, gaussians.color))
    if plain is not None:
        color, colors, degree, weights = "SphericalHarmonics", plain, None, None
    elif color == "SphericalHarmonics":
        colors, degree, weights = gaussians.sh, gaussians.sh_degree, None
    else:
        (colors, weights), degree = require_features(gaussians), None

    def row(values: ArrayLike) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values, np.float32)[None], device=gaussians.means.device)

    images, alphas, meta = rasterization(
        gaussians.means,
        gaussians.quats,
        gaussians.scales,
        gaussians.opacities,
        colors,
        row(camera.viewmat) if how.viewmat is None else how.viewmat[None].to(gaussians.means.device),
        row(camera.K),
        camera.width,
        camera.height,
        sh_degree=degree,
        color=color,
        weights=weights,
        backgrounds=row(background),
        near_plane=how.near,
        packed=False,
        render_mode=mode,
        accumulate=how.accumulate,
        rasterize_mode="antialiased" if how.antialiased else "classic",
        **_lens_of(camera, row),
        splat=splat,
        params=gaussians.params,
        device=how.device,
    )
    return images[0], alphas[0], meta


def _compiled(kind: str | UserType | SlangSource) -> str | UserType:
    if isinstance(kind, SlangSource):
        raise SplatError(
            f"the scene carries Slang source of its own, {kind.name}, which could read and write any memory; "
            "call its trust_source() if you trust it"
        )
    return kind


def through(dataset: Dataset, model: str | UserType) -> Dataset:
    """A dataset whose cameras project as `model` says: "dataset" as they do."""
    if model == "dataset":
        return dataset
    views = [replace(view, camera=with_model(view.camera, model)) for view in dataset.views]
    return replace(dataset, views=views, _images=dataset._images)


def with_model(camera: Camera, model: str | UserType) -> Camera:
    """A camera that projects otherwise. Coefficients of a lens stay where they mean something."""
    lens = camera.distortion
    means = lens is not None and model == ("fisheye" if lens.fisheye else "pinhole")
    return replace(camera, model=model, distortion=lens if means or not isinstance(model, str) else None)


def _lens_of(camera: Camera, row: Callable[[ArrayLike], torch.Tensor]) -> dict[str, Any]:
    """The arguments of `rasterization`."""
    lens = camera.distortion
    own = camera.model is not None and not isinstance(camera.model, str)
    if own:
        coefficients = None if lens is None else row([*lens.radial, *lens.tangential])
        return {"camera_model": camera.model, "camera_params": coefficients}
    arguments: dict[str, Any] = {"camera_model": camera.model or ("fisheye" if lens and lens.fisheye else "pinhole")}
    if lens is not None:
        arguments["radial_coeffs"] = row(lens.radial[: 4 if lens.fisheye else 6])
    if lens is not None and not lens.fisheye:
        arguments["tangential_coeffs"] = row(lens.tangential)
    return arguments
