"""slang/splat/projection.slang."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from splat_py import shaders
from splat_py.shaders import projection as shader
from tests.reference.gaussian import rotations
from tests.reference.projection import determinants, limits, perspective_jacobian, splats
from tests.shaders.camera_models import IMAGE, NO_LENS, clamped, fisheye, orthographic, pinhole
from tests.shaders.oracle import Array, assert_like, assert_value, float32
from tests.shaders.test_gaussian import matrices

WIDTH, HEIGHT = IMAGE.values()
BLUR = 0.3
COUNT = 60
NAMES = ("mean", "depth", "conic", "opacity")


def cases() -> tuple[dict[str, Array], dict[str, Array], Array]:
    """One Gaussian and one camera a row, so each row has its own gradients; and the means in the camera's frame.

    Inside the image, beyond each side of the clamp, near the camera; needles, pancakes, dust, giants.
    """
    rng = np.random.default_rng(5)
    focal, principal = rng.uniform(25, 45, (COUNT, 2)), rng.normal((WIDTH / 2, HEIGHT / 2), size=(COUNT, 2))
    depth = rng.uniform(1, 6, COUNT)
    depth[::7] = 0.05
    # Slopes are in units of the half-image: 1.3 is the clamp.
    slope = rng.uniform(-1, 1, (COUNT, 2))
    slope[0:4] = [[2, 0.3], [-2, 0.2], [0.1, 2], [-0.3, -2]]
    slope[4:8] = [[2, 2], [-2, 2], [2, -3], [-4, -2]]
    pixels = [WIDTH / 2, HEIGHT / 2] + slope * [WIDTH / 2, HEIGHT / 2]
    points = np.concatenate([(pixels - principal) / focal, np.ones((COUNT, 1))], axis=1) * depth[:, None]

    rotation, translation = Rotation.random(COUNT, rng=rng).as_matrix(), rng.normal(size=(COUNT, 3))
    # From about a pixel to a few.
    scale = np.exp(rng.uniform(np.log(0.03), np.log(0.3), (COUNT, 3))) * depth[:, None]
    scale[20:24, 0] *= 30  # needles
    scale[24:28, 0] /= 30  # pancakes
    scale[28:32] *= 1e-4  # dust, far below a pixel
    scale[32:36] *= 1e2  # giants, far beyond the image
    gaussians = {
        "mean": np.einsum("nji,nj->ni", rotation, points - translation),
        "quat": rng.normal(size=(COUNT, 4)) * np.exp(rng.uniform(-1, 1, (COUNT, 1))),
        "scale": scale,
        "opacity": rng.uniform(0.1, 0.99, COUNT),
    }
    cameras = {"rotation": rotation, "translation": translation, "focal": focal, "principal": principal}
    gaussians, cameras = ({name: float32(field) for name, field in struct.items()} for struct in (gaussians, cameras))
    return gaussians, cameras, np.einsum("nij,nj->ni", cameras["rotation"], gaussians["mean"]) + cameras["translation"]


GAUSSIANS, CAMERAS, POINTS = cases()


def matrix(camera: dict[str, Tensor]) -> Tensor:
    upper = torch.cat([camera["focal"].diag(), camera["principal"][:, None]], 1)
    return torch.cat([upper, torch.tensor([[0.0, 0, 1]])])


def of_cameras(camera: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: camera[name] for name in CAMERAS}


def test_clamped_slope() -> None:
    def f(camera: dict[str, Tensor], t: Tensor) -> Tensor:
        low, high = torch.func.vmap(lambda c: limits(matrix(c), WIDTH, HEIGHT))(of_cameras(camera))
        slope = t[:, :2] / t[:, 2:]
        inside = (slope >= low) & (slope <= high)
        for axis in range(2):  # every way to be clamped occurs, alone and together with the other axis
            assert (
                (slope < low)[:, axis].any()
                and (slope > high)[:, axis].any()
                and (inside[:, axis] & ~inside[:, 1 - axis]).any()
            )
        assert inside.all(1).any() and (~inside.any(1)).any()
        return slope.clamp(low, high)

    assert_like(shaders.camera_model.clampedSlope, f, [CAMERAS | NO_LENS, POINTS], [IMAGE])


def test_project_covariance() -> None:
    """Against J W Σ Wᵀ Jᵀ, with W, t and the root M of Σ as independent inputs."""

    def f(camera: dict[str, Tensor], t: Tensor, roots: Tensor) -> dict[str, Tensor]:
        jacobians = torch.func.vmap(lambda c, p: perspective_jacobian(p[None], matrix(c), WIDTH, HEIGHT)[0])
        P = jacobians(of_cameras(camera), t) @ camera["rotation"] @ roots
        sigma = P @ P.mT
        return {"entries": sigma[:, [0, 0, 1], [0, 1, 1]], "determinant": determinants(sigma)}

    roots = torch.from_numpy(np.random.default_rng(7).normal(size=(COUNT, 3, 3)))
    camera, t = {name: torch.from_numpy(field) for name, field in CAMERAS.items()}, torch.from_numpy(POINTS)
    # Values are large near the camera; this makes every row count the same.
    roots /= f(camera, t, roots)["entries"].abs().amax(1).sqrt()[:, None, None]
    arguments = [CAMERAS | NO_LENS, POINTS, float32(roots)]
    function = shader.projectCovariance["Pinhole"]
    assert_like(function, f, arguments, [IMAGE], atol=1e-5)
    expected = f(camera, t, torch.from_numpy(arguments[2]))["determinant"]
    np.testing.assert_allclose(function(*arguments, IMAGE)["determinant"], expected, rtol=1e-5)


@pytest.mark.parametrize("antialiased", [False, True])
def test_project_gaussian(antialiased: bool) -> None:
    """Half of the rows, including the clamped ones, without the pixel position, which would hide the effect of the clamp."""

    def f(gaussians: dict[str, Tensor], camera: dict[str, Tensor]) -> dict[str, Tensor]:
        def one(g: dict[str, Tensor], c: dict[str, Tensor]) -> dict[str, Tensor]:
            viewmat = torch.cat([c["rotation"], c["translation"][:, None]], 1)
            fields = (g[name][None] for name in GAUSSIANS)
            found = splats(*fields, viewmat, matrix(c), WIDTH, HEIGHT, eps2d=BLUR, antialiased=antialiased)
            return {name: field[0] for name, field in zip(NAMES, found, strict=True)}

        found = torch.func.vmap(one)(gaussians, of_cameras(camera))
        if antialiased:  # only dust reaches the floor of the compensation
            floored = torch.isclose(found["opacity"] / gaussians["opacity"], torch.tensor(0.005).double())
            assert floored.nonzero().ravel().tolist() == [28, 29, 30, 31]
        return dict(found)

    rng = np.random.default_rng(8)
    v = {name: rng.normal(size=(COUNT, *rest)) for name, rest in zip(NAMES, ((2,), (), (3,), ()), strict=True)}
    v["mean"][::2], v["mean"][:8] = 0, 0
    settings = {"blur": BLUR, "antialiased": antialiased}
    # A needle's determinant is a difference of near equals, and antialiasing takes its root.
    assert_like(shader.projectGaussian["Pinhole"], f, [GAUSSIANS, CAMERAS | NO_LENS], [IMAGE, settings], v=v)


MODELS = {"Pinhole": pinhole, "Orthographic": orthographic, "Fisheye": fisheye}


def full_projection(name: str, antialiased: bool, mean, diagonal, others, opacity, rotation, translation, focal, principal):  # type: ignore[no-untyped-def]
    """One Gaussian's mean2d, depth, conic and opacity, in torch: J by torch, determinants by definition."""
    sigma = torch.cat([diagonal, others])[[0, 3, 4, 3, 1, 5, 4, 5, 2]]
    t = rotation @ mean + translation
    lens = torch.zeros(12).to(t)
    at = clamped(focal, principal, t, lens, WIDTH, HEIGHT) if name == "Pinhole" else t
    J = torch.func.jacfwd(MODELS[name], argnums=2)(focal, principal, at, lens) @ rotation
    sharp = J @ sigma.reshape(3, 3) @ J.T
    blurred = sharp + BLUR * torch.eye(2, dtype=torch.float64)
    det, det_sharp = determinants(blurred[None])[0], determinants(sharp[None])[0]
    conic = torch.stack([blurred[1, 1], -blurred[0, 1], blurred[0, 0]]) / det
    seen = opacity * (det_sharp / det).clamp(min=0.005**2).sqrt() if antialiased else opacity
    return MODELS[name](focal, principal, t, lens), t[2], conic, seen


