"""Files of Gaussians: the very bytes that gsplat writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py import Gaussians, SplatError
from splat_py.gsplat import exporter
from splat_py.gsplat.exporter import export_splats, load_ply_to_splats

FORMATS = ["ply", "splat", "ply_compressed"]


def splats(count: int = 700, coefficients: int = 15, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=generator)

    return {
        "means": normal(3),
        "scales": normal(3) - 3,
        "quats": normal(4),
        "opacities": 3 * normal(),
        "sh0": normal(1, 3),
        "shN": normal(coefficients, 3),
    }


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("coefficients", [0, 3, 15])
def test_bytes_are_gsplats(format: str, coefficients: int) -> None:
    theirs = pytest.importorskip("gsplat.exporter")
    given = splats(coefficients=coefficients)
    assert export_splats(**given, format=format) == theirs.export_splats(**given, format=format)


def test_helpers_are_gsplats() -> None:
    theirs = pytest.importorskip("gsplat.exporter")
    given = splats()
    x = torch.arange(1 << 10, dtype=torch.int32)
    for name, arguments in (
        ("encode_morton3_vec", (x, x.flip(0), x.roll(77))),
        ("sort_centers", (given["means"], torch.arange(len(given["means"])))),
        ("pack_rotation", (given["quats"].clone(),)),
        ("sh2rgb", (given["sh0"],)),
    ):
        torch.testing.assert_close(getattr(exporter, name)(*arguments), getattr(theirs, name)(*arguments), rtol=0, atol=0)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["means", "scales", "quats", "opacities", "sh0", "shN"])
def test_what_is_not_finite_is_left_out(format: str, name: str) -> None:
    given = splats()
    kept = torch.ones(700, dtype=torch.bool)
    for row, value in ((5, torch.nan), (77, torch.inf), (301, -torch.inf)):
        given[name].view(700, -1)[row, -1] = value
        kept[row] = False
    assert export_splats(**given, format=format) == export_splats(**{key: a[kept] for key, a in given.items()}, format=format)


@pytest.mark.parametrize("format", FORMATS)
def test_saved_as_returned(format: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "scene.ply"
    given = {name: tensor.requires_grad_() for name, tensor in splats(50).items()}
    data = export_splats(**given, format=format, save_to=str(path))
    assert path.read_bytes() == data
    assert [other.name for other in path.parent.iterdir()] == ["scene.ply"]


def test_our_reader_and_theirs_read_a_ply(tmp_path: Path) -> None:
    given = splats()
    path = tmp_path / "scene.ply"
    export_splats(**given, save_to=path)
    gaussians = Gaussians.load_ply(path)
    torch.testing.assert_close(gaussians.sh, torch.cat([given["sh0"], given["shN"]], dim=1), rtol=0, atol=0)
    for name, tensor in load_ply_to_splats(path).items():
        torch.testing.assert_close(tensor, given[name], rtol=0, atol=0)


def test_a_compressed_file_holds_the_values() -> None:
    given = splats(300, coefficients=3)
    data = export_splats(**given, format="ply_compressed")
    header, _, body = data.partition(b"end_header\n")
    assert b"element chunk 2\n" in header and b"property uint packed_position\n" in header
    kept = given["means"][given["opacities"].sigmoid() > 1 / 255]
    kept = kept[exporter.sort_centers(kept, torch.arange(len(kept)))].numpy()
    chunks = np.frombuffer(body, "<f4", 2 * 18).reshape(2, 18)
    words = np.frombuffer(body, "<u4", 4 * len(kept), offset=chunks.nbytes).reshape(-1, 4)[:, 0]
    steps = np.stack([words >> 21, words >> 11 & 1023, words & 2047], axis=1) / [2047, 1023, 2047]
    for i, chunk in enumerate(chunks):
        rows = slice(256 * i, 256 * (i + 1))
        low, high = chunk[:3], chunk[3:6]
        np.testing.assert_allclose(low + (high - low) * steps[rows], kept[rows], atol=1e-3 * float((high - low).max()))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("count", [0, 1])
def test_none_and_one(format: str, count: int) -> None:
    """gsplat's own writer divides zero by zero, or stops."""
    data = export_splats(**splats(count), format=format)
    assert len(data) == 32 * count if format == "splat" else f"element vertex {count}\n".encode() in data


def test_mistakes_are_named() -> None:
    given = splats(4)
    for name, shape, expected in (
        ("quats", (4, 3), r"\[4, 4\]"),
        ("opacities", (4, 1), r"\[4\]"),
        ("shN", (4, 45), r"\[4, K, 3\]"),
    ):
        with pytest.raises(SplatError, match=f"{name} has shape .*; expected {expected}"):
            export_splats(**{**given, name: torch.zeros(shape)})
    with pytest.raises(SplatError, match="format is 'spz'; use ply, splat, ply_compressed"):
        export_splats(**given, format="spz")  # type: ignore[arg-type]
