"""One library for gsplat 1.5.3 and 1.6: where they contradict each other, `use` says which is followed."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import splat_py.gsplat as gsplat
from splat_py.gsplat.rendering import RollingShutterType as Shutter
from tests.gsplat.scenes import BATCHES, assert_same_gradients, scene
from tests.refusals import refused

CAMERAS, COUNT = 2, 50


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    gsplat.use("1.5.3")


def test_the_environment_sets_the_first_version() -> None:
    code = "import splat_py.gsplat as gsplat; print(gsplat.__version__, gsplat.version.__version__)"
    for version, printed in (("", "1.5.3 1.5.3"), ("1.6", "1.6.0 1.6.0")):
        run = subprocess.run([sys.executable, "-c", code], env={"SPLAT_GSPLAT": version}, capture_output=True, text=True)
        assert run.stdout.strip() == printed
    run = subprocess.run([sys.executable, "-c", code], env={"SPLAT_GSPLAT": "2"}, capture_output=True, text=True)
    assert "SPLAT_GSPLAT is '2'; use 1.5.3 or 1.6" in run.stderr
    refused("version is '1.4'; use 1.5.3 or 1.6", gsplat.use, "1.4")


def one(*position: float, scale: float = 0.2) -> tuple[Tensor, ...]:
    """A Gaussian's mean, quaternion and scales."""
    return torch.tensor([position]), torch.tensor([[1.0, 0, 0, 0]]), torch.full((1, 3), scale)


VIEW = torch.eye(4)[None], torch.tensor([[[32.0, 0, 16], [0, 32, 16], [0, 0, 1]]]), 32, 32


def test_one_sigma_point_on_the_image_is_enough_in_1_6() -> None:
    """A Gaussian as far beyond the right edge as points may lie: half of its own are farther."""
    gaussian = *one(2 * (0.5 + 0.1), 0, 2.0), torch.ones(1), torch.ones(1, 3)
    for version, drawn in (("1.5.3", False), ("1.6", True)):
        gsplat.use(version)
        assert gsplat.cuda._wrapper.UnscentedTransformParameters().require_all_sigma_points_valid is not drawn
        radii = gsplat.rasterization(*gaussian, *VIEW, with_ut=True, packed=False)[2]["radii"]
        assert bool(radii.all()) is drawn


def test_sizes_that_are_no_numbers_are_named_where_tiles_follow_them() -> None:
    gaussian = *one(0, 0, 2.0), torch.ones(1), torch.ones(1, 3)
    gsplat.use("1.6")
    refused("width is '32'", gsplat.rasterization, *gaussian, *VIEW[:2], "32", 32, with_ut=True, with_eval3d=True)


def test_the_least_compensation_without_opacities() -> None:
    mean, quat, scales = one(0, 0, 2.0, scale=1e-6)
    for version, least in (("1.5.3", 1e-6), ("1.6", 0.005)):
        gsplat.use(version)
        compensations = gsplat.fully_fused_projection(mean, None, quat, scales, *VIEW, calc_compensations=True)[-1]
        torch.testing.assert_close(compensations, torch.full((1, 1), least), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("version", "bits"), [("1.5.3", 3), ("1.6", 2)])
def test_keys_of_four_tiles(version: str, bits: int) -> None:
    """1.6 numbers them by two bits. Keys of `meta` follow."""
    gsplat.use(version)
    s = scene(cameras=3)
    gaussian = s.means, s.quats, s.scales, s.opacities, torch.rand(50, 3)
    for render in (gsplat.rasterization, gsplat.rasterization_2dgs):
        meta = render(*gaussian, s.viewmats, s.Ks, 32, 32, tile_size=16, packed=False)[-1]
        keys, images = meta["isect_ids"], meta["flatten_ids"] // 50
        assert torch.equal(keys >> 32 + bits, images.long()) and (keys.diff() >= 0).all()
        assert torch.equal(gsplat.isect_offset_encode(keys, 3, 2, 2), meta["isect_offsets"])
    means2d, radii, depths = (meta[name].detach() for name in ("means2d", "radii", "depths"))
    counts, keys, _ = gsplat.isect_tiles(means2d, radii, depths, 16, 2, 2)
    assert torch.equal(torch.bincount(keys >> 32 + bits, minlength=3), counts.sum(-1))


