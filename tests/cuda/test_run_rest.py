"""The kernels of sorting, training, pictures, volumes and the portable baseline, run as CUDA source in every order of threads:
tests of tests/metal, of each a few."""

from __future__ import annotations

import pytest

from splat_py.gpu.device import _GPU_TUNING, _SOFTWARE_TUNING, Device, Tuning
from tests.cuda.device import CudaOnCpu
from tests.emulation.schedules import SCHEDULES, every_order
from tests.image import scenes as pictures
from tests.metal import test_run_rest as rest
from tests.splats import test_loss


@pytest.mark.parametrize("tuning", [_GPU_TUNING, _SOFTWARE_TUNING], ids=["GPU", "software"])
def test_sorting(tuning: Tuning, cuda: CudaOnCpu) -> None:
    rest.test_radix_sort(tuning, 5000, cuda)
    rest.test_more_pairs_than_room(tuning, cuda)


@pytest.mark.parametrize("size", [0, 1, 257, 2049, 256 * 2048 + 1])
def test_prefix_sum(size: int, cuda: CudaOnCpu) -> None:
    rest.test_prefix_sum(size, cuda)


@pytest.mark.parametrize("size", [(1, 1), (37, 29)], ids=str)
def test_losses(size: tuple[int, int], cuda: CudaOnCpu) -> None:
    every_order(cuda, lambda: test_loss.test_loss_and_gradient(size, "in between"))


def test_losses_without_atomic_floats(cuda: CudaOnCpu) -> None:
    rest.test_losses_without_atomic_floats(cuda)


def test_losses_of_torch(cuda: CudaOnCpu) -> None:
    rest.test_losses_of_torch(cuda)
    rest.test_losses_of_pixels("Charbonnier", cuda)


def test_what_is_learnt_of_a_capture(cuda: CudaOnCpu) -> None:
    rest.test_what_is_learnt_of_a_capture(cuda)


def test_adam(cuda: CudaOnCpu) -> None:
    rest.test_adam_steps(48, 3, cuda)
    rest.test_adam_leaves_what_is_not_its(cuda)
    rest.test_adam_takes_gradients_from_the_rows_of_splats(1, True, cuda)


@pytest.mark.parametrize("way", [way for way in pictures.WAYS if not way.startswith("cpu")])
def test_pictures(way: str, cuda: CudaOnCpu) -> None:
    rest.test_pictures(way, 19, 13, _GPU_TUNING, cuda)
    rest.test_gradients_of_pictures(way, way != "group", _GPU_TUNING, cuda)


def test_steps_of_a_fit(cuda: CudaOnCpu) -> None:
    rest.test_steps_of_a_fit(rest.GroupRasterizer, cuda)


@pytest.mark.parametrize(("coefficients", "skip_empty"), [(1, True), (4, False)])
def test_volumes(coefficients: int, skip_empty: bool, cuda: CudaOnCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    rest.test_volumes(0, coefficients, True, skip_empty, cuda, monkeypatch)


def test_gradients_of_rays_through_a_volume(cuda: CudaOnCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    rest.test_gradients_of_rays_through_a_volume(0, 1, cuda, monkeypatch)


def test_contracted_space(native: Device, cuda: CudaOnCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.schedule = SCHEDULES[2]
    rest.test_contracted_space(0, native, cuda, monkeypatch)


def test_steps_of_a_fit_of_a_hash_grid(native: Device, cuda: CudaOnCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    rest.test_hash_grids(0, cuda, monkeypatch)
    rest.test_steps_of_a_fit_of_a_hash_grid(0, native, cuda, monkeypatch)


def test_fields_of_ones_own(native: Device, cuda: CudaOnCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    rest.test_fields_of_ones_own(0, native, cuda, monkeypatch)


def test_steps_of_a_volume_fit(native: Device, cuda: CudaOnCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    rest.test_steps_of_a_volume_fit(0, 1, native, cuda, monkeypatch)


def test_portable(cuda: CudaOnCpu) -> None:
    rest.test_portable(70, cuda)
