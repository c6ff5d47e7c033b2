"""Whole training steps as Metal source: project, shade, sort, rasterise, loss, backward, statistics, Adam; and strategies."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splat_py import Dataset
from splat_py.gpu.accumulation import Accumulate
from splat_py.gpu.device import Device
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.trainer import Trainer
from tests.emulation.program import Order, Schedule
from tests.emulation.schedules import SCHEDULES, every_order, named
from tests.metal.device import MetalOnCpu
from tests.train import test_batch, test_depth_supervision, test_filter_3d, test_parameter_means, test_surfels
from tests.train import test_densification as density_control
from tests.train import test_mcmc as monte_carlo
from tests.train.refinement import KINDS

CAPTURE = 4, 32
STEPS = 7


def start(dataset: Dataset, device: Device) -> Checkpoint:
    """60 Gaussians of all shapes: a sphere's rotation has no gradient, so rounding would choose its direction."""
    config = TrainConfig(steps=16, sh_degree=2, sh_interval=2, init="random", init_num_pts=60, densify_every=2)
    fresh = Trainer(dataset, config, device=device).checkpoint()
    rng = np.random.default_rng(0)
    changes = {
        "quats": rng.normal(size=(60, 4)),
        "log_scales": fresh.state["log_scales"] + rng.uniform(-0.7, 0.7, (60, 3)),
        "logit_opacities": rng.uniform(-2, 2, 60),
        "sh": fresh.state["sh"] + rng.normal(0, 0.1, fresh.state["sh"].shape),
    }
    state = fresh.state | {name: values.astype(np.float32) for name, values in changes.items()}
    return Checkpoint(0, config, state, fresh.capacity)


def assert_all_close(actual: dict[str, Any], expected: dict[str, Any], where: str = "") -> None:
    """Each array within a hundred-thousandth of its largest element."""
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        largest = float(abs(values).max())
        np.testing.assert_allclose(actual[name], values, rtol=1e-5, atol=1e-5 * largest, err_msg=where + name)


def compare_steps(dataset: Dataset, native: Device, other: Device) -> None:
    """Compare seven steps of both devices, which densify."""
    beginning = start(dataset, native)
    trainers = [Trainer(dataset, device=device, resume=beginning) for device in (native, other)]
    for step in range(STEPS):
        for trainer in trainers:
            trainer.advance()
            trainer.finish()
        expected, actual = (trainer.parameters.state() for trainer in trainers)
        assert_all_close(actual, expected, f"step {step}: ")
    assert trainers[0].parameters.count > 60, "densification added nothing"
    assert np.abs(expected["means"][:10] - beginning.state["means"][:10]).max() > 1e-4, "nothing has moved"


@pytest.mark.parametrize(
    "schedule",
    [Schedule(), Schedule(32, Order.REVERSE), Schedule(32, Order.SHUFFLED, 5), Schedule(64, Order.SHUFFLED, 6)],
    ids=str,
)
def test_steps_land_where_the_other_device_does(
    schedule: Schedule, dataset: Dataset, native: Device, metal: MetalOnCpu
) -> None:
    metal.schedule = schedule
    compare_steps(dataset, native, metal)


@pytest.mark.parametrize("accumulate", ["wave", "pair"])
def test_a_step_whose_lists_do_not_fit_touches_nothing_beyond(
    accumulate: Accumulate, dataset: Dataset, native: Device, metal: MetalOnCpu
) -> None:
    """The lists count intersections beyond their capacity; only the pages around the buffers would catch a write there."""
    beginning = start(dataset, native)
    config = replace(beginning.config, accumulate=accumulate)
    trainers = [
        Trainer(dataset, device=device, resume=replace(beginning, config=config, capacity=capacity))
        for device, capacity in ((native, 10_000), (metal, 7))
    ]
    for trainer in trainers:
        trainer.advance()
        trainer.finish()
        assert trainer.step == 1
    expected, actual = (trainer.parameters.state() for trainer in trainers)
    assert_all_close(actual, expected)


def between_steps(kinds: Iterable[str]) -> list[Any]:
    """Density control, relocation, sorting, means and filters; refinement in the ways `kinds`."""
    room = {"max_gaussians": density_control.COUNT + 40}
    return [
        *(named(density_control.test_against_the_reference, room, 3199, kind) for kind in kinds),
        *(named(density_control.test_reset_opacities, kind) for kind in kinds),
        named(density_control.test_parameters_that_are_not_finite, "weights.v", np.inf),
        named(density_control.test_parameters_that_are_not_finite, "max_radii", np.nan),
        named(density_control.test_rows_are_sorted_by_morton_codes_with_all_they_have),
        *(named(monte_carlo.test_relocation_and_growth, 1_000_000, kind) for kind in kinds),
        named(monte_carlo.test_prior),
        *(named(monte_carlo.test_noise, counts) for counts in (True, False)),
        named(test_batch.test_sums_and_means),
        named(test_parameter_means.test_means_of_steps_that_count),
        *(named(test_filter_3d.test_filters_and_their_gradients, lens) for lens in test_filter_3d.LENSES),
    ]


@pytest.mark.parametrize("check", between_steps(KINDS))
def test_as_on_vulkan(check: Callable[[], None], metal: MetalOnCpu) -> None:
    every_order(metal, check)


def test_a_step_by_known_depths(tmp_path: Path, metal: MetalOnCpu) -> None:
    known = test_depth_supervision.write(tmp_path)
    every_order(metal, lambda: test_depth_supervision.test_a_step_has_the_gradient_of_both_losses(known), SCHEDULES[2:])


def test_a_step_of_surfels(tmp_path: Path, metal: MetalOnCpu) -> None:
    dataset = test_surfels.write(tmp_path)
    every_order(metal, lambda: test_surfels.test_a_step_has_the_gradient_of_three_losses(dataset), SCHEDULES[2:])
