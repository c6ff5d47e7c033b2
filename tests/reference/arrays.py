"""The reference's arrays, and as what torch differentiates them."""

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def leaf(array: npt.ArrayLike) -> torch.Tensor:
    """A float64 tensor that wants a gradient."""
    return torch.tensor(array, dtype=torch.float64, requires_grad=True)
