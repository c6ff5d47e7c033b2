"""Fitting hash grids: what comes out, what is kept, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from splat_py.commands.fit_volume import FitVolume
from splat_py.errors import SplatError
from splat_py.scene.options import DataOptions
from splat_py.volume import HashRadianceField, VolumeCheckpoint, VolumeConfig, VolumeTrainer, fit, render
from splat_py.volume.hash_volume import HashShape
from splat_py.volume.views import Views
from tests.volume.test_fit import BACKGROUND, BOX, cameras, photographs, psnr, true_field, write_capture

VIEWS = cameras(8)
CAPTURE = (*(np.stack([getattr(c, name) for c in VIEWS]) for name in ("viewmat", "K")),)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return photographs(true_field(), VIEWS)


def test_fit_reproduces_views_and_what_lies_between(images: np.ndarray) -> None:
    reports = []
    how = {"field": "hash", "table_mib": 0.25, "rate": 1.0, "jitter": True, "on_step": reports.append}
    field = fit(images, *CAPTURE, BOX, (8, 12), 12, background=BACKGROUND, **how)  # type: ignore[arg-type]
    assert isinstance(field, HashRadianceField) and field.shape.nbytes <= 2**18
    assert [report.step for report in reports] == list(range(24))
    assert reports[-1].psnr > reports[0].psnr + 6
    between = cameras(8, 0.5)
    assert (
        psnr(np.stack([field.render(c.viewmat, c.K, c.width, c.height) for c in between]), photographs(true_field(), between))
        > 22
    )
    # What is passed over is next to nothing.
    rays = (
        torch.tensor([[0.0, 0, 3]]).expand(50, 3),
        torch.randn(50, 3, generator=torch.manual_seed(0)) * 0.2 - torch.tensor([0, 0, 1]),
    )
    every, some = (render(field, None, *rays, skip_empty=skip)[0] for skip in (False, True))
    assert (every - some).abs().max() < 0.05


def test_resumed_fit_is_the_same(images: np.ndarray, tmp_path: Path) -> None:
    """To the last bit where sums have a fixed order: with Adam's moments, and what was found to be empty."""
    views = Views.of_arrays(images[:2, ::2, ::2], CAPTURE[0][:2], CAPTURE[1][:2] * [[0.5], [0.5], [1]])
    config = VolumeConfig((4, 6), 12, field="hash", table_mib=0.02, jitter=True, rate=2.0)
    straight, first = (VolumeTrainer(views, BOX, config, background=BACKGROUND) for _ in range(2))
    expected = straight.fit()
    for _ in range(19):
        first.advance()
    first.save_checkpoint(tmp_path / "checkpoint.safetensors")
    resumed = VolumeTrainer(views, BOX, resume=VolumeCheckpoint.load(tmp_path / "checkpoint.safetensors"))
    assert resumed.step == 19 and resumed.config == config
    field = resumed.fit()
    assert isinstance(field, HashRadianceField) and isinstance(expected, HashRadianceField)
    exact = straight.device.software
    for name in ("table", "weights"):
        tolerance = 0 if exact else 1e-2
        np.testing.assert_allclose(getattr(field, name), getattr(expected, name), rtol=tolerance, atol=tolerance, err_msg=name)


def small_field() -> HashRadianceField:
    shape, rng = HashShape((2, 4), 32), np.random.default_rng(0)
    table, weights = (torch.tensor(rng.normal(size=size), dtype=torch.float32) for size in ((shape.entries, 2), shape.weights))
    return HashRadianceField(table, weights, shape, BOX, BACKGROUND)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_field_round_trip(tmp_path: Path, suffix: str) -> None:
    field, path = small_field(), tmp_path / f"field{suffix}"
    field.save(path)
    loaded = HashRadianceField.load(path)
    assert torch.equal(field.table, loaded.table) and torch.equal(field.weights, loaded.weights) and field.shape == loaded.shape
    np.testing.assert_array_equal(field.box, loaded.box)
    np.testing.assert_array_equal(field.background, loaded.background)
    halves = replace(field, table=field.table.half())
    halves.save(path)
    assert torch.equal(HashRadianceField.load(path).table, halves.table)
    true_field().save(path)
    with pytest.raises(SplatError, match="not a hash grid"):
        HashRadianceField.load(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(SplatError, match="damaged"):
        HashRadianceField.load(path)
    with pytest.raises(SplatError, match="does not exist"):
        HashRadianceField.load(tmp_path / "none.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"table": np.zeros((3, 2), np.float32)}, "table is"),
        ({"table": np.zeros((59, 3), np.float32)}, "table is"),
        ({"weights": np.zeros(5, np.float32)}, "weights is"),
        ({"weights": np.full(368, np.nan, np.float32)}, "not finite"),
        ({"cells": np.array([2, 5000], np.int32)}, "cells is"),
        ({"cells": np.zeros(0, np.int32)}, "0 levels"),
        ({"size": np.array([33], np.int32)}, "power of two"),
        ({"box": np.zeros((2, 3))}, "degenerate"),
        ({"more": np.zeros(1)}, "tensor 'more'"),
    ],
)
def test_files_that_somebody_has_changed(tmp_path: Path, changes: dict[str, np.ndarray], message: str) -> None:
    path = tmp_path / "field.npz"
    small_field().save(path)
    with np.load(path) as arrays:
        np.savez(path, **{**arrays, **changes})
    with pytest.raises(SplatError, match=f"not a hash grid.*{message}"):
        HashRadianceField.load(path)


def test_unusable_input() -> None:
    field, rays = small_field(), (torch.zeros(2, 3), torch.ones(2, 3))
    with pytest.raises(SplatError, match="sh and box"):
        render(field, torch.zeros(1), *rays)
    with pytest.raises(SplatError, match="rays_d has shape"):
        field.march(rays[0], torch.ones(3, 3))
    with pytest.raises(SplatError, match="steps_per_unit"):
        field.march(*rays, steps_per_unit=0)
    with pytest.raises(SplatError, match="table is"):
        HashRadianceField(field.table[1:], field.weights, field.shape, BOX, BACKGROUND)


def test_tables_of_a_memory() -> None:
    """As large as fit, and small ones where nothing does."""
    for mib in (0.5, 4, 32):
        shape = HashShape.of_memory(int(mib * 2**20), 256)
        assert 0.25 * mib < shape.nbytes / 2**20 <= mib
    assert HashShape.of_memory(1, 256).size == 16


def test_command(images: np.ndarray, tmp_path: Path) -> None:
    """It leaves what a grid leaves, and goes on as what it was begun."""
    data, out = tmp_path / "capture", tmp_path / "run"
    data.mkdir()
    write_capture(data, images, VIEWS)
    config, box = VolumeConfig((4,), 3, field="hash", table_mib=0.02), tuple(BOX.ravel().tolist())
    FitVolume(DataOptions(data, test_every=4), out, config, box=box, frames=2).run()
    assert {"field.safetensors", "checkpoint.safetensors", "metrics.json", "held-out", "turntable.mp4"} <= {
        p.name for p in out.iterdir()
    }
    FitVolume(DataOptions(data, test_every=4), out, box=box, resume=True, frames=0, export=tmp_path / "field.npz").run()
    fields = [HashRadianceField.load(path) for path in (out / "field.safetensors", tmp_path / "field.npz")]
    assert torch.equal(fields[0].table, fields[1].table)
