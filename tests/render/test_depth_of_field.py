"""Depth of field: objects in focus stay sharp, others blur, and light adds up."""

from functools import partial

import numpy as np
import pytest
import torch

from splat_py import Camera, Gaussians
from splat_py.render.views import RenderSettings, focuses, lens_cameras, through_lens

CAMERA = Camera.look_at((0, 0, 0), (0, 0, 5), (0, -1, 0), 50, 97, 65)
LOOK = RenderSettings((0.0, 0.0, 0.0), 1.0, False, 0.01)


def spot(depth: float, aside: float = 0.0) -> Gaussians:
    """A small bright Gaussian."""
    return Gaussians(
        means=torch.tensor([[aside, 0.0, depth]]),
        quats=torch.tensor([[1.0, 0, 0, 0]]),
        log_scales=torch.full((1, 3), -4.0),
        logit_opacities=torch.full((1,), 5.0),
        sh=torch.full((1, 1, 3), 1.7),
    )


def width(image: np.ndarray) -> float:
    """Standard deviation of the light's position, pixels."""
    _, columns = np.indices(image.shape[:2])
    light = image[..., 0].astype(np.float64)
    middle = (light * columns).sum() / light.sum()
    return float(np.sqrt((light * (columns - middle) ** 2).sum() / light.sum()))


def test_no_aperture_is_the_picture_itself() -> None:
    gaussians = spot(5)
    image = through_lens(partial(LOOK.draw, gaussians), CAMERA, 0.0, 3.0)
    np.testing.assert_array_equal(image, LOOK.draw(gaussians, CAMERA))


@pytest.mark.parametrize("aside", [0.0, 1.2])
def test_what_is_in_focus_stays_sharp_and_the_rest_does_not(aside: float) -> None:
    gaussians = spot(5, aside)
    sharp = LOOK.draw(gaussians, CAMERA)
    focused = through_lens(partial(LOOK.draw, gaussians), CAMERA, 0.4, 5.0)
    np.testing.assert_allclose(focused, sharp, atol=0.02)
    blurred = through_lens(partial(LOOK.draw, gaussians), CAMERA, 0.4, 2.5)
    # The circle of confusion has the diameter aperture · f · |1/z - 1/focus|; its deviation is a quarter of that.
    disc = 0.4 * CAMERA.K[0, 0] * abs(1 / 5 - 1 / 2.5) / 4
    # Widths of the light, which is about the square of the picture's values.
    assert np.hypot(width(sharp**2.2), disc) == pytest.approx(width(blurred**2.2), rel=0.1)


def test_points_of_focus_are_in_the_same_place_from_all_of_the_lens() -> None:
    cameras = lens_cameras(CAMERA, 0.5, 4.0)
    assert len(cameras) == 32
    offsets = np.stack([camera.position - CAMERA.position for camera in cameras])
    assert np.linalg.norm(offsets, axis=1).max() <= 0.25 and np.abs(offsets.mean(0)).max() < 0.02
    point = CAMERA.position + 4 * CAMERA.forward + 0.7 * CAMERA.viewmat[0, :3] - 0.3 * CAMERA.viewmat[1, :3]
    for camera in [CAMERA, *cameras]:
        x, y, depth = camera.K @ (camera.viewmat[:3, :3] @ point + camera.viewmat[:3, 3])
        np.testing.assert_allclose((x / depth, y / depth), (48.5 + 0.7 * CAMERA.K[0, 0] / 4, 32.5 - 0.3 * CAMERA.K[1, 1] / 4))


def test_light_adds_up_not_its_encoding() -> None:
    """Half of the lens sees white, the other half black: half of the light is 188 of 255 in sRGB."""

    def draw(camera: Camera) -> np.ndarray:
        return np.full((2, 2, 3), float(camera.viewmat[0, 3] > 0), np.float32)

    value = through_lens(draw, CAMERA, 1.0, 5.0)[0, 0, 0]
    share = np.mean([camera.viewmat[0, 3] > 0 for camera in lens_cameras(CAMERA, 1.0, 5.0)])
    assert value == pytest.approx(1.055 * share ** (1 / 2.4) - 0.055, abs=1e-4)


def test_focus_is_the_depth_in_the_middle() -> None:
    depths = partial(LOOK.depths, spot(5))
    assert focuses(depths, [CAMERA], 1.0) == pytest.approx([5], rel=0.01)
    away = Camera.look_at((0, 0, 0), (0, 0, -5), (0, -1, 0), 50, 97, 65)
    assert focuses(depths, [away], 7.0) == pytest.approx([7])
    assert focuses(depths, [CAMERA, away, CAMERA], 7.0) == pytest.approx([5] * 3, rel=0.01)
