"""splat_py.image.render: blobs → picture for torch."""

from typing import Any

import numpy as np
import pytest
import torch

from splat_py import image
from splat_py.image import rasterizers
from splat_py.image.options import Method
from splat_py.image.rasterizers import rasterizer_for
from tests.image import reference as ref
from tests.image.scenes import assert_gradients, blobs_of
from tests.refusals import refused


@pytest.mark.parametrize(("method", "count", "width", "height"), [("group", 12, 15, 10), ("tiles", 1600, 90, 70)])
def test_value_and_gradient(method: Method, count: int, width: int, height: int) -> None:
    """Against float64; the large one along one direction, as every derivative would take too long."""
    rng = np.random.default_rng(count)
    raw = blobs_of(rng, count, deviation=0.1 if count < 100 else 0.03)
    expected, near = ref.render(raw, width, height)
    v = (rng.normal(size=expected.shape) * ~near[..., None]).astype(np.float32).astype(np.float64)
    params = torch.tensor(raw, dtype=torch.float32, requires_grad=True)
    picture = image.render(params, width, height, method=method)
    assert picture.shape == (height, width, 3)
    assert np.abs((picture.detach().numpy() - expected) * ~near[..., None]).max() <= 1e-5
    picture.backward(torch.tensor(v, dtype=torch.float32))
    gradient = params.grad.numpy().astype(np.float64)
    if count < 100:
        assert_gradients(gradient, ref.gradient(raw, v))
    else:
        # The direction of the gradient's signs, so nothing cancels; all nine rows have the same share.
        direction = np.sign(gradient) / np.abs(gradient).sum(axis=1, keepdims=True)
        slope = np.sum(ref.render(raw + 1e-30j * direction, width, height)[0].imag * v) / 1e-30
        assert slope == pytest.approx(9, rel=1e-5)


def test_twice_through_one_graph_and_after_a_change() -> None:
    params = torch.tensor(blobs_of(np.random.default_rng(40), 10), dtype=torch.float32, requires_grad=True)
    first = image.render(params, 12, 9).sum()
    second = (image.render(params * 1.0, 7, 8) ** 2).sum()
    (together,) = torch.autograd.grad(first + second, params, retain_graph=True)
    (one,) = torch.autograd.grad(first, params)
    (two,) = torch.autograd.grad(second, params)
    torch.testing.assert_close(together, one + two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["tiles", "group", "autodiff"])
def test_a_background(method: Method) -> None:
    """Against float64: the background is weighted by the product of the blobs' 1 - α, and the gradient follows."""
    rng = np.random.default_rng(43)
    raw, (width, height) = blobs_of(rng, 12), (14, 9)
    behind = np.array([0.25, 0.5, 1.0])
    white = raw.copy()
    white[5:8] = 100
    (over_black, near), (coverage, _) = ref.render(raw, width, height), ref.render(white, width, height)
    v = rng.normal(size=over_black.shape) * ~near[..., None]
    params = torch.tensor(raw, dtype=torch.float32, requires_grad=True)
    background = torch.tensor(behind, dtype=torch.float32, requires_grad=True)
    picture = image.render(params, width, height, method=method, background=background)
    expected = over_black + (1 - coverage) * behind
    assert np.abs((picture.detach().numpy() - expected) * ~near[..., None]).max() <= 1e-5
    v_params, v_behind = torch.autograd.grad(picture, (params, background), torch.tensor(v, dtype=torch.float32))
    of_coverage = ref.gradient(white, -v * behind)
    of_coverage[5:8] = 0
    assert_gradients(v_params.numpy().astype(np.float64), ref.gradient(raw, v) + of_coverage)
    np.testing.assert_allclose(v_behind.numpy(), ((1 - coverage) * v).sum((0, 1)), rtol=1e-4, atol=1e-4)
    plain = image.render(params.detach(), width, height, method=method, background=tuple(behind))
    torch.testing.assert_close(plain, picture.detach())


