"""Directional derivatives of the float32 pipeline itself, in a smooth region.

The scene stays away from every threshold: soft Gaussians whose α lies well inside (1/255, 0.999) at every pixel, and a
transmittance far above the floor. A central difference of a float32 image, summed in float64, has an error of its
rounding over the step, 1e-7 / h, and by the third derivative, h²: with steps of a few thousandths, by about a thousandth.
"""

import numpy as np
import pytest
import torch

import tests.reference as ref
from splat_py.render.rasterization import rasterization
from tests.reference.arrays import Array
from tests.render.comparison import rounded

WIDTH, HEIGHT, COUNT, CAMERAS = 21, 17, 6, 2
INPUTS = ("means", "quats", "scales", "opacities", "colors", "viewmats", "Ks", "backgrounds")


def inputs_of(rng: np.random.Generator, sh: bool) -> dict[str, Array]:
    viewmats, Ks = np.tile(np.eye(4), (CAMERAS, 1, 1)), np.zeros((CAMERAS, 3, 3))
    viewmats[:, :3, 3] = 0.1 * rng.normal(size=(CAMERAS, 3))
    # One camera looks from the side.
    viewmats[1, :3, :3] = [[0.98, 0, 0.199], [0, 1, 0], [-0.199, 0, 0.98]]
    Ks[:] = [[20, 0, 10.2], [0, 19, 8.9], [0, 0, 1]]
    colors = rng.uniform(0.2, 1, (COUNT, 4))
    if sh:
        colors = 0.1 * rng.normal(size=(COUNT, 16, 3))
        colors[:, 0] += 1.0
    means = rng.uniform(-0.3, 0.3, (COUNT, 3))
    means[:, 2] = np.linspace(3.5, 4.7, COUNT)
    scales = rng.uniform(1.2, 1.8, (COUNT, 3))
    # One lies beyond the clamp of the field of view, on the right of both cameras and below, and is large enough to be seen.
    means[-1], scales[-1] = [5.0, 4.6, 6.0], 5.0
    return {
        "means": means,
        "quats": rng.normal(size=(COUNT, 4)) * 0.3 + [1, 0, 0, 0],
        "scales": scales,
        "opacities": rng.uniform(0.35, 0.6, COUNT),
        "colors": colors,
        "viewmats": viewmats,
        "Ks": Ks,
        "backgrounds": rng.uniform(size=(CAMERAS, 3 if sh else 4)),
    }


def direction_of(name: str, values: Array, rng: np.random.Generator) -> Array:
    """A random direction, of about a step's length for h = 1, over the numbers that the render depends on."""
    direction = rng.normal(size=values.shape)
    if name == "viewmats":
        direction[:, 3] = 0.0
        direction *= 0.3
    if name == "Ks":
        used = np.array([[1, 0, 1], [0, 1, 1], [0, 0, 0]])
        direction *= 8.0 * used
    return direction


@pytest.mark.parametrize("sh", [True, False], ids=["spherical harmonics", "colours"])
@pytest.mark.parametrize("rasterize_mode", ["classic", "antialiased"])
@pytest.mark.parametrize("render_mode", ["RGB", "RGB+ED"])
def test_directional_derivatives(sh: bool, rasterize_mode: str, render_mode: str) -> None:
    rng = np.random.default_rng(5)
    values = {name: rounded(array) for name, array in inputs_of(rng, sh).items()}
    check_smoothness(values, sh)
    channels = (3 if sh else 4) + (render_mode != "RGB")
    # Slowly varying weights, so neighbouring pixels do not cancel.
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    waves = [np.sin(0.2 * x * k + 0.15 * y + k) for k in range(1, channels + 1)]
    weights = torch.tensor(np.stack(waves, -1))

    def render(arrays: dict[str, torch.Tensor]) -> torch.Tensor:
        images, alphas, _ = rasterization(
            **arrays,
            width=WIDTH,
            height=HEIGHT,
            sh_degree=3 if sh else None,
            render_mode=render_mode,  # type: ignore[arg-type]
            rasterize_mode=rasterize_mode,  # type: ignore[arg-type]
            tile_size=8,
        )
        # float64 from here: the sum must not add noise.
        return (images.double() * weights).sum() + (alphas[..., 0].double() * weights[..., 0]).sum()

    leaves = {n: torch.tensor(v, dtype=torch.float32, requires_grad=True) for n, v in values.items()}
    render(leaves).backward()

    for name in INPUTS:
        gradient = leaves[name].grad
        assert gradient is not None
        for _ in range(3):
            direction = direction_of(name, values[name], rng)
            analytic = float((gradient.numpy().astype(np.float64) * direction).sum())
            h = 4e-3
            moved = []
            for sign in (1, -1):
                step = rounded(values[name] + sign * h * direction)
                arrays = {n: torch.tensor(v, dtype=torch.float32) for n, v in (values | {name: step}).items()}
                with torch.no_grad():
                    moved.append(float(render(arrays)))
            numeric = (moved[0] - moved[1]) / (2 * h)
            size = float(np.linalg.norm(gradient.numpy()) * np.linalg.norm(direction))
            assert abs(numeric - analytic) < 2e-3 * size + 1e-2, (name, numeric, analytic, size)


def check_smoothness(values: dict[str, Array], sh: bool) -> None:
    """Check that α lies in (1/255, 0.999), T above its floor, no colour is clamped, and no Gaussian is at the edge of the clamp
    of the field of view; otherwise the test means nothing."""
    for camera in range(CAMERAS):
        scene = ref.Scene(
            values["means"], values["quats"], values["scales"], values["opacities"], values["colors"], 3 if sh else None
        )
        view = ref.Camera(values["viewmats"][camera], values["Ks"][camera], WIDTH, HEIGHT)
        hard, soft = ref.render(scene, view), ref.render(scene, view, smooth=True)
        assert (hard.rasterized.n_blended == COUNT).all()
        np.testing.assert_array_equal(hard.colors, soft.colors)
        assert hard.rasterized.T_final.min() > 1e-3
        assert hard.channels.min() > 0.02
        t = scene.means @ view.viewmat[:3, :3].T + view.viewmat[:3, 3]
        slopes = t[:, :2] / t[:, 2:]
        low, high = ref.frustum_limits(view.K, WIDTH, HEIGHT).T
        assert (slopes[:-1] > low + 0.05).all() and (slopes[:-1] < high - 0.05).all()
        assert (slopes[-1] > high + 0.05).all()
        # A step must not change the depth order.
        assert np.diff(np.sort(hard.projected.depths)).min() > 0.03
