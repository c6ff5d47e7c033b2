"""slang/splat/projection.slang."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

import tests.reference as ref
from splat_py import shaders
from splat_py.shaders import projection as shader
from tests.shaders.camera_models import NO_LENS, fisheye, orthographic, pinhole
from tests.shaders.oracle import Array, assert_gradients, assert_value

WIDTH, HEIGHT = 37, 53
IMAGE = {"width": WIDTH, "height": HEIGHT}
BLUR = 0.3


@dataclass(frozen=True)
class Cases:
    """One Gaussian and one camera a row, so that every row has gradients of its own."""

    gaussians: dict[str, Array]
    cameras: dict[str, Array]
    points: Array  # [N, 3] the means in the camera's frame

    def __len__(self) -> int:
        return len(self.points)

    def viewmat(self, row: int) -> Array:
        viewmat = np.eye(4)
        viewmat[:3, :3] = self.cameras["rotation"][row]
        viewmat[:3, 3] = self.cameras["translation"][row]
        return viewmat

    def K(self, row: int) -> Array:
        (fx, fy), (cx, cy) = self.cameras["focal"][row], self.cameras["principal"][row]
        return np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])


def cases() -> Cases:
    """Inside the image, beyond each side of the clamp, near the camera; needles, pancakes, dust, giants."""
    rng = np.random.default_rng(5)
    count = 60
    focal, principal = rng.uniform(25, 45, (count, 2)), rng.normal((WIDTH / 2, HEIGHT / 2), size=(count, 2))
    depth = rng.uniform(1, 6, count)
    depth[::7] = 0.05
    # As multiples of the half-image: 1.3 is the clamp.
    slope = rng.uniform(-1, 1, (count, 2))
    slope[0:4] = [[2, 0.3], [-2, 0.2], [0.1, 2], [-0.3, -2]]
    slope[4:8] = [[2, 2], [-2, 2], [2, -3], [-4, -2]]
    pixels = [WIDTH / 2, HEIGHT / 2] + slope * [WIDTH / 2, HEIGHT / 2]
    points = np.concatenate([(pixels - principal) / focal, np.ones((count, 1))], axis=1) * depth[:, None]

    rotation, translation = Rotation.random(count, rng=rng).as_matrix(), rng.normal(size=(count, 3))
    # From about a pixel to a few.
    scale = np.exp(rng.uniform(np.log(0.03), np.log(0.3), (count, 3))) * depth[:, None]
    scale[20:24, 0] *= 30  # needles
    scale[24:28, 0] /= 30  # pancakes
    scale[28:32] *= 1e-4  # dust, far below a pixel
    scale[32:36] *= 1e2  # giants, far beyond the image
    gaussians = {
        "mean": np.einsum("nji,nj->ni", rotation, points - translation),
        "quat": rng.normal(size=(count, 4)) * np.exp(rng.uniform(-1, 1, (count, 1))),
        "scale": scale,
        "opacity": rng.uniform(0.1, 0.99, count),
    }
    cameras = {"rotation": rotation, "translation": translation, "focal": focal, "principal": principal}
    # What the shader is given is float32: the reference has to see the same numbers.
    gaussians, cameras = (
        {name: field.astype(np.float32).astype(float) for name, field in struct.items()} for struct in (gaussians, cameras)
    )
    points = np.einsum("nij,nj->ni", cameras["rotation"], gaussians["mean"]) + cameras["translation"]
    return Cases(gaussians, cameras, points)


CASES = cases()
COUNT = len(CASES)


def test_clamped_slope() -> None:
    t = CASES.points
    slope = t[:, :2] / t[:, 2:]
    limits = [ref.frustum_limits(CASES.K(row), WIDTH, HEIGHT) for row in range(COUNT)]
    low, high = np.moveaxis(np.array(limits), -1, 0)
    clamped = np.clip(slope, low, high)
    inside = slope == clamped
    for axis in range(2):  # every way to be clamped occurs, alone and together with the other axis
        assert np.any(slope[:, axis] < low[:, axis]) and np.any(slope[:, axis] > high[:, axis])
        assert np.any(inside[:, axis] & ~inside[:, 1 - axis])
    assert np.any(inside.all(axis=1)) and np.any(~inside.any(axis=1))
    assert_value(shaders.camera_model.clampedSlope(CASES.cameras | NO_LENS, t, IMAGE), clamped)

    v = np.random.default_rng(6).normal(size=(COUNT, 2))
    v_slope = np.where(inside, v, 0)
    v_xy = v_slope / t[:, 2:]
    v_t = np.concatenate([v_xy, -np.sum(v_xy * slope, axis=1, keepdims=True)], axis=1)
    # A limit is (b - principal) / focal with a constant b.
    v_limit = np.where(inside, 0, v) / CASES.cameras["focal"]
    v_camera = {"focal": -v_limit * clamped, "principal": -v_limit}
    assert_gradients(shaders.camera_model.clampedSlope, v, [CASES.cameras | NO_LENS, t, IMAGE], [v_camera, v_t, None])


def test_project_covariance() -> None:
    """Against J W Σ Wᵀ Jᵀ, with W, t and the root M of Σ as independent inputs."""
    rng = np.random.default_rng(7)
    roots, v, v_det = rng.normal(size=(COUNT, 3, 3)), rng.normal(size=(COUNT, 3)), rng.normal(size=COUNT)
    values, determinants, v_rotation, v_focal, v_principal, v_t, v_root = (
        np.zeros(shape) for shape in [(COUNT, 3), COUNT, (COUNT, 3, 3), (COUNT, 2), (COUNT, 2), (COUNT, 3), (COUNT, 3, 3)]
    )
    for row in range(COUNT):
        t, K, W, M = CASES.points[row : row + 1], CASES.K(row), CASES.cameras["rotation"][row], roots[row]
        (J,) = ref.perspective_jacobian(t, K, WIDTH, HEIGHT)
        P = J @ W
        cov2d = P @ M @ M.T @ P.T
        values[row] = cov2d[0, 0], cov2d[0, 1], cov2d[1, 1]
        determinants[row] = np.linalg.det(cov2d)
        # Near the camera all of this is large: let each row count as much as any other.
        size = np.abs(values[row]).max()
        v[row] /= size
        v_det[row] /= size**2
        G = np.array([[v[row, 0], v[row, 1] / 2], [v[row, 1] / 2, v[row, 2]]])
        G += v_det[row] * np.array([[cov2d[1, 1], -cov2d[0, 1]], [-cov2d[0, 1], cov2d[0, 0]]])
        v_P = 2 * G @ P @ M @ M.T
        v_rotation[row] = J.T @ v_P
        v_root[row] = 2 * P.T @ G @ P @ M
        v_t[row], v_K = ref.perspective_jacobian_backward(t, K, WIDTH, HEIGHT, (v_P @ W.T)[None])
        v_focal[row], v_principal[row] = np.diag(v_K)[:2], v_K[:2, 2]

    size = np.abs(values).max(axis=1, keepdims=True)
    arguments = [CASES.cameras | NO_LENS, CASES.points, roots, IMAGE]
    actual = shader.projectCovariance["Pinhole"](*arguments)
    assert_value(actual["entries"] / size, values / size)
    np.testing.assert_allclose(actual["determinant"], determinants, rtol=1e-5)
    expected = [{"rotation": v_rotation, "focal": v_focal, "principal": v_principal}, v_t, v_root, None]
    weights = {"entries": v, "determinant": v_det}
    assert_gradients(shader.projectCovariance["Pinhole"], weights, arguments, expected, atol=1e-5)


@pytest.mark.parametrize("antialiased", [False, True])
def test_project_gaussian(antialiased: bool) -> None:
    rng = np.random.default_rng(8)
    settings = {"blur": BLUR, "antialiased": antialiased}
    v = {
        "mean": rng.normal(size=(COUNT, 2)),
        "depth": rng.normal(size=COUNT),
        "conic": rng.normal(size=(COUNT, 3)),
        "opacity": rng.normal(size=COUNT),
    }
    values: dict[str, list[Array]] = {name: [] for name in v}
    v_gaussians: dict[str, list[Array]] = {name: [] for name in CASES.gaussians}
    v_cameras: dict[str, list[Array]] = {name: [] for name in CASES.cameras}
    for row in range(COUNT):
        one = slice(row, row + 1)
        inputs = (
            *(CASES.gaussians[name][one] for name in ("mean", "quat", "scale", "opacity")),
            CASES.viewmat(row),
            CASES.K(row),
            WIDTH,
            HEIGHT,
        )
        projected = ref.project(*inputs, eps2d=BLUR, antialiased=antialiased)
        assert projected.visible.all()
        values["mean"].append(projected.means2d[0])
        values["depth"].append(projected.depths[0])
        values["conic"].append(projected.conics[0])
        values["opacity"].append(projected.opacities[0])
        g = ref.project_backward(
            *inputs,
            v["mean"][one],
            v["depth"][one],
            v["conic"][one],
            v["opacity"][one],
            eps2d=BLUR,
            antialiased=antialiased,
        )
        v_gaussians["mean"].append(g.means[0])
        v_gaussians["quat"].append(g.quats[0])
        v_gaussians["scale"].append(g.scales[0])
        v_gaussians["opacity"].append(g.opacities[0])
        v_cameras["rotation"].append(g.viewmat[:3, :3])
        v_cameras["translation"].append(g.viewmat[:3, 3])
        v_cameras["focal"].append(np.diag(g.K)[:2])
        v_cameras["principal"].append(g.K[:2, 2])
    if antialiased:  # the floor of the compensation holds for dust, and for nothing else
        floored = np.isclose(np.array(values["opacity"]) / CASES.gaussians["opacity"], 0.005)
        np.testing.assert_array_equal(np.flatnonzero(floored), np.arange(28, 32))

    arguments = [CASES.gaussians, CASES.cameras | NO_LENS, IMAGE, settings]
    assert_value(shader.projectGaussian["Pinhole"](*arguments), {name: np.array(value) for name, value in values.items()})
    expected = [
        {name: np.array(value) for name, value in v_gaussians.items()},
        {name: np.array(value) for name, value in v_cameras.items()},
        None,
        None,
    ]
    # A needle's determinant is a difference of near equals, which antialiasing takes the root of.
    assert_gradients(shader.projectGaussian["Pinhole"], v, arguments, expected)


# x/z and y/z in multiples of half the image: 1.3 is the clamp.
CLAMPED = {
    "inside": (0.4, -0.3),
    "left": (-2.0, 0.3),
    "right": (2.0, -0.2),
    "above": (0.1, -2.0),
    "below": (-0.3, 2.0),
    "left above": (-3.0, -2.0),
    "right below": (2.0, 4.0),
}


@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("where", CLAMPED)
def test_gradient_of_each_intrinsic(where: str, antialiased: bool) -> None:
    """dL/d(fx, fy, cx, cy) of the conic and the opacity alone, against central differences of the float64 projection.

    The pixel position is left out: its gradient is by far the largest, and would hide an error in what the clamp adds.
    """
    focal, principal = np.array([[31.0, 36.0]]), np.array([[17.25, 28.5]])
    pixel = (np.array(CLAMPED[where]) + 1) * [WIDTH / 2, HEIGHT / 2]
    mean = np.append((pixel - principal[0]) / focal[0], 1.0)[None] * 3
    gaussian = {
        "mean": mean.astype(np.float32).astype(float),
        "quat": np.array([[0.75, -0.5, 0.25, 0.375]]),
        "scale": np.array([[0.125, 0.375, 0.25]]),
        "opacity": np.array([0.75]),
    }
    camera = {"rotation": np.eye(3)[None], "translation": np.zeros((1, 3)), "focal": focal, "principal": principal, **NO_LENS}
    v = {"mean": np.zeros((1, 2)), "depth": np.zeros(1), "conic": np.array([[0.5, -1.0, 2.0]]), "opacity": np.array([0.25])}

    def f(values: Array) -> float:
        K = np.array([[values[0], 0, values[2]], [0, values[1], values[3]], [0, 0, 1]])
        p = ref.project(*gaussian.values(), np.eye(4), K, WIDTH, HEIGHT, eps2d=BLUR, antialiased=antialiased)
        return float(np.sum(p.conics * v["conic"]) + np.sum(p.opacities * v["opacity"]))

    intrinsics, h = np.concatenate([focal[0], principal[0]]), 1e-3
    expected = np.array([(f(intrinsics + step) - f(intrinsics - step)) / (2 * h) for step in h * np.eye(4)])
    settings = {"blur": BLUR, "antialiased": antialiased}
    _, v_camera, _, _ = shaders.gradients(shader.projectGaussian["Pinhole"], v, gaussian, camera, IMAGE, settings)
    actual = np.concatenate([v_camera["focal"][0], v_camera["principal"][0]])
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6 * np.abs(expected).max())
    # The principal point moves a splat's shape where its axis is clamped, and there alone.
    np.testing.assert_array_equal(expected[2:] != 0, [abs(x) > 1.3 for x in CLAMPED[where]])


MODELS = {"Pinhole": pinhole, "Orthographic": orthographic, "Fisheye": fisheye}


def full_projection(name: str, antialiased: bool, mean, diagonal, others, opacity, rotation, translation, focal, principal):  # type: ignore[no-untyped-def]
    """One Gaussian's mean2d, depth, conic and opacity, in torch: J by torch, determinants by definition."""
    size = torch.tensor([WIDTH, HEIGHT], dtype=torch.float64)
    sigma = torch.cat([diagonal, others])[[0, 3, 4, 3, 1, 5, 4, 5, 2]]
    t = rotation @ mean + translation
    at = t
    if name == "Pinhole":
        low, high = (-0.15 * size - principal) / focal, (1.15 * size - principal) / focal
        at = torch.cat([torch.minimum(torch.maximum(t[:2] / t[2], low), high) * t[2], t[2:]])
    lens = torch.zeros(12).to(t)
    J = torch.func.jacfwd(MODELS[name], argnums=2)(focal, principal, at, lens) @ rotation
    sharp = J @ sigma.reshape(3, 3) @ J.T
    blurred = sharp + BLUR * torch.eye(2, dtype=torch.float64)
    det, det_sharp = (m[0, 0] * m[1, 1] - m[0, 1] ** 2 for m in (blurred, sharp))
    conic = torch.stack([blurred[1, 1], -blurred[0, 1], blurred[0, 0]]) / det
    seen = opacity * (det_sharp / det).clamp(min=0.005**2).sqrt() if antialiased else opacity
    return MODELS[name](focal, principal, t, lens), t[2], conic, seen


