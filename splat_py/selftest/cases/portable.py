"""The portable baseline."""

from __future__ import annotations

import torch

from splat_py import portable
from splat_py.gpu.device import Device
from splat_py.selftest import inputs
from splat_py.selftest.cases.case import Arrays, Case, gradients_of, leaves_of, to_numpy


def cases() -> list[Case]:
    """One, which asks nothing of the device."""
    return [Case("portable baseline", "portable", _portable)]


def portable_inputs() -> tuple[inputs.Floats, inputs.Floats]:
    """Colours [N, 3] and opacities [N, 1]."""
    return inputs.uniform(97, 0, 1, 70, 3), inputs.uniform(98, 0, 1, 70, 1)


def _portable(device: Device, stored: Arrays) -> Arrays:
    colors, opacities = leaves = leaves_of(*portable_inputs())
    n = len(colors)
    positions, scales, rotations, sh = torch.zeros(n, 3), torch.zeros(n, 3), torch.zeros(n, 4), torch.zeros(n, 0, 3)
    image = portable.splat_slang(positions, scales, rotations, opacities, colors, sh, 5, 3, device=device)
    v_colors, v_opacities = gradients_of([image], [inputs.v(99, stored["image"])], leaves)
    return to_numpy({"image": image, "v_colors": v_colors, "v_opacities": v_opacities})
