"""What training does beside rendering: loss, Adam, the statistics of densification, and whole steps."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np

from splat_py.gpu.accumulation import Accumulate
from splat_py.gpu.device import Device, Operator
from splat_py.gpu.kernels import linear_groups
from splat_py.scene.dataset import Dataset
from splat_py.scene.images import ImageStore, View
from splat_py.selftest import inputs
from splat_py.selftest.cases.case import Arrays, Case
from splat_py.selftest.inputs import HEIGHT, WIDTH, Floats
from splat_py.splats.batch import BatchSums
from splat_py.splats.camera_arrays import device_camera
from splat_py.splats.checkpoint import Checkpoint
from splat_py.splats.config import TrainConfig
from splat_py.splats.data import GaussianArrays
from splat_py.splats.depth_supervision import DepthSupervision
from splat_py.splats.filter_3d import FILTER, Filter3D
from splat_py.splats.loss import SUMS, PhotometricLoss, pack
from splat_py.splats.parameter_means import MEAN, ParameterMeans
from splat_py.splats.parameters import GROUPS, MOMENTS, Parameters
from splat_py.splats.rasterize import Image
from splat_py.splats.trainer import Trainer

# A run of twelve steps, of which the fourth is done here: degree 3, and no densification.
# Learning rates are those that the stored step was taken with, not a short run's.
STEP = 3
_HASTE = TrainConfig(steps=12).haste
CONFIG = TrainConfig(
    steps=12,
    sh_degree=3,
    seed=1,
    means_lr=1.6e-4 * 0.01 ** (STEP / 12) / TrainConfig(steps=12, means_lr=1.0).means_lr_at(STEP, 1.0),
    quats_lr=1e-3 / math.sqrt(_HASTE),
    scales_lr=5e-3 / math.sqrt(_HASTE),
    opacities_lr=5e-2 / math.sqrt(_HASTE),
    sh0_lr=2.5e-3 / _HASTE,
)
SCENE_SCALE = 2.0
_BOUNDS = np.array([[-1.6, -1.4, 3.0], [1.6, 1.4, 5.0]])
# Floats of a Gaussian in a parameter tensor, and how many of them learn at a rate of their own.
ADAM_ROWS = ((1, 0), (3, 3), (48, 3))


def cases() -> list[Case]:
    """Each kernel, then steps with both kinds of gradient accumulation: atomic, and in a fixed order."""
    needs = (Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD)
    return [
        Case("loss and SSIM", "loss", _loss, needs=needs),
        *(Case(f"Adam, rows of {row}", f"adam {row}", partial(_adam, row, head), needs=needs) for row, head in ADAM_ROWS),
        Case("densification statistics", "statistics", _statistics, needs=needs),
        Case("statistics of a batch", "statistics", _batch, needs=needs),
        Case("means of steps", "means", _means, needs=needs),
        Case("3D smoothing filter", "filter", _filter, needs=needs),
        Case("depth beside colours", "depth", _depth, needs=needs),
        *(Case(f"training step, {how}", "training", partial(_training_step, how), needs=needs) for how in ("auto", "pair")),
    ]


def _loss(device: Device, stored: Arrays) -> Arrays:
    loss = PhotometricLoss(device, WIDTH, HEIGHT, ssim_lambda=0.2)
    sums = device.memory.empty(SUMS)
    render = device.memory.array(inputs.uniform(32, -0.1, 1.2, 1, HEIGHT, WIDTH, 3))
    recorder = device.record()
    loss.record(recorder, render, device.memory.array(pack(inputs.photograph())), sums)
    recorder.submit()
    return {"v_render": loss.v_render.numpy()[0], "sums": sums.numpy().sum(0)}


def _adam(row: int, head: int, device: Device, stored: Arrays) -> Arrays:
    shape = (7, row)
    arrays = {
        "parameters": device.memory.array(inputs.uniform(91, -1, 1, *shape)),
        "gradients": device.memory.array(inputs.uniform(92, -1, 1, *shape)),
        "firstMoments": device.memory.array(inputs.uniform(93, -1, 1, *shape)),
        "secondMoments": device.memory.array(inputs.uniform(94, 0.1, 1, *shape)),
        "status": device.memory.array(np.zeros(3, np.uint32)),
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
        "least": 0.0,
        "largest": 0.0,
    }
    recorder = device.record()
    recorder.dispatch("optimize", "adam", linear_groups(-(-7 * row // 4)), uniforms, arrays, ROW=row, HEAD=head)
    recorder.submit()
    return {name: arrays[name].numpy() for name in ("parameters", "firstMoments", "secondMoments")}


def _statistics(device: Device, stored: Arrays) -> Arrays:
    n = inputs.GAUSSIANS
    state = {name: values.copy() for name, values in state_before().items()}
    parameters = Parameters(device, state)
    radii = (inputs.bits(95, 1, n, 2) % np.uint32(9)).astype(np.int32)
    recorder = device.record()
    v_splats = device.memory.array(inputs.uniform(96, -1, 1, 1, n, 9))
    status = device.memory.array(np.zeros(3, np.uint32))
    parameters.record_statistics(recorder, v_splats, device.memory.array(radii), WIDTH, HEIGHT, status)
    recorder.submit()
    after = parameters.state()
    return {name: after[name] for name in Parameters.STATISTICS}


def _batch(device: Device, stored: Arrays) -> Arrays:
    """Of two photographs that are the same: the statistics of one, twice, and its gradients as their mean."""
    parameters, array = Parameters(device, state_before()), device.memory.array
    batch, v = BatchSums(parameters), inputs.uniform(99, -1, 1, inputs.GAUSSIANS, 3)
    radii = array((inputs.bits(95, 1, inputs.GAUSSIANS, 2) % np.uint32(9)).astype(np.int32))
    v_splats, status = array(inputs.uniform(96, -1, 1, 1, inputs.GAUSSIANS, 9)), array(np.zeros(3, np.uint32))
    parameters.v_gaussians.means.write(v)
    recorder = device.record()
    batch.begin(recorder)
    for _ in range(2):
        parameters.record_statistics(recorder, v_splats, radii, WIDTH, HEIGHT, status, batch.statistics)
        batch.add(recorder, v_splats)
    batch.end(recorder, 2, status)
    recorder.submit()
    after, mean = parameters.state(), np.array_equal(parameters.v_gaussians.means.numpy(), v)
    twice = {"gradient_norms": 2, "times_seen": 2, "max_radii": 1}
    return {name: after[name] / number if mean else np.full_like(after[name], np.nan) for name, number in twice.items()}


def _means(device: Device, stored: Arrays) -> Arrays:
    """Of three steps, between which is one that does not count."""
    means, array = ParameterMeans(device, first=0), device.memory.array
    for step, counts in ((0, True), (1, True), (2, False), (2, True)):
        scales = inputs.uniform(120 + step, -1, 1, inputs.GAUSSIANS, 3)
        parameters = Parameters(device, state_before() | {"log_scales": scales if counts else scales + 1})
        recorder = device.record()
        means.record(recorder, parameters, step, array(np.array([not counts, 0, 0], np.uint32)))
        recorder.submit()
    return {"log_scales": means.state()["log_scales" + MEAN][::3]}


def _filter(device: Device, stored: Arrays) -> Arrays:
    state, array = inputs.stored_gaussians(), device.memory.array
    raw = GaussianArrays(*(array(state[name]) for name in GROUPS[:4]))
    smoothing = Filter3D(device, lambda: [(device_camera(device, inputs.camera()), "Pinhole")], near=4.0)
    v_scales, v_opacities = filter_gradients()
    v = replace(raw, scales=array(v_scales), opacities=array(v_opacities))
    recorder = device.record()
    smooth = smoothing.record(recorder, raw, 0, array(np.zeros(3, np.uint32)))
    smoothing.record_backward(recorder, v)
    recorder.submit()
    filters = smoothing.state(raw)[FILTER]
    return of_few(smooth.scales.numpy(), smooth.opacities.numpy(), filters, v.scales.numpy(), v.opacities.numpy())


def _depth(device: Device, stored: Arrays) -> Arrays:
    array, (render, alphas, known, v_colors) = device.memory.array, depth_inputs()
    supervision = DepthSupervision(device, dataset(), 0.3, {0: known})
    splats, v_splats = inputs.splats(4), array(inputs.uniform(79, -1, 1, 1, inputs.GAUSSIANS, 10))
    image = replace(Image.empty(device, 1, HEIGHT, WIDTH, 4), colors=array(render), alphas=array(alphas))
    target, v_alphas, v_depths = supervision.target(WIDTH, HEIGHT), array(np.zeros_like(alphas)), array(splats.depths)
    recorder = device.record()
    features = supervision.record_features(recorder, array(splats.colors[..., :3]), array(splats.depths))
    colors = supervision.record_colors(recorder, image, target)
    v_render = supervision.record_gradient(recorder, 0, image, target, array(v_colors), v_alphas)
    supervision.record_splat_gradients(recorder, v_splats, v_depths)
    recorder.submit()
    moved = np.array_equal(features.numpy(), np.concatenate([splats.colors[..., :3], splats.depths[..., None]], -1))
    moved &= np.array_equal(colors.numpy(), render[..., :3]) and np.array_equal(v_depths.numpy(), v_splats.numpy()[..., 9])
    moved &= np.array_equal(v_render.numpy()[..., :3], v_colors)
    v = np.concatenate([v_render.numpy()[..., 3:], v_alphas.numpy()], -1)
    return {"moved": np.array([moved], np.float32), "gradients": v[0, ::4, ::4]}


def depth_inputs() -> tuple[Floats, Floats, Floats, Floats]:
    """A render [1, H, W, 4] with its alphas, depths that are known of half of the pixels, and a gradient of colours."""
    alphas = inputs.uniform(76, 0.1, 1, 1, HEIGHT, WIDTH, 1)
    depths = inputs.uniform(75, 1, 5, 1, HEIGHT, WIDTH, 1)
    render = np.concatenate([inputs.uniform(74, 0, 1, 1, HEIGHT, WIDTH, 3), alphas * depths], -1)
    known = np.maximum(inputs.uniform(77, -4, 5, HEIGHT, WIDTH), 0)
    return render, alphas, known, inputs.uniform(78, -1, 1, 1, HEIGHT, WIDTH, 3)


def of_few(scales: Floats, opacities: Floats, filters: Floats, v_scales: Floats, v_opacities: Floats) -> Arrays:
    """Some Gaussians' results in few arrays, as they are stored."""
    smooth, gradients = np.column_stack([scales, opacities, filters]), np.column_stack([v_scales, v_opacities])
    return {"smooth": smooth[::3], "gradients": gradients[::3]}


