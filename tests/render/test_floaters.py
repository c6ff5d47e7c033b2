"""Floaters of scenes: each kind is found, surfaces stay, and a page keeps what its cameras go around."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from splat_py import Camera
from splat_py.gpu.kernels import UserType
from splat_py.render.floaters import Floaters, cleaned, remove_floaters
from splat_py.scene.camera import Distortion, affine
from splat_py.scene.editing import select, transform
from splat_py.scene.similarity import Similarity
from splat_py.shaders.declarations import SlangSource
from tests.formats.scenes import scene
from tests.refusals import refused


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
    # One camera alone has this one in its pictures.
    gaussians.means[11] = torch.from_numpy(cameras[0].position + 300 * cameras[0].forward + [0, 0, 90])
    # A surface beside a camera that reaches into its picture.
    gaussians.means[12] = torch.from_numpy(cameras[0].position + cameras[0].forward - 4 * cameras[0].viewmat[0, :3])
    gaussians.log_scales[12] = 0.4
    only = Floaters(None, None, None)
    left, counts = remove_floaters(gaussians, only, cameras)
    assert counts == {"unseen": 4, "near": 8, "smeared": 0} and torch.equal(left.means, gaussians.means[12:])
    assert remove_floaters(gaussians, replace(only, unseen=None, near=None, smeared=None), cameras)[1] == {}
    # A lens that bends the picture's edges by half sees what a pinhole would not.
    wide = [replace(camera, distortion=Distortion((0.1, 0, 0, 0), fisheye=True)) for camera in cameras]
    assert remove_floaters(gaussians, replace(only, smeared=None), wide)[1]["unseen"] == 0


@pytest.mark.parametrize("scale", [1.0, 1e-4])
@pytest.mark.parametrize(
    ("splat", "model"), [("Gaussian", None), ("own", None), ("Gaussian", "equirectangular"), ("Gaussian", "own")]
)
def test_smears_that_one_photograph_shows_go(scale: float, splat: str, model: str | None) -> None:
    """A ball that six cameras see, and blobs in front of one of them, of which the smaller half may be what is there. Nobody's
    Slang source is compiled."""
    ball, cameras = scene(2000), circle(6, 0.25)[::2]
    ball.means[:], ball.log_scales[:], ball.logit_opacities[:] = torch.nn.functional.normalize(ball.means), -3.0, 4.0
    blobs = cameras[3].position + cameras[3].forward + np.random.default_rng(0).normal(0, 0.1, (30, 3))
    ball.means[:30], ball.log_scales[:15], ball.log_scales[15:30] = torch.from_numpy(blobs), -2.5, -4.0
    moved = transform(ball, Similarity(np.eye(3), scale))
    if splat == "own":
        moved = replace(moved, splat=SlangSource("Own", "not compiled"), params={"a": torch.zeros(2000)})
    lens = UserType("Own", "not compiled") if model == "own" else model
    small = [
        replace(camera, viewmat=affine(camera.viewmat[:3, :3], scale * camera.viewmat[:3, 3]), model=lens) for camera in cameras
    ]
    left, counts = remove_floaters(moved, Floaters(None, None, None, None, None), small)
    gone = 0 if model == "own" else 15
    assert counts == {"smeared": gone} and torch.equal(left.means, moved.means[gone:])


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
