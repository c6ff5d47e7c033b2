import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from splat_py.gsplat import intersection
from splat_py.gsplat.strategy.ops import compute_relocation


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """gsplat.strategy with its two CUDA kernels replaced: one by gsplat's torch code, the other by this library's."""
    wheel = pytest.importorskip("gsplat.strategy", reason="gsplat 1.5.3 is not installed (the dev extra has it)")
    from gsplat.cuda._torch_impl import _quat_scale_to_covar_preci

    monkeypatch.setattr(wheel.ops, "quat_scale_to_covar_preci", _quat_scale_to_covar_preci)
    monkeypatch.setattr(wheel.ops, "compute_relocation", compute_relocation)
    return wheel


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
