"""gsplat's stages of 3DGUT, against `rasterization`, which tests/render compares with float64, and one Gaussian at a time."""

import math
from typing import Any

import pytest
import torch
from splat_py.gsplat.cuda._wrapper import rasterize_to_pixels_eval3d_extra
from torch import Tensor

import splat_py
import splat_py.gsplat as gsplat
from splat_py.gsplat.cameras import make_params
from splat_py.gsplat.rendering import FThetaCameraDistortionParameters, RollingShutterType, UnscentedTransformParameters
from tests.gsplat.scenes import Scene, assert_same_gradients, scene
from tests.refusals import refused

TILE = 8
# An equidistant camera of 30 pixels a radian.
FTHETA = FThetaCameraDistortionParameters(0, (0, 1 / 30, 0, 0, 0, 0), (0, 30, 0, 0, 0, 0), 2.0, (1.0, 0.0, 0.0))
# Angles are shifted by the glass, and back.
SHIFTED = make_params([0.03, 1.0, 0.0], [-0.02, 0.0, 1.0], [-0.03, 1.0, 0.0], [0.02, 0.0, 1.0])
CAMERAS: dict[str, dict[str, Any]] = {
    "pinhole": {"ut_params": UnscentedTransformParameters(require_all_sigma_points_valid=False)},
    "fisheye": {
        "camera_model": "fisheye",
        "radial_coeffs": torch.tensor([0.1, 0.02, 0.0, 0.0]).repeat(2, 1),
        "rolling_shutter": RollingShutterType.ROLLING_TOP_TO_BOTTOM,
        "global_z_order": False,
    },
    "ftheta": {"camera_model": "ftheta", "ftheta_coeffs": FTHETA, "global_z_order": False},
    "windshield": {"camera_model": "fisheye", "external_distortion_coeffs": SHIFTED},
}


def lists_of(s: Scene, **cameras: Any) -> tuple[Tensor, Tensor]:
    """Each tile's list of Gaussians, from their projection."""
    gaussians = s.means, s.quats, s.scales, s.opacities
    radii, means2d, depths, *_ = gsplat.fully_fused_projection_with_ut(
        *gaussians, s.viewmats, s.Ks, s.width, s.height, **cameras
    )
    columns, rows = math.ceil(s.width / TILE), math.ceil(s.height / TILE)
    _, keys, ids = gsplat.isect_tiles(means2d, radii, depths, TILE, columns, rows)
    lead = s.viewmats.shape[:-2]
    return gsplat.isect_offset_encode(keys, lead.numel(), columns, rows).reshape(*lead, rows, columns), ids


def blended(s: Scene, colors: Tensor, offsets: Tensor, ids: Tensor, **named: Any) -> Any:
    named.pop("global_z_order", None)
    opacities = s.opacities[..., None, :].expand(*colors.shape[:-2], 50)
    gaussians = s.means, s.quats, s.scales, colors, opacities
    return rasterize_to_pixels_eval3d_extra(*gaussians, s.viewmats, s.Ks, s.width, s.height, TILE, offsets, ids, **named)


