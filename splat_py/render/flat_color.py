"""`rasterization(backend="portable")`: the portable baseline with the renderer's arguments."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from splat_py import portable
from splat_py.render.checks import refuse


def flat_color(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    opacities: Tensor,
    colors: Tensor | None,
    lead: torch.Size,
    width: int,
    height: int,
    sh_degree: int | None,
    backgrounds: Tensor | None,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Images [..., C, H, W, 3], each of one colour (`portable.splat`), wherever the cameras look.

    The constant term of spherical harmonics is the colour. The background shows through, as behind a render.

    Args:
        lead: scenes and cameras, [..., C].
    """
    channels = 0 if colors is None else colors.shape[-1]
    refuse("the portable backend", {"covars": quats is None, f"{channels} channels": channels != 3})
    assert quats is not None and scales is not None and colors is not None
    rgb = colors.float()
    if sh_degree is not None:
        # Y₀ = ½ √(1/π)
        rgb = (rgb[..., 0, :] * (0.5 / math.sqrt(math.pi)) + 0.5).clamp(min=0)
    rgb = rgb if rgb.dim() > means.dim() else rgb[..., None, :, :]
    shared = (tensor[..., None, :, :] for tensor in (means, scales, quats, opacities[..., None]))
    views = zip(*(tensor.expand(*lead, *tensor.shape[-2:]).flatten(0, -3) for tensor in (*shared, rgb)), strict=True)
    no_harmonics = means.new_zeros(means.shape[-2], 0, 3)
    flat = torch.stack(
        [
            portable.splat(mean, scale, quat, opacity, color, no_harmonics, width, height)
            for mean, scale, quat, opacity, color in views
        ]
    )
    images = flat.reshape(*lead, height, width, 4)
    filled, alphas = images[..., :3], images[..., 3:]
    if backgrounds is not None:
        filled = filled + (1 - alphas) * backgrounds[..., None, None, :]
    meta = {"width": width, "height": height, "n_batches": lead[:-1].numel(), "n_cameras": lead[-1]}
    return filled, alphas, meta | {"backend": "portable"}
