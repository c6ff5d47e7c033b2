"""Fitting pictures: blobs, their renders and their files."""

from pathlib import Path

import numpy as np
import pytest

from splat_py import image
from splat_py.gpu.device import get_device
from splat_py.image.fitting import ImageFitter, blobs_on_detail
from splat_py.image.options import Rates
from splat_py.image.rasterizers import AutodiffRasterizer, GroupRasterizer, TileRasterizer
from tests.image.reference import Array
from tests.image.scenes import differentiate
from tests.reference import adam_step
from tests.refusals import refused


def checkers(width: int = 48, height: int = 32) -> Array:
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    return np.stack([(x // 8 + y // 8) % 2, x / width, y / height], axis=-1).astype(np.float32)


@pytest.fixture(scope="module")
def fitted() -> image.ImageFit:
    return image.fit(checkers(), blobs=400, steps=150)


def test_a_fit_is_good_at_any_size(fitted: image.ImageFit) -> None:
    assert fitted.psnr > 31
    assert fitted.psnr == pytest.approx(-10 * np.log10(np.mean((fitted.render() - checkers()) ** 2)), abs=1e-3)
    assert fitted.render(96, 64).shape == (64, 96, 3)
    assert fitted.render(width=24).shape == (16, 24, 3)
    assert fitted.render(height=16).shape == (16, 24, 3)
    mean = fitted.render().reshape(16, 2, 24, 2, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(fitted.render(24, 16), mean, atol=1e-6)
    # The same picture at twice the size, averaged down again, is close to the original.
    large = fitted.render(96, 64).reshape(32, 2, 48, 2, 3).mean(axis=(1, 3))
    assert np.abs(large - fitted.render()).mean() < 0.05
    stretched = fitted.render(48, 64)
    assert np.abs(stretched.reshape(32, 2, 48, 3).mean(axis=1) - fitted.render()).mean() < 0.05
    refused("both sides must be from 1", fitted.render, 0, 10)


@pytest.mark.parametrize("kind", [GroupRasterizer, TileRasterizer, AutodiffRasterizer])
def test_rasterizers_take_the_same_steps(kind: type) -> None:
    """Five steps of Adam against NumPy's, with the gradient of Slang's automatic differentiation."""
    picture = checkers(20, 12)
    params = blobs_on_detail(picture, 20, np.random.default_rng(0))
    rates = Rates(center=0.01, shape=0.02, color=0.03, opacity=0.04, final=0.5)
    device = get_device()
    fitter = ImageFitter(picture, params, 5, rates, device, kind(device, 20, 20, 12))
    expected, first, second = params.astype(np.float64), np.zeros((9, 20)), np.zeros((9, 20))
    rows = np.repeat([0.01, 0.02, 0.03, 0.04], [2, 3, 3, 1])[:, None]
    for step in range(5):
        gradient = differentiate("autodiff", expected, picture, linear=False)
        rate = rows * 0.5 ** (step / 5)
        expected, first, second = adam_step(
            expected, gradient, first, second, step + 1, lr=rate, beta1=0.9, beta2=0.999, eps=1e-8
        )
        fitter.advance()
    assert np.abs(expected - params)[:8].max() > 0.02
    # Adam turns the sign of a gradient near zero into a whole step, so only nearly all floats agree closely.
    assert np.quantile(np.abs(fitter.params() - expected), 0.97) < 1e-4


def test_lists_that_do_not_fit_lose_no_step() -> None:
    """Growing blobs exceed the capacity of the lists: the step is repeated, with the same result."""
    picture = checkers(64, 64)
    params = blobs_on_detail(picture, 200, np.random.default_rng(1))
    device = get_device()

    def run(tight: bool) -> tuple[Array, int]:
        rasterizer = TileRasterizer(device, 200, 64, 64)
        fitter = ImageFitter(picture, params, 8, Rates(final=0.3), device, rasterizer)
        if not tight:
            rasterizer.reserve_isects(100_000)
        repeated, reserve = 0, rasterizer.reserve

        def counted(parameters) -> None:
            nonlocal repeated
            repeated += 1
            reserve(parameters)

        rasterizer.reserve = counted  # type: ignore[method-assign]
        if tight:
            rasterizer.reserve_isects(50)
        while fitter.step < 8:
            fitter.advance()
        return fitter.params(), repeated

    ample, never = run(tight=False)
    tight, once = run(tight=True)
    assert never == 0 and once >= 1
    # Floats add up in no fixed order.
    assert np.quantile(np.abs(tight - ample), 0.9) < 1e-2
    assert np.abs(tight - params).max() > 0.1


def test_detail_gets_the_blobs() -> None:
    picture = np.full((60, 90, 3), 0.25, np.float32)
    picture[20:40, 30:50] = np.random.default_rng(2).uniform(size=(20, 20, 3))
    raw = blobs_on_detail(picture, 2000, np.random.default_rng(3))
    assert raw.shape == (9, 2000) and raw.dtype == np.float32
    x, y = ((1 / (1 + np.exp(-raw[0:2]))) * 1.5 - 0.25) * [[90], [60]]
    inside = (x > 28) & (x < 52) & (y > 18) & (y < 42)
    assert inside.mean() > 0.6
    # Colours are the picture's, smaller blobs are in front, and blobs in the flat part are larger.
    np.testing.assert_allclose(1 / (1 + np.exp(-raw[5:8, ~inside])), 0.25, atol=1e-4)
    assert (np.diff(raw[2]) >= -1e-5).all()
    assert raw[2, ~inside].mean() > raw[2, inside].mean() + 0.5
    picture = checkers()
    assert image.fit(picture, 200, 40).psnr > image.fit(picture, 200, 40, init="random").psnr + 3


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (33, 1), (5, 7)])
def test_small_pictures(shape: tuple[int, int]) -> None:
    picture = np.random.default_rng(4).uniform(size=(*shape, 3)).astype(np.float32)
    result = image.fit(picture, blobs=shape[0] * shape[1], steps=60)
    assert (result.height, result.width) == shape
    assert result.render().shape == (*shape, 3)
    assert result.psnr > 15


def test_flat_pictures() -> None:
    for value in (0.0, 1.0):
        result = image.fit(np.full((9, 12, 3), value, np.float32), blobs=30, steps=30)
        assert np.isfinite(result.params).all() and result.psnr > 20


def test_a_device_that_is_passed_is_used(fitted: image.ImageFit, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, device = fitted.render(), get_device()
    asked: list[object] = []
    monkeypatch.setattr("splat_py.image.pictures.get_device", lambda given: asked.append(given) or given)
    np.testing.assert_array_equal(fitted.render(device=device), expected)
    assert asked == [device]


def test_save_and_load(fitted: image.ImageFit, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "blobs.safetensors"
    fitted.save(path)
    loaded = image.ImageFit.load(path)
    np.testing.assert_array_equal(loaded.params, fitted.params)
    assert (loaded.width, loaded.height, loaded.psnr) == (48, 32, fitted.psnr)
    np.testing.assert_array_equal(loaded.render(), fitted.render())
    assert [file.name for file in path.parent.iterdir()] == ["blobs.safetensors"]
    refused(r"nothing\.safetensors does not exist", image.ImageFit.load, tmp_path / "nothing.safetensors")
    path = tmp_path / "other.safetensors"
    for content in (b"", b"not a safetensors file"):
        path.write_bytes(content)
        refused(r"other\.safetensors is not a file of image blobs", image.ImageFit.load, path)


def test_reports() -> None:
    reports: list[image.FitReport] = []
    result = image.fit(checkers(), blobs=100, steps=20, on_report=reports.append)
    assert [report.step for report in reports] == list(range(21))
    assert reports[-1].psnr == result.psnr > reports[0].psnr
    assert reports[0].image.shape == (32, 48, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"blobs": 0}, "blobs is 0; it must be at least 1"),
        ({"steps": -1}, "steps is -1"),
        ({"init": "best"}, "init is 'best'"),
    ],
)
def test_bad_arguments(arguments: dict, message: str) -> None:
    refused(message, image.fit, checkers(), **arguments)
