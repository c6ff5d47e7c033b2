"""Several Gaussians in the place of one that look like it (Kheradmand et al. 2024, equation 9)."""

from __future__ import annotations

import torch
from torch import Tensor

from splat_py.errors import SplatError


def compute_relocation(
    opacities: Tensor, scales: Tensor, ratios: Tensor, binoms: Tensor, min_opacity: float | None = None
) -> tuple[Tensor, Tensor]:
    """Opacities and scales with which n Gaussians in one place look as much as possible like the one that was there.

    With o' = 1 - (1 - o)^(1/n), scales are multiplied by o / Σᵢ Σₖ C(i-1, k) (-1)ᵏ o'ᵏ⁺¹ / √(k+1), i from 1 to n and k from 0
    to i - 1.

    Args:
        opacities: [N] or [N, 1] o, between 0 and 1.
        scales: [N, 3] standard deviations.
        ratios: [N] n; taken as 1 below and as n_max above the table's range.
        binoms: [n_max, n_max] the coefficients C(row, column), 0 above the diagonal.
        min_opacity: if given, o' is at least this and less than 1 before scales are computed, as in gsplat 1.6.

    Returns:
        New opacities, of the shape of `opacities`, and scales [N, 3]. No gradients.

    Raises:
        SplatError: shapes do not fit together.
    """
    count = len(opacities)
    if opacities.numel() != count or scales.shape != (count, 3) or ratios.shape != (count,):
        raise SplatError(
            "compute_relocation needs opacities [N], scales [N, 3] and ratios [N], not "
            f"{list(opacities.shape)}, {list(scales.shape)} and {list(ratios.shape)}"
        )
    if binoms.dim() != 2 or binoms.shape[0] != binoms.shape[1]:
        raise SplatError(f"binoms must be square, [n_max, n_max], not {list(binoms.shape)}")
    if count == 0:
        return opacities.detach().clone(), scales.detach().clone()
    # The sum alternates between terms that are much larger than itself: float32 would lose it at large n.
    # At an opacity of 1, which sigmoid returns for logits above 17, even float64: hence the largest one below.
    old = float64(opacities.detach().flatten()).clamp(max=1 - 2**-24)
    copies = ratios.to(old.device, torch.int64).clamp(1, len(binoms))
    new = -torch.expm1(torch.log1p(-old) / copies)
    if min_opacity is not None:
        new = new.clamp(min_opacity, 1 - torch.finfo(torch.float32).eps)
    # Over i the binomials add up once for all, which leaves a polynomial in o', of degree n.
    k = torch.arange(len(binoms), dtype=torch.float64, device=old.device)
    coefficients = float64(binoms).to(old.device).cumsum(0) * (-1) ** k / (k + 1).sqrt()
    total = torch.zeros_like(new)
    for power in reversed(range(int(copies.max()))):
        total = new * (coefficients[copies - 1, power] + total)
    factors = torch.where(old > 0, old / total, 1)
    new_opacities = new.to(opacities.dtype).to(opacities.device).reshape(opacities.shape)
    return new_opacities, scales.detach() * factors.to(scales.dtype).to(scales.device)[:, None]


def float64(values: Tensor) -> Tensor:
    """In double precision, which MPS lacks: from there they go to the CPU."""
    return (values.cpu() if values.device.type == "mps" else values).double()
