"""The whole chain for one camera: projection, colour and blending, forward and backward."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.reference.arrays import Array, Mask, leaf
from tests.reference.blending import Rasterized, near_threshold, rasterize, rasterize_backward
from tests.reference.projection import EPS2D, FAR, NEAR, Projected, project, splats
from tests.reference.spherical_harmonics import sh_colors

MIN_COVERAGE = 1e-10  # divisor of the expected depth in uncovered pixels


@dataclass(frozen=True)
class Scene:
    """N Gaussians, activated parameters. `colors` is SH [N, K, 3] if sh_degree is a number, else [N, D]."""

    means: Array  # [N, 3]
    quats: Array  # [N, 4]
    scales: Array  # [N, 3]
    opacities: Array  # [N]
    colors: Array
    sh_degree: int | None = None


@dataclass(frozen=True)
class Camera:
    viewmat: Array  # [4, 4]
    K: Array  # [3, 3]
    width: int
    height: int


@dataclass(frozen=True)
class Rendered:
    colors: Array  # [H, W, D]: the colour channels, then depth, by render_mode
    alphas: Array  # [H, W]
    projected: Projected  # [N, ...], for all Gaussians
    rasterized: Rasterized  # the visible ones, before the division of the expected depth
    blended: tuple[Any, ...]  # arguments of `rasterize`: the visible splats, then the image's sides and the background
    leaves: list[Tensor]  # the scene's arrays, viewmat and K
    splats: list[Tensor]  # the projected ones: means2d, conics, opacities and channels of the visible ones
    render_mode: str
    smooth: bool

    @property
    def channels(self) -> Array:
        """The blended channels [visible, D]."""
        return np.asarray(self.blended[3])


@dataclass(frozen=True)
class RenderGradients:
    means: Array
    quats: Array
    scales: Array
    opacities: Array
    colors: Array  # the shape of scene.colors
    viewmat: Array  # [4, 4] the twelve entries of [R | t] as independent numbers, last row zero
    K: Array  # [3, 3] zero except fx, fy, cx, cy
    background: Array  # [D] of the colour channels
    means2d: Array  # [N, 2]
    means2d_abs: Array  # [N, 2]


def render(
    scene: Scene,
    camera: Camera,
    *,
    background: Array | None = None,
    render_mode: str = "RGB",
    eps2d: float = EPS2D,
    near: float = NEAR,
    far: float = FAR,
    antialiased: bool = False,
    smooth: bool = False,
) -> Rendered:
    """Render `scene`.

    Args:
        background: [colour channels], default black; a depth channel's background is 0.
        render_mode: "RGB", "D" (Σ α T z), "ED" ("D" over alpha), "RGB+D" or "RGB+ED".
        smooth: see `tests.reference.blending`.
    """
    arrays = (scene.means, scene.quats, scene.scales, scene.opacities, scene.colors, camera.viewmat, camera.K)
    leaves, size = [leaf(array) for array in arrays], (camera.width, camera.height)
    options = {"eps2d": eps2d, "antialiased": antialiased}
    projected = project(*arrays[:4], *arrays[5:], *size, near=near, far=far, **options)
    visible = torch.from_numpy(projected.visible)
    *gaussians, colors = (of_all[visible] for of_all in leaves[:5])
    means2d, depths, conics, opacities = splats(*gaussians, *leaves[5:], *size, **options)
    channels, backgrounds = [], []
    if "RGB" in render_mode:
        if scene.sh_degree is not None:
            colors = sh_colors(colors, gaussians[0], leaves[5], scene.sh_degree)
        channels.append(colors)
        backgrounds.append(np.zeros(colors.shape[1]) if background is None else background)
    if "D" in render_mode:
        channels.append(depths[:, None])
        backgrounds.append(np.zeros(1))
    seen = [means2d, conics, opacities, torch.cat(channels, -1)]
    blended = (*(x.detach().numpy() for x in (*seen, depths)), *size, np.concatenate(backgrounds))
    out = rasterize(*blended, smooth=smooth)
    image = out.colors.copy()
    if "ED" in render_mode:
        image[..., -1] /= np.maximum(out.alphas, MIN_COVERAGE)
    return Rendered(image, out.alphas, projected, out, blended, leaves, seen, render_mode, smooth)


def render_backward(rendered: Rendered, v_colors: Array, v_alphas: Array | None = None) -> RenderGradients:
    """Gradients of everything `render` read, from v_colors [H, W, D] and v_alphas [H, W] (default zero)."""
    v_colors = v_colors.copy()
    v_alphas = np.zeros_like(rendered.alphas) if v_alphas is None else v_alphas.copy()
    if "ED" in rendered.render_mode:
        v_colors[..., -1] /= np.maximum(rendered.alphas, MIN_COVERAGE)
        v_alphas -= np.where(rendered.alphas > MIN_COVERAGE, v_colors[..., -1] * rendered.colors[..., -1], 0.0)
    v = rasterize_backward(*rendered.blended, rendered.rasterized, v_colors, v_alphas, smooth=rendered.smooth)
    v_splats = [torch.from_numpy(x) for x in (v.means2d, v.conics, v.opacities, v.colors)]
    gradients = torch.autograd.grad(rendered.splats, rendered.leaves, v_splats, retain_graph=True, materialize_grads=True)
    means2d, means2d_abs = np.zeros((2, len(rendered.projected.visible), 2))
    means2d[rendered.projected.visible], means2d_abs[rendered.projected.visible] = v.means2d, v.means2d_abs
    background = v.background[:-1] if "D" in rendered.render_mode else v.background
    return RenderGradients(*(g.numpy() for g in gradients), background, means2d, means2d_abs)


def untrusted_pixels(rendered: Rendered, *, margin: float = 1e-4, depth_margin: float = 1e-6) -> Mask:
    """Pixels [H, W] that `near_threshold` marks: leave them out of a comparison with float32."""
    means2d, conics, opacities, _, depths, width, height, _ = rendered.blended
    return near_threshold(means2d, conics, opacities, depths, width, height, margin=margin, depth_margin=depth_margin)
