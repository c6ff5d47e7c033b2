"""The kernels of sorting, training, pictures, volumes and the portable baseline, run as Metal source in every order of threads.

The checks use the references and tolerances of the tests of other devices.
"""

from collections.abc import Callable
from dataclasses import astuple, replace
from functools import partial
from itertools import cycle, product
from typing import Any

import numpy as np
import pytest
import torch

from splat_py import portable
from splat_py.gpu.device import _SOFTWARE_TUNING, Device, Operator, Tuning
from splat_py.gpu.kernels import UserType
from splat_py.image.rasterizers import GroupRasterizer, TileRasterizer
from splat_py.scene.camera import Camera
from splat_py.train.learnt_parts import PPISP, Looks
from splat_py.train.photometric_loss import SUMS, LossValues, PhotometricLoss, pack
from splat_py.volume import VolumeCheckpoint, VolumeConfig, VolumeTrainer, device_field, hash_grid
from splat_py.volume.fitting import Views
from splat_py.volume.grid import COEFFICIENTS
from tests.emulation.kernels import MARCHES
from tests.emulation.program import Order, Schedule
from tests.emulation.schedules import OTHER_WIDTHS, SCHEDULES, TUNINGS, every_order, named
from tests.gpu import test_sorting
from tests.image import scenes as pictures
from tests.image import test_differentiable as drawings
from tests.image import test_fit as image_fits
from tests.image import test_rasterizers as rasterizers
from tests.metal.device import MetalOnCpu
from tests.portable import test_portable as portables
from tests.train import test_adam, test_loss
from tests.train import test_bilateral_grid as bilateral_grids
from tests.train import test_camera_refinement as refinements
from tests.train import test_environment as environments
from tests.train import test_exposure as exposures
from tests.train import test_photometric_loss as photometric_losses
from tests.volume import own_fields
from tests.volume import test_fit as volume_fits
from tests.volume import test_hash_and_own_march as other_marches
from tests.volume import test_march as marches


def portable_of(count: int) -> Any:
    check = portables.test_forward_and_backward_are_those_of_the_expression
    return named(check, portable.splat_slang, torch.float32, 1e-5, count, 4, portables.WIDTH, portables.HEIGHT)


AS_ON_VULKAN = [
    *(named(test_sorting.test_more_pairs_than_room, tuning) for tuning in TUNINGS.values()),
    *(named(test_sorting.test_stable_in_several_workgroups_and_tiles, tuning) for tuning in TUNINGS.values()),
    *(named(test_sorting.test_prefix_sum, size) for size in (0, 1, 255, 257, 2047, 2048, 2049, 256 * 2048 + 1)),
    *(named(test_sorting.test_totals_beyond_32_bits_stay_at_the_largest_number, size) for size in (2, 3000)),
    named(photometric_losses.test_value_and_gradients, (13, 29)),
    # One row a channel, four at a time.
    named(photometric_losses.test_each_scalars_gradient, 4, "valid"),
    *(named(photometric_losses.check, name) for name in ("L2", "Charbonnier", "own")),
    named(exposures.test_gradients_of_a_picture_of_several_workgroups),
    named(exposures.test_what_cameras_do_to_colours, 0.4, 1),
    named(bilateral_grids.test_pictures_gradients_and_steps, 41, 53),
    *(named(refinements.test_kernels, kind) for kind in refinements.USED),
    named(environments.test_kernels),
    named(environments.test_photographs_over_random_backgrounds),
    *(named(test_adam.test_steps, 70, row, head) for row, head in ((1, 0), (3, 3), (12, 3), (27, 3), (48, 3))),
    named(test_adam.test_steps_that_do_not_count_and_inactive_rests_change_nothing, 0, 0, 1234),
    named(test_adam.test_steps_that_do_not_count_and_inactive_rests_change_nothing, 4, 6, 0),
    named(test_adam.test_gradients_in_the_rows_of_splats, 1, True),
    named(test_adam.test_gradients_in_the_rows_of_splats, 3, False),
    *(named(image_fits.test_rasterizers_take_the_same_steps, kind) for kind in (GroupRasterizer, TileRasterizer)),
    named(drawings.test_forward_derivatives, "tiles"),
    *(named(volume_fits.test_gradient_of_the_total_variation, size) for size in (3, 4)),
    *(portable_of(count) for count in (1, 70, 3000)),
]


@pytest.mark.parametrize("check", AS_ON_VULKAN)
def test_as_on_vulkan(check: Callable[[], None], metal: MetalOnCpu) -> None:
    every_order(metal, check)


