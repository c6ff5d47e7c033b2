"""Cases of training: loss, Adam, whole steps, refinement of Gaussians, and learnt parts of a capture."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np

from splat_py.commands.selftest import inputs
from splat_py.commands.selftest.inputs import HEIGHT, WIDTH, Arrays, Case, Floats
from splat_py.fit.steps import Adam, AdamArrays, with_moments
from splat_py.gpu.accumulation import Accumulate
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import linear_groups
from splat_py.render.images import Image
from splat_py.render.splats import GaussianArrays, Splats
from splat_py.scene.dataset import Dataset
from splat_py.scene.images import ImageStore, View
from splat_py.train import density
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.learnt_parts import (
    AFFINE,
    GRID,
    PPISP,
    BilateralGrids,
    CameraRefinement,
    LearntEnvironment,
    LookKind,
    Looks,
)
from splat_py.train.parameters import FILTER, GROUPS, MEAN, Filter3D, ParameterMeans, Parameters
from splat_py.train.photometric_loss import SUMS, PhotometricLoss, pack
from splat_py.train.step import BatchSums
from splat_py.train.surface import SurfaceLosses
from splat_py.train.trainer import Trainer
from splat_py.train.views import DepthSupervision, device_camera, record_composition

# The case is the fourth of twelve steps, with degree 3 and no densification.
# The learning rates undo the scaling for short runs, to match the stored step.
STEP = 3
_SHORT_RUN = TrainConfig(steps=12).short_run_lr_scale
CONFIG = TrainConfig(
    steps=12,
    sh_degree=3,
    seed=1,
    means_lr=1.6e-4 * 0.01 ** (STEP / 12) / TrainConfig(steps=12, means_lr=1.0).means_lr_at(STEP, 1.0),
    quats_lr=1e-3 / math.sqrt(_SHORT_RUN),
    scales_lr=5e-3 / math.sqrt(_SHORT_RUN),
    opacities_lr=5e-2 / math.sqrt(_SHORT_RUN),
    sh0_lr=2.5e-3 / _SHORT_RUN,
)
SCENE_SCALE = 2.0
_BOUNDS = np.array([[-1.6, -1.4, 3.0], [1.6, 1.4, 5.0]])
# Floats of a Gaussian in a parameter tensor, and how many of them have their own learning rate.
ADAM_ROWS = ((1, 0), (3, 3), (48, 3))

# Refinement of the fewest Gaussians that grow by 5 %; the first are faint. Some are cloned, some split, and one may not grow.
FEW, _FAINT = 20, 4
REFINED = TrainConfig(seed=2, grow_grad2d=0.5, max_gaussians=FEW + 8, split_scale=0.15)
MCMC = replace(REFINED, strategy="mcmc", means_lr=1e-6)
FEW_BOUNDS = np.array([[-1.0, -1.0, 3.2], [1.0, 1.0, 4.8]])

# A capture of three photographs; this one is in its second epoch, in the middle of a run.
PHOTOGRAPHS, PHOTOGRAPH, EPOCH, CAPTURE_STEP, PROGRESS = 3, 1, 1, 4, 0.5
BACKGROUND = (0.25, 0.5, 0.875)


def cases() -> list[Case]:
    return [
        Case("loss and SSIM", "loss", _loss),
        *(Case(f"Adam, rows of {row}", f"adam {row}", partial(_adam, row, head)) for row, head in ADAM_ROWS),
        Case("densification statistics", "statistics", _statistics),
        Case("statistics of a batch", "statistics", _batch),
        Case("means of steps", "means", _means),
        Case("3D smoothing filter", "filter", _filter),
        Case("depth beside colours", "depth", _depth),
        Case("surfels' surface", "surface", _surface),
        *(Case(f"training step, {how}", "training", partial(_training_step, how)) for how in ("auto", "pair")),
        Case("density control", "densify", _densify),
        Case("Markov chain Monte Carlo", "mcmc", _mcmc),
        *(Case(f"learnt {name}", name, partial(_look, *look)) for name, look in LOOKS.items()),
        Case("learnt grids", "grids", _grids),
        Case("learnt cameras", "cameras", _cameras),
        Case("learnt environment", "environment", _environment),
        Case("learnt background", "background", _background),
    ]


def _counting(device: Device) -> Array:
    """The status of a step that counts (kernels/status.slang)."""
    return device.memory.array(np.zeros(3, np.uint32))


def _screen_gradients(device: Device) -> tuple[Array, Array]:
    """Gradients of splats, in rows, and radii."""
    radii = (inputs.bits(95, 1, inputs.GAUSSIANS, 2) % np.uint32(9)).astype(np.int32)
    return device.memory.array(inputs.uniform(96, -1, 1, 1, inputs.GAUSSIANS, 9)), device.memory.array(radii)


def _loss(device: Device, stored: Arrays) -> Arrays:
    loss = PhotometricLoss(device, WIDTH, HEIGHT, ssim_lambda=0.2)
    sums = device.memory.empty(SUMS)
    render = device.memory.array(inputs.uniform(32, -0.1, 1.2, 1, HEIGHT, WIDTH, 3))
    with device.recording() as recorder:
        loss.record(recorder, render, device.memory.array(pack(inputs.photograph())), sums)
    return {"v_render": loss.v_render.numpy()[0], "sums": sums.numpy().sum(0)}


def _adam(row: int, head: int, device: Device, stored: Arrays) -> Arrays:
    shape, array = (7, row), device.memory.array
    first, second = array(inputs.uniform(93, -1, 1, *shape)), array(inputs.uniform(94, 0.1, 1, *shape))
    learnt = AdamArrays(array(inputs.uniform(91, -1, 1, *shape)), first, second)
    with device.recording() as recorder:
        recorder.dispatch(
            "optimize",
            "adam",
            linear_groups(-(-7 * row // 4)),
            learnt=learnt,
            gradients=array(inputs.uniform(92, -1, 1, *shape)),
            status=_counting(device),
            settings=Adam(epsilon=1e-15).settings(2, 0.01),
            count=7 * row,
            first_column=0,
            active=row,
            head_rate=0.1,
            least=0.0,
            largest=0.0,
            ROW=row,
            HEAD=head,
        )
    return {"parameters": learnt.parameters.numpy(), "firstMoments": first.numpy(), "secondMoments": second.numpy()}


def _statistics(device: Device, stored: Arrays) -> Arrays:
    parameters = Parameters(device, state_before())
    with device.recording() as recorder:
        parameters.record_statistics(recorder, *_screen_gradients(device), WIDTH, HEIGHT, _counting(device))
    after = parameters.state()
    return {name: after[name] for name in Parameters.STATISTICS}


def _batch(device: Device, stored: Arrays) -> Arrays:
    """A batch of two equal photographs: twice the statistics of one, and the same mean gradients."""
    parameters = Parameters(device, state_before())
    batch, v = BatchSums(parameters), inputs.uniform(99, -1, 1, inputs.GAUSSIANS, 3)
    (v_splats, radii), status = _screen_gradients(device), _counting(device)
    parameters.v_gaussians.means.write(v)
    with device.recording() as recorder:
        batch.begin(recorder)
        for _ in range(2):
            parameters.record_statistics(recorder, v_splats, radii, WIDTH, HEIGHT, status, batch.statistics)
            batch.add(recorder, v_splats)
        batch.end(recorder, 2, status)
    after, mean = parameters.state(), np.array_equal(parameters.v_gaussians.means.numpy(), v)
    twice = {"gradient_norms": 2, "times_seen": 2, "max_radii": 1}
    return {name: after[name] / number if mean else np.full_like(after[name], np.nan) for name, number in twice.items()}


def _means(device: Device, stored: Arrays) -> Arrays:
    """The means of three steps, with a step between them that does not count."""
    means, array = ParameterMeans(device, first=0), device.memory.array
    for step, counts in ((0, True), (1, True), (2, False), (2, True)):
        scales = inputs.uniform(120 + step, -1, 1, inputs.GAUSSIANS, 3)
        parameters = Parameters(device, state_before() | {"log_scales": scales if counts else scales + 1})
        with device.recording() as recorder:
            means.record(recorder, parameters, step, array(np.array([not counts, 0, 0], np.uint32)))
    return {"log_scales": means.state()["log_scales" + MEAN][::3]}


def _filter(device: Device, stored: Arrays) -> Arrays:
    state, array = inputs.stored_gaussians(), device.memory.array
    means, quats, scales, opacities = (array(state[name]) for name in GROUPS[:4])
    raw = GaussianArrays(means, quats, scales, opacities)
    smoothing = Filter3D(device, lambda: [(device_camera(device, inputs.camera()), "Pinhole")], near=4.0)
    v_scales, v_opacities = filter_gradients()
    v = replace(raw, scales=array(v_scales), opacities=array(v_opacities))
    with device.recording() as recorder:
        smooth = smoothing.record(recorder, raw, 0, _counting(device))
        smoothing.record_backward(recorder, v)
    filters = smoothing.state(raw)[FILTER]
    return of_few(smooth.scales.numpy(), smooth.opacities.numpy(), filters, v.scales.numpy(), v.opacities.numpy())


def _depth(device: Device, stored: Arrays) -> Arrays:
    array, (render, alphas, known, v_colors) = device.memory.array, depth_inputs()
    supervision = DepthSupervision(device, dataset(), 0.3, {0: known})
    splats = inputs.splats(4)
    of_splats = replace(Splats.empty(device, 1, inputs.GAUSSIANS), depths=array(splats.depths))
    image = replace(Image.empty(device, 1, HEIGHT, WIDTH, 4), colors=array(render), alphas=array(alphas))
    target, v_alphas = supervision.target(WIDTH, HEIGHT), array(np.zeros_like(alphas))
    with device.recording() as recorder:
        features = supervision.record_features(recorder, of_splats, array(splats.colors[..., :3]))
        colors = supervision.record_colors(recorder, image, target)
        cameras = device_camera(device, inputs.camera())
        v_render = supervision.record_gradient(recorder, 0, cameras, image, target, array(v_colors), v_alphas)
    moved = np.array_equal(features.numpy(), np.concatenate([splats.colors[..., :3], splats.depths[..., None]], -1))
    moved &= np.array_equal(colors.numpy(), render[..., :3])
    moved &= np.array_equal(v_render.numpy()[..., :3], v_colors)
    v = np.concatenate([v_render.numpy()[..., 3:], v_alphas.numpy()], -1)
    return {"moved": np.array([moved], np.float32), "gradients": v[0, ::4, ::4]}


def _surface(device: Device, stored: Arrays) -> Arrays:
    array, (render, alphas, v_colors) = device.memory.array, surface_inputs()
    losses, splats = SurfaceLosses(device, dataset()), inputs.splats(6)
    normals, colors = splats.colors[..., :3], splats.colors[..., 3:]
    of_splats = replace(Splats.empty(device, 1, inputs.GAUSSIANS), depths=array(splats.depths), normals=array(normals))
    image = replace(Image.empty(device, 1, HEIGHT, WIDTH, 8, distortion=True), colors=array(render), alphas=array(alphas))
    target, v_alphas = losses.target(WIDTH, HEIGHT), array(np.zeros_like(alphas))
    with device.recording() as recorder:
        features = losses.record_features(recorder, of_splats, array(colors))
        shown = losses.record_colors(recorder, image, target)
        cameras = device_camera(device, inputs.camera())
        v_render = losses.record_gradient(recorder, 0, cameras, image, target, array(v_colors), v_alphas)
    packed = [normals, colors, splats.depths[..., None], np.zeros_like(splats.depths)[..., None]]
    moved = np.array_equal(features.numpy(), np.concatenate(packed, -1))
    moved &= np.array_equal(shown.numpy(), render[..., 3:6])
    moved &= np.array_equal(v_render.numpy()[..., 3:6], v_colors)
    v = np.concatenate([v_render.numpy()[..., :3], v_render.numpy()[..., 6:], v_alphas.numpy()], -1)
    return {"moved": np.array([moved], np.float32), "gradients": v[0, ::3, ::3]}


def surface_inputs() -> tuple[Floats, Floats, Floats]:
    """A render [1, H, W, 8] of a rough surface, its alphas, most of them above ½, and a gradient of colours."""
    render = inputs.uniform(74, -1, 1, 1, HEIGHT, WIDTH, 8)
    alphas = inputs.uniform(76, 0.45, 1, 1, HEIGHT, WIDTH, 1)
    render[..., 6:7] = alphas * inputs.uniform(75, 3.9, 4.1, 1, HEIGHT, WIDTH, 1)
    return render, alphas, inputs.uniform(78, -1, 1, 1, HEIGHT, WIDTH, 3)


def depth_inputs() -> tuple[Floats, Floats, Floats, Floats]:
    """A render [1, H, W, 4], its alphas, known depths of about half of the pixels, and a gradient of colours."""
    alphas = inputs.uniform(76, 0.1, 1, 1, HEIGHT, WIDTH, 1)
    depths = inputs.uniform(75, 1, 5, 1, HEIGHT, WIDTH, 1)
    render = np.concatenate([inputs.uniform(74, 0, 1, 1, HEIGHT, WIDTH, 3), alphas * depths], -1)
    known = np.maximum(inputs.uniform(77, -4, 5, HEIGHT, WIDTH), 0)
    return render, alphas, known, inputs.uniform(78, -1, 1, 1, HEIGHT, WIDTH, 3)


def of_few(scales: Floats, opacities: Floats, filters: Floats, v_scales: Floats, v_opacities: Floats) -> Arrays:
    """Results of every third Gaussian in few arrays, as stored."""
    smooth, gradients = np.column_stack([scales, opacities, filters]), np.column_stack([v_scales, v_opacities])
    return {"smooth": smooth[::3], "gradients": gradients[::3]}


def filter_gradients() -> tuple[Floats, Floats]:
    """∂L/∂(filtered scales and opacities)."""
    return inputs.uniform(97, -1, 1, inputs.GAUSSIANS, 3), inputs.uniform(98, -1, 1, inputs.GAUSSIANS)


def state_before() -> dict[str, Floats]:
    state = inputs.stored_gaussians()
    state |= {other: np.zeros_like(state[name]) for name in GROUPS for other in with_moments(name)[1:]}
    return state | {name: np.zeros(inputs.GAUSSIANS, np.float32) for name in Parameters.STATISTICS}


def _training_step(how: Accumulate, device: Device, stored: Arrays) -> Arrays:
    """A whole step of `splat train`: project, sort, rasterise, compare, backward and Adam. Its lists overflow at first."""
    checkpoint = Checkpoint(STEP, replace(CONFIG, accumulate=how), state_before(), capacity=8)
    trainer = Trainer(dataset(), device=device, resume=checkpoint)
    # Repeat the step whose lists overflowed.
    while trainer.step == STEP:
        trainer.advance()
        trainer.finish()
    state = trainer.checkpoint().state
    return {name: state[name] for name in stored}


def dataset(enlarged: int = 1) -> Dataset:
    """A dataset with one photograph in memory, its sides multiplied by `enlarged`."""
    view = cast(View, SimpleNamespace(camera=inputs.camera().scaled(enlarged)))
    images = cast(ImageStore, [np.kron(inputs.photograph(), np.ones((enlarged, enlarged, 1), np.uint8))])
    return Dataset(Path(), [view], [0], [], None, SCENE_SCALE, _BOUNDS, inputs.scene().backgrounds[0], images)


def few_state() -> dict[str, Floats]:
    found = {name: values[:FEW].copy() for name, values in state_before().items()}
    found["logit_opacities"][:_FAINT] = -7
    found["gradient_norms"] = inputs.uniform(97, 0.0, 1.0, FEW)
    return found


def rows(state: Arrays) -> Arrays:
    """Each Gaussian's mean, opacity logit and first log scale."""
    return {"rows": np.column_stack([state["means"], state["logit_opacities"], state["log_scales"][:, 0]])}


