"""Scenes as folders of PNGs: the library's read by gsplat, gsplat's read by the library, and folders from untrusted sources."""

import json
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py.gsplat import compression
from splat_py.gsplat.compression import PngCompression, sort_splats
from splat_py.scene.formats.sog import palette
from tests.gsplat import scenes
from tests.refusals import refused


def splats(count: int = 144, coefficients: int = 8) -> dict[str, Tensor]:
    features = torch.randn(count, 5, generator=torch.Generator().manual_seed(1))
    return scenes.splats(count, coefficients) | {"features": features}


class TorchpqKMeans:
    """torchpq's class, which needs CUDA, with this library's palette."""

    def __init__(self, n_clusters: int, distance: str, verbose: bool) -> None:
        self.count = n_clusters

    def fit(self, x: Tensor) -> Tensor:
        centroids, labels = palette(x.T.numpy(), self.count)
        self.centroids = torch.from_numpy(centroids).T
        return torch.from_numpy(labels)


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("gsplat")
    from gsplat.compression import PngCompression as Theirs

    torchpq = types.ModuleType("torchpq.clustering")
    torchpq.KMeans = TorchpqKMeans  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchpq", types.ModuleType("torchpq"))
    monkeypatch.setitem(sys.modules, "torchpq.clustering", torchpq)
    return Theirs(use_sort=False, verbose=False)


def assert_alike(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Equal to the steps of 16, 8 and 6 bits, and features to the bit."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].shape == tensor.shape and found[name].dtype == tensor.dtype
        steps = {"means": 2**14, "features": 1e9, "shN": 63}.get(name, 255)
        if name == "quats":
            tensor = torch.nn.functional.normalize(tensor, dim=-1)
        span = float(tensor.max() - tensor.min())
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0.51 * span / steps)


def test_there_and_back(tmp_path: Path) -> None:
    given = splats()
    before = {name: tensor.clone() for name, tensor in given.items()}
    PngCompression(use_sort=False, verbose=False).compress(str(tmp_path / "scene"), given)
    assert sorted(path.name for path in (tmp_path / "scene").iterdir()) == [
        *("features.npz", "means_l.png", "means_u.png", "meta.json", "opacities.png", "quats.png", "scales.png", "sh0.png"),
        "shN.npz",
    ]
    assert_alike(PngCompression().decompress(str(tmp_path / "scene")), given)
    for name, tensor in before.items():
        torch.testing.assert_close(given[name], tensor, rtol=0, atol=0)


def test_gsplat_reads_ours(tmp_path: Path, theirs: Any) -> None:
    given = splats()
    PngCompression(use_sort=False, verbose=False).compress(tmp_path, given)
    found, own = theirs.decompress(str(tmp_path)), PngCompression().decompress(tmp_path)
    assert_alike(found, given)
    for name, tensor in own.items():
        torch.testing.assert_close(tensor, found[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [144, 150])
def test_we_read_gsplats(tmp_path: Path, theirs: Any, count: int) -> None:
    given = splats(count)
    theirs.compress(str(tmp_path), {name: tensor.clone() for name, tensor in given.items()})
    found = PngCompression().decompress(tmp_path)
    for name, tensor in theirs.decompress(str(tmp_path)).items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)
    (tmp_path / "ours").mkdir()
    PngCompression(use_sort=False, verbose=False).compress(tmp_path / "ours", given)
    for path in tmp_path.glob("*.png"):
        np.testing.assert_array_equal(iio.imread(path), iio.imread(tmp_path / "ours" / path.name))


def test_no_square_and_parameters_of_a_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = torch.nn.ParameterDict({name: torch.nn.Parameter(tensor) for name, tensor in splats(150).items()})
    PngCompression().compress(tmp_path, given)
    assert "leaving out the 6 of lowest opacity" in capsys.readouterr().out
    found = PngCompression().decompress(tmp_path)
    best = given["opacities"].detach().sort(descending=True).values[:144]
    torch.testing.assert_close(found["opacities"].sort(descending=True).values, best, rtol=0, atol=0.1)


def test_no_higher_harmonics_and_all_the_same(tmp_path: Path) -> None:
    given = splats(4, coefficients=0) | {"scales": torch.full((4, 3), -2.5), "opacities": torch.zeros(4)}
    PngCompression(verbose=False, use_sort=False).compress(tmp_path, given)
    found = PngCompression().decompress(tmp_path)
    assert found["shN"].shape == (4, 0, 3)
    torch.testing.assert_close(found["scales"], given["scales"])


def test_sorting_moves_all_alike_and_neighbours_together() -> None:
    count = 32**2
    given = splats(count) | {"index": torch.arange(count)}
    found = sort_splats(given)
    assert sorted(found["index"].tolist()) == list(range(count))
    for name, tensor in given.items():
        torch.testing.assert_close(found[name], tensor[found["index"]], rtol=0, atol=0)

    def roughness(means: Tensor) -> float:
        grid = means.reshape(32, 32, 3)
        return float(grid.diff(dim=0).norm(dim=-1).mean() + grid.diff(dim=1).norm(dim=-1).mean())

    assert roughness(found["means"]) < 0.5 * roughness(given["means"])
    refused("has 10 Gaussians; sort_splats needs a square number", sort_splats, splats(10))


