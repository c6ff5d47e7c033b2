"""Losses, masks, first points, schedules, ranges and assertions of gsplat 1.6, against formulas in NumPy."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from splat_py.gsplat import _helper as helper
from splat_py.gsplat import init_utils, losses, regularizers, scene, trace, training
from tests.refusals import refused


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Y = random(3, 4), random(3, 4, seed=1)
x, y = X.numpy(), Y.numpy()
e, logits = x - y, 4 * x - 2
entropy = -(y * np.log(x) + (1 - y) * np.log(1 - x))
ELEMENTWISE = {
    "huber_loss": (losses.huber_loss(X, Y, 0.3), np.where(abs(e) < 0.3, e**2 / 2, 0.3 * (abs(e) - 0.15))),
    "smooth_l1_loss": (losses.smooth_l1_loss(X, Y, 0.3), np.where(abs(e) < 0.3, e**2 / 0.6, abs(e) - 0.15)),
    "bce_loss": (losses.bce_loss(X, Y), entropy),
    "bce_clipped": (
        losses.bce_clipped(X.round(), Y),
        -(y * np.log(p := np.clip(x.round(), 1e-3, 1 - 1e-3)) + (1 - y) * np.log(1 - p)),
    ),
    "bce_with_logits_loss": (losses.bce_with_logits_loss(4 * X - 2, Y), np.log(1 + np.exp(logits)) - y * logits),
    "cross_entropy_loss": (
        losses.cross_entropy_loss(X, torch.tensor([2, 0, 1])),
        np.log(np.exp(x).sum(1)) - x[[0, 1, 2], [2, 0, 1]],
    ),
    "log_l1": (losses.log_l1(X, Y), np.log(1 + abs(e))),
    "depth_inverse_mse": (losses.depth_inverse_mse(X, Y), (1 / x - 1 / y) ** 2),
    "relu_sum": (losses.relu_sum(X, 0.4), x[x > 0.4].sum() - 0.4 * (x > 0.4).sum()),
    "weights_reg": (losses.weights_reg([X, Y[:1]]), np.append((x**2).sum(1), (y[0] ** 2).sum()).mean()),
    "masked_l1": (losses.masked_l1(X, Y, X[:1] > 0.1), abs(e)[:, x[0] > 0.1].mean()),
    "masked_l1, nothing": (losses.masked_l1(X, Y, 0 * Y), 0),
    "binocular_disparity_l1": (losses.binocular_disparity_l1(X, Y * (Y > 0.5)), abs(1 / x - 1 / y)[y > 0.5].mean()),
    "pearson_depth_loss": (losses.pearson_depth_loss(X, Y, Y > 0.3), 1 - np.corrcoef(x[y > 0.3], y[y > 0.3])[0, 1]),
    "pearson_depth_loss, nothing": (losses.pearson_depth_loss(X, Y, 0 * Y), 0),
    "reduce_mean": (losses.reduce_mean(X, Y > 0.5), x[y > 0.5].mean()),
    "reduce_quantile": (losses.reduce_quantile(X, 0.3), np.sort(x.ravel())[:3].mean()),
    "reduce_quantile, nothing": (losses.reduce_quantile(X, 0.01), 0),
    "reduce_sum": (losses.reduce_sum(X), x.sum()),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_formulas(name: str) -> None:
    found, expected = ELEMENTWISE[name]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)


def test_losses_of_images_grids_and_gaussians() -> None:
    a, b, mask = random(2, 3, 20, 16), random(2, 3, 20, 16, seed=1), torch.ones(2, 1, 20, 16)
    mask[..., :8] = 0
    torch.testing.assert_close(losses.masked_ssim(a, b, mask), losses.ssim_loss(a * mask, b * mask))
    normals = torch.nn.functional.normalize(random(5, 3), dim=-1)
    torch.testing.assert_close(losses.normal_cosine_loss(normals, -normals), torch.full((5,), 2.0, dtype=torch.float64))
    grid = random(2, 12, 3, 5)
    distances = np.sqrt(((grid.numpy() - np.eye(3, 4).reshape(12, 1, 1)) ** 2).sum(1))
    np.testing.assert_allclose(losses.identity_distance(grid).numpy(), distances)
    assert losses.bilateral_grid_drift_loss([grid, grid[:1]]).shape == (45,) and not len(losses.bilateral_grid_drift_loss([]))
    video = random(3, 2, 1, 2, 2)
    expected = (np.diff(video.numpy(), axis=0) ** 2).mean((1, 2, 3, 4)) * [1, 0]
    np.testing.assert_allclose(losses.total_variation_temporal(video, torch.tensor([1, 0])).numpy(), expected)
    given = X[:, :3], X[:, 0], X[:, 1], 3 * Y[:, :3], Y[:, 1:]
    found = losses.FusedGaussianLosses(0.2)(*given, Y[:, 0])
    for one, other in zip(
        found,
        (x[:, :3] * y[:, :1], x[:, 0] * y[:, 0], np.maximum(x[:, 1] - 0.2, 0), np.maximum(3 * y[:, :3] - y[:, 1:] / 2, 0)),
        strict=True,
    ):
        np.testing.assert_allclose(one.numpy(), other)
    depths = torch.tensor([2.0, 0.0], requires_grad=True)
    losses.binocular_disparity_l1(depths, torch.tensor([4.0, 2.0])).backward()
    assert depths.grad is not None and depths.grad.tolist() == [-0.25, 0]


def test_means_of_half_precision_do_not_overflow() -> None:
    many = torch.ones(100_000, dtype=torch.float16)
    assert float(losses.masked_l1(many, 0 * many, many)) == float(losses.reduce_quantile(many, 1)) == 1


def test_masks_and_targeted_variation(tmp_path: Path) -> None:
    image, mask = random(1, 2, 4, 5), (random(1, 1, 4, 5, seed=1) > 0.5).double()
    down, right = (abs(np.diff(image.numpy(), axis=axis)) for axis in (2, 3))
    assert float(regularizers.compute_tv_loss_targeted(image)) == pytest.approx((down.sum() + right.sum()) / 40)
    m = mask.numpy()
    parts = [(d * k).sum() / (2 * k.sum()) for d, k in ((down, m[:, :, 1:]), (right, m[..., 1:]))]
    assert float(regularizers.compute_tv_loss_targeted(image, mask)) == pytest.approx(sum(parts))
    dot = torch.zeros(5, 6)
    dot[2, 0] = 1
    assert regularizers.dilate_mask(dot).nonzero().tolist() == [[i, j] for i in (1, 2, 3) for j in (0, 1)]
    Image.fromarray(np.uint8([[255, 0], [255, 255]])).save(tmp_path / "tissue.png")
    union = regularizers.create_invisible_mask([str(tmp_path / "tissue.png"), torch.tensor([[0, 0], [1, 0]])])
    assert union.tolist() == [[0, 1], [1, 0]]
    refused("image has shape", regularizers.compute_tv_loss_targeted, dot)
    for size in (2, -1, 2.5):
        refused(f"kernel_size is {size};", regularizers.dilate_mask, dot, size)
    refused("masks have shapes", regularizers.create_invisible_mask, [])


def test_first_points() -> None:
    K, pose = torch.tensor([[2.0, 0, 1], [0, 4, 1], [0, 0, 1]]), torch.eye(4)
    pose[:3, 3] = torch.tensor([10.0, 0, 0])
    depths = torch.tensor([[[0.0, 3], [5, 2]]])
    given = torch.full((1, 2, 2, 3), 51, dtype=torch.uint8), depths, depths - 2, pose[None], K[None]
    xyz, rgb = init_utils.multi_frame_depth_unprojection(*given)
    assert xyz.tolist() == [[10, -0.75, 3], [7.5, 0, 5]] and rgb.unique().tolist() == pytest.approx([0.2])
    assert len(init_utils.multi_frame_depth_unprojection(*given, max_points=1)[0]) == 1
    points = random(40, 3).numpy()
    distances = np.sort(np.linalg.norm(points[:, None] - points, axis=-1), axis=1)[:, 1:5]
    found = init_utils.knn_scale_init(torch.from_numpy(points), k=4, chunk_size=7)
    np.testing.assert_allclose(found.numpy(), np.log(np.sqrt((distances**2).mean(1))))
    refused(r"have \[1, 1, 1, 1, 2\] frames", init_utils.multi_frame_depth_unprojection, *given[:4], K.expand(2, 3, 3))
    refused("xyz has 2 points", init_utils.knn_scale_init, X[:2])


def test_schedules() -> None:
    schedule = losses.LinearLambdaScheduler(10, 30, 1.0, 0.0, update_frequency=5)
    assert [schedule(0, step) for step in (0, 14, 15, 29, 30, 99)] == [1, 1, 0.75, 0.25, 0, 0]
    video = training.TwoStageScheduler(3, 5, coarse_frame_index=1)
    steps = [video.step(step, 4) for step in range(9)]
    assert [step.frame_index for step in steps] == [1, 1, 1, 0, 1, 2, 3, 0, 1]
    assert [step.shuffle for step in steps] == [step.stage == "fine" for step in steps] == [False] * 3 + [True] * 6
    refused("update_frequency", losses.LinearLambdaScheduler, 3, 3, 1.0)
    refused("non-negative", training.TwoStageScheduler, -1, 0)
    refused("num_frames=1", video.step, 0, 1)


def test_ranges_show_in_the_profiler() -> None:
    @trace.trace_function("function", color="red")
    def work(n: int) -> int:
        return work(n - 1) if n else 3

    with torch.profiler.profile() as profile:
        trace.trace_push("outer")
        with trace.trace_range("inner"):
            assert work(1) == 3
        trace.trace_pop()
    trace.trace_pop()
    counts = {event.key: event.count for event in profile.key_averages()}
    assert (counts["outer"], counts["inner"], counts["function"]) == (1, 1, 2)


def test_scenes_of_ones_own() -> None:
    with pytest.raises(TypeError):
        scene.Scene("a")  # type: ignore[abstract]
    assert isinstance(scene.GaussianScene("b"), scene.Scene)


def test_assertions() -> None:
    with helper.expect_group():
        assert helper.expect_close(X, X) and helper.expect_mismatch_ratio(X, X) and helper.expect_true(X.numel())
        assert helper.expect_grad_sparsity(X, X / 2, min_ratio=0.5)
    for compare in (helper.expect_close, helper.assert_mismatch_ratio, partial(helper.assert_grad_sparsity, min_ratio=0.1)):
        with pytest.raises(AssertionError):
            compare(X, 0 * X)
    with pytest.raises(AssertionError):
        helper.expect_true(False)
    assert helper.ensure_shape("t", X[:1], (3, 4)).shape == (3, 4) and helper.assert_shape("t", X[:1], (3, 4))
    refused(re.escape("t must have shape (1, 4), got (3, 4)"), helper.ensure_shape, "t", X, (1, 4))
    refused("t must have shape", helper.assert_shape, "t", X, (5, 4))
    refused("give equal shapes", losses.masked_l1, X, X[:1], X)


def test_values_are_checked_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = X[:, :3] - 1
    losses.normal_cosine_loss(bad, bad)
    for module in (losses, regularizers):
        monkeypatch.setattr(module, "ENFORCE_CONTRACTS", True)
    image = random(1, 1, 12, 12)
    losses.ssim_loss(image, image)
    losses.out_of_bound_loss(bad, X[:, :3])
    refused("img2 ranges from 1.* to 1", losses.ssim_loss, image, image + 1)
    refused("the length of pred_normal", losses.normal_cosine_loss, bad, bad)
    refused("scales ranges", losses.gaussian_scale_reg, bad)
    refused("densities ranges", losses.gaussian_density_reg, bad[:, 0])
    refused("z_scales ranges", losses.gaussian_z_scale_reg, bad[:, 0], 0.1)
    refused("cuboid_dims ranges", losses.out_of_bound_loss, bad, 0 * bad)
    refused("mask must be binary", regularizers.compute_tv_loss_targeted, image, image)
