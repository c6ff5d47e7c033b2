"""Gaussians evaluated along rays (`with_eval3d`): whole renders against float64, and options that it refuses."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from splat_py import rasterization, shaders
from splat_py.gsplat import RollingShutterType
from tests.render.comparison import close, compare
from tests.render.ray_rendering import along, beside_rays, hits, of_pixels, render
from tests.render.test_camera_models import scene_of, with_lenses
from tests.render.test_cameras import DOUBLE_SPHERE, FAR, FAR_REFERENCE, camera_of, double_sphere, moving
from tests.render.test_errors import sentence_of
from tests.render.torch_cameras import SHUTTERS, between, project_unscented

WIDTH, HEIGHT, N, CAMERAS = 24, 18, 20, 2


def of_scene(inputs: dict[str, Tensor], **options: Any) -> Any:
    return rasterization(**inputs, width=WIDTH, height=HEIGHT, with_eval3d=True, **options)


@pytest.mark.parametrize("packed", [False, True])
def test_against_float64(packed: bool) -> None:
    """One Gaussian reaches behind the camera, one nearly fills the image, others are far outside it."""
    inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=101)
    with torch.no_grad():
        inputs["means"][0] = torch.tensor([0.8, 0.3, 0.6])
        inputs["scales"][0] = torch.tensor([0.5, 0.3, 0.4])
        inputs["scales"][1] *= 6
    twins = {name: tensor.detach().double().requires_grad_() for name, tensor in inputs.items()}
    gaussians = [twins[name] for name in ("means", "quats", "scales", "opacities", "colors")]
    cameras = zip(twins["viewmats"], twins["Ks"], twins["backgrounds"], strict=True)
    expected = [
        render(*gaussians, viewmat, K, WIDTH, HEIGHT, sigmas=beside_rays, background=background)
        for viewmat, K, background in cameras
    ]
    images, alphas, meta = of_scene(inputs, packed=packed, tile_size=16)
    meta["means2d"].retain_grad()
    compare({"image": images, "alpha": alphas}, expected, inputs, twins)
    assert meta["means2d"].grad.any() and "conics" not in meta


def slope_rays(camera_model: str, slopes: Tensor) -> Tensor:
    """Directions [..., 3] of a camera without a lens, from slopes [..., 2] = (pixel - principal point) / focal length."""
    if camera_model == "equirectangular":
        x, y = slopes.unbind(-1)
        return torch.stack([x.sin() * y.cos(), y.sin(), x.cos() * y.cos()], -1)
    angle = slopes.norm(dim=-1, keepdim=True)
    bent = slopes * torch.sinc(angle / torch.pi) if camera_model == "fisheye" else slopes
    return torch.cat([bent, angle.cos() if camera_model == "fisheye" else torch.ones_like(angle)], -1)


def rays_of(
    twins: dict[str, Tensor], c: int, camera_model: str, shutter: str | None, own: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Origins and directions [H, W, 3] of the rays of the reference, and the depths [N] of its means."""
    still = camera_of(twins, c, camera_model, own=own)
    eye = twins | {"viewmats": torch.eye(4).double().expand(CAMERAS, 4, 4)}
    static = camera_of(eye, c, camera_model, own=own)
    focal, principal = twins["Ks"][c, [0, 1], [0, 1]], twins["Ks"][c, :2, 2]

    def start(pixels: Tensor) -> Tensor:
        return slope_rays(camera_model, (pixels - principal) / focal)

    if camera_model == "ortho":
        y, x = torch.meshgrid(torch.arange(HEIGHT) + 0.5, torch.arange(WIDTH) + 0.5, indexing="ij")
        origins = torch.nn.functional.pad((torch.stack([x, y], -1) - principal) / focal, (0, 1))
        directions = torch.tensor([0.0, 0, 1]).double().expand_as(origins)
    else:
        directions = of_pixels(lambda t: static(t)[0], WIDTH, HEIGHT, start)
        origins = torch.zeros_like(directions)
    points = torch.stack([still(p)[1] for p in twins["means"]])
    if shutter is not None:
        first, last = twins["viewmats"][c], twins["viewmats_rs"][c]
        points = torch.stack([camera_of(twins, c, camera_model, shutter, own)(p)[1] for p in twins["means"]])
        axis, backwards = SHUTTERS[shutter]
        size = (WIDTH, HEIGHT)[axis]
        times = torch.arange(size).double() / (size - 1)
        poses = [between(first, last)(time) for time in (times.flip(0) if backwards else times)]
        turns, moves = (torch.stack(parts) for parts in zip(*poses, strict=True))
        turns = first[:3, :3] @ turns.mT
        to_first = "xij,hxj->hxi" if axis == 0 else "hij,hxj->hxi"
        origins = torch.einsum(to_first, turns, origins - (moves if axis == 0 else moves[:, None])) + first[:3, 3]
        directions = torch.einsum(to_first, turns, directions)
    return origins, directions, points.norm(dim=-1) if camera_model == "equirectangular" else points[:, 2]