@pytest.mark.parametrize("method", ["tiles", "group", "autodiff"])
def test_forward_derivatives(method: Method) -> None:
    """Against float64, and ⟨J v, u⟩ = ⟨v, Jᵀ u⟩ for blobs and background; in several directions as in one."""
    rng = np.random.default_rng(44)
    raw, (width, height), behind = blobs_of(rng, 12), (14, 9), torch.tensor([0.25, 0.5, 1.0])
    params = torch.tensor(raw, dtype=torch.float32)

    def picture(blobs: torch.Tensor, background: torch.Tensor) -> torch.Tensor:
        return image.render(blobs, width, height, method=method, background=background)

    leaves = params.clone().requires_grad_(), behind.clone().requires_grad_()
    output = picture(*leaves)
    u = torch.tensor(rng.normal(size=output.shape), dtype=torch.float32)
    gradients = torch.autograd.grad(output, leaves, u)
    # With the gradient's signs nothing cancels.
    v = [torch.tensor(np.abs(rng.normal(size=g.shape)), dtype=torch.float32) * g.sign() for g in gradients]
    one, other = (torch.zeros_like(part) for part in v)
    for direction, gradient, along in (((v[0], other), gradients[0], v[0]), ((one, v[1]), gradients[1], v[1])):
        _, tangent = torch.func.jvp(picture, (params, behind), direction)
        expected = (gradient.double() * along.double()).sum()
        torch.testing.assert_close((tangent.double() * u.double()).sum(), expected, rtol=1e-5, atol=0)
    _, tangent = torch.func.jvp(lambda blobs: image.render(blobs, width, height, method=method), (params,), (v[0],))
    twin, near = ref.render(raw + 1e-30j * v[0].double().numpy(), width, height)
    slope = twin.imag / 1e-30
    assert np.abs((tangent.numpy() - slope) * ~near[..., None]).max() <= 1e-5 * np.abs(slope).max()
    directions = torch.stack([v[0] * k for k in range(8)])
    jacobian = torch.func.jacfwd(lambda t: picture(params + torch.tensordot(t, directions, 1), behind))(torch.zeros(8))
    _, expected = torch.func.jvp(picture, (params, behind), (v[0], other))
    torch.testing.assert_close(jacobian, expected[..., None] * torch.arange(8), rtol=1e-5, atol=1e-5)


def test_black_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A black background takes no second render, in transformations either, inside which torch wraps constants."""
    draws: list[int] = []
    monkeypatch.setattr(rasterizers, "rasterizer_for", lambda *args: draws.append(1) or rasterizer_for(*args))
    params = torch.tensor(blobs_of(np.random.default_rng(45), 5), dtype=torch.float32)
    torch.func.jvp(lambda blobs: image.render(blobs, 8, 8, method="tiles"), (params,), (params,))
    assert len(draws) == 1


@pytest.mark.parametrize("background", [(0.0, 1.0), (0.0, 0.5, 1.5), (0.0, 0.5, float("nan")), 0.5])
def test_bad_backgrounds(background: object) -> None:
    says = r"background is .*; it must be three numbers from 0 to 1"
    refused(says, image.render, torch.zeros(9, 4), 4, 4, background=background)


def test_transposed_and_detached() -> None:
    params = torch.tensor(blobs_of(np.random.default_rng(42), 10).T.copy(), dtype=torch.float32).T
    assert not params.is_contiguous()
    picture = image.render(params, 6, 5)
    assert not picture.requires_grad
    np.testing.assert_array_equal(picture.numpy(), image.render(params.contiguous(), 6, 5).numpy())


def test_a_gradient_that_is_a_view_of_a_render() -> None:
    """It lies in device memory, in another order."""
    params = torch.tensor(blobs_of(np.random.default_rng(43), 10), dtype=torch.float32, requires_grad=True)
    view = image.render(params.detach(), 6, 6).transpose(0, 1)
    given, copied = (torch.autograd.grad(image.render(params, 6, 6), params, v)[0] for v in (view, view.clone()))
    torch.testing.assert_close(given, copied, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("params", "size", "message"),
    [
        (torch.zeros(8, 5), (4, 4), r"params has shape \[8, 5\]; it must be \[9, N\]"),
        (torch.zeros(9, 0), (4, 4), r"params has shape \[9, 0\]"),
        (torch.zeros(9, 5, dtype=torch.float64), (4, 4), "params is torch.float64; it must be a float32 tensor"),
        (np.zeros((9, 5), np.float32), (4, 4), "params is float32; it must be a float32 tensor"),
        (torch.zeros(9, 5), (0, 4), "the size is 0×4"),
    ],
)
def test_bad_input(params: torch.Tensor, size: tuple[int, int], message: str) -> None:
    refused(message, image.render, params, *size)


@pytest.mark.parametrize("warn_only", [False, True])
def test_deterministic_torch_is_told(warn_only: bool, deterministic_torch: Any) -> None:
    params = torch.zeros(9, 4, requires_grad=True)
    deterministic_torch(True, warn_only=warn_only)
    picture = image.render(params, 16, 16)
    if warn_only:
        with pytest.warns(UserWarning, match=r"gradient of image\.render adds up in any order"):
            picture.sum().backward()
    else:
        refused("use warn_only=True", picture.sum().backward)
