"""Fitting hash grids and own radiance fields: the results, their files, trust in a source, and refusals."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from splat_py import shaders
from splat_py.commands.fit import FitVolume
from splat_py.scene.data_options import DataOptions
from splat_py.volume import HashRadianceField, SlangField, VolumeConfig, render
from splat_py.volume.hash_grid import HashShape
from tests.refusals import refused
from tests.volume.own_fields import BLOBS, MIXED
from tests.volume.test_fit import BACKGROUND, BOX, LEFT, cameras, fitted, photographed, psnr_between, true_field, write_capture

VIEWS = cameras(8)
SUFFIXES = pytest.mark.parametrize("suffix", [".npz", ".safetensors"])


def test_a_hash_grid_reproduces_views_and_what_lies_between() -> None:
    how = {"field": "hash", "table_mib": 0.25, "rate": 1.0, "jitter": True}
    field, reports = fitted((8, 12), 12, **how)
    assert isinstance(field, HashRadianceField) and field.shape.nbytes <= 2**18
    assert [report.step for report in reports] == list(range(24))
    assert reports[-1].psnr > reports[0].psnr + 6 and psnr_between(field) > 22
    rays = (
        torch.tensor([[0.0, 0, 3]]).expand(50, 3),
        torch.randn(50, 3, generator=torch.manual_seed(0)) * 0.2 - torch.tensor([0, 0, 1]),
    )
    every, some = (render(field, None, *rays, skip_empty=skip)[0] for skip in (False, True))
    assert (every - some).abs().max() < 0.05


def test_a_fit_finds_the_blobs() -> None:
    """Needs the gradients of all of a blob's numbers: place, size, density and colour."""
    field, reports = fitted((8, 12), 20, field=shaders.source(BLOBS), rate=1.0)
    assert isinstance(field, SlangField)
    assert reports[-1].psnr > reports[0].psnr + 10 and psnr_between(field) > 28


def small_field() -> HashRadianceField:
    shape, rng = HashShape((2, 4), 32), np.random.default_rng(0)
    table, weights = (torch.tensor(rng.normal(size=size), dtype=torch.float32) for size in ((shape.entries, 2), shape.weights))
    return HashRadianceField(table, weights, shape, BOX, BACKGROUND)


def assert_others_are_refused(path: Path, load: Any, kind: str) -> None:
    true_field().save(path)
    refused(f"not a {kind}", load, path)
    path.write_bytes(path.read_bytes()[:100])
    refused("damaged", load, path)
    refused("does not exist", load, path.with_name("none.npz"))


@SUFFIXES
def test_files_of_hash_grids(tmp_path: Path, suffix: str) -> None:
    field, path = small_field(), tmp_path / f"field{suffix}"
    field.save(path)
    loaded = HashRadianceField.load(path)
    assert torch.equal(field.table, loaded.table) and torch.equal(field.weights, loaded.weights) and field.shape == loaded.shape
    np.testing.assert_array_equal(field.box, loaded.box)
    np.testing.assert_array_equal(field.background, loaded.background)
    halves = replace(field, table=field.table.half())
    halves.save(path)
    assert torch.equal(HashRadianceField.load(path).table, halves.table)
    assert_others_are_refused(path, HashRadianceField.load, "hash grid")


@SUFFIXES
def test_files_of_own_fields(tmp_path: Path, suffix: str) -> None:
    kind, path = shaders.source(BLOBS), tmp_path / f"field{suffix}"
    field = SlangField.new(kind, BOX, BACKGROUND, seed=2)
    field.save(path)
    loaded, camera = SlangField.load(path), (VIEWS[0].viewmat, VIEWS[0].K, 8, 8)
    refused(r"the field is Slang source from a file, Blobs, .* trust_source", loaded.render, *camera)
    for trusted in (loaded.trust_source(), SlangField.load(path, kind)):
        assert torch.equal(field.params, trusted.params) and trusted.samples == field.samples
        np.testing.assert_array_equal(trusted.render(*camera), field.render(*camera))
    refused("this source is not the one of", SlangField.load, path, shaders.source(MIXED))
    assert_others_are_refused(path, SlangField.load, "field in Slang")


