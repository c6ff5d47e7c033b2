"""PPISP (Deutsch et al. 2026) in float64: photographs' colours, gradients by torch, and the learning step."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from tests.reference.adam import adam_step
from tests.reference.arrays import Array

# Floats of a photograph; then those that all share.
OWN = 9
# Blue, red, green and grey in the plane of red and green shares, and how the paper scales two numbers of each.
_PRIMARIES = torch.tensor([[0.0, 0], [1, 0], [0, 1], [1 / 3, 1 / 3]], dtype=torch.float64)
_SCALES = torch.tensor(
    [
        [[0.0480542, -0.0043631], [-0.0043631, 0.0481283]],
        [[0.0580570, -0.0179872], [-0.0179872, 0.0431061]],
        [[0.0433336, -0.0180537], [-0.0180537, 0.0580500]],
        [[0.0128369, -0.0034654], [-0.0034654, 0.0128158]],
    ],
    dtype=torch.float64,
)


def places(height: int, width: int) -> Tensor:
    """Pixel centres [H, W, 2] from the image's, in units of its longer side."""
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    return torch.stack([x - width / 2, y - height / 2], -1).double() / max(height, width)


def homography(numbers: Tensor) -> Tensor:
    """The map [3, 3] of (red, green, sum) that moves the primaries and grey by eight numbers."""
    moved = torch.einsum("pij,pj->pi", _SCALES, numbers.reshape(4, 2)) + _PRIMARIES
    before, after = (torch.cat([points, torch.ones(4, 1).double()], 1).T for points in (_PRIMARIES, moved))
    # Each primary is stretched so that their sum is a multiple of grey, before and after.
    weights = [torch.linalg.solve(points[:, :3], points[:, 3]) for points in (before, after)]
    return (after[:, :3] * weights[1]) @ torch.linalg.inv(before[:, :3] * weights[0])


def develop(row: Tensor, colors: Tensor) -> Tensor:
    """Photograph's colours: [36], [H, W, 3] → [H, W, 3]."""
    light = colors * 2 ** row[0]
    vignetting, curve = row[OWN:24].reshape(3, 5), row[24:].reshape(3, 4)
    r2 = ((places(*colors.shape[:2])[..., None, :] - vignetting[:, :2]) ** 2).sum(-1)
    light = light * (1 + sum(vignetting[:, 2 + k] * r2 ** (k + 1) for k in range(3))).clamp(0, 1)

    total = light.sum(-1, keepdim=True)
    moved = torch.cat([light[..., :2], total], -1) @ homography(row[1:OWN]).T
    shares = moved[..., :2] / moved[..., 2:]
    x = (torch.cat([shares, 1 - shares.sum(-1, keepdim=True)], -1) * total).clamp(0, 1)

    def inverse(y: float) -> float:
        return float(np.log(np.expm1(y)))

    toe, shoulder = (0.3 + softplus(curve[:, i] + inverse(0.7)) for i in (0, 1))
    gamma, center = 0.1 + softplus(curve[:, 2] + inverse(0.9)), torch.sigmoid(curve[:, 3])
    height = shoulder * center / (toe + center * (shoulder - toe))
    low, high = height * (x / center) ** toe, 1 - (1 - height) * ((1 - x) / (1 - center)) ** shoulder
    return torch.where(x <= center, low, high) ** gamma


def penalty(row: Tensor) -> Tensor:
    """The regulariser of a row [36]."""
    vignetting, curve = row[OWN:24].reshape(3, 5), row[24:].reshape(3, 4)
    centres, light = (vignetting[:, :2] ** 2).sum(-1).mean(), vignetting[:, 2:].clamp(min=0).mean()
    alike = sum(values.var(0, unbiased=False).mean() for values in (vignetting, curve))
    pull = (row[:OWN] ** 2).sum() + (curve**2).sum()
    return 0.5e-3 * pull + 0.02 * centres + 0.01 * light + 0.1 * alike


def updated(
    state: dict[str, Array],
    photograph: int,
    colors: Array,
    v_shown: Array,
    epoch: int,
    step: int,
    *,
    rates: tuple[float, float],
) -> tuple[dict[str, Array], Array, Array]:
    """The state [P, 9] and [27] with moments after one photograph's step; and its colours, and their gradient."""
    row = torch.tensor(np.concatenate([state["exposures"][photograph], state["response"]]), requires_grad=True)
    light = torch.tensor(colors, requires_grad=True)
    shown = develop(row, light)
    v_row, v_light = torch.autograd.grad((shown * torch.tensor(v_shown)).sum() + penalty(row), (row, light))
    own, shared = np.split(v_row.numpy(), [OWN])
    after = {name: values.copy() for name, values in state.items()}
    steps = (
        ("exposures", photograph, own, epoch, rates[0], 0.5, 0.9),
        ("response", slice(None), shared, step, rates[1], 0.9, 0.999),
    )
    for name, at, gradient, count, lr, beta1, beta2 in steps:
        arrays = [after[f"{name}{suffix}"] for suffix in ("", ".m", ".v")]
        before = arrays[0][at], gradient, arrays[1][at], arrays[2][at]
        for array, values in zip(arrays, adam_step(*before, count + 1, lr=lr, beta1=beta1, beta2=beta2), strict=True):
            array[at] = values
    after["exposures"] -= after["exposures"].mean(0)
    return after, shown.detach().numpy(), v_light.numpy()
