"""Small scenes, and comparisons with gsplat's results."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from torch import Tensor

from splat_py.gsplat import intersection

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
    viewmats[..., :3, :3] = torch.linalg.matrix_exp(_skew(0.3 * normal(cameras, 3)))
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


def _skew(v: Tensor) -> Tensor:
    x, y, z = v.unbind(-1)
    o = torch.zeros_like(x)
    return torch.stack((o, -z, y, z, o, -x, -y, x, o), -1).unflatten(-1, (3, 3))


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


@pytest.fixture
def own_package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """gsplat's own `_torch_impl` without its CUDA and nerfacc parts: this library makes the lists of tiles and of splats."""
    impl = pytest.importorskip("gsplat.cuda._torch_impl", reason="gsplat 1.5.3 is not installed (the dev extra has it)")
    import gsplat.cuda._wrapper
    import gsplat.rendering

    def render_weight_from_alpha(alphas: Tensor, ray_indices: Tensor, n_rays: int) -> tuple[Tensor, Tensor]:
        logs = torch.log1p(-alphas.double())
        before = logs.cumsum(0) - logs
        T = torch.exp(before - before[torch.searchsorted(ray_indices, ray_indices)]).to(alphas.dtype)
        return T * alphas, T

    def accumulate_along_rays(weights: Tensor, values: Tensor | None, ray_indices: Tensor, n_rays: int) -> Tensor:
        parts = weights[:, None] if values is None else weights[:, None] * values
        return parts.new_zeros(n_rays, parts.shape[-1]).index_add(0, ray_indices, parts)

    def spherical_harmonics(degree: int, dirs: Tensor, coeffs: Tensor, masks: Tensor) -> Tensor:
        return torch.where(masks[..., None], impl._spherical_harmonics(degree, dirs, coeffs), 0)

    nerfacc = ModuleType("nerfacc")
    nerfacc.render_weight_from_alpha = render_weight_from_alpha  # type: ignore[attr-defined]
    nerfacc.accumulate_along_rays = accumulate_along_rays  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nerfacc", nerfacc)
    monkeypatch.setattr(gsplat.cuda._wrapper, "rasterize_to_indices_in_range", intersection.rasterize_to_indices_in_range)
    monkeypatch.setattr(gsplat.rendering, "isect_tiles", intersection.isect_tiles)
    monkeypatch.setattr(gsplat.rendering, "isect_offset_encode", intersection.isect_offset_encode)
    monkeypatch.setattr(gsplat.rendering, "spherical_harmonics", spherical_harmonics)
    return impl