def _densify(device: Device, stored: Arrays) -> Arrays:
    parameters = Parameters(device, few_state())
    density.check_parameters(parameters, STEP)
    after = density.densify(parameters, REFINED, STEP, SCENE_SCALE)
    density.reset_opacities(after, REFINED)
    return rows(density.in_spatial_order(after, FEW_BOUNDS).state())


def _mcmc(device: Device, stored: Arrays) -> Arrays:
    parameters = Parameters(device, few_state())
    v = parameters.v_gaussians
    with device.recording() as recorder:
        recorder.clear(v.opacities)
        recorder.clear(v.scales)
        density.record_prior(recorder, parameters, *MCMC.regularizers)
        density.record_noise(recorder, parameters, MCMC, STEP, SCENE_SCALE, _counting(device))
    prior = np.column_stack([v.opacities.numpy(), v.scales.numpy()[:, 0]])
    return {"prior": prior, **rows(density.relocate_and_grow(parameters, MCMC, STEP).state())}


def state_of(name: str, seed: int, *shape: int) -> Arrays:
    """A learnt array before the step, with its moments."""
    values, first, second = (inputs.uniform(seed + i, low, 0.2, *shape) for i, low in enumerate((-0.2, -0.2, 0.1)))
    return {name: values, f"{name}.m": first, f"{name}.v": second}


