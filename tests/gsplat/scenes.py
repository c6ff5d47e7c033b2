"""Small scenes, and comparisons with gsplat's results."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.reference.gaussian import cross_matrix

BATCHES = [(), (2,), (1, 2)]


@dataclass
class Scene:
    """N Gaussians in front of C cameras; tensors have the batch dimensions."""

    means: Tensor
    quats: Tensor
    scales: Tensor
    opacities: Tensor
    viewmats: Tensor
    Ks: Tensor
    width: int = 40
    height: int = 28

    def parameters(self) -> list[Tensor]:
        return [self.means, self.quats, self.scales, self.viewmats]


def scene(batch: Sequence[int] = (), count: int = 50, cameras: int = 2, dtype: torch.dtype = torch.float32) -> Scene:
    """Gaussians around the origin, five units before the cameras; some are cut by the image's edges, some lie behind."""
    random = torch.Generator().manual_seed(count)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*batch, *shape, generator=random, dtype=dtype)

    viewmats = torch.eye(4, dtype=dtype).repeat(*batch, cameras, 1, 1)
    viewmats[..., :3, :3] = torch.linalg.matrix_exp(cross_matrix(0.3 * normal(cameras, 3)))
    viewmats[..., :3, 3] = 0.2 * normal(cameras, 3) + torch.tensor((0, 0, 5), dtype=dtype)
    K = torch.tensor([[35.0, 0, 21], [0, 33, 13], [0, 0, 1]], dtype=dtype)
    means = 1.5 * normal(count, 3)
    means[..., 0, :] = torch.tensor((0, 0, -40), dtype=dtype)
    made = Scene(
        means,
        normal(count, 4),
        torch.exp(0.5 * normal(count, 3) - 1.5),
        torch.sigmoid(2 * normal(count)),
        viewmats,
        K.repeat(*batch, cameras, 1, 1),
    )
    for tensor in (*made.parameters(), made.opacities, made.Ks):
        tensor.requires_grad_()
    return made


def splats(count: int = 700, coefficients: int = 15) -> dict[str, Tensor]:
    """A scene as scripts for gsplat store it."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=generator)

    return {
        "means": normal(3),
        "scales": normal(3) - 3,
        "quats": normal(4),
        "opacities": 3 * normal(),
        "sh0": normal(1, 3),
        "shN": normal(coefficients, 3),
    }


def assert_same_gradients(
    ours: Iterable[Tensor | None],
    theirs: Iterable[Tensor | None],
    inputs: Sequence[Tensor],
    rtol: float,
    where: Tensor | None = None,
) -> None:
    """Assert that random sums of both results, over a mask [...], have the same gradients, to `rtol` of the largest."""
    random = torch.Generator().manual_seed(1)
    sums: list[Tensor] = []
    for results in (ours, theirs):
        random.manual_seed(1)
        total = torch.zeros((), dtype=inputs[0].dtype)
        for result in results:
            if result is None or not result.requires_grad:
                continue
            weights = torch.randn(result.shape, generator=random, dtype=result.dtype)
            if where is not None:
                kept = where.reshape(*where.shape, *[1] * (result.dim() - where.dim()))
                result, weights = torch.where(kept, result, 0), weights * kept
            total = total + (result * weights).sum()
        sums.append(total)
    gradients = [torch.autograd.grad(total, inputs, allow_unused=True, retain_graph=True) for total in sums]
    for k, (a, b) in enumerate(zip(*gradients, strict=True)):
        if a is None or b is None:
            assert a is None or not a.any(), k
            assert b is None or not b.any(), k
            continue
        largest = float(b.abs().max().clamp(min=1e-6))
        torch.testing.assert_close(a, b, rtol=0, atol=rtol * largest, msg=lambda message, k=k: f"{k}: {message}")
