"""`rasterization` against the float64 reference: images, alphas and the gradient of every input."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tests.reference as ref
from splat_py.gpu.device import get_device, tuning_of
from splat_py.render.rasterization import rasterization
from tests.reference.arrays import Array
from tests.render import test_packed as packed
from tests.render.comparison import GAUSSIAN_INPUTS, Case, camera_of, check, close, crowded, leaves_of, rounded, scene_of

WIDTH, HEIGHT = 53, 37
TILE_SIZES = (4, 8, 16)


@pytest.mark.parametrize("tile_size", TILE_SIZES)
@pytest.mark.parametrize("degree", range(5))
def test_spherical_harmonics(degree: int, tile_size: int) -> None:
    rng = np.random.default_rng(10 * degree + tile_size)
    case = Case(
        scene_of(rng, 60, sh_degree=degree),
        [camera_of(rng, WIDTH, HEIGHT)],
        rounded(rng.uniform(size=(1, 3))),
        options={"tile_size": tile_size},
    )
    check(case, rng)


def test_coefficients_beyond_the_degree_are_not_used() -> None:
    rng = np.random.default_rng(1)
    scene = replace(scene_of(rng, 40, sh_degree=3), sh_degree=1)
    check(Case(scene, [camera_of(rng, WIDTH, HEIGHT)]), rng)


@pytest.mark.parametrize("channels", [1, 3, 5, 40])
@pytest.mark.parametrize("per_camera", [False, True])
def test_plain_colors(channels: int, per_camera: bool) -> None:
    """40 channels take several passes over the same lists."""
    rng = np.random.default_rng(channels)
    cameras = [camera_of(rng, WIDTH, HEIGHT) for _ in range(2)]
    case = Case(
        scene_of(rng, 40, channels=channels),
        cameras,
        rounded(rng.uniform(size=(2, channels))),
        rounded(rng.uniform(size=(2, 40, channels))) if per_camera else None,
    )
    check(case, rng)


@pytest.mark.parametrize("mode", ["RGB", "D", "ED", "RGB+D", "RGB+ED"])
@pytest.mark.parametrize("rasterize_mode", ["classic", "antialiased"])
@pytest.mark.parametrize("with_background", [False, True])
def test_render_modes(mode: str, rasterize_mode: str, with_background: bool) -> None:
    rng = np.random.default_rng(3)
    scene = scene_of(rng, 60, sh_degree=2)
    if rasterize_mode == "antialiased":
        # Some are much smaller than a pixel, so the compensation is far from one.
        scales = scene.scales.copy()
        scales[::3] *= 0.1
        scene = replace(scene, scales=rounded(scales))
    case = Case(
        scene,
        [camera_of(rng, WIDTH, HEIGHT)],
        rounded(rng.uniform(size=(1, 3))) if with_background else None,
        options={"render_mode": mode, "rasterize_mode": rasterize_mode},
    )
    check(case, rng)


@pytest.mark.parametrize("rasterize_mode", ["classic", "antialiased"])
def test_beyond_the_clamp_of_the_field_of_view(rasterize_mode: str) -> None:
    """Most Gaussians are beyond the clamp, whose limits depend on Ks: in one axis, the other, or both, on all four sides."""
    rng = np.random.default_rng(19)
    camera = replace(camera_of(rng, WIDTH, HEIGHT), viewmat=np.eye(4))
    sides = [[0.8, 0.1], [-0.8, -0.1], [0.1, 0.7], [-0.1, -0.7], [0.8, 0.7], [-0.8, -0.7], [0.1, 0.1], [-0.1, 0.2]]
    slopes = np.tile(sides, (3, 1))
    depths = np.linspace(3, 5, 24)
    means = np.concatenate([slopes * depths[:, None], depths[:, None]], axis=1)
    # Large enough to cover much of the image.
    scene = replace(scene_of(rng, 24), means=rounded(means), scales=rounded(rng.uniform(0.8, 2.0, (24, 3))))
    low, high = ref.frustum_limits(camera.K, WIDTH, HEIGHT).T
    clamped = (slopes < low) | (slopes > high)
    assert clamped.any(axis=1).sum() == 18 and clamped.all(axis=1).sum() == 6
    check(Case(scene, [camera], options={"rasterize_mode": rasterize_mode}), rng)


def test_batch_dimensions_are_scenes_side_by_side() -> None:
    inputs = packed.inputs_of((3, 2), colors=(4, 3))
    cameras = inputs["viewmats"].shape[:3]
    inputs["backgrounds"] = torch.rand(*cameras, 3, requires_grad=True)
    size: dict[str, Any] = {"width": packed.WIDTH, "height": packed.HEIGHT, "sh_degree": 1}
    images, alphas, meta = rasterization(**inputs, **size)
    assert images.shape == (*cameras, packed.HEIGHT, packed.WIDTH, 3) and alphas.shape == (*images.shape[:-1], 1)
    assert meta["n_batches"] == 6 and meta["means2d"].shape == (len(meta["gaussian_ids"]), 2)
    weights = torch.rand(images.shape)
    gradients = torch.autograd.grad((images * weights).sum(), list(inputs.values()))
    for scene in np.ndindex(3, 2):
        one = {name: tensor[scene].detach().requires_grad_() for name, tensor in inputs.items()}
        image, alpha, _ = rasterization(**one, **size)
        torch.testing.assert_close(images[scene], image, rtol=0, atol=0)
        torch.testing.assert_close(alphas[scene], alpha, rtol=0, atol=0)
        alone = torch.autograd.grad((image * weights[scene]).sum(), list(one.values()))
        for gradient, expected in zip(gradients, alone, strict=True):
            close(gradient[scene], expected, rtol=1e-5)


@pytest.mark.parametrize("tile_size", TILE_SIZES)
def test_crowded_tile_that_is_soon_opaque(tile_size: int) -> None:
    """1,000 Gaussians over a few pixels: most pixels stop long before their list ends."""
    rng = np.random.default_rng(7)
    scene, camera = crowded(rng), camera_of(rng, 16, 16)
    options = {"tile_size": tile_size, "absgrad": True}
    case = Case(scene, [camera], rounded(rng.uniform(size=(1, 3))), options=options)
    render = ref.render(scene, camera)
    # The last blended splat is far from the end of the list, and T ended just above its floor.
    assert (render.rasterized.T_final < 2e-3).mean() > 0.5 and np.median(render.rasterized.n_contrib) < 200
    check(case, rng)


@pytest.mark.parametrize("tile_size", TILE_SIZES)
def test_long_lists_of_faint_splats(tile_size: int) -> None:
    """Every pixel blends hundreds of splats, none of which hides the rest: many wave-sized parts of a list."""
    rng = np.random.default_rng(8)
    scene = scene_of(rng, 300)
    means = rng.uniform(-0.3, 0.3, (300, 3))
    means[:, 2] = rng.permutation(np.linspace(3, 5, 300))  # far enough apart that rounding does not swap them at every pixel
    scene = replace(
        scene,
        means=rounded(means),
        scales=rounded(rng.uniform(2.0, 4.0, (300, 3))),
        opacities=rounded(rng.uniform(0.008, 0.03, 300)),
    )
    camera = camera_of(rng, 19, 13)
    assert ref.render(scene, camera).rasterized.n_blended.min() > 200
    # Each pixel has so many splats that one is always near a threshold; but they are smooth, and the image small.
    background = rounded(rng.uniform(size=(1, 3)))
    check(Case(scene, [camera], background, margin=1e-5, options={"tile_size": tile_size}), rng)


@pytest.mark.parametrize("tile_size", TILE_SIZES)
@pytest.mark.parametrize("size", [(37, 53), (1, 1), (2, 17), (64, 3)], ids=str)
def test_sides_that_tiles_do_not_divide(size: tuple[int, int], tile_size: int) -> None:
    rng = np.random.default_rng(sum(size))
    scene = scene_of(rng, 30)
    if size == (1, 1):
        # A focal length of about a pixel shrinks the scene to specks: move them before the one pixel, and enlarge them.
        scene = replace(scene, means=scene.means * [0.2, 0.2, 1], scales=scene.scales * 4)
    check(Case(scene, [camera_of(rng, *size)], options={"tile_size": tile_size}), rng)


ONE = [*({"tile_size": size} for size in TILE_SIZES), {"packed": True}, {"accumulate": "pair"}]


@pytest.mark.parametrize("options", ONE, ids=str)
def test_one_gaussian(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(9)
    scene = scene_of(rng, 1, sh_degree=3)
    scene = replace(scene, means=rounded(np.array([[0.1, -0.2, 3.0]])))
    check(Case(scene, [camera_of(rng, WIDTH, HEIGHT)], options=options), rng)


@pytest.mark.parametrize("tile_size", TILE_SIZES)
@pytest.mark.parametrize("mode", ["RGB", "RGB+ED"])
def test_no_gaussians_leave_the_background(mode: str, tile_size: int) -> None:
    rng = np.random.default_rng(11)
    cameras = [camera_of(rng, WIDTH, HEIGHT) for _ in range(2)]
    # Render a scene first: reused memory must not show through.
    check(Case(scene_of(rng, 60), cameras, options={"tile_size": tile_size}), rng)
    inputs: dict[str, Any] = leaves_of(scene_of(rng, 0, sh_degree=1), cameras)
    backgrounds = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], requires_grad=True)
    options: dict[str, Any] = {"sh_degree": 1, "render_mode": mode, "tile_size": tile_size}
    images, alphas, meta = rasterization(**inputs, width=WIDTH, height=HEIGHT, backgrounds=backgrounds, **options)
    assert not alphas.any() and len(meta["flatten_ids"]) == 0 and not meta["isect_offsets"].any()
    torch.testing.assert_close(images[..., :3].detach(), backgrounds.detach()[:, None, None].expand(2, HEIGHT, WIDTH, 3))
    assert not images[..., 3:].any()
    images.sum().backward()
    torch.testing.assert_close(backgrounds.grad, torch.full((2, 3), float(WIDTH * HEIGHT)))
    for tensor in inputs.values():
        assert tensor.grad is not None and not tensor.grad.any()


@pytest.mark.parametrize("count", [2047, 2048, 2049, 4096])
def test_counts_around_the_blocks_of_the_prefix_sum(count: int) -> None:
    """No splat is lost, and transparent copies of the splats behind them change nothing."""
    rng = np.random.default_rng(12)
    scene = scene_of(rng, 40)
    padded = ref.Scene(*(getattr(scene, name)[np.arange(count) % 40] for name in GAUSSIAN_INPUTS))
    padded.opacities[40:] = 0.0
    camera = camera_of(rng, WIDTH, HEIGHT)
    images = [_rasterize(s, camera)[0].detach() for s in (scene, padded)]
    assert images[0].mean() > 0.1
    torch.testing.assert_close(*images, rtol=0, atol=0)


def test_planes_and_radius_clip_cull() -> None:
    rng = np.random.default_rng(14)
    scene, camera = scene_of(rng, 40), ref.Camera(np.eye(4), camera_of(rng, WIDTH, HEIGHT).K, WIDTH, HEIGHT)
    depths = scene.means[:, 2]
    everything = _radii(scene, camera)
    seen = everything.any(-1)
    clipped = _radii(scene, camera, near_plane=3.5, far_plane=4.5)
    np.testing.assert_array_equal(clipped.any(-1), seen & (depths >= 3.5) & (depths <= 4.5))
    # A Gaussian exactly at a plane is seen.
    near, far = map(float, np.sort(depths[seen])[[5, -5]])
    at_planes = _radii(scene, camera, near_plane=near, far_plane=far)
    np.testing.assert_array_equal(at_planes.any(-1), seen & (depths >= near) & (depths <= far))
    large = _radii(scene, camera, radius_clip=6.0)
    # radii are rounded up: 6 pixels may be 5.1, which is clipped, or exactly 6.
    np.testing.assert_array_equal(large.any(-1)[everything.max(-1) != 6], (everything.max(-1) > 6)[everything.max(-1) != 6])


@pytest.mark.parametrize("tile_size", TILE_SIZES)
def test_splats_that_cover_everything(tile_size: int) -> None:
    rng = np.random.default_rng(15)
    scene = scene_of(rng, 12)
    scene = replace(
        scene,
        means=rounded(rng.uniform(-1, 1, (12, 3)) * [3, 3, 0.5] + [0, 0, 4]),
        scales=rounded(rng.uniform(3, 30, (12, 3)) * [1, 1, 0.02]),
        quats=rounded(np.concatenate([np.ones((12, 1)), 0.02 * rng.normal(size=(12, 3))], -1)),
        opacities=rounded(rng.uniform(0.1, 0.6, 12)),
    )
    camera = camera_of(rng, WIDTH, HEIGHT)
    assert (ref.render(scene, camera).rasterized.n_blended == 12).all()
    check(Case(scene, [camera], options={"tile_size": tile_size}), rng)


@pytest.mark.parametrize("tile_size", TILE_SIZES)
def test_needles(tile_size: int) -> None:
    """Eighty times as long as wide, at all angles: none of their pixels may be lost between tiles."""
    rng = np.random.default_rng(17)
    scene = scene_of(rng, 25)
    angles = rng.uniform(0, np.pi, 25)
    zero = np.zeros(25)
    scene = replace(
        scene,
        scales=rounded(np.tile([[0.8, 0.01, 0.01]], (25, 1))),
        quats=rounded(np.stack([np.cos(angles / 2), zero, zero, np.sin(angles / 2)], -1)),
    )
    # σ and its rounding errors grow fast across a needle, so more pixels than usual are near a threshold. Gradients of scales
    # take 0.3 to 1.1 of the usual tolerance, as the order of sums decides.
    check(Case(scene, [camera_of(rng, WIDTH, HEIGHT)], margin=1e-3, looser=1.2, options={"tile_size": tile_size}), rng)


def test_a_render_can_be_an_input() -> None:
    """Outputs share memory with the device; a slice that is used again must not be taken for the whole."""
    rng = np.random.default_rng(17)
    scene, camera = scene_of(rng, 40), camera_of(rng, WIDTH, HEIGHT)
    image = _rasterize(scene, camera)[0].detach().clone()
    out = _rasterize(scene, camera)[0].detach()
    torch.testing.assert_close(out, image, rtol=0, atol=0)
    part, copy = out.reshape(-1, 3)[:40], image.reshape(-1, 3)[:40]
    view = np.eye(4)
    view[2, 3] = 4.0
    renders = [_rasterize(scene, replace(camera, viewmat=view), means=points)[0] for points in (part, copy)]
    assert renders[1].any()
    torch.testing.assert_close(*renders, rtol=0, atol=0)


def _rasterize(scene: ref.Scene, camera: ref.Camera, **options: Any) -> Any:
    inputs = leaves_of(scene, [camera]) | options
    return rasterization(**inputs, width=camera.width, height=camera.height, packed=False)


def _radii(scene: ref.Scene, camera: ref.Camera, **options: float) -> Array:
    return _rasterize(scene, camera, **options)[2]["radii"][0].numpy().copy()


@pytest.mark.parametrize("backend", ["metal", "cuda", "vulkan"])
def test_tuned_as_for_a_gpu(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other kernels than in software: pixels a thread, digits of the sort, and segments."""
    monkeypatch.setattr(get_device(), "tuning", tuning_of(backend))
    rng = np.random.default_rng(12)
    cameras = [camera_of(rng, 37, 29) for _ in range(2)]
    check(Case(scene_of(rng, 150, sh_degree=1), cameras, rounded(rng.uniform(size=(2, 3)))), rng)


def test_the_renderer_imports_nothing_of_scenes() -> None:
    """Reading scenes takes libraries that take half a second to import."""
    code = "import sys, splat_py; splat_py.rasterization, splat_py.rasterization_2dgs; "
    code += "print({'scipy', 'imageio', 'splat_py.scene', 'splat_py.train'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
