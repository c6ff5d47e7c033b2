"""The self-test's cases: which kernels run on which inputs, and what of their results is compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splat_py import portable, volume
from splat_py.gpu.accumulation import Accumulate
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device, Operator, get_device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sorting import PrefixSum, RadixSort
from splat_py.image.fitting import ImageFitter
from splat_py.image.rasterizers import GroupRasterizer, Rasterizer, TileRasterizer
from splat_py.scene.dataset import Dataset
from splat_py.scene.images import ImageStore, View
from splat_py.selftest import inputs
from splat_py.selftest.inputs import HEIGHT, WIDTH
from splat_py.splats.checkpoint import Checkpoint
from splat_py.splats.config import TrainConfig
from splat_py.splats.data import Settings
from splat_py.splats.loss import PhotometricLoss, pack
from splat_py.splats.parameters import GROUPS, MOMENTS, Parameters
from splat_py.splats.project import ProjectedSplats, project
from splat_py.splats.rasterization import rasterization
from splat_py.splats.rasterize import rasterize_to_pixels
from splat_py.splats.shade import shade
from splat_py.splats.tiles import bin_tiles
from splat_py.splats.trainer import Trainer
from splat_py.volume.checkpoint import VolumeCheckpoint
from splat_py.volume.config import VolumeConfig
from splat_py.volume.fitting import VolumeTrainer
from splat_py.volume.marching import row_floats
from splat_py.volume.views import Views

Arrays = dict[str, NDArray[Any]]

# Of which each array of results may miss the reference: see `checking.error`.
_ROUNDING = 1e-4
_TILE_SIZES = (4, 8, 16)
# How gradients add up, and whether by float atomics (else by compare-and-swap).
ACCUMULATIONS = [*product(("PerPixel", "PerWave", "PerGroup"), (True, False)), ("PerIntersection", True)]
# Splats of a list that one dispatch blends: many segments of the crowded tile.
SEGMENT = 256
CHANNELS = (1, 3, 4, 32)

# A run of four steps, of which the last one is done here: degree 3, and no densification.
TRAINING = TrainConfig(steps=12, sh_degree=3, seed=1)
TRAINING_STEP = 3
SCENE_SCALE = 2.0
BOUNDS = np.array([[-1.6, -1.4, 3.0], [1.6, 1.4, 5.0]])
VOLUME = VolumeConfig((max(inputs.VOLUME_SIZE),), sh_degree=0, total_variation=0.01)


@dataclass(frozen=True)
class Case:
    """`run` gets the stored results and returns the device's, by the same names."""

    name: str
    # Whose stored results: cases that differ only in how the kernels work share them.
    reference: str
    run: Callable[[Arrays], Arrays]
    allowed: float = _ROUNDING
    # What the device has to be able to do.
    needs: tuple[Operator, ...] = ()


