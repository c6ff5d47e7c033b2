import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from splat_py.gsplat import torch_impl
from splat_py.gsplat.strategy.ops import compute_relocation


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """gsplat.strategy with its two CUDA kernels replaced: one by gsplat's torch code, the other by this library's."""
    wheel = pytest.importorskip("gsplat.strategy", reason="gsplat 1.5.3 is not installed (the dev extra has it)")
    from gsplat.cuda._torch_impl import _quat_scale_to_covar_preci

    monkeypatch.setattr(wheel.ops, "quat_scale_to_covar_preci", _quat_scale_to_covar_preci)
    monkeypatch.setattr(wheel.ops, "compute_relocation", compute_relocation)
    return wheel


def as_installed(path: str) -> ModuleType:
    """Another copy of a module of gsplat's, without this library's stand-ins for CUDA and nerfacc."""
    spec = find_spec(path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def own_package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """gsplat's own `_torch_impl`. This library makes the lists of tiles and of splats, and torch replaces nerfacc."""
    impl = pytest.importorskip("gsplat.cuda._torch_impl", reason="gsplat 1.5.3 is not installed (the dev extra has it)")
    torch_impl.own_package("rendering")

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
    monkeypatch.setattr("gsplat.rendering.spherical_harmonics", spherical_harmonics)
    for path, name in (("_torch_impl", "accumulate"), ("_torch_impl_2dgs", "accumulate_2dgs")):
        monkeypatch.setattr(f"gsplat.cuda.{path}.{name}", getattr(as_installed(f"gsplat.cuda.{path}"), name))
    return impl
