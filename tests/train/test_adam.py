"""The Adam kernel against the reference, several steps long."""

import numpy as np
import numpy.typing as npt
import pytest

import tests.reference as ref
from splat_py import Dataset
from splat_py.fit.steps import Adam, AdamArrays
from splat_py.gpu.device import get_device
from splat_py.gpu.kernels import linear_groups
from splat_py.scene.gaussians import Gaussians
from splat_py.train.config import TrainConfig
from splat_py.train.parameters import GROUPS, Parameters
from splat_py.train.trainer import Trainer

CAPTURE = 4, 32
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-15


@pytest.mark.parametrize(("rows", "row", "head"), [(1, 1, 1), (70, 3, 3), (31, 48, 3), (5000, 4, 4)])
def test_steps(rows: int, row: int, head: int) -> None:
    """The first `head` numbers of a row learn at another rate, as in spherical harmonics."""
    rng = np.random.default_rng(row)
    rate, head_rate = 1e-3, 2e-2
    rates = np.where(np.arange(row) < head, head_rate, rate)
    parameter = rng.normal(size=(rows, row)).astype(np.float32)
    expected, first, second = parameter.astype(np.float64), np.zeros((rows, row)), np.zeros((rows, row))
    learnt = _learnt(parameter)
    for step in range(1, 6):
        # Sizes from 1e-6 to 1, to which Adam is indifferent; one parameter in ten has no gradient.
        gradient = rng.normal(size=(rows, row)) * 10.0 ** rng.uniform(-6, 0, (rows, row))
        gradient[rng.random((rows, row)) < 0.1] = 0.0
        gradient = gradient.astype(np.float32)
        _dispatch(learnt, gradient, step, rate, head_rate, HEAD=head)
        expected, first, second = ref.adam_step(
            expected, gradient.astype(np.float64), first, second, step, lr=rates, beta1=BETA1, beta2=BETA2, eps=EPSILON
        )
        np.testing.assert_allclose(learnt.first_moments.numpy(), first, rtol=1e-5, atol=1e-7 * np.abs(first).max())
        # β₂ rounded to float32 changes 1 - β₂ by 1.3e-5, relative.
        np.testing.assert_allclose(learnt.second_moments.numpy(), second, rtol=2e-5, atol=1e-7 * second.max())
        np.testing.assert_allclose(learnt.parameters.numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("row", "bounded"), [(1, True), (3, False)])
def test_gradients_in_the_rows_of_splats(row: int, bounded: bool) -> None:
    """Parameters of splats: gradients lie behind those of colours, and parameters may have bounds."""
    rng = np.random.default_rng(2)
    parameter = rng.uniform(-1, 1, (70, row)).astype(np.float32)
    rows = rng.normal(size=(70, 9 + row)).astype(np.float32)
    zeros, learnt = np.zeros((70, row), np.float32), _learnt(parameter)
    limits: dict[str, float | bool] = {"BOUNDED": True, "least": -0.7, "largest": 0.2} if bounded else {}
    _dispatch(learnt, rows, 1, 0.5, HEAD=0, STRIDE=9 + row, OFFSET=9, **limits)
    expected, _, _ = ref.adam_step(
        parameter.astype(np.float64), rows[:, 9:], zeros, zeros, 1, lr=0.5, beta1=BETA1, beta2=BETA2, eps=EPSILON
    )
    if bounded:
        assert (expected < -0.7).any() and (expected > 0.2).any()
        expected = expected.clip(-0.7, 0.2)
    np.testing.assert_allclose(learnt.parameters.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("first", "active", "status"), [(0, 0, 1234), (0, 6, 0), (4, 6, 0)])
