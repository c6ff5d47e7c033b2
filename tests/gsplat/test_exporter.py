"""Files of Gaussians, rotations, depth maps and the projection matrix, against gsplat's."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree
from splat_py.gsplat.exporter import export_splats, load_ply_to_splats

from splat_py import Gaussians, SplatError
from splat_py.gsplat import exporter, utils
from tests.gsplat.scenes import splats
from tests.refusals import refused

FORMATS = ["ply", "splat", "ply_compressed"]


# Without higher harmonics, gsplat's compressed files have an element without properties, which plyfile does not read.
@pytest.mark.parametrize(
    ("format", "coefficients"),
    [("ply", 0), ("ply", 15), ("splat", 3), ("ply_compressed", 0), ("ply_compressed", 3), ("ply_compressed", 15)],
)
def test_files_hold_what_gsplats_hold(tmp_path: Path, format: str, coefficients: int) -> None:
    """One reader finds the same Gaussians in both, in any order, to a step of the format's precision."""
    theirs = pytest.importorskip("gsplat.exporter")
    given = splats(coefficients=coefficients)
    found = []
    for name, module in (("ours", exporter), ("theirs", theirs)):
        path = tmp_path / f"{name}.{'splat' if format == 'splat' else 'ply'}"
        module.export_splats(**given, format=format, save_to=str(path))
        found.append(Gaussians.load(path).arrays())
    ours, theirs = found
    assert len(ours.means) == len(theirs.means) <= 700
    # Chunks of other Gaussians have other bounds; bytes are rounded or truncated.
    atol = {"ply": 0.0, "splat": 0.02, "ply_compressed": 0.02}[format]
    match = cKDTree(theirs.means).query(ours.means)[1]
    assert len(set(match.tolist())) == len(match)
    for name in ("means", "log_scales", "sh"):
        a, b = getattr(ours, name), getattr(theirs, name)[match]
        np.testing.assert_allclose(a, b, rtol=0, atol=atol * (3 if name == "sh" else 1), err_msg=name)
    alike = [(q / np.linalg.norm(q, axis=1, keepdims=True)) for q in (ours.quats, theirs.quats[match])]
    np.testing.assert_allclose(np.abs((alike[0] * alike[1]).sum(1)), 1, atol=1e-6 if format == "ply" else 1e-3)
    opacities = (1 / (1 + np.exp(-logits)) for logits in (ours.logit_opacities, theirs.logit_opacities[match]))
    np.testing.assert_allclose(*opacities, atol=max(atol, 1e-6))


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
    assert export_splats(**given, format=format, save_to=str(path)) == path.read_bytes()
    assert [other.name for other in path.parent.iterdir()] == ["scene.ply"]


def test_our_reader_and_theirs_read_a_ply(tmp_path: Path) -> None:
    given = splats()
    path = tmp_path / "scene.ply"
    export_splats(**given, save_to=path)
    gaussians = Gaussians.load_ply(path)
    torch.testing.assert_close(gaussians.sh, torch.cat([given["sh0"], given["shN"]], dim=1), rtol=0, atol=0)
    for name, tensor in load_ply_to_splats(path).items():
        torch.testing.assert_close(tensor, given[name], rtol=0, atol=0)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("count", [0, 1])
def test_none_and_one(format: str, count: int) -> None:
    """gsplat's own writer divides zero by zero, or fails."""
    data = export_splats(**splats(count), format=format)
    assert len(data) == 32 * count if format == "splat" else f"element vertex {count}\n".encode() in data


def test_mistakes_are_named() -> None:
    given = splats(4)
    for name, shape, expected in (
        ("quats", (4, 3), r"\[4, 4\]"),
        ("opacities", (4, 1), r"\[4\]"),
        ("shN", (4, 45), r"\[4, K, 3\]"),
    ):
        refused(f"{name} has shape .*; expected {expected}", export_splats, **{**given, name: torch.zeros(shape)})
    refused("format is 'spz'; use ply, splat, ply_compressed", export_splats, **given, format="spz")
    depths, camtoworlds, Ks = cameras()
    with pytest.raises(SplatError, match=r"have shapes \[2, 7, 9\], \[2, 4, 4\] and \[2, 3, 3\]; expected"):
        utils.depth_to_points(depths[..., 0], camtoworlds, Ks)
    refused(r"quat has shape \[3\]", utils.normalized_quat_to_rotmat, torch.zeros(3))


def cameras(count: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Depth maps [C, 7, 9, 1], camera → world [C, 4, 4], intrinsics [C, 3, 3]."""
    generator = torch.Generator().manual_seed(0)
    depths = 2 + torch.rand(count, 7, 9, 1, generator=generator)
    quats = torch.nn.functional.normalize(torch.randn(count, 4, generator=generator), dim=-1)
    camtoworlds = torch.eye(4).repeat(count, 1, 1)
    camtoworlds[:, :3, :3] = utils.normalized_quat_to_rotmat(quats)
    camtoworlds[:, :3, 3] = torch.randn(count, 3, generator=generator)
    Ks = torch.tensor([[11.0, 0, 4.2], [0, 13.0, 3.7], [0, 0, 1]]).repeat(count, 1, 1)
    return depths, camtoworlds, Ks


def test_they_are_gsplats() -> None:
    theirs = pytest.importorskip("gsplat.utils")
    depths, camtoworlds, Ks = cameras()
    x = torch.linspace(-30, 30, 13)
    quats = torch.nn.functional.normalize(torch.randn(2, 5, 4), dim=-1)
    for name, arguments in (
        ("normalized_quat_to_rotmat", (quats,)),
        ("log_transform", (x,)),
        ("inverse_log_transform", (x / 10,)),
        ("depth_to_points", (depths, camtoworlds, Ks)),
        ("depth_to_points", (depths, camtoworlds, Ks, False)),
        ("depth_to_points", (depths[0], camtoworlds[0], Ks[0])),
        ("depth_to_normal", (depths, camtoworlds, Ks)),
        ("depth_to_normal", (depths[None], camtoworlds[None], Ks[None], False)),
        ("get_projection_matrix", (0.1, 100.0, 1.2, 0.9, "cpu")),
    ):
        torch.testing.assert_close(getattr(utils, name)(*arguments), getattr(theirs, name)(*arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_save_ply_writes_gsplats_bytes(tmp_path: Path) -> None:
    theirs = pytest.importorskip("gsplat.utils")
    given = splats(20, coefficients=3)
    given["means"][4, 1] = torch.nan
    parameters = torch.nn.ParameterDict({name: torch.nn.Parameter(tensor) for name, tensor in given.items()})
    for name, module in (("ours.ply", utils), ("theirs.ply", theirs)):
        module.save_ply(parameters, str(tmp_path / name))
    assert (tmp_path / "ours.ply").read_bytes() == (tmp_path / "theirs.ply").read_bytes()


def test_save_ply_of_colors(tmp_path: Path) -> None:
    given = splats(20)
    given["opacities"][7] = torch.inf
    colors = torch.rand(20, 3, generator=torch.Generator().manual_seed(1))
    with pytest.warns(DeprecationWarning, match="export_splats"):
        utils.save_ply(given, tmp_path / "scene.ply", colors)
    gaussians = Gaussians.load_ply(tmp_path / "scene.ply")
    torch.testing.assert_close(gaussians.sh[:, 0] * 0.28209479177387814 + 0.5, colors[np.delete(np.arange(20), 7)])
    assert gaussians.sh_degree == 0
