"""`splat fit-image`."""

import os
import signal
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest

from splat_py import image
from splat_py.commands.fit import FitImage, ImageOptions
from splat_py.image.fitting import ImageFitter
from splat_py.image.pictures import FitCheckpoint
from tests.commands.program import done

LEFT = ["blobs.safetensors", "checkpoint.safetensors", "fit.png", "run.json"]


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    x, y = np.meshgrid(np.arange(33), np.arange(21))
    pixels = np.stack([x * 7, y * 10, (x // 4 + y // 4) % 2 * 200, 255 - x], axis=-1).astype(np.uint8)
    iio.imwrite(tmp_path / "photo.png", pixels)
    return tmp_path / "photo.png"


def test_a_fit_leaves_blobs_picture_and_video(photo: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    options = ("--blobs", 150, "--steps", 40, "--video", "--background", 0, 0, 1)
    printed = done("fit-image", "photo.png", "--out", "deep/out", *options, cwd=tmp_path)
    assert sorted(file.name for file in out.iterdir()) == sorted([*LEFT, "fit.mp4"])
    loaded = image.ImageFit.load(out / "blobs.safetensors")
    assert loaded.params.shape == (9, 150) and (loaded.width, loaded.height) == (33, 21)
    picture = iio.imread(out / "fit.png")
    assert picture.shape == (21, 33, 3)
    assert np.abs(picture / 255 - np.clip(loaded.render(), 0, 1)).max() < 0.003
    target = image.read_picture(photo, (0.0, 0.0, 1.0))
    assert -10 * np.log10(np.mean((loaded.render() - target) ** 2)) == pytest.approx(loaded.psnr, abs=0.01)
    assert iio.imread(out / "fit.mp4").shape == (41, 20, 32, 3)
    assert f"PSNR {loaded.psnr:.2f} dB" in printed


def test_every_method_leaves_the_same(photo: Path, tmp_path: Path) -> None:
    pictures = []
    for method in ("autodiff", "group", "tiles"):
        options = ("--method", method, "--blobs", 12, "--steps", 8, "--background", 0, 0.5, 1)
        done("fit-image", photo, *options, "--out", method, cwd=tmp_path)
        pictures.append(iio.imread(tmp_path / method / "fit.png").astype(float))
    assert all(np.abs(picture - pictures[0]).mean() < 1 for picture in pictures)


def test_an_interrupted_fit_goes_on(photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight, out = tmp_path / "straight", tmp_path / "out"
    FitImage(photo, straight, ImageOptions(blobs=60, steps=30)).run()

    advance = ImageFitter.advance

    def interrupt(fitter: ImageFitter) -> None:
        if fitter.step == 17:
            os.kill(os.getpid(), signal.SIGINT)
        advance(fitter)

    with monkeypatch.context() as patch:
        patch.setattr(ImageFitter, "advance", interrupt)
        with pytest.raises(KeyboardInterrupt):
            FitImage(photo, out, ImageOptions(blobs=60, steps=30)).run()
    assert sorted(file.name for file in out.iterdir()) == ["checkpoint.safetensors", "run.json"]
    assert FitCheckpoint.load(out / "checkpoint.safetensors").step == 18
    FitImage(photo, out, resume=True).run()
    assert sorted(file.name for file in out.iterdir()) == LEFT
    resumed, expected = (image.ImageFit.load(folder / "blobs.safetensors") for folder in (out, straight))
    assert np.quantile(np.abs(resumed.params - expected.params), 0.95) < 1e-3
    assert resumed.psnr == pytest.approx(expected.psnr, abs=0.1)
