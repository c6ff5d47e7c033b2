"""slang/splat/rolling_shutter.slang, against torch's float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from splat_py.shaders import rolling_shutter as shader
from tests.shaders.camera_models import NO_LENS, cameras
from tests.shaders.oracle import Array, assert_gradients, assert_value
from tests.splats.torch_cameras import between, cross_matrix, rolling

N, WIDTH, HEIGHT = 24, 37, 53
READOUT = {"rate": [0.0, 1 / (HEIGHT - 1)], "offset": -0.5 / (HEIGHT - 1)}


def poses(rng: np.random.Generator, largest: float) -> tuple[dict[str, Array], dict[str, Array]]:
    """Cameras, and where they are at the last row: turned by up to so many radians, some of them by next to nothing."""
    first = cameras(rng, N)
    first["rotation"] *= np.linalg.det(first["rotation"])[:, None, None]
    turns = rng.normal(size=(N, 3))
    turns *= (np.geomspace(1e-4, largest, N) / np.linalg.norm(turns, axis=1))[:, None]
    rotations = np.stack([torch.linalg.matrix_exp(cross_matrix(torch.tensor(turn))).numpy() for turn in turns])
    last = {"rotation": rotations @ first["rotation"], "translation": first["translation"] + 0.1 * rng.normal(size=(N, 3))}
    return first, {name: field.astype(np.float32).astype(float) for name, field in last.items()}


def leaves(*structs: dict[str, Array] | Array) -> list[Any]:
    return [
        {name: torch.tensor(field, requires_grad=True) for name, field in struct.items()}
        if isinstance(struct, dict)
        else torch.tensor(struct, requires_grad=True)
        for struct in structs
    ]


def gradient(value: dict[str, Tensor] | Tensor) -> Any:
    if isinstance(value, dict):
        return {name: tensor.grad.numpy() for name, tensor in value.items() if tensor.grad is not None}
    assert value.grad is not None
    return value.grad.numpy()


def viewmat(pose: dict[str, Tensor], i: int) -> Tensor:
    return torch.nn.functional.pad(torch.cat([pose["rotation"][i], pose["translation"][i][:, None]], 1), (0, 0, 0, 1))


def test_poses_between_two() -> None:
    """Along the shortest arc, up to nearly half a turn, and beyond the ends."""
    rng = np.random.default_rng(1)
    (first, last), time = poses(rng, 2.8), rng.uniform(-0.5, 1.5, N).astype(np.float32).astype(float)
    v = {"rotation": rng.normal(size=(N, 3, 3)), "translation": rng.normal(size=(N, 3))}
    twin_first, twin_last, twin_time = leaves(first, last, time)
    poses_then = [between(viewmat(twin_first, i), viewmat(twin_last, i))(twin_time[i]) for i in range(N)]
    rotation, translation = (torch.stack(part) for part in zip(*poses_then, strict=True))
    ((rotation * torch.tensor(v["rotation"])).sum() + (translation * torch.tensor(v["translation"])).sum()).backward()
    actual = shader.cameraAt(first | NO_LENS, last, time)
    assert_value(actual["rotation"], rotation.detach().numpy(), atol=3e-6)
    assert_value(actual["translation"], translation.detach().numpy())
    expected = [gradient(twin_first), gradient(twin_last), gradient(twin_time)]
    assert_gradients(shader.cameraAt, v, [first | NO_LENS, last, time], expected, atol=2e-4)


def test_when_a_row_sees_a_point() -> None:
    """The solution's derivatives, those of fixed-point iterations that have converged."""
    rng = np.random.default_rng(2)
    first, last = poses(rng, 0.1)
    seen = np.stack([rng.uniform(-0.5, 0.5, N), rng.uniform(-0.7, 0.7, N), np.ones(N)], -1) * rng.uniform(2, 5, N)[:, None]
    points = np.einsum("nji,nj->ni", first["rotation"], seen - first["translation"]).astype(np.float32).astype(float)
    v = rng.normal(size=N)
    twin_first, twin_last, twin_points = leaves(first, last, points)
    times = []
    for i in range(N):

        def static(t: Tensor, i: int = i) -> Tensor:
            return twin_first["focal"][i] * t[:2] / t[2] + twin_first["principal"][i]

        pose = viewmat(twin_first, i), viewmat(twin_last, i)
        pixel, _ = rolling(static, *pose, "ROLLING_TOP_TO_BOTTOM", WIDTH, HEIGHT)(twin_points[i])
        times.append((pixel[1] - 0.5) / (HEIGHT - 1))
    time = torch.stack(times)
    (time * torch.tensor(v)).sum().backward()
    read_time, arguments = shader.readTime["Pinhole"], [first | NO_LENS, last, points, READOUT]
    assert_value(read_time(*arguments), time.detach().numpy(), rtol=1e-5)
    expected = [gradient(twin_first), gradient(twin_last), gradient(twin_points), None]
    assert_gradients(read_time, v, arguments, expected, atol=1e-5)
    assert np.all(shader.hasReadTime["Pinhole"](*arguments))


def test_where_no_row_sees_a_point() -> None:
    """It moves down as fast as rows are read, or faster."""
    rng = np.random.default_rng(3)
    first = {name: field[:3] for name, field in cameras(rng, 3).items()} | NO_LENS
    first["rotation"], first["translation"] = np.eye(3), np.array([0.0, -2.0, 0.0])
    # Pixels in the first row, and how far down they are at the last one: half the image, all of it, twice as much.
    first["focal"], first["principal"] = np.array([50.0, 50.0]), np.array([18.5, 50.5])
    down = np.array([0.5, 1.05, 2.0]) * (HEIGHT - 1) / 50
    last = {"rotation": np.eye(3), "translation": np.stack([[0.0, -2.0 + 2 * d, 0.0] for d in down])}
    assert shader.hasReadTime["Pinhole"](first, last, np.array([0.0, 1.0, 2.0]), READOUT).tolist() == [True, False, False]