def test_a_look_takes_the_same_step_in_every_order(metal: MetalOnCpu) -> None:
    """All threads read the look's numbers before one writes."""
    rng, steps = np.random.default_rng(7), []
    shapes = {"exposures": (2, 9), "response": (2, 27)}
    state = {f"{name}{m}": rng.uniform(0.1, 1, shape) for name, shape in shapes.items() for m in ("", ".m", ".v")}
    colors, v_shown = rng.uniform(0, 1, (2, 1, 9, 7, 3)).astype(np.float32)

    def step() -> None:
        looks = Looks(metal, PPISP, [0, 1], {name: values.astype(np.float32) for name, values in state.items()})
        exposures.stepped(looks, colors, v_shown)
        steps.append(looks.state())

    every_order(metal, step)
    for taken in steps[1:]:
        for name, values in taken.items():
            np.testing.assert_array_equal(values, steps[0][name], err_msg=name)


# --- sorting ---


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 5000])
@pytest.mark.parametrize("tuning", TUNINGS.values(), ids=TUNINGS)
def test_radix_sort(tuning: Tuning, size: int, metal: MetalOnCpu) -> None:
    keys = np.random.default_rng(size).integers(0, 1 << 32, size, dtype=np.uint32)
    every_order(metal, lambda: test_sorting.check(keys, tuning), SCHEDULES + (OTHER_WIDTHS if size == 5000 else []))
    every_order(metal, lambda: test_sorting.check(keys, tuning, capacity=size + 4001))


def test_losses_in_bands(metal: MetalOnCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    test_loss.test_bands_change_nothing(41, monkeypatch)


# --- training ---


@pytest.mark.parametrize("weights", ["opaque", "on and off", "in between"])
@pytest.mark.parametrize("size", [(1, 1), (5, 23), (37, 40)], ids=str)
def test_losses(size: tuple[int, int], weights: str, metal: MetalOnCpu) -> None:
    every_order(metal, lambda: test_loss.test_loss_and_gradient(size, weights), SCHEDULES + OTHER_WIDTHS)


def test_losses_through_pointers(metal: MetalOnCpu) -> None:
    metal.software, metal.tuning = True, _SOFTWARE_TUNING
    every_order(metal, lambda: test_loss.test_loss_and_gradient((37, 29), "in between"))


def test_losses_without_atomic_floats(metal: MetalOnCpu) -> None:
    rng = np.random.default_rng(3)
    render, photograph = test_loss.images_of(rng, (29, 37), "in between")
    array = metal.memory.array

    def gradient_and_values() -> tuple[Any, LossValues]:
        loss, sums = PhotometricLoss(metal, 37, 29, 0.2), metal.memory.empty(SUMS)
        with metal.recording() as recorder:
            loss.record(recorder, array(render.astype(np.float32)), array(pack(photograph)), sums)
        return loss.v_render.numpy(), loss.values(sums)

    expected_gradient, expected = gradient_and_values()
    metal.operators -= {Operator.FLOAT_ATOMICS}

    def check() -> None:
        gradient, values = gradient_and_values()
        np.testing.assert_array_equal(gradient, expected_gradient)
        np.testing.assert_allclose(astuple(values), astuple(expected), rtol=1e-5)

    every_order(metal, check)


# --- pictures ---


# Kernels of the other ways do not depend on the tuning.
WAYS_AND_TUNINGS = [
    pytest.param(way, tuning, id=f"{way}-{name}")
    for way, (name, tuning) in product(pictures.WAYS, TUNINGS.items())
    if way == "tiles" or name == next(iter(TUNINGS))
]


def check_pictures(way: str, width: int, height: int, metal: MetalOnCpu, schedules: list[Schedule] = SCHEDULES) -> None:
    raw = pictures.blobs_of(np.random.default_rng(width), 8)
    expected, mask = rasterizers.trusted(raw, width, height)

    def check() -> None:
        assert np.abs((pictures.draw(way, raw, width, height) - expected) * mask).max() <= 1e-5

    every_order(metal, check, schedules)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (19, 13)])
@pytest.mark.parametrize(("way", "tuning"), WAYS_AND_TUNINGS)
def test_pictures(way: str, width: int, height: int, tuning: Tuning, metal: MetalOnCpu) -> None:
    metal.tuning = tuning
    check_pictures(way, width, height, metal)