@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_project_full_gaussian(name: str, antialiased: bool) -> None:
    """Every output and every scalar's gradient, in three cameras, of covariances of any shape."""
    rng = np.random.default_rng(55)
    rows = slice(8, 48)
    roots = ref.quat_to_rotmat(CASES.gaussians["quat"][rows]) * CASES.gaussians["scale"][rows, None, :]
    if name == "Orthographic":
        roots /= CASES.points[rows, 2, None, None]
    sigma = roots @ roots.swapaxes(1, 2)
    upper = [sigma[:, i, j] for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))]
    diagonal, others = (np.stack(part, -1).astype(np.float32).astype(float) for part in (upper[:3], upper[3:]))
    camera = {field: value[rows] for field, value in CASES.cameras.items()}
    mean, opacity = CASES.gaussians["mean"][rows], CASES.gaussians["opacity"][rows]
    inputs = [torch.tensor(x, requires_grad=True) for x in (mean, diagonal, others, opacity, *camera.values())]
    outputs = torch.func.vmap(partial(full_projection, name, antialiased))(*inputs)
    v = [rng.normal(size=tuple(output.shape)) for output in outputs]
    names = ("mean", "depth", "conic", "opacity")
    settings = {"blur": BLUR, "antialiased": antialiased}
    arguments = [mean, {"diagonal": diagonal, "others": others}, opacity, camera | NO_LENS, IMAGE, settings]
    expected = {field: output.detach().numpy() for field, output in zip(names, outputs, strict=True)}
    project = shader.projectFullGaussian[name]
    assert_value(project(*arguments), expected, rtol=2e-5, atol=1e-5)
    gradients = torch.autograd.grad(outputs, inputs, [torch.tensor(x) for x in v])
    v_mean, v_diagonal, v_others, v_opacity, *v_camera = (g.numpy() for g in gradients)
    actual = project.gradients(dict(zip(names, v, strict=True)), *arguments)
    of_camera = dict(zip(camera, v_camera, strict=True))
    # Each row on its own scale: they differ by many orders of magnitude, and their terms cancel. A giant needle's covariance
    # hides its width behind its length, squared, and float32 has few digits left of it.
    tolerance = np.full(len(mean), 1e-4)
    tolerance[24:28] = 3e-2
    for got, wanted in (
        (actual[0], v_mean),
        (actual[1]["diagonal"], v_diagonal),
        (actual[1]["others"], v_others),
        (actual[2], v_opacity),
        *((actual[3][field], of_camera[field]) for field in camera),
    ):
        scale = np.abs(wanted.reshape(len(wanted), -1)).max(1).reshape(-1, *[1] * (wanted.ndim - 1))
        error = np.abs((got - wanted) / scale).reshape(len(mean), -1).max(1)
        np.testing.assert_array_less(error, tolerance)
    assert actual[4] is None and actual[5] is None


