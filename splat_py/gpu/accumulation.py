"""How the gradients of many pixels add up in one Gaussian, and what torch's wish for determinism means for that.

The ways are those of parallel/gradient_accumulation.slang; benchmarks/README.md has what they cost. In software, waves have
eight lanes and barriers cost as much as all the rest: the sum over a wave is the default. On GPUs too, until one has been
measured: it needs neither group-shared memory nor barriers.
"""

import warnings
from typing import TYPE_CHECKING, Literal

from splat_py.base.errors import SplatError

if TYPE_CHECKING:
    from splat_py.gpu.device import Device

# The values of `accumulate` and `--accumulate`.
Accumulate = Literal["auto", "pixel", "wave", "group", "pair"]
_SLANG_TYPES = {"pixel": "PerPixel", "wave": "PerWave", "group": "PerGroup", "pair": "PerIntersection"}


def accumulation(device: "Device", name: Accumulate) -> str:
    """The Slang type for a way to add up gradients: "auto" is the device's, or "pair" where torch is to be deterministic;
    SplatError if the name means nothing."""
    import torch

    if name == "auto":
        return "PerIntersection" if torch.are_deterministic_algorithms_enabled() else device.tuning.accumulation
    if name not in _SLANG_TYPES:
        raise SplatError(f"accumulate is {name!r}; use auto, {', '.join(_SLANG_TYPES)}")
    return _SLANG_TYPES[name]


def alert_not_deterministic(what: str) -> None:
    """Where gradients add up atomically, in any order: SplatError, or a warning, if `torch.use_deterministic_algorithms` asks
    for one."""
    import torch

    if not torch.are_deterministic_algorithms_enabled():
        return
    message = f"the gradient of {what} adds up in any order, which torch.use_deterministic_algorithms(True) forbids"
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise SplatError(f"{message}; turn that off around it, or use warn_only=True")
    warnings.warn(message, stacklevel=3)