def test_steps_that_do_not_count_and_inactive_rests_change_nothing(first: int, active: int, status: int) -> None:
    values = np.random.default_rng(1).uniform(size=(3, 20, 12)).astype(np.float32)
    learnt = _learnt(*values)
    columns = {"first_column": first, "active": active or 12}
    _dispatch(learnt, np.ones((20, 12), np.float32), 3, 1e-3, 1e-2, status=status, HEAD=3, **columns)
    for array, before in zip(vars(learnt).values(), values, strict=True):
        changed = array.numpy() != before
        assert changed[:, first:active].all() and not changed[:, :first].any() and not changed[:, active:].any()


def test_rates_of_all_groups() -> None:
    """With a gradient of 1 the first step is as long as the rate, so this is a step after which all harmonics learn."""
    rng = np.random.default_rng(7)
    config, step, scale, device = TrainConfig(steps=30_000, batch=4), 20_000, 3.0, get_device()
    scene = Gaussians.from_points(rng.normal(size=(5, 3)), rng.uniform(size=(5, 3)))
    parameters = Parameters.fresh(device, scene)
    v = parameters.v_gaussians
    for gradient in (v.means, v.quats, v.scales, v.opacities, parameters.v_features):
        gradient.write(np.ones(gradient.shape, np.float32))
    before = parameters.state()
    with device.recording() as recorder:
        parameters.record_adam(recorder, config, step, scale, None, device.memory.array(np.zeros(3, np.uint32)), False)
    settings = Adam(1e-15).of_batch(4).settings(step)
    length = (1 - settings.beta1) / settings.correction1 / np.sqrt((1 - settings.beta2) / settings.correction2)
    found = {name: (before[name] - parameters.state()[name]) / length for name in GROUPS}
    found["rest"] = found["sh"][:, 1:]
    # √4 times the rates of one photograph; that of means has fallen for two thirds of the run.
    rates = {"means": 1.6e-4 * 3 * 0.01 ** (2 / 3), "quats": 1e-3, "log_scales": 5e-3, "logit_opacities": 5e-2}
    rates["rest"] = 2.5e-3 / 20
    for name, rate in rates.items():
        np.testing.assert_allclose(found[name], 2 * rate, rtol=1e-2, err_msg=name)
    np.testing.assert_allclose(found["sh"][:, 0], 2 * 2.5e-3, rtol=1e-2)


@pytest.mark.parametrize("degree", [1, 3])
def test_harmonics_learn_in_shading_as_after_it(degree: int, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaussians that a photograph does not show learn alike, too, and coefficients that come into use later."""
    config, states = TrainConfig(steps=9, sh_degree=degree, init="random", init_num_pts=200, accumulate="pair"), []
    for learns in (True, False):
        monkeypatch.setattr(TrainConfig, "learns_in_shading", learns)
        trainer = Trainer(dataset, config)
        trainer.fit()
        states.append(trainer.checkpoint().state)
    assert states[0]["sh"][:, 1:].any()
    for name, values in states[0].items():
        np.testing.assert_array_equal(values, states[1][name], err_msg=name)


def _learnt(parameters: npt.NDArray[np.float32], *moments: npt.NDArray[np.float32]) -> AdamArrays:
    array = get_device().memory.array
    return AdamArrays(array(parameters), *map(array, moments or (np.zeros_like(parameters),) * 2))


def _dispatch(
    learnt: AdamArrays,
    gradient: npt.NDArray[np.float32],
    step: int,
    rate: float,
    head_rate: float = 0.0,
    status: int = 0,
    **arguments: float | bool,
) -> None:
    device = get_device()
    with device.recording() as recorder:
        row = learnt.parameters.shape[1]
        defaults = {"first_column": 0, "active": row, "least": 0.0, "largest": 0.0, "ROW": row}
        recorder.dispatch(
            "optimize",
            "adam",
            linear_groups(gradient.size),
            learnt=learnt,
            gradients=device.memory.array(gradient),
            status=device.memory.array(np.array([status, 1], np.uint32)),
            settings=Adam(EPSILON, BETA1, BETA2).settings(step - 1, rate),
            count=learnt.parameters.size,
            head_rate=head_rate,
            **defaults | arguments,
        )
