"""`splat fit-image`."""

from __future__ import annotations

from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
import tyro

from splat_py import image
from splat_py.errors import SplatError
from splat_py.image.command import FitImage


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A small RGBA picture with odd sides."""
    x, y = np.meshgrid(np.arange(33), np.arange(21))
    pixels = np.stack([x * 7, y * 10, (x // 4 + y // 4) % 2 * 200, 255 - x], axis=-1).astype(np.uint8)
    iio.imwrite(tmp_path / "photo.png", pixels)
    return tmp_path / "photo.png"


def test_fit_image(photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "out"
    arguments = [str(photo), "--out", str(out), "--blobs", "150", "--steps", "40", "--video", "--background", "0", "0", "1"]
    tyro.cli(FitImage, args=arguments).run()
    assert sorted(file.name for file in out.iterdir()) == ["blobs.safetensors", "fit.mp4", "fit.png"]
    loaded = image.ImageFit.load(out / "blobs.safetensors")
    assert loaded.params.shape == (9, 150) and (loaded.width, loaded.height) == (33, 21)
    picture = iio.imread(out / "fit.png")
    assert picture.shape == (21, 33, 3)
    assert np.abs(picture / 255 - np.clip(loaded.render(), 0, 1)).max() < 0.003
    target = image.read_picture(photo, (0.0, 0.0, 1.0))
    assert -10 * np.log10(np.mean((loaded.render() - target) ** 2)) == pytest.approx(loaded.psnr, abs=0.01)
    assert iio.imread(out / "fit.mp4").shape == (41, 20, 32, 3)
    assert f"PSNR {loaded.psnr:.2f} dB" in capsys.readouterr().out


def test_no_video_unless_asked_for(photo: Path, tmp_path: Path) -> None:
    FitImage(photo, tmp_path / "out", blobs=20, steps=2).run()
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["blobs.safetensors", "fit.png"]


def test_errors_come_before_the_work(photo: Path, tmp_path: Path) -> None:
    with pytest.raises(SplatError, match=r"gone\.jpg does not exist"):
        FitImage(tmp_path / "gone.jpg", tmp_path / "out").run()
    with pytest.raises(SplatError, match=r"--out .*photo\.png is a file; name a folder"):
        FitImage(photo, photo).run()
    with pytest.raises(SplatError, match="blobs is 0; it must be at least 1"):
        FitImage(photo, tmp_path / "out", blobs=0).run()
    assert not (tmp_path / "out").exists()
