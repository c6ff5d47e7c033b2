"""slang/splat/camera_correction.slang."""

from __future__ import annotations

import numpy as np
from scipy.spatial.transform import Rotation

from splat_py.shaders import camera_correction as shader
from tests.reference.camera_correction import rotation_of_vector
from tests.shaders.oracle import assert_gradients, assert_value, pullback


def test_rotations_from_none_to_half_a_turn() -> None:
    """Both sides of the angle from which on sines are no series."""
    rng = np.random.default_rng(62)
    vectors = rng.normal(size=(40, 3))
    vectors *= (np.concatenate([[0, 1e-9, 1e-4, 0.499, 0.501], np.linspace(0, 3, 35)]) / np.linalg.norm(vectors, axis=1))[
        :, None
    ]
    v = rng.normal(size=(40, 3, 3))
    assert_value(shader.rotationOfVector(vectors), Rotation.from_rotvec(vectors).as_matrix(), atol=2e-6)
    assert_value(rotation_of_vector(vectors), Rotation.from_rotvec(vectors).as_matrix(), atol=1e-12)
    assert_gradients(shader.rotationOfVector, v, [vectors], pullback(rotation_of_vector, v, vectors), rtol=1e-4, atol=1e-5)