def filter_gradients() -> tuple[Floats, Floats]:
    """Of filtered scales and opacities."""
    return inputs.uniform(97, -1, 1, inputs.GAUSSIANS, 3), inputs.uniform(98, -1, 1, inputs.GAUSSIANS)


def state_before() -> dict[str, Floats]:
    """The scene before a step, with its optimiser fresh."""
    state = inputs.stored_gaussians()
    for name in GROUPS:
        for moment in MOMENTS:
            state[f"{name}.{moment}"] = np.zeros_like(state[name])
    return state | {name: np.zeros(inputs.GAUSSIANS, np.float32) for name in Parameters.STATISTICS}


def _training_step(how: Accumulate, device: Device, stored: Arrays) -> Arrays:
    """Project, sort, rasterise, compare, and backward to Adam, as `splat train` does it. Lists run out of capacity first."""
    checkpoint = Checkpoint(STEP, replace(CONFIG, accumulate=how), state_before(), capacity=8)
    trainer = Trainer(dataset(), device=device, resume=checkpoint)
    # A step that ran out of capacity is repeated.
    while trainer.step == STEP:
        trainer.advance()
        trainer.finish()
    state = trainer.checkpoint().state
    return {name: state[name] for name in stored}


def dataset(enlarged: int = 1) -> Dataset:
    """One photograph, in memory, its sides multiplied."""
    view = cast(View, SimpleNamespace(camera=inputs.camera().scaled(enlarged)))
    images = cast(ImageStore, [np.kron(inputs.photograph(), np.ones((enlarged, enlarged, 1), np.uint8))])
    background = inputs.scene().backgrounds[0]
    return Dataset(Path(), [view], [0], [], None, SCENE_SCALE, _BOUNDS, background, images)