@pytest.mark.parametrize("batch", BATCHES)
def test_packed_projections_also_return_the_first_row_of_each_camera(batch: tuple[int, ...]) -> None:
    s = scene(batch)
    planes = s.viewmats, s.Ks, s.width, s.height
    for project in (
        lambda: gsplat.fully_fused_projection(s.means, None, s.quats, s.scales, *planes, packed=True),
        lambda: gsplat.fully_fused_projection_2dgs(s.means, s.quats, s.scales, *planes, packed=True),
    ):
        gsplat.use("1.5.3")
        older = project()
        gsplat.use("1.6")
        batch_ids, camera_ids, gaussian_ids, first, *newer = project()
        assert len(older) == 8 and first.dtype == torch.int32
        for a, b in zip(older, (batch_ids, camera_ids, gaussian_ids, *newer), strict=True):
            assert a is b is None or torch.equal(a, b)
        counts = torch.bincount(batch_ids * CAMERAS + camera_ids, minlength=len(first) - 1)
        assert len(first) == s.viewmats.shape[:-2].numel() + 1 and torch.equal(first.diff(), counts) and first[0] == 0
    nothing = (tensor[..., :0, :] for tensor in (s.means, s.quats, s.scales))
    assert not gsplat.fully_fused_projection_2dgs(*nothing, *planes, packed=True)[3].any()


def test_the_largest_alpha_is_that_of_the_version() -> None:
    """One opaque splat, alone on the image, whose mean is a pixel's centre."""
    means, quats, scales, one = torch.tensor([[0, 0, 2.0]]), torch.tensor([[1.0, 0, 0, 0]]), torch.ones(1, 3), torch.ones(1)
    gaussian = means, quats, scales, one, means
    camera = torch.eye(4)[None], torch.tensor([[[5, 0, 2.5], [0, 5, 2.5], [0, 0, 1]]]), 5, 5
    splat = torch.tensor([[2.5, 2.5]]), torch.tensor([[1e-3, 0, 1e-3]])
    offsets, zero = torch.tensor([[0, 1], [1, 1]], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    for version, alpha in (("1.6", 0.99), ("1.5.3", 0.999)):
        gsplat.use(version)
        rendered = gsplat.rasterization(*gaussian, *camera)[1], gsplat.rasterization_2dgs(*gaussian, *camera)[1]
        pixels = gsplat.rasterize_to_pixels(*splat, means, one, 5, 5, 4, offsets, zero)[1]
        ids = zero.long(), torch.tensor([12]), zero.long()
        blended = gsplat.accumulate(*(t[None] for t in (*splat, one, means)), *ids, 5, 5)[1]
        assert alpha == gsplat.cuda._constants.MAX_ALPHA
        for alphas in (*rendered, pixels, blended):
            assert float(alphas.max()) == pytest.approx(alpha, abs=1e-6)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("batch", "channels", "shutter"), [((), 3, False), ((2,), 1, True), ((), 4, True)])
def test_harmonics_from_cameras_to_means(batch: tuple[int, ...], channels: int, shutter: bool, packed: bool) -> None:
    """The version of 1.6 agrees with directions found in torch by that of 1.5.3."""
    s, degree = scene(batch), 3
    coeffs = torch.randn(COUNT, 25, channels, requires_grad=True)
    last = (s.viewmats.detach() + 0.1).requires_grad_() if shutter else None
    poses = [s.viewmats] if last is None else [s.viewmats, last]
    centres = sum(-torch.linalg.solve(pose[..., :3, :3].mT.inverse(), pose[..., :3, 3:])[..., 0] for pose in poses) / len(poses)
    dirs = s.means[..., None, :, :] - centres[..., None, :]
    given = coeffs.expand(*dirs.shape[:-1], 25, channels)
    ids = {}
    ours = coeffs
    if packed:
        scenes, cameras, gaussians = torch.rand(dirs.shape[:-1]).reshape(-1, CAMERAS, COUNT).gt(0.4).nonzero(as_tuple=True)
        ids = {"batch_ids": scenes, "camera_ids": cameras, "gaussian_ids": gaussians}
        dirs = dirs.reshape(-1, CAMERAS, COUNT, 3)[scenes, cameras, gaussians]
        ours = given = coeffs[gaussians]
    threes = torch.nn.functional.pad(given, (0, -channels % 3)).split(3, -1)
    expected = torch.cat([gsplat.spherical_harmonics(degree, dirs, part) for part in threes], -1)[..., :channels]
    found = gsplat.spherical_harmonics(degree, s.means, s.viewmats, ours, viewmats_rs=last, **ids)
    inputs = (s.means, coeffs, *poses)
    assert_same_gradients([found], [expected], inputs, 1e-4)
    parts = (
        gsplat.spherical_harmonics_l0(ours[:, :1]),
        gsplat.spherical_harmonics_l1_plus(degree, s.means, s.viewmats, ours[:, 1:], viewmats_rs=last, **ids),
    )
    torch.testing.assert_close(parts[0] + parts[1], found, rtol=1e-4, atol=1e-5)


