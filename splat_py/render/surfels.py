"""Surfaces for torch: `rasterization_2dgs`, as in gsplat, and points and normals of depth maps."""

from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.gpu.accumulation import Accumulate
from splat_py.gpu.autograd import Stage, first_derivative, forward_graph_break
from splat_py.gpu.device import Device
from splat_py.gpu.tensors import check_tensors
from splat_py.render import checks
from splat_py.render.meta import meta_of
from splat_py.render.options import STOPS, Options, RenderMode
from splat_py.render.project import project
from splat_py.render.rasterization import HALVES, blended_features, device_to_render
from splat_py.render.rasterize import RenderedImages, median_splats, rasterize
from splat_py.render.splats import ProjectedSplats
from splat_py.render.tiles import BinnedTiles, bin_tiles


@forward_graph_break
def rasterization_2dgs(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    colors: Tensor | None,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    eps2d: float = 0.3,
    sh_degree: int | None = None,
    packed: bool = False,
    tile_size: int | None = None,
    backgrounds: Tensor | None = None,
    render_mode: RenderMode = "RGB",
    sparse_grad: bool = False,
    absgrad: bool = False,
    distloss: bool = False,
    depth_mode: Literal["expected", "median"] = "expected",
    *,
    accumulate: Accumulate = "auto",
    max_alpha: float = 0.999,
    device: Device | str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor, dict[str, Any]]:
    """Render surfels, flat Gaussians, from C pinhole cameras (Huang et al. 2024), with gsplat's signature and conventions.

    A pixel's ray meets each surfel's plane in a point, and the surfel fades with that point's distance from its mean. No surfel
    is smaller on the image than a Gaussian of ½ pixel² variance, so surfels seen edge-on stay visible. Surfels that reach
    behind the camera within one standard deviation are culled, and points behind the camera are not drawn (gsplat draws them).
    Depths are those of the means, as in gsplat, not of the points.

    Differentiable once, in all tensors including intrinsics. Arguments not listed here are those of `rasterization`.

    Args:
        scales: [..., N, 3] standard deviations > 0 along a surfel's two axes, world units. The third axis is the surfel's
            normal; its scale may be any finite number.
        eps2d: has no effect, as in gsplat.
        distloss: also render depth distortion, Σ 2 w_i w_j (z_i - z_j) over all i and all j in front of i; not with "RGB".
        depth_mode: the depth map whose normals are returned, "expected" (the image's last channel) or "median".

    Returns:
        Images [..., C, H, W, D'] and alphas [..., C, H, W, 1], as in `rasterization`.
        Normals Σ w n [..., C, H, W, 3] in world space, towards the camera.
        Normals of the depth map [..., C, H, W, 3], without a first dimension of 1, as in gsplat; None if `render_mode` is not
        "RGB+D" or "RGB+ED".
        Distortion [..., C, H, W, 1], zero without `distloss`.
        Median depth [..., C, H, W, 1], of the last surfel reached with T > 0.5; 0 without one.
        The `meta` of `rasterization`, with `ray_transforms` [..., C, N, 3, 3] and `normals` [..., C, N, 3] in camera space
        instead of `conics`, and with `render_distort` and `gradient_2dgs` [..., C, N, 2]: zeros whose gradient is about that of
        the means on the image, for `DefaultStrategy(key_for_gradient="gradient_2dgs")`.

    Raises:
        SplatError: an argument has the wrong shape, dtype, device or value, or no device can render.
        NotImplementedError: absgrad with more than 128 channels, including three of normals and one of distortion.
    """
    if "RGB" not in str(render_mode):
        colors = backgrounds = None
    tensors: dict[str, Tensor | None] = {"means": means, "quats": quats, "scales": scales, "opacities": opacities}
    tensors |= {"colors": colors, "backgrounds": backgrounds, "viewmats": viewmats, "Ks": Ks}
    check_tensors(tensors, halves=HALVES, needed=checks.NEEDED)
    checks.check_settings(locals())
    if "D" not in render_mode and distloss:
        raise SplatError(f"distloss needs depth, which render_mode={render_mode!r} does not have; use D, ED, RGB+D or RGB+ED")
    checks.check_gaussians(means, quats, scales, opacities)
    checks.check_cameras(means, viewmats, Ks)
    checks.check_colors(means, viewmats, colors, sh_degree, backgrounds, render_mode=render_mode)
    device = device_to_render(means, device, tensors.values())
    named = Options.same_named(locals())
    options = Options.on(device, tile_size, accumulate, **named, primitive="Surfel", stop=STOPS[max_alpha])
    poses, singular = torch.linalg.inv_ex(viewmats)
    if singular.any():
        raise SplatError("viewmats holds a matrix without an inverse; check where the cameras come from")
    size, lead = (int(width), int(height)), viewmats.shape[:-2]
    splats = project(means, quats, scales, opacities, viewmats, Ks, *size, options, device=device)
    densify = torch.zeros_like(splats.means2d, requires_grad=torch.is_grad_enabled())
    ray_transforms = splats.conics.unflatten(-1, (3, 3))
    drawn = replace(splats, conics=with_densify(ray_transforms.flatten(-2), densify))
    lists = bin_tiles(splats, *size, options, device=device)
    features, behind = blended_features(means, colors, viewmats, backgrounds, None, None, splats, options, device)
    surface = rasterize_surface(drawn, features, lists, *size, behind, options, distortion=distloss, device=device)
    images, alphas, of_surfels, distortion = (
        part.unflatten(0, lead) for part in (surface.images, surface.alphas, surface.normals, surface.distortion)
    )
    median = surface.median_of(splats.depths).unflatten(0, lead)
    # einsum takes longer in several directions.
    of_surfels = of_surfels @ poses[..., None, :3, :3].mT
    if "ED" in render_mode:
        images = torch.cat([images[..., :-1], images[..., -1:] / alphas.clamp(min=1e-10)], -1)
    of_depths = None
    if render_mode in ("RGB+D", "RGB+ED"):
        depth_map = images[..., -1:] if depth_mode == "expected" else median
        of_depths = depth_to_normal(depth_map, poses, Ks).squeeze(0)

    meta = meta_of(splats, lists, surface.rendered, lead, means.shape[-2])
    del meta["conics"]
    meta |= {
        "ray_transforms": ray_transforms,
        "normals": splats.normals,
        "render_distort": distortion,
        "gradient_2dgs": densify,
    }
    return images, alphas, of_surfels, of_depths, distortion, median, meta