def check_gradients_of_pictures(way: str, native: bool, metal: MetalOnCpu, schedules: list[Schedule] = SCHEDULES) -> None:
    """Along a given direction, and for the squared error."""
    rng = np.random.default_rng(5)
    raw = pictures.blobs_of(rng, 8)
    image, mask = rasterizers.trusted(raw, 19, 13)
    v = (rng.normal(size=(13, 19, 3)) * mask).astype(np.float32).astype(np.float64)
    expected = rasterizers.ref.gradient(raw, v)
    # The picture whose squared error has the gradient v.
    target = image - v * image.size / 2

    def check() -> None:
        pictures.assert_gradients(pictures.differentiate(way, raw, v, linear=True, native=native), expected)
        pictures.assert_gradients(pictures.differentiate(way, raw, target, linear=False, native=native), expected)

    every_order(metal, check, schedules)


@pytest.mark.parametrize("native", [True, False], ids=["float atomics", "compare-and-swap"])
@pytest.mark.parametrize(("way", "tuning"), WAYS_AND_TUNINGS)
def test_gradients_of_pictures(way: str, native: bool, tuning: Tuning, metal: MetalOnCpu) -> None:
    metal.tuning = tuning
    check_gradients_of_pictures(way, native, metal)


@pytest.mark.parametrize("way", ["group", "tiles"])
def test_pictures_in_other_widths(way: str, metal: MetalOnCpu) -> None:
    """Workgroups of 8×4 threads rely on SIMD groups of any width."""
    check_pictures(way, 19, 13, metal, OTHER_WIDTHS)
    check_gradients_of_pictures(way, True, metal, OTHER_WIDTHS)


def test_a_crowded_picture(metal: MetalOnCpu) -> None:
    rasterizers.test_a_crowded_tile_drops_nothing()


# --- volumes ---


OTHER_FIELDS = {
    "contracted": VolumeConfig((3, 6), 2, sh_degree=0, jitter=True, contract=True),
    "hash": VolumeConfig((2, 4), 2, field="hash", table_mib=0.01),
    "own": VolumeConfig((2, 4), 2, field="Mixed", field_source=own_fields.MIXED),
}
# Start at parameters at which the user's own field is visible.
_NUMBERS = {"parameters": np.random.default_rng(0).uniform(-0.4, 0.8, 31), "m": np.zeros(31), "v": np.zeros(31)}
_STATE = {name: values.astype(np.float32) for name, values in _NUMBERS.items()}
_STATE |= {"box": volume_fits.BOX, "background": np.zeros(3)}
OWN_FIT = {"resume": VolumeCheckpoint(0, OTHER_FIELDS["own"], _STATE), "field": UserType("Mixed", own_fields.MIXED)}
# Coefficients, jitter, skipped empty space.
MARCHED = [(coefficients, *march) for coefficients, marches_of in MARCHES.items() for march in marches_of]


def persistent_groups(groups: int, metal: MetalOnCpu, monkeypatch: pytest.MonkeyPatch) -> list[Schedule]:
    """Let so many workgroups replay rays, or one for each if 0; return their schedules: few groups mean waves of 8."""
    monkeypatch.setattr(device_field, "groups_on", lambda device: groups)
    return [replace(schedule, simd_width=8) for schedule in SCHEDULES] if groups else SCHEDULES


