"""Ways to draw blobs and to differentiate, against each other and against float64."""

import numpy as np
import pytest

from splat_py.gpu.device import get_device
from splat_py.image.rasterizers import AutodiffRasterizer, GroupRasterizer, TileRasterizer, rasterizer_for
from tests.image import reference as ref
from tests.image.scenes import LISTING, WAYS, assert_gradients, blobs_of, differentiate, draw
from tests.refusals import refused

SIZES = [(1, 1), (8, 4), (19, 13), (37, 53)]


def trusted(raw: ref.Array, width: int, height: int) -> tuple[ref.Array, ref.Array]:
    """The reference's picture, and the pixels [H, W, 1] in which float32 must decide alike."""
    image, near = ref.render(raw, width, height)
    assert near.mean() < 0.05, "most pixels must be compared"
    return image, ~near[..., None]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_pictures(way: str, width: int, height: int) -> None:
    raw = blobs_of(np.random.default_rng(width), 24)
    expected, mask = trusted(raw, width, height)
    assert np.abs((draw(way, raw, width, height) - expected) * mask).max() <= 1e-5
    assert expected.max() > 0.1


@pytest.fixture(scope="module")
def expected_gradient() -> tuple[ref.Array, ref.Array, ref.Array]:
    """Raw blobs, ∂L/∂image and the reference's ∂L/∂raw."""
    rng = np.random.default_rng(5)
    raw = blobs_of(rng, 24)
    _, mask = trusted(raw, 19, 13)
    v = (rng.normal(size=(13, 19, 3)) * mask).astype(np.float32).astype(np.float64)
    return raw, v, ref.gradient(raw, v)


@pytest.mark.parametrize("native", [True, False], ids=["float atomics", "compare-and-swap"])
@pytest.mark.parametrize("way", WAYS)
def test_gradients(way: str, native: bool, expected_gradient: tuple[ref.Array, ref.Array, ref.Array]) -> None:
    if native and not get_device().native_float_atomics:
        pytest.skip("this device has no float atomics")
    raw, v, expected = expected_gradient
    assert_gradients(differentiate(way, raw, v, linear=True, native=native), expected)


@pytest.mark.parametrize("way", WAYS)
def test_gradient_of_the_squared_error(way: str) -> None:
    """∂ mean (image - target)² is that of the linear loss with 2 (image - target) / 3 W H as ∂L/∂image."""
    width, height = 21, 10
    rng = np.random.default_rng(6)
    raw = blobs_of(rng, 24)
    target = rng.uniform(size=(height, width, 3))
    v = 2 * (draw("autodiff", raw, width, height) - target) / target.size
    assert_gradients(differentiate(way, raw, target, linear=False), differentiate("autodiff", raw, v, linear=True))


def test_ways_agree_on_a_large_picture() -> None:
    rng = np.random.default_rng(7)
    raw = blobs_of(rng, 1500, deviation=0.03)
    width, height = 101, 70
    expected, mask = trusted(raw, width, height)
    v = rng.normal(size=expected.shape) * mask
    by_group = differentiate("group", raw, v, linear=True)
    for way in LISTING:
        assert np.abs((draw(way, raw, width, height) - expected) * mask).max() <= 1e-5
        assert_gradients(differentiate(way, raw, v, linear=True), by_group)


def test_a_crowded_tile_drops_nothing() -> None:
    """16,000 faint blobs fill a workgroup's list of 1,024 several times, forward and backward."""
    rng = np.random.default_rng(8)
    width, height = 16, 9
    raw = blobs_of(rng, 16_000, opacity=-4.8)
    expected, mask = trusted(raw, width, height)
    seen = ref.alphas(ref.evaluate(raw, width, height), width, height) >= ref.MIN_ALPHA
    assert seen[:, :4, :8].any(axis=(1, 2)).sum() > 2 * 1024, "one list must not be enough"
    v = rng.normal(size=expected.shape) * mask
    by_group = differentiate("group", raw, v, linear=True)
    for way in LISTING:
        assert np.abs((draw(way, raw, width, height) - expected) * mask).max() <= 2e-5
        assert_gradients(differentiate(way, raw, v, linear=True), by_group)
    # The first tile needs its first blobs as well as its last ones.
    reached = np.flatnonzero(by_group[8] * seen[:, :4, :8].any(axis=(1, 2)))
    assert reached.min() < 100 and reached.max() > 15_900


def test_opaque_blobs_hide_what_is_behind() -> None:
    """Pixels stop at T < 1/255, most of them inside the first list; blobs behind get no gradient."""
    rng = np.random.default_rng(9)
    width, height = 20, 12
    raw = blobs_of(rng, 4000, deviation=0.25, opacity=2.0)
    expected, mask = trusted(raw, width, height)
    v = rng.normal(size=expected.shape) * mask
    for way in LISTING:
        assert np.abs((draw(way, raw, width, height) - expected) * mask).max() <= 1e-5
        gradients = differentiate(way, raw, v, linear=True)
        assert not gradients[:, 1000:].any() and gradients[:, :5].any(axis=0).all()


@pytest.mark.parametrize("way", LISTING)
def test_blobs_that_nobody_sees(way: str) -> None:
    raw = blobs_of(np.random.default_rng(10), 3, opacity=-20.0)
    assert not draw(way, raw, 9, 7).any()
    assert not differentiate(way, raw, np.ones((7, 9, 3)), linear=True).any()


@pytest.mark.parametrize("way", LISTING)
@pytest.mark.parametrize("value", [-80.0, 80.0])
def test_extreme_parameters(way: str, value: float) -> None:
    raw = blobs_of(np.random.default_rng(11), 9)
    raw[np.arange(9), np.arange(9)] = value
    raw[2:4, :2] = value
    assert np.isfinite(draw(way, raw, 30, 20)).all()
    assert np.isfinite(differentiate(way, raw, np.ones((20, 30, 3)), linear=True)).all()


def test_the_choice() -> None:
    device = get_device()
    assert isinstance(rasterizer_for(device, 20, 16, 16), TileRasterizer if device.software else GroupRasterizer)
    assert isinstance(rasterizer_for(device, 40_960, 1920, 1080), TileRasterizer)
    for method, kind in (("group", GroupRasterizer), ("tiles", TileRasterizer), ("autodiff", AutodiffRasterizer)):
        assert type(rasterizer_for(device, 20, 16, 16, method)) is kind
    refused("'sorted'; use auto, tiles, group, autodiff", rasterizer_for, device, 20, 16, 16, "sorted")
    refused("at most 400 blobs, not 600; use tiles or group", rasterizer_for, device, 600, 16, 16, "autodiff")