def exposure_state() -> Arrays:
    state = state_of("exposures", 97, PHOTOGRAPHS, 12)
    return state | {"exposures": np.eye(3, 4, dtype=np.float32).reshape(1, 12) + state["exposures"]}


def ppisp_state() -> Arrays:
    return state_of("exposures", 120, PHOTOGRAPHS, 9) | state_of("response", 123, 27)


# By name: the kind of look, the state before the step, and the range of light in the image, as powers may be steep at 0 and 1.
LOOKS = {"exposure": (AFFINE, exposure_state, (0.0, 1.0)), "ppisp": (PPISP, ppisp_state, (0.2, 0.6))}


def image(seed: int, low: float, high: float = 1.0) -> Floats:
    """An image [1, H, W, 3]."""
    return inputs.uniform(seed, low, high, 1, HEIGHT, WIDTH, 3)


def _look(kind: LookKind, state: Callable[[], Arrays], light: tuple[float, float], device: Device, stored: Arrays) -> Arrays:
    looks = Looks(device, kind, [0] * PHOTOGRAPHS, state())
    colors, v_colors = (device.memory.array(image(seed, *of)) for seed, of in ((100, light), (101, (-1.0, 1.0))))
    with device.recording() as recorder:
        shown = looks.record(recorder, PHOTOGRAPH, colors)
        parts = looks.record_backward(recorder, PHOTOGRAPH, colors, v_colors)
        looks.record_update(recorder, PHOTOGRAPH, parts, _counting(device), EPOCH, CAPTURE_STEP, PROGRESS)
    return {"shown": shown.numpy()[0, ::3], "v_colors": v_colors.numpy()[0, ::3], **looks.state()}


