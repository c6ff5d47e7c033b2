"""Blended signals: harmonics of any number of channels, per camera or for all scenes, and signals besides colours.

Each is compared with the render that the float64 references check: three channels, one camera, one scene.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from splat_py import rasterization
from tests.render.test_packed import HEIGHT, WIDTH, C, N, inputs_of, run

each_layout = pytest.mark.parametrize("packed", [False, True])


def same(name: str, actual: Tensor, expected: Tensor) -> None:
    scale = float(expected.abs().max())
    assert scale > 0, name
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=2e-6 * scale, msg=lambda text: f"{name}: {text}")


def gradients_of(inputs: dict[str, Tensor], weights: Tensor, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Images, and the gradients of their weighted sum."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in inputs.items()}
    arguments: dict[str, Any] = {"width": WIDTH, "height": HEIGHT, "accumulate": "pair", **leaves, **options}
    images, _, _ = rasterization(**arguments)
    (images * weights).sum().backward()
    return images.detach(), {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def weights_of(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(100))


@each_layout
@pytest.mark.parametrize("channels", [1, 2, 4, 7, 33])
@pytest.mark.parametrize("degree", [0, 1, 4])
def test_harmonics_of_any_number_of_channels(degree: int, channels: int, packed: bool) -> None:
    """Equal to renders of three channels at a time, whose gradients add up."""
    coefficients = (degree + 1) ** 2
    inputs = inputs_of(colors=(coefficients, channels))
    weights = weights_of(C, HEIGHT, WIDTH, channels)
    images, gradients = gradients_of(inputs, weights, sh_degree=degree, packed=packed)
    total: dict[str, Tensor] = {}
    for first in range(0, channels, 3):
        part = slice(first, first + 3)
        missing = max(first + 3 - channels, 0)
        colors, w = (torch.nn.functional.pad(t.detach()[..., part], (0, missing)) for t in (inputs["colors"], weights))
        three, v = gradients_of(inputs | {"colors": colors}, w, sh_degree=degree, packed=packed)
        torch.testing.assert_close(images[..., part], three[..., : 3 - missing], rtol=0, atol=0)
        same("colors", gradients["colors"][..., part], v.pop("colors")[..., : 3 - missing])
        total = {name: total.get(name, 0) + gradient for name, gradient in v.items()}
    for name, expected in total.items():
        same(name, gradients[name], expected)


@each_layout
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_harmonics_of_each_camera(batch: tuple[int, ...], packed: bool) -> None:
    """Equal to a render of each camera alone."""
    inputs = inputs_of(batch, colors=(4, 3), per_camera=True)
    weights = weights_of(*batch, C, HEIGHT, WIDTH, 3)
    images, gradients = gradients_of(inputs, weights, sh_degree=1, packed=packed)
    total: dict[str, Tensor] = {}
    for c in range(C):
        alone = {name: tensor.detach() for name, tensor in inputs.items()}
        alone |= {name: alone[name].select(len(batch), c).unsqueeze(len(batch)) for name in ("viewmats", "Ks")}
        alone["colors"] = alone["colors"].select(len(batch), c)
        image, v = gradients_of(alone, weights.select(len(batch), c).unsqueeze(len(batch)), sh_degree=1, packed=packed)
        torch.testing.assert_close(images.select(len(batch), c), image.squeeze(len(batch)), rtol=0, atol=0)
        # One of the cameras sees nothing.
        for name in ("colors", "viewmats", "Ks"):
            gradient, expected = gradients[name].select(len(batch), c), v.pop(name)
            expected = expected if name == "colors" else expected.squeeze(len(batch))
            torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=2e-6 * max(float(expected.abs().max()), 1.0))
        total = {name: total.get(name, 0) + gradient for name, gradient in v.items()}
    for name, expected in total.items():
        same(name, gradients[name], expected)


@each_layout
@pytest.mark.parametrize("degree", [0, 2])
def test_harmonics_that_scenes_share(degree: int, packed: bool) -> None:
    inputs = inputs_of((1, 2))
    sh = 0.5 * weights_of(N, (degree + 1) ** 2, 3)
    weights = weights_of(1, 2, C, HEIGHT, WIDTH, 3)
    images, gradients = gradients_of(inputs | {"colors": sh}, weights, sh_degree=degree, packed=packed)
    each, expected = gradients_of(inputs | {"colors": sh.repeat(1, 2, 1, 1, 1)}, weights, sh_degree=degree, packed=packed)
    torch.testing.assert_close(images, each, rtol=0, atol=0)
    expected["colors"] = expected["colors"].sum((0, 1))
    for name, gradient in expected.items():
        same(name, gradients[name], gradient)


@each_layout
@pytest.mark.parametrize("per_camera", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "RGB+D", "RGB+ED", "D", "ED"])
def test_extra_signals(mode: str, per_camera: bool, packed: bool) -> None:
    """Extra signals are further channels before black, and change nothing else."""
    inputs = inputs_of()
    signals = weights_of(*([C] if per_camera else []), N, 5).requires_grad_()
    options: dict[str, Any] = {"packed": packed, "render_mode": mode}
    if "RGB" in mode:
        options["backgrounds"] = torch.rand(C, 3)
    images, alphas, meta, gradients = run(inputs | {"extra_signals": signals}, **options)
    plain, plain_alphas, _, _ = run(inputs, **options)
    torch.testing.assert_close(images, plain, rtol=0, atol=0)
    torch.testing.assert_close(alphas, plain_alphas, rtol=0, atol=0)
    colors, _, _, _ = run(inputs | {"colors": signals}, packed=packed)
    assert meta["render_extra_signals"].shape == (C, HEIGHT, WIDTH, 5)
    torch.testing.assert_close(meta["render_extra_signals"].detach(), colors, rtol=0, atol=0)
    assert gradients["extra_signals"].shape == signals.shape and gradients["extra_signals"].any()


@each_layout
def test_extra_signals_have_the_gradients_of_channels(packed: bool) -> None:
    inputs = inputs_of()
    signals, weights = weights_of(N, 2), weights_of(C, HEIGHT, WIDTH, 5)
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in (inputs | {"extra_signals": signals}).items()}
    images, _, meta = rasterization(**leaves, width=WIDTH, height=HEIGHT, packed=packed, accumulate="pair")
    (torch.cat([images, meta["render_extra_signals"]], -1) * weights).sum().backward()
    colors = torch.cat([inputs["colors"].detach(), signals], -1)
    _, expected = gradients_of(inputs | {"colors": colors}, weights, packed=packed)
    expected["colors"], expected["extra_signals"] = expected["colors"][:, :3], expected["colors"][:, 3:]
    for name, gradient in expected.items():
        assert leaves[name].grad is not None
        same(name, leaves[name].grad, gradient)


@each_layout
def test_harmonics_of_extra_signals_have_no_lower_limit(packed: bool) -> None:
    """They are shaded as colours are: equal above the limit, and negated harmonics give the negative."""
    inputs = inputs_of()
    sh = 0.02 * weights_of(N, 9, 4)
    degrees = {"packed": packed, "extra_signals_sh_degree": 2}
    _, alphas, meta, gradients = run(inputs | {"extra_signals": sh}, **degrees)
    colors, _, _, _ = run(inputs | {"colors": sh}, packed=packed, sh_degree=2)
    signals = meta["render_extra_signals"].detach()
    torch.testing.assert_close(signals, colors, rtol=1e-5, atol=1e-6)
    assert gradients["extra_signals"].any()
    dark = sh.clone()
    dark[:, 0] -= 10
    below = run(inputs | {"extra_signals": dark}, **degrees)[2]["render_extra_signals"].detach()
    assert below.min() < -1
    torch.testing.assert_close(below, signals - 10 * 0.28209479177387814 * alphas, rtol=1e-5, atol=1e-5)


def test_sparse_gradients_with_harmonics() -> None:
    """Directions depend densely on means, as in gsplat, so their gradient is dense; those of quats and scales are sparse."""
    inputs, weights = inputs_of(colors=(9, 3)), weights_of(C, HEIGHT, WIDTH, 3)
    _, gradients = gradients_of(inputs, weights, packed=True, sparse_grad=True, sh_degree=2)
    _, expected = gradients_of(inputs, weights, packed=True, sh_degree=2)
    assert gradients["quats"].is_sparse and gradients["scales"].is_sparse
    for name, gradient in expected.items():
        same(name, gradients[name].to_dense(), gradient)


@pytest.mark.parametrize(("packed", "sparse_grad"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("output", ["images", "alphas", "expected depth", "extra signals", "means2d", "conics"])
def test_each_input_alone(output: str, packed: bool, sparse_grad: bool) -> None:
    """An input's gradient does not depend on other inputs' requires_grad, for any output in the loss."""
    inputs = inputs_of((2,), colors=(4, 3))
    inputs |= {"backgrounds": torch.rand(2, C, 3), "extra_signals": torch.rand(2, N, 2)}
    weights = weights_of(2, C, HEIGHT, WIDTH, 4)

    def gradients(*wanted: str) -> dict[str, Tensor | None]:
        leaves = {name: tensor.detach().clone().requires_grad_(name in wanted) for name, tensor in inputs.items()}
        arguments: dict[str, Any] = {"width": WIDTH, "height": HEIGHT, "sh_degree": 1, "render_mode": "RGB+ED", **leaves}
        images, alphas, meta = rasterization(**arguments, packed=packed, sparse_grad=sparse_grad, accumulate="pair")
        told = {"extra signals": "render_extra_signals"}.get(output, output)
        loss = {
            "images": (images * weights).sum(),
            "alphas": (alphas * weights[..., :1]).sum(),
            "expected depth": (images[..., -1] * weights[..., 0]).sum(),
        }.get(output)
        loss = meta[told].sum() if loss is None else loss
        if loss.requires_grad:
            loss.backward()
        return {name: leaves[name].grad for name in wanted}

    together = gradients(*inputs)
    assert any(gradient is not None for gradient in together.values())
    for name, expected in together.items():
        alone = gradients(name)[name]
        if alone is None or expected is None:
            # An output that does not depend on the input gives no gradient, or zeros.
            assert all(v is None or not v.to_dense().any() for v in (alone, expected)), name
        else:
            scale = float(expected.to_dense().abs().max())
            torch.testing.assert_close(alone.to_dense(), expected.to_dense(), rtol=1e-6, atol=1e-6 * scale + 1e-12, msg=name)
