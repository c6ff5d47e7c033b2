"""Cases of rendering: sums, sorts, the stages of a render, whole renders, images of blobs and radiance fields."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from splat_py.commands.selftest import inputs
from splat_py.commands.selftest.inputs import HEIGHT, WIDTH, Arrays, Case, Floats, leaves_of, with_gradients
from splat_py.gpu.accumulation import Accumulate
from splat_py.gpu.device import Device, Operator
from splat_py.gpu.sorting import Pairs, PrefixSum, RadixSort
from splat_py.image.fitting import ImageFitter
from splat_py.image.rasterizers import RASTERIZERS, TileRasterizer
from splat_py.portable import splat_slang
from splat_py.render.contributors import Contributors
from splat_py.render.options import Options
from splat_py.render.project import project
from splat_py.render.rasterization import rasterization
from splat_py.render.rasterize import rasterize_to_pixels
from splat_py.render.shade import shade
from splat_py.render.splats import ProjectedSplats
from splat_py.render.surfels import rasterization_2dgs
from splat_py.render.tiles import bin_tiles
from splat_py.volume.config import VolumeConfig
from splat_py.volume.fitting import Views, VolumeCheckpoint, VolumeTrainer
from splat_py.volume.grid import render, row_floats
from splat_py.volume.hash_grid import HashRadianceField, HashShape

_FORWARD = (Operator.SPLAT_FORWARD,)
_TILE_SIZES = (4, 8, 16)
# Ways to accumulate gradients, and true for float atomics, false for compare-and-swap.
_ACCUMULATIONS = [*product(("PerPixel", "PerWave", "PerGroup"), (True, False)), ("PerIntersection", True)]
# Splats of a list that one dispatch blends; the crowded tile has many such segments.
_SEGMENT = 256
CHANNELS = (1, 3, 4, 32)
Filtering = Literal["classic", "antialiased"]
# Modes of `rasterization`: render_mode and rasterize_mode.
RENDERS: tuple[tuple[Any, Filtering], ...] = (
    ("RGB", "classic"),
    ("RGB", "antialiased"),
    ("D", "classic"),
    ("RGB+ED", "antialiased"),
)
RAY_KINDS = ("surfels", "gaussians")
# Number of Gaussians evaluated along rays, and the picture's sides: few pixels suffice.
_ALONG_RAYS, RAY_SIDES = 12, (9, 7)
VOLUME_CONFIG = VolumeConfig((max(inputs.VOLUME_SIZE),), sh_degree=0, total_variation=0.01)
# Number of coefficients, and true for jittered samples.
VOLUME_RENDERS = ((1, False), (4, True), (9, False))
# Dense and hashed levels, as many as in a fit.
HASH_SHAPE = HashShape((2, 2, 3, 4, 4, 5, 6, 7), 32)
_MARCHED = ("colors", "transmittances", "depths")


def cases() -> list[Case]:
    found = [
        Case("prefix sum", "prefix sum", _prefix_sum, allowed=0, needs=()),
        Case("radix sort", "radix sort", _radix_sort, allowed=0, needs=_FORWARD),
        *(Case(f"shade, degree {d}", f"shade {d}", partial(_shade, d, None)) for d in range(4)),
        *(Case(f"tile lists, {t} px", f"tiles {t}", partial(_tiles, t), allowed=0, needs=_FORWARD) for t in _TILE_SIZES),
    ]
    for mode in ("classic", "antialiased"):
        options = Options(16, antialiased=mode == "antialiased")
        found.append(_accumulating(f"project, {mode}", f"project {mode}", options, partial(_project, options)))
    for channels, tile, (how, native) in product(CHANNELS, _TILE_SIZES, _ACCUMULATIONS):
        # Every number of channels and every tile size with the default accumulation, and every accumulation with rgb.
        if (channels == 3) + (tile == 16) + (how == "PerWave" and native) >= 2:
            options = Options(tile, absgrad=True, accumulation=how, native_atomics=native)
            name = f"rasterise, {channels} ch, {tile} px, {how}"
            found.append(_accumulating(name, f"rasterize {channels}", options, partial(_rasterize, channels, options)))
    for how, native in (("PerPixel", False), ("PerGroup", True), ("PerIntersection", True)):
        # The gradients of cameras are the only ones that these two accumulate.
        options = Options(16, accumulation=how, native_atomics=native)
        found += [
            _accumulating(f"project, cameras, {how}", "project classic", options, partial(_project, options)),
            _accumulating(f"shade, cameras, {how}", "shade 3", options, partial(_shade, 3, options)),
        ]
    for (how, native), segment in product(_ACCUMULATIONS, (None, _SEGMENT)):
        if native:
            options = Options(16, accumulation=how)
            name = f"rasterise, crowded tile, {how}{f', {segment} a dispatch' if segment else ''}"
            found.append(_accumulating(name, "crowd", options, partial(_crowd, options, segment)))
    found.append(Case("contributors of pixels", "rasterize 1", _contributors, needs=_FORWARD))
    plain = Options(16)
    found.append(_accumulating("rasterise, without absgrad", "rasterize 3", plain, partial(_rasterize, 3, plain)))
    for mode, filtering in RENDERS:
        name = f"render {mode} {filtering}"
        found.append(Case(f"render, {mode}, {filtering}", name, partial(_render, mode, filtering, "auto")))
    found.append(Case("render, per intersection", "render RGB classic", partial(_render, "RGB", "classic", "pair")))
    for kind, reference in (("projected", "render RGB classic"), ("surfels", "rays surfels"), ("lens", "rays gaussians")):
        run = partial(_forward_derivatives, kind)
        found.append(Case(f"forward derivatives, {kind}", reference, run, needs=_FORWARD))
    for kind, packed in product(RAY_KINDS, (False, True)):
        name = f"{kind} along rays{', packed' if packed else ''}"
        found.append(Case(name, f"rays {kind}", partial(_along_rays, kind, packed)))
    found.append(Case("Gaussians along a lens's rays", "rays gaussians", partial(_along_rays, "lens", False)))
    found.append(Case("portable baseline", "portable", _portable, needs=()))
    needs: tuple[Operator, ...] = (Operator.IMAGE,)
    for kind in ("group", "tiles", "autodiff"):
        both = (*needs, Operator.FLOAT_ATOMICS)
        found.append(Case(f"image, {kind}, float atomics", "image", partial(_draw, kind, True), needs=both))
        found.append(Case(f"image, {kind}, compare-and-swap", "image", partial(_draw, kind, False), needs=needs))
    found.append(Case("image, forward derivatives", "image", _image_tangents, needs=needs))
    for kind in ("group", "tiles"):
        found.append(Case(f"image, fitting step, {kind}", "image step", partial(_image_step, kind), needs=needs))
    needs = (Operator.VOLUME,)
    for k, jitter in VOLUME_RENDERS:
        name = f"volume, {k} coefficients{', jitter' if jitter else ''}"
        found.append(Case(name, f"volume {k} {jitter}", partial(_march, k, jitter), needs=needs))
    found.append(Case("volume, forward derivatives", "volume 1 False", _march_tangents, needs=needs))
    found.append(Case("volume, hash grid", "volume hash", _march_hash_grid, needs=needs))
    return [*found, Case("volume, fitting step", "volume step", _volume_step, needs=needs)]


def _accumulating(name: str, reference: str, options: Options, run: Callable[[Device, Arrays], Arrays]) -> Case:
    """A case that accumulates gradients by `options`, with the operators that it needs."""
    case = Case(name, reference, run)
    if not options.native_atomics:
        return replace(case, name=f"{name}, compare-and-swap")
    return case if options.per_isect else replace(case, needs=(*case.needs, Operator.FLOAT_ATOMICS))


def _prefix_sum(device: Device, stored: Arrays) -> Arrays:
    values = device.memory.array(inputs.bits(61, inputs.VALUES) >> np.uint32(16))
    total = PrefixSum(device, inputs.VALUES)
    with device.recording() as recorder:
        total.record(recorder, values)
    return {"offsets": total.offsets.numpy()[:: inputs.VALUES_EVERY], "total": total.total.numpy()}


def _radix_sort(device: Device, stored: Arrays) -> Arrays:
    """Sort 20-bit keys; equal keys keep their order."""
    array = device.memory.array
    pairs = Pairs(array(inputs.bits(62, inputs.KEYS) >> np.uint32(12)), array(np.arange(inputs.KEYS, dtype=np.uint32)))
    sort = RadixSort(device, inputs.KEYS)
    with device.recording() as recorder:
        (_, order), _ = sort.record(recorder, pairs, array(np.array([inputs.KEYS], np.uint32)), bits=20)
    return {"order": order.numpy()[:: inputs.KEYS_EVERY]}


def _project(options: Options, device: Device, stored: Arrays) -> Arrays:
    s = inputs.scene(cameras=2)
    leaves = leaves_of(means=s.means, quats=s.quats, scales=s.scales, opacities=s.opacities, viewmats=s.viewmats, Ks=s.Ks)
    splats = project(**leaves, width=WIDTH, height=HEIGHT, options=options, device=device)
    outputs = {name: getattr(splats, name) for name in ("means2d", "depths", "conics", "opacities")}
    return with_gradients(outputs, leaves, 70, stored)


def _shade(degree: int, options: Options | None, device: Device, stored: Arrays) -> Arrays:
    s = inputs.scene(cameras=2)
    leaves = leaves_of(means=s.means, sh=s.sh[:, : (degree + 1) ** 2], viewmats=s.viewmats)
    radii = torch.ones(2, inputs.GAUSSIANS, 2, dtype=torch.int32)
    colors = shade(leaves["means"], leaves["sh"], leaves["viewmats"], radii, degree, options, device=device)
    # Colours of degree 0 depend only on sh.
    return with_gradients({"colors": colors}, leaves if degree else {"sh": leaves["sh"]}, 75, stored)


def _tiles(tile_size: int, device: Device, stored: Arrays) -> Arrays:
    tiles = bin_tiles(_projected(inputs.splats(1)), WIDTH, HEIGHT, Options(tile_size), device=device)
    return {"offsets": tiles.offsets.numpy(), "ids": tiles.ids.numpy()}


def _rasterize(channels: int, options: Options, device: Device, stored: Arrays) -> Arrays:
    return _rasterized(inputs.splats(channels), *size_for(channels), options, device, stored)


def size_for(channels: int) -> tuple[int, int]:
    """The width and height of the image: many channels get few pixels, but still more than one tile."""
    return (WIDTH, HEIGHT) if channels <= 4 else (18, 17)


def _contributors(device: Device, stored: Arrays) -> Arrays:
    splats, options = _projected(inputs.splats(1)), Options(16)
    tiles = bin_tiles(splats, WIDTH, HEIGHT, options, device=device)
    found = Contributors.of(splats, tiles, options, WIDTH, HEIGHT, device)
    alphas = stored["alphas"].shape
    return {"alphas": np.bincount(found.pixels.cpu(), found.weights.cpu(), np.prod(alphas)).reshape(alphas)}


def _crowd(options: Options, segment: int | None, device: Device, stored: Arrays) -> Arrays:
    tuning = device.tuning
    # The most splats of a tile that one dispatch blends.
    device.tuning = replace(tuning, segment=segment)
    try:
        results = _rasterized(inputs.crowd(), inputs.CROWD_SIDE, inputs.CROWD_SIDE, options, device, stored)
    finally:
        device.tuning = tuning
    sampled = ("v_means2d", "v_conics", "v_opacities", "v_colors")
    return {name: values[:, :: inputs.CROWD_EVERY] if name in sampled else values for name, values in results.items()}


def _rasterized(s: SimpleNamespace, width: int, height: int, options: Options, device: Device, stored: Arrays) -> Arrays:
    leaves = leaves_of(means2d=s.means2d, conics=s.conics, opacities=s.opacities, colors=s.colors, backgrounds=s.backgrounds)
    plain = _projected(s)
    splats = replace(plain, **{name: leaves[name] for name in ("means2d", "conics", "opacities")})
    tiles = bin_tiles(plain, width, height, options, device=device)
    colors, backgrounds = leaves["colors"], leaves["backgrounds"]
    image, alphas = rasterize_to_pixels(splats, colors, tiles, width, height, backgrounds, options, device=device)
    results = with_gradients({"image": image, "alphas": alphas}, leaves, 81, stored)
    if options.absgrad:
        results["absgrad"] = cast(Any, leaves["means2d"]).absgrad.cpu().numpy()
    return results


def _projected(s: SimpleNamespace) -> ProjectedSplats:
    means2d, depths, conics, opacities = (torch.from_numpy(array) for array in (s.means2d, s.depths, s.conics, s.opacities))
    return ProjectedSplats(means2d, depths, conics, opacities, torch.ones(*s.depths.shape, 2, dtype=torch.int32))


def _render(mode: Any, filtering: Filtering, accumulate: Accumulate, device: Device, stored: Arrays) -> Arrays:
    leaves = leaves_of(**vars(inputs.scene(cameras=2)))
    arguments = {name: leaf for name, leaf in leaves.items() if name != "sh"}
    image, alphas, _ = rasterization(
        **arguments,
        colors=leaves["sh"],
        width=WIDTH,
        height=HEIGHT,
        sh_degree=3,
        render_mode=mode,
        rasterize_mode=filtering,
        accumulate=accumulate,
        backend="native",
        device=device,
    )
    wanted = {name: leaf for name, leaf in leaves.items() if "RGB" in mode or name not in ("sh", "backgrounds")}
    outputs, weights = {"image": image, "alphas": alphas}, {}
    if "ED" in mode:
        # If almost nothing covers a pixel, its expected depth is a quotient of two small numbers.
        weights["image"] = np.concatenate([np.ones_like(stored["image"][..., :-1]), stored["alphas"]], -1)
    results = with_gradients(outputs, wanted, 83, stored, **weights)
    if "ED" in mode:
        results["image"][..., -1:] *= results["alphas"]
    return results


def ray_inputs() -> dict[str, Floats]:
    s = inputs.scene()
    found = {name: getattr(s, name)[:_ALONG_RAYS] for name in ("means", "quats", "scales", "opacities")}
    ratio = np.array([[RAY_SIDES[0] / WIDTH], [RAY_SIDES[1] / HEIGHT], [1]], np.float32)
    return found | {"viewmats": s.viewmats, "Ks": s.Ks * ratio, "colors": inputs.uniform(17, 0, 1, _ALONG_RAYS, 3)}


def _along_rays(kind: str, packed: bool, device: Device, stored: Arrays) -> Arrays:
    leaves = leaves_of(**ray_inputs())
    width, height = RAY_SIDES
    outputs = _outputs(kind, {**leaves, "width": width, "height": height, "packed": packed, "device": device})
    del leaves["colors"]
    return with_gradients(outputs, leaves, 85, stored)


def _outputs(kind: str, how: dict[str, Any]) -> dict[str, Tensor]:
    """A render's images: those of surfels, of Gaussians by their projection, or along the rays of pinholes or of a lens."""
    if kind == "surfels":
        image, _, _, _, distortion, _, _ = rasterization_2dgs(**how, render_mode="RGB+D", distloss=True)
        return {"image": image, "distortion": distortion}
    # A lens that does not distort: the pinhole's results, by the kernels of other cameras.
    lens = torch.zeros(len(how["viewmats"]), 4) if kind == "lens" else None
    image, alphas, _ = rasterization(**how, with_eval3d=kind != "projected", radial_coeffs=lens)
    return {"image": image, "alphas": alphas}


