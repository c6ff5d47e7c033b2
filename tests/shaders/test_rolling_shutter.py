"""slang/splat/rolling_shutter.slang and unscented.slang, against definitions and textbook sums in torch's float64."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splat_py.shaders import rolling_shutter as shader
from splat_py.shaders import unscented
from tests.reference.gaussian import cross_matrix
from tests.render.torch_cameras import between, project_unscented, rolling, still
from tests.shaders.camera_models import IMAGE, NO_LENS, cameras, pinhole
from tests.shaders.oracle import Array, assert_like, float32

N, WIDTH, HEIGHT = 24, 37, 53
READOUT = {"rate": [0.0, 1 / (HEIGHT - 1)], "offset": -0.5 / (HEIGHT - 1)}


def poses(rng: np.random.Generator, largest: float) -> tuple[dict[str, Array], dict[str, Array]]:
    """Cameras and their poses at the last row, turned by up to `largest` radians, some by nearly nothing."""
    first = cameras(rng, N)
    first["rotation"] *= np.linalg.det(first["rotation"])[:, None, None]
    turns = rng.normal(size=(N, 3))
    turns *= (np.geomspace(1e-4, largest, N) / np.linalg.norm(turns, axis=1))[:, None]
    rotations = np.stack([torch.linalg.matrix_exp(cross_matrix(torch.tensor(turn))).numpy() for turn in turns])
    last = {"rotation": rotations @ first["rotation"], "translation": first["translation"] + 0.1 * rng.normal(size=(N, 3))}
    return first, {name: float32(field) for name, field in last.items()}


def viewmat(pose: dict[str, Tensor], i: int) -> Tensor:
    return torch.nn.functional.pad(torch.cat([pose["rotation"][i], pose["translation"][i][:, None]], 1), (0, 0, 0, 1))


def test_poses_between_two() -> None:
    """Poses along the shortest arc, up to nearly half a turn, and beyond the ends."""
    rng = np.random.default_rng(1)
    first, last = poses(rng, 2.8)

    def f(first: dict[str, Tensor], last: dict[str, Tensor], time: Tensor) -> dict[str, Tensor]:
        then = [between(viewmat(first, i), viewmat(last, i))(time[i]) for i in range(N)]
        return first | dict(zip(("rotation", "translation"), map(torch.stack, zip(*then, strict=True)), strict=True))

    first |= {name: np.tile(field, (N, 1)) for name, field in NO_LENS.items()}
    assert_like(shader.cameraAt, f, [first, last, float32(rng.uniform(-0.5, 1.5, N))], value=(1e-5, 3e-6), atol=2e-4)


def test_when_a_row_sees_a_point() -> None:
    """The solution's derivatives are those of converged fixed-point iterations."""
    rng = np.random.default_rng(2)
    first, last = poses(rng, 0.1)
    seen = np.stack([rng.uniform(-0.5, 0.5, N), rng.uniform(-0.7, 0.7, N), np.ones(N)], -1) * rng.uniform(2, 5, N)[:, None]
    points = float32(np.einsum("nji,nj->ni", first["rotation"], seen - first["translation"]))

    def f(first: dict[str, Tensor], last: dict[str, Tensor], points: Tensor) -> Tensor:
        times = []
        for i in range(N):
            static = partial(pinhole, first["focal"][i], first["principal"][i], lens=torch.zeros(12))
            pose = viewmat(first, i), viewmat(last, i)
            pixel, _ = rolling(static, *pose, "ROLLING_TOP_TO_BOTTOM", WIDTH, HEIGHT)(points[i])
            times.append((pixel[1] - 0.5) / (HEIGHT - 1))
        return torch.stack(times)

    arguments = [first | NO_LENS, last, points]
    assert_like(shader.readTime["Pinhole"], f, arguments, [READOUT], value=(1e-5, 1e-6), atol=1e-5)
    assert np.all(shader.hasReadTime["Pinhole"](*arguments, READOUT))


def test_where_no_row_sees_a_point() -> None:
    """The point moves down as fast as rows are read, or faster."""
    rng = np.random.default_rng(3)
    first = {name: field[:3] for name, field in cameras(rng, 3).items()} | NO_LENS
    first["rotation"], first["translation"] = np.eye(3), np.array([0.0, -2.0, 0.0])
    # Pixels in the first row, and their height at the last one: half the image, all of it, twice as much.
    first["focal"], first["principal"] = np.array([50.0, 50.0]), np.array([18.5, 50.5])
    down = np.array([0.5, 1.05, 2.0]) * (HEIGHT - 1) / 50
    last = {"rotation": np.eye(3), "translation": np.stack([[0.0, -2.0 + 2 * d, 0.0] for d in down])}
    assert shader.hasReadTime["Pinhole"](first, last, np.array([0.0, 1.0, 2.0]), READOUT).tolist() == [True, False, False]


M = 12
ALPHA, BETA, KAPPA = 0.8, 1.9, 0.2
POINTS = {"spread": ALPHA**2 * (3 + KAPPA), "curvature": BETA - ALPHA**2, "margin": 0.1, "requireAll": 1}
NO_MOTION = {"rotation": np.zeros((3, 3)), "translation": np.zeros(3)}
STILL: dict[str, Any] = {"points": POINTS, "readout": {"rate": np.zeros(2), "offset": 0.0}, "image": IMAGE}


