"""A run leaves the mean of the parameters after its last two epochs' steps."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splat_py import Dataset
from splat_py.gpu.device import get_device
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.parameters import GROUPS, MEAN, ParameterMeans, Parameters, State, averaged_groups, first_averaged
from splat_py.train.trainer import Trainer
from tests.refusals import refused
from tests.train.refinement import assert_same_bits

CAPTURE = 5, 32
# With four training photographs, two epochs are less than a tenth of the run. Densifies.
CONFIG = TrainConfig(steps=90, init="random", init_num_pts=200, sh_degree=1, accumulate="pair")


def test_they_begin_two_epochs_before_the_end() -> None:
    assert first_averaged(TrainConfig(steps=1000), 43) == 914
    assert first_averaged(TrainConfig(steps=1000, batch=4), 43) == 980
    assert first_averaged(TrainConfig(steps=1000), 300) == 900
    assert first_averaged(TrainConfig(steps=5), 43) == 5
    for config in (TrainConfig(steps=1000), TrainConfig(steps=1000, strategy="mcmc", prune_contribution=1.0)):
        last = range(first_averaged(config, 10**6), config.steps)
        changes = [config.densifies_at, config.resets_opacities_at, config.prunes_at]
        assert not any(change(step) for change in changes for step in last), "nothing changes the Gaussians in these steps"


def test_means_of_steps_that_count() -> None:
    """Means of 70 Gaussians with all parameters of splats and colours. Before the first averaged step, and for a step that
    repeats, they do not change."""
    device, rng, n = get_device(), np.random.default_rng(0), 70
    shapes = {"means": (n, 3), "quats": (n, 4), "log_scales": (n, 3), "logit_opacities": (n,), "features": (n, 5)}
    shapes |= {"extras": (n, 2), "weights": (33,)}
    first, states = 7, []
    means = ParameterMeans(device, first)
    for step, counts in ((6, True), (7, True), (8, False), (8, True), (9, True)):
        state: State = {name: (rng.normal(size=shape) + 5).astype(np.float32) for name, shape in shapes.items()}
        parameters = Parameters(device, state)
        with device.recording() as recorder:
            status = device.memory.array(np.array([0 if counts else 5, 0, 0], np.uint32))
            means.record(recorder, parameters, step, status)
        if step < first:
            assert not means.state()
        elif counts:
            states.append(state)
        if step == first:
            for name, values in state.items():
                np.testing.assert_array_equal(means.state()[name + MEAN], values)
    found = means.state()
    assert found.keys() == {name + MEAN for name in shapes}
    for name in shapes:
        expected = np.mean([state[name].astype(np.float64) for state in states], axis=0)
        np.testing.assert_allclose(found[name + MEAN], expected, rtol=3e-7, atol=3e-7)


def test_a_run_leaves_them_and_keeps_what_its_last_step_left(dataset: Dataset, tmp_path: Path) -> None:
    straight, states, file = Trainer(dataset, CONFIG), [], tmp_path / "checkpoint.safetensors"
    while straight.step < CONFIG.steps:
        straight.advance()
        straight.finish()
        states.append(straight.parameters.gaussian_state())
        if straight.step == 86:
            straight.save_checkpoint(file)
    gaussians, left = straight.gaussians(), straight.checkpoint()
    for name in GROUPS:
        expected = np.mean([state[name].astype(np.float64) for state in states[-8:]], axis=0)
        np.testing.assert_allclose(getattr(gaussians, name).numpy(), expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(getattr(left.gaussians(), name).numpy(), getattr(gaussians, name).numpy())
        np.testing.assert_array_equal(left.state[name], states[-1][name])
        assert (left.state[name] != left.state[name + MEAN]).any()
    resumed = Trainer(dataset, resume=Checkpoint.load(file))
    resumed.fit()
    assert_same_bits(resumed.checkpoint().state, left.state)


@pytest.fixture(scope="module")
def left(dataset: Dataset) -> Checkpoint:
    trainer = Trainer(dataset, CONFIG)
    trainer.fit()
    return trainer.checkpoint()


def test_an_extended_run_goes_on_from_its_last_step(dataset: Dataset, left: Checkpoint) -> None:
    extended = Trainer(dataset, resume=replace(left, config=replace(CONFIG, steps=120)))
    for name in GROUPS:
        np.testing.assert_array_equal(extended.parameters.state()[name], left.state[name])
    assert not extended._means.state() and not any(name.endswith(MEAN) for name in extended.parameters.arrays)
    # A checkpoint from before there were means.
    older = {name: values for name, values in left.state.items() if not name.endswith(MEAN)}
    late = Trainer(dataset, resume=replace(left, state=older, config=replace(CONFIG, steps=91)))
    late.fit()
    for name in averaged_groups(older):
        expected = (7 * older[name].astype(np.float64) + late.parameters.state()[name]) / 8
        np.testing.assert_allclose(late.checkpoint().state[name + MEAN], expected, rtol=1e-6, atol=1e-6)


def test_a_checkpoint_that_lacks_some_is_refused(left: Checkpoint, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.safetensors"
    for damage in ({"quats.mean": None}, {"quats.mean": np.zeros((3, 4), np.float32)}, {"quats.v.mean": left.state["quats"]}):
        state = {name: values for name, values in (left.state | damage).items() if values is not None}
        replace(left, state=state).save(file)
        refused(r"checkpoint\.safetensors is not a checkpoint|is damaged", Checkpoint.load, file)