def test_harmonics_by_the_names_of_both_versions() -> None:
    dirs, coeffs, masks = torch.randn(6, 3), torch.randn(6, 4, 3), torch.rand(6) < 0.5
    expected = gsplat.spherical_harmonics(1, dirs, coeffs, masks)
    assert torch.equal(gsplat.spherical_harmonics(1, dirs=dirs, coeffs=coeffs, masks=masks), expected)
    assert torch.equal(gsplat.spherical_harmonics(1, dirs, coeffs, masks=masks), expected)
    newer = gsplat.spherical_harmonics(1, dirs, torch.eye(4)[None], coeffs, masks[None])
    torch.testing.assert_close(newer[0], expected)
    refused("belong together", gsplat.spherical_harmonics, 1, dirs, torch.eye(4)[None], coeffs, gaussian_ids=masks)
    refused("means is None", gsplat.spherical_harmonics, 1, coeffs=coeffs)


def test_exact_tiles_are_those_where_a_splat_is_seen() -> None:
    """Needles in all directions, by brute force over a fine grid of each tile's points."""
    torch.manual_seed(3)
    count, tile, columns, rows = 200, 16, 6, 5
    means2d, turn, opacities = torch.rand(count, 2) * 90, torch.rand(count) * 3.2, torch.rand(count).clamp(min=1e-3)
    scales = torch.rand(count, 2) * torch.tensor([20.0, 2.0]) + 0.5
    R = torch.stack((turn.cos(), -turn.sin(), turn.sin(), turn.cos()), -1).reshape(-1, 2, 2)
    inverse = R @ torch.diag_embed(scales**-2) @ R.mT
    conics = torch.stack((inverse[:, 0, 0], inverse[:, 0, 1], inverse[:, 1, 1]), -1)
    radii = torch.full((count, 2), 70, dtype=torch.int32)
    counts, keys, ids = gsplat.isect_tiles(
        means2d, radii, torch.rand(count), tile, columns, rows, conics=conics, opacities=opacities
    )
    met = torch.zeros(count, rows * columns, dtype=torch.bool)
    met[ids.long(), keys >> 32] = True
    assert torch.equal(counts, met.sum(1).int())
    points = torch.linspace(0, tile, 65)
    x, y = torch.meshgrid(points, points, indexing="xy")
    corners = torch.stack(torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="xy"), -1).reshape(-1, 2) * tile
    offset = torch.stack((x, y), -1).reshape(-1, 2) + corners[:, None]
    d = offset - means2d[:, None, None]
    alphas = (opacities[:, None, None] * torch.exp(-0.5 * torch.einsum("ntpi,nij,ntpj->ntp", d, inverse, d))).amax(-1)
    assert met[alphas >= 1 / 255].all()
    assert not met[alphas < 0.7 / 255].any()


def test_arguments_by_position() -> None:
    """After with_eval3d, and in MCMCStrategy after refine_stop_iter, positions differ."""
    s = scene()
    first = [s.means, s.quats, s.scales, s.opacities, s.means, s.viewmats, s.Ks, s.width, s.height]
    common = [0.01, 1e10, 0.0, 0.3, None, False, 16, torch.rand(2, 3), "RGB", False, False, "classic", 32, False]
    common += ["pinhole", False, None, False, False]
    lens = torch.full((2, 4), 0.01)
    older = gsplat.rasterization(*first, *common, lens, None, None, None, Shutter.GLOBAL, None)
    with pytest.raises(TypeError, match="at most 34 positional arguments"):
        gsplat.rasterization(*first, *common, *[None] * 7)
    strategy = gsplat.MCMCStrategy(10, 1.0, 2, 3, 4, 0.5)
    assert (strategy.refine_every, strategy.min_opacity, strategy.noise_injection_stop_iter) == (4, 0.5, -1)
    gsplat.use("1.6")
    newer = gsplat.rasterization(*first, *common, False, True, None, lens, *[None] * 5, Shutter.GLOBAL, *[None] * 5)
    assert torch.equal(older[0], newer[0])
    strategy = gsplat.MCMCStrategy(10, 1.0, 2, 3, 7, 4, 0.5)
    assert (strategy.refine_every, strategy.min_opacity, strategy.noise_injection_stop_iter) == (4, 0.5, 7)
    with pytest.raises(TypeError, match="multiple values"):
        gsplat.MCMCStrategy(10, 1.0, 2, 3, 7, noise_injection_stop_iter=4)