def grid_state() -> Arrays:
    return state_of("grids", 126, PHOTOGRAPHS, *GRID)


def _grids(device: Device, stored: Arrays) -> Arrays:
    grids = BilateralGrids(device, PHOTOGRAPHS, grid_state())
    colors, v_colors = (device.memory.array(image(seed, low)) for seed, low in ((100, 0.0), (101, -1.0)))
    with device.recording() as recorder:
        shown = grids.record(recorder, PHOTOGRAPH, colors)
        v_grid = grids.record_backward(recorder, PHOTOGRAPH, colors, v_colors)
        for photograph in (PHOTOGRAPH, 0):
            grids.record_update(recorder, photograph, v_grid, _counting(device), EPOCH, CAPTURE_STEP, PROGRESS)
    return {"shown": shown.numpy()[0, ::3], "v_colors": v_colors.numpy()[0, ::3], **some_of(grids.state())}


def some_of(state: Arrays) -> Arrays:
    """A part of the photograph's grid and of its moments."""
    return {name: values[PHOTOGRAPH].ravel()[::293] for name, values in state.items()}


def camera_state() -> Arrays:
    return state_of("poses", 102, PHOTOGRAPHS, 6) | state_of("intrinsics", 105, 7)


def _cameras(device: Device, stored: Arrays) -> Arrays:
    array = device.memory.array
    cameras = replace(device_camera(device, inputs.camera()), lenses=array(inputs.uniform(108, -0.1, 0.1, 1, 12)))
    refinement = CameraRefinement(device, PHOTOGRAPHS, 2.0, camera_state())
    v_cameras = array(inputs.uniform(109, -1, 1, 1, 28)), array(inputs.uniform(110, -1, 1, 1, 16))
    with device.recording() as recorder:
        refined = refinement.record(recorder, PHOTOGRAPH, cameras)
        refinement.record_update(
            recorder, PHOTOGRAPH, cameras, v_cameras, _counting(device), epoch=EPOCH, step=CAPTURE_STEP, progress=PROGRESS
        )
    assert refined.lenses is not None
    return {
        "viewmat": refined.viewmats.numpy()[0, :3],
        "K": refined.Ks.numpy()[0],
        "lens": refined.lenses.numpy()[0],
        **refinement.state(),
    }


