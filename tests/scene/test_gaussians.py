from dataclasses import replace

import numpy as np
import pytest
import torch

from splat_py import Gaussians
from splat_py.scene.gaussians import SH_C0
from tests.refusals import refused

FOUR = Gaussians.from_points(np.eye(3)[[0, 0, 0, 0]] * np.arange(4)[:, None], np.full((4, 3), 0.25) * np.arange(4)[:, None])


def test_scales_colours_and_opacities_of_points() -> None:
    xyz = np.random.default_rng(0).normal(size=(50, 3))
    gaussians = Gaussians.from_points(xyz, np.zeros((50, 3), np.uint8), sh_degree=2)
    distances = np.sort(np.linalg.norm(xyz[:, None] - xyz[None], axis=2), axis=1)[:, 1:4]
    expected = np.sqrt((distances**2).mean(axis=1))[:, None].repeat(3, axis=1)
    np.testing.assert_allclose(gaussians.scales.numpy(), expected, rtol=1e-5)
    assert gaussians.sh.shape == (50, 9, 3)
    assert gaussians.sh_degree == 2
    gaussians.validate()
    rgb = np.array([[0, 128, 255], [10, 20, 30]], np.uint8)
    gaussians = Gaussians.from_points(np.eye(3)[:2], rgb, sh_degree=3, opacity=0.3)
    np.testing.assert_allclose(gaussians.sh[:, 0].numpy() * SH_C0 + 0.5, rgb / 255, atol=1e-6)
    assert not gaussians.sh[:, 1:].any()
    np.testing.assert_allclose(gaussians.opacities.numpy(), 0.3, rtol=1e-6)
    np.testing.assert_allclose(Gaussians.from_points(np.eye(3)[:2], rgb).opacities.numpy(), 0.1, rtol=1e-6)
    assert torch.equal(Gaussians.from_points(np.eye(3)[:2], rgb / 255.0, opacity=0.3).sh, gaussians.sh)
    xyz = np.concatenate([np.zeros((5, 3)), np.random.default_rng(1).normal(size=(40, 3)) + 10])
    scales = Gaussians.from_points(xyz, np.zeros(xyz.shape)).scales[:, 0]
    np.testing.assert_allclose(scales[:5], 0.1 * np.median(scales[5:]), rtol=1e-6)


@pytest.mark.parametrize(
    ("points", "scales"),
    [
        ([], []),
        ([[5, 5, 5]], [1]),
        ([[0, 0, 0], [2, 0, 0]], [2, 2]),
        ([[0, 0, 0], [2, 0, 0], [0, 2, 0]], [2, 6**0.5, 6**0.5]),
        ([[1, 1, 1]] * 4, [1] * 4),
    ],
)
def test_few_points_and_coincident_points(points: list[list[float]], scales: list[float]) -> None:
    xyz = np.array(points, float).reshape(-1, 3)
    gaussians = Gaussians.from_points(xyz, np.zeros(xyz.shape, np.uint8))
    np.testing.assert_allclose(gaussians.scales[:, 0].numpy(), scales, rtol=1e-6)
    gaussians.validate()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"xyz": np.zeros((2, 2))}, "must both be"),
        ({"xyz": np.array([[0, 0, np.nan], [0, 0, 0]])}, "1 points are not finite"),
        ({"rgb": np.full((2, 3), 1.5)}, "floats from 0 to 1"),
        ({"rgb": np.zeros((2, 3), int)}, "rgb must be uint8"),
        ({"sh_degree": 4}, "sh_degree is 4"),
        ({"opacity": 1.0}, "opacity is 1"),
    ],
)
def test_bad_points_are_refused(arguments: dict, message: str) -> None:
    refused(message, Gaussians.from_points, **{"xyz": np.zeros((2, 3)), "rgb": np.zeros((2, 3)), **arguments})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("means", torch.zeros(4), "means has shape"),
        ("quats", torch.zeros(5, 4), r"quats has shape \[5, 4\]; it must be \[4, 4\]"),
        ("quats", torch.zeros(4, 4), "4 of 4 Gaussians, the first of them in row 1, .* in quats;"),
        ("log_scales", torch.zeros(4, 3, dtype=torch.float64), "log_scales is torch.float64"),
        ("logit_opacities", torch.tensor([0, torch.nan, torch.inf, 0]), "2 of 4 Gaussians, .* in logit_opacities;"),
        ("sh", torch.zeros(4, 5, 3), "5 coefficients"),
        ("sh", torch.zeros(4, 4), "sh has shape"),
    ],
)
def test_validate_names_what_is_wrong(field: str, value: torch.Tensor, message: str) -> None:
    FOUR.validate()
    refused(message, replace(FOUR, **{field: value}).validate)


def test_to_moves_every_tensor() -> None:
    moved = replace(FOUR, params={"b": torch.zeros(4)}, splat="BetaKernel").to("meta")
    tensors = [*moved.params.values(), *(value for value in vars(moved).values() if isinstance(value, torch.Tensor))]
    assert len(tensors) == 6 and {tensor.device.type for tensor in tensors} == {"meta"}
    assert moved.splat == "BetaKernel"


def test_notebooks_show_counts_and_histograms() -> None:
    assert repr(FOUR) == "Gaussians(count=4, splat=Gaussian, color=SphericalHarmonics, sh_degree=3, device=cpu)"
    page = FOUR._repr_html_()
    assert "<td>4</td>" in page
    # All opacities are 0.1, and scales grow with the distance to neighbours.
    assert page.count("<svg") == 2
    empty = FOUR.mapped(lambda tensor: tensor[:0])._repr_html_()
    assert "<td>0</td>" in empty
    assert "<svg" not in empty