def _by_jacobians(
    outputs: Callable[[dict[str, Any]], dict[str, Tensor]],
    given: dict[str, Any],
    names: Sequence[str],
    first: int,
    stored: Arrays,
) -> Arrays:
    """The outputs, and their gradients as Jacobians, from forward derivatives in the direction of each number, times the
    outputs' adjoints."""
    found: Arrays = {}
    for name in names:
        both = torch.func.jacfwd(lambda values, name=name: (outputs({name: values}),) * 2, has_aux=True)
        jacobians, images = both(given[name])
        found |= {output: image.numpy() for output, image in images.items()}
        found[f"v_{name}"] = np.zeros(given[name].shape, np.float32)
        for key, (output, jacobian) in enumerate(jacobians.items(), first):
            found[f"v_{name}"] += np.tensordot(inputs.v(key, stored[output]), jacobian.numpy(), stored[output].ndim)
    return found


def _forward_derivatives(kind: str, device: Device, stored: Arrays) -> Arrays:
    projected = kind == "projected"
    given = vars(inputs.scene(cameras=2)) if projected else ray_inputs()
    how: dict[str, Any] = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in given.items()}
    width, height = (WIDTH, HEIGHT) if projected else RAY_SIDES
    how |= {"width": width, "height": height, "device": device}
    if projected:
        how |= {"colors": how.pop("sh"), "sh_degree": 3}
    names = "viewmats", "opacities"
    found = _by_jacobians(lambda given: _outputs(kind, how | given), how, names, 83 if projected else 85, stored)
    v_viewmats = found.pop("v_viewmats")
    return found | {"v_rotations": v_viewmats[:, :3, :3], "v_translations": v_viewmats[:, :3, 3]}


