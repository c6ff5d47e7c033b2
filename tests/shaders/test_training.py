"""slang/splat/adam.slang, mcmc.slang, filter_3d.slang, random.slang and portable.slang."""

import numpy as np
import torch
from torch import Tensor

import tests.reference as ref
from splat_py import shaders
from splat_py.shaders import adam, filter_3d, mcmc, portable, random
from tests.reference.mcmc import Rotation, equation_9, logit, sigmoid
from tests.reference.random_numbers import normals_of
from tests.shaders.camera_models import IMAGE, NO_LENS, along
from tests.shaders.oracle import assert_like, assert_value
from tests.volume.reference import pcg4d

RNG = np.random.default_rng(6)
COUNT = 60
LOG_SCALES, LOGITS = RNG.uniform(-3, 0.5, (COUNT, 3)), RNG.uniform(-7, 4, COUNT)


def test_mean_noise() -> None:
    quats, normals = RNG.normal(size=(COUNT, 4)), RNG.normal(size=(COUNT, 3))
    rotations = Rotation.from_quat(quats, scalar_first=True)
    faint = sigmoid(-100 * (sigmoid(LOGITS) - 0.005))[:, None]
    expected = rotations.apply(np.exp(2 * LOG_SCALES) * rotations.inv().apply(normals)) * faint
    assert_value(mcmc.meanNoise(quats, LOG_SCALES, LOGITS, normals), expected, rtol=3e-5)


def test_size_prior() -> None:
    prior, weights = lambda s, o: 0.7 * o.sigmoid() + 0.2 * s.exp().sum(1), np.array([0.7, 0.2])
    assert_like(mcmc.sizePrior, prior, [LOG_SCALES, LOGITS], [weights])


def test_shares() -> None:
    """Every number of copies, and opacities from the faintest that is shared to the largest float32 below 1."""
    opacities = np.array([0.005, 0.0051, 0.02, 0.1, 0.3, 0.5, 0.9, 0.99, 0.9999, 1 - 2**-22])
    copies = np.arange(1, 52)
    logits = np.repeat(logit(opacities).astype(np.float32), len(copies))
    each = np.tile(copies, len(opacities))
    actual = mcmc.shareOf(logits, each, 1e-6)
    expected = np.array([equation_9(o, n) for o, n in zip(sigmoid(logits.astype(float)), each.tolist(), strict=True)])
    assert_value(sigmoid(actual["logit"].astype(float)), expected[:, 0], rtol=5e-6, atol=0)
    # Beyond 0.9999, an opacity's last float32 digit exceeds the remainder.
    assert_value(actual["logScale"], np.log(expected[:, 1]), rtol=1e-5, atol=3e-6)


def test_bounds() -> None:
    few = mcmc.shareOf(0.0, np.array([0, 1, 51, 52, 1000]), 0.005)
    np.testing.assert_array_equal(few["logit"][[0, 2, 2]], few["logit"][[1, 3, 4]])
    assert abs(few["logit"][0]) < 1e-6 and abs(few["logScale"][0]) < 1e-6
    least = mcmc.shareOf(logit(np.array(0.01)), 20, 0.005)
    assert_value(sigmoid(least["logit"]), 0.005)
    assert_value(least["logScale"], np.log(equation_9(0.01, 20)[1]))
    opaque = mcmc.shareOf(np.array([30.0, 100.0]), 3, 0.005)
    assert np.isfinite(opaque["logit"]).all() and np.isfinite(opaque["logScale"]).all()


def test_adam_steps() -> None:
    """Many parameters over many steps, with gradients from tiny to huge, and zero."""
    rng = np.random.default_rng(4)
    count, betas = 50, {"beta1": 0.9, "beta2": 0.999}
    parameter, first, second = rng.normal(size=count), np.zeros(count), np.zeros(count)
    magnitude = 10.0 ** rng.uniform(-8, 4, count)
    magnitude[0] = 0
    state = {"parameter": parameter, "m": first, "v": second}
    for step in range(1, 31):
        gradient = magnitude * rng.normal(size=count)
        corrections = {"correction1": 1 - 0.9**step, "correction2": 1 - 0.999**step}
        state = adam.adamStep(state, gradient, {"rate": 0.01, "epsilon": 1e-15, **betas, **corrections})
        parameter, first, second = ref.adam_step(parameter, gradient, first, second, step, lr=0.01, eps=1e-15, **betas)
        assert_value(state["parameter"], parameter, rtol=1e-5, atol=3e-6)
        assert_value(state["m"][1:] / magnitude[1:], first[1:] / magnitude[1:])
        assert_value(state["v"], second, rtol=2e-5, atol=0)
    assert state["parameter"][0] == np.float32(parameter[0])


