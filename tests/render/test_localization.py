"""Poses from photographs: accuracy from a start that is off, what else is found, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from splat_py import Camera, Gaussians, localize
from splat_py.render.views import render
from tests.refusals import refused

WIDTH, HEIGHT = 64, 48


@pytest.fixture(scope="module")
def scene() -> Gaussians:
    """Coloured Gaussians of many sizes about the origin."""
    generator = torch.Generator().manual_seed(3)

    def uniform(low: float, high: float, *shape: int) -> torch.Tensor:
        return low + (high - low) * torch.rand(shape, generator=generator)

    n = 400
    return Gaussians(
        uniform(-1, 1, n, 3),
        torch.randn(n, 4, generator=generator),
        uniform(-3.5, -1.5, n, 3),
        uniform(0, 4, n),
        uniform(-1.5, 1.5, n, 1, 3),
    )


def camera(angle: float = 0.3) -> Camera:
    return Camera.look_at((3 * np.sin(angle), -0.5, -3 * np.cos(angle)), (0, 0, 0), (0, 1, 0), 45, WIDTH, HEIGHT)


def off(truth: Camera, seed: int) -> Camera:
    """The camera turned by 5° and moved by 5 % of its distance."""
    turn, shift = (v / np.linalg.norm(v) for v in np.random.default_rng(seed).normal(size=(2, 3)))
    return truth.moved(np.radians(5) * turn, 0.15 * shift)


def errors(found: Camera, truth: Camera) -> tuple[float, float]:
    """Angle, degrees, and distance, world units."""
    relative = found.viewmat @ np.linalg.inv(truth.viewmat)
    angle = np.arccos(np.clip((np.trace(relative[:3, :3]) - 1) / 2, -1, 1))
    return float(np.degrees(angle)), float(np.linalg.norm(found.position - truth.position))


@pytest.mark.parametrize("seed", range(4))
def test_from_five_degrees_and_five_percent(scene: Gaussians, seed: int) -> None:
    truth = camera(seed * 1.3)
    found = localize(scene, render(scene, truth), off(truth, seed))
    degrees, distance = errors(found.camera, truth)
    assert degrees < 0.05 and distance < 0.003 and found.steps <= 8
    np.testing.assert_allclose(found.exposure, [[1, 1, 1], [0, 0, 0]], atol=1e-2)
    assert found.residual < 1e-3


def test_of_a_larger_photograph_as_bytes(scene: Gaussians) -> None:
    truth = camera().resized(400, 300)
    photograph = np.rint(255 * render(scene, truth)).astype(np.uint8)
    found = localize(scene, photograph, off(truth, 9))
    degrees, distance = errors(found.camera, truth)
    assert degrees < 0.02 and distance < 1e-3
    assert (found.camera.width, found.camera.height) == (400, 300)
    assert 0 < found.degrees < 0.02 and 0 < found.distance < 1e-3


def test_focal_length_and_exposure(scene: Gaussians) -> None:
    truth = camera()
    wrong = off(truth, 5)
    wrong = replace(wrong, K=wrong.K * [[1.04, 1, 1], [1, 1.04, 1], [1, 1, 1]])
    gain, offset = np.array([0.7, 0.8, 1.1], np.float32), np.array([0.1, 0.05, -0.02], np.float32)
    found = localize(scene, render(scene, truth) * gain + offset, wrong, focal=True)
    assert errors(found.camera, truth)[0] < 0.05
    np.testing.assert_allclose(found.camera.K, truth.K, rtol=2e-3)
    np.testing.assert_allclose(found.exposure, [gain, offset], atol=0.02)
    assert found.covariance.shape == (7, 7)


def test_pixels_without_weight_do_not_count(scene: Gaussians) -> None:
    truth, photographs = camera(), []
    for color in (0, 1):
        photograph = np.dstack([render(scene, truth), np.ones((HEIGHT, WIDTH), np.float32)])
        photograph[10:25, 20:40] = color, color, color, 0
        photographs.append(photograph)
    first, second = (localize(scene, photograph, off(truth, 2)) for photograph in photographs)
    np.testing.assert_array_equal(first.camera.viewmat, second.camera.viewmat)
    assert errors(first.camera, truth)[0] < 0.05


def test_its_uncertainty_is_that_of_noise(scene: Gaussians) -> None:
    """Each number's error, in its own standard deviations, over several photographs with noise."""
    truth, rng, deviations = camera(), np.random.default_rng(0), []
    picture = render(scene, truth)
    for _ in range(6):
        noisy = (picture + rng.normal(0, 0.03, picture.shape)).astype(np.float32)
        found = localize(scene, noisy, truth)
        relative = found.camera.viewmat @ np.linalg.inv(truth.viewmat)
        errors = [relative[2, 1], relative[0, 2], relative[1, 0], *relative[:3, 3]]
        deviations.append(errors / np.sqrt(found.covariance.diagonal()))
        assert abs(found.residual - 0.03) < 0.005
    assert 0.5 < np.sqrt(np.mean(np.square(deviations))) < 1.6


@pytest.mark.parametrize(
    ("sentence", "change"),
    [
        (
            r"photograph has shape \[48, 63, 3\]; the camera's size needs \[48, 64, 3 or 4\]",
            {"photograph": np.zeros((48, 63, 3))},
        ),
        ("photograph has no pixel that counts", {"photograph": np.zeros((48, 64, 4))}),
        ("photograph holds NaN or infinity", {"photograph": np.full((48, 64, 3), np.nan)}),
        ("steps is 0; it must be a whole number from 1", {"steps": 0}),
        ("camera holds no camera", {"camera": []}),
        ("the camera sees nothing of the scene", {"camera": camera().moved([0, np.pi, 0], [0, 0, 0])}),
    ],
)
def test_what_is_refused(scene: Gaussians, sentence: str, change: dict[str, Any]) -> None:
    given = {"photograph": np.zeros((48, 64, 3)), "camera": camera()} | change
    refused(sentence, localize, scene, **given)