def cases() -> list[Case]:
    """All of them, from the simplest kernels to whole training steps."""
    forward, both = (Operator.SPLAT_FORWARD,), (Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD)
    found = [
        Case("prefix sum", "prefix sum", _prefix_sum, allowed=0),
        Case("radix sort", "radix sort", _radix_sort, allowed=0, needs=forward),
        *(Case(f"shade, degree {d}", f"shade {d}", partial(_shade, d, None), needs=both) for d in range(4)),
        *(Case(f"tile lists, {t} px", f"tiles {t}", partial(_tiles, t), allowed=0, needs=forward) for t in _TILE_SIZES),
    ]
    for mode in ("classic", "antialiased"):
        settings = Settings(16, antialiased=mode == "antialiased")
        found.append(_adding(f"project, {mode}", f"project {mode}", settings, partial(_project, settings)))
    for channels, tile, (how, native) in product(CHANNELS, _TILE_SIZES, ACCUMULATIONS):
        # Every number of channels and every tile size with what a device would take, and every way to add up with rgb.
        if (channels == 3) + (tile == 16) + (how == "PerWave" and native) >= 2:
            settings = Settings(tile, absgrad=True, accumulation=how, native_atomics=native)
            name = f"rasterise, {channels} ch, {tile} px, {how}"
            found.append(_adding(name, f"rasterize {channels}", settings, partial(_rasterize, channels, settings)))
    for how, native in (("PerPixel", False), ("PerGroup", True), ("PerIntersection", True)):
        # Cameras' gradients: the only ones that add up in these two.
        settings = Settings(16, accumulation=how, native_atomics=native)
        found += [
            _adding(f"project, cameras, {how}", "project classic", settings, partial(_project, settings)),
            _adding(f"shade, cameras, {how}", "shade 3", settings, partial(_shade, 3, settings)),
        ]
    for (how, native), segment in product(ACCUMULATIONS, (None, SEGMENT)):
        if native:
            settings = Settings(16, accumulation=how)
            name = f"rasterise, crowded tile, {how}{f', {segment} a dispatch' if segment else ''}"
            found.append(_adding(name, "crowd", settings, partial(_crowd, settings, segment)))
    found += [
        _adding("rasterise, without absgrad", "rasterize 3", Settings(16), partial(_rasterize, 3, Settings(16))),
        *(
            Case(
                f"render, {mode}, {filtering}",
                f"render {mode} {filtering}",
                partial(_render, mode, filtering, "auto"),
                needs=both,
            )
            for mode, filtering in RENDERS
        ),
        Case("render, pair by pair", "render RGB classic", partial(_render, "RGB", "classic", "pair"), needs=both),
        Case("loss and SSIM", "loss", _loss, needs=both),
        *(Case(f"Adam, rows of {row}", f"adam {row}", partial(_adam, row, head), needs=both) for row, head in ADAM_ROWS),
        Case("densification statistics", "statistics", _statistics, needs=both),
        *(Case(f"training step, {how}", "training", partial(_training_step, how), needs=both) for how in ("auto", "pair")),
    ]
    for way in ("group", "tiles", "simple"):
        found.append(
            Case(
                f"image, {way}, float atomics",
                "image",
                partial(_image, way, True),
                needs=(Operator.IMAGE, Operator.FLOAT_ATOMICS),
            )
        )
        found.append(Case(f"image, {way}, compare-and-swap", "image", partial(_image, way, False), needs=(Operator.IMAGE,)))
    found += [
        *(
            Case(f"image, fitting step, {way}", "image step", partial(_image_step, way), needs=(Operator.IMAGE,))
            for way in ("group", "tiles")
        ),
        *(
            Case(
                f"volume, {k} coefficients{', jitter' if jitter else ''}",
                f"volume {k} {jitter}",
                partial(_volume, k, jitter),
                needs=(Operator.VOLUME,),
            )
            for k, jitter in VOLUMES
        ),
        Case("volume, fitting step", "volume step", _volume_step, needs=(Operator.VOLUME,)),
        Case("portable baseline", "portable", _portable),
    ]
    return found


def _adding(name: str, reference: str, settings: Settings, run: Callable[[Arrays], Arrays]) -> Case:
    """A case whose gradients add up as `settings` say: what that asks of the device."""
    needs = (Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD)
    if not settings.native_atomics:
        return Case(f"{name}, compare-and-swap", reference, run, needs=needs)
    return Case(name, reference, run, needs=needs if settings.per_isect else (*needs, Operator.FLOAT_ATOMICS))


RENDERS: tuple[tuple[Any, Literal["classic", "antialiased"]], ...] = (
    ("RGB", "classic"),
    ("RGB", "antialiased"),
    ("D", "classic"),
    ("RGB+ED", "antialiased"),
)
ADAM_ROWS = ((1, 0), (3, 3), (48, 3))
VOLUMES = ((1, False), (4, True), (9, False))


# --- sums and sorts ---


def _prefix_sum(stored: Arrays) -> Arrays:
    device = get_device()
    values = device.memory.array(inputs.bits(61, inputs.VALUES) >> np.uint32(16))
    total = PrefixSum(device, inputs.VALUES)
    recorder = device.record()
    total.record(recorder, values)
    recorder.submit()
    return {"offsets": total.offsets.numpy()[::16], "total": total.total.numpy()}


def _radix_sort(stored: Arrays) -> Arrays:
    """Of 20-bit keys with repetitions, which keep their order."""
    device = get_device()
    array = device.memory.array
    keys, values = array(inputs.bits(62, inputs.PAIRS) >> np.uint32(12)), array(np.arange(inputs.PAIRS, dtype=np.uint32))
    sort = RadixSort(device, inputs.PAIRS)
    recorder = device.record()
    _, order = sort.record(recorder, keys, values, array(np.array([inputs.PAIRS], np.uint32)), bits=20)
    recorder.submit()
    return {"order": order.numpy()}


