"""gsplat's losses against sums in float64, and colours matched to a reference."""

import numpy as np
import pytest
import torch
from splat_py.gsplat.color_correct import color_correct_affine, color_correct_quadratic
from torch import Tensor

from splat_py.gsplat import losses
from tests.reference.ssim import ssim, ssim_map
from tests.refusals import refused


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def last(image: Tensor) -> np.ndarray:
    return image.permute(1, 2, 0).numpy()


def test_of_each_element() -> None:
    pred, target = random(4, 3), random(4, 3, seed=1)
    torch.testing.assert_close(losses.l1_loss(pred, target), (pred - target).abs())
    torch.testing.assert_close(losses.mse_loss(pred, target), (pred - target) ** 2)
    x = random(6, 3) - 0.5
    assert abs(float(losses.opacity_reg_loss(x)) - float((1 / (1 + (-x).exp())).mean())) < 1e-12
    assert abs(float(losses.scale_reg_loss(x)) - float(x.exp().mean())) < 1e-12
    visible = torch.tensor([1.0, 0, 1, 0, 0.5, 1], dtype=torch.float64)
    scales = x.exp()
    torch.testing.assert_close(losses.gaussian_scale_reg(scales), scales)
    torch.testing.assert_close(losses.gaussian_scale_reg(scales, visible[:, None]), scales * visible[:, None])
    torch.testing.assert_close(losses.gaussian_density_reg(scales[:, 0], visible), scales[:, 0] * visible)
    torch.testing.assert_close(losses.gaussian_density_reg(scales[:, :1], visible), scales[:, :1] * visible[:, None])
    torch.testing.assert_close(losses.gaussian_z_scale_reg(scales[:, 2], 1.0), (scales[:, 2] - 1).clamp(min=0))
    outside = losses.out_of_bound_loss(torch.tensor([[-3.0, 0.5, 1.0]]), torch.tensor([[2.0, 2.0, 1.0]]))
    torch.testing.assert_close(outside, torch.tensor([[2.0, 0.0, 0.5]]))


def test_ssim_is_the_references() -> None:
    x, y = random(2, 3, 19, 14), random(2, 3, 19, 14, seed=1)
    window = losses.create_ssim_window(11, 3)
    assert window.shape == (3, 1, 11, 11)
    torch.testing.assert_close(window.sum((1, 2, 3)), torch.ones(3))
    found = losses.torch_ssim_loss(x, y, window.double())
    expected = [ssim_map(last(a), last(b)) for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(found.permute(0, 2, 3, 1).numpy(), expected, atol=1e-6)
    for a, b in ((x, y), (x.float(), y.float())):
        loss = losses.ssim_loss(a, b)
        assert loss.dtype == a.dtype
        assert abs(1 - float(loss) - np.mean([ssim(last(c), last(d)) for c, d in zip(x, y, strict=True)])) < 1e-6


def test_ssim_of_other_windows_and_channels() -> None:
    x = random(1, 2, 9, 9)
    assert abs(float(losses.ssim_loss(x, x, window_size=7))) < 1e-12
    assert losses.ssim_loss(x, x.flip(3), window_size=7) > 0.1
    x, y = random(1, 1, 5, 6).requires_grad_(), random(1, 1, 5, 6, seed=1)
    assert torch.autograd.gradcheck(losses.ssim_loss, (x, y))


def test_depths_are_compared_by_their_inverses() -> None:
    pred = torch.tensor([2.0, 0.0, -1.0, 4.0], requires_grad=True)
    loss = losses.depth_l1_loss(pred, torch.tensor([4.0, 2.0, 0.0, 0.0]), scene_scale=3.0)
    assert float(loss.detach()) == 3 * (0.25 + 0.5 + 0 + 0.25) / 4
    loss.backward()
    torch.testing.assert_close(pred.grad, torch.tensor([-3 / 16, 0, 0, -3 / 64]))


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (1, 12, 3, 4, 5), (2, 3, 1)])
def test_total_variation(shape: tuple[int, ...]) -> None:
    x = random(*shape)
    expected = 0.0
    for axis in range(2, len(shape)):
        differences = np.diff(x.numpy(), axis=axis)
        expected += (differences**2).sum() / max(differences[0].size, 1) / shape[0]
    assert abs(float(losses.total_variation_loss(x)) - expected) < 1e-12


def picture(*shape: int) -> Tensor:
    return 0.1 + 0.8 * torch.rand(shape, generator=torch.Generator().manual_seed(0))


def test_maps_are_undone() -> None:
    ref = picture(2, 12, 17, 3)
    img = ref * torch.tensor([0.5, 0.9, 0.7]) + torch.tensor([0.2, 0.05, 0.0])
    torch.testing.assert_close(color_correct_affine(img, ref), ref, atol=1e-5, rtol=0)
    img = picture(12, 17, 3)
    mixed = img @ torch.tensor([[0.7, 0.1, 0.0], [0.1, 0.6, 0.1], [0.0, 0.1, 0.5]])
    ref = mixed - 0.2 * img.roll(1, dims=-1) * img + 0.15
    assert float(ref.min()) > 0.01 and float(ref.max()) < 0.99
    torch.testing.assert_close(color_correct_quadratic(img, ref), ref, atol=1e-4, rtol=0)
    assert float((color_correct_affine(img, ref) - ref).abs().max()) > 0.01
    img = picture(20, 20, 3)
    ref = 0.8 * img + 0.1
    damaged = ref.clone()
    damaged[:5] = 1.0
    torch.testing.assert_close(color_correct_quadratic(img, damaged), ref, atol=1e-4, rtol=0)


@pytest.mark.parametrize("correct", [color_correct_affine, color_correct_quadratic])
def test_flat_and_saturated_images_stay_finite(correct: object) -> None:
    ref = picture(5, 6, 3)
    for img in (torch.full((5, 6, 3), 0.5), torch.ones(5, 6, 3), torch.zeros(5, 6, 3)):
        for a, b in ((img, ref), (ref, img)):
            found = correct(a, b)
            assert found.shape == (5, 6, 3) and bool(((found >= 0) & (found <= 1)).all())


@pytest.mark.parametrize("correct", [color_correct_affine, color_correct_quadratic])
def test_shapes_that_differ_are_named(correct: object) -> None:
    refused(r"img has shape \[4, 4, 3\] and ref \[4, 5, 3\]", correct, torch.rand(4, 4, 3), torch.rand(4, 5, 3))
