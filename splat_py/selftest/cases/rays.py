"""Splats that are evaluated along rays: surfels, with distortion; and Gaussians."""

from __future__ import annotations

from functools import partial

import numpy as np

from splat_py.gpu.device import Device, Operator
from splat_py.selftest import inputs
from splat_py.selftest.cases.case import Arrays, Case, by_kind, gradients_of, leaves_of, to_numpy
from splat_py.selftest.inputs import HEIGHT, WIDTH
from splat_py.splats.rasterization import rasterization
from splat_py.splats.rasterization_2dgs import rasterization_2dgs

KINDS = ("surfels", "gaussians")
# Of the picture that is compared: few pixels are enough.
SIDES = 9, 7
_COUNT = 12
NAMES = ("means", "quats", "scales", "opacities", "viewmats", "Ks")


def cases() -> list[Case]:
    """Both, of what is visible alone and of all."""
    needs = Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD
    return [
        Case(f"{kind} along rays{', packed' if packed else ''}", f"rays {kind}", partial(_render, kind, packed), needs=needs)
        for kind in KINDS
        for packed in (False, True)
    ]


def given() -> list[inputs.Floats]:
    """The first of the scene, in the order of `NAMES`, and colours."""
    s = inputs.scene()
    ratio = np.array([[SIDES[0] / WIDTH], [SIDES[1] / HEIGHT], [1]], np.float32)
    gaussians = [array[:_COUNT] for array in (s.means, s.quats, s.scales, s.opacities)]
    return [*gaussians, s.viewmats, s.Ks * ratio, inputs.uniform(17, 0, 1, _COUNT, 3)]


def _render(kind: str, packed: bool, device: Device, stored: Arrays) -> Arrays:
    leaves = leaves_of(*given())
    means, quats, scales, opacities, viewmats, Ks, colors = leaves
    arguments = (means, quats, scales, opacities, colors, viewmats, Ks, *SIDES)
    if kind == "surfels":
        image, _, _, _, distortion, _, _ = rasterization_2dgs(
            *arguments, packed=packed, render_mode="RGB+D", distloss=True, device=device
        )
        outputs = {"image": image, "distortion": distortion}
    else:
        image, alphas, _ = rasterization(*arguments, packed=packed, with_eval3d=True, device=device)
        outputs = {"image": image, "alphas": alphas}
    v_outputs = [inputs.v(85 + i, stored[name]) for i, name in enumerate(outputs)]
    gradients = gradients_of(list(outputs.values()), v_outputs, leaves[:6])
    return to_numpy(outputs) | by_kind({f"v_{name}": v for name, v in zip(NAMES, gradients, strict=True)})
