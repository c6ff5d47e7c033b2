"""Blending against the contract's formula; gradients against central differences; the pixels that `near_threshold` marks."""

from collections.abc import Sequence

import numpy as np
import pytest

import tests.reference as ref
from tests.reference.arrays import Array
from tests.reference.blending import Rasterized, RasterizedGradients
from tests.reference.checking import HEIGHT, WIDTH, check_gradients


def splats(rng: np.random.Generator, count: int, channels: int = 3) -> list[Array]:
    """means2d (some outside), conics, opacities, colours, depths."""
    root = rng.normal(size=(count, 2, 2)) * 1.5
    inverse = np.linalg.inv(root @ root.swapaxes(-1, -2) + 0.3 * np.eye(2))
    return [
        rng.uniform(-1, 1, size=(count, 2)) * 9 + [WIDTH / 2, HEIGHT / 2],
        np.stack([inverse[:, 0, 0], inverse[:, 0, 1], inverse[:, 1, 1]], -1),
        rng.uniform(0.1, 0.95, size=count),
        rng.normal(size=(count, channels)),
        rng.uniform(1, 9, size=count),
    ]


def rasterized(inputs: Sequence[Array], background: Array | None = None) -> Rasterized:
    return ref.rasterize(*inputs, WIDTH, HEIGHT, background)  # type: ignore[misc]


def rasterized_backward(
    inputs: Sequence[Array], background: Array | None, v_colors: Array, v_alphas: Array
) -> RasterizedGradients:
    out = rasterized(inputs, background)
    return ref.rasterize_backward(*inputs, WIDTH, HEIGHT, background, out, v_colors, v_alphas)  # type: ignore[misc]


def blend_by_the_book(inputs: Sequence[Array], background: Array) -> tuple[Array, Array, Array, Array]:
    """Apply the contract's formula, one pixel and one Gaussian at a time."""
    means2d, conics, opacities, colors, depths = inputs
    image, T_final = np.zeros((HEIGHT, WIDTH, colors.shape[1])), np.zeros((HEIGHT, WIDTH))
    n_contrib, n_blended = np.zeros((HEIGHT, WIDTH), int), np.zeros((HEIGHT, WIDTH), int)
    order = sorted(range(len(depths)), key=lambda i: depths[i])
    for row in range(HEIGHT):
        for column in range(WIDTH):
            T = 1.0
            for rank, i in enumerate(order):
                d = np.array([column + 0.5, row + 0.5]) - means2d[i]
                a, b, c = conics[i]
                alpha = min(0.999, opacities[i] * np.exp(-0.5 * d @ np.array([[a, b], [b, c]]) @ d))
                if alpha < 1 / 255:
                    continue
                if T * (1 - alpha) <= 1e-4:
                    break
                image[row, column] += colors[i] * alpha * T
                T *= 1 - alpha
                n_contrib[row, column], n_blended[row, column] = rank + 1, n_blended[row, column] + 1
            image[row, column] += T * background
            T_final[row, column] = T
    return image, T_final, n_contrib, n_blended


@pytest.mark.parametrize(("count", "channels"), [(0, 3), (1, 1), (12, 3), (80, 5)])
def test_blending_is_the_contracts(count: int, channels: int) -> None:
    rng = np.random.default_rng(13)
    inputs, background = splats(rng, count, channels), rng.normal(size=channels)
    inputs[2][::3] = 1.0  # α reaches its clamp
    if count == 80:
        inputs[4][:40] = 5.0  # equal depths keep their order
    out = rasterized(inputs, background)
    image, T_final, n_contrib, n_blended = blend_by_the_book(inputs, background)
    np.testing.assert_allclose(out.colors, image, atol=1e-13)
    np.testing.assert_allclose(out.T_final, T_final, rtol=1e-12)
    np.testing.assert_allclose(out.alphas, 1 - T_final, atol=1e-15)
    np.testing.assert_array_equal(out.n_contrib, n_contrib)
    np.testing.assert_array_equal(out.n_blended, n_blended)
    if count == 80:
        assert (n_contrib < 60).any(), "some pixels must stop early"


@pytest.mark.parametrize("with_background", [False, True])
def test_hard_blending_gradient_outside_the_marked_pixels(with_background: bool) -> None:
    """Clamped α, skipped Gaussians and stopped pixels; dozens of Gaussians a pixel."""
    rng = np.random.default_rng(15)
    *inputs, depths = splats(rng, 60)
    inputs[2][::2] = rng.uniform(0.9, 1.0, size=30)
    inputs[0][:6] = np.floor(inputs[0][:6].clip(1, 9)) + 0.5  # centred on a pixel, so α reaches its clamp
    inputs[2][:6] = 1.0
    background = rng.normal(size=3) if with_background else None
    # A step of 1e-6 changes α by a relative 1e-4 at most: a margin of 1e-3 stays clear of every decision.
    means2d, conics, opacities, _ = inputs
    marked = ref.near_threshold(means2d, conics, opacities, depths, WIDTH, HEIGHT, margin=1e-3)
    assert 0 < marked.sum() < 0.3 * marked.size
    v_colors = np.where(marked[..., None], 0.0, rng.normal(size=(HEIGHT, WIDTH, 3)))
    v_alphas = np.where(marked, 0.0, rng.normal(size=(HEIGHT, WIDTH)))

    def f(*x: Array) -> float:
        out = rasterized([*x[:4], depths], x[4] if with_background else None)
        return float(np.sum(out.colors * v_colors) + np.sum(out.alphas * v_alphas))

    blended = rasterized([*inputs, depths], background)
    assert (blended.n_contrib < 40).any() and blended.n_blended.max() > 8
    out = rasterized_backward([*inputs, depths], background, v_colors, v_alphas)
    gradients = [out.means2d, out.conics, out.opacities, out.colors]
    assert all(np.isfinite(g).all() for g in gradients)
    if background is not None:
        inputs, gradients = [*inputs, background], [*gradients, out.background]
    check_gradients(f, inputs, gradients, h=1e-6, fourth_order=False)


