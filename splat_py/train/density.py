"""Densification: changes to the number of Gaussians every few steps, on the device (kernels/densify and
gaussian_rows.slang). `TrainConfig.strategy` is one of two:

default (Kerbl et al. 2023, section 5.2) clones, splits and prunes. mcmc (Kheradmand et al. 2024) adds 0.01 mean(o) + 0.01
mean(s) to the loss, so that unneeded Gaussians fade; faded Gaussians move to opaque ones and share their opacity; Langevin
noise moves the faint ones in between.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from splat_py.base.errors import RankLostError, SplatError
from splat_py.fit.distributed import ALONE, Ranks
from splat_py.fit.steps import AdamArrays, Use, check_finite, random_key, with_moments
from splat_py.gpu.accumulation import Accumulate
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sorting import Pairs, PrefixSum, RadixSort
from splat_py.gpu.sources import constant
from splat_py.render.information import information
from splat_py.render.views import blending_weights
from splat_py.scene.dataset import Dataset
from splat_py.scene.gaussians import Gaussians
from splat_py.train.config import TrainConfig
from splat_py.train.parameters import WEIGHTS, Parameters, groups_of

# Bits of the sort keys of gradients and of Morton codes.
_GRADIENT_BITS, _PLACE_BITS = 32, 3 * constant("kernels/densify", "BITS")
_CHECK_RUN = constant("kernels/gaussian_rows", "RUN")  # floats per thread
_NOISE_LR = 5e5  # relative to the learning rate of the means
_GROWTH = 1.05  # factor on the number of Gaussians each time
# Opacities become integer weights up to this, the largest range that float32 holds exactly, if their sum allows.
_FINEST = 1 << 24


@dataclass(frozen=True)
class Removal:
    step: int
    before: int
    after: int


def densify(parameters: Parameters, config: TrainConfig, step: int, scene_scale: float) -> Parameters:
    """Clone small Gaussians with large screen-space gradients, split large ones, remove faint ones and, once opacities have
    been reset, huge ones. If more would grow than `config.max_gaussians` allows, those with the largest gradients do. New
    Gaussians start with zero moments; statistics restart. `parameters` do not change, and no kernel that writes them may be
    running. SplatError if no Gaussian is left."""
    device, count = parameters.device, parameters.count
    most, has_reset = max(config.max_gaussians - count, 0), step >= config.opacity_reset_every
    sums = PrefixSum(device, 4 * count)
    with device.recording() as recorder:
        keys, order = (recorder.scratch((count,), np.uint32) for _ in range(2))
        counts = recorder.scratch((4 * count,), np.uint32)
        limits = {
            "grow_grad": config.grow_grad2d,
            "most": most,
            "split_scale": config.split_scale * scene_scale,
            "prune_opacity": config.prune_opacity,
            "prune_scale": config.prune_scale * scene_scale if has_reset else float(np.finfo(np.float32).max),
        }
        statistics = {name: parameters.arrays[name] for name in ("gradient_norms", "times_seen")}
        _dispatch(recorder, "rankGradients", parameters, count, keys=keys, order=order, **limits, **statistics)
        if most < count:
            keys, order = _sorted(recorder, device, keys, order, _GRADIENT_BITS)
        _dispatch(recorder, "countRows", parameters, count, keys=keys, order=order, counts=counts, **limits)
        sums.record(recorder, counts)
    left = int(sums.total.numpy()[0])
    if left == 0:
        raise SplatError(
            f"no Gaussian is left after step {step + 1:,}: all have been pruned by prune_opacity ({config.prune_opacity:g}) or "
            f"prune_scale ({config.prune_scale:g}); lower the first, raise the second, or check that photographs and poses "
            "belong together"
        )
    with device.recording() as recorder:
        origins = recorder.scratch((left,), np.uint32)
        _dispatch(recorder, "listOrigins", parameters, 4 * count, offsets=sums.offsets, origins=origins)
        new = record_moved(recorder, parameters, origins)
        key = random_key(config.seed, step, Use.SPLIT)
        _dispatch(recorder, "placeHalves", parameters, 2 * count, offsets=sums.offsets, moved=new.gaussians, **key)
    return new


def _dispatch(recorder: Recorder, entry: str, parameters: Parameters, threads: int, **arguments: Any) -> None:
    stored, groups = parameters.gaussians, linear_groups(threads)
    recorder.dispatch("densify", entry, groups, gaussians=parameters.count, stored=stored, **arguments)


def _sorted(recorder: Recorder, device: Device, keys: Array, order: Array, bits: int) -> Pairs:
    count = device.memory.array(np.array([keys.size], np.uint32))
    return RadixSort(device, keys.size).record(recorder, Pairs(keys, order), count, bits)[0]


def reset_opacities(parameters: Parameters, config: TrainConfig) -> None:
    """Cap opacities at twice the pruning threshold, in place, and clear the momentum that would raise them again."""
    limit = 2 * config.prune_opacity
    logits, ceiling = AdamArrays.of(parameters.arrays, "logit_opacities"), math.log(limit / (1 - limit))
    with parameters.device.recording() as recorder:
        _dispatch(recorder, "resetOpacities", parameters, parameters.count, ceiling=ceiling, logits=logits)


def relocate_and_grow(parameters: Parameters, config: TrainConfig, step: int) -> Parameters:
    """Move Gaussians with an opacity of at most `config.prune_opacity` onto others, drawn by opacity; then add 5 % in the same
    way, up to `config.max_gaussians`. All Gaussians at one place share the opacity and the extent of the original one
    (slang/splat/mcmc.slang). `parameters` change in place and must not be used again if the result has more Gaussians; no
    kernel that writes them may be running. SplatError if no Gaussian is left."""
    count = parameters.count
    rows = max(min(int(_GROWTH * count), config.max_gaussians), count)
    recorder = parameters.device.record()
    alive, origins, copies = _record_draw(recorder, parameters, config, step, count)
    # Each row becomes a copy of its origin. No origin is itself a copy; origins with copies lose their moments.
    for name in groups_of(parameters.arrays):
        _dispatch_rows(recorder, "relocateRows", origins, AdamArrays.of(parameters.arrays, name), copies=copies)
    after = parameters
    if rows > count:
        _, origins, _ = _record_draw(recorder, parameters, config, step, rows)
        after = record_moved(recorder, parameters, origins)
    recorder.submit()
    if alive.total.numpy()[0] == 0:
        raise SplatError(
            f"no Gaussian is left after step {step + 1:,}: all have faded to prune_opacity ({config.prune_opacity:g}); lower "
            "it, or check that photographs and poses belong together"
        )
    return after


def _record_draw(
    recorder: Recorder, parameters: Parameters, config: TrainConfig, step: int, rows: int
) -> tuple[PrefixSum, Array, Array]:
    """Draw the Gaussians that dead ones move to, or that new ones copy if `rows` exceeds the count, and share opacity and
    extent there. Returns the weights' prefix sums, the origins [rows] and the number of copies of each Gaussian [N]."""
    count = parameters.count
    sums = PrefixSum(parameters.device, count)
    weights, copies = (recorder.scratch((count,), "uint32") for _ in range(2))
    origins = recorder.scratch((rows,), "uint32")
    grows = rows > count

    least, resolution = config.prune_opacity, min(_FINEST, ((1 << 32) - 1) // count - 1)
    key = random_key(config.seed, step, Use.GROWTH if grows else Use.RELOCATION)
    dead = {"draws_dead": int(grows), "min_opacity": least}
    drawn = {"origins": origins, "copies": copies, "offsets": sums.offsets, "rows": rows}
    recorder.clear(copies)
    _dispatch(recorder, "weigh", parameters, count, counts=weights, resolution=resolution, **dead)
    sums.record(recorder, weights)
    _dispatch(recorder, "drawOrigins", parameters, rows, **drawn, **dead, **key)
    _dispatch(recorder, "shareOpacities", parameters, count, copy_counts=copies, min_opacity=least)
    return sums, origins, copies


def record_prior(recorder: Recorder, parameters: Parameters, opacity_reg: float, scale_reg: float) -> None:
    """Add the gradient of opacity_reg mean(o) + scale_reg mean(s) to the parameters' gradients."""
    count, v = parameters.count, parameters.v_gaussians
    weights = {"opacity_weight": opacity_reg / count, "scale_weight": scale_reg / (3 * count)}
    recorder.stage("prior")
    _dispatch(recorder, "addPrior", parameters, count, v_log_scales=v.scales, v_logits=v.opacities, **weights)


def record_noise(
    recorder: Recorder, parameters: Parameters, config: TrainConfig, step: int, scene_scale: float, status: Array
) -> None:
    """Add a step's noise to the means, unless the step does not count (slang/splat/mcmc.slang)."""
    noise, key = _NOISE_LR * config.means_lr_at(step, scene_scale), random_key(config.seed, step, Use.NOISE)
    recorder.stage("noise")
    _dispatch(recorder, "addNoise", parameters, parameters.count, noise=noise, status=status, **key)


def record_moved(recorder: Recorder, parameters: Parameters, origins: Array) -> Parameters:
    """Return new parameters whose rows are copied from rows `origins`, [M] uint32; the highest bit marks a new row, whose
    moments start at 0. Statistics restart; arrays that all Gaussians share stay the same."""
    old, count, memory = parameters.arrays, origins.size, parameters.device.memory
    arrays: dict[str, Array] = {}
    for name in groups_of(old):
        names = with_moments(name)
        new = [memory.empty((count, *old[name].shape[1:])) for _ in names]
        arrays |= zip(names, new, strict=True)
        _dispatch_rows(recorder, "moveRows", origins, AdamArrays(*new), source=AdamArrays.of(old, name))
    for name in Parameters.STATISTICS:
        arrays[name] = recorder.zeros((count,))
    return Parameters(parameters.device, {**old, **arrays})


def _dispatch_rows(recorder: Recorder, entry: str, origins: Array, target: AdamArrays, **arguments: Any) -> None:
    """Write rows of `target`, as many as there are `origins`."""
    rows, groups = origins.size, linear_groups(origins.size)
    row = target.parameters.size // rows
    recorder.dispatch("gaussian_rows", entry, groups, rows=rows, row=row, origins=origins, target=target, **arguments)


def check_parameters(parameters: Parameters, step: int) -> None:
    """Raise a SplatError that names the first array which holds NaN or infinity after `step` steps."""
    found = parameters.device.memory.array(np.zeros(1, np.uint32))
    with parameters.device.recording() as recorder:
        for array in parameters.arrays.values():
            groups, count = linear_groups(-(-array.size // _CHECK_RUN)), array.size
            recorder.dispatch("gaussian_rows", "findNotFinite", groups, count=count, values=array, not_finite=found)
    if found.numpy()[0]:
        check_finite(parameters.state(), step)


def in_spatial_order(parameters: Parameters, bounds: NDArray[np.float64]) -> Parameters:
    """Return the same Gaussians sorted by the Morton codes of their means; statistics restart. No kernel that writes them may
    be running. `bounds` [2, 3] are two corners of a box; means outside it get the codes of its faces."""
    device, count = parameters.device, parameters.count
    low, high = bounds
    with device.recording() as recorder:
        keys, order = (recorder.scratch((count,), np.uint32) for _ in range(2))
        cube = dict(zip(("low_X", "low_Y", "low_Z", "side"), map(float, (*low, np.max(high - low))), strict=True))
        _dispatch(recorder, "mortonKeys", parameters, count, keys=keys, order=order, **cube)
        _, origins = _sorted(recorder, device, keys, order, _PLACE_BITS)
        return record_moved(recorder, parameters, origins)


def contributions(
    gaussians: Gaussians,
    dataset: Dataset,
    *,
    antialiased: bool = False,
    accumulate: Accumulate = "auto",
    device: Device | None = None,
) -> NDArray[np.float32]:
    """Return each Gaussian's blending weights α T, summed over a photograph's pixels that count, in the training view where the
    sum is largest [N].

    This is the number of pixels that would change colour without the Gaussian. Mini-Splatting (Fang and Wang 2024) prunes by
    sums of blending weights, RadSplat (Niemeyer et al. 2024) by the largest ones.
    """
    most = np.zeros(len(gaussians), np.float32)
    how: dict[str, Any] = {"antialiased": antialiased, "near": dataset.near, "accumulate": accumulate, "device": device}
    for view in dataset.train:
        counts = torch.from_numpy((dataset.image(view)[..., 3] > 0).astype(np.float32))
        most = np.maximum(most, blending_weights(gaussians, dataset.views[view].camera, counts, **how))
    return most


def prune(
    parameters: Parameters, gaussians: Gaussians, dataset: Dataset, config: TrainConfig, step: int, ranks: Ranks = ALONE
) -> tuple[Parameters, Removal]:
    """Remove the Gaussians that contribute less than `config.prune_contribution`, and the share `config.prune_information` with
    the least information about their opacities, measured on `gaussians`. Each of `ranks` measures its share of the photographs.
    SplatError if none is left, a parameter is not finite, or a process has ended."""
    state, least, kept = parameters.state(), config.prune_contribution, np.ones(parameters.count, bool)
    check_finite(state, step + 1)
    share = replace(dataset, train=dataset.train[ranks.rank :: ranks.size], _images=dataset._images)
    how: dict[str, Any] = {"antialiased": config.antialiased, "accumulate": config.accumulate, "device": parameters.device}
    try:
        if least > 0:
            kept = ranks.largest_values(contributions(gaussians, share, **how)) >= least
        if config.prune_information > 0:
            found = information(gaussians, share.train_cameras, probes=1, seed=step, near=dataset.near, **how)
            # o ∂/∂o is the change to first order where the Gaussian is removed; ∂/∂logit would vanish with 1 - o.
            known = found["logit_opacities"] / (1 - gaussians.opacities).clamp(min=1e-6) ** 2
            order = np.argsort(ranks.total(known.tolist()), kind="stable")
            kept[order[: int(config.prune_information * parameters.count)]] = False
    except RankLostError as error:
        # Not a RankLostError, which writes a checkpoint: these Gaussians have been refined but not pruned.
        raise SplatError(str(error)) from error
    if not kept.any():
        raise SplatError(f"no Gaussian contributes prune_contribution ({least:g}) pixels to any photograph; lower it")
    rows = {name: values if name.partition(".")[0] == WEIGHTS else values[kept] for name, values in state.items()}
    left = Parameters(parameters.device, rows)
    return left, Removal(step + 1, parameters.count, left.count)
