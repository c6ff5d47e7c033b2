"""Several photographs a step: gradients are means, statistics are of all photographs, and a repeated step counts once."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splat_py import Dataset
from splat_py.fit.steps import Adam
from splat_py.gpu.device import get_device
from splat_py.train.config import TrainConfig
from splat_py.train.parameters import GROUPS, Parameters, State
from splat_py.train.step import BatchSums
from splat_py.train.trainer import Trainer
from tests.refusals import refused
from tests.train.refinement import assert_same_bits

CAPTURE = 4, 32
CONFIG = TrainConfig(
    steps=30, init="random", init_num_pts=200, sh_interval=1, splat="BetaKernel", accumulate="pair", refine_cameras=True
)
# Floats of a splat's row of gradients; the last one is an extra's.
ROW = 10


def test_sums_and_means() -> None:
    device, rng, n = get_device(), np.random.default_rng(0), 70
    shapes = {"means": (3,), "quats": (4,), "log_scales": (3,), "logit_opacities": (), "sh": (4, 3), "extras": (1,)}
    state: State = {name: rng.normal(size=(n, *row)).astype(np.float32) for name, row in shapes.items()}
    state |= {name: rng.uniform(1, 2, n).astype(np.float32) for name in Parameters.STATISTICS}
    for counts in (True, False):
        parameters = Parameters(device, state)
        v = parameters.v_gaussians
        arrays = [v.means, v.quats, v.scales, v.opacities, parameters.v_features]
        batch = BatchSums(parameters)
        status = device.memory.array(np.array([0 if counts else 5, 0, 0], np.uint32))
        sums, rows = [np.zeros(array.shape) for array in arrays], np.zeros((n, ROW))
        norms, times, largest = np.zeros(n), np.zeros(n), np.zeros(n)
        with device.recording() as recorder:
            batch.begin(recorder)
        for _ in range(3):
            for array, total in zip(arrays, sums, strict=True):
                array.write(rng.normal(size=array.shape).astype(np.float32))
                total += array.numpy()
            v_splats, radii = rng.normal(size=(1, n, ROW)).astype(np.float32), rng.integers(0, 9, (1, n, 2)).astype(np.int32)
            rows += v_splats[0]
            seen = radii[0, :, 0] > 0
            norms += seen * np.linalg.norm(v_splats[0, :, :2] * [20, 10], axis=1)
            times += seen
            largest = np.maximum(largest, seen * radii[0].max(1) / 40)
            of_splats = device.memory.array(v_splats)
            with device.recording() as recorder:
                zero = device.memory.array(np.zeros(3, np.uint32))
                parameters.record_statistics(recorder, of_splats, device.memory.array(radii), 40, 20, zero, batch.statistics)
                batch.add(recorder, of_splats)
        with device.recording() as recorder:
            extras = batch.end(recorder, 3, status)
        for array, total in zip(arrays, sums, strict=True):
            np.testing.assert_allclose(array.numpy(), total / 3, rtol=1e-5, atol=1e-6)
        assert extras is not None and (extras.stride, extras.offset) == (1, 0)
        np.testing.assert_allclose(extras.rows.numpy(), rows[:, 9:] / 3, rtol=1e-5, atol=1e-6)
        after, share = parameters.state(), 1.0 if counts else 0.0
        np.testing.assert_allclose(after["gradient_norms"], state["gradient_norms"] + share * norms, rtol=1e-5)
        np.testing.assert_array_equal(after["times_seen"], state["times_seen"] + np.float32(share) * times.astype(np.float32))
        np.testing.assert_allclose(after["max_radii"], np.maximum(state["max_radii"], share * largest), rtol=1e-6)


def test_a_step_learns_from_all_its_photographs(dataset: Dataset) -> None:
    """Its gradient, by Adam's first moment, is the mean of theirs; its statistics count them all."""
    batch = Trainer(dataset, replace(CONFIG, batch=2))
    views = batch.views_of(0)
    assert len(set(views)) == 2
    others = [view for view in dataset.train if view not in views]
    singles = []
    for view in views:
        order = np.random.default_rng((CONFIG.seed, 0)).permutation(len(dataset.train))
        train = [*others, *(v for v in views if v != view)]
        train.insert(int(order[0]), view)
        singles.append(Trainer(replace(dataset, train=train, _images=dataset._images), CONFIG))
        assert singles[-1].views_of(0)[0] == view
    states = []
    for trainer in (batch, *singles):
        before = trainer.parameters.state()
        trainer.advance()
        states.append(trainer.checkpoint().state)
    together, first, second = states
    for name in (*GROUPS, "extras"):
        # (1 - β₁) of the first step is 0.2 for two, and 0.1 for one.
        moment = first[f"{name}.m"] + second[f"{name}.m"]
        np.testing.assert_allclose(together[f"{name}.m"], moment, rtol=1e-4, atol=1e-6 * np.abs(moment).max(), err_msg=name)
        # Adam's first step has the length of the learning rate.
        length = np.abs(first[name] - before[name]).max()
        assert np.abs(together[name] - before[name]).max() == pytest.approx(np.sqrt(2) * length, rel=1e-3), name
    for name in ("gradient_norms", "times_seen"):
        np.testing.assert_allclose(together[name], first[name] + second[name], rtol=1e-5, err_msg=name)
    np.testing.assert_array_equal(together["max_radii"], np.maximum(first["max_radii"], second["max_radii"]))
    moved = np.abs(together["poses"]).max(1) > 0
    assert [view for view, has in zip(dataset.train, moved, strict=True) if has] == sorted(views)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_batch_whose_lists_do_not_fit_is_repeated(batch: int, dataset: Dataset) -> None:
    """A repeated step changes looks, cameras, harmonics and statistics once."""
    config, states = replace(CONFIG, batch=batch, exposure=True, filter_3d=True), []
    for capacity in (None, 8):
        trainer = Trainer(dataset, config)
        trainer._gradients.capacity = capacity or trainer._gradients.capacity
        while trainer.step < 3:
            trainer.advance()
            trainer.finish()
        states.append(trainer.checkpoint().state)
    assert_same_bits(*states)


def test_learning_rates_and_too_large_batches(dataset: Dataset, tmp_path: Path) -> None:
    """gsplat's rule; a batch with more photographs than Adam's memory leaves no memory."""
    adam = Adam(1e-15)
    assert adam.of_batch(1) is adam
    of_four = adam.of_batch(4)
    assert (of_four.beta1, of_four.beta2, of_four.epsilon) == pytest.approx((0.6, 0.996, 5e-16))
    assert adam.of_batch(20).beta1 == 0 and adam.of_batch(2000).beta2 == 0
    one, four = TrainConfig(), TrainConfig(batch=4)
    assert four.means_lr_at(99, 2.0) == pytest.approx(2 * one.means_lr_at(99, 2.0))
    # Only runs that see few photographs learn faster.
    assert TrainConfig(steps=7500, batch=4).short_run_lr_scale == 1 and TrainConfig(steps=7500).short_run_lr_scale == 2
    most = len(dataset.train)
    says = rf"batch is {most + 1}, but .* has {most} photographs .*; choose a smaller batch"
    refused(says, Trainer, dataset, replace(CONFIG, batch=most + 1))
    refused("batch is -1", replace(CONFIG, batch=-1).validate)
