"""`packed=True`: splats of only those Gaussians that a camera sees. The same images and gradients, less memory."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py import rasterization
from tests.render.comparison import Case, camera_of, check, close, rounded, scene_of
from tests.render.test_camera_models import with_covars

# Tiles of 8 pixels do not divide the sides.
WIDTH, HEIGHT, N, C = 27, 18, 30, 3
OF_SPLATS = ("means2d", "depths", "conics", "opacities", "radii")


def inputs_of(batch: tuple[int, ...] = (), *, colors: tuple[int, ...] = (3,), per_camera: bool = False) -> dict[str, Tensor]:
    """Scenes in which each camera sees a different part; `colors` are the last dimensions of the colours."""
    rng = np.random.default_rng(60)
    scenes = [scene_of(rng, N) for _ in range(math.prod(batch))]
    stacked = {name: np.stack([getattr(scene, name) for scene in scenes]) for name in ("means", "quats", "scales", "opacities")}
    cameras = [camera_of(rng, WIDTH, HEIGHT) for _ in range(C * len(scenes))]
    viewmats = np.stack([camera.viewmat for camera in cameras]).reshape(-1, C, 4, 4)
    # One camera looks past the scene, one sees its edge, and no camera sees a few of the Gaussians.
    viewmats[:, 1, 0, 3] += 40
    viewmats[:, 2, 0, 3] += 1.5
    stacked["means"][:, :4, 2] = -2
    stacked["scales"] = stacked["scales"] * 0.5
    stacked |= {"viewmats": viewmats, "Ks": np.stack([camera.K for camera in cameras]).reshape(-1, C, 3, 3)}
    stacked["colors"] = 0.5 * rng.normal(size=(len(scenes), *([C] if per_camera else []), N, *colors))
    tensors = {name: torch.tensor(value, dtype=torch.float32) for name, value in stacked.items()}
    return {name: tensor.reshape(*batch, *tensor.shape[1:]).requires_grad_() for name, tensor in tensors.items()}


def run(inputs: dict[str, Tensor], **options: Any) -> tuple[Tensor, Tensor, dict[str, Any], dict[str, Tensor]]:
    """A render, and the gradients of its images and alphas in fixed directions."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in inputs.items()}
    images, alphas, meta = rasterization(**leaves, width=WIDTH, height=HEIGHT, **{"accumulate": "pair", **options})
    meta["means2d"].retain_grad()
    generator = torch.Generator().manual_seed(0)
    outputs = [images, alphas] + ([meta["render_extra_signals"]] if "render_extra_signals" in meta else [])
    sum((part * torch.randn(part.shape, generator=generator)).sum() for part in outputs).backward()
    return images.detach(), alphas.detach(), meta, {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


OPTIONS: dict[str, dict[str, Any]] = {
    "colours": {},
    "one channel": {"colors": (1,)},
    "40 channels": {"colors": (40,)},
    "colours of each camera": {"per_camera": True},
    "40 channels of each camera": {"colors": (40,), "per_camera": True},
    "harmonics": {"colors": (9, 3), "sh_degree": 2},
    "harmonics of each camera": {"colors": (4, 3), "per_camera": True, "sh_degree": 1},
    "harmonics of five channels": {"colors": (25, 5), "sh_degree": 4},
    "harmonics of each camera and four channels": {"colors": (4, 4), "per_camera": True, "sh_degree": 1},
    "absolute gradients": {"absgrad": True},
    "antialiased, with depth": {"rasterize_mode": "antialiased", "render_mode": "RGB+ED"},
    "depth alone": {"render_mode": "D"},
    "fisheye": {"camera_model": "fisheye"},
    "orthographic": {"camera_model": "ortho"},
}


@pytest.mark.parametrize("batch", [(), (2,), (1, 2)], ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_packed_is_dense(name: str, batch: tuple[int, ...]) -> None:
    """Images and all of `meta` are equal to the last bit, and so are all gradients."""
    options = dict(OPTIONS[name])
    inputs = inputs_of(batch, colors=options.pop("colors", (3,)), per_camera=options.pop("per_camera", False))
    dense, dense_alphas, dense_meta, dense_gradients = run(inputs, packed=False, **options)
    packed, packed_alphas, meta, gradients = run(inputs, packed=True, **options)
    assert dense.any()
    torch.testing.assert_close(packed, dense, rtol=0, atol=0)
    torch.testing.assert_close(packed_alphas, dense_alphas, rtol=0, atol=0)

    rows = dense_meta["radii"].amax(-1).gt(0).nonzero(as_tuple=True)
    count = len(rows[0])
    assert 0 < count < dense_meta["depths"].numel() * 0.7
    *scenes, camera, gaussian = rows
    scene = torch.zeros(count, dtype=torch.long)
    for ids, size in zip(scenes, batch, strict=True):
        scene = scene * size + ids
    for key, ids in {"batch_ids": scene, "camera_ids": camera, "gaussian_ids": gaussian}.items():
        torch.testing.assert_close(meta[key].long(), ids, rtol=0, atol=0)
    for key in (*OF_SPLATS, "tiles_per_gauss"):
        assert meta[key].shape == (count, *dense_meta[key].shape[len(batch) + 2 :])
        torch.testing.assert_close(meta[key], dense_meta[key][rows], rtol=0, atol=0)
    for key in ("isect_offsets", "isect_ids", "final_T"):
        torch.testing.assert_close(meta[key], dense_meta[key], rtol=0, atol=0)

    assert set(gradients) == set(dense_gradients)
    for key, gradient in gradients.items():
        close(gradient, dense_gradients[key], 1e-6, 1e-6)
    torch.testing.assert_close(meta["means2d"].grad, dense_meta["means2d"].grad[rows], rtol=0, atol=0)
    if options.get("absgrad"):
        torch.testing.assert_close(meta["means2d"].absgrad, dense_meta["means2d"].absgrad[rows], rtol=0, atol=0)
        assert meta["means2d"].absgrad.any()


@pytest.mark.parametrize("degree", [None, 0, 2])
def test_packed_extra_signals(degree: int | None) -> None:
    inputs = inputs_of((2,))
    shape = (2, N, 4) if degree is None else (2, N, (degree + 1) ** 2, 4)
    inputs["extra_signals"] = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    results = [run(inputs, packed=packed, extra_signals_sh_degree=degree) for packed in (True, False)]
    for i in (0, 1):
        torch.testing.assert_close(results[0][i], results[1][i], rtol=0, atol=0)
    signals, dense_signals = (result[2]["render_extra_signals"] for result in results)
    assert signals.shape == (2, C, HEIGHT, WIDTH, 4) and signals.any()
    torch.testing.assert_close(signals, dense_signals, rtol=0, atol=0)
    for key, gradient in results[0][3].items():
        close(gradient, results[1][3][key], 1e-6, 1e-6)


@pytest.mark.parametrize("accumulate", ["pixel", "wave", "group", "pair"])
def test_packed_against_the_reference(accumulate: str) -> None:
    """Packed renders are the reference's, with each way to add up gradients."""
    rng = np.random.default_rng(61)
    cameras = [camera_of(rng, WIDTH, HEIGHT) for _ in range(2)]
    case = Case(scene_of(rng, N, sh_degree=2), cameras, rounded(rng.uniform(size=(2, 3))))
    check(replace(case, options={"packed": True, "absgrad": True, "accumulate": accumulate}), rng)


@pytest.mark.parametrize("sparse_grad", [False, True])
@pytest.mark.parametrize("gaussians", [0, N])
@pytest.mark.parametrize("sh_degree", [None, 1])
def test_nothing_visible(sh_degree: int | None, gaussians: int, sparse_grad: bool) -> None:
    """Backgrounds, empty lists, and zero gradients, both for Gaussians out of view and for none at all."""
    inputs = {name: tensor.detach() for name, tensor in inputs_of(colors=(3,) if sh_degree is None else (4, 3)).items()}
    inputs = {k: v if k in ("viewmats", "Ks") else v[:gaussians] for k, v in inputs.items()}
    inputs["means"] = inputs["means"] - 100
    inputs["backgrounds"] = torch.rand(C, 3)
    images, alphas, meta, gradients = run(
        inputs, packed=True, sparse_grad=sparse_grad, sh_degree=sh_degree, render_mode="RGB+ED", absgrad=True
    )
    torch.testing.assert_close(images[..., :3], inputs["backgrounds"][:, None, None].expand_as(images[..., :3]))
    assert not alphas.any() and not images[..., 3].any()
    for key in (*OF_SPLATS, "gaussian_ids", "camera_ids", "batch_ids", "tiles_per_gauss"):
        assert len(meta[key]) == 0
    assert not meta["isect_offsets"].any() and len(meta["flatten_ids"]) == 0 and len(meta["isect_ids"]) == 0
    assert (meta["final_T"] == 1).all() and not meta["n_contrib"].any()
    assert set(gradients) == set(inputs)
    for key, gradient in gradients.items():
        assert gradient.shape == inputs[key].shape
        assert key == "backgrounds" or not gradient.to_dense().any()


SPARSE = ("means", "quats", "scales")


@pytest.mark.parametrize("batch", [(), (2,), (1, 2)], ids=str)
def test_sparse_gradients_are_those_of_the_visible(batch: tuple[int, ...]) -> None:
    inputs = inputs_of(batch)
    *_, dense = run(inputs, packed=True)
    _, _, meta, sparse = run(inputs, packed=True, sparse_grad=True)
    visible = torch.stack([meta["batch_ids"], meta["gaussian_ids"]], -1).unique(dim=0)
    assert 0 < len(visible) < N * math.prod(batch)
    for name, gradient in sparse.items():
        assert gradient.is_sparse == (name in SPARSE), name
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            *scenes, ids = gradient.indices()
            scene = torch.zeros_like(ids)
            for index, size in zip(scenes, batch, strict=True):
                scene = scene * size + index
            torch.testing.assert_close(torch.stack([scene, ids], -1), visible, rtol=0, atol=0)
            gradient = gradient.to_dense()
        torch.testing.assert_close(gradient, dense[name], rtol=0, atol=0, msg=name)


def test_sparse_gradients_of_covariances() -> None:
    inputs = with_covars(inputs_of())
    results = [run(inputs, quats=None, scales=None, packed=True, sparse_grad=sparse)[3] for sparse in (True, False)]
    # The caller's matrices are reduced to their upper triangles, which torch cannot differentiate sparsely.
    assert results[0]["means"].is_sparse and not results[0]["covars"].is_sparse
    for name, expected in results[1].items():
        torch.testing.assert_close(results[0][name].to_dense(), expected, rtol=0, atol=0, msg=name)


def test_sparse_adam_moves_the_visible_alone() -> None:
    leaves = inputs_of()
    trained = [leaves[name] for name in SPARSE]
    before = [tensor.detach().clone() for tensor in trained]
    optimizer = torch.optim.SparseAdam(trained, lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        images, _, meta = rasterization(**leaves, width=WIDTH, height=HEIGHT, packed=True, sparse_grad=True)
        images.square().sum().backward()
        optimizer.step()
    visible = torch.zeros(N, dtype=torch.bool)
    visible[meta["gaussian_ids"]] = True
    assert visible.any() and not visible.all()
    for name, tensor, old in zip(SPARSE, trained, before, strict=True):
        moved = (tensor.detach() != old).any(-1)
        assert moved[visible].any() and not moved[~visible].any(), name
