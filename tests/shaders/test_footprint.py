"""slang/splat/footprint.slang: no visible pixel is missed, and few tiles are visited in vain."""

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from splat_py.shaders import footprint as shader
from tests.reference.blending import MAX_ALPHA, MIN_ALPHA
from tests.shaders.oracle import Array, assert_value, float32

SIDE = 48
CENTRES = np.arange(SIDE) + 0.5


def footprint(mean: Any, conic: Any, opacity: Any) -> Any:
    return shader.footprint["GaussianFalloff"](mean, conic, opacity, np.zeros((4, 4)))


def conics(sigma1: Any, sigma2: Any, angle: Any) -> Array:
    """Inverse covariances (a, b, c) of ellipses with these half axes in pixels, as float32 numbers."""
    cos, sin = np.cos(angle), np.sin(angle)
    u, v = 1 / np.square(sigma1), 1 / np.square(sigma2)
    packed = np.stack([u * cos**2 + v * sin**2, (u - v) * cos * sin, u * sin**2 + v * cos**2], axis=-1)
    return float32(packed)


def alphas(means: Array, packed: Array, opacities: Array) -> Array:
    dx = CENTRES[None, None, :] - means[:, 0, None, None]
    dy = CENTRES[None, :, None] - means[:, 1, None, None]
    a, b, c = packed.T[:, :, None, None]
    sigma = a * dx * dx + 2 * b * dx * dy + c * dy * dy
    return np.minimum(MAX_ALPHA, opacities[:, None, None] * np.exp(-0.5 * sigma))


