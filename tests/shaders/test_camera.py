"""slang/splat/camera.slang and capture_model.slang."""

import numpy as np
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from splat_py.shaders import camera as shader
from splat_py.shaders import capture_model
from tests.reference.camera_correction import rotation_of_vector
from tests.reference.gaussian import cross_matrix, normalized
from tests.reference.spherical_harmonics import basis_at
from tests.shaders.camera_models import NO_LENS, fields_of
from tests.shaders.oracle import assert_gradients, assert_like, assert_value, float32, unit

COUNT = 40
RNG = np.random.default_rng(1)
# One camera a row, so each has its own gradients.
CAMERAS = {
    "rotation": Rotation.random(COUNT, rng=RNG).as_matrix(),
    "translation": RNG.normal(size=(COUNT, 3)),
    "focal": RNG.uniform(5, 20, (COUNT, 2)),
    "principal": RNG.uniform(0, 20, (COUNT, 2)),
    **{name: np.tile(field, (COUNT, 1)) for name, field in NO_LENS.items()},
}
POINTS = RNG.normal((0, 0, 3), size=(COUNT, 3))


def centre(camera: dict[str, Tensor]) -> Tensor:
    """The camera's centre, with rotation and translation as independent inputs."""
    return -torch.einsum("nji,nj->ni", camera["rotation"], camera["translation"])


def test_world_to_camera() -> None:
    def f(camera: dict[str, Tensor], p: Tensor) -> Tensor:
        return torch.einsum("nij,nj->ni", camera["rotation"], p) + camera["translation"]

    assert_like(shader.worldToCamera, f, [CAMERAS, POINTS])


def test_view_direction() -> None:
    """Directions along one axis, too short to be normalised, and at the centre: finite, and as the guard defines."""
    assert_like(shader.viewDirection, lambda camera, p: normalized(p - centre(camera)), [CAMERAS, POINTS])
    there = CAMERAS | {"translation": np.zeros((COUNT, 3))}
    for row, offset in enumerate([[0, 0, 2], [-3, 0, 0], [0, 1e-6, 0], [0, 0, 5e-9], [1e-9, -2e-9, 0], [0, 0, 0]]):
        one = [{name: field[row : row + 1] for name, field in there.items()}, np.array([offset], float)]
        # The gradient is up to 1e8 here, so terms cancel to within 1e-7 of that.
        atol = 1e-6 / np.clip(np.linalg.norm(offset), 1e-8, 1)
        assert_like(shader.viewDirection, lambda camera, p: normalized(p - centre(camera)), one, atol=atol)


def test_project_point() -> None:
    t = np.concatenate([RNG.normal(size=(COUNT, 2)), RNG.uniform(0.2, 5, (COUNT, 1))], axis=1)
    assert_like(shader.projectPoint, lambda c, t: c["focal"] * t[:, :2] / t[:, 2:] + c["principal"], [CAMERAS, t])


def test_coefficients_by_number() -> None:
    """Coefficients are in the order of their arguments, and each has its own gradient only."""
    lens, v = RNG.normal(size=(COUNT, 12)), RNG.normal(size=COUNT)
    camera = CAMERAS | fields_of(lens)
    for i in range(12):
        assert_value(shader.coefficient(camera, i), lens[:, i])
        v_lens = np.zeros((COUNT, 12))
        v_lens[:, i] = v
        wanted = {name: field for name, field in fields_of(v_lens).items() if field.any()}
        assert_gradients(shader.coefficient, v, [camera, i], [wanted, None])


def test_environment() -> None:
    rng = np.random.default_rng(63)
    d = float32(unit(rng.normal(size=(30, 3))))

    def over(color: Tensor, T: Tensor, d: Tensor, sh: Tensor) -> Tensor:
        return color + (torch.einsum("bk,bkc->bc", basis_at(d, 3), sh) + 0.5).relu() * T[:, None]

    arguments = [rng.uniform(size=(30, 3)), rng.uniform(size=30), d, rng.normal(0, 0.3, (30, 16, 3))]
    assert_like(capture_model.overEnvironment, over, arguments, no_diff=[2], value=(1e-5, 1e-5), atol=1e-5)


def test_directions_of_pixels() -> None:
    turn = np.array([[0.0, 0, 1], [0, 1, 0], [-1, 0, 0]])
    camera = {"rotation": turn, "translation": [1, 2, 3], "focal": [10, 20], "principal": [5, 6]}
    slope = np.array([(8 - 5) / 10, (2 - 6) / 20, 1])
    assert_value(capture_model.pixelDirection(camera | NO_LENS, [8, 2]), turn.T @ slope / np.linalg.norm(slope))


def test_rotations_from_none_to_half_a_turn() -> None:
    """Both sides of the angle below which sines are a series."""
    rng = np.random.default_rng(62)
    vectors = rng.normal(size=(40, 3))
    lengths = np.concatenate([[0, 1e-9, 1e-4, 0.499, 0.501], np.linspace(0, 3, 35)])
    vectors *= (lengths / np.linalg.norm(vectors, axis=1))[:, None]
    assert_value(rotation_of_vector(vectors), Rotation.from_rotvec(vectors).as_matrix(), atol=1e-12)
    turned = torch.func.vmap(lambda r: torch.linalg.matrix_exp(cross_matrix(r)))
    assert_like(capture_model.rotationOfVector, turned, [vectors], value=(1e-5, 2e-6), atol=1e-5)
