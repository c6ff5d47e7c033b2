"""What a camera sees of Gaussians, without gradients."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from splat_py.errors import SplatError
from splat_py.gpu.device import Device
from splat_py.scene.camera import Camera
from splat_py.scene.dataset import NEAR
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.splat_source import SplatSource
from splat_py.splats.rasterization import rasterization


@torch.no_grad()
def render(
    gaussians: Gaussians,
    camera: Camera,
    background: ArrayLike = (0.0, 0.0, 0.0),
    *,
    antialiased: bool = False,
    near: float = NEAR,
    device: Device | None = None,
) -> NDArray[np.float32]:
    """What a camera sees, through its lens if it has one: [H, W, 3], from 0 to 1.

    Args:
        background: rgb from 0 to 1.
        antialiased: as the Gaussians were trained.
        near: depth of the near plane, world units; `Dataset.near` of the Gaussians' capture.
        device: where to render; by default as `rasterization`.

    Raises:
        SplatError: the splats are of Slang source from a file, which nobody has trusted.
    """
    if isinstance(gaussians.splat, SplatSource):
        raise SplatError(
            f"the scene carries Slang source of its own, {gaussians.splat.name}, which could read and write any memory; "
            "call its trust_source() if you trust it"
        )

    def row(values: ArrayLike) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values, np.float32)[None], device=gaussians.means.device)

    lens = camera.distortion
    images, _, _ = rasterization(
        gaussians.means,
        gaussians.quats,
        gaussians.scales,
        gaussians.opacities,
        gaussians.sh,
        row(camera.viewmat),
        row(camera.K),
        camera.width,
        camera.height,
        sh_degree=gaussians.sh_degree,
        backgrounds=row(background),
        near_plane=near,
        packed=False,
        rasterize_mode="antialiased" if antialiased else "classic",
        camera_model="fisheye" if lens is not None and lens.fisheye else "pinhole",
        radial_coeffs=None if lens is None else row(lens.radial[: 4 if lens.fisheye else 6]),
        tangential_coeffs=None if lens is None or lens.fisheye else row(lens.tangential),
        splat=gaussians.splat,
        params=gaussians.params,
        device=device,
    )
    return images[0].clamp(0, 1).cpu().numpy()