def visited(footprints: dict[str, Any], tile: int) -> npt.NDArray[np.bool_]:
    """True for each tile that a splat's walk visits, [N, rows, columns]."""
    count = -(-SIDE // tile)
    grid = {"tileSize": tile, "columns": count, "rows": count}
    indices = np.arange(count)
    batch = {name: field[:, None] for name, field in footprints.items()}
    rows = shader.tileRows(footprints, grid)[:, None, :]
    columns = shader.tileColumns(batch, grid, np.broadcast_to(indices, (len(rows), count)))
    in_rows = (indices >= rows[..., 0]) & (indices < rows[..., 1])
    in_columns = (indices >= columns[..., :1]) & (indices < columns[..., 1:])
    return in_rows[:, :, None] & in_columns


def per_tile(visible: npt.NDArray[np.bool_], tile: int) -> npt.NDArray[np.bool_]:
    count = -(-SIDE // tile)
    padded = np.zeros((len(visible), count * tile, count * tile), bool)
    padded[:, :SIDE, :SIDE] = visible
    return padded.reshape(len(visible), count, tile, count, tile).any(axis=(2, 4))


def assert_nothing_is_missed(f: dict[str, Any], visible: Any, wasted: float) -> None:
    """Check that footprints visit every tile with a visible pixel, and that at most this share of their tiles sees nothing."""
    for tile in (4, 8, 16):
        needed, seen = per_tile(visible, tile), visited(f, tile)
        assert not np.any(needed & ~seen)
        assert np.sum(seen & ~needed) < wasted * np.sum(seen)


def test_sigma_max_and_determinant() -> None:
    rng = np.random.default_rng(12)
    count = 200
    packed = conics(*np.exp(rng.uniform(-1, 4, (2, count))), rng.uniform(0, np.pi, count))
    opacities = rng.uniform(0, 1, count)
    opacities[:4] = [0, 1e-6, 0.0039, 0.004]
    means = rng.uniform(-10, 60, (count, 2))
    f = footprint(means, packed, opacities)
    assert_value(f["mean"], means)
    assert_value(f["conic"], packed)
    seen = opacities >= MIN_ALPHA
    assert np.all(f["sigmaMax"][~seen] < 0) and np.sum(~seen) >= 3
    level = 2 * np.log(opacities[seen] / MIN_ALPHA)
    assert np.all(f["sigmaMax"][seen] > level) and np.all(f["sigmaMax"][seen] < level * 1.001 + 1e-3)
    exact = packed[:, 0] * packed[:, 2] - packed[:, 1] ** 2
    assert np.all(f["determinant"] <= exact * (1 + 1e-7))
    round_ones = exact > 0.1 * packed[:, 0] * packed[:, 2]
    assert np.all(f["determinant"][round_ones] > 0.9999 * exact[round_ones])


def test_reach() -> None:
    rng = np.random.default_rng(13)
    count = 100
    packed = conics(*np.exp(rng.uniform(-1, 5, (2, count))), rng.uniform(0, np.pi, count))
    opacities = rng.uniform(0.01, 1, count)
    reach = footprint(np.zeros(2), packed, opacities)["reach"]
    a, b, c = packed.T
    # The ellipse's half sides are √(level Σ₂ₓₓ) and √(level Σ₂ᵧᵧ).
    level = 2 * np.log(opacities / MIN_ALPHA)
    exact = np.sqrt(level[:, None] * np.stack([c, a], axis=1) / (a * c - b * b)[:, None])
    assert np.all(reach >= exact)
    assert np.median(reach / exact) < 1.001


def test_touches_is_true_where_a_rectangle_sees_the_splat() -> None:
    rng = np.random.default_rng(14)
    count = 400
    packed = conics(*np.exp(rng.uniform(-0.7, 2.5, (2, count))), rng.uniform(0, np.pi, count))
    means, opacities = rng.uniform(0, SIDE, (count, 2)), rng.uniform(0.004, 1, count)
    low = rng.integers(0, SIDE - 4, (count, 2))
    size = rng.integers(0, 4, (count, 2))
    actual = shader.touches(footprint(means, packed, opacities), low + 0.5, low + size + 0.5)
    visible = alphas(means, packed, opacities) >= MIN_ALPHA
    expected = np.array(
        [visible[n, y : y + h + 1, x : x + w + 1].any() for n, ((x, y), (w, h)) in enumerate(zip(low, size, strict=True))]
    )
    assert 0.1 < expected.mean() < 0.9
    assert np.all(actual[expected])
    # It reports too much only for ellipses that pass between pixel centres.
    assert np.mean(actual & ~expected) < 0.02


def test_box_touches_is_true_at_every_visible_pixel() -> None:
    rng = np.random.default_rng(17)
    count = 60
    packed = conics(*np.exp(rng.uniform(-0.7, 4, (2, count))), rng.uniform(0, np.pi, count))
    means, opacities = float32(rng.uniform(0, SIDE, (count, 2))), rng.uniform(0.003, 1, count)
    radius, at = float32(rng.uniform(-3, 6, count)), np.stack(np.meshgrid(CENTRES, CENTRES), axis=-1).reshape(-1, 2)
    f = footprint(means, packed, opacities) | {"center": float32(means + 2), "radius": radius}
    on_box = shader.boxTouches({name: field[:, None] for name, field in f.items()}, at, at)
    on_disc = np.linalg.norm(at - (means + 2)[:, None], axis=-1) <= radius[:, None]
    visible = (alphas(means, packed, opacities) >= MIN_ALPHA).reshape(on_disc.shape) | on_disc
    assert np.all(on_box[visible])
    assert visible.mean() > 0.2 and on_box.mean() < visible.mean() + 0.25
    # A splat whose numbers give no box is seen everywhere.
    f = footprint(np.zeros(2), np.zeros(3), 0.5) | {"reach": np.array([np.nan, np.nan])}
    assert shader.boxTouches(f, CENTRES[:2], CENTRES[:2])


def touches(
    means: Array, packed: Array, opacities: Array, low: Array, high: Array, *, log: float = 0, divide: float = 0
) -> npt.NDArray[np.bool_]:
    """The shader's `touches` in float32, with relative errors of its logarithm and divisions."""
    one, (a, b, c) = np.float32(1), float32(packed).astype(np.float32).T
    level = np.float32(2) * np.log(opacities.astype(np.float32) * np.float32(255)) * (one + np.float32(log))
    level = level * np.float32(1.0001) + np.float32(1e-4)
    lo, hi = (low - means).astype(np.float32).T, (high - means).astype(np.float32).T
    near, far = np.clip(np.float32(0), lo, hi), np.maximum(abs(lo), abs(hi))
    y = np.clip(-b * near[0] / c * (one + np.float32(divide)), lo[1], hi[1])
    x = np.clip(-b * near[1] / a * (one + np.float32(divide)), lo[0], hi[0])
    vertical = a * near[0] * near[0] + 2 * b * near[0] * y + c * y * y
    horizontal = a * x * x + 2 * b * x * near[1] + c * near[1] * near[1]
    return np.asarray(np.minimum(vertical, horizontal) - np.float32(1e-6) * (a * far[0] ** 2 + c * far[1] ** 2) <= level)


def test_margins_cover_approximate_mathematics() -> None:
    """CUDA's approximate functions err by less than 2⁻²⁰ (CUDA C++ Programming Guide, Intrinsic Functions), in α too. No splat
    is missed at a pixel on its edge, where a rectangle's side touches it."""
    rng = np.random.default_rng(16)
    count, error = 4000, 2.0**-20
    packed = conics(*np.exp(rng.uniform(-0.7, 4, (2, count))), rng.uniform(0, np.pi, count))
    means, opacities = float32(rng.uniform(0, SIDE, (count, 2))), float32(rng.uniform(0.005, 1, count))
    a, b, c = packed.T
    right = np.sqrt(2 * np.log(255 * opacities) * c / (a * c - b * b))
    offset = np.stack([right, -b / c * right], 1)
    pixel = float32(means + offset * (1 + rng.uniform(-2, 2, (count, 1)) * error))
    dx, dy = (pixel - means).T
    visible = opacities * np.exp(-0.5 * (a * dx * dx + 2 * b * dx * dy + c * dy * dy)) * (1 + error) >= MIN_ALPHA
    assert 0.3 < visible.mean() < 0.9
    low, high = pixel - np.array([0, 3]), pixel + np.array([7, 4])
    splats = means, packed, opacities, low, high
    np.testing.assert_array_equal(touches(*splats), shader.touches(footprint(means, packed, opacities), low, high))
    for log in (-error, error):
        for divide in (-error, error):
            assert touches(*splats, log=log, divide=divide)[visible].all()
    assert not touches(*splats, log=-2e-3)[visible].all()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    tile=st.sampled_from([4, 8, 16]),
    mean=st.tuples(*[st.floats(-60, 100)] * 2),
    log_sigmas=st.tuples(*[st.floats(-0.6, 9)] * 2),
    angle=st.one_of(st.floats(0, np.pi), st.sampled_from([0.0, np.pi / 4, np.pi / 2])),
    opacity=st.floats(1e-3, 1),
)
def test_no_visible_pixel_is_missed(
    tile: int, mean: tuple[float, float], log_sigmas: tuple[float, float], angle: float, opacity: float
) -> None:
    """Dots of half a pixel, needles in any direction (up to 15,000 : 1), splats far larger than the image."""
    sigma1, sigma2 = np.exp(log_sigmas)
    means, opacities = float32([mean]), float32([opacity])
    packed = conics([sigma1], [sigma2], [angle])
    f = footprint(means, packed, opacities)
    needed = per_tile(alphas(means, packed, opacities) >= MIN_ALPHA, tile)
    missed = needed & ~visited(f, tile)
    assert not missed.any(), f"tiles (row, column) {np.argwhere(missed[0]).tolist()}"


def test_few_tiles_are_visited_in_vain() -> None:
    rng = np.random.default_rng(15)
    count = 1000
    packed = conics(*np.exp(rng.uniform(-0.6, 2.5, (2, count))), rng.uniform(0, np.pi, count))
    means, opacities = rng.uniform(-5, SIDE + 5, (count, 2)), rng.uniform(0.004, 1, count)
    assert_nothing_is_missed(footprint(means, packed, opacities), alphas(means, packed, opacities) >= MIN_ALPHA, 0.01)


def test_touches_without_a_batch() -> None:
    """A function that returns a bool does so with and without batch dimensions."""
    splat = footprint([5.0, 5.0], [0.1, 0.0, 0.1], 0.9)
    assert shader.touches(splat, [4.0, 4.0], [6.0, 6.0])
    assert not shader.touches(splat, [400.0, 4.0], [600.0, 6.0])
    assert shader.touches(splat, [[4.0, 4.0]], [[6.0, 6.0]]).shape == (1,)