def test_absolute_gradient_is_the_sum_over_single_pixels() -> None:
    rng = np.random.default_rng(16)
    inputs = splats(rng, 9)
    v_colors, v_alphas = rng.normal(size=(HEIGHT, WIDTH, 3)), rng.normal(size=(HEIGHT, WIDTH))
    total = np.zeros((9, 2))
    for row in range(HEIGHT):
        for column in range(WIDTH):
            only = np.zeros((HEIGHT, WIDTH))
            only[row, column] = 1
            one = rasterized_backward(inputs, None, v_colors * only[..., None], v_alphas * only)
            total += np.abs(one.means2d)
    out = rasterized_backward(inputs, None, v_colors, v_alphas)
    np.testing.assert_allclose(out.means2d_abs, total, rtol=1e-10)
    assert (out.means2d_abs > np.abs(out.means2d)).any()


def test_thousands_of_gaussians_are_blended_and_undone() -> None:
    """T, undone through a thousand steps, returns to one, as the colours' gradients show."""
    rng = np.random.default_rng(17)
    inputs = splats(rng, 1000)
    inputs[1] *= 0.1
    inputs[2] = np.full(1000, 0.01)
    out = rasterized(inputs)
    assert out.n_blended.max() > 100
    v = rasterized_backward(inputs, None, np.ones((HEIGHT, WIDTH, 3)), np.zeros((HEIGHT, WIDTH)))
    np.testing.assert_allclose(v.colors.sum(axis=0), out.alphas.sum(), rtol=1e-12)  # Σ α T = 1 − T_final


@pytest.mark.parametrize(
    ("opacities", "depths", "expected"),
    [
        ([0.5, 0.5], [1.0, 2.0], False),
        ([(1 + 5e-5) / 255, 0.5], [1.0, 2.0], True),  # just above the skip
        ([(1 - 5e-5) / 255, 0.5], [1.0, 2.0], True),  # just below it, although not blended
        ([(1 + 5e-3) / 255, 0.5], [1.0, 2.0], False),
        ([0.999 * (1 - 5e-5), 0.5], [1.0, 2.0], True),  # at the clamp
        ([1.0, 0.5], [1.0, 2.0], False),  # clearly clamped
        ([0.99, 0.99 * (1 + 1e-7)], [1.0, 2.0], True),  # T = 1e-4: at the stop
        ([0.99, 0.98], [1.0, 2.0], False),
        ([0.5, 0.5], [2.0, 2.0 + 1e-7], True),  # may swap
        ([0.5, 0.5], [2.0, 2.0], False),  # equal: input order
    ],
)
def test_near_threshold(opacities: list[float], depths: list[float], expected: bool) -> None:
    means2d = np.array([[4.5, 3.5], [4.5, 3.5]])
    conics = np.array([[50.0, 0, 50.0]] * 2)  # too small for the other pixels
    marked = ref.near_threshold(means2d, conics, np.array(opacities), np.array(depths), WIDTH, HEIGHT, margin=1e-4)
    assert marked[3, 4] == expected
    assert marked.sum() == int(expected)


def test_only_marked_pixels_decide_otherwise_after_rounding() -> None:
    rng = np.random.default_rng(26)
    flipped = marked_pixels = 0
    for _ in range(40):
        means2d, conics, opacities, colors, depths = splats(rng, 150)
        opacities[::4] = 0.999  # many α near the clamp
        marked = ref.near_threshold(means2d, conics, opacities, depths, WIDTH, HEIGHT)
        exact = rasterized([means2d, conics, opacities, colors, depths])
        # Rounding slightly worse than float32's, so a few frames suffice.
        rounded = [x * (1 + rng.uniform(-4e-6, 4e-6, size=x.shape)) for x in (means2d, conics, opacities)]
        other = rasterized([*rounded, colors, depths])
        different = (exact.n_contrib != other.n_contrib) | (exact.n_blended != other.n_blended)
        assert not (different & ~marked).any()
        flipped, marked_pixels = flipped + different.sum(), marked_pixels + marked.sum()
        np.testing.assert_allclose(other.colors[~marked], exact.colors[~marked], atol=2e-4)
    assert flipped > 0
    assert marked_pixels < 0.1 * 40 * WIDTH * HEIGHT


def test_near_threshold_is_silent_after_the_stop() -> None:
    means2d, conics = np.full((4, 2), 4.5), np.array([[50.0, 0, 50.0]] * 4)
    opacities = np.array([0.98, 0.98, 0.98, 1 / 255])
    depths = np.array([1.0, 2.0, 3.0, 4.0])
    assert not ref.near_threshold(means2d, conics, opacities, depths, WIDTH, HEIGHT).any()
    assert ref.near_threshold(means2d, conics, opacities, depths[::-1], WIDTH, HEIGHT).any()