@pytest.mark.parametrize("name", CAMERAS)
def test_stages_render_what_rasterization_does(name: str) -> None:
    s, cameras = scene((2,) if name == "pinhole" else ()), dict(CAMERAS[name])
    if name == "fisheye":
        cameras["radial_coeffs"].requires_grad_()
        cameras["viewmats_rs"] = (s.viewmats + 0.05 * torch.eye(4)[:, :1] * torch.eye(4)[3]).detach().requires_grad_()
    torch.manual_seed(0)
    lead = s.viewmats.shape[:-2]
    colors, backgrounds = torch.rand(*lead, 50, 3, requires_grad=True), torch.rand(*lead, 3, requires_grad=True)
    expected, alphas, meta = gsplat.rasterization(
        *(s.means, s.quats, s.scales, s.opacities, colors, s.viewmats, s.Ks, s.width, s.height),
        **{"backgrounds": backgrounds, "tile_size": TILE, "packed": False, "render_mode": "RGB-d", "return_normals": True},
        **{"with_ut": True, "with_eval3d": True, **cameras},
    )
    offsets, ids = lists_of(s, **cameras)
    # The last channel gives way to the distance.
    padded = torch.nn.functional.pad(colors, (0, 1)), torch.nn.functional.pad(backgrounds, (0, 1))
    named = {"backgrounds": padded[1], "use_hit_distance": True, "return_normals": True, **cameras}
    images, found, _, _, normals = blended(s, padded[0], offsets, ids, **named)
    for ours, theirs in ((images, expected), (found, alphas), (normals, meta["normals"])):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    inputs = [s.means, s.quats, s.scales, s.opacities, s.viewmats, s.Ks, colors, backgrounds]
    inputs += [value for value in cameras.values() if isinstance(value, Tensor)]
    # By an f-theta camera's own intrinsics.
    inputs = [tensor for tensor in inputs if name != "ftheta" or tensor is not s.Ks]
    assert_same_gradients([images, found, normals], [expected, alphas, meta["normals"]], inputs, 1e-4)
    plain = gsplat.rasterize_to_pixels_eval3d(
        *(s.means, s.quats, s.scales, colors, s.opacities[..., None, :].expand(colors.shape[:-1]), s.viewmats, s.Ks),
        *(s.width, s.height, TILE, offsets, ids, backgrounds),
        **{key: value for key, value in cameras.items() if key != "global_z_order"},
    )
    torch.testing.assert_close(plain[0], expected[..., :3], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", CAMERAS)
def test_conics_bound_gaussians_along_rays(name: str, packed: bool) -> None:
    """They are those of the moment of the call, and have no gradient, as in gsplat."""
    s, cameras = scene((2,) if name == "pinhole" else ()), dict(CAMERAS[name])
    if name == "fisheye":
        cameras["viewmats_rs"] = s.viewmats + 0.05 * torch.eye(4)[:, :1] * torch.eye(4)[3]
    seen = s.viewmats, s.Ks, s.width, s.height
    radii, *_, expected, _ = gsplat.fully_fused_projection_with_ut(s.means, s.quats, s.scales, s.opacities, *seen, **cameras)
    gaussians, colors = (s.means, s.quats, s.scales, s.opacities), torch.rand(*s.means.shape)
    *_, meta = gsplat.rasterization(*gaussians, colors, *seen, packed=packed, with_ut=True, with_eval3d=True, **cameras)
    with torch.no_grad():
        for tensor in (s.means, s.quats, s.scales, s.viewmats, s.Ks):
            tensor.mul_(1.1)
    shown = (radii > 0).all(-1)
    assert 0 < shown.sum() < shown.numel() and not expected[~shown].any()
    torch.testing.assert_close(meta["conics"], expected[shown] if packed else expected, rtol=1e-5, atol=1e-7)
    assert not meta["conics"].requires_grad


def test_rays_and_masks() -> None:
    s = scene()
    offsets, ids = lists_of(s)
    colors, masks = torch.rand(2, 50, 3), torch.rand(2, 4, 5) < 0.5
    expected, alphas, *_ = blended(s, colors, offsets, ids)
    y, x = torch.meshgrid(torch.arange(s.height) + 0.5, torch.arange(s.width) + 0.5, indexing="ij")
    points = torch.linalg.solve(s.Ks[:, None, None], torch.stack((x, y, torch.ones_like(x)), -1)[..., None])[..., 0]
    turned = points @ s.viewmats[:, None, :3, :3]
    centres = -(s.viewmats[:, :3, :3].mT @ s.viewmats[:, :3, 3:])[..., 0]
    rays = torch.cat([centres[:, None, None].expand_as(turned), turned], -1)
    for given in (rays, rays.flatten(1, 2), rays[None]):
        torch.testing.assert_close(blended(s, colors, offsets, ids, rays=given)[0], expected, rtol=1e-4, atol=1e-4)
    gaussians = s.means, s.quats, s.scales, s.opacities, colors[0]
    named: dict[str, Any] = {"packed": False, "with_eval3d": True}
    shared, each = (
        gsplat.rasterization(*gaussians, s.viewmats, s.Ks, s.width, s.height, rays=given, **named)[0]
        for given in (rays[0], rays[:1].repeat(2, 1, 1, 1))
    )
    assert torch.equal(shared, each) and shared.any()
    shown = masks.repeat_interleave(TILE, 1).repeat_interleave(TILE, 2)[:, : s.height, : s.width]
    images, found, last, counts, normals = blended(s, colors, offsets, ids, masks=masks)
    assert torch.equal(images, expected * shown[..., None]) and torch.equal(found, alphas * shown[..., None])
    assert counts is normals is None and (last[~shown] == -1).all() and (last[shown] >= 0).any()


def test_the_last_place_is_that_of_the_last_gaussian_of_a_pixel() -> None:
    """A pixel stays the same without the rest of the list, and changes without that Gaussian."""
    s = scene()
    offsets, ids = lists_of(s)
    colors = torch.rand(2, 50, 3)
    images, alphas, last, *_ = blended(s, colors, offsets, ids)
    assert torch.equal(last >= 0, alphas[..., 0] > 0)
    *_, nothing, _, _ = blended(s, colors, offsets, ids, return_last_ids=False)
    assert nothing is None
    for pixel in ((0, 13, 20), (1, 9, 17)):
        place = int(last[pixel])
        kept, shorter = (blended(s, colors, offsets.clamp(max=end), ids[:end])[0] for end in (place + 1, place))
        assert torch.equal(kept[pixel], images[pixel]) and not torch.equal(shorter[pixel], images[pixel])


@pytest.mark.parametrize("name", CAMERAS)
def test_counts_are_what_pixels_blend(name: str) -> None:
    """A Gaussian counts where a pixel's red, the sum of its weights, has a gradient by its colour."""
    s, cameras = scene((), count=50, cameras=1), dict(CAMERAS[name])
    if name == "fisheye":
        cameras["radial_coeffs"] = cameras["radial_coeffs"][:1]
        cameras["viewmats_rs"] = s.viewmats.detach() + 0.05 * torch.eye(4)[:, :1] * torch.eye(4)[3]
    offsets, ids = lists_of(s, **cameras)
    colors = torch.ones(1, 50, 3, requires_grad=True)
    images, _, last, counts, _ = blended(s, colors, offsets, ids, return_sample_counts=True, **cameras)
    assert counts.dtype == torch.int32 and counts.shape == last.shape and torch.equal(counts > 0, last >= 0)
    assert counts.max() > 4 and not counts.requires_grad
    for y in range(0, s.height, 5):
        for x in range(0, s.width, 5):
            (gradient,) = torch.autograd.grad(images[0, y, x, 0], colors, retain_graph=True)
            assert counts[0, y, x] == (gradient[0, :, 0] > 0).sum()
    masks = torch.zeros_like(offsets, dtype=torch.bool)
    assert not blended(s, colors, offsets, ids, return_sample_counts=True, masks=masks, **cameras)[3].any()


def test_radii_are_those_of_compensated_opacities() -> None:
    """As `fully_fused_projection` has them if compensations are asked for: small Gaussians on the axis, where both agree."""
    s = scene()
    scales, means = s.scales.detach() * 5e-2, torch.tensor([0, 0, 5.0]).repeat(50, 1)
    camera = torch.eye(4)[None], s.Ks[:1], s.width, s.height
    other = gsplat.fully_fused_projection(means, None, s.quats, scales, *camera, calc_compensations=True, opacities=s.opacities)
    ours = gsplat.fully_fused_projection_with_ut(means, s.quats, scales, s.opacities, *camera, calc_compensations=True)
    assert torch.equal(ours[0], other[0]) and ours[0].any() and not ours[0].all()
    torch.testing.assert_close(ours[4], other[4], rtol=1e-2, atol=1e-3)
    without = gsplat.fully_fused_projection_with_ut(means, s.quats, scales, s.opacities, *camera)
    assert torch.equal(without[0], ours[0]) and without[4] is None
    larger = gsplat.fully_fused_projection_with_ut(means, s.quats, scales, None, *camera)[0]
    assert (larger >= ours[0]).all() and (larger > 0).all()


def test_version_1_6_culls_gaussians_without_an_orientation_or_a_width() -> None:
    s = scene()
    quats, scales = s.quats.detach().clone(), s.scales.detach().clone()
    camera = s.viewmats, s.Ks, s.width, s.height
    drawn = gsplat.fully_fused_projection_with_ut(s.means, quats, scales, s.opacities, *camera)[0].all(-1)
    first, second = drawn.all(0).nonzero()[:2, 0].tolist()
    quats[first], scales[second, 1] = 0, 0
    gsplat.use("1.6")
    try:
        radii = gsplat.fully_fused_projection_with_ut(s.means, quats, scales, s.opacities, *camera)[0]
        rendered = (s.means, quats, scales, s.opacities, torch.rand(50, 3), *camera)
        _, alphas, meta = gsplat.rasterization(*rendered, packed=False, with_ut=True)
    finally:
        gsplat.use("1.5.3")
    for found in (radii, meta["radii"]):
        assert not found[:, [first, second]].any() and found.any()
    alphas.sum().backward()
    assert s.means.grad is not None and s.means.grad.isfinite().all()


def test_what_the_stages_refuse() -> None:
    s = scene()
    offsets, ids = lists_of(s)
    colors = torch.rand(2, 50, 3)
    with pytest.raises(NotImplementedError, match=r"rasterize_to_pixels_eval3d does not support lidar_coeffs; leave"):
        blended(s, colors, offsets, ids, lidar_coeffs=object())
    with pytest.raises(TypeError, match="renderer_config"):
        blended(s, colors, offsets, ids, renderer_config=3)
    refused(r"colors has shape \[2, 49, 3\]", blended, s, colors[:, 1:], offsets, ids)
    rest = s.viewmats, s.Ks, s.width, s.height, TILE, offsets, ids
    refused(
        r"opacities has shape \[50\]", gsplat.rasterize_to_pixels_eval3d, s.means, s.quats, s.scales, colors, s.opacities, *rest
    )
    refused("flatten_ids holds an index outside", blended, s, colors, offsets, ids + 100)
    refused("rays must have shape", blended, s, colors, offsets, ids, rays=torch.rand(3, 6))
    gaussians = s.means, s.quats, s.scales, s.opacities
    camera = s.viewmats, s.Ks, s.width, s.height
    project = gsplat.fully_fused_projection_with_ut
    refused(
        "ortho camera model does not support radial_coeffs, tangential_coeffs, or thin_prism_coeffs parameters",
        project,
        *gaussians,
        *camera,
        camera_model="ortho",
        radial_coeffs=torch.zeros(2, 6),
    )
    with pytest.raises(RuntimeError, match="alpha must be positive and kappa more than -3"):
        UnscentedTransformParameters(kappa=-4.0)
    refused("ftheta_coeffs and camera_model='ftheta' belong together", project, *gaussians, *camera, camera_model="ftheta")
    refused(r"scales has shape \[49, 3\]", project, s.means, s.quats, s.scales[1:], None, *camera)
    refused("quats is None", project, s.means, None, s.scales, None, *camera)


def test_rolling_shutters_by_position() -> None:
    """1.5.3 has no lidars and windshields before them."""
    s = scene()
    arguments = (
        s.means,
        s.quats,
        s.scales,
        s.opacities,
        s.viewmats,
        s.Ks,
        s.width,
        s.height,
        0.3,
        0.01,
        1e10,
        0.0,
        False,
        "pinhole",
    )
    shutter = RollingShutterType.ROLLING_LEFT_TO_RIGHT, s.viewmats + 0.01
    older = gsplat.fully_fused_projection_with_ut(*arguments, *[None] * 5, *shutter)
    gsplat.use("1.6")
    try:
        newer = gsplat.fully_fused_projection_with_ut(
            *arguments, UnscentedTransformParameters(require_all_sigma_points_valid=True), *[None] * 6, *shutter
        )
    finally:
        gsplat.use("1.5.3")
    assert torch.equal(older[1], newer[1]) and older[1].any()


@pytest.mark.parametrize(
    ("axis", "whole_rows", "continuous"),
    [(0, (18 + 10 * 10 / 23, 10.3), (18 + 10 * 9.8 / 23, 10.3)), (1, (18, 10.3 + 10 * 17 / 23), (18, 10.3 + 10 * 17.338 / 23))],
)
@pytest.mark.parametrize("version", ["1.5.3", "1.6"])
def test_rolling_shutters_read_whole_rows(
    axis: int, whole_rows: tuple[float, float], continuous: tuple[float, float], version: str
) -> None:
    """A point that moves ten pixels sideways while rows are read is seen in row 10, after 10/23 of its way; one that moves
    down, in row 17. `splat_py.rasterization` sees it at its own height, 10.3 or 17.84."""
    gaussians = torch.tensor([[0.0, -0.17, 2.0]]), torch.tensor([[1.0, 0, 0, 0]]), torch.full((1, 3), 1e-2), torch.ones(1)
    viewmats, Ks = torch.eye(4)[None], torch.tensor([[[20.0, 0, 18], [0, 20, 12], [0, 0, 1]]])
    last = viewmats.clone()
    last[0, axis, 3] = 1.0
    moving: dict[str, Any] = {"rolling_shutter": RollingShutterType.ROLLING_TOP_TO_BOTTOM, "viewmats_rs": last}
    colors, size = torch.ones(1, 3), (36, 24)
    gsplat.use(version)
    try:
        _, projected, *_ = gsplat.fully_fused_projection_with_ut(*gaussians, viewmats, Ks, *size, **moving)
        moving["packed"], moving["with_ut"] = False, True
        rendered = gsplat.rasterization(*gaussians, colors, viewmats, Ks, *size, **moving)[2]["means2d"]
    finally:
        gsplat.use("1.5.3")
    ours = splat_py.rasterization(*gaussians, colors, viewmats, Ks, *size, **moving)[2]["means2d"]
    for found, expected in ((projected, whole_rows), (rendered, whole_rows), (ours, continuous)):
        torch.testing.assert_close(found, torch.tensor([[expected]]), rtol=0, atol=2e-3)
