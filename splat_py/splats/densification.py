"""Adaptive density control (Kerbl et al. 2023, section 5.2): clone, split and prune every hundred steps, on the device."""

from __future__ import annotations

import math

import numpy as np

from splat_py.errors import SplatError
from splat_py.fit.random_keys import Use, random_key
from splat_py.gpu.kernels import linear_groups
from splat_py.gpu.sorting import PrefixSum, RadixSort
from splat_py.splats.config import TrainConfig
from splat_py.splats.gaussian_rows import record_moved
from splat_py.splats.parameters import Parameters

# Bits of the keys that gradients are sorted by.
_KEY_BITS = 32


def densify(parameters: Parameters, config: TrainConfig, step: int, scene_scale: float) -> Parameters:
    """Clone small Gaussians with large screen-space gradients, split large ones, remove faint ones and, once opacities have
    been reset, huge ones. Where more would grow than `config.max_gaussians` allows, those of the largest gradients do. New
    Gaussians start with zero moments; the statistics start anew. Nothing may be running that writes the parameters.

    Args:
        parameters: not changed.
        scene_scale: world units, from the dataset.

    Raises:
        SplatError: no Gaussian is left.
    """
    device, count, arrays = parameters.device, parameters.count, parameters.arrays
    most = max(config.max_gaussians - count, 0)
    resets = step >= config.opacity_reset_every
    uniforms = {
        "gaussians": count,
        "growGrad": config.grow_grad2d,
        "most": most,
        "splitScale": config.split_scale * scene_scale,
        "pruneOpacity": config.prune_opacity,
        "pruneScale": config.prune_scale * scene_scale if resets else float(np.finfo(np.float32).max),
        **random_key(config.seed, step, Use.SPLIT),
    }
    sums = PrefixSum(device, 4 * count)
    recorder = device.record()
    keys, order, grows = (recorder.scratch((count,), np.uint32) for _ in range(3))
    counts = recorder.scratch((4 * count,), np.uint32)
    buffers = {
        "gradientNorms": arrays["gradient_norms"],
        "timesSeen": arrays["times_seen"],
        "logScales": arrays["log_scales"],
        "logits": arrays["logit_opacities"],
        "quats": arrays["quats"],
    }

    def dispatch(entry: str, threads: int, **others: object) -> None:
        recorder.dispatch("density_control", entry, linear_groups(threads), uniforms, buffers | others)  # type: ignore[arg-type]

    dispatch("rankGradients", count, keys=keys, order=order)
    if most < count:
        all_of_them = device.memory.array(np.array([count], np.uint32))
        keys, order = RadixSort(device, count).record(recorder, keys, order, all_of_them, _KEY_BITS)
    dispatch("chooseGrowing", count, keys=keys, order=order, grows=grows)
    dispatch("countRows", count, grows=grows, counts=counts)
    sums.record(recorder, counts)
    recorder.submit()
    left = int(sums.total.numpy()[0])
    if left == 0:
        raise SplatError(
            f"no Gaussian is left after step {step + 1:,}: all have been pruned by prune_opacity ({config.prune_opacity:g}) or "
            f"prune_scale ({config.prune_scale:g}); lower the first, raise the second, or check that photographs and poses "
            "belong together"
        )
    recorder = device.record()
    origins = recorder.scratch((left,), np.uint32)
    dispatch("listOrigins", 4 * count, offsets=sums.offsets, origins=origins)
    new = record_moved(recorder, parameters, origins)
    halves = {"newMeans": new.arrays["means"], "newLogScales": new.arrays["log_scales"]}
    dispatch("placeHalves", 2 * count, offsets=sums.offsets, **halves)
    recorder.submit()
    return new


def reset_opacities(parameters: Parameters, config: TrainConfig) -> None:
    """In place: no opacity above twice the pruning threshold, and no momentum that would raise it again."""
    limit = 2 * config.prune_opacity
    name = "logit_opacities"
    recorder = parameters.device.record()
    recorder.dispatch(
        "density_control",
        "resetOpacities",
        linear_groups(parameters.count),
        {"gaussians": parameters.count, "ceiling": math.log(limit / (1 - limit))},
        {
            "newLogits": parameters.arrays[name],
            "firstMoments": parameters.arrays[f"{name}.m"],
            "secondMoments": parameters.arrays[f"{name}.v"],
        },
    )
    recorder.submit()
