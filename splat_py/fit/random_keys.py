"""Keys of the device's random numbers (slang/splat/random.slang): of the seed, the step and the use."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Use(IntEnum):
    """What random numbers are for; no two share any."""

    SPLIT = 0
    RELOCATION = 1
    GROWTH = 2
    NOISE = 3


def random_key(seed: int, step: int, use: Use) -> dict[str, int]:
    """Two words, as the uniforms `key0` and `key1` of kernels."""
    low, high = np.random.SeedSequence((seed, step, use)).generate_state(2)
    return {"key0": int(low), "key1": int(high)}