def _environment(device: Device, stored: Arrays) -> Arrays:
    array, cameras = device.memory.array, device_camera(device, inputs.camera())
    rendered = replace(Image.empty(device, 1, HEIGHT, WIDTH, 3), colors=array(image(100, 0)), final_T=array(transmittance()))
    environment = LearntEnvironment(device, state_of("environment", 111, 16, 3))
    v_alphas = device.memory.empty((1, HEIGHT, WIDTH, 1))
    with device.recording() as recorder:
        shown = environment.record(recorder, cameras, rendered)
        surfaces = array(np.zeros(-(-HEIGHT * WIDTH // 32), np.uint32))
        parts = environment.record_backward(recorder, cameras, rendered, array(image(101, -1)), v_alphas, surfaces)
        environment.record_update(recorder, parts, _counting(device), CAPTURE_STEP, PROGRESS)
    return {"shown": shown.numpy()[0], "v_alphas": v_alphas.numpy()[0], **environment.state()}


def transmittance() -> Floats:
    """Transmittances [1, H, W]."""
    return inputs.uniform(114, 0, 1, 1, HEIGHT, WIDTH)


def over(shade: int) -> Floats:
    """A photograph [H, W, 4] over black (0) or white (1), in whole numbers; transparent pixels show part of the background."""
    opaque = inputs.photograph().astype(np.float32)
    opaque[..., :3] = opaque[..., :3] // 2 + shade * (inputs.bits(115, HEIGHT, WIDTH, 1) % np.uint32(128))
    return opaque


def _background(device: Device, stored: Arrays) -> Arrays:
    black, white = (device.memory.array(pack(over(shade).astype(np.uint8))) for shade in (0, 1))
    composed = device.memory.empty(black.shape, np.uint32)
    with device.recording() as recorder:
        record_composition(recorder, BACKGROUND, black, white, composed)
    return {"photograph": composed.numpy().view(np.uint8).reshape(HEIGHT, WIDTH, 4)}
