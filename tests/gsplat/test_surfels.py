"""gsplat's stages for surfels: run in sequence they equal `rasterization_2dgs`, packed or not."""

import pytest
import torch

import splat_py.gsplat as gsplat
from tests.refusals import refused
from tests.render.test_surfels import CAMERAS, HEIGHT, WIDTH, N, of_scene, surfels_of

GEOMETRY = ("means", "quats", "scales", "viewmats", "Ks")
GRID = (16, 2, 2)


@pytest.mark.parametrize("packed", [False, True])
def test_stage_by_stage(packed: bool) -> None:
    results = []
    for stages in (False, True):
        inputs = surfels_of(90)
        # Without opacities, splats are culled as if opaque.
        inputs["opacities"] = (inputs["opacities"].detach() * 0 + 1).requires_grad_()
        if stages:
            outputs, gradient = by_stages(inputs, packed)
        else:
            rendered = of_scene(inputs, render_mode="RGB+D", distloss=True)
            images, alphas, normals, _, distortion, median, meta = rendered
            turn = torch.linalg.inv(inputs["viewmats"])[..., :3, :3].detach()
            in_camera = torch.einsum("cji,chwj->chwi", turn, normals)
            outputs, gradient = [images, alphas, in_camera, distortion, median], meta["gradient_2dgs"]
        loss = sum((output.square().sum() for output in (*outputs[:2], *outputs[3:])), torch.zeros(()))
        results.append([*outputs, *torch.autograd.grad(loss, list(inputs.values()))])
        assert gradient.shape[-1] == 2
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * max(float(one.detach().abs().max()), 1e-3))


def by_stages(inputs: dict[str, torch.Tensor], packed: bool) -> tuple[list[torch.Tensor], torch.Tensor]:
    given = [inputs[name] for name in GEOMETRY]
    projected = gsplat.fully_fused_projection_2dgs(*given, WIDTH, HEIGHT, packed=packed)
    *ids, radii, means2d, depths, ray_transforms, normals = projected
    colors, opacities = inputs["colors"].expand(CAMERAS, N, 3), inputs["opacities"].expand(CAMERAS, N)
    images = {}
    if packed:
        _, cameras, gaussians = ids
        assert (radii > 0).all()
        colors, opacities = colors[cameras, gaussians], opacities[cameras, gaussians]
        images = {"n_images": CAMERAS, "image_ids": cameras, "gaussian_ids": gaussians}
    # gsplat's radii ignore perspective within a surfel, so some surfels reach further.
    _, isect_ids, flatten_ids = gsplat.isect_tiles(means2d, radii * 3, depths, *GRID, packed=packed, **images)
    offsets = gsplat.isect_offset_encode(isect_ids, CAMERAS, *GRID[1:])
    densify = torch.zeros_like(means2d, requires_grad=True)
    tensors = means2d, ray_transforms, torch.cat([colors, depths[..., None]], -1), opacities, normals, densify
    options = {"backgrounds": torch.nn.functional.pad(inputs["backgrounds"], (0, 1)), "packed": packed, "distloss": True}
    return list(gsplat.rasterize_to_pixels_2dgs(*tensors, WIDTH, HEIGHT, 16, offsets, flatten_ids, **options)), densify


def test_masked_tiles_show_the_background() -> None:
    inputs = {name: tensor.detach() for name, tensor in surfels_of(90).items()}
    radii, means2d, depths, ray_transforms, normals = gsplat.fully_fused_projection_2dgs(
        *(inputs[name] for name in GEOMETRY), WIDTH, HEIGHT
    )
    _, isect_ids, flatten_ids = gsplat.isect_tiles(means2d, radii, depths, *GRID)
    offsets = gsplat.isect_offset_encode(isect_ids, CAMERAS, *GRID[1:])
    masks = torch.ones(CAMERAS, 2, 2, dtype=torch.bool)
    masks[1, 0, 1] = False
    opacities = inputs["opacities"].expand(CAMERAS, N)
    tensors = means2d, ray_transforms, depths[..., None], opacities, normals, torch.zeros_like(means2d)
    _, alphas, *_, median = gsplat.rasterize_to_pixels_2dgs(*tensors, WIDTH, HEIGHT, 16, offsets, flatten_ids, masks=masks)
    assert alphas[1, :16, :16].any() and not alphas[1, :16, 16:].any() and not median[1, :16, 16:].any()
    call, lists = gsplat.rasterize_to_pixels_2dgs, (WIDTH, HEIGHT, 16, offsets, flatten_ids)
    refused("not 0 in its last", call, *tensors, *lists, backgrounds=torch.ones(CAMERAS, 1), distloss=True)
    refused("ray_transforms has shape", call, means2d, ray_transforms[..., 0], *tensors[2:], *lists)


@pytest.mark.usefixtures("own_package")
def test_surfels_around_the_camera_are_gsplats() -> None:
    """Many reach behind the camera: radii, indices, pixels and gradients against gsplat's own torch functions."""
    from gsplat.cuda import _torch_impl_2dgs as own

    torch.manual_seed(5)
    count, width, height = 400, 64, 48
    means = torch.randn(1, count, 3)[0].requires_grad_()
    quats = torch.nn.functional.normalize(torch.randn(count, 4), dim=-1)
    scales, camera = torch.rand(count, 3) * 0.3, (torch.eye(4)[None], torch.tensor([[[64, 0, 32.0], [0, 64, 24], [0, 0, 1]]]))
    found = gsplat.fully_fused_projection_2dgs(means, quats, scales, *camera, width, height)
    expected = own._fully_fused_projection_2dgs(means, quats, scales, *camera, width, height)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-3, atol=1)
    visible = (found[0] > 0).all(-1)
    w = found[3][0, :, 2]
    assert int((visible & (w[:, 2] ** 2 < (w[:, :2] ** 2).sum(-1))).sum()) > 5
    for ours, theirs in zip(found[1:4], expected[1:4], strict=True):
        torch.testing.assert_close(ours[visible], theirs[visible], rtol=1e-3, atol=1e-3)

    radii, means2d, depths, ray_transforms, normals = (part.detach() for part in found)
    inputs = [
        part.requires_grad_() for part in (means2d, ray_transforms, torch.rand(1, count), torch.rand(1, count, 4), normals)
    ]
    grid = (16, 4, 3)
    _, isect_ids, flatten_ids = gsplat.isect_tiles(means2d, radii, depths, *grid)
    lists = 16, gsplat.isect_offset_encode(isect_ids, 1, *grid[1:]), flatten_ids
    ids = gsplat.rasterize_to_indices_in_range_2dgs(
        0, 1 << 20, torch.ones(1, height, width), *inputs[:3], width, height, *lists
    )
    blended = [gsplat.accumulate_2dgs(*inputs, *ids, width, height), own.accumulate_2dgs(*inputs, *ids, width, height)]
    means2d, ray_transforms, opacities, colors, normals = inputs
    tensors = means2d, ray_transforms, colors, opacities, normals, torch.zeros_like(means2d)
    blended.append(gsplat.rasterize_to_pixels_2dgs(*tensors, width, height, *lists)[:3])
    weights = [torch.rand_like(part) for part in blended[0]]
    assert blended[0][1].max() > 0.9
    gradients = [
        torch.autograd.grad(sum((part * w).sum() for part, w in zip(b, weights, strict=True)), inputs) for b in blended
    ]
    for b, g in zip(blended[1:], gradients[1:], strict=True):
        torch.testing.assert_close(b, blended[0], rtol=1e-3, atol=1e-3)
        for ours, theirs in zip(g, gradients[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=1e-3 * float(theirs.abs().max()))
