"""slang/splat/blob2d.slang; and the parts of simple_splatting.slang, differentiated by Slang alone, that tests/image skips."""

from typing import Any

import numpy as np
from scipy.optimize import linprog

from splat_py import shaders
from splat_py.shaders import blob2d as shader
from tests.image import reference as ref
from tests.image.scenes import blobs_of, differentiate, draw
from tests.shaders.oracle import Array, assert_gradients, assert_value, pullback

COUNT = 200
RNG = np.random.default_rng(30)
SIZE = (47, 31)
FIELDS = {"center": slice(0, 2), "variance": slice(2, 4), "anisotropy": 4, "color": slice(5, 8), "opacity": 8}


def rows(raw: Array) -> dict[str, Array]:
    return {name: raw[:, rows] for name, rows in FIELDS.items()}


def raw_blobs() -> Array:
    raw = RNG.normal(size=(COUNT, 9)) * 1.5
    raw[:, 2:4] -= 2
    return raw.astype(np.float32).astype(np.float64)


def as_splat(raw: Array) -> Array:
    """Raw blobs [N, 9] → mean 2, conic 3, opacity, colour 3, by the reference."""
    blobs = ref.evaluate(raw.T, *SIZE)
    xx, xy, yy = blobs["covariance"]
    conic = np.stack([yy, -xy, xx]) / (xx * yy - xy * xy)
    return np.concatenate([blobs["mean"], conic, blobs["opacity"][None], blobs["color"]]).T


def test_evaluation() -> None:
    raw = raw_blobs()
    expected = as_splat(raw)
    parts: dict[str, Any] = {"mean": slice(0, 2), "shape": slice(2, 5), "opacity": 5, "color": slice(6, 9)}
    actual = shader.evaluateBlob(rows(raw), SIZE)
    assert not actual.pop("extras").any()
    assert_value(actual, {name: expected[:, part] for name, part in parts.items()}, rtol=2e-5, atol=1e-5)
    v = RNG.normal(size=(COUNT, 9))
    (gradient,) = pullback(as_splat, v, raw)
    v_output = {name: v[:, part] for name, part in parts.items()}
    assert_gradients(shader.evaluateBlob, v_output, [rows(raw), SIZE], [rows(gradient), None], atol=2e-4)


def test_anything_is_a_blob() -> None:
    """Raw floats of any size give finite values and finite gradients."""
    raw = RNG.normal(size=(COUNT, 9)) * 10.0 ** RNG.uniform(-3, 4, (COUNT, 9))
    for values in shader.evaluateBlob(rows(raw), SIZE).values():
        assert np.isfinite(values).all()
    v_output = {"mean": np.ones(2), "shape": np.ones(3), "opacity": 1.0, "color": np.ones(3)}
    gradient, _ = shaders.gradients(shader.evaluateBlob, v_output, rows(raw), SIZE)
    assert all(np.isfinite(values).all() for values in gradient.values())


def visible_points() -> tuple[Array, Array, Array]:
    """Raw blobs, and outlines [N, 64, 2] of the places where each has α = 1/255; faint ones are left out."""
    raw = raw_blobs()
    raw = raw[1 / (1 + np.exp(-raw[:, 8])) > 1.05 / 255]
    raw[:20, 2] = raw[:20, 3]  # circles in pixels if SIZE had equal sides; nearly so here
    raw[:20, 4] = 0
    blobs = ref.evaluate(raw.T, *SIZE)
    xx, xy, yy = blobs["covariance"]
    roots = np.linalg.cholesky(np.stack([np.stack([xx, xy], -1), np.stack([xy, yy], -1)], -2))
    angles = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    level = np.sqrt(2 * np.log(255 * blobs["opacity"]))
    circle = np.stack([np.cos(angles), np.sin(angles)])
    outline = blobs["mean"].T[:, None] + (roots @ circle * level[:, None, None]).swapaxes(1, 2)
    return raw, outline, blobs["mean"].T


def test_the_box_holds_what_is_visible_and_little_more() -> None:
    raw, outline, mean = visible_points()
    box = shader.orientedBox(rows(raw), SIZE)
    np.testing.assert_allclose(np.linalg.norm(box["axis"], axis=1), 1, rtol=1e-5)
    across = np.stack([-box["axis"][:, 1], box["axis"][:, 0]], axis=1)
    offset = outline - mean[:, None]
    along = np.stack([np.einsum("nkd,nd->nk", offset, axis) for axis in (box["axis"], across)], axis=-1)
    reached = np.abs(along).max(axis=1)
    assert (reached <= box["half"]).all()
    # 64 points of an outline miss its farthest one by a share 1 - cos(π/64).
    assert (reached > box["half"] * 0.995 - 0.01).all()


def test_a_faint_blob_has_an_empty_box() -> None:
    raw = raw_blobs()
    raw[:, 8] = -6.0
    assert (shader.orientedBox(rows(raw), SIZE)["half"] < 0).all()


def test_largest_reach() -> None:
    raw, outline, mean = visible_points()
    reached = np.abs(outline - mean[:, None]).max(axis=1)
    reach = shader.largestExtent(rows(raw), SIZE)
    assert (reached <= reach).all()
    # An opaque blob's own reach is at most √2 smaller.
    raw[:, 8] = 20.0
    opaque = np.sqrt(2 * np.log(255)) * np.sqrt(ref.evaluate(raw.T, *SIZE)["covariance"][[0, 2]].T)
    assert (reach >= opaque).all() and (reach <= 1.42 * opaque).all()


def test_overlap() -> None:
    count = 400
    angle = RNG.uniform(0, np.pi, count)
    axes = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    half, centers = np.exp(RNG.uniform(-2, 2, (count, 2))), RNG.uniform(-6, 6, (count, 2))
    middle, sides = np.array([0.5, -0.3]), np.array([3.5, 1.5])
    actual = shader.overlaps({"center": centers, "axis": axes, "half": half}, {"center": middle, "half": sides})

    def meet(center: Array, axis: Array, reach: Array) -> bool:
        across = np.array([axis, [-axis[1], axis[0]]])
        limits = np.concatenate([reach + across @ center, reach - across @ center])
        within = np.stack([middle - sides, middle + sides], 1)
        return bool(linprog(np.zeros(2), np.concatenate([across, -across]), limits, bounds=within).success)

    expected = [meet(*box) for box in zip(centers, axes, half, strict=True)]
    assert 100 < np.sum(expected) < 350
    np.testing.assert_array_equal(np.asarray(actual, bool), expected)


def test_a_pixel_that_is_full_stops() -> None:
    """Opaque blobs in front: blobs behind T < 1/255 change nothing and get no gradient."""
    raw = blobs_of(np.random.default_rng(34), 12, deviation=0.5)
    raw[0:2], raw[8, :3] = 0.0, 5.0
    assert (draw("autodiff", raw, 1, 1) == draw("autodiff", raw[:, :2], 1, 1)).all()
    gradients = differentiate("autodiff", raw, np.ones((1, 1, 3)), linear=True)
    assert gradients[5:8, :2].all() and not gradients[:, 2:].any()