def covariances(roots: np.ndarray) -> dict[str, np.ndarray]:
    """M Mᵀ of roots M [N, 3, 3], as the fields of `Covariance3D`."""
    sigma = roots @ roots.swapaxes(1, 2)
    return {"diagonal": float32(sigma[:, [0, 1, 2], [0, 1, 2]]), "others": float32(sigma[:, [0, 0, 1], [1, 2, 2]])}


@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_project_full_gaussian(name: str, antialiased: bool) -> None:
    """Every output and every number's gradient, in three cameras, for covariances of any shape."""
    rng = np.random.default_rng(55)
    rows = slice(8, 48)
    roots = rotations(torch.from_numpy(GAUSSIANS["quat"][rows])).numpy() * GAUSSIANS["scale"][rows, None, :]
    if name == "Orthographic":
        roots /= POINTS[rows, 2, None, None]
    sigma = covariances(roots)
    camera = {field: value[rows] for field, value in CAMERAS.items()}
    mean, opacity = GAUSSIANS["mean"][rows], GAUSSIANS["opacity"][rows]
    inputs = [torch.tensor(x, requires_grad=True) for x in (mean, *sigma.values(), opacity, *camera.values())]
    outputs = torch.func.vmap(partial(full_projection, name, antialiased))(*inputs)
    v = [rng.normal(size=tuple(output.shape)) for output in outputs]
    settings = {"blur": BLUR, "antialiased": antialiased}
    arguments = [mean, sigma, opacity, camera | NO_LENS, IMAGE, settings]
    expected = {field: output.detach().numpy() for field, output in zip(NAMES, outputs, strict=True)}
    project = shader.projectFullGaussian[name]
    assert_value(project(*arguments), expected, rtol=2e-5, atol=1e-5)
    gradients = torch.autograd.grad(outputs, inputs, [torch.tensor(x) for x in v])
    v_mean, v_diagonal, v_others, v_opacity, *v_camera = (g.numpy() for g in gradients)
    actual = project.gradients(dict(zip(NAMES, v, strict=True)), *arguments)
    of_camera = dict(zip(camera, v_camera, strict=True))
    # Each row on its own scale: rows differ by orders of magnitude, and their terms cancel. In a giant needle's covariance,
    # the squared length hides the width, and few of its float32 digits are left.
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


