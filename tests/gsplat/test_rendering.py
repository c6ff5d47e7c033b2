"""The renderer in torch against the wheel's, and our own against it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from splat_py import SplatError
from splat_py.gsplat import harmonics, indices, intersection
from splat_py.gsplat.rendering import _rasterization, rasterization
from tests.gsplat.scenes import BATCHES, assert_same_gradients, nerfacc, scene

pytest.importorskip("gsplat")
import gsplat.rendering as wheel
from gsplat.cuda import _wrapper as wheel_wrapper

__all__ = ["nerfacc"]


def arguments(
    batch: tuple[int, ...] = (), per_view: bool = False, sh_degree: int | None = None, count: int = 50
) -> dict[str, Any]:
    s = scene(batch, count)
    cameras = (2,) if per_view else ()
    last = (3,) if sh_degree is None else ((sh_degree + 1) ** 2, 3)
    torch.manual_seed(0)
    colors = torch.rand(*batch, *cameras, count, *last, requires_grad=True)
    return {
        "means": s.means,
        "quats": s.quats,
        "scales": s.scales,
        "opacities": s.opacities,
        "colors": colors,
        "viewmats": s.viewmats,
        "Ks": s.Ks,
        "width": s.width,
        "height": s.height,
        "sh_degree": sh_degree,
    }


def differentiated(given: dict[str, Any]) -> list[Tensor]:
    return [given[name] for name in ("means", "quats", "scales", "opacities", "colors", "viewmats")]


@pytest.mark.usefixtures("nerfacc")
@pytest.mark.parametrize("sh_degree", [None, 2])
def test_the_reference_renders_as_the_wheels(sh_degree: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    # What the wheel has of CUDA there.
    monkeypatch.setattr(wheel_wrapper, "rasterize_to_indices_in_range", indices.rasterize_to_indices_in_range)
    monkeypatch.setattr(wheel, "isect_tiles", intersection.isect_tiles)
    monkeypatch.setattr(wheel, "isect_offset_encode", intersection.isect_offset_encode)
    monkeypatch.setattr(wheel, "spherical_harmonics", harmonics.evaluate_harmonics)
    given = arguments((2,), sh_degree is None, sh_degree, count=20)
    options = {"render_mode": "RGB+ED", "rasterize_mode": "antialiased", "backgrounds": torch.rand(2, 2, 3)}
    ours, theirs = _rasterization(**given, **options), wheel._rasterization(**given, **options)
    torch.testing.assert_close(ours[:2], theirs[:2], rtol=1e-4, atol=1e-5)
    # The wheel differentiates a camera's centre as part of a matrix's inverse.
    inputs = differentiated(given) if sh_degree is None else differentiated(given)[:-1]
    assert_same_gradients(ours[:2], theirs[:2], inputs, 1e-3)
    assert set(theirs[2]) <= set(ours[2])
    for name in ("radii", "tiles_per_gauss", "isect_offsets", "flatten_ids", "n_cameras"):
        torch.testing.assert_close(ours[2][name], theirs[2][name])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("per_view", "sh_degree", "render_mode"), [(True, None, "RGB+D"), (False, 3, "RGB"), (True, 3, "D")])
@pytest.mark.parametrize("batch", BATCHES)
def test_kernels_render_as_the_reference(
    batch: tuple[int, ...], per_view: bool, sh_degree: int | None, render_mode: Any, packed: bool
) -> None:
    given = arguments(batch, per_view, sh_degree)
    ours = rasterization(**given, render_mode=render_mode, packed=packed)
    theirs = _rasterization(**given, render_mode=render_mode)
    assert ours[0].shape == (*batch, 2, 28, 40, {"RGB": 3, "D": 1, "RGB+D": 4}[render_mode])
    torch.testing.assert_close(ours[:2], theirs[:2], rtol=1e-4, atol=1e-4)
    assert_same_gradients(ours[:2], theirs[:2], differentiated(given), 1e-3)


def test_memory_is_bounded_where_lists_are_long() -> None:
    given = arguments(count=400)
    given["scales"] = (given["scales"] * 5).detach().requires_grad_()
    given["means"] = (given["means"] * 0.3).detach().requires_grad_()
    image, alphas, meta = _rasterization(**given, tile_size=8)
    assert len(meta["flatten_ids"]) > 10_000
    image.sum().backward()
    assert given["means"].grad.isfinite().all()
    # Pixels that are done take no more.
    assert alphas.max() < 1


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(SplatError, match="render_mode is 'X'"):
        _rasterization(**arguments(), render_mode="X")
    with pytest.raises(SplatError, match="colors has shape"):
        _rasterization(**(arguments() | {"colors": torch.rand(4, 3)}))
    with pytest.raises(SplatError, match="opacities has shape"):
        _rasterization(**(arguments() | {"opacities": torch.rand(4)}))
