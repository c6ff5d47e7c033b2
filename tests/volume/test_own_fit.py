"""Fitting radiance fields of one's own: what comes out, what is kept, whom it is trusted from, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from splat_py import SplatError, shaders
from splat_py.commands.fit_volume import FitVolume
from splat_py.scene.options import DataOptions
from splat_py.volume import OwnRadianceField, VolumeCheckpoint, VolumeConfig, VolumeTrainer, fit
from splat_py.volume.views import Views
from tests.volume.own_fields import BLOBS, MIXED
from tests.volume.test_fit import BACKGROUND, BOX, cameras, photographs, psnr, true_field, write_capture

VIEWS = cameras(8)
CAPTURE = (*(np.stack([getattr(c, name) for c in VIEWS]) for name in ("viewmat", "K")),)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return photographs(true_field(), VIEWS)


def test_fit_finds_the_blobs(images: np.ndarray) -> None:
    """Which needs the gradients of all that a blob is: place, size, density and colour."""
    reports = []
    field = fit(
        images, *CAPTURE, BOX, (8, 12), 20, background=BACKGROUND, field=shaders.source(BLOBS), rate=1.0, on_step=reports.append
    )
    assert isinstance(field, OwnRadianceField)
    assert reports[-1].psnr > reports[0].psnr + 10
    between = cameras(8, 0.5)
    expected = photographs(true_field(), between)
    assert psnr(np.stack([field.render(c.viewmat, c.K, c.width, c.height) for c in between]), expected) > 28


def test_resumed_fit_is_the_same(images: np.ndarray, tmp_path: Path) -> None:
    views = Views.of_arrays(images[:2, ::2, ::2], CAPTURE[0][:2], CAPTURE[1][:2] * [[0.5], [0.5], [1]])
    config, kind = VolumeConfig((4, 6), 12, jitter=True), shaders.source(BLOBS)
    straight, first = (VolumeTrainer(views, BOX, config, background=BACKGROUND, field=kind) for _ in range(2))
    expected = straight.fit()
    for _ in range(19):
        first.advance()
    path = tmp_path / "checkpoint.safetensors"
    first.save_checkpoint(path)
    loaded = VolumeCheckpoint.load(path)
    with pytest.raises(SplatError, match="Slang source of its own, Blobs, which could read"):
        VolumeTrainer(views, BOX, resume=loaded)
    with pytest.raises(SplatError, match="this source is not the one of the checkpoint"):
        VolumeTrainer(views, BOX, resume=loaded, field=shaders.source(MIXED))
    for how in ({"field": kind}, {"trust_source": True}):
        resumed = VolumeTrainer(views, BOX, resume=loaded, **how)  # type: ignore[arg-type]
        assert resumed.step == 19 and resumed.config == first.config
        field = resumed.fit()
        assert isinstance(field, OwnRadianceField) and isinstance(expected, OwnRadianceField)
        tolerance = 0 if straight.device.software else 1e-2
        np.testing.assert_allclose(field.params, expected.params, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_field_round_trip(tmp_path: Path, suffix: str) -> None:
    kind, path = shaders.source(BLOBS), tmp_path / f"field{suffix}"
    field = OwnRadianceField.new(kind, BOX, BACKGROUND, seed=2)
    field.save(path)
    loaded = OwnRadianceField.load(path)
    camera = VIEWS[0]
    with pytest.raises(SplatError, match=r"the field is Slang source from a file, Blobs, .* trust_source"):
        loaded.render(camera.viewmat, camera.K, 8, 8)
    expected = field.render(camera.viewmat, camera.K, 8, 8)
    for trusted in (loaded.trust_source(), OwnRadianceField.load(path, kind)):
        assert torch.equal(field.params, trusted.params) and trusted.samples == field.samples
        np.testing.assert_array_equal(trusted.render(camera.viewmat, camera.K, 8, 8), expected)
    with pytest.raises(SplatError, match="this source is not the one of"):
        OwnRadianceField.load(path, shaders.source(MIXED))
    true_field().save(path)
    with pytest.raises(SplatError, match="not a field in Slang"):
        OwnRadianceField.load(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(SplatError, match="damaged"):
        OwnRadianceField.load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"params": np.zeros((3, 2), np.float32)}, ""),
        ({"params": np.full(32, np.nan, np.float32)}, "not finite"),
        ({"params": np.zeros(32)}, "params is"),
        ({"name": np.frombuffer(b"a b", np.uint8)}, "the type is called"),
        ({"source": np.frombuffer(b"\0\1", np.uint8)}, "characters that no text has"),
        ({"samples": np.array([np.inf])}, "samples is"),
        ({"box": np.zeros((2, 3))}, "degenerate"),
        ({"more": np.zeros(1)}, "tensor 'more'"),
    ],
)
def test_files_that_somebody_has_changed(tmp_path: Path, changes: dict[str, np.ndarray], message: str) -> None:
    path = tmp_path / "field.npz"
    OwnRadianceField.new(shaders.source(BLOBS), BOX).save(path)
    with np.load(path) as arrays:
        np.savez(path, **{**arrays, **changes})
    with pytest.raises(SplatError, match=f"not a field in Slang.*{message}"):
        OwnRadianceField.load(path)


def test_configurations_from_files() -> None:
    """A file's source is text, and a name without one is refused, even if there is such a file here."""
    with pytest.raises(SplatError, match="its source is not there"):
        VolumeConfig.from_dict({"field": __file__})
    assert VolumeConfig.from_dict({"field": "Blobs", "field_source": BLOBS}).is_own
    with pytest.raises(SplatError, match="field is 'voxels'; use grid, hash, or the name of a Slang file"):
        VolumeConfig(field="voxels")


def test_command(images: np.ndarray, tmp_path: Path) -> None:
    """It leaves what a grid leaves, and goes on if the file is named again or trusted."""
    data, out, file = tmp_path / "capture", tmp_path / "run", tmp_path / "blobs.slang"
    data.mkdir()
    write_capture(data, images, VIEWS)
    file.write_text(BLOBS)
    box, options = tuple(BOX.ravel().tolist()), DataOptions(data, test_every=4)
    FitVolume(options, out, VolumeConfig((4,), 3, field=str(file)), box=box, frames=2).run()
    assert {"field.safetensors", "checkpoint.safetensors", "metrics.json", "held-out", "turntable.mp4"} <= {
        p.name for p in out.iterdir()
    }
    assert json.loads((out / "run.json").read_text())["config"]["field_source"] == BLOBS
    FitVolume(options, out, box=box, resume=True, frames=0, export=tmp_path / "field.npz").run()
    fields = [OwnRadianceField.load(path) for path in (out / "field.safetensors", tmp_path / "field.npz")]
    assert torch.equal(fields[0].params, fields[1].params)

    longer = VolumeConfig((4, 6), 3)
    with pytest.raises(SplatError, match="Slang source of its own, Blobs"):
        FitVolume(options, out, longer, box=box, resume=True, frames=0).run()
    other = tmp_path / "other.slang"
    other.write_text(MIXED)
    with pytest.raises(SplatError, match=r"--field is a source of Mixed, but the run in .* was begun with Blobs"):
        FitVolume(options, out, VolumeConfig((4, 6), 3, field=str(other)), box=box, resume=True, frames=0).run()
    FitVolume(options, out, VolumeConfig((4, 6), 3, field=str(file)), box=box, resume=True, frames=0).run()
    FitVolume(options, out, VolumeConfig((4, 6, 8), 3), box=box, resume=True, trust_source=True, frames=0).run()
    assert json.loads((out / "metrics.json").read_text())["steps"] == 9