def portable_inputs() -> tuple[Floats, Floats]:
    """The colours [N, 3] and opacities [N, 1]."""
    return inputs.uniform(97, 0, 1, 70, 3), inputs.uniform(98, 0, 1, 70, 1)


def _portable(device: Device, stored: Arrays) -> Arrays:
    colors, opacities = portable_inputs()
    leaves, n = leaves_of(colors=colors, opacities=opacities), len(colors)
    positions, scales, rotations, sh = torch.zeros(n, 3), torch.zeros(n, 3), torch.zeros(n, 4), torch.zeros(n, 0, 3)
    image = splat_slang(positions, scales, rotations, leaves["opacities"], leaves["colors"], sh, 5, 3, device=device)
    return with_gradients({"image": image}, leaves, 99, stored)


def _draw(kind: str, native: bool, device: Device, stored: Arrays) -> Arrays:
    raw = inputs.blobs()
    rasterizer = RASTERIZERS[kind](device, inputs.BLOBS, WIDTH, HEIGHT, native)
    parameters, v_parameters = device.memory.array(raw), device.memory.empty(raw.shape)
    image = device.memory.empty((HEIGHT, WIDTH, 3))
    rasterizer.reserve(parameters)
    with device.recording() as recorder:
        rasterizer.record_render(recorder, parameters, image)
        v_image = device.memory.array(inputs.v(43, stored["image"]))
        rasterizer.record_backward(recorder, parameters, v_image, v_parameters)
    return {"image": image.numpy(), "v_blobs": v_parameters.numpy()}