@pytest.mark.parametrize("tile_size", [4])
@pytest.mark.parametrize(
    ("camera_model", "lens", "shutter"),
    [
        ("pinhole", True, None),
        ("fisheye", False, None),
        ("fisheye", True, None),
        ("ortho", False, None),
        ("equirectangular", False, None),
        ("own", False, None),
        ("pinhole", False, "ROLLING_TOP_TO_BOTTOM"),
        ("fisheye", True, "ROLLING_RIGHT_TO_LEFT"),
        ("ortho", False, "ROLLING_BOTTOM_TO_TOP"),
    ],
)
def test_any_camera_against_float64(camera_model: str, lens: bool, shutter: str | None, tile_size: int) -> None:
    """Poses, intrinsics, lenses and shutters have gradients; some Gaussians are large, and one is near the camera."""
    like = "pinhole" if camera_model == "own" else camera_model
    inputs = scene_of(like, WIDTH, HEIGHT, seed=108)
    with torch.no_grad():
        inputs["scales"][1] *= 3
        if camera_model != "ortho":
            inputs["means"][2] *= 0.2
            inputs["scales"][2] *= 0.4
    inputs = with_lenses(inputs, like) if lens else inputs
    options: dict[str, Any] = {"camera_model": camera_model, "packed": lens, "tile_size": tile_size}
    own = None
    if camera_model == "own":
        own = double_sphere
        options["camera_model"] = shaders.source(DOUBLE_SPHERE.replace("return t.x > 0.0", "return t.z > 0.0"))
        inputs["camera_params"] = torch.tensor([[0.1, 0.55], [-0.05, 0.6]], requires_grad=True)
    if shutter is not None:
        inputs, options["rolling_shutter"] = moving(inputs, 94), RollingShutterType[shutter]
    twins = {name: tensor.detach().double().requires_grad_() for name, tensor in inputs.items()}
    gaussians = [twins[name] for name in ("means", "quats", "scales", "opacities", "colors")]
    expected = []
    for c, viewmat in enumerate(twins["viewmats"]):
        origins, directions, depths = rays_of(twins, c, like, shutter, own)
        how: dict[str, Any] = {"sigmas": along(origins, directions), "background": twins["backgrounds"][c], "depths": depths}
        expected.append(render(*gaussians, viewmat, twins["Ks"][c], WIDTH, HEIGHT, **how))
    images, alphas, _ = of_scene(inputs, **options)
    compare({"image": images, "alpha": alphas}, expected, inputs, twins, looser=10 if lens and shutter else 1)