def test_plas_sorts_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    plas = types.ModuleType("plas")

    def sort_with_plas(grid: Tensor, improvement_break: float, verbose: bool) -> tuple[Tensor, Tensor]:
        assert grid.shape == (14, 12, 12)
        return grid, grid[0].flatten().argsort().reshape(1, 12, 12)

    plas.sort_with_plas = sort_with_plas  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "plas", plas)
    assert bool((sort_splats(splats())["means"][:, 0].diff() >= 0).all())


def test_what_cannot_be_compressed(tmp_path: Path) -> None:
    refused("has no Gaussians", PngCompression().compress, tmp_path, splats(0))
    given = splats()
    given["sh0"][3, 0, 1] = torch.nan
    refused(r"splats\['sh0'\] holds NaN", PngCompression().compress, tmp_path, given)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    PngCompression(verbose=False).compress(tmp_path, splats(16))
    return tmp_path


def assert_refused(folder: Path, message: str) -> None:
    refused(message, PngCompression().decompress, folder)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("means", "shape", [10**9, 3]),
        ("means", "shape", [-16, 3]),
        ("means", "shape", "16"),
        ("means", "shape", [16, 4]),
        ("means", "shape", [True, 3]),
        ("features", "shape", [16, 10**9, 10**9]),
        ("features", "shape", []),
        ("features", "shape", [16, *[1] * 30]),
        ("means", "dtype", "load"),
        ("means", "dtype", ["float32"]),
        ("means", "mins", [0.0]),
        ("means", "mins", [0.0, 0.0, float("nan")]),
        ("means", "maxs", [0.0, 0.0, 1e60]),
        ("means", "maxs", ["1", "2", "3"]),
        ("shN", "quantization", 0),
        ("shN", "quantization", 1e9),
        ("shN", "shape", [16, 24]),
        ("shN", "shape", [16, 4, 6]),
        ("../features", "shape", None),
        ("/etc/passwd", "shape", None),
        ("a" * 5000, "shape", None),
    ],
)
def test_hostile_descriptions(folder: Path, name: str, key: str, value: Any) -> None:
    path = folder / "meta.json"
    meta = json.loads(path.read_text())
    if value is None:
        meta[name] = meta.pop("features")
    else:
        meta[name][key] = value
    path.write_text(json.dumps(meta))
    assert_refused(folder, "meta.json cannot be read|cannot be read .*; compress the scene again")


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"means": 3}', "{" + " " * (1 << 21) + "}", '{"means": {}}'])
def test_hostile_json(folder: Path, text: str) -> None:
    (folder / "meta.json").write_text(text)
    assert_refused(folder, "meta.json cannot be read")


def test_hostile_pictures(folder: Path) -> None:
    path = folder / "quats.png"
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"\xff\xd8" + whole):
        path.write_bytes(damaged)
        assert_refused(folder, "quats.png")
    # A header that claims 60,000 by 60,000 pixels.
    path.write_bytes(whole[:16] + b"\x00\x00\xea\x60" * 2 + whole[24:])
    assert_refused(folder, "quats.png")
    for other in (np.zeros((4, 4, 3), np.uint8), np.zeros((8, 8, 4), np.uint8), np.zeros((4, 4), np.uint16)):
        iio.imwrite(path, other)
        assert_refused(folder, "quats.png cannot be read .it is ")
    path.unlink()
    assert_refused(folder, "quats.png cannot be read .No such file")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle was loaded",))


def test_hostile_arrays(folder: Path) -> None:
    path = folder / "features.npz"
    for arrays in (
        {"arr": np.array([Evil()] * 80, object).reshape(16, 5)},
        {"arr": np.zeros((16, 6), np.float32)},
        {"arr": np.full((16, 5), "text")},
        {"other": np.zeros((16, 5), np.float32)},
    ):
        np.savez_compressed(path, **arrays)
        assert_refused(folder, "features.npz cannot be read")
    path.write_bytes(b"PK\x03\x04")
    assert_refused(folder, "features.npz cannot be read")

    # A header that claims 4 TB in a file of a few bytes, with a matching description.
    meta = json.loads((folder / "meta.json").read_text())
    meta["features"]["shape"] = [16, 1 << 31, 32]
    (folder / "meta.json").write_text(json.dumps(meta))
    with zipfile.ZipFile(path, "w") as archive, archive.open("arr.npy", "w") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (16, 1 << 31, 32)}
        np.lib.format.write_array_header_1_0(file, header)
    assert_refused(folder, "features.npz cannot be read .*too short")


def test_hostile_clusters(folder: Path) -> None:
    steps, labels = np.zeros((4, 24), np.uint8), np.zeros(16, np.uint16)
    path = folder / "shN.npz"
    for arrays, message in (
        ({"centroids": steps, "labels": labels + 4}, "refers to missing centroids"),
        ({"centroids": steps[:, 1:], "labels": labels}, "cannot be read .centroids has"),
        ({"centroids": steps, "labels": labels[1:]}, "cannot be read .labels has"),
        ({"centroids": steps, "labels": labels.astype(np.int16) - 1}, "cannot be read .labels has type int16"),
    ):
        np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
        assert_refused(folder, message)


def test_clusters_are_shared_when_there_are_too_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_CLUSTERS", 8)
    given = splats(64)
    given["shN"] = given["shN"][torch.arange(64) % 4]
    PngCompression(use_sort=False, verbose=False).compress(tmp_path, given)
    with np.load(tmp_path / "shN.npz") as arrays:
        assert 4 <= len(arrays["centroids"]) <= 8
    found = PngCompression().decompress(tmp_path)["shN"]
    assert float((found - given["shN"]).abs().mean()) < 0.5 * float(given["shN"].abs().mean())