# --- the stages of a render ---


def _project(settings: Settings, stored: Arrays) -> Arrays:
    s = inputs.scene(cameras=2)
    means, quats, scales, opacities, viewmats, Ks = leaves = _leaves(s.means, s.quats, s.scales, s.opacities, s.viewmats, s.Ks)
    splats = project(means, quats, scales, opacities, viewmats, Ks, WIDTH, HEIGHT, settings, device=get_device())
    outputs = {name: getattr(splats, name) for name in ("means2d", "depths", "conics", "opacities")}
    adjoints = [inputs.v(70 + i, stored[name]) for i, name in enumerate(outputs)]
    gradients = _gradients(list(outputs.values()), adjoints, leaves)
    named = dict(zip(("v_means", "v_quats", "v_scales", "v_opacities", "v_viewmats", "v_Ks"), gradients, strict=True))
    return _numpy(outputs) | _by_kind(named)


def _shade(degree: int, settings: Settings | None, stored: Arrays) -> Arrays:
    s = inputs.scene(cameras=2)
    means, sh, viewmats = leaves = _leaves(s.means, s.sh[:, : (degree + 1) ** 2], s.viewmats)
    radii = torch.ones(2, inputs.GAUSSIANS, 2, dtype=torch.int32)
    colors = shade(means, sh, viewmats, radii, degree, settings, device=get_device())
    v_means, v_sh, v_viewmats = _gradients([colors], [inputs.v(75, stored["colors"])], leaves)
    gradients = {"v_means": v_means, "v_sh": v_sh, "v_viewmats": v_viewmats}
    if degree == 0:
        # A colour that is the same from everywhere.
        gradients = {"v_sh": v_sh}
    return _numpy({"colors": colors}) | _by_kind(gradients)


def _tiles(tile_size: int, stored: Arrays) -> Arrays:
    tiles = bin_tiles(_projected(inputs.splats(1)), WIDTH, HEIGHT, tile_size, device=get_device())
    return {"offsets": tiles.offsets.numpy(), "ids": tiles.ids.numpy()}


def _rasterize(channels: int, settings: Settings, stored: Arrays) -> Arrays:
    return _rasterized(inputs.splats(channels), *size_for(channels), settings, stored)


def size_for(channels: int) -> tuple[int, int]:
    """Of the image: many channels on few pixels, but still on more than one tile."""
    return (WIDTH, HEIGHT) if channels <= 4 else (18, 17)


def _crowd(settings: Settings, segment: int | None, stored: Arrays) -> Arrays:
    with _segments(segment):
        results = _rasterized(inputs.crowd(), inputs.CROWD_SIDE, inputs.CROWD_SIDE, settings, stored)
    sampled = ("v_means2d", "v_conics", "v_opacities", "v_colors")
    return {name: values[:, :: inputs.CROWD_EVERY] if name in sampled else values for name, values in results.items()}


@contextmanager
def _segments(length: int | None) -> Iterator[None]:
    """Let one dispatch blend no more splats of a tile than this."""
    device = get_device()
    tuning = device.tuning
    device.tuning = replace(tuning, segment=length)
    try:
        yield
    finally:
        device.tuning = tuning


def _rasterized(s: inputs.Splats, width: int, height: int, settings: Settings, stored: Arrays) -> Arrays:
    device = get_device()
    means2d, conics, opacities, colors, backgrounds = leaves = _leaves(
        s.means2d, s.conics, s.opacities, s.colors, s.backgrounds
    )
    splats = ProjectedSplats(means2d, torch.from_numpy(s.depths), conics, opacities, _visible(s))
    tiles = bin_tiles(_projected(s), width, height, settings.tile_size, keep_isects=settings.per_isect, device=device)
    image, alphas = rasterize_to_pixels(splats, colors, tiles, width, height, backgrounds, settings, device=device)
    v_image, v_alphas = inputs.v(81, stored["image"]), inputs.v(82, stored["alphas"])
    names = ("v_means2d", "v_conics", "v_opacities", "v_colors", "v_backgrounds")
    results = {"image": image, "alphas": alphas}
    results |= dict(zip(names, _gradients([image, alphas], [v_image, v_alphas], leaves), strict=True))
    if settings.absgrad:
        results["absgrad"] = cast(Any, means2d).absgrad
    return _numpy(results)