def _image_tangents(device: Device, stored: Arrays) -> Arrays:
    """The image with its Jacobian, from forward derivatives in the direction of each number, times the image's adjoint."""
    raw, (array, empty) = inputs.blobs(), (device.memory.array, device.memory.empty)
    tiles, parameters = TileRasterizer(device, inputs.BLOBS, WIDTH, HEIGHT), array(raw)
    tiles.reserve(parameters)
    along = np.eye(raw.size, dtype=np.float32).reshape(raw.size, *raw.shape).swapaxes(0, 1)
    d_parameters = array(along.reshape(len(raw), -1))
    image, jacobian = empty((HEIGHT, WIDTH, 3)), empty((raw.size, HEIGHT, WIDTH, 3))
    with device.recording() as recorder:
        tiles.record_lists(recorder, parameters)
        tiles.record_tangents(recorder, parameters, d_parameters, image, jacobian)
    v = np.tensordot(jacobian.numpy(), inputs.v(43, stored["image"]), 3)
    return {"image": image.numpy(), "v_blobs": v.reshape(raw.shape)}


def _image_step(kind: str, device: Device, stored: Arrays) -> Arrays:
    rasterizer = RASTERIZERS[kind](device, inputs.BLOBS, WIDTH, HEIGHT)
    picture = inputs.uniform(44, 0, 1, HEIGHT, WIDTH, 3)
    fitter = ImageFitter(picture, inputs.blobs(), steps=10, device=device, rasterizer=rasterizer)
    fitter.advance()
    return {"blobs": fitter.params()}


