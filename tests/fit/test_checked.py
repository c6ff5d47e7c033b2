"""Checkpoints and results from untrusted sources: refused in one sentence, before any of their content is used."""

import dataclasses
import json
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from splat_py.base.fields import dataclass_of
from splat_py.image.pictures import FitCheckpoint, ImageFit
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.volume.config import VolumeConfig
from splat_py.volume.fitting import VolumeCheckpoint
from splat_py.volume.grid import RadianceField
from tests.fuzz.files import GAUSSIANS, KINDS, arrays_of, header_of
from tests.refusals import refused

Change = Callable[[dict[str, Any], dict[str, np.ndarray]], None]

LOADERS: dict[str, Callable[[Path], Any]] = {
    "splats": Checkpoint.load,
    "blobs": FitCheckpoint.load,
    "volume": VolumeCheckpoint.load,
    "hash grid": VolumeCheckpoint.load,
    "result": ImageFit.load,
}


def save(path: Path, kind: str, change: Change = lambda header, arrays: None) -> Path:
    header, arrays = header_of(kind), arrays_of(kind)
    change(header, arrays)
    save_file(arrays, path, metadata={KINDS[kind]: json.dumps(header)})
    return path


@pytest.mark.parametrize("kind", LOADERS)
def test_whole_files_load(kind: str, tmp_path: Path) -> None:
    """Every number of the header and every array comes back as it was written."""

    def numbered(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        for name, values in arrays.items():
            if values.dtype == np.float32:
                arrays[name] = np.arange(values.size, dtype=np.float32).reshape(values.shape) / 64

    path = save(tmp_path / "file.safetensors", kind, numbered)
    with safe_open(path, "numpy") as file:
        header = json.loads(file.metadata()[KINDS[kind]])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    loaded = LOADERS[kind](path)
    fields = {field.name: getattr(loaded, field.name) for field in dataclasses.fields(loaded)}
    found = fields.pop("state", None) or {name: fields.pop(name) for name in arrays}
    if "config" in fields:
        # A file has lists where a configuration has tuples.
        fields["config"] = json.loads(json.dumps(dataclasses.asdict(fields["config"])))
    assert fields == header
    assert found.keys() == arrays.keys() and sum(array.size for array in arrays.values()) > 40
    for name, expected in arrays.items():
        assert found[name].dtype == expected.dtype
        np.testing.assert_array_equal(found[name], expected, name)
    if kind == "splats":
        gaussians = loaded.gaussians()
        assert (len(gaussians), gaussians.sh.shape) == (GAUSSIANS, (GAUSSIANS, 4, 3))
        np.testing.assert_array_equal(gaussians.means, arrays["means"])


def header(**values: Any) -> Change:
    return lambda header, arrays: header.update(values)


def config(**values: Any) -> Change:
    return lambda header, arrays: header["config"].update(values)


def array(name: str, values: np.ndarray) -> Change:
    return lambda header, arrays: arrays.update({name: values})


def poison(name: str, value: float = float("nan")) -> Change:
    return lambda header, arrays: arrays[name].reshape(-1).__setitem__(0, value)


CODE = "true; } void stolen() { *(uint*)0 = 1; "


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("splats", config(antialiased=CODE), "antialiased"),
        ("splats", config(antialiased=1), "antialiased"),
        ("splats", config(accumulate="PerWave; export"), "accumulate"),
        ("splats", config(steps=True), "steps"),
        ("splats", config(seed=10**400), "seed"),
        ("splats", config(means_lr=float("nan")), "means_lr"),
        ("splats", config(means_lr="1"), "means_lr"),
        ("splats", config(init=["auto"]), "init"),
        ("splats", config(sh_degree=2), "sh is"),
        ("splats", header(step=-1), "step"),
        ("splats", header(step=11), "step"),
        ("splats", header(step=2.0), "step"),
        ("splats", header(capacity=1 << 40), "capacity"),
        ("splats", header(config=[]), "dictionary"),
        ("splats", array("means.m", np.zeros((1, 3), np.float32)), r"means\.m"),
        ("splats", array("quats", np.zeros((GAUSSIANS, 4), np.float64)), "quats"),
        ("splats", array("more", np.zeros(1, np.float32)), "tensor 'more'"),
        ("splats", lambda header, arrays: arrays.pop("sh.v"), r"no tensor 'sh\.v'"),
        ("splats", poison("sh"), "sh holds"),
        ("splats", poison("means.v", -1), r"means\.v holds"),
        ("blobs", header(step=11), "step"),
        ("blobs", header(steps=0), "steps"),
        ("blobs", header(picture=None), "picture"),
        ("blobs", array("m", np.zeros((9, 2), np.float32)), "m is"),
        ("blobs", poison("params"), "params holds"),
        ("volume", config(jitter=CODE), "jitter"),
        ("volume", config(resolutions=[4.0]), "resolutions"),
        ("volume", header(step=1 << 40), "step"),
        ("volume", array("v", np.zeros((4, 4, 4, 16), np.float32)), "v is"),
        ("volume", config(resolutions=[8, 16]), "voxels"),
        ("volume", array("box", np.zeros((2, 3))), "degenerate"),
        ("volume", poison("grid", float("inf")), "grid holds"),
        ("hash grid", config(field="voxels"), "field"),
        ("hash grid", config(table_mib=1e9), "table_mib"),
        ("hash grid", header(step=1 << 40), "step"),
        ("hash grid", array("cells", np.zeros(2, np.int32)), "cells is"),
        ("hash grid", array("cells", np.array([2, 1 << 20], np.int32)), "cells is"),
        ("hash grid", array("cells", np.array([1, 3], np.int32)), "its levels take"),
        ("hash grid", array("cells", np.ones(99, np.int32)), "99 levels"),
        ("hash grid", array("size", np.array([24], np.int32)), "power of two"),
        ("hash grid", array("size", np.array([1 << 30], np.int32)), "power of two"),
        ("hash grid", array("m", np.zeros(7, np.float32)), "m is"),
        ("hash grid", array("occupied", np.ones(3, np.uint8)), "occupied is"),
        ("hash grid", poison("parameters"), "parameters holds"),
        ("hash grid", poison("v", -1), "v holds"),
        ("hash grid", lambda header, arrays: arrays.pop("parameters"), "parameters"),
        ("volume", config(field="hash"), "parameters"),
        ("result", header(width="6"), "width"),
        ("result", header(width=1 << 40), "width"),
        ("result", header(psnr=None), "psnr"),
        ("result", array("params", np.zeros((9, 0), np.float32)), "blobs"),
        ("result", array("params", np.zeros((9, 3), np.int32)), "params"),
    ],
)
def test_what_no_fit_has_left_is_refused(kind: str, change: Change, reason: str, tmp_path: Path) -> None:
    path = save(tmp_path / "file.safetensors", kind, change)
    refused(rf"file\.safetensors is not .* or is damaged; .*{reason}", LOADERS[kind], path)