def _render(mode: Any, filtering: Literal["classic", "antialiased"], accumulate: Accumulate, stored: Arrays) -> Arrays:
    """All stages in a row, by two cameras."""
    s = inputs.scene(cameras=2)
    leaves = _leaves(s.means, s.quats, s.scales, s.opacities, s.sh, s.viewmats, s.Ks, s.backgrounds)
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
    )
    names = ("v_means", "v_quats", "v_scales", "v_opacities", "v_sh", "v_viewmats", "v_Ks", "v_backgrounds")
    v_image, v_alphas = inputs.v(83, stored["image"]), inputs.v(84, stored["alphas"])
    if "ED" in mode:
        # Where next to nothing covers a pixel, its expected depth is a quotient of two small numbers.
        v_image[..., -1] *= stored["alphas"][..., 0]
    gradients = dict(zip(names, _gradients([image, alphas], [v_image, v_alphas], leaves), strict=True))
    if "RGB" not in mode:
        gradients = {name: g for name, g in gradients.items() if name not in ("v_sh", "v_backgrounds")}
    if "ED" in mode:
        image = torch.cat([image[..., :-1], image[..., -1:] * alphas], -1)
    return _numpy({"image": image, "alphas": alphas}) | _by_kind(gradients)


# --- training ---


def _loss(stored: Arrays) -> Arrays:
    device = get_device()
    loss = PhotometricLoss(device, WIDTH, HEIGHT, ssim_lambda=0.2)
    sums = device.memory.empty(4)
    render = device.memory.array(inputs.uniform(32, -0.1, 1.2, 1, HEIGHT, WIDTH, 3))
    recorder = device.record()
    loss.record(recorder, render, device.memory.array(pack(inputs.photograph())), sums)
    recorder.submit()
    return {"v_render": loss.v_render.numpy()[0], "sums": sums.numpy()}


