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
