"""slang/splat/contraction.slang, and segments of rays through contracted space, against float64 with each scalar's gradient."""

from __future__ import annotations

import numpy as np

from splat_py import shaders
from tests.shaders.oracle import Array, assert_gradients, assert_value, pullback
from tests.volume.reference import squash, unsquash

BOX = np.array([[-1.0, 0, 2], [2, 2, 3]])
MIDDLE, HALF = BOX.mean(0), np.ptp(BOX, axis=0) / 2
STRUCT = {"low": BOX[0], "high": BOX[1]}
REACH = 1.5
COUNT = 60
RNG = np.random.default_rng(5)
# Inside, around it, and far away.
POSITIONS = (MIDDLE + RNG.normal(size=(COUNT, 3)) * HALF * np.repeat([0.4, 2, 50], COUNT // 3)[:, None]).astype(np.float32)
SHADER, SEGMENT = shaders.contraction, shaders.segment


def contracted(x: Array) -> Array:
    q = (x - MIDDLE) / HALF
    axis = np.abs(q.real).argmax(1)
    most = q[np.arange(len(q)), axis]
    m = np.where(most.real < 0, -most, most)[:, None]
    return MIDDLE + HALF * np.where(m.real > 1, (2 - 1 / m) / m * q, q)


def bent(x: Array, reach: float = REACH) -> Array:
    size = np.where(x.real < 0, -x, x)
    return np.where(size.real > reach, (2 * reach - reach**2 / size) * np.sign(x.real), x)


def straightened(x: Array, reach: float = REACH) -> Array:
    size = np.where(x.real < 0, -x, x)
    return np.where(size.real > reach, reach**2 / (2 * reach - size) * np.sign(x.real), x)


def test_positions() -> None:
    expected = contracted(POSITIONS.astype(float))
    assert_value(SHADER.contract(POSITIONS, STRUCT), expected)
    inside = (np.abs(POSITIONS - MIDDLE) <= HALF).all(1)
    assert inside.any() and (~inside).any() and np.allclose(expected[inside], POSITIONS[inside])
    assert (np.abs(expected - MIDDLE) < 2 * HALF).all() and (np.abs(expected - MIDDLE) > 1.9 * HALF).any()
    v = RNG.normal(size=(COUNT, 3))
    assert_gradients(SHADER.contract, v, [POSITIONS, STRUCT], [*pullback(contracted, v, POSITIONS.astype(float)), None])
    outer = SHADER.contractedBox(STRUCT)
    np.testing.assert_allclose([outer["low"], outer["high"]], [MIDDLE - 2 * HALF, MIDDLE + 2 * HALF], rtol=1e-6)


def test_distances() -> None:
    """And back again, of both signs."""
    x = np.concatenate([np.linspace(-1.4, 1.4, 20), np.geomspace(1.6, 90, 20), -np.geomspace(1.6, 90, 20)]).astype(np.float32)
    squashed = np.array([squash(a, REACH) for a in x.astype(float)])
    v = RNG.normal(size=COUNT)
    for function, reference, at, value in (
        (SHADER.contractDistance, bent, x.astype(float), squashed),
        (SHADER.expandDistance, straightened, squashed.astype(np.float32).astype(float), None),
    ):
        value = np.array([unsquash(a, REACH) for a in at]) if value is None else value
        assert_value(function(at, REACH), value, rtol=2e-5)
        assert_gradients(function, v, [at, REACH], [*pullback(reference, v, at), None], rtol=1e-4)


def test_segments() -> None:
    """Of rays from all around; the last sample is far away, and the first at the origin."""
    origins = POSITIONS[: COUNT // 3 * 2].astype(float)
    directions = RNG.normal(size=origins.shape)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    found = SEGMENT.contractedSegmentOf(origins, directions, STRUCT, 3.0)
    closest = ((MIDDLE - origins) * directions).sum(1)
    near = np.array([squash(-x, REACH) for x in closest])
    length = squash(64 * REACH, REACH) - near
    np.testing.assert_allclose(found["near"], near, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found["count"], np.ceil(length * 3 - 1e-3))
    np.testing.assert_allclose(found["step"], length / found["count"], rtol=1e-5)
    np.testing.assert_allclose(found["reach"], REACH)

    counts, places = np.arange(1.0, 1 + len(origins)), RNG.uniform(0, 1, len(origins)) * found["count"]

    def near_and_step(o: Array, d: Array) -> Array:
        first = bent(((o - MIDDLE) * d).sum(1))
        return np.stack([first, (squash(64 * REACH, REACH) - first) / counts], 1)

    arguments = [origins, directions, MIDDLE, REACH, counts]
    assert_value(SEGMENT.contractedNearAndStep(*arguments), near_and_step(origins, directions), atol=1e-5)
    v = RNG.normal(size=(len(origins), 2))
    expected = pullback(near_and_step, v, origins, directions)
    assert_gradients(SEGMENT.contractedNearAndStep, v, arguments, [*expected, None, None, None], rtol=2e-4, atol=1e-4)

    ranges = np.stack([found["near"], found["step"]], 1).astype(float)

    def point_on(o: Array, d: Array, r: Array) -> Array:
        t = ((MIDDLE - o) * d).sum(1) + straightened(r[:, 0] + places * r[:, 1])
        return np.concatenate([o + d * t[:, None], t[:, None]], 1)

    value = point_on(origins, directions, ranges)
    points = [origins, directions, ranges, MIDDLE, REACH, places]
    assert_value(SEGMENT.contractedPointOn(*points), {"position": value[:, :3], "t": value[:, 3]}, rtol=1e-4, atol=1e-4)
    v = RNG.normal(size=(len(origins), 4))
    expected = pullback(point_on, v, origins, directions, ranges)
    adjoint = {"position": v[:, :3], "t": v[:, 3]}
    assert_gradients(SEGMENT.contractedPointOn, adjoint, points, [*expected, None, None, None], rtol=1e-3, atol=1e-3)