@pytest.mark.parametrize(("camera_model", "focal"), [("equirectangular", 32 / torch.pi), ("fisheye", 12.0)])
def test_no_pixel_is_lost(camera_model: str, focal: float) -> None:
    """Large Gaussians all around a camera, or before a fisheye: the same alphas as with the same rays given by the caller, for
    which nothing bounds a Gaussian."""
    scenes, width, height = 400, 64, 32
    random = torch.Generator().manual_seed(1)
    directions = torch.nn.functional.normalize(torch.randn(scenes, 1, 3, generator=random), dim=-1)
    if camera_model == "fisheye":
        directions[..., 2].abs_()
    distances = 0.3 + 2 * torch.rand(scenes, 1, 1, generator=random)
    scales = distances * (4 * torch.rand(scenes, 1, 3, generator=random) - 4).exp()
    quats, opacities = torch.randn(scenes, 1, 4, generator=random), torch.full((scenes, 1), 0.9)
    K = torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])
    gaussians = directions * distances, quats, scales, opacities, torch.ones(scenes, 1, 3)
    cameras = torch.eye(4).expand(scenes, 1, 4, 4), K.expand(scenes, 1, 3, 3)
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    slopes = (torch.stack([x, y], -1).double() - K[:2, 2]) / focal
    rays = torch.nn.functional.pad(slope_rays(camera_model, slopes), (3, 0)).float().expand(scenes, 1, height, width, 6)
    how: dict[str, Any] = {"camera_model": camera_model, "with_eval3d": True, "tile_size": 4}
    alphas, expected = (rasterization(*gaussians, *cameras, width, height, **how, **own)[1] for own in ({}, {"rays": rays}))
    assert (expected.amax((1, 2, 3)) > 0.1).float().mean() > 0.8
    torch.testing.assert_close(alphas, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("lens", "side"), [(False, 16), (False, 4), (True, 4)])
