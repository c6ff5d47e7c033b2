"""The whole chain for one camera: projection, colour and blending, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reference.arrays import Array, Mask
from tests.reference.blending import Rasterized, near_threshold, rasterize, rasterize_backward
from tests.reference.projection import EPS2D, FAR, NEAR, Projected, project, project_backward
from tests.reference.spherical_harmonics import sh_colors, sh_colors_backward

MIN_COVERAGE = 1e-10  # divisor of the expected depth where nothing covers the pixel


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
    colors: Array  # [H, W, D]: the colour channels, then depth, as render_mode says
    alphas: Array  # [H, W]
    projected: Projected  # [N, ...] of all Gaussians
    rasterized: Rasterized  # of the visible ones, before the division of the expected depth
    channels: Array  # [visible, D] what was blended
    background: Array  # [D] of all channels
    scene: Scene
    camera: Camera
    render_mode: str
    eps2d: float
    near: float
    far: float
    antialiased: bool
    smooth: bool


@dataclass(frozen=True)
class RenderGradients:
    means: Array
    quats: Array
    scales: Array
    opacities: Array
    colors: Array  # the shape of scene.colors
    viewmat: Array  # [4, 4]
    K: Array  # [3, 3]
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
        render_mode: "RGB", "D" (Σ α T z), "ED" (that over alpha), "RGB+D" or "RGB+ED".
        smooth: see `tests.reference.blending`.
    """
    projected = project(
        scene.means, scene.quats, scene.scales, scene.opacities,
        camera.viewmat, camera.K, camera.width, camera.height,
        eps2d=eps2d, near=near, far=far, antialiased=antialiased,
    )  # fmt: skip
    visible = projected.visible
    channels, backgrounds = [], []
    if "RGB" in render_mode:
        colors = scene.colors[visible]
        if scene.sh_degree is not None:
            colors = sh_colors(colors, scene.means[visible], camera.viewmat, scene.sh_degree)
        channels.append(colors)
        backgrounds.append(np.zeros(colors.shape[1]) if background is None else background)
    if "D" in render_mode:
        channels.append(projected.depths[visible, None])
        backgrounds.append(np.zeros(1))
    blended, behind = np.concatenate(channels, axis=-1), np.concatenate(backgrounds)
    out = rasterize(*_splats(projected), blended, projected.depths[visible],
                    camera.width, camera.height, behind, smooth=smooth)  # fmt: skip
    image = out.colors
    if "ED" in render_mode:
        image = image.copy()
        image[..., -1] /= np.maximum(out.alphas, MIN_COVERAGE)
    return Rendered(image, out.alphas, projected, out, blended, behind, scene, camera, render_mode,
                    eps2d, near, far, antialiased, smooth)  # fmt: skip


def render_backward(rendered: Rendered, v_colors: Array, v_alphas: Array | None = None) -> RenderGradients:
    """Gradients of everything `render` read, from v_colors [H, W, D] and v_alphas [H, W] (default zero)."""
    scene, camera, projected = rendered.scene, rendered.camera, rendered.projected
    visible = projected.visible
    v_colors = v_colors.copy()
    v_alphas = np.zeros_like(rendered.alphas) if v_alphas is None else v_alphas.copy()
    if "ED" in rendered.render_mode:
        coverage = np.maximum(rendered.alphas, MIN_COVERAGE)
        v_colors[..., -1] /= coverage
        v_alphas -= np.where(
            rendered.alphas > MIN_COVERAGE, v_colors[..., -1] * rendered.colors[..., -1], 0.0
        )

    raster = rasterize_backward(
        *_splats(projected), rendered.channels, projected.depths[visible], camera.width, camera.height,
        rendered.background, rendered.rasterized, v_colors, v_alphas, smooth=rendered.smooth,
    )  # fmt: skip

    def scattered(values: Array) -> Array:
        everything = np.zeros((len(visible), *values.shape[1:]))
        everything[visible] = values
        return everything

    v_channels, v_depths = raster.colors, np.zeros(len(raster.colors))
    v_background = raster.background
    if "D" in rendered.render_mode:
        v_depths, v_channels, v_background = v_channels[:, -1], v_channels[:, :-1], v_background[:-1]

    v_scene_colors, v_means_of_color, v_viewmat_of_color = (
        np.zeros(scene.colors.shape),
        np.zeros((len(visible), 3)),
        np.zeros((4, 4)),
    )
    if "RGB" in rendered.render_mode:
        if scene.sh_degree is None:
            v_scene_colors = scattered(v_channels)
        else:
            v_sh, v_means, v_viewmat_of_color = sh_colors_backward(
                scene.colors[visible], scene.means[visible], camera.viewmat, scene.sh_degree, v_channels
            )
            v_scene_colors, v_means_of_color = scattered(v_sh), scattered(v_means)

    v = project_backward(
        scene.means, scene.quats, scene.scales, scene.opacities,
        camera.viewmat, camera.K, camera.width, camera.height,
        scattered(raster.means2d), scattered(v_depths), scattered(raster.conics), scattered(raster.opacities),
        eps2d=rendered.eps2d, near=rendered.near, far=rendered.far,
        antialiased=rendered.antialiased,
    )  # fmt: skip
    return RenderGradients(
        v.means + v_means_of_color, v.quats, v.scales, v.opacities, v_scene_colors,
        v.viewmat + v_viewmat_of_color, v.K, v_background,
        scattered(raster.means2d), scattered(raster.means2d_abs),
    )  # fmt: skip


def untrusted_pixels(rendered: Rendered, *, margin: float = 1e-4, depth_margin: float = 1e-6) -> Mask:
    """`near_threshold` [H, W] of a rendering: leave these pixels out of a comparison with float32."""
    visible = rendered.projected.visible
    return near_threshold(
        *_splats(rendered.projected), rendered.projected.depths[visible],
        rendered.camera.width, rendered.camera.height, margin=margin, depth_margin=depth_margin,
    )  # fmt: skip


def _splats(projected: Projected) -> tuple[Array, Array, Array]:
    """means2d, conics and opacities of the visible Gaussians."""
    visible = projected.visible
    return projected.means2d[visible], projected.conics[visible], projected.opacities[visible]
