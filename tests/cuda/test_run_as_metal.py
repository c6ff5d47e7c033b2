"""Tests of tests/metal, their kernels run as CUDA source in every order of threads.

Few values of constants, which still cover every kernel and every accumulation.
"""

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import pytest

from splat_py.gpu.device import _GPU_TUNING
from tests.cuda.device import CudaOnCpu
from tests.emulation.kernels import ACCUMULATIONS
from tests.emulation.program import Order, Schedule
from tests.emulation.schedules import TUNINGS, every_order, named
from tests.image import scenes as pictures
from tests.metal import test_run_rest as rest
from tests.metal import test_run_splats as splats
from tests.metal import test_run_training as training
from tests.render import test_binning
from tests.train import test_loss

CAPTURE = training.CAPTURE
WAYS = [way for way in pictures.WAYS if not way.startswith("cpu")]

SPLATS = [
    *(named(splats.test_rasterization, "GPU", 3, 16, accumulation, False, "native", "32") for accumulation in ACCUMULATIONS),
    named(splats.test_rasterization, "GPU", 4, 16, "PerGroup", True, "native", "32"),
    # Half a warp, and a quarter of one.
    named(splats.test_rasterization, "GPU", 1, 4, "PerWave", False, "native", "32"),
    named(splats.test_rasterization, "software", 3, 8, "PerWave", True, "native", "32"),
    *(named(splats.test_rasterization, "GPU", 3, 16, way, False, "CAS", "32") for way in ("PerWave", "PerGroup")),
    named(splats.test_lists_in_segments, _GPU_TUNING, "PerWave"),
    named(splats.test_the_longest_list, 16, True),
    named(splats.test_harmonics_as_halves, 2, 16, True),
    named(splats.test_projection_and_harmonics, 1, True, "classic", "PerWave"),
    named(splats.test_projection_and_harmonics, 3, True, "antialiased", "PerGroup"),
    named(splats.test_cameras_and_covariances, False, "fisheye", True, True),
    named(splats.test_cameras_and_covariances, True, "pinhole", False, True),
    named(splats.test_along_rays, "surfels", True),
    named(splats.test_along_rays, "Gaussians of any camera by compare-and-swap", True),
    *(named(splats.test_along_rays, way, False) for way in ("Gaussians", "Gaussians alone")),
]
REST = [
    *(named(rest.test_radix_sort, tuning, 5000) for tuning in TUNINGS.values()),
    named(rest.test_losses_without_atomic_floats),
    *(named(rest.test_pictures, way, 19, 13, _GPU_TUNING) for way in WAYS),
    *(named(rest.test_gradients_of_pictures, way, way != "group", _GPU_TUNING) for way in WAYS),
    named(rest.test_volumes, 0, 1, True, True),
    named(rest.test_volumes, 0, 4, True, False),
    named(rest.test_gradients_of_rays_through_a_volume, 0, 1),
    *(named(rest.test_other_fields, field, 0) for field in rest.OTHER_FIELDS),
    named(rest.test_steps_of_a_volume_fit, 0, 1),
]
TRAINING = [
    named(training.test_steps_land_where_the_other_device_does, Schedule()),
    named(training.test_steps_land_where_the_other_device_does, Schedule(32, Order.SHUFFLED, 5)),
    named(training.test_a_step_whose_lists_do_not_fit_touches_nothing_beyond, "wave"),
    named(training.test_a_step_by_known_depths),
    named(training.test_a_step_of_surfels),
]


@pytest.mark.parametrize("check", [*SPLATS, *REST, *TRAINING])
def test_as_metal(check: partial[None], cuda: CudaOnCpu, request: pytest.FixtureRequest) -> None:
    """The check's other arguments are fixtures, named as Metal's."""
    wanted = list(signature(check.func).parameters)[len(check.args) :]
    fixtures: dict[str, Any] = {name: cuda if name == "metal" else request.getfixturevalue(name) for name in wanted}
    check(**fixtures)


@pytest.mark.parametrize(
    "check",
    [
        named(splats.renders.test_crowded_tile_that_is_soon_opaque, 16),
        *(named(test_binning.test_a_list_that_is_too_small_is_not_overrun, one_word) for one_word in (False, True)),
        named(splats.gsplat_intersection.test_indices_are_what_a_loop_over_pixels_blends),
        named(splats.moving_cameras.test_unscented, "equirectangular", False),
        named(splats.moving_cameras.test_rolling_shutter_of_a_lens_and_covariances),
        *(
            named(splats.check_tangents, name)
            for name in ("dense", "along a fisheye's rays", "SphericalGaussians", "surfels, packed")
        ),
        named(splats.falloffs.test_against_float64, next(iter(splats.falloffs.BUILT_IN)), True),
        *(named(splats.colors.check, name, 91, False) for name in ("SphericalGaussians", "ColorNetwork", "own")),
        *(named(test_loss.test_loss_and_gradient, size, "in between") for size in ((1, 1), (37, 40))),
        *(named(rest.test_sorting.test_more_pairs_than_room, tuning) for tuning in TUNINGS.values()),
        *(named(rest.test_sorting.test_stable_in_several_workgroups_and_tiles, tuning) for tuning in TUNINGS.values()),
        *(named(rest.test_sorting.test_prefix_sum, size) for size in (0, 1, 257, 2049, 256 * 2048 + 1)),
        named(rest.photometric_losses.test_value_and_gradients, (13, 29)),
        named(rest.photometric_losses.test_each_scalars_gradient, 4, "valid"),
        named(rest.photometric_losses.check, "Charbonnier"),
        named(rest.exposures.test_gradients_of_a_picture_of_several_workgroups),
        named(rest.exposures.test_what_cameras_do_to_colours, 0.4, 1),
        named(rest.bilateral_grids.test_pictures_gradients_and_steps, 41, 53),
        *(named(rest.refinements.test_kernels, kind) for kind in rest.refinements.USED),
        named(rest.environments.test_kernels),
        named(rest.environments.test_photographs_over_random_backgrounds),
        named(rest.test_adam.test_steps, 70, 48, 3),
        named(rest.test_adam.test_steps_that_do_not_count_and_inactive_rests_change_nothing, 0, 0, 1234),
        named(rest.test_adam.test_steps_that_do_not_count_and_inactive_rests_change_nothing, 4, 6, 0),
        named(rest.test_adam.test_gradients_in_the_rows_of_splats, 1, True),
        named(rest.image_fits.test_rasterizers_take_the_same_steps, rest.GroupRasterizer),
        named(rest.drawings.test_forward_derivatives, "tiles"),
        rest.portable_of(70),
        *training.between_steps(training.KINDS[:1]),
    ],
)
def test_as_on_vulkan(check: Callable[[], None], cuda: CudaOnCpu) -> None:
    every_order(cuda, check)