def test_sigma_points_bound_them(lens: bool, side: int) -> None:
    """As in gsplat, with `with_ut` a Gaussian is seen in the tiles that its unscented transform overlaps, and only if a sigma
    point lies on the image."""
    inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=116)
    with torch.no_grad():
        inputs["means"][1] = torch.tensor([-3.0, 0.4, 2.5])
        inputs["scales"][1] = torch.tensor([3.5, 0.5, 0.5])
        inputs["quats"][1], inputs["opacities"][1] = torch.tensor([1.0, 0, 0, 0]), 0.9
    inputs = with_lenses(inputs, "pinhole") if lens else inputs
    twins = {name: tensor.detach().double().requires_grad_() for name, tensor in inputs.items()}
    gaussians = [twins[name] for name in ("means", "quats", "scales", "opacities", "colors")]
    expected = []
    for c, viewmat in enumerate(twins["viewmats"]):
        with torch.no_grad():
            points = project_unscented(camera_of(twins, c, "pinhole"), *gaussians[:3], WIDTH, HEIGHT, **FAR_REFERENCE)
            blurred = points.sharp + 0.3 * torch.eye(2)
            opacities = gaussians[3] * (points.sharp.det() / blurred.det()).sqrt()
            reach = (2 * (255 * opacities).log().clamp(min=0)).sqrt()[:, None] * blurred.diagonal(dim1=1, dim2=2).sqrt()
            low, high = ((points.means2d + sign * reach.ceil()) / side for sign in (-1, 1))
            assert torch.cat([low, high, reach]).sub(0.5).frac().abs().sub(0.5).abs().min() > 1e-4, "a bound is undecided"
            y, x = torch.meshgrid(torch.arange(HEIGHT) // side, torch.arange(WIDTH) // side, indexing="ij")
            tiles = torch.stack([x, y], -1)[:, :, None]
            listed = ((tiles >= low.floor()) & (tiles < high.ceil())).all(-1) & points.visible & (255 * opacities >= 1)
        assert not listed[..., 1].any()
        origins, directions, depths = rays_of(twins, c, "pinhole", None, None)
        beside = along(origins, directions)

        def sigmas(*scene: Tensor, beside: Any = beside, listed: Tensor = listed) -> tuple[Tensor, Tensor]:
            sigma, undecided = beside(*scene)
            return torch.where(listed, sigma, 1e9), undecided

        how: dict[str, Any] = {"sigmas": sigmas, "background": twins["backgrounds"][c], "depths": depths}
        expected.append(render(*gaussians, viewmat, twins["Ks"][c], WIDTH, HEIGHT, **how))
    images, alphas, _ = of_scene(inputs, packed=lens, tile_size=side, with_ut=True, ut_params=FAR)
    assert (images - of_scene(inputs)[0]).abs().max() > 0.01
    compare({"image": images, "alpha": alphas}, expected, inputs, twins)


def test_rays_of_ones_own() -> None:
    """They begin at several points, have any length, and gradients; one pixel has none."""
    width, height = 16, 12
    inputs = scene_of("pinhole", width, height, seed=108)
    random = torch.Generator().manual_seed(5)
    pixels = torch.rand(CAMERAS, height, width, 2, generator=random) - 0.5
    directions = torch.cat([pixels, torch.ones_like(pixels[..., :1])], -1) * (0.5 + pixels[..., :1].abs())
    directions[0, 0, 0] = 0
    with torch.no_grad():
        # The camera sees all Gaussians.
        inputs["Ks"][:, [0, 1], [0, 1]] *= 0.3
        turns, moves = inputs["viewmats"][:, None, :3, :3], inputs["viewmats"][:, None, None, :3, 3]
        rays = [0.1 * torch.randn(directions.shape, generator=random) - moves, directions]
    inputs["rays"] = torch.cat([part @ turns for part in rays], -1).detach().requires_grad_()
    # Their gradients are zero, but for rounding.
    cameras = {name: inputs.pop(name).detach() for name in ("viewmats", "Ks")}
    twins = {name: tensor.detach().double().requires_grad_() for name, tensor in inputs.items()}
    gaussians = [twins[name] for name in ("means", "quats", "scales", "opacities", "colors")]
    expected = []
    for c, viewmat in enumerate(cameras["viewmats"].double()):
        origins, directions = (part @ viewmat[:3, :3].mT for part in twins["rays"][c].split(3, -1))
        sigmas = along(origins + viewmat[:3, 3], directions)
        how: dict[str, Any] = {"sigmas": sigmas, "background": twins["backgrounds"][c]}
        expected.append(render(*gaussians, viewmat, cameras["Ks"][c].double(), width, height, **how))
    images, alphas, _ = rasterization(**inputs, **cameras, width=width, height=height, with_eval3d=True)
    compare({"image": images, "alpha": alphas}, expected, inputs, twins)


@pytest.mark.parametrize(
    ("camera_model", "mode", "shutter", "channels"),
    [("pinhole", "RGB-d", None, 3), ("fisheye", "RGB-Ed", "ROLLING_TOP_TO_BOTTOM", 31), ("ortho", "d", None, 0)],
)
def test_hits_against_float64(camera_model: str, mode: str, shutter: str | None, channels: int) -> None:
    """Normals and distances along rays, also where colours take a pass of their own, and with a Gaussian around the camera."""
    inputs = scene_of(camera_model, WIDTH, HEIGHT, seed=110)
    with torch.no_grad():
        inputs["means"][2] = torch.tensor([0.1, 0.0, 0.5])
        inputs["scales"][2] = torch.tensor([0.5, 0.9, 0.6])
    inputs["colors"] = torch.rand(N, channels, generator=torch.Generator().manual_seed(2)).requires_grad_()
    inputs["backgrounds"] = torch.rand(CAMERAS, channels, generator=torch.Generator().manual_seed(3)).requires_grad_()
    options: dict[str, Any] = {"camera_model": camera_model, "render_mode": mode, "packed": shutter is None}
    if shutter is not None:
        inputs, options["rolling_shutter"] = moving(inputs, 94), RollingShutterType[shutter]
    if channels == 0:
        del inputs["backgrounds"]
    twins = {name: tensor.detach().double().requires_grad_() for name, tensor in inputs.items()}
    gaussians = [twins[name] for name in ("means", "quats", "scales", "opacities", "colors")]
    expected = []
    for c, viewmat in enumerate(twins["viewmats"]):
        origins, directions, depths = rays_of(twins, c, camera_model, shutter, None)
        how: dict[str, Any] = {"sigmas": along(origins, directions), "hits": hits(origins, directions), "depths": depths}
        how["background"] = twins["backgrounds"][c] if channels else None
        one = render(*gaussians, viewmat, twins["Ks"][c], WIDTH, HEIGHT, **how)
        if "E" in mode:
            image = torch.cat([one.image[..., :-1], one.image[..., -1:] / one.alpha.clamp(min=1e-10)], -1)
            one = replace(one, image=image, untrusted=one.untrusted | (one.alpha[..., 0] < 0.02))
        expected.append(one)
    if channels == 0:
        del inputs["colors"]
    images, alphas, meta = of_scene({"colors": None} | inputs, return_normals=True, **options)
    compare({"image": images, "alpha": alphas, "normals": meta["normals"]}, expected, inputs, twins, looser=5)


def test_hits_beside_signals_and_depth() -> None:
    inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=111)
    signals = torch.rand(N, 2, generator=torch.Generator().manual_seed(4))
    plain, _, meta = of_scene(inputs, camera_model="fisheye", render_mode="RGB+ED", extra_signals=signals)
    images, _, found = of_scene(
        inputs, camera_model="fisheye", render_mode="RGB+ED", extra_signals=signals, return_normals=True
    )
    torch.testing.assert_close(images, plain)
    torch.testing.assert_close(found["render_extra_signals"], meta["render_extra_signals"])
    assert found["normals"].shape == (CAMERAS, HEIGHT, WIDTH, 3) and "normals" not in meta
    images, *_ = of_scene(inputs, camera_model="fisheye", return_normals=True)
    assert images.is_contiguous()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("with_eval3d", [False, True])
