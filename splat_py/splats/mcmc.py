"""3D Gaussian Splatting as Markov Chain Monte Carlo (Kheradmand et al. 2024), on the device: relocation, growth, noise, prior.

The loss gets 0.01 mean(o) + 0.01 mean(s), so that Gaussians fade which do not have to be there. Those that have faded
move to where opaque ones are, and share their opacity; Langevin noise moves the faint ones in between.
"""

from __future__ import annotations

from splat_py.errors import SplatError
from splat_py.fit.random_keys import Use, random_key
from splat_py.gpu.arrays import Array
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sorting import PrefixSum
from splat_py.splats.config import TrainConfig
from splat_py.splats.gaussian_rows import record_moved, record_relocation
from splat_py.splats.parameters import Parameters

# Noise, relative to the learning rate of the means.
_NOISE_LR = 5e5
# By how much the number of Gaussians grows each time.
_GROWTH = 1.05
# Opacities are weighed in whole numbers: the largest that float32 holds, where their sum allows.
_FINEST = 1 << 24


def relocate_and_grow(parameters: Parameters, config: TrainConfig, step: int) -> Parameters:
    """Move Gaussians of an opacity of `config.prune_opacity` or less to where others are, drawn by opacity, then add 5 % in the
    same way, to `config.max_gaussians` at most. All in one place share the opacity and the extent of the one that was there
    (slang/splat/relocation.slang). Nothing may be running that writes the parameters.

    Args:
        parameters: changed in place, and of no use afterwards if there are more now.

    Raises:
        SplatError: no Gaussian is left.
    """
    count = parameters.count
    rows = max(min(int(_GROWTH * count), config.max_gaussians), count)
    recorder = parameters.device.record()
    alive, origins, copies = _record_draw(recorder, parameters, config, step, count)
    record_relocation(recorder, parameters, origins, copies)
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
    """Draw where dead Gaussians move, or new ones come if `rows` are more than there are, and share opacity and extent there.

    Returns:
        The weights' sums, the origins [rows] and how many come to each Gaussian [N].
    """
    count, arrays = parameters.count, parameters.arrays
    sums = PrefixSum(parameters.device, count)
    weights, copies = (recorder.scratch((count,), "uint32") for _ in range(2))
    origins = recorder.scratch((rows,), "uint32")
    grows = rows > count
    uniforms = {
        "gaussians": count,
        "rows": rows,
        "minOpacity": config.prune_opacity,
        "resolution": min(_FINEST, ((1 << 32) - 1) // count - 1),
        "drawsDead": int(grows),
        **random_key(config.seed, step, Use.GROWTH if grows else Use.RELOCATION),
    }
    buffers = {
        "logScales": arrays["log_scales"],
        "logits": arrays["logit_opacities"],
        "weights": weights,
        "offsets": sums.offsets,
        "origins": origins,
        "copies": copies,
        "copyCounts": copies,
    }

    def dispatch(entry: str, threads: int, *names: str) -> None:
        recorder.dispatch("mcmc", entry, linear_groups(threads), uniforms, {name: buffers[name] for name in names})

    recorder.clear(copies)
    dispatch("weigh", count, "logits", "weights")
    sums.record(recorder, weights)
    dispatch("drawForNew" if grows else "drawForDead", rows, *(() if grows else ("logits",)), "offsets", "origins", "copies")
    dispatch("shareOpacities", count, "logits", "logScales", "copyCounts")
    return sums, origins, copies


def record_prior(recorder: Recorder, parameters: Parameters, opacity_reg: float, scale_reg: float) -> None:
    """Add the gradient of opacity_reg mean(o) + scale_reg mean(s) to the parameters'."""
    count, v = parameters.count, parameters.v_gaussians
    recorder.stage("prior")
    recorder.dispatch(
        "mcmc",
        "addPrior",
        linear_groups(count),
        {"gaussians": count, "opacityWeight": opacity_reg / count, "scaleWeight": scale_reg / (3 * count)},
        {
            "logScales": parameters.arrays["log_scales"],
            "logits": parameters.arrays["logit_opacities"],
            "vLogScales": v.scales,
            "vLogits": v.opacities,
        },
    )


def record_noise(
    recorder: Recorder, parameters: Parameters, config: TrainConfig, step: int, scene_scale: float, status: Array
) -> None:
    """Add a step's noise to the means, unless the step does not count (slang/splat/langevin.slang)."""
    arrays = parameters.arrays
    recorder.stage("noise")
    recorder.dispatch(
        "mcmc",
        "addNoise",
        linear_groups(parameters.count),
        {
            "gaussians": parameters.count,
            "noise": _NOISE_LR * config.means_lr_at(step, scene_scale),
            **random_key(config.seed, step, Use.NOISE),
        },
        {
            "status": status,
            "means": arrays["means"],
            "quats": arrays["quats"],
            "logScales": arrays["log_scales"],
            "logits": arrays["logit_opacities"],
        },
    )