def _march(coefficients: int, jitter: bool, device: Device, stored: Arrays) -> Arrays:
    f = inputs.field(coefficients)
    leaves = leaves_of(density=f.density, sh=f.sh, background=f.background)
    return with_gradients(_marched(coefficients, jitter, device, leaves), leaves, 56, stored)


def _march_tangents(device: Device, stored: Arrays) -> Arrays:
    leaves = {name: torch.from_numpy(getattr(inputs.field(1), name)) for name in ("density", "sh", "background")}
    return _by_jacobians(
        lambda given: _marched(1, False, device, leaves | given), leaves, ("density", "background"), 56, stored
    )


def _marched(coefficients: int, jitter: bool, device: Device, given: dict[str, Any]) -> dict[str, Tensor]:
    f = inputs.field(coefficients)
    results = render(
        **given,
        rays_o=torch.from_numpy(f.origins),
        rays_d=torch.from_numpy(f.directions),
        box=inputs.VOLUME_BOX,
        steps_per_unit=inputs.STEPS_PER_UNIT,
        jitter=jitter,
        seed=inputs.JITTER_SEED,
        device=device,
    )
    return dict(zip(_MARCHED, results, strict=True))


def _march_hash_grid(device: Device, stored: Arrays) -> Arrays:
    f, (table, weights) = inputs.field(1), inputs.hash_grid(HASH_SHAPE.entries, HASH_SHAPE.weights)
    leaves = leaves_of(table=table, weights=weights, origins=f.origins, directions=f.directions)
    box = np.array(inputs.VOLUME_BOX)
    field = HashRadianceField(leaves["table"], leaves["weights"], HASH_SHAPE, box, f.background)
    rays = leaves["origins"], leaves["directions"]
    results = field.march(*rays, steps_per_unit=inputs.STEPS_PER_UNIT, skip_empty=False, device=device)
    return with_gradients(dict(zip(_MARCHED, results, strict=True)), leaves, 73, stored)


def volume_checkpoint() -> VolumeCheckpoint:
    f = inputs.field(1)
    grid = np.zeros((*f.density.shape, row_floats(1)), np.float32)
    grid[..., 0] = f.density
    grid[..., 1:] = f.sh[..., 0, :]
    moments = {name: np.zeros_like(grid) for name in ("m", "v")}
    state = {"grid": grid, **moments, "box": np.array(inputs.VOLUME_BOX), "background": f.background}
    return VolumeCheckpoint(0, VOLUME_CONFIG, state)


def volume_photograph() -> inputs.Floats:
    """An image [H, W, 4]: rgb and weight."""
    camera = inputs.volume_camera()
    return inputs.uniform(59, 0, 1, camera.height, camera.width, 4)


def _volume_step(device: Device, stored: Arrays) -> Arrays:
    views = Views([inputs.volume_camera()], lambda _: volume_photograph())
    trainer = VolumeTrainer(views, inputs.VOLUME_BOX, device=device, resume=volume_checkpoint())
    trainer.advance()
    state = trainer.checkpoint().state
    return {name: state[name] for name in stored}