@pytest.mark.parametrize(
    ("own", "changes", "message"),
    [
        (False, {"table": np.zeros((3, 2), np.float32)}, "table is"),
        (False, {"table": np.zeros((59, 3), np.float32)}, "table is"),
        (False, {"weights": np.zeros(5, np.float32)}, "weights is"),
        (False, {"weights": np.full(368, np.nan, np.float32)}, "not finite"),
        (False, {"cells": np.array([2, 5000], np.int32)}, "cells is"),
        (False, {"cells": np.zeros(0, np.int32)}, "0 levels"),
        (False, {"size": np.array([33], np.int32)}, "power of two"),
        (False, {"box": np.zeros((2, 3))}, "degenerate"),
        (False, {"more": np.zeros(1)}, "tensor 'more'"),
        (True, {"params": np.zeros((3, 2), np.float32)}, ""),
        (True, {"params": np.full(32, np.nan, np.float32)}, "not finite"),
        (True, {"params": np.zeros(32)}, "params is"),
        (True, {"name": np.frombuffer(b"a b", np.uint8)}, "the type is called"),
        (True, {"source": np.frombuffer(b"\0\1", np.uint8)}, "unprintable characters"),
        (True, {"samples": np.array([np.inf])}, "samples is"),
        (True, {"box": np.zeros((2, 3))}, "degenerate"),
        (True, {"more": np.zeros(1)}, "tensor 'more'"),
    ],
)
def test_files_that_somebody_has_changed(own: bool, tmp_path: Path, changes: dict[str, np.ndarray], message: str) -> None:
    path = tmp_path / "field.npz"
    (SlangField.new(shaders.source(BLOBS), BOX) if own else small_field()).save(path)
    with np.load(path) as arrays:
        np.savez(path, **{**arrays, **changes})
    if own:
        refused(f"not a field in Slang.*{message}", SlangField.load, path)
    else:
        refused(f"not a hash grid.*{message}", HashRadianceField.load, path)


def test_unusable_hash_grids() -> None:
    field, rays = small_field(), (torch.zeros(2, 3), torch.ones(2, 3))
    refused("sh, box and contracted", render, field, torch.zeros(1), *rays)
    refused("rays_d has shape", field.march, rays[0], torch.ones(3, 3))
    refused("steps_per_unit", field.march, *rays, steps_per_unit=0)
    refused("table is", HashRadianceField, field.table[1:], field.weights, field.shape, BOX, BACKGROUND)


def test_tables_of_a_memory() -> None:
    for mib in (0.5, 4, 32):
        assert 0.25 * mib < HashShape.of_memory(int(mib * 2**20), 256).nbytes / 2**20 <= mib
    assert HashShape.of_memory(1, 256).size == 16
    cells = np.array(HashShape.of_memory(1 << 20, 256).cells)
    assert (len(cells), cells[0], cells[-1]) == (8, 16, 256)
    np.testing.assert_allclose(cells[1:] / cells[:-1], 16 ** (1 / 7), rtol=0.04)


def test_configurations_from_files() -> None:
    """A file's source is text; a name without a source is refused, even if such a file exists here."""
    refused("its source is missing", VolumeConfig.from_dict, {"field": __file__})
    assert VolumeConfig.from_dict({"field": "Blobs", "field_source": BLOBS}).is_own
    refused("field is 'voxels'; use grid, hash, or the name of a Slang file", VolumeConfig, field="voxels")


@pytest.mark.parametrize("own", [False, True])
def test_command(own: bool, tmp_path: Path) -> None:
    """It leaves the files of a grid's fit, and resumes as it began if its source is named again or trusted."""
    data, out, file = tmp_path / "capture", tmp_path / "run", tmp_path / "blobs.slang"
    write_capture(data, photographed()[0], VIEWS)
    file.write_text(BLOBS)
    options, box = DataOptions(data, test_every=4), tuple(BOX.ravel().tolist())

    def command(*config: VolumeConfig, **how: Any) -> FitVolume:
        return FitVolume(out, options, *config, box=box, **{"frames": 0} | how)

    command(VolumeConfig((4,), 3, field=str(file) if own else "hash", table_mib=0.02), frames=2).run()
    assert {path.name for path in out.iterdir()} >= LEFT - {"run.json"}
    command(resume=True, export=tmp_path / "field.npz").run()
    files = out / "field.safetensors", tmp_path / "field.npz"
    if not own:
        assert torch.equal(*(HashRadianceField.load(path).table for path in files))
        return
    assert json.loads((out / "run.json").read_text())["config"]["field_source"] == BLOBS
    assert torch.equal(*(SlangField.load(path).params for path in files))
    longer, other = VolumeConfig((4, 6), 3), tmp_path / "other.slang"
    refused("Slang source of its own, Blobs", command(longer, resume=True).run)
    other.write_text(MIXED)
    contradiction = command(replace(longer, field=str(other)), resume=True)
    refused(r"--field is a source of Mixed, but the run in .* was begun with Blobs", contradiction.run)
    command(replace(longer, field=str(file)), resume=True).run()
    command(VolumeConfig((4, 6, 8), 3), resume=True, trust_source=True).run()
    assert json.loads((out / "metrics.json").read_text())["steps"] == 9
