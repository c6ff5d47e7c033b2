from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.lib.recfunctions import repack_fields
from plyfile import PlyData, PlyElement

from splat_py import Gaussians
from splat_py.scene.formats.ply import read_points
from tests.formats.scenes import scene
from tests.refusals import refused

FIELDS = ("means", "quats", "log_scales", "logit_opacities", "sh")


def assert_equal(a: Gaussians, b: Gaussians) -> None:
    for name in FIELDS:
        assert torch.equal(getattr(a, name), getattr(b, name)), name
        assert getattr(b, name).is_contiguous(), name


@pytest.mark.parametrize("sh_degree", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_round_trip_is_exact(tmp_path: Path, sh_degree: int, count: int) -> None:
    gaussians = scene(count, sh_degree)
    gaussians.save_ply(tmp_path / "new" / "a.ply")
    loaded = Gaussians.load_ply(tmp_path / "new" / "a.ply")
    assert loaded.sh.shape == (count, (sh_degree + 1) ** 2, 3)
    assert_equal(gaussians, loaded)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.ply"]


def test_the_layout_is_inrias(tmp_path: Path) -> None:
    gaussians = scene(7)
    gaussians.save_ply(tmp_path / "a.ply")
    ply = PlyData.read(str(tmp_path / "a.ply"))
    assert ply.byte_order == "<" and not ply.text
    vertex = ply["vertex"].data
    expected = ["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2"]
    expected += [f"f_rest_{i}" for i in range(45)]
    expected += ["opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"]
    assert list(vertex.dtype.names) == expected
    assert vertex.dtype.itemsize == 248
    # Channel by channel: f_rest_0..14 are red's coefficients 1..15, then green's, then blue's.
    np.testing.assert_array_equal(vertex["f_rest_0"], gaussians.sh[:, 1, 0])
    np.testing.assert_array_equal(vertex["f_rest_14"], gaussians.sh[:, 15, 0])
    np.testing.assert_array_equal(vertex["f_rest_15"], gaussians.sh[:, 1, 1])
    np.testing.assert_array_equal(vertex["f_rest_44"], gaussians.sh[:, 15, 2])
    np.testing.assert_array_equal(vertex["rot_0"], gaussians.quats[:, 0])
    assert not vertex["nx"].any()


def rewrite(source: Path, target: Path, dtype: str, names: list[str] | None = None, **options: object) -> None:
    """Rewrite a PLY as another program would: the same numbers in another order and other types, with further properties."""
    vertex = PlyData.read(str(source))["vertex"].data
    names = names or list(vertex.dtype.names)
    table = np.zeros(len(vertex), [(name, dtype) for name in names])
    for name in names:
        if name in vertex.dtype.names:
            table[name] = vertex[name]
    element = PlyElement.describe(table, "vertex", comments=["f_rest_99 is not a property"])
    PlyData([element], comments=["SplatRenderMode: mip"], **options).write(str(target))


@pytest.mark.parametrize("options", [{"byte_order": "<"}, {"byte_order": ">"}, {"text": True}])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_reading_goes_by_name(tmp_path: Path, options: dict[str, object], dtype: str) -> None:
    gaussians = scene(7, 1)
    gaussians.save_ply(tmp_path / "a.ply")
    names = [n for n in PlyData.read(str(tmp_path / "a.ply"))["vertex"].data.dtype.names if n[0] != "n"]
    names = [*np.random.default_rng(1).permutation(names), "confidence"]
    rewrite(tmp_path / "a.ply", tmp_path / "b.ply", dtype, names, **options)
    loaded = Gaussians.load_ply(tmp_path / "b.ply")
    if options.get("text"):
        for name in FIELDS:
            torch.testing.assert_close(getattr(loaded, name), getattr(gaussians, name))
    else:
        assert_equal(loaded, gaussians)


@pytest.mark.parametrize("comment", ["café, 書".encode(), b"caf\xe9"])
@pytest.mark.parametrize("text", [True, False])
def test_comments_in_any_encoding(tmp_path: Path, comment: bytes, text: bool) -> None:
    gaussians = scene(7, 1)
    gaussians.save_ply(tmp_path / "a.ply")
    rewrite(tmp_path / "a.ply", tmp_path / "b.ply", "f8", text=text, byte_order="<")
    data = (tmp_path / "b.ply").read_bytes()
    (tmp_path / "b.ply").write_bytes(data.replace(b"SplatRenderMode: mip", comment, 1))
    torch.testing.assert_close(Gaussians.load_ply(tmp_path / "b.ply").means, gaussians.means)


@pytest.mark.parametrize("name", ["a.ply", "a.compressed.ply"])
def test_elements_without_properties(tmp_path: Path, name: str) -> None:
    """gsplat's compressed files have such an element if the scene has no higher harmonics."""
    scene(7, 0).save(tmp_path / name)
    data = (tmp_path / name).read_bytes()
    (tmp_path / f"b{name}").write_bytes(data.replace(b"end_header\n", b"element sh 7\nend_header\n", 1))
    assert_equal(Gaussians.load(tmp_path / name), Gaussians.load(tmp_path / f"b{name}"))


def test_missing_properties_and_numbers_that_are_not_finite_are_told(tmp_path: Path) -> None:
    scene(7).save_ply(tmp_path / "a.ply")
    names = list(PlyData.read(str(tmp_path / "a.ply"))["vertex"].data.dtype.names)
    rewrite(tmp_path / "a.ply", tmp_path / "b.ply", "f4", [n for n in names if n not in ("opacity", "rot_3")])
    refused(r"b\.ply has no opacity, rot_3;", Gaussians.load_ply, tmp_path / "b.ply")
    rewrite(tmp_path / "a.ply", tmp_path / "c.ply", "f4", [n for n in names if n != "f_rest_44"])
    refused(r"c\.ply has 44 f_rest properties", Gaussians.load_ply, tmp_path / "c.ply")
    ply = PlyData.read(str(tmp_path / "a.ply"), mmap=False)
    ply["vertex"].data["x"][2] = np.nan
    ply["vertex"].data["f_rest_3"][2:4] = np.inf
    ply.write(str(tmp_path / "b.ply"))
    refused("2 of 7 Gaussians", Gaussians.load_ply, tmp_path / "b.ply")


@pytest.mark.parametrize("keep", [0, 3, 40, 900, -1, -300])
def test_cut_off_files_are_refused(tmp_path: Path, keep: int) -> None:
    scene(7).save_ply(tmp_path / "a.ply")
    (tmp_path / "b.ply").write_bytes((tmp_path / "a.ply").read_bytes()[:keep])
    refused(r"b\.ply is not a PLY file or is damaged", Gaussians.load_ply, tmp_path / "b.ply")


@pytest.mark.parametrize("more", [b"\0", bytes(500)])
def test_what_follows_the_last_row_is_not_ignored(tmp_path: Path, more: bytes) -> None:
    scene(7).save_ply(tmp_path / "a.ply")
    (tmp_path / "b.ply").write_bytes((tmp_path / "a.ply").read_bytes() + more)
    refused(r"b\.ply has data after its last row", Gaussians.load_ply, tmp_path / "b.ply")


@pytest.mark.parametrize("kind", ["ascii", "binary_little_endian"])
@pytest.mark.parametrize("count", [10**9, 10**12, 1 << 63, -1])
def test_more_rows_than_a_file_can_hold(tmp_path: Path, kind: str, count: int) -> None:
    names = "\n".join(f"property float {name}" for name in "xyz")
    (tmp_path / "a.ply").write_text(f"ply\nformat {kind} 1.0\nelement vertex {count}\n{names}\nend_header\n1 2 3\n")
    says = f"it claims {3 * count:,} numbers in" if count > 0 else "negative"
    refused(rf"a\.ply .* is damaged \({says}", Gaussians.load_ply, tmp_path / "a.ply")


def test_what_is_no_gaussian_file(tmp_path: Path) -> None:
    refused("does not exist", Gaussians.load_ply, tmp_path / "none.ply")
    (tmp_path / "a.ply").write_bytes(b"\x89PNG\r\n\x1a\n")
    refused("not a PLY", Gaussians.load_ply, tmp_path / "a.ply")
    PlyData([PlyElement.describe(np.zeros(2, [("a", "f4")]), "face")]).write(str(tmp_path / "b.ply"))
    refused("no element named vertex", Gaussians.load_ply, tmp_path / "b.ply")


def test_nothing_is_written_of_invalid_gaussians(tmp_path: Path) -> None:
    gaussians = scene(7)
    gaussians.save_ply(tmp_path / "a.ply")
    before = (tmp_path / "a.ply").read_bytes()
    gaussians.means[0, 0] = torch.nan
    refused(r"1 of 7 Gaussians, the first of them in row 1, .* in means;", gaussians.save_ply, tmp_path / "a.ply")
    assert (tmp_path / "a.ply").read_bytes() == before


def test_point_clouds(tmp_path: Path) -> None:
    colored = np.zeros(2, [("z", "f8"), ("x", "f8"), ("y", "f8"), ("red", "u1"), ("green", "u1"), ("blue", "u1")])
    colored["z"], colored["blue"] = (1.5, 2.5), (3, 255)
    PlyData([PlyElement.describe(colored, "vertex")]).write(str(tmp_path / "a.ply"))
    xyz, rgb = read_points(tmp_path / "a.ply")
    np.testing.assert_array_equal(xyz, [[0, 0, 1.5], [0, 0, 2.5]])
    np.testing.assert_array_equal(rgb, [[0, 0, 3], [0, 0, 255]])
    PlyData([PlyElement.describe(repack_fields(colored[["x", "y", "z"]]), "vertex")]).write(str(tmp_path / "b.ply"))
    assert (read_points(tmp_path / "b.ply")[1] == 128).all()
    PlyData([PlyElement.describe(repack_fields(colored[["x", "red"]]), "vertex")]).write(str(tmp_path / "c.ply"))
    refused("no x, y, z", read_points, tmp_path / "c.ply")
