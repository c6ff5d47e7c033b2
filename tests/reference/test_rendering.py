"""The whole chain: every gradient of a render against central differences."""

from dataclasses import replace

import numpy as np
import pytest

import tests.reference as ref
from tests.reference.arrays import Array
from tests.reference.checking import HEIGHT, OFF_CENTRE, WIDTH, check_gradients, intrinsics, random_viewmat, shapes, to_world


def random_scene(rng: np.random.Generator, count: int, sh_degree: int | None) -> tuple[ref.Scene, ref.Camera]:
    """Gaussians in front of the camera; with more than three, one is beyond the clamp and one behind."""
    viewmat = random_viewmat(rng)
    points = rng.uniform([-1.5, -1.2, 2.5], [1.5, 1.2, 6], size=(count, 3))
    if count > 3:
        points[2] = [4.0, 0.2, 3.0]
        points[3, 2] = -1.0
    quats, scales, opacities = shapes(rng, count)
    colors = rng.normal(size=(count, 4) if sh_degree is None else (count, (sh_degree + 1) ** 2, 3))
    scene = ref.Scene(to_world(points, viewmat), quats, scales, opacities, colors, sh_degree)
    return scene, ref.Camera(viewmat, intrinsics(OFF_CENTRE), WIDTH, HEIGHT)


@pytest.mark.parametrize(
    ("count", "sh_degree", "render_mode", "antialiased"),
    [
        (0, 3, "RGB+ED", False),
        (1, 3, "RGB", True),
        (5, 3, "RGB+ED", False),
        (5, 1, "RGB+D", True),
        (6, None, "RGB", False),
        (6, None, "ED", True),
        (4, None, "D", False),
    ],
)
def test_render_gradient(count: int, sh_degree: int | None, render_mode: str, antialiased: bool) -> None:
    rng = np.random.default_rng(18)
    scene, camera = random_scene(rng, count, sh_degree)
    colour_channels = 4 if sh_degree is None else 3
    background = rng.normal(size=colour_channels)

    def rendered(*x: Array) -> ref.Rendered:
        return ref.render(
            replace(scene, means=x[0], quats=x[1], scales=x[2], opacities=x[3], colors=x[4]),
            replace(camera, viewmat=x[5], K=x[6]),
            background=x[7],
            render_mode=render_mode,
            antialiased=antialiased,
            smooth=True,
        )

    parameters = [scene.means, scene.quats, scene.scales, scene.opacities, scene.colors]
    inputs = [*parameters, camera.viewmat, camera.K, background]
    out = rendered(*inputs)
    assert out.colors.shape[2] == colour_channels * ("RGB" in render_mode) + ("D" in render_mode)
    v_colors, v_alphas = rng.normal(size=out.colors.shape), rng.normal(size=out.alphas.shape)
    # The curvature of the expected depth is too large for any step in nearly uncovered pixels.
    faint = out.alphas < 1e-3
    v_colors[faint] = 0.0
    v_alphas[faint] = 0.0

    def f(*x: Array) -> float:
        image = rendered(*x)
        return float(np.sum(image.colors * v_colors) + np.sum(image.alphas * v_alphas))

    v = ref.render_backward(out, v_colors, v_alphas)
    if "RGB" not in render_mode:
        assert not v.colors.any()
        v = replace(v, background=np.zeros(colour_channels))
    check_gradients(f, inputs, [v.means, v.quats, v.scales, v.opacities, v.colors, v.viewmat, v.K, v.background], h=5e-5)


def test_empty_scene_is_the_background() -> None:
    scene, camera = random_scene(np.random.default_rng(20), 0, 0)
    out = ref.render(scene, camera, background=np.array([0.1, 0.2, 0.3]))
    np.testing.assert_array_equal(out.colors, np.broadcast_to([0.1, 0.2, 0.3], (HEIGHT, WIDTH, 3)))
    assert not out.alphas.any()


def test_one_gaussian_lands_where_the_pinhole_says() -> None:
    """A point at the centre of pixel (row 3, column 9) with opacity ½ covers it by a half."""
    camera = ref.Camera(np.eye(4), intrinsics(OFF_CENTRE), WIDTH, HEIGHT)
    mean = np.array([[(9.5 - 4.2) / 13 * 2, (3.5 - 7.9) / 12 * 2, 2.0]])
    scene = ref.Scene(mean, np.array([[1.0, 0, 0, 0]]), np.full((1, 3), 0.01), np.array([0.5]), np.array([[1.0, 0.5]]))
    out = ref.render(scene, camera, render_mode="RGB+ED")
    np.testing.assert_allclose(out.colors[3, 9], [0.5, 0.25, 2.0])
    assert np.argmax(out.alphas) == 3 * WIDTH + 9