# Filters from a thousandth to a thousand times the scales, and zero, in scenes of all sizes.
SMOOTHED_SCALES = RNG.uniform(np.log(1e-6), np.log(10), (COUNT, 1)) + RNG.uniform(-2, 2, (COUNT, 3))
SMOOTHED_LOGITS = RNG.uniform(-6, 6, COUNT)
FILTERS = np.exp(SMOOTHED_SCALES.mean(1) + RNG.uniform(-7, 7, COUNT)) * (np.arange(COUNT) % 10 > 0)


def test_smoothed_gaussians() -> None:
    """Gradients are compared relative to the scale, as scenes have any size."""

    def f(log_scales: Tensor, logits: Tensor) -> dict[str, Tensor]:
        scales = (log_scales.exp() ** 2 + torch.from_numpy(FILTERS)[:, None] ** 2).sqrt()
        return {"scale": scales, "opacity": (log_scales.exp() / scales).prod(1) * logits.sigmoid()}

    inputs = [SMOOTHED_SCALES, SMOOTHED_LOGITS]
    value = f(*map(torch.from_numpy, inputs))
    v = {name: RNG.normal(size=x.shape) / x.numpy() for name, x in value.items()}
    assert_like(filter_3d.smooth, f, inputs, [FILTERS], v=v, value=(1e-5, 1e-12), rtol=2e-4, atol=1e-5)


def test_sampling_frequency_is_focal_length_over_depth() -> None:
    points = along(RNG.uniform(0, 40, COUNT), RNG.uniform(0, 360, COUNT), np.exp(RNG.uniform(-3, 3, COUNT)))
    camera = {"focal": np.array([70.0, 70.0]), "principal": np.array([30.0, 20.0]), **NO_LENS}
    camera |= {"rotation": np.eye(3), "translation": np.zeros(3)}
    assert_value(filter_3d.samplingFrequency["Pinhole"](camera, points, IMAGE), 70 / points[:, 2], rtol=1e-4)
    assert_value(filter_3d.samplingFrequency["Orthographic"](camera, points, IMAGE), np.full(COUNT, 70.0))


COLORS, OPACITIES = RNG.normal(size=(9, 3)), RNG.uniform(size=9)


def test_weighted_color() -> None:
    expected = np.column_stack([COLORS * OPACITIES[:, None], OPACITIES])
    assert_value(portable.weightedColor(COLORS, OPACITIES), expected)


def test_its_backward_pass_is_the_derivative_of_the_mean() -> None:
    v_mean = RNG.normal(size=4)
    v_colors, v_opacities = shaders.gradients(portable.weightedColor, np.tile(v_mean / 9, (9, 1)), COLORS, OPACITIES)
    actual = portable.weightedColorBackward(np.tile(v_mean, (9, 1)), np.full(9, 9), COLORS, OPACITIES)
    assert_value(actual, np.column_stack([v_colors, v_opacities]))


def test_hash() -> None:
    v = RNG.integers(0, 2**32, (500, 4), dtype=np.uint32)
    v[0], v[1] = 0, 2**32 - 1
    np.testing.assert_array_equal(random.hash(v), pcg4d(v))


def test_uniform() -> None:
    words = np.array([0, 255, 256, 2**31, 2**32 - 1], np.uint32)
    expected = (words >> 8) / 2.0**24
    np.testing.assert_array_equal(random.uniformFrom(words), expected)
    assert expected[-1] < 1
    drawn = np.sort(random.uniformFrom(random.hash(np.stack([np.arange(4000), *np.zeros((3, 4000))], axis=1))[:, 0]))
    # Kolmogorov–Smirnov test at one in a thousand.
    assert np.abs(drawn - (np.arange(4000) + 0.5) / 4000).max() < 1.95 / np.sqrt(4000)


def test_normals() -> None:
    counters = np.stack([np.arange(20_000), *np.full((3, 20_000), 9)], axis=1)
    words = random.hash(counters)
    words[:3] = [[0] * 4, [2**32 - 1] * 4, [2**32 - 1, 0, 0, 2**31]]
    drawn = random.normalsFrom(words)
    np.testing.assert_allclose(drawn, normals_of(words), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(drawn.mean(axis=0), 0, atol=4 / np.sqrt(20_000))
    np.testing.assert_allclose(np.cov(drawn.T), np.eye(3), atol=6 / np.sqrt(20_000))
    assert abs((drawn**4).mean() - 3) < 0.15
