"""slang/splat/segment.slang."""

from __future__ import annotations

import numpy as np
import pytest

from splat_py.shaders import segment as shader
from tests.shaders.oracle import Array, assert_gradients, assert_value, pullback
from tests.volume import reference as ref

BOX = np.array([[0.0, 0, 0], [1, 1, 1]])
COUNT = 48
RNG = np.random.default_rng(47)


def float32(array: Array) -> Array:
    return array.astype(np.float32).astype(float)


def rays() -> tuple[Array, Array]:
    """From outside, some past the box, and from inside."""
    origins = RNG.normal(size=(COUNT, 3))
    origins = 0.5 + 2 * origins / np.linalg.norm(origins, axis=1, keepdims=True)
    origins[:12] = RNG.uniform(0.1, 0.9, (12, 3))
    directions = RNG.uniform(-0.4, 1.4, (COUNT, 3)) - origins
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return float32(origins), float32(directions)


ORIGINS, DIRECTIONS = rays()


@pytest.mark.parametrize("steps_per_unit", [0.1, 3.7, 64])
def test_segment(steps_per_unit: float) -> None:
    """Equal steps, no longer than asked for, of what the box cuts out of a ray."""
    box = {"low": BOX[0], "high": BOX[1]}
    actual = shader.segmentOf(ORIGINS, DIRECTIONS, box, steps_per_unit)
    missed = 0
    for ray in range(COUNT):
        near, far = ref.chord(ORIGINS[ray], DIRECTIONS[ray], BOX)
        if far <= near:
            assert actual["count"][ray] == 0
            missed += 1
            continue
        count = max(int(np.ceil((far - near) * steps_per_unit - 1e-3)), 1)
        assert actual["count"][ray] == count
        np.testing.assert_allclose(actual["near"][ray], near, atol=2e-6)
        np.testing.assert_allclose(actual["step"][ray], (far - near) / count, rtol=1e-4)
    assert 0 < missed < COUNT / 2
    assert not np.any(actual["jitter"])


def test_near_and_step() -> None:
    """Values and gradients, by central differences in float64, of rays that hit the box."""
    hits = np.array([np.subtract(*ref.chord(o, d, BOX)) < -0.05 for o, d in zip(ORIGINS, DIRECTIONS, strict=True)])
    origins, directions = ORIGINS[hits], DIRECTIONS[hits]
    counts = np.arange(1.0, 1 + len(origins))

    def reference(o: Array, d: Array) -> Array:
        ends = np.array([ref.chord(*ray, BOX) for ray in zip(o, d, strict=True)])
        return np.stack([ends[:, 0], (ends[:, 1] - ends[:, 0]) / counts], axis=1)

    arguments = [origins, directions, {"low": BOX[0], "high": BOX[1]}, counts]
    assert_value(shader.nearAndStep(*arguments), reference(origins, directions), atol=2e-6)
    v = RNG.normal(size=(len(origins), 2))
    expected = np.zeros((2, *origins.shape))
    for which, axis in np.ndindex(2, 3):
        ends = []
        for sign in (1, -1):
            moved = [origins.copy(), directions.copy()]
            moved[which][:, axis] += sign * 1e-7
            ends.append((v * reference(*moved)).sum(1))
        expected[which, :, axis] = (ends[0] - ends[1]) / 2e-7
    # Only that of the face counts where a ray enters or leaves; none where it begins inside.
    assert (np.abs(expected[0]) > 1e-3).sum() < expected[0].size and expected[0].any(0).all()
    assert_gradients(shader.nearAndStep, v, arguments, [*expected, None, None], rtol=2e-4, atol=2e-5)


def test_point_on() -> None:
    ranges, places = RNG.uniform(0, 2, (COUNT, 2)), RNG.uniform(0, 9, COUNT)

    def reference(o: Array, d: Array, r: Array) -> Array:
        t = r[:, :1] + places[:, None] * r[:, 1:]
        return np.concatenate([o + d * t, t], axis=1)

    value = reference(ORIGINS, DIRECTIONS, ranges)
    arguments = [ORIGINS, DIRECTIONS, ranges, places]
    assert_value(shader.pointOn(*arguments), {"position": value[:, :3], "t": value[:, 3]})
    v = RNG.normal(size=(COUNT, 4))
    expected = pullback(reference, v, ORIGINS, DIRECTIONS, ranges)
    assert_gradients(shader.pointOn, {"position": v[:, :3], "t": v[:, 3]}, arguments, [*expected, None], atol=1e-5)
