"""A fit that has diverged is stopped: it would overwrite a good checkpoint with one that is lost."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from splat_py.errors import SplatError


def check_finite(arrays: Mapping[str, NDArray], step: int) -> None:
    """Raise a SplatError that names the first array which holds NaN or infinity after `step` steps."""
    for name, values in arrays.items():
        # The sum is finite if all are, unless it overflows; it needs no array of its own.
        with np.errstate(over="ignore", invalid="ignore"):
            total = values.sum(dtype=np.float64)
        if not np.isfinite(total) and not np.isfinite(values).all():
            raise diverged(name, step)


def diverged(name: str, step: int) -> SplatError:
    """That something is no longer finite after `step` steps."""
    return SplatError(
        f"stopped after step {step:,}: NaN or infinity in {name}; lower the learning rates and check the input; "
        "a checkpoint from before stays as it is"
    )