def scene(rng: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array]]:
    """Large Gaussians, over which the projection is curved, each with its camera."""
    camera = cameras(rng, M)
    seen = np.stack([rng.uniform(-0.5, 0.5, M), rng.uniform(-0.7, 0.7, M), np.ones(M)], -1) * rng.uniform(2, 4, M)[:, None]
    gaussians = {
        "mean": np.einsum("nji,nj->ni", camera["rotation"], seen - camera["translation"]),
        "quat": rng.normal(size=(M, 4)),
        "scale": rng.uniform(0.1, 0.5, (M, 3)),
        "opacity": rng.uniform(0.3, 1, M),
    }
    return {name: float32(field) for name, field in gaussians.items()}, camera


def splat_of(g: dict[str, Tensor], c: dict[str, Tensor], i: int) -> dict[str, Any]:
    static = partial(pinhole, c["focal"][i], c["principal"][i], lens=torch.zeros(12))
    camera = still(static, torch.cat([c["rotation"][i], c["translation"][i][:, None]], 1))
    of_one = [g[name][i : i + 1] for name in ("mean", "quat", "scale")]
    found = project_unscented(camera, *of_one, 1, 1, alpha=ALPHA, beta=BETA, kappa=KAPPA)
    sharp = found.sharp[0]
    covariance = {"entries": sharp[[0, 0, 1], [0, 1, 1]], "determinant": torch.linalg.det(sharp)}
    return {"mean": found.means2d[0], "depth": found.depths[0], "covariance": covariance, "opacity": g["opacity"][i]}


def stacked(fields: Sequence[Any]) -> Any:
    if isinstance(fields[0], dict):
        return {name: stacked([each[name] for each in fields]) for name in fields[0]}
    return torch.stack(fields)


def test_values_and_gradients() -> None:
    def f(g: dict[str, Tensor], c: dict[str, Tensor], motion: dict[str, Tensor]) -> dict[str, Any]:
        return stacked([splat_of(g, c, i) for i in range(M)])

    rng = np.random.default_rng(1)
    gaussians, camera = scene(rng)
    # As a conic's gradient gives them: in pixel⁻² and pixel⁻⁴, for splats of some ten pixels.
    covariance = {"entries": 1e-2 * rng.normal(size=(M, 3)), "determinant": 1e-4 * rng.normal(size=M)}
    v = {"mean": rng.normal(size=(M, 2)), "depth": rng.normal(size=M), "covariance": covariance, "opacity": rng.normal(size=M)}
    function = unscented.unscentedGaussian["Pinhole", "false", "false"]
    arguments = [gaussians, camera | NO_LENS, NO_MOTION]
    assert_like(function, f, arguments, [STILL], v=v, value=(2e-5, 1e-5), rtol=2e-4, atol=2e-5)


def test_where_sigma_points_may_lie() -> None:
    """All points, or one, must be in front of the camera, inside the image with its margin."""
    camera = {"rotation": np.eye(3), "translation": np.zeros(3), "focal": np.full(2, 20.0), "principal": np.array([18.5, 26.5])}
    # Gaussians in the middle; across the margin of each edge; beyond it; so large that some points are behind the camera; and
    # beyond the image but for one point.
    across, beyond = ([[x, 0, 2], [-x, 0, 2], [0, y, 2], [0, -y, 2]] for x, y in ((2.15, 3.11), (4.0, 5.0)))
    gaussians = {
        "mean": np.array([[0.0, 0.0, 2.0], *across, *beyond, [0.0, 0.0, 2.0], [5.0, 0.0, 2.0]]),
        "quat": np.array([1.0, 0.0, 0.0, 0.0]),
        "scale": np.array([[0.1, 0.1, 0.1]] * 9 + [[0.1, 0.1, 1.5], [2.5, 0.1, 0.1]]),
        "opacity": 1.0,
    }
    valid = unscented.areSigmaPointsValid["Pinhole", "false", "false"]
    for all_of_them, expected in ((True, [True] + [False] * 10), (False, [True] * 5 + [False] * 4 + [True] * 2)):
        ut = STILL | {"points": POINTS | {"requireAll": int(all_of_them)}}
        assert np.asarray(valid(gaussians, camera | NO_LENS, NO_MOTION, ut)).tolist() == expected


def test_whole_rows_need_a_pose_at_an_end_that_sees_the_point() -> None:
    """Gaussians that cross the image while it is read: within it, into it, out of it, and past all of it."""
    focal, principal = np.full(2, 20.0), np.array([18.5, 26.5])
    camera = {"rotation": np.eye(3), "translation": np.zeros(3), "focal": focal, "principal": principal}
    ends = [(-0.5, 0.5), (-4.0, 1.0), (-1.0, 4.0), (-4.0, 4.0)]
    gaussians = {"mean": [[x, 0.0, 2.0] for x, _ in ends], "quat": [1.0, 0.0, 0.0, 0.0], "scale": [1e-3] * 3, "opacity": 1.0}
    last = {"rotation": np.eye(3), "translation": [[end - x, 0.0, 0.0] for x, end in ends]}
    for whole_rows, expected in (("false", [True] * 4), ("true", [True] * 3 + [False])):
        valid = unscented.areSigmaPointsValid["Pinhole", "true", whole_rows]
        found = valid(
            {name: np.array(v) for name, v in gaussians.items()}, camera | NO_LENS, last, STILL | {"readout": READOUT}
        )
        assert np.asarray(found).tolist() == expected
