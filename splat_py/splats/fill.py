"""The portable backend's answer to `rasterization`: an image of one colour, on any machine."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from splat_py import portable
from splat_py.splats.validation import Inputs, Options


def fill(inputs: Inputs, options: Options) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """The portable baseline in the place of a render: images [..., C, H, W, 3], each of one colour, wherever the cameras look.

    Of spherical harmonics the constant term is the colour. The background shows through, as behind a render.
    """
    means, quats, scales, colors = inputs.means, inputs.quats, inputs.scales, inputs.colors
    harmonics = options.sh_degree is not None
    unsupported = {
        f"render_mode={options.render_mode!r}": options.render_mode != "RGB",
        "absgrad": options.absgrad,
        "sparse_grad": options.sparse_grad,
        "covars": inputs.covars is not None,
        "extra_signals": inputs.extra_signals is not None,
        f"color={options.color}": options.has_features,
    }
    for asked, is_asked in unsupported.items():
        if is_asked:
            raise NotImplementedError(f"the portable backend does not support {asked}; it fills the image with one colour")
    assert quats is not None and scales is not None and colors is not None
    colors = colors.float()
    if colors.shape[-1] != 3:
        raise NotImplementedError(f"the portable backend does not support {colors.shape[-1]} channels; give rgb colours")
    width, height, lead, n = options.width, options.height, inputs.viewmats.shape[:-2], means.shape[-2]
    # Y₀ = ½ √(1/π)
    rgb = (colors[..., 0, :] * (0.5 / math.sqrt(math.pi)) + 0.5).clamp(min=0) if harmonics else colors
    rgb = (rgb if rgb.dim() > means.dim() else rgb[..., None, :, :]).expand(*lead, n, 3)

    def each_view(tensor: Tensor) -> Tensor:
        return tensor.unsqueeze(len(lead) - 1).expand(*lead, *tensor.shape[len(lead) - 1 :]).flatten(0, len(lead) - 1)

    views = (rgb.flatten(0, -3), *map(each_view, (means, scales, quats, inputs.opacities)))
    flat = torch.stack(
        [
            portable.splat(mean, scale, quat, opacity[:, None], color, mean.new_zeros(n, 0, 3), width, height)
            for color, mean, scale, quat, opacity in zip(*views, strict=True)
        ]
    )
    images = flat.reshape(*lead, height, width, 4)
    filled, alphas = images[..., :3], images[..., 3:]
    if inputs.backgrounds is not None:
        filled = filled + (1 - alphas) * inputs.backgrounds[..., None, None, :]
    meta = {"width": width, "height": height, "n_batches": lead[:-1].numel(), "n_cameras": lead[-1], "backend": "portable"}
    return filled, alphas, meta
