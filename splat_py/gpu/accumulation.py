"""Ways to add up a Gaussian's gradients over many pixels, also with torch's deterministic algorithms.

The strategies are those of parallel/gradient_accumulation.slang; benchmarks/README.md has their costs. The sum over a wave is
the default: in software, waves have eight lanes, and barriers cost as much as all the rest. It is also the default on GPUs
until one is measured, because it needs neither group-shared memory nor barriers.
"""

import warnings
from typing import TYPE_CHECKING, Literal

from splat_py.base.errors import SplatError
from splat_py.base.fields import shown

if TYPE_CHECKING:
    from splat_py.gpu.device import Device

# The values of `accumulate` and `--accumulate`.
Accumulate = Literal["auto", "pixel", "wave", "group", "pair"]
_SLANG_TYPES = {"pixel": "PerPixel", "wave": "PerWave", "group": "PerGroup", "pair": "PerIntersection"}


def accumulation(device: "Device", name: Accumulate) -> str:
    """Return a strategy's Slang type: "auto" is the device's, or "pair" if torch uses deterministic algorithms; SplatError if
    the name is unknown."""
    import torch

    if not isinstance(name, str) or name not in ("auto", *_SLANG_TYPES):
        raise SplatError(f"accumulate is {shown(name)}; use auto, {', '.join(_SLANG_TYPES)}")
    if name == "auto":
        return "PerIntersection" if torch.are_deterministic_algorithms_enabled() else device.tuning.accumulation
    return _SLANG_TYPES[name]


def alert_not_deterministic(what: str) -> None:
    """Raise SplatError, or warn, if `torch.use_deterministic_algorithms` is on, for gradients that add up atomically, in any
    order."""
    import torch

    if not torch.are_deterministic_algorithms_enabled():
        return
    message = f"the gradient of {what} adds up in any order, which torch.use_deterministic_algorithms(True) forbids"
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise SplatError(f"{message}; turn that off around it, or use warn_only=True")
    warnings.warn(message, stacklevel=3)