@pytest.mark.parametrize("name", ["Pinhole", "Fisheye"])
def test_needles_seen_nearly_end_on(name: str) -> None:
    """Conics of covariances of needles, 100 times as long as wide, that point to the camera up to a degree."""
    rng = np.random.default_rng(57)
    count, scales = 30, np.array([2e-2, 2e-4, 1e-4])
    mean = float32(np.array([-0.53, 0.39, 0.76]) + rng.normal(0, 0.01, (count, 3)))
    along = mean / np.linalg.norm(mean, axis=1, keepdims=True) + rng.normal(0, 0.01, (count, 3))
    roots = np.stack([np.linalg.qr(np.column_stack([first, rng.normal(size=(3, 2))]))[0] * scales for first in along])
    sigma = covariances(roots)
    camera = {"rotation": np.eye(3), "translation": np.zeros(3), "focal": np.full(2, 480.0), "principal": np.full(2, 320.0)}
    camera = {field: np.broadcast_to(value, (count, *value.shape)).copy() for field, value in camera.items()}
    inputs = [torch.tensor(x) for x in (mean, *sigma.values(), np.ones(count), *camera.values())]
    expected = torch.func.vmap(partial(full_projection, name, False))(*inputs)[2]
    settings = {"blur": BLUR, "antialiased": False}
    given = [mean, sigma, np.ones(count), camera | NO_LENS, IMAGE, settings]
    np.testing.assert_allclose(shader.projectFullGaussian[name](*given)["conic"], expected, rtol=2e-5, atol=3e-5)


@pytest.mark.parametrize("name", MODELS)
def test_project_full_covariance(name: str) -> None:
    """Equal to the result from its root; also for a disc and a needle, whose Σ has no inverse."""
    rng = np.random.default_rng(56)
    count = 30
    scale = np.exp(rng.uniform(-2, 0, (count, 3)))
    scale[:10, 0] = 0
    scale[10:20, :2] = 0
    roots = float32(rotations(torch.from_numpy(rng.normal(size=(count, 4)))).numpy() * scale[:, None, :])
    camera, t = {field: value[:count] for field, value in CAMERAS.items()}, POINTS[:count]
    actual = shader.projectFullCovariance[name](camera | NO_LENS, t, covariances(roots), IMAGE)
    expected = shader.projectCovariance[name](camera | NO_LENS, t, roots, IMAGE)
    size = np.abs(expected["entries"]).max(axis=1)
    assert_value(actual["entries"] / size[:, None], expected["entries"] / size[:, None], rtol=1e-5, atol=1e-5)
    # Relative to the squares of the covariance's entries, whose difference it is.
    assert_value(actual["determinant"] / size**2, expected["determinant"] / size**2, atol=2e-6)
    assert (actual["determinant"] >= 0).all()


def test_a_negative_determinant_counts_as_zero_and_keeps_its_gradient() -> None:
    """Rounding makes it negative for flat Gaussians; here matrices that are no covariances do."""
    rng = np.random.default_rng(58)
    axes, sigma = ({name: rng.normal(size=(40, 3)) for name in names} for names in (("x", "y"), ("diagonal", "others")))

    def projected(v: dict[str, Tensor], sigma: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = torch.stack([v["x"], v["y"]], 1)
        covariance = rows @ matrices(sigma) @ rows.mT
        determinant = covariance.det()
        assert 0.2 < (determinant < 0).float().mean() < 0.9
        return {
            "entries": covariance[:, [0, 0, 1], [0, 1, 1]],
            "determinant": determinant - determinant.clamp(max=0).detach(),
        }

    assert_like(shader.fullCovarianceOf, projected, [axes, sigma], atol=1e-5)