@dataclass(frozen=True)
class Surface:
    """Surfels as C cameras see them."""

    images: Tensor  # [C, H, W, D]
    alphas: Tensor  # [C, H, W, 1]
    normals: Tensor  # [C, H, W, 3] Σ w n, in camera space
    distortion: Tensor  # [C, H, W, 1]; zero unless requested
    rendered: RenderedImages
    tiles: BinnedTiles

    def median_of(self, values: Tensor) -> Tensor:
        """Pick the value of each pixel's median, [C, H, W, 1], from splats' values [..., C, N] or, packed, [M]; 0 without one.
        Differentiable in `values`."""
        splats = median_splats(self.rendered.arrays, self.tiles)
        if not len(self.tiles.ids):
            return torch.zeros_like(self.alphas)
        picked = values.flatten().index_select(0, splats.clamp(min=0).flatten()).view_as(splats)
        return torch.where(splats >= 0, picked, 0.0)[..., None]


def rasterize_surface(
    splats: ProjectedSplats,
    features: Tensor,
    tiles: BinnedTiles,
    width: int,
    height: int,
    backgrounds: Tensor | None,
    options: Options,
    *,
    distortion: bool = False,
    device: Device | None = None,
) -> Surface:
    """Blend surfels over backgrounds. Differentiable in splats, features and backgrounds.

    Args:
        features: [..., C, N, D] or, packed, [M, D]. With `distortion`, the last channel must be depth, with background 0.
        backgrounds: [..., C, D], black if None.

    Raises:
        NotImplementedError: absgrad with more than 128 channels, including three of normals and one of distortion.
    """
    more = int(distortion)
    assert splats.normals is not None
    channels = features.shape[-1]
    parts = [splats.normals, features, *([torch.zeros_like(features[..., :1])] if distortion else [])]
    behind = None if backgrounds is None else F.pad(backgrounds, (3, more))
    rendered = rasterize(
        splats,
        torch.cat(parts, -1),
        tiles,
        width,
        height,
        behind,
        options,
        distortion=distortion,
        median=True,
        device=device,
    )
    of_normals, images, rest = (part.contiguous() for part in rendered.colors.split([3, channels, more], -1))
    rest = rest if distortion else torch.zeros_like(rendered.alphas)
    return Surface(images, rendered.alphas, of_normals, rest, rendered, tiles)