def _adam(row: int, head: int, stored: Arrays) -> Arrays:
    device = get_device()
    shape = (7, row)
    arrays = {
        "parameters": device.memory.array(inputs.uniform(91, -1, 1, *shape)),
        "gradients": device.memory.array(inputs.uniform(92, -1, 1, *shape)),
        "firstMoments": device.memory.array(inputs.uniform(93, -1, 1, *shape)),
        "secondMoments": device.memory.array(inputs.uniform(94, 0.1, 1, *shape)),
        "status": device.memory.array(np.zeros(2, np.uint32)),
    }
    uniforms = {
        "count": 7 * row,
        "active": row,
        "rate": 0.01,
        "headRate": 0.1,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-15,
        "correction1": 1 - 0.9**3,
        "correction2": 1 - 0.999**3,
    }
    recorder = device.record()
    recorder.dispatch("optimize", "adam", linear_groups(-(-7 * row // 4)), uniforms, arrays, ROW=row, HEAD=head)
    recorder.submit()
    return {name: arrays[name].numpy() for name in ("parameters", "firstMoments", "secondMoments")}


def _statistics(stored: Arrays) -> Arrays:
    device = get_device()
    n = inputs.GAUSSIANS
    state = {name: values.copy() for name, values in training_state().items()}
    parameters = Parameters(device, state)
    radii = (inputs.bits(95, 1, n, 2) % np.uint32(9)).astype(np.int32)
    recorder = device.record()
    v_splats = device.memory.array(inputs.uniform(96, -1, 1, 1, n, 9))
    status = device.memory.array(np.zeros(2, np.uint32))
    parameters.record_statistics(recorder, v_splats, device.memory.array(radii), WIDTH, HEIGHT, status)
    recorder.submit()
    after = parameters.state()
    return {name: after[name] for name in Parameters.STATISTICS}


def training_state() -> dict[str, inputs.Floats]:
    """The scene before a step, with its optimiser fresh."""
    state = inputs.stored_gaussians()
    for name in GROUPS:
        for moment in MOMENTS:
            state[f"{name}.{moment}"] = np.zeros_like(state[name])
    return state | {name: np.zeros(inputs.GAUSSIANS, np.float32) for name in Parameters.STATISTICS}


def _training_step(how: Accumulate, stored: Arrays) -> Arrays:
    """Project, sort, blend, compare, and all the way back to Adam, as `splat train` does it. Room for lists runs out first."""
    checkpoint = Checkpoint(TRAINING_STEP, replace(TRAINING, accumulate=how), training_state(), capacity=8)
    trainer = Trainer(dataset(), device=get_device(), resume=checkpoint)
    # What ran out of room is repeated.
    while trainer.step == TRAINING_STEP:
        trainer.advance()
        trainer.finish()
    state = trainer.checkpoint().state
    return {name: state[name] for name in stored}


def dataset(enlarged: int = 1) -> Dataset:
    """One photograph, in memory, its sides multiplied."""
    view = cast(View, SimpleNamespace(camera=inputs.camera().scaled(enlarged)))
    images = cast(ImageStore, [np.kron(inputs.photograph(), np.ones((enlarged, enlarged, 1), np.uint8))])
    background = inputs.scene().backgrounds[0]
    return Dataset(Path(), [view], [0], [], None, SCENE_SCALE, BOUNDS, background, images)


# --- images, volumes, the baseline ---


class _SimpleRasterizer:
    """The plain way to draw blobs (kernels/image_simple.slang), which shows how it is done and is not for use."""

    def __init__(self, device: Device, blobs: int, width: int, height: int, native_atomics: bool | None = None) -> None:
        self._groups = (-(-width // 4), -(-height // 4), 1)
        self._uniforms = {"blobs": blobs, "width": width, "height": height, "columns": 0, "rows": 0, "weight": 1.0}
        self._constants = {"BLOBS": blobs}
        self._native = native_atomics

    def reserve(self, parameters: Array) -> None:
        pass

    def record_check(self, recorder: Recorder, status: Array, step: int) -> None:
        pass

    def record_render(self, recorder: Recorder, parameters: Array, image: Array) -> None:
        buffers = {"parameters": parameters, "image": image}
        recorder.dispatch("image_simple", "renderSimply", self._groups, self._uniforms, buffers, **self._constants)

    def record_lists(self, recorder: Recorder, parameters: Array) -> None:
        pass

    def record_gradients(
        self, recorder: Recorder, parameters: Array, target: Array, v_parameters: Array, linear: bool = False
    ) -> None:
        recorder.clear(v_parameters)
        buffers = {"parameters": parameters, "target": target, "vParameters": v_parameters, "vParameterBits": v_parameters}
        constants = {**self._constants, "NATIVE_ATOMICS": self._native, "LINEAR": linear}
        recorder.dispatch("image_simple", "differentiateSimply", self._groups, self._uniforms, buffers, **constants)


_WAYS: dict[str, Callable[..., Rasterizer]] = {
    "group": GroupRasterizer,
    "tiles": TileRasterizer,
    "simple": _SimpleRasterizer,
}


def _image(way: str, native: bool, stored: Arrays) -> Arrays:
    device = get_device()
    raw = inputs.blobs()
    rasterizer = _WAYS[way](device, inputs.BLOBS, WIDTH, HEIGHT, native)
    parameters, v_parameters = device.memory.array(raw), device.memory.empty(raw.shape)
    image = device.memory.empty((HEIGHT, WIDTH, 3))
    rasterizer.reserve(parameters)
    recorder = device.record()
    rasterizer.record_render(recorder, parameters, image)
    rasterizer.record_lists(recorder, parameters)
    v_image = device.memory.array(inputs.v(43, stored["image"]))
    rasterizer.record_gradients(recorder, parameters, v_image, v_parameters, linear=True)
    recorder.submit()
    return {"image": image.numpy(), "v_blobs": v_parameters.numpy()}


def _image_step(way: str, stored: Arrays) -> Arrays:
    device = get_device()
    rasterizer = _WAYS[way](device, inputs.BLOBS, WIDTH, HEIGHT)
    picture = inputs.uniform(44, 0, 1, HEIGHT, WIDTH, 3)
    fitter = ImageFitter(picture, inputs.blobs(), steps=10, device=device, rasterizer=rasterizer)
    fitter.advance()
    return {"blobs": fitter.params()}


def _volume(coefficients: int, jitter: bool, stored: Arrays) -> Arrays:
    f = inputs.field(coefficients)
    density, sh, background = leaves = _leaves(f.density, f.sh, f.background)
    results = volume.render(
        density,
        sh,
        torch.from_numpy(f.origins),
        torch.from_numpy(f.directions),
        inputs.VOLUME_BOX,
        background=background,
        steps_per_unit=inputs.STEPS_PER_UNIT,
        jitter=jitter,
        seed=inputs.JITTER_SEED,
        device=get_device(),
    )
    names = ("colors", "transmittances", "depths")
    adjoints = [inputs.v(56 + i, stored[name]) for i, name in enumerate(names)]
    gradients = _gradients(list(results), adjoints, leaves)
    outputs = dict(zip(names, results, strict=True))
    return _numpy(outputs | dict(zip(("v_density", "v_sh", "v_background"), gradients, strict=True)))


def volume_checkpoint() -> VolumeCheckpoint:
    """A grid before its first step."""
    f = inputs.field(1)
    grid = np.zeros((*f.density.shape, row_floats(1)), np.float32)
    grid[..., 0] = f.density
    grid[..., 1:] = f.sh[..., 0, :]
    state = {
        "grid": grid,
        "m": np.zeros_like(grid),
        "v": np.zeros_like(grid),
        "box": np.array(inputs.VOLUME_BOX),
        "background": f.background,
    }
    return VolumeCheckpoint(0, VOLUME, state)


def volume_photograph() -> inputs.Floats:
    """[H, W, 4]: rgb and weight."""
    camera = inputs.volume_camera()
    return inputs.uniform(59, 0, 1, camera.height, camera.width, 4)


def _volume_step(stored: Arrays) -> Arrays:
    views = Views([inputs.volume_camera()], lambda _: volume_photograph())
    trainer = VolumeTrainer(views, inputs.VOLUME_BOX, device=get_device(), resume=volume_checkpoint())
    trainer.advance()
    state = trainer.checkpoint().state
    return {name: state[name] for name in stored}


def portable_inputs() -> tuple[inputs.Floats, inputs.Floats]:
    """Colours [N, 3] and opacities [N, 1]."""
    return inputs.uniform(97, 0, 1, 70, 3), inputs.uniform(98, 0, 1, 70, 1)


def _portable(stored: Arrays) -> Arrays:
    colors, opacities = leaves = _leaves(*portable_inputs())
    n = len(colors)
    positions, scales, rotations, sh = torch.zeros(n, 3), torch.zeros(n, 3), torch.zeros(n, 4), torch.zeros(n, 0, 3)
    device = get_device()
    image = portable.splat_slang(positions, scales, rotations, opacities, colors, sh, 5, 3, device=device)
    v_colors, v_opacities = _gradients([image], [inputs.v(99, stored["image"])], leaves)
    return _numpy({"image": image, "v_colors": v_colors, "v_opacities": v_opacities})


# --- small change ---


def _leaves(*arrays: inputs.Floats) -> list[Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(array)).requires_grad_() for array in arrays]


def _gradients(outputs: list[Tensor], adjoints: list[inputs.Floats], leaves: list[Tensor]) -> list[Tensor]:
    tensors = [torch.from_numpy(adjoint).reshape(output.shape) for adjoint, output in zip(adjoints, outputs, strict=True)]
    return list(torch.autograd.grad(outputs, leaves, tensors, allow_unused=True, materialize_grads=True))


def _by_kind(gradients: dict[str, Tensor]) -> Arrays:
    """Gradients of cameras in parts that are each of one scale."""
    results = _numpy(gradients)
    v_viewmats, v_Ks = results.pop("v_viewmats", None), results.pop("v_Ks", None)
    if v_viewmats is not None:
        results |= {"v_rotations": v_viewmats[:, :3, :3], "v_translations": v_viewmats[:, :3, 3]}
    if v_Ks is not None:
        results |= {"v_focal": v_Ks[:, (0, 1), (0, 1)], "v_principal": v_Ks[:, :2, 2]}
    return results


def _numpy(tensors: dict[str, Tensor]) -> Arrays:
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def _visible(s: inputs.Splats) -> Tensor:
    return torch.ones(*s.depths.shape, 2, dtype=torch.int32)


def _projected(s: inputs.Splats) -> ProjectedSplats:
    means2d, depths, conics, opacities = (torch.from_numpy(a) for a in (s.means2d, s.depths, s.conics, s.opacities))
    return ProjectedSplats(means2d, depths, conics, opacities, _visible(s))