@pytest.mark.parametrize("name", MODELS)
def test_project_full_covariance(name: str) -> None:
    """As of the root it has, where that is known; also of a disc and of a needle, whose Σ has no inverse."""
    rng = np.random.default_rng(56)
    count = 30
    scale = np.exp(rng.uniform(-2, 0, (count, 3)))
    scale[:10, 0] = 0
    scale[10:20, :2] = 0
    roots = (ref.quat_to_rotmat(rng.normal(size=(count, 4))) * scale[:, None, :]).astype(np.float32).astype(float)
    sigma = roots @ roots.swapaxes(1, 2)
    camera, t = {field: value[:count] for field, value in CASES.cameras.items()}, CASES.points[:count]
    full = {"diagonal": sigma[:, [0, 1, 2], [0, 1, 2]], "others": sigma[:, [0, 0, 1], [1, 2, 2]]}
    actual = shader.projectFullCovariance[name](camera | NO_LENS, t, full, IMAGE)
    expected = shader.projectCovariance[name](camera | NO_LENS, t, roots, IMAGE)
    size = np.abs(expected["entries"]).max(axis=1)
    assert_value(actual["entries"] / size[:, None], expected["entries"] / size[:, None], rtol=1e-5, atol=1e-5)
    # Of the squares of the covariance's entries, of which it is the difference.
    assert_value(actual["determinant"] / size**2, expected["determinant"] / size**2, atol=2e-6)
    assert (actual["determinant"] >= 0).all()
