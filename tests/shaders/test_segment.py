"""slang/splat/segment.slang and volume.slang: rays through contracted space."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py.shaders import segment as shader
from splat_py.shaders import volume
from tests.shaders.oracle import Array, assert_like, float32, unit
from tests.volume import reference as ref
from tests.volume.reference import f64, squash, unsquash

BOX = np.array([[0.0, 0, 0], [1, 1, 1]])
COUNT = 48
RNG = np.random.default_rng(47)


def rays() -> tuple[Array, Array]:
    """Rays from outside, some past the box, and from inside."""
    origins = 0.5 + 2 * unit(RNG.normal(size=(COUNT, 3)))
    origins[:12] = RNG.uniform(0.1, 0.9, (12, 3))
    return float32(origins), float32(unit(RNG.uniform(-0.4, 1.4, (COUNT, 3)) - origins))


ORIGINS, DIRECTIONS = rays()


@pytest.mark.parametrize("steps_per_unit", [0.1, 3.7, 64])
def test_segment(steps_per_unit: float) -> None:
    """The part of a ray inside the box, in equal steps no longer than requested."""
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
    hits = np.array([np.subtract(*ref.chord(o, d, BOX)) < -0.05 for o, d in zip(ORIGINS, DIRECTIONS, strict=True)])
    counts = np.arange(1.0, 1 + hits.sum())

    def near_and_step(o: Tensor, d: Tensor) -> Tensor:
        ends = (torch.from_numpy(BOX)[:, None] - o) / d
        near, far = ends.amin(0).amax(1).clamp(min=0), ends.amax(0).amin(1)
        return torch.stack([near, (far - near) / torch.from_numpy(counts)], 1)

    rays, fixed = [ORIGINS[hits], DIRECTIONS[hits]], [{"low": BOX[0], "high": BOX[1]}, counts]
    assert_like(shader.nearAndStep, near_and_step, rays, fixed, value=(1e-5, 2e-6), rtol=2e-4, atol=2e-5)


def test_point_on() -> None:
    ranges, places = RNG.uniform(0, 2, (COUNT, 2)), RNG.uniform(0, 9, COUNT)

    def point_on(o: Tensor, d: Tensor, r: Tensor) -> dict[str, Tensor]:
        t = r[:, 0] + torch.from_numpy(places) * r[:, 1]
        return {"position": o + d * t[:, None], "t": t}

    assert_like(shader.pointOn, point_on, [ORIGINS, DIRECTIONS, ranges], [places], atol=1e-5)


SPACE = np.array([[-1.0, 0, 2], [2, 2, 3]])
MIDDLE, HALF = SPACE.mean(0), np.ptp(SPACE, axis=0) / 2
STRUCT = {"low": SPACE[0], "high": SPACE[1]}
REACH = 1.5
FAR_AND_NEAR = 60
# Inside, around it, and far away.
POSITIONS = float32(MIDDLE + RNG.normal(size=(FAR_AND_NEAR, 3)) * HALF * np.repeat([0.4, 2, 50], FAR_AND_NEAR // 3)[:, None])


def test_positions() -> None:
    assert_like(volume.contract, partial(ref.contract, box=f64(SPACE)), [POSITIONS], [STRUCT])
    expected, inside = ref.contract(f64(POSITIONS), f64(SPACE)).numpy(), (np.abs(POSITIONS - MIDDLE) <= HALF).all(1)
    assert inside.any() and (~inside).any() and np.allclose(expected[inside], POSITIONS[inside])
    assert (np.abs(expected - MIDDLE) < 2 * HALF).all() and (np.abs(expected - MIDDLE) > 1.9 * HALF).any()
    outer = volume.contractedBox(STRUCT)
    np.testing.assert_allclose([outer["low"], outer["high"]], [MIDDLE - 2 * HALF, MIDDLE + 2 * HALF], rtol=1e-6)


def test_distances() -> None:
    x = float32(np.concatenate([np.linspace(-1.4, 1.4, 20), np.geomspace(1.6, 90, 20), -np.geomspace(1.6, 90, 20)]))
    squashed = float32(squash(f64(x), REACH))
    for function, reference, at in ((volume.contractDistance, squash, x), (volume.expandDistance, unsquash, squashed)):
        assert_like(function, partial(reference, reach=REACH), [at], [REACH], value=(2e-5, 1e-6))


def test_segments() -> None:
    """Rays from all sides; the first sample is at the origin, the last one far away."""
    origins = POSITIONS[: FAR_AND_NEAR // 3 * 2]
    directions = unit(RNG.normal(size=origins.shape))
    found = shader.contractedSegmentOf(origins, directions, STRUCT, 3.0)
    near = squash(f64(((origins - MIDDLE) * directions).sum(1)), REACH).numpy()
    farthest = float(squash(f64(64 * REACH), REACH))
    length = farthest - near
    np.testing.assert_allclose(found["near"], near, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found["count"], np.ceil(length * 3 - 1e-3))
    np.testing.assert_allclose(found["step"], length / found["count"], rtol=1e-5)
    np.testing.assert_allclose(found["reach"], REACH)

    counts, places = np.arange(1.0, 1 + len(origins)), RNG.uniform(0, 1, len(origins)) * found["count"]

    def near_and_step(o: Tensor, d: Tensor) -> Tensor:
        first = squash(((o - torch.from_numpy(MIDDLE)) * d).sum(1), REACH)
        return torch.stack([first, (farthest - first) / torch.from_numpy(counts)], 1)

    rays, fixed = [origins, directions], [MIDDLE, REACH]
    function = shader.contractedNearAndStep
    assert_like(function, near_and_step, rays, [*fixed, counts], value=(1e-5, 1e-5), rtol=2e-4, atol=1e-4)

    def point_on(o: Tensor, d: Tensor, r: Tensor) -> dict[str, Tensor]:
        t = ((torch.from_numpy(MIDDLE) - o) * d).sum(1) + unsquash(r[:, 0] + torch.from_numpy(places) * r[:, 1], REACH)
        return {"position": o + d * t[:, None], "t": t}

    ranges, function = np.stack([found["near"], found["step"]], 1).astype(float), shader.contractedPointOn
    assert_like(function, point_on, [*rays, ranges], [*fixed, places], value=(1e-4, 1e-4), rtol=1e-3, atol=1e-3)
