"""What `rasterization` blends of each splat: colours, depth and further signals."""

from __future__ import annotations

import torch
from torch import Tensor

from splat_py.gpu.device import Device
from splat_py.splats.cameras import midway
from splat_py.splats.colors import color_model
from splat_py.splats.data import Settings
from splat_py.splats.project import ProjectedSplats
from splat_py.splats.shade import shade
from splat_py.splats.validation import Inputs, Options


def blended_features(
    inputs: Inputs, options: Options, splats: ProjectedSplats, settings: Settings, device: Device
) -> tuple[Tensor, Tensor | None]:
    """Features [..., C, N, D] or, packed, [M, D]: colours, depth and further signals, as far as they are asked for, one after
    another; and backgrounds [..., C, D], 0 behind what is no colour."""
    viewmats = inputs.viewmats if inputs.viewmats_rs is None else midway(inputs.viewmats, inputs.viewmats_rs)

    def of_splats(features: Tensor, degree: int | None, as_color: bool) -> Tensor:
        if degree is None:
            return gather(features.float(), inputs, splats)
        means = inputs.means
        if features.dim() < means.dim() + 1:
            features = features.expand(*means.shape[:-2], *features.shape)
        # The kernel shades three channels at a time.
        channels = features.shape[-1]
        padded = torch.nn.functional.pad(features, (0, -channels % 3)) if channels % 3 else features
        shaded = [
            shade(
                means,
                part,
                viewmats,
                splats.radii,
                degree,
                settings,
                packed=splats.packed,
                as_color=as_color,
                device=device,
            )
            for part in (padded[..., first : first + 3] for first in range(0, channels, 3))
        ]
        return shaded[0] if channels == 3 else torch.cat(shaded, -1)[..., :channels]

    parts, backgrounds = [], inputs.backgrounds
    if inputs.colors is not None and options.has_features:
        model = color_model(options.color, inputs.colors.shape[-1], 0 if inputs.weights is None else len(inputs.weights))
        placed = (inputs.means, inputs.colors, viewmats, splats.radii)
        parts.append(shade(*placed, model, settings, weights=inputs.weights, packed=splats.packed, device=device))
    elif inputs.colors is not None:
        parts.append(of_splats(inputs.colors, options.sh_degree, True))
    if "D" in options.render_mode:
        parts.append(splats.depths[..., None])
    if inputs.extra_signals is not None:
        degree = options.extra_signals_sh_degree
        signals = of_splats(inputs.extra_signals, degree, False)
        parts.append(signals if degree is None else signals + 0.5)
    features = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
    if backgrounds is not None:
        backgrounds = torch.nn.functional.pad(backgrounds, (0, features.shape[-1] - backgrounds.shape[-1]))
    return features, backgrounds


def gather(features: Tensor, inputs: Inputs, splats: ProjectedSplats) -> Tensor:
    """Features [..., N, D] or [..., C, N, D] of Gaussians → those of splats."""
    channels = features.shape[-1]
    each_camera = features.dim() > inputs.means.dim()
    if splats.packed is None:
        return features if each_camera else features[..., None, :, :].expand(*splats.depths.shape, channels)
    rows, ids = features.reshape(-1, channels), splats.gaussian_ids
    assert ids is not None and splats.image_ids is not None
    n = inputs.means.shape[-2]
    return rows[splats.image_ids * n + ids % n if each_camera else ids]
