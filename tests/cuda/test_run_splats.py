"""The splats' kernels, run as CUDA source by the host code of `rasterization`, against the float64 reference in every order of
threads: tests of tests/metal, of the values of constants as few as have every kernel and every accumulation.
"""

from __future__ import annotations

import pytest

from splat_py.gpu.device import _GPU_TUNING
from tests.cuda.device import CudaOnCpu
from tests.emulation.kernels import ACCUMULATIONS
from tests.emulation.schedules import every_order
from tests.metal import test_run_splats as splats
from tests.splats import test_binning


@pytest.mark.parametrize(
    ("tuning", "channels", "tile_size", "accumulation", "absgrad"),
    [
        *(("GPU", 3, 16, accumulation, False) for accumulation in ACCUMULATIONS),
        ("GPU", 4, 16, "PerGroup", True),
        # Half a warp, and a quarter of one.
        ("GPU", 1, 4, "PerWave", False),
        ("software", 3, 8, "PerWave", True),
    ],
)
def test_rasterization(
    tuning: str, channels: int, tile_size: int, accumulation: str, absgrad: bool, cuda: CudaOnCpu
) -> None:
    splats.test_rasterization(tuning, channels, tile_size, accumulation, absgrad, cuda)


@pytest.mark.parametrize("accumulation", ["PerWave", "PerGroup"])
def test_without_atomic_floats(accumulation: str, cuda: CudaOnCpu) -> None:
    splats.test_without_atomic_floats(_GPU_TUNING, accumulation, cuda)


def test_lists_in_segments(cuda: CudaOnCpu) -> None:
    splats.test_lists_in_segments(_GPU_TUNING, "PerWave", cuda)
    splats.test_the_longest_list(16, True, cuda)


@pytest.mark.parametrize(("channels", "accumulation"), [(3, "PerWave"), (32, "PerGroup")])
def test_lists_in_batches(channels: int, accumulation: str, cuda: CudaOnCpu) -> None:
    splats.test_lists_in_batches(channels, 16, accumulation, cuda)


def test_harmonics_as_halves(cuda: CudaOnCpu) -> None:
    splats.test_harmonics_as_halves(2, 16, True, cuda)


@pytest.mark.parametrize(
    ("degree", "stored", "mode", "accumulation"), [(1, True, "classic", "PerWave"), (3, True, "antialiased", "PerGroup")]
)
def test_projection_and_harmonics(
    degree: int, stored: bool, mode: str, accumulation: str, cuda: CudaOnCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    splats.test_projection_and_harmonics(degree, stored, mode, accumulation, cuda, monkeypatch)


def test_a_crowded_tile(cuda: CudaOnCpu) -> None:
    every_order(cuda, lambda: splats.renders.test_crowded_tile_that_is_soon_opaque(16))


def test_a_list_that_is_too_small(cuda: CudaOnCpu) -> None:
    every_order(cuda, test_binning.test_a_list_that_is_too_small_is_not_overrun)


def test_cameras_and_covariances(cuda: CudaOnCpu) -> None:
    splats.test_cameras_and_covariances("fisheye", True, True, cuda)


def test_lenses(cuda: CudaOnCpu) -> None:
    splats.test_lenses("pinhole", False, True, cuda)


def test_moving_cameras(cuda: CudaOnCpu) -> None:
    splats.test_unscented(cuda)
    splats.test_rolling_shutter("_of_a_lens_and_covariances", cuda)


def test_falloffs(cuda: CudaOnCpu) -> None:
    splats.test_falloffs(next(iter(splats.falloffs.BUILT_IN)), True, cuda)


@pytest.mark.parametrize("name", ["SphericalGaussians", "ColorNetwork", "own"])
def test_colors(name: str, cuda: CudaOnCpu) -> None:
    splats.test_colors(name, False, cuda)


def test_surfels(cuda: CudaOnCpu) -> None:
    splats.test_surfels(None, True, cuda)


def test_gaussians_along_rays(cuda: CudaOnCpu) -> None:
    splats.test_gaussians_along_rays(False, cuda)
