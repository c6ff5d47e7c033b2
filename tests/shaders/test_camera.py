"""slang/splat/camera.slang."""

from __future__ import annotations

import numpy as np
from scipy.spatial.transform import Rotation

from splat_py.shaders import camera as shader
from tests.reference.gaussian import guarded_normalize, guarded_normalize_backward
from tests.shaders.camera_models import NO_LENS
from tests.shaders.oracle import Array, assert_gradients, assert_value, pullback

COUNT = 40
RNG = np.random.default_rng(1)
# A camera a row, so that each has gradients of its own.
CAMERAS = {
    "rotation": Rotation.random(COUNT, rng=RNG).as_matrix(),
    "translation": RNG.normal(size=(COUNT, 3)),
    "focal": RNG.uniform(5, 20, (COUNT, 2)),
    "principal": RNG.uniform(0, 20, (COUNT, 2)),
    **{name: np.tile(field, (COUNT, 1)) for name, field in NO_LENS.items()},
}
ROTATIONS, TRANSLATIONS = CAMERAS["rotation"], CAMERAS["translation"]
POINTS = RNG.normal((0, 0, 3), size=(COUNT, 3))


def test_world_to_camera() -> None:
    def f(rotation: Array, translation: Array, p: Array) -> Array:
        return np.einsum("nij,nj->ni", rotation, p) + translation

    v = RNG.normal(size=(COUNT, 3))
    assert_value(shader.worldToCamera(CAMERAS, POINTS), f(ROTATIONS, TRANSLATIONS, POINTS))
    v_rotation, v_translation, v_p = pullback(f, v, ROTATIONS, TRANSLATIONS, POINTS)
    expected = [{"rotation": v_rotation, "translation": v_translation}, v_p]
    assert_gradients(shader.worldToCamera, v, [CAMERAS, POINTS], expected)


def test_camera_centre_treats_rotation_and_translation_as_independent() -> None:
    def f(rotation: Array, translation: Array) -> Array:
        return -np.einsum("nji,nj->ni", rotation, translation)

    v = RNG.normal(size=(COUNT, 3))
    assert_value(shader.cameraCentre(CAMERAS), f(ROTATIONS, TRANSLATIONS))
    v_rotation, v_translation = pullback(f, v, ROTATIONS, TRANSLATIONS)
    expected = [{"rotation": v_rotation, "translation": v_translation}]
    assert_gradients(shader.cameraCentre, v, [CAMERAS], expected)


def test_view_direction() -> None:
    def f(rotation: Array, translation: Array, p: Array) -> Array:
        offset = p + np.einsum("nji,nj->ni", rotation, translation)
        return offset / np.sqrt(np.sum(offset * offset, axis=1, keepdims=True))

    v = RNG.normal(size=(COUNT, 3))
    assert_value(shader.viewDirection(CAMERAS, POINTS), f(ROTATIONS, TRANSLATIONS, POINTS))
    v_rotation, v_translation, v_p = pullback(f, v, ROTATIONS, TRANSLATIONS, POINTS)
    expected = [{"rotation": v_rotation, "translation": v_translation}, v_p]
    assert_gradients(shader.viewDirection, v, [CAMERAS, POINTS], expected)


def test_view_direction_at_the_camera_itself() -> None:
    """Along one axis, too near to be normalised, and at the very centre: finite, and as the guard says."""
    count = 6
    offsets = np.array([[0, 0, 2], [-3, 0, 0], [0, 1e-6, 0], [0, 0, 5e-9], [1e-9, -2e-9, 0], [0, 0, 0]])
    camera = {name: field[:count] for name, field in CAMERAS.items()} | {"translation": np.zeros((count, 3))}
    v = RNG.normal(size=(count, 3))
    assert_value(shader.viewDirection(camera, offsets), guarded_normalize(offsets)[0])
    v_p = guarded_normalize_backward(offsets, v)
    # camera centre = -Rᵀ t
    v_translation = np.einsum("nij,nj->ni", camera["rotation"], v_p)
    expected = [{"translation": v_translation}, v_p]
    # The gradient is up to 1e8 here: what cancels does so within 1e-7 of that.
    for row in range(count):
        one = {name: field[row : row + 1] for name, field in camera.items()}
        atol = 1e-6 * max(1.0, float(np.abs(v_p[row]).max()))
        assert_gradients(
            shader.viewDirection,
            v[row : row + 1],
            [one, offsets[row : row + 1]],
            [{"translation": expected[0]["translation"][row : row + 1]}, v_p[row : row + 1]],
            atol=atol,
        )


def test_project_point() -> None:
    def f(focal: Array, principal: Array, t: Array) -> Array:
        return focal * t[:, :2] / t[:, 2:] + principal

    t = np.concatenate([RNG.normal(size=(COUNT, 2)), RNG.uniform(0.2, 5, (COUNT, 1))], axis=1)
    v = RNG.normal(size=(COUNT, 2))
    inputs = CAMERAS["focal"], CAMERAS["principal"], t
    assert_value(shader.projectPoint(CAMERAS, t), f(*inputs))
    v_focal, v_principal, v_t = pullback(f, v, *inputs)
    assert_gradients(shader.projectPoint, v, [CAMERAS, t], [{"focal": v_focal, "principal": v_principal}, v_t])