def test_order_by_distance(with_eval3d: bool, packed: bool) -> None:
    """Depths are distances; a Gaussian that is not finite has no gradient."""
    inputs = scene_of("fisheye", WIDTH, HEIGHT, seed=112)
    with torch.no_grad():
        inputs["means"][3] = torch.nan
    options: dict[str, Any] = {"camera_model": "fisheye", "render_mode": "RGB+D", "packed": packed, "with_eval3d": with_eval3d}
    images, _, meta = rasterization(**inputs, width=WIDTH, height=HEIGHT, global_z_order=False, **options)
    z, _, other = rasterization(**inputs, width=WIDTH, height=HEIGHT, **options)
    points = inputs["means"] @ inputs["viewmats"][:, :3, :3].mT + inputs["viewmats"][:, None, :3, 3]
    drawn = other["depths"] > 0
    expected = points[meta["camera_ids"].long(), meta["gaussian_ids"].long()] if packed else points
    torch.testing.assert_close(meta["depths"][drawn], expected[drawn].norm(dim=-1))
    assert not meta["depths"][~drawn].any() and (images - z).abs().max() > 0.1
    images.square().sum().backward()
    assert all(torch.isfinite(tensor.grad).all() for tensor in inputs.values() if tensor.grad is not None)
    assert not inputs["means"].grad[3].any()


def test_far_away_it_is_the_projection() -> None:
    inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=102)
    with torch.no_grad():
        inputs["scales"] *= 0.3
        inputs["means"] *= 40
        inputs["scales"] *= 40
        inputs["Ks"][:, [0, 1], [0, 1]] *= 40
        inputs["means"][:, :2] /= 40
        inputs["viewmats"][:] = torch.eye(4)
    projected, _, _ = rasterization(**inputs, width=WIDTH, height=HEIGHT, eps2d=0.0)
    torch.testing.assert_close(of_scene(inputs)[0], projected, rtol=0, atol=0.02)


@pytest.mark.parametrize("camera_model", ["pinhole", "fisheye"])
@pytest.mark.parametrize("packed", [False, True])
def test_without_gradients_of_cameras(packed: bool, camera_model: str) -> None:
    results = []
    for of_cameras in (True, False):
        inputs = scene_of(camera_model, WIDTH, HEIGHT, seed=103)
        for name in ("viewmats", "Ks"):
            inputs[name] = inputs[name].detach().requires_grad_(of_cameras)
        images, _, _ = of_scene(inputs, packed=packed, tile_size=16, camera_model=camera_model)
        leaves = [inputs[name] for name in ("means", "quats", "scales", "opacities", "colors")]
        results.append([images, *torch.autograd.grad(images.square().sum(), leaves)])
    for one, other in zip(*results, strict=True):
        close(one, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"covars": torch.eye(3).expand(N, 3, 3)}, "does not support covars"),
        ({"rasterize_mode": "antialiased"}, "does not support rasterize_mode='antialiased'"),
        ({"splat": "Surfel"}, "does not support splat='Surfel'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_it_is_not_combined_with(options: dict[str, Any], message: str) -> None:
    with pytest.raises(NotImplementedError, match=message) as error:
        of_scene(scene_of("pinhole", WIDTH, HEIGHT, seed=104), **options)
    sentence_of(error)
