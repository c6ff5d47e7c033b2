"""Whole training steps as CUDA source, and what happens between them: tests of tests/metal."""

from __future__ import annotations

from pathlib import Path

import pytest

from splat_py.gpu.device import Device
from splat_py.scene import Dataset
from tests.cuda.device import CudaOnCpu
from tests.emulation.program import Order, Schedule
from tests.metal import test_run_training as training

dataset = training.dataset


@pytest.mark.parametrize("schedule", [Schedule(), Schedule(32, Order.SHUFFLED, 5)], ids=str)
def test_steps_land_where_the_other_device_does(
    schedule: Schedule,
    dataset: Dataset,
    native: Device,
    cuda: CudaOnCpu,
) -> None:
    training.test_steps_land_where_the_other_device_does(schedule, dataset, native, cuda)


def test_a_step_whose_lists_do_not_fit(dataset: Dataset, native: Device, cuda: CudaOnCpu) -> None:
    training.test_a_step_whose_lists_do_not_fit_touches_nothing_beyond("wave", dataset, native, cuda)


def test_between_steps(cuda: CudaOnCpu) -> None:
    training.test_density_control(training.KINDS[0], cuda)
    training.test_spatial_order(cuda)
    training.test_parameters_that_are_not_finite(cuda)
    training.test_relocation_and_growth(training.KINDS[0], cuda)
    training.test_noise_and_prior(cuda)
    training.test_batches(cuda)
    training.test_means_of_epochs(cuda)
    training.test_3d_filters(cuda)


def test_a_step_by_known_depths(tmp_path: Path, cuda: CudaOnCpu) -> None:
    training.test_a_step_by_known_depths(tmp_path, cuda)