@pytest.mark.parametrize(("coefficients", "jitter", "skip_empty"), MARCHED)
@pytest.mark.parametrize("groups", [0, 2])
def test_volumes(
    groups: int, coefficients: int, jitter: bool, skip_empty: bool, metal: MetalOnCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = marches.random_field(coefficients)
    for schedule, inside in zip(persistent_groups(groups, metal, monkeypatch), (False, True, False), strict=True):
        metal.schedule = schedule
        rays = marches.random_rays(24, inside)
        marches.assert_like_reference(field, rays, seed=7 if jitter else None, skip_empty=skip_empty)


@pytest.mark.parametrize(("coefficients", "jitter", "skip_empty"), MARCHED)
def test_training_of_volumes(
    coefficients: int, jitter: bool, skip_empty: bool, metal: MetalOnCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    metal.schedule, metal.software = Schedule(simd_width=8, order=Order.SHUFFLED), True
    volume_fits.test_training_is_march_loss_and_replay(2, coefficients, 12, jitter, skip_empty, monkeypatch)


@pytest.mark.parametrize("coefficients", COEFFICIENTS)
@pytest.mark.parametrize("groups", [0, 2])
def test_gradients_of_rays_through_a_volume(
    groups: int, coefficients: int, metal: MetalOnCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules = cycle(persistent_groups(groups, metal, monkeypatch))
    for metal.schedule, (jitter, skip_empty) in zip(schedules, MARCHES[coefficients], strict=False):
        how = {"seed": 7 if jitter else None, "skip_empty": skip_empty}
        marches.assert_like_reference(
            marches.random_field(coefficients), marches.random_rays(12, inside=skip_empty), of_rays=True, **how
        )


def check_march(field: str, inside: bool) -> None:
    """March and replay, in contracted space with gradients of rays."""
    if field == "contracted":
        contracted = marches.random_field(1, contracted=True)
        marches.assert_like_reference(contracted, marches.random_rays(12, inside), seed=7, of_rays=True)
    elif field == "hash":
        other_marches.assert_like_reference(other_marches.hash_grid(), 16, inside, 7, skip_empty=False)
    else:
        other_marches.assert_like_reference(other_marches.own(), 16, inside, 7)


@pytest.mark.parametrize("groups", [0, 2])
@pytest.mark.parametrize("field", OTHER_FIELDS)
def test_other_fields(field: str, groups: int, native: Device, metal: MetalOnCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """March and replay, and steps of a fit."""
    metal.schedule = persistent_groups(groups, metal, monkeypatch)[1]
    check_march(field, groups > 0)
    if groups:
        # No cell is empty: in waves, densities of all cells would take half a minute.
        monkeypatch.setattr(hash_grid, "_LEAST_ALPHA", -1e-6)
    assert_same_errors(OTHER_FIELDS[field], native, metal, **OWN_FIT if field == "own" else {})


@pytest.mark.parametrize("coefficients", COEFFICIENTS)
def test_training_of_volumes_without_float_atomics(
    coefficients: int, metal: MetalOnCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> None:
        with monkeypatch.context() as patch:
            volume_fits.test_training_is_march_loss_and_replay("compare-and-swap", coefficients, 12, False, True, patch)

    every_order(metal, check)


@pytest.mark.parametrize("coefficients", COEFFICIENTS)
@pytest.mark.parametrize("groups", [0, 2])
def test_volumes_of_halves(groups: int, coefficients: int, metal: MetalOnCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    metal.schedule = persistent_groups(groups, metal, monkeypatch)[1]
    marches.assert_like_reference(marches.random_field(coefficients), marches.random_rays(24), halves=True)


def test_hash_grids_of_halves(metal: MetalOnCpu) -> None:
    other_marches.assert_like_reference(other_marches.hash_grid(halves=True), 16, False, skip_empty=False)


def test_other_fields_without_float_atomics(native: Device, metal: MetalOnCpu) -> None:
    metal.operators -= {Operator.FLOAT_ATOMICS}
    for field, config in OTHER_FIELDS.items():
        every_order(metal, partial(check_march, field, False))
        assert_same_errors(config, native, metal, **OWN_FIT if field == "own" else {})


def test_volumes_in_other_widths(metal: MetalOnCpu) -> None:
    field, rays = marches.random_field(4), marches.random_rays(24)
    every_order(metal, lambda: marches.assert_like_reference(field, rays, seed=7), OTHER_WIDTHS)


def errors_of_steps(config: VolumeConfig, device: Device, **how: Any) -> list[float]:
    """PSNR of three small photographs before each step."""
    eyes = [(3, 1, 0), (-2, -1, 2), (0, 2, -3)]
    cameras = [Camera.look_at(eye, (0, 0, 0), (0, 1, 0), 40, 9, 7) for eye in eyes]
    rng = np.random.default_rng(config.sh_degree)
    images = rng.uniform(size=(3, 7, 9, 3)).astype(np.float32)
    views = Views.of_arrays(images, *(np.stack([getattr(camera, name) for camera in cameras]) for name in ("viewmat", "K")))
    found: list[float] = []
    VolumeTrainer(views, volume_fits.BOX, config, device=device, **how).fit(lambda report: found.append(report.psnr))
    return found


def assert_same_errors(config: VolumeConfig, native: Device, metal: Device, **how: Any) -> None:
    """Check that the errors after each of four steps equal those on the machine's own device."""
    expected = errors_of_steps(config, native, **how)
    np.testing.assert_allclose(errors_of_steps(config, metal, **how), expected, rtol=1e-4)
    assert len(expected) == 4 and expected[-1] != expected[0]


@pytest.mark.parametrize("sh_degree", range(3))
@pytest.mark.parametrize("groups", [0, 2])
def test_steps_of_a_volume_fit(
    groups: int, sh_degree: int, native: Device, metal: MetalOnCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the steps is on a finer grid."""
    schedules = persistent_groups(groups, metal, monkeypatch)
    config = VolumeConfig((3, 6), 2, sh_degree=sh_degree, total_variation=1e-3, jitter=True)
    every_order(metal, lambda: assert_same_errors(config, native, metal), schedules[1:])
