"""Scenes cropped, cleaned, moved and merged: the remaining Gaussians, and a moved scene's look from a moved camera."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from splat_py import Camera, Gaussians
from splat_py.base.errors import SplatError
from splat_py.render.views import render
from splat_py.scene.camera import Distortion
from splat_py.scene.editing import (
    Floaters,
    cleaned,
    crop,
    crop_sphere,
    keep_degree,
    merge,
    remove_faulty,
    remove_floaters,
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


def test_floaters_are_found_and_counted() -> None:
    gaussians = scene(500)
    gaussians.logit_opacities[:] = 1.0
    gaussians.logit_opacities[:7] = -8.0
    gaussians.log_scales[10:15] = 1.5
    gaussians.means[20:23] = torch.tensor([[40.0, 0, 0], [0, 60.0, 0], [0, 0, -80.0]])
    # A sky: large, and far enough away to be kept.
    gaussians.means[30:33], gaussians.log_scales[30:33] = torch.tensor([0.0, 300.0, 0]), 4.0
    left, counts = remove_floaters(gaussians)
    assert counts == {"faint": 7, "huge": 5, "isolated": 3}
    assert len(left) == 500 - 15
    assert (left.means[:, 1] == 300).sum() == 3
    only, counts = remove_floaters(gaussians, Floaters(faint=0.1, huge=None, isolated=None))
    assert counts == {"faint": 7} and len(only) == 493
    everything, _ = remove_floaters(left)
    assert len(everything) == len(left), "cleaning again removes nothing more"
    refused("huge is -1", remove_floaters, gaussians, Floaters(huge=-1))
    assert len(remove_floaters(select(gaussians, np.zeros(500, bool)))[0]) == 0


def test_floaters_between_cameras_and_what_they_see() -> None:
    gaussians = scene(500)
    gaussians.logit_opacities[:], gaussians.log_scales[:] = 1.0, -3.0
    cameras = [Camera.look_at((9 * np.cos(a), 0, 9 * np.sin(a)), (0, 0, 0), (0, 1, 0), 40, 64, 48) for a in range(6)]
    near = cameras[2].position + cameras[2].forward * np.linspace(1, 2.5, 8)[:, None]
    gaussians.means[:8] = torch.from_numpy(near)
    gaussians.means[8:11] = torch.tensor([0.0, 30, 0])
    # In the pictures of one camera only.
    gaussians.means[11] = torch.from_numpy(cameras[0].position + 300 * cameras[0].forward + [0, 0, 90])
    # A surface beside a camera that reaches into its picture.
    gaussians.means[12] = torch.from_numpy(cameras[0].position + cameras[0].forward - 4 * cameras[0].viewmat[0, :3])
    gaussians.log_scales[12] = 0.4
    only = Floaters(None, None, None)
    left, counts = remove_floaters(gaussians, only, cameras)
    assert counts == {"unseen": 4, "near": 8} and torch.equal(left.means, gaussians.means[12:])
    assert remove_floaters(gaussians, replace(only, unseen=None, near=None), cameras)[1] == {}
    # A lens that bends the picture's edges by half sees what a pinhole would not.
    wide = [replace(camera, distortion=Distortion((0.1, 0, 0, 0), fisheye=True)) for camera in cameras]
    assert remove_floaters(gaussians, only, wide)[1]["unseen"] == 0


def circle(radius: float, share: float = 1.0, outwards: bool = False) -> list[Camera]:
    """Twelve cameras on a part of a circle around the vertical through the origin, that look at the origin or away from it."""
    eyes = [radius * np.array([np.cos(a), 0, np.sin(a)]) for a in 2 * np.pi * share * np.arange(12) / 12]
    return [Camera.look_at(eye, 2 * eye if outwards else (0, 0, 0), (0, -1, 0), 40, 64, 48) for eye in eyes]


def test_what_cameras_go_around_is_left_alone_for_a_page() -> None:
    gaussians = scene(6000)
    gaussians.logit_opacities[:], gaussians.log_scales[:] = 3.0, -2.0
    gaussians.means[:] = torch.nn.functional.normalize(gaussians.means)
    # Walls of a room.
    gaussians.means[1500:] *= 12 / gaussians.means[1500:, ::2].norm(dim=1, keepdim=True)
    wall = gaussians.means[1500:, 1].abs() < 4
    gaussians = select(gaussians, np.flatnonzero(torch.cat([torch.ones(1500, dtype=torch.bool), wall]).numpy()))
    walls = int(wall.sum())
    assert walls > 1000
    kept, counts = cleaned(gaussians, circle(6))
    assert len(kept) == 1500 and counts["around the subject"] == sum(counts.values()) == walls
    # Cameras on one side, along all walls of an empty room, and panoramas crop nothing.
    empty = select(gaussians, np.arange(1500, len(gaussians)))
    panoramas = [replace(camera, model="equirectangular") for camera in circle(6)]
    for shown, cameras in ((gaussians, circle(6, 0.5)), (empty, circle(10)), (gaussians, panoramas)):
        kept, counts = cleaned(shown, cameras)
        assert len(kept) + counts["unseen"] == len(shown) > 1.1 * counts["unseen"] and "around the subject" not in counts
    assert all(cleaned(gaussians, cameras) == (gaussians, {}) for cameras in ([], circle(6, outwards=True)))
    # A floater goes in each of these, unless they look at nothing in common.
    gaussians.means[0] = torch.from_numpy(circle(6)[2].position + circle(6)[2].forward)
    assert cleaned(gaussians, circle(6, 0.5))[1]["near"] + cleaned(gaussians, circle(6, 0.5))[1]["isolated"] == 1
    gaussians.logit_opacities[:] = -9
    assert cleaned(gaussians, circle(6))[0] is gaussians


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
