"""Surfels' images, their normals, depth distortion and median depth, over stage 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from splat_py.gpu.autograd import first_derivative
from splat_py.gpu.device import Device
from splat_py.splats.data import Settings
from splat_py.splats.project import ProjectedSplats
from splat_py.splats.rasterize import MAX_CHANNELS, RenderedImages, rasterize
from splat_py.splats.tensors import as_tensor
from splat_py.splats.tiles import BinnedTiles


@dataclass(frozen=True)
class Surface:
    """What C cameras see of surfels."""

    images: Tensor  # [C, H, W, D]
    alphas: Tensor  # [C, H, W, 1]
    normals: Tensor  # [C, H, W, 3] Σ w n, in camera space
    distortion: Tensor  # [C, H, W, 1]; zero if nobody has asked
    rendered: RenderedImages
    tiles: BinnedTiles

    def median_of(self, values: Tensor) -> Tensor:
        """[C, H, W, 1] of values [..., C, N] or, packed, [M] of splats, that of each pixel's median; 0 where nothing is seen.

        Differentiable in them.
        """
        medians, tiles = self.rendered.arrays.medians, self.tiles
        assert medians is not None
        past = as_tensor(medians, values).view(torch.int32).long()
        if not len(tiles.ids):
            return torch.zeros_like(self.alphas)
        cameras, height, width = past.shape
        grid = tiles.grid
        camera, y, x = (torch.arange(size, device=past.device) for size in (cameras, height, width))
        rows = camera[:, None] * grid.rows + y // grid.tile_size
        tile = rows[..., None] * grid.columns + x // grid.tile_size
        places = (tiles.offsets[tile].long() + past - 1).clamp(min=0)
        ids = tiles.ids[places].long()
        return torch.where(past > 0, values.flatten()[ids], 0.0)[..., None]


def rasterize_surface(
    splats: ProjectedSplats,
    features: Tensor,
    normals: Tensor,
    tiles: BinnedTiles,
    width: int,
    height: int,
    backgrounds: Tensor | None,
    settings: Settings,
    *,
    distortion: bool = False,
    device: Device | None = None,
) -> Surface:
    """Blend surfels over backgrounds. Differentiable in what splats are, features, normals and backgrounds.

    Args:
        features: [..., C, N, D] or, packed, [M, D]. With `distortion` the last is depth, and its background 0.
        normals: [..., C, N, 3] or [M, 3] in camera space.
        backgrounds: [..., C, D], black if None.

    Raises:
        NotImplementedError: absgrad with more channels than one pass blends, of which three are normals and one is distortion.
    """
    more = int(distortion)
    channels = features.shape[-1]
    if settings.absgrad and channels + 3 + more > MAX_CHANNELS:
        most = MAX_CHANNELS - 3 - more
        raise NotImplementedError(f"absgrad is not supported for more than {most} channels; leave absgrad out")
    parts = [normals, features, *([torch.zeros_like(features[..., :1])] if distortion else [])]
    behind = None if backgrounds is None else F.pad(backgrounds, (3, more))
    rendered = rasterize(
        splats,
        torch.cat(parts, -1),
        tiles,
        width,
        height,
        behind,
        settings,
        distortion=distortion,
        median=True,
        device=device,
    )
    of_normals, images, rest = rendered.colors.split([3, channels, more], -1)
    rest = rest if distortion else torch.zeros_like(rendered.alphas)
    return Surface(images, rendered.alphas, of_normals, rest, rendered, tiles)


def with_densify(ray_transforms: Tensor, densify: Tensor) -> Tensor:
    """Ray transforms [..., 9] as they are; with their gradient, `densify` [..., 2] gets one.

    It is the gradient of the first two rows' last numbers times the mean's depth: about that of the mean on the image.
    """
    return cast(Tensor, _Densify.apply(ray_transforms, densify))


class _Densify(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ray_transforms: Tensor, densify: Tensor) -> Tensor:
        ctx.save_for_backward(ray_transforms)
        return ray_transforms.view_as(ray_transforms)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, Tensor]:
        (ray_transforms,) = ctx.saved_tensors
        return v, v[..., [2, 5]] * ray_transforms[..., 8:]
