"""The reference's arrays, and their conversion to torch leaves."""

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def leaf(array: npt.ArrayLike) -> torch.Tensor:
    """A float64 tensor with requires_grad."""
    return torch.tensor(array, dtype=torch.float64, requires_grad=True)
