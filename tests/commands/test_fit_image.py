"""`splat fit-image`."""

from __future__ import annotations

from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
import tyro

from splat_py import image
from splat_py.commands.fit_image import FitImage
from splat_py.errors import SplatError
from splat_py.image.checkpoint import FitCheckpoint
from splat_py.image.fitting import ImageFitter
from tests.commands.program import refusal, splat

LEFT = ["blobs.safetensors", "checkpoint.safetensors", "fit.png", "run.json"]


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A small RGBA picture with odd sides."""
    x, y = np.meshgrid(np.arange(33), np.arange(21))
    pixels = np.stack([x * 7, y * 10, (x // 4 + y // 4) % 2 * 200, 255 - x], axis=-1).astype(np.uint8)
    iio.imwrite(tmp_path / "photo.png", pixels)
    return tmp_path / "photo.png"


def test_a_fit_leaves_blobs_picture_and_video(photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "out"
    arguments = [str(photo), "--out", str(out), "--blobs", "150", "--steps", "40", "--video", "--background", "0", "0", "1"]
    tyro.cli(FitImage, args=arguments).run()
    assert sorted(file.name for file in out.iterdir()) == sorted([*LEFT, "fit.mp4"])
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
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == LEFT


def test_every_method_leaves_the_same(photo: Path, tmp_path: Path) -> None:
    pictures = []
    for method in ("simple", "group", "tiles"):
        options = ("--method", method, "--blobs", 12, "--steps", 8, "--background", 0, 0.5, 1)
        result = splat("fit-image", photo, *options, "--out", method, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        pictures.append(iio.imread(tmp_path / method / "fit.png").astype(float))
    assert all(np.abs(picture - pictures[0]).mean() < 1 for picture in pictures)
    assert "at most 256 blobs" in refusal("fit-image", photo, "--method", "simple", "--out", "many", cwd=tmp_path)


def test_errors_come_before_the_work(photo: Path, tmp_path: Path) -> None:
    with pytest.raises(SplatError, match=r"gone\.jpg does not exist"):
        FitImage(tmp_path / "gone.jpg", tmp_path / "out").run()
    with pytest.raises(SplatError, match=r"--out .*photo\.png is a file; name a folder"):
        FitImage(photo, photo).run()
    with pytest.raises(SplatError, match="blobs is 0; it must be at least 1"):
        FitImage(photo, tmp_path / "out", blobs=0).run()
    assert not (tmp_path / "out").exists()


def test_an_interrupted_fit_goes_on(photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted, it leaves a checkpoint; resumed, it comes to where it would have come, to the order of sums."""
    straight, out = tmp_path / "straight", tmp_path / "out"
    FitImage(photo, straight, blobs=60, steps=30).run()

    advance = ImageFitter.advance

    def interrupt(fitter: ImageFitter) -> None:
        if fitter.step == 17:
            raise KeyboardInterrupt
        advance(fitter)

    with monkeypatch.context() as patch:
        patch.setattr(ImageFitter, "advance", interrupt)
        with pytest.raises(KeyboardInterrupt):
            FitImage(photo, out, blobs=60, steps=30).run()
    assert sorted(file.name for file in out.iterdir()) == ["checkpoint.safetensors", "run.json"]
    assert FitCheckpoint.load(out / "checkpoint.safetensors").step == 17
    with pytest.raises(SplatError, match="already holds a run; continue it with --resume"):
        FitImage(photo, out).run()
    for option, message in (
        ({"background": (0, 0, 0)}, "--background is 0 0 0, but the run in .* was begun with 1.0 1.0 1.0"),
        ({"blobs": 50}, "--blobs is 50, but"),
        ({"steps": 29}, "--steps is 29, but .* extended, not shortened"),
    ):
        with pytest.raises(SplatError, match=message):
            FitImage(photo, out, resume=True, **option).run()
    iio.imwrite(tmp_path / "other.png", np.zeros((5, 6, 3), np.uint8))
    with pytest.raises(SplatError, match="the checkpoint is of another picture"):
        FitImage(tmp_path / "other.png", out, resume=True).run()
    FitImage(photo, out, resume=True).run()
    assert sorted(file.name for file in out.iterdir()) == LEFT
    resumed, expected = (image.ImageFit.load(folder / "blobs.safetensors") for folder in (out, straight))
    assert np.quantile(np.abs(resumed.params - expected.params), 0.95) < 1e-3
    assert resumed.psnr == pytest.approx(expected.psnr, abs=0.1)


def test_checkpoints_that_are_none(photo: Path, tmp_path: Path) -> None:
    with pytest.raises(SplatError, match="there is no checkpoint to resume from"):
        FitImage(photo, tmp_path, resume=True).run()
    (tmp_path / "checkpoint.safetensors").write_bytes(b"nothing")
    with pytest.raises(SplatError, match="is damaged; fit without --resume"):
        FitImage(photo, tmp_path, resume=True).run()


def test_from_the_command_line(tmp_path: Path) -> None:
    y, x = np.mgrid[:24, :40]
    iio.imwrite(tmp_path / "ramp.png", np.stack([x * 6, y * 10, 255 - x * 6], -1).astype(np.uint8))
    result = splat("fit-image", "ramp.png", "--blobs", 50, "--steps", 30, "--out", "fit", "--video", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert iio.imread(tmp_path / "fit" / "fit.png").shape == (24, 40, 3)
    assert (tmp_path / "fit" / "blobs.safetensors").exists()
    assert (tmp_path / "fit" / "fit.mp4").exists()
    assert "absent.png" in refusal("fit-image", "absent.png", "--out", "fit", cwd=tmp_path)
    assert "blobs" in refusal("fit-image", "ramp.png", "--blobs", 0, "--out", "none", cwd=tmp_path)
    (tmp_path / "text.png").write_text("not a picture")
    assert "text.png" in refusal("fit-image", "text.png", "--out", "none", cwd=tmp_path)


def test_the_checkpoint_stays_until_the_result_is_saved(photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(result: image.ImageFit, path: Path) -> None:
        raise SplatError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(image.ImageFit, "save", fail)
        with pytest.raises(SplatError, match="the disk is full"):
            FitImage(photo, tmp_path / "out", blobs=20, steps=6).run()
    assert FitCheckpoint.load(tmp_path / "out" / "checkpoint.safetensors").step == 6
    FitImage(photo, tmp_path / "out", resume=True).run()
    assert image.ImageFit.load(tmp_path / "out" / "blobs.safetensors").params.shape == (9, 20)