@pytest.mark.parametrize("kind", LOADERS)
def test_deep_and_long_headers(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    for text, reason in (("[" * 100_000, "nested too deeply"), (" " * (1 << 20), "header is longer")):
        save_file(arrays_of(kind), path, metadata={KINDS[kind]: text})
        refused(reason, LOADERS[kind], path)


def test_every_field_of_every_configuration_has_a_type() -> None:
    for cls in (TrainConfig, VolumeConfig):
        default, read = cls(), getattr(cls, "from_dict", partial(dataclass_of, cls))
        content = json.loads(json.dumps(dataclasses.asdict(default)))
        assert dataclass_of(cls, content) == default
        for name in content:
            for wrong in (None, {}, [[]], CODE, "1", float("inf")):
                # A source may be any text: it is not run here.
                if not (name.endswith("_source") and isinstance(wrong, str)):
                    refused(name, read, {**content, name: wrong})


def test_archives_that_would_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "field.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, shape in (("density", (1000, 1000, 1000)), ("sh", (1000, 1000, 1000, 9, 3))):
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
                file.write(bytes(1 << 12))
    refused("is shorter than it says", RadianceField.load, path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive, archive.open("density.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 22,)})
        file.write(bytes(1 << 24))
    refused("would unpack to more than", RadianceField.load, path)
