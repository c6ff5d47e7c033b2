"""The stages of a render, forward and backward, and all of them in a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, Literal, cast

import torch
from torch import Tensor

from splat_py.gpu.accumulation import Accumulate
from splat_py.gpu.device import Device, Operator
from splat_py.selftest import inputs
from splat_py.selftest.cases.case import Arrays, Case, by_kind, gradients_of, leaves_of, to_numpy
from splat_py.selftest.inputs import HEIGHT, WIDTH
from splat_py.splats.data import Settings
from splat_py.splats.project import ProjectedSplats, project
from splat_py.splats.rasterization import rasterization
from splat_py.splats.rasterize import rasterize_to_pixels
from splat_py.splats.shade import shade
from splat_py.splats.tiles import bin_tiles

_FORWARD = (Operator.SPLAT_FORWARD,)
_BOTH = (Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD)
_TILE_SIZES = (4, 8, 16)
# How gradients add up, and whether by float atomics (else by compare-and-swap).
_ACCUMULATIONS = [*product(("PerPixel", "PerWave", "PerGroup"), (True, False)), ("PerIntersection", True)]
# Splats of a list that one dispatch blends: many segments of the crowded tile.
_SEGMENT = 256
CHANNELS = (1, 3, 4, 32)
# Modes of `rasterization`: what is rendered, and how it is filtered.
RENDERS: tuple[tuple[Any, Literal["classic", "antialiased"]], ...] = (
    ("RGB", "classic"),
    ("RGB", "antialiased"),
    ("D", "classic"),
    ("RGB+ED", "antialiased"),
)


def cases() -> list[Case]:
    """Stage by stage, each in all its variants."""
    found = [
        *(Case(f"shade, degree {d}", f"shade {d}", partial(_shade, d, None), needs=_BOTH) for d in range(4)),
        *(Case(f"tile lists, {t} px", f"tiles {t}", partial(_tiles, t), allowed=0, needs=_FORWARD) for t in _TILE_SIZES),
    ]
    for mode in ("classic", "antialiased"):
        settings = Settings(16, antialiased=mode == "antialiased")
        found.append(_accumulating(f"project, {mode}", f"project {mode}", settings, partial(_project, settings)))
    for channels, tile, (how, native) in product(CHANNELS, _TILE_SIZES, _ACCUMULATIONS):
        # Every number of channels and every tile size with what a device would take, and every way to add up with rgb.
        if (channels == 3) + (tile == 16) + (how == "PerWave" and native) >= 2:
            settings = Settings(tile, absgrad=True, accumulation=how, native_atomics=native)
            name = f"rasterise, {channels} ch, {tile} px, {how}"
            found.append(_accumulating(name, f"rasterize {channels}", settings, partial(_rasterize, channels, settings)))
    for how, native in (("PerPixel", False), ("PerGroup", True), ("PerIntersection", True)):
        # Cameras' gradients: the only ones that add up in these two.
        settings = Settings(16, accumulation=how, native_atomics=native)
        found += [
            _accumulating(f"project, cameras, {how}", "project classic", settings, partial(_project, settings)),
            _accumulating(f"shade, cameras, {how}", "shade 3", settings, partial(_shade, 3, settings)),
        ]
    for (how, native), segment in product(_ACCUMULATIONS, (None, _SEGMENT)):
        if native:
            settings = Settings(16, accumulation=how)
            name = f"rasterise, crowded tile, {how}{f', {segment} a dispatch' if segment else ''}"
            found.append(_accumulating(name, "crowd", settings, partial(_crowd, settings, segment)))
    plain = Settings(16)
    found.append(_accumulating("rasterise, without absgrad", "rasterize 3", plain, partial(_rasterize, 3, plain)))
    for mode, filtering in RENDERS:
        run = partial(_render, mode, filtering, "auto")
        found.append(Case(f"render, {mode}, {filtering}", f"render {mode} {filtering}", run, needs=_BOTH))
    run = partial(_render, "RGB", "classic", "pair")
    return [*found, Case("render, per intersection", "render RGB classic", run, needs=_BOTH)]


def _accumulating(name: str, reference: str, settings: Settings, run: Callable[[Device, Arrays], Arrays]) -> Case:
    """A case whose gradients add up as `settings` say: what that asks of the device."""
    if not settings.native_atomics:
        return Case(f"{name}, compare-and-swap", reference, run, needs=_BOTH)
    return Case(name, reference, run, needs=_BOTH if settings.per_isect else (*_BOTH, Operator.FLOAT_ATOMICS))


def _project(settings: Settings, device: Device, stored: Arrays) -> Arrays:
    s = inputs.scene(cameras=2)
    leaves = leaves_of(s.means, s.quats, s.scales, s.opacities, s.viewmats, s.Ks)
    means, quats, scales, opacities, viewmats, Ks = leaves
    splats = project(means, quats, scales, opacities, viewmats, Ks, WIDTH, HEIGHT, settings, device=device)
    outputs = {name: getattr(splats, name) for name in ("means2d", "depths", "conics", "opacities")}
    v_outputs = [inputs.v(70 + i, stored[name]) for i, name in enumerate(outputs)]
    gradients = gradients_of(list(outputs.values()), v_outputs, leaves)
    named = dict(zip(("v_means", "v_quats", "v_scales", "v_opacities", "v_viewmats", "v_Ks"), gradients, strict=True))
    return to_numpy(outputs) | by_kind(named)


def _shade(degree: int, settings: Settings | None, device: Device, stored: Arrays) -> Arrays:
    s = inputs.scene(cameras=2)
    means, sh, viewmats = leaves = leaves_of(s.means, s.sh[:, : (degree + 1) ** 2], s.viewmats)
    radii = torch.ones(2, inputs.GAUSSIANS, 2, dtype=torch.int32)
    colors = shade(means, sh, viewmats, radii, degree, settings, device=device)
    v_means, v_sh, v_viewmats = gradients_of([colors], [inputs.v(75, stored["colors"])], leaves)
    gradients = {"v_means": v_means, "v_sh": v_sh, "v_viewmats": v_viewmats}
    if degree == 0:
        # A colour that is the same from everywhere.
        gradients = {"v_sh": v_sh}
    return to_numpy({"colors": colors}) | by_kind(gradients)


def _tiles(tile_size: int, device: Device, stored: Arrays) -> Arrays:
    tiles = bin_tiles(_projected(inputs.splats(1)), WIDTH, HEIGHT, tile_size, device=device)
    return {"offsets": tiles.offsets.numpy(), "ids": tiles.ids.numpy()}


def _rasterize(channels: int, settings: Settings, device: Device, stored: Arrays) -> Arrays:
    return _rasterized(inputs.splats(channels), *size_for(channels), settings, device, stored)


def size_for(channels: int) -> tuple[int, int]:
    """Of the image: many channels on few pixels, but still on more than one tile."""
    return (WIDTH, HEIGHT) if channels <= 4 else (18, 17)


def _crowd(settings: Settings, segment: int | None, device: Device, stored: Arrays) -> Arrays:
    with _segments(device, segment):
        results = _rasterized(inputs.crowd(), inputs.CROWD_SIDE, inputs.CROWD_SIDE, settings, device, stored)
    sampled = ("v_means2d", "v_conics", "v_opacities", "v_colors")
    return {name: values[:, :: inputs.CROWD_EVERY] if name in sampled else values for name, values in results.items()}


@contextmanager
def _segments(device: Device, length: int | None) -> Iterator[None]:
    """Let one dispatch blend no more splats of a tile than this."""
    tuning = device.tuning
    device.tuning = replace(tuning, segment=length)
    try:
        yield
    finally:
        device.tuning = tuning


def _rasterized(s: inputs.Splats, width: int, height: int, settings: Settings, device: Device, stored: Arrays) -> Arrays:
    means2d, conics, opacities, colors, backgrounds = leaves = leaves_of(
        s.means2d, s.conics, s.opacities, s.colors, s.backgrounds
    )
    splats = ProjectedSplats(means2d, torch.from_numpy(s.depths), conics, opacities, _visible(s))
    tiles = bin_tiles(_projected(s), width, height, settings.tile_size, keep_isects=settings.per_isect, device=device)
    image, alphas = rasterize_to_pixels(splats, colors, tiles, width, height, backgrounds, settings, device=device)
    v_image, v_alphas = inputs.v(81, stored["image"]), inputs.v(82, stored["alphas"])
    names = ("v_means2d", "v_conics", "v_opacities", "v_colors", "v_backgrounds")
    results = {"image": image, "alphas": alphas}
    results |= dict(zip(names, gradients_of([image, alphas], [v_image, v_alphas], leaves), strict=True))
    if settings.absgrad:
        results["absgrad"] = cast(Any, means2d).absgrad
    return to_numpy(results)


def _render(
    mode: Any, filtering: Literal["classic", "antialiased"], accumulate: Accumulate, device: Device, stored: Arrays
) -> Arrays:
    """All stages in a row, by two cameras."""
    s = inputs.scene(cameras=2)
    leaves = leaves_of(s.means, s.quats, s.scales, s.opacities, s.sh, s.viewmats, s.Ks, s.backgrounds)
    means, quats, scales, opacities, sh, viewmats, Ks, backgrounds = leaves
    image, alphas, _ = rasterization(
        means,
        quats,
        scales,
        opacities,
        sh,
        viewmats,
        Ks,
        WIDTH,
        HEIGHT,
        sh_degree=3,
        backgrounds=backgrounds,
        render_mode=mode,
        rasterize_mode=filtering,
        accumulate=accumulate,
        backend="native",
        device=device,
    )
    names = ("v_means", "v_quats", "v_scales", "v_opacities", "v_sh", "v_viewmats", "v_Ks", "v_backgrounds")
    v_image, v_alphas = inputs.v(83, stored["image"]), inputs.v(84, stored["alphas"])
    if "ED" in mode:
        # Where next to nothing covers a pixel, its expected depth is a quotient of two small numbers.
        v_image[..., -1] *= stored["alphas"][..., 0]
    gradients = dict(zip(names, gradients_of([image, alphas], [v_image, v_alphas], leaves), strict=True))
    if "RGB" not in mode:
        gradients = {name: g for name, g in gradients.items() if name not in ("v_sh", "v_backgrounds")}
    if "ED" in mode:
        image = torch.cat([image[..., :-1], image[..., -1:] * alphas], -1)
    return to_numpy({"image": image, "alphas": alphas}) | by_kind(gradients)


def _visible(s: inputs.Splats) -> Tensor:
    return torch.ones(*s.depths.shape, 2, dtype=torch.int32)


def _projected(s: inputs.Splats) -> ProjectedSplats:
    means2d, depths, conics, opacities = (torch.from_numpy(a) for a in (s.means2d, s.depths, s.conics, s.opacities))
    return ProjectedSplats(means2d, depths, conics, opacities, _visible(s))
