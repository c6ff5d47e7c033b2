"""slang/splat/rasterization.slang and splat_list.slang: the loop through a list of splats and its backward pass."""

from pathlib import Path

import numpy as np
import pytest

import tests.reference as ref
from splat_py import shaders
from tests.shaders.kernels import tensor
from tests.shaders.oracle import Array, assert_value

MODULE = shaders.load(Path(__file__).with_name("splat_list.slang"))
SIDE = 16


def splats(kind: str) -> Array:
    """Splats [N, 9] as float32 numbers: mean2d, conic, opacity, colour."""
    rng = np.random.default_rng(16)
    count = {"one": 1, "few": 20, "many": 300, "opaque": 60}[kind]
    roots = rng.normal(size=(count, 2, 2)) / np.exp(rng.uniform(0, 2, (count, 1, 1)))
    matrices = roots @ roots.swapaxes(1, 2) + 0.002 * np.eye(2)
    packed = np.stack([matrices[:, 0, 0], matrices[:, 0, 1], matrices[:, 1, 1]], axis=1)
    opacities = rng.uniform(0.02, 0.7, (count, 1))
    if kind == "opaque":  # clamped, and every pixel stops early
        opacities[:] = 1
        packed *= 0.02
    means = rng.uniform(-2, SIDE + 2, (count, 2))
    rows = np.concatenate([means, packed, opacities, rng.uniform(size=(count, 3))], axis=1)
    return rows.astype(np.float32).astype(float)


def blocks(image: Array, pixels: int) -> Array:
    """Reorder an image to [threads, pixels, …]: a thread's pixels lie side by side in a row."""
    return image.reshape(-1, pixels, *image.shape[2:])


@pytest.mark.parametrize("pixels", [1, 4])
@pytest.mark.parametrize("kind", ["one", "few", "many", "opaque"])
def test_forward_and_backward(kind: str, pixels: int) -> None:
    rng = np.random.default_rng(17)
    rows = splats(kind)
    parts = rows[:, :2], rows[:, 2:5], rows[:, 5], rows[:, 6:], np.arange(len(rows), dtype=float)
    untrusted = ref.near_threshold(*parts[:3], parts[4], SIDE, SIDE)
    assert untrusted.mean() < 0.1
    expected = ref.rasterize(*parts, SIDE, SIDE)
    if kind == "opaque":
        assert np.all(expected.n_contrib < len(rows))

    x, y = np.meshgrid(np.arange(SIDE) + 0.5, np.arange(SIDE) + 0.5)
    positions = np.stack([x, y], axis=-1)
    # Pixels beyond an image's edge blend nothing and add no gradient.
    inside = np.ones((SIDE, SIDE), np.uint32)
    inside[:, -3:] = 0
    gradients, saved = tensor(np.zeros(len(rows) * 11)), tensor(np.zeros(SIDE * SIDE * 2))
    threads = np.arange(SIDE * SIDE // pixels, dtype=np.uint32)
    arguments = blocks(positions, pixels), blocks(inside, pixels), threads
    tensors = tensor(rows), gradients, saved
    colors = MODULE.blend[pixels](*arguments, *tensors).reshape(SIDE, SIDE, 3)
    T, n_contrib = np.moveaxis(saved.to_numpy().reshape(SIDE, SIDE, 2), -1, 0)

    compared = ~untrusted & (inside == 1)
    assert_value(colors[compared], expected.colors[compared])
    assert not np.any(colors[inside == 0])
    assert_value(T[compared], expected.T_final[compared], atol=1e-7)
    np.testing.assert_array_equal(n_contrib[compared], expected.n_contrib[compared])

    # The reference blends without a background and defines dL/dalpha = -dL/dT.
    v_state = np.where(compared[..., None], rng.normal(size=(SIDE, SIDE, 4)), 0)
    v = ref.rasterize_backward(*parts, SIDE, SIDE, None, expected, v_state[..., :3], -v_state[..., 3])
    # Pixels outside the image get a gradient, too, which must have no effect.
    v_given = np.where(inside[..., None] == 1, v_state, 1)
    MODULE.blendBackward[pixels](*arguments, blocks(v_given, pixels), *tensors)
    actual = gradients.to_numpy().reshape(-1, 11)
    for name, columns, wanted in [
        ("mean", slice(0, 2), v.means2d),
        ("conic", slice(2, 5), v.conics),
        ("opacity", slice(5, 6), v.opacities[:, None]),
        ("color", slice(6, 9), v.colors),
        ("|mean|", slice(9, 11), v.means2d_abs),
    ]:
        # Sums over pixels of both signs: an element is as precise as the largest of its kind.
        atol = 1e-6 * max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(actual[:, columns], wanted, rtol=1e-4, atol=atol, err_msg=name)