def with_densify(ray_transforms: Tensor, densify: Tensor) -> Tensor:
    """Return ray transforms [..., 9] unchanged; the backward pass also gives `densify` [..., 2] a gradient.

    That is the gradient of the first two rows' last numbers times the mean's depth: about that of the mean on the image.
    """
    return cast(Tensor, _Densify.apply(ray_transforms, densify))


class _Densify(Stage):
    @staticmethod
    def forward(ray_transforms: Tensor, densify: Tensor) -> Tensor:
        return ray_transforms.view_as(ray_transforms)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def jvp(ctx: Any, d_ray_transforms: Tensor, _: Tensor) -> Tensor:
        return d_ray_transforms.view_as(d_ray_transforms)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, Tensor]:
        (ray_transforms,) = ctx.saved_tensors
        return v, v[..., [2, 5]] * ray_transforms[..., 8:]


def depth_to_points(depths: Tensor, camtoworlds: Tensor, Ks: Tensor, z_depth: bool = True) -> Tensor:
    """Return the points [..., H, W, 3] of depth maps in world space.

    Args:
        depths: [..., H, W, 1].
        camtoworlds: [..., 4, 4] camera → world.
        Ks: [..., 3, 3], pixels; the first pixel's centre is (0.5, 0.5).
        z_depth: depths are along the camera's axis; if False, along the pixel's ray.

    Raises:
        SplatError: the shapes do not fit together.
    """
    batch, sides = depths.shape[:-3], depths.shape[-3:]
    if len(sides) < 3 or sides[-1] != 1 or camtoworlds.shape != (*batch, 4, 4) or Ks.shape != (*batch, 3, 3):
        given = f"{list(depths.shape)}, {list(camtoworlds.shape)} and {list(Ks.shape)}"
        raise SplatError(
            f"depths, camtoworlds and Ks have shapes {given}; expected [..., H, W, 1], [..., 4, 4] and [..., 3, 3]"
        )
    K = Ks[..., None, None, :, :]
    x = torch.arange(sides[1], device=depths.device) + 0.5
    y = torch.arange(sides[0], device=depths.device)[:, None] + 0.5
    along_x, along_y = torch.broadcast_tensors((x - K[..., 0, 2]) / K[..., 0, 0], (y - K[..., 1, 2]) / K[..., 1, 1])
    directions = torch.stack([along_x, along_y, torch.ones_like(along_x)], dim=-1)
    if not z_depth:
        directions = F.normalize(directions, dim=-1)
    rotations, centers = camtoworlds[..., None, :3, :3], camtoworlds[..., None, None, :3, 3]
    return centers + depths * (directions @ rotations.transpose(-1, -2))


def depth_to_normal(depths: Tensor, camtoworlds: Tensor, Ks: Tensor, z_depth: bool = True) -> Tensor:
    """Return normals [..., H, W, 3] in world space, by central differences of depth maps; zero in the outermost pixels.

    Normals point towards the camera. Arguments and errors are those of `depth_to_points`.
    """
    points = depth_to_points(depths, camtoworlds, Ks, z_depth)
    down = points[..., 2:, 1:-1, :] - points[..., :-2, 1:-1, :]
    right = points[..., 1:-1, 2:, :] - points[..., 1:-1, :-2, :]
    normals = F.normalize(torch.linalg.cross(down, right), dim=-1)
    return F.pad(normals, (0, 0, 1, 1, 1, 1))
