"""Scenes cropped, moved and merged: the remaining Gaussians, and a moved scene's look from a moved camera."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from splat_py import Camera, Gaussians
from splat_py.base.errors import SplatError
from splat_py.render.views import render
from splat_py.scene.editing import (
    crop,
    crop_sphere,
    keep_degree,
    merge,
    remove_faulty,
    select,
    transform,
)
from splat_py.scene.formats.ply import write_gaussians
from splat_py.scene.similarity import Similarity, harmonics_basis, rotate_harmonics, rotation_matrices
from tests.formats.scenes import scene
from tests.reference import sh_basis
from tests.refusals import refused


def a_rotation(seed: int) -> Similarity:
    return Similarity(rotation_matrices(np.random.default_rng(seed).normal(size=4)))


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_rotated_harmonics_are_the_function_rotated(degree: int) -> None:
    random = np.random.default_rng(3)
    directions = random.normal(size=(200, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    coefficients = (degree + 1) ** 2
    np.testing.assert_allclose(harmonics_basis(directions)[:, :coefficients], sh_basis(directions, degree), atol=1e-14)
    sh, rotation = random.normal(size=(5, coefficients, 3)), a_rotation(4).rotation
    here = np.einsum("dk,nkc->ndc", sh_basis(directions @ rotation.T, degree), rotate_harmonics(sh, rotation))
    np.testing.assert_allclose(here, np.einsum("dk,nkc->ndc", sh_basis(directions, degree), sh), atol=1e-12)


def test_rotations_and_quaternions_are_inverse() -> None:
    for seed in range(20):
        one = a_rotation(seed)
        np.testing.assert_allclose(rotation_matrices(one.quat), one.rotation, atol=1e-12)
    for half_turn in (np.diag([1.0, -1, -1]), np.diag([-1.0, 1, -1]), np.diag([-1.0, -1, 1]), np.eye(3)):
        np.testing.assert_allclose(rotation_matrices(Similarity(half_turn).quat), half_turn, atol=1e-12)
    np.testing.assert_allclose(Similarity.from_degrees(0, 0, 90).rotation @ [1, 0, 0], [0, 1, 0], atol=1e-12)
    np.testing.assert_allclose(Similarity.from_degrees(90, 90, 0).rotation @ [0, 1, 0], [1, 0, 0], atol=1e-12)
    for matrix in (np.diag([1, 1, -1, 1.0]), np.diag([1, 2, 1, 1.0]), np.diag([0, 0, 0, 1.0])):
        refused("mirrors or shears", Similarity.of_matrix, matrix)
    for scale in (0.0, -1.0, np.nan, np.inf):
        refused("above zero", Similarity, scale=scale)


def test_a_transformed_scene_looks_the_same_from_a_transformed_camera() -> None:
    gaussians = scene()
    similarity = Similarity(a_rotation(1).rotation, 1.7, np.array([3.0, -2.0, 0.5]))
    eye, target, up = np.array([0, 0.5, -4.0]), np.zeros(3), np.array([0, -1.0, 0.2])
    moved = similarity.points(np.stack([eye, target]))
    before = Camera.look_at(eye, target, up, 45, 64, 48)
    after = Camera.look_at(moved[0], moved[1], similarity.rotation @ up, 45, 64, 48)
    there, here = render(transform(gaussians, similarity), after), render(gaussians, before)
    assert here.std() > 0.05
    np.testing.assert_allclose(there, here, atol=2e-4)
    unturned = replace(transform(gaussians, similarity), sh=gaussians.sh)
    assert np.abs(render(unturned, after) - here).max() > 0.05
    back = Similarity(similarity.rotation.T, 1 / 1.7, -similarity.rotation.T @ similarity.translation / 1.7)
    np.testing.assert_allclose(transform(transform(gaussians, similarity), back).means, gaussians.means, atol=1e-5)


@pytest.mark.parametrize("factor", [1e38, 1e-38])
def test_what_leaves_float32_is_refused(factor: float) -> None:
    tiny = scene()
    tiny.log_scales[0] = -90.0
    assert len(transform(tiny, Similarity(scale=2.0))) == 60
    with pytest.raises(SplatError, match=rf"scaled by {re.escape(f'{factor:g}')} .* of 60 Gaussians are too far"):
        transform(transform(tiny, Similarity(scale=factor)), Similarity(scale=factor))


def test_faulty_ones_are_refused_with_a_count_and_left_out_when_asked(tmp_path: Path) -> None:
    faulty = scene(5000, 0)
    faulty.quats[16] = 0
    faulty.means[99, 1] = torch.nan
    faulty.sh[4999] = torch.inf
    path = tmp_path / "a scene.ply"
    write_gaussians(path, faulty.arrays())
    with pytest.raises(SplatError, match=r"3 of 5,000 Gaussians, .* in row 17, .* in means, quats, sh;") as refused:
        Gaussians.load(path)
    assert str(refused.value).endswith(f"splat edit '{path}' repaired.ply --remove-faulty")
    kept, count = remove_faulty(Gaussians.load(path, with_faulty=True))
    assert count == 3 and len(kept) == 4997
    kept.validate()
    torch.testing.assert_close(kept.means[15:17], faulty.means[[15, 17]])


def test_crops_keep_what_is_inside() -> None:
    gaussians = scene(200)
    inside = crop(gaussians, (-1, -0.5, -2), (0.5, 1, 2))
    expected = ((gaussians.means >= torch.tensor([-1, -0.5, -2])) & (gaussians.means <= torch.tensor([0.5, 1, 2]))).all(1)
    assert 0 < len(inside) < 200
    assert torch.equal(inside.sh, gaussians.sh[expected])
    ball = crop_sphere(gaussians, (1, 0, 0), 1.2)
    assert len(ball) == int(((gaussians.means - torch.tensor([1.0, 0, 0])).norm(dim=1) <= 1.2).sum())
    refused("lowest corner first", crop, gaussians, (0, 0, 0), (1, -1, 1))
    refused("radius is -1", crop_sphere, gaussians, (0, 0, 0), -1)


def test_merged_scenes_have_all_gaussians_and_the_highest_degree() -> None:
    first, second = scene(5, 1), scene(7, 3, seed=1)
    both = merge([first, second])
    both.validate()
    assert len(both) == 12 and both.sh_degree == 3
    assert torch.equal(both.sh[:5, :4], first.sh) and not both.sh[:5, 4:].any()
    assert torch.equal(both.quats[5:], second.quats)
    assert merge([first]) is first
    refused("antialiased", merge, [first, replace(second, antialiased=True)])
    refused("different types", merge, [first, replace(second, splat="BetaKernel", params={"b": torch.zeros(7)})])
    refused("no scene", merge, [])
    gaussians = scene(4)
    assert [keep_degree(gaussians, degree).sh_degree for degree in range(4)] == [0, 1, 2, 3]
    assert keep_degree(keep_degree(gaussians, 1), 3).sh_degree == 1
    refused("degree of harmonics is 4", keep_degree, gaussians, 4)


def test_parameters_and_features_go_with_their_gaussians() -> None:
    gaussians = replace(scene(6), splat="BetaKernel", params={"b": torch.arange(6.0)}, color="SphericalGaussians")
    gaussians = replace(gaussians, features=torch.arange(6.0)[:, None])
    kept = select(gaussians, np.array([4, 1]))
    assert kept.params["b"].tolist() == [4, 1] and kept.features is not None and kept.features[:, 0].tolist() == [4, 1]
    moved = transform(gaussians, Similarity(scale=2.0))
    assert moved.splat == "BetaKernel" and torch.allclose(moved.means, 2 * gaussians.means)
    refused("SphericalGaussians cannot be rotated", transform, gaussians, a_rotation(0))
