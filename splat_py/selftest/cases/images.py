"""Images as 2D Gaussians: forward and backward by every rasteriser, and a step of fitting one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from splat_py.gpu.device import Device, Operator
from splat_py.image.cpu_group import CpuGroupRasterizer
from splat_py.image.cpu_tiles import CpuTileRasterizer
from splat_py.image.fitting import ImageFitter
from splat_py.image.rasterizers import AutodiffRasterizer, GroupRasterizer, Rasterizer, SimpleRasterizer, TileRasterizer
from splat_py.selftest import inputs
from splat_py.selftest.cases.case import Arrays, Case
from splat_py.selftest.inputs import HEIGHT, WIDTH


def cases() -> list[Case]:
    """Every rasteriser with both kinds of atomic addition, then steps."""
    needs = (Operator.IMAGE,)
    found = []
    for kind in ("group", "tiles", "simple", "autodiff"):
        native, looped = partial(_render, kind, True), partial(_render, kind, False)
        found += [
            Case(f"image, {kind}, float atomics", "image", native, needs=(*needs, Operator.FLOAT_ATOMICS)),
            Case(f"image, {kind}, compare-and-swap", "image", looped, needs=needs),
        ]
    # In software only.
    for kind in ("group", "tiles"):
        found.append(Case(f"image, {kind} on CPU drivers", "image", partial(_render_on_cpu_driver, kind), needs=needs))
    steps = ((kind, partial(_fitting_step, kind)) for kind in ("group", "tiles"))
    return [*found, *(Case(f"image, fitting step, {kind}", "image step", step, needs=needs) for kind, step in steps)]


_RASTERIZERS: dict[str, Callable[..., Rasterizer]] = {
    "group": GroupRasterizer,
    "cpu group": CpuGroupRasterizer,
    "tiles": TileRasterizer,
    "cpu tiles": CpuTileRasterizer,
    "simple": SimpleRasterizer,
    "autodiff": AutodiffRasterizer,
}


def _render(kind: str, native: bool, device: Device, stored: Arrays) -> Arrays:
    raw = inputs.blobs()
    rasterizer = _RASTERIZERS[kind](device, inputs.BLOBS, WIDTH, HEIGHT, native)
    parameters, v_parameters = device.memory.array(raw), device.memory.empty(raw.shape)
    image = device.memory.empty((HEIGHT, WIDTH, 3))
    rasterizer.reserve(parameters)
    recorder = device.record()
    rasterizer.record_render(recorder, parameters, image)
    v_image = device.memory.array(inputs.v(43, stored["image"]))
    rasterizer.record_backward(recorder, parameters, v_image, v_parameters)
    recorder.submit()
    return {"image": image.numpy(), "v_blobs": v_parameters.numpy()}


def _render_on_cpu_driver(kind: str, device: Device, stored: Arrays) -> Arrays:
    return _render(f"cpu {kind}" if device.software else kind, device.native_float_atomics, device, stored)


def _fitting_step(kind: str, device: Device, stored: Arrays) -> Arrays:
    rasterizer = _RASTERIZERS[kind](device, inputs.BLOBS, WIDTH, HEIGHT)
    picture = inputs.uniform(44, 0, 1, HEIGHT, WIDTH, 3)
    fitter = ImageFitter(picture, inputs.blobs(), steps=10, device=device, rasterizer=rasterizer)
    fitter.advance()
    return {"blobs": fitter.params()}
