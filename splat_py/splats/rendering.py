"""What a camera sees of Gaussians, without gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from splat_py.errors import SplatError
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import UserType
from splat_py.scene.camera import Camera
from splat_py.scene.dataset import NEAR, Dataset
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.slang_source import SlangSource
from splat_py.splats.environment import Environment
from splat_py.splats.rasterization import rasterization
from splat_py.splats.training_colors import require_features


@torch.no_grad()
def render(
    gaussians: Gaussians,
    camera: Camera,
    background: ArrayLike | Environment = (0.0, 0.0, 0.0),
    *,
    antialiased: bool = False,
    near: float = NEAR,
    device: Device | None = None,
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
    device: Device | None = None,
) -> torch.Tensor:
    """The same before it is limited to 1: [H, W, 3], differentiable in `viewmat` [4, 4], the camera's if None."""
    splat, color = (_compiled(kind) for kind in (gaussians.splat, gaussians.color))
    if color == "SphericalHarmonics":
        colors, degree, weights = gaussians.sh, gaussians.sh_degree, None
    else:
        (colors, weights), degree = require_features(gaussians), None

    def row(values: ArrayLike) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values, np.float32)[None], device=gaussians.means.device)

    behind = (0.0, 0.0, 0.0) if isinstance(background, Environment) else background
    images, alphas, _ = rasterization(
        gaussians.means,
        gaussians.quats,
        gaussians.scales,
        gaussians.opacities,
        colors,
        row(camera.viewmat) if viewmat is None else viewmat[None].to(gaussians.means.device),
        row(camera.K),
        camera.width,
        camera.height,
        sh_degree=degree,
        color=color,
        weights=weights,
        backgrounds=row(behind),
        near_plane=near,
        packed=False,
        rasterize_mode="antialiased" if antialiased else "classic",
        **_lens_of(camera, row),
        splat=splat,
        params=gaussians.params,
        device=device,
    )
    if isinstance(background, Environment):
        return images[0] + (1 - alphas[0]) * torch.from_numpy(background.colors(camera)).to(images.device)
    return images[0]


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
