"""Surfels: renders, normals, distortion and median depth against float64, what gsplat's scripts rely on, and fits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import splat_py as splat
from tests.splats.comparison import assert_close
from tests.splats.surfel_rendering import Rendered, render
from tests.splats.test_camera_models import scene_of

WIDTH, HEIGHT, N, CAMERAS = 24, 18, 20, 2
OUTPUTS = ("image", "alpha", "normals", "distortion", "median")


def surfels_of(seed: int) -> dict[str, Tensor]:
    """Leaves: surfels of all directions, some of them so small or so oblique that the filter is all that is visible."""
    inputs = {name: tensor.detach() for name, tensor in scene_of("pinhole", WIDTH, HEIGHT, seed=seed).items()}
    inputs["scales"][:4] *= 0.05
    return {name: tensor.requires_grad_() for name, tensor in inputs.items()}


def of_scene(inputs: dict[str, Tensor], **options: Any) -> Any:
    return splat.rasterization_2dgs(**inputs, **{"width": WIDTH, "height": HEIGHT, **options})


def expected_of(inputs: dict[str, Tensor], **options: Any) -> tuple[dict[str, Tensor], list[Rendered]]:
    """Float64 leaves, and what each camera sees; features are colours and depth."""
    twins = {name: tensor.detach().double().requires_grad_() for name, tensor in inputs.items()}
    renders = []
    for c in range(CAMERAS):
        viewmat = twins["viewmats"][c]
        depths = twins["means"] @ viewmat[2, :3] + viewmat[2, 3]
        features = torch.cat([twins["colors"], depths[:, None]], -1)
        background = torch.cat([twins["backgrounds"][c], torch.zeros(1)])
        gaussians = (twins[name] for name in ("means", "quats", "scales", "opacities"))
        renders.append(
            render(*gaussians, features, viewmat, twins["Ks"][c], WIDTH, HEIGHT, background=background, **options)
        )
    return twins, renders


def check(seed: int, **options: Any) -> dict[str, Any]:
    """Everything that is rendered, and all gradients of all of it."""
    inputs = surfels_of(seed)
    twins, renders = expected_of(inputs, **({"max_alpha": options["max_alpha"]} if "max_alpha" in options else {}))
    images, alphas, normals, _, distortion, median, meta = of_scene(inputs, render_mode="RGB+D", distloss=True, **options)
    meta["gradient_2dgs"].retain_grad()
    meta["ray_transforms"].retain_grad()
    trusted = ~torch.stack([r.untrusted for r in renders])
    assert trusted.float().mean() > 0.9
    loss, wanted_loss = torch.zeros(()), torch.zeros(()).double()
    generator = torch.Generator().manual_seed(seed)
    for name, actual in zip(OUTPUTS, (images, alphas, normals, distortion, median), strict=True):
        wanted = torch.stack([getattr(r, name) for r in renders])
        assert wanted[trusted].abs().max() > 0.1, name
        torch.testing.assert_close(actual.double()[trusted], wanted[trusted], rtol=3e-5, atol=3e-5)
        v = torch.randn(actual.shape, generator=generator) * trusted[..., None]
        loss = loss + (actual * v).sum()
        wanted_loss = wanted_loss + (wanted * v).sum()
    loss.backward()
    wanted_loss.backward()
    for name, tensor in inputs.items():
        actual, wanted = tensor.grad, twins[name].grad
        assert actual is not None and wanted is not None and wanted.any(), name
        if name == "viewmats":
            assert_close("rotation", actual[:, :3, :3].numpy(), wanted[:, :3, :3].numpy())
            assert_close("translation", actual[:, :3, 3].numpy(), wanted[:, :3, 3].numpy())
        elif name == "Ks":
            for row, column in ((0, 0), (1, 1), (0, 2), (1, 2)):
                assert_close(name, actual[:, row, column].numpy(), wanted[:, row, column].numpy())
        else:
            assert_close(name, actual.numpy(), wanted.numpy())
    assert not inputs["scales"].grad[:, 2].any()
    return meta


@pytest.mark.parametrize("packed", [False, True])
def test_against_float64(packed: bool) -> None:
    meta = check(91, packed=packed)
    assert meta["means2d"].shape == ((N * CAMERAS, 2) if packed else (CAMERAS, N, 2))


@pytest.mark.parametrize("packed", [False, True])
def test_without_depth_and_without_gradients_of_cameras(packed: bool) -> None:
    """The same picture, and the same gradients of the surfels."""
    results = []
    for render_mode, of_cameras in (("RGB+D", True), ("RGB", False)):
        inputs = surfels_of(92)
        for name in ("viewmats", "Ks"):
            inputs[name] = inputs[name].detach().requires_grad_(of_cameras)
        images, alphas, normals, of_depths, distortion, median, _ = of_scene(inputs, render_mode=render_mode, packed=packed)
        outputs = [images[..., :3], alphas, normals, distortion, median]
        assert (of_depths is None) == (render_mode == "RGB")
        assert not distortion.any()
        loss = sum((output.square().sum() for output in outputs), torch.zeros(()))
        leaves = [inputs[name] for name in ("means", "quats", "scales", "opacities", "colors")]
        results.append([*outputs, *torch.autograd.grad(loss, leaves)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * max(float(other.detach().abs().max()), 1e-3))
