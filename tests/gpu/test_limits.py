"""Sizes beyond the limits of a buffer, an index or a dispatch are refused in one sentence, before anything is allocated."""

from functools import partial
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import slangpy as spy
import torch

from splat_py import Camera, Gaussians
from splat_py.gpu.device import get_device
from splat_py.gpu.kernels import linear_groups
from splat_py.gpu.limits import Limits
from splat_py.image.rasterizers import rasterizer_for
from splat_py.render.images import Image
from splat_py.render.options import Options
from splat_py.render.splats import ProjectedSplats
from splat_py.render.tiles import bin_tiles
from splat_py.render.views import render
from splat_py.train.photometric_loss import PhotometricLoss
from splat_py.volume.grid import check_stages
from tests.refusals import refused

FLOAT = np.dtype(np.float32)


def limits_of(kind: spy.DeviceType) -> Limits:
    reported = SimpleNamespace(max_compute_dispatch_thread_groups=(7, 8, 9))
    return Limits.of(cast(spy.Device, SimpleNamespace(info=SimpleNamespace(type=kind, limits=reported))))


def test_limits_are_the_devices() -> None:
    assert limits_of(spy.DeviceType.vulkan) == Limits(1 << 31, (7, 8, 9))
    assert limits_of(spy.DeviceType.cuda).buffer_bytes == limits_of(spy.DeviceType.metal).buffer_bytes == 1 << 34
    assert get_device().memory.limits == Limits.of(get_device().handle)


def test_an_array_may_take_what_a_kernel_indexes_and_no_more() -> None:
    limits = Limits(1 << 31)
    limits.check_array((1 << 29,), FLOAT)
    limits.check_array((3, 1 << 29), FLOAT, by_address=True)
    for shape in (((1 << 29) + 1,), (1 << 15, 1 << 15), (10**10, 10**10, 10**10)):
        says = r"^an array \[\d.* of float32 takes .* GiB, .* 2\.0 GiB at most; use smaller"
        refused(says, limits.check_array, shape, FLOAT)
    # Independent of bytes: indices of elements have 32 bits.
    refused("^an array", limits_of(spy.DeviceType.cuda).check_array, (1 << 32,), np.dtype(np.uint8))
    refused("^an array", limits.check_array, (1 << 34,), FLOAT, by_address=True)


def test_devices_allocate_nothing_that_kernels_cannot_index() -> None:
    memory = get_device().memory
    before = memory.live_bytes
    for shape in ((1 << 29) + 1, (40_000, 40_000), (1 << 40, 1 << 40)):
        refused(r"^an array .* indexes 2\.0 GiB at most; use smaller images", memory.empty, shape)
    assert memory.live_bytes == before


@pytest.mark.parametrize(
    ("width", "height", "factor"), [(13_378, 13_378, 2), (26_000, 26_000, 2), (27_000, 27_000, 3), (10**6, 10**6, 75)]
)
def test_too_large_images_name_the_factor_that_helps(width: int, height: int, factor: int) -> None:
    device = get_device()
    for make in (
        partial(Image.empty, device, 1, height, width, 3),
        partial(PhotometricLoss, device, width, height, 0.2),
        partial(rasterizer_for, device, 3, width, height),
    ):
        refused(rf"^an image of {width}×{height} pixels .* --downscale {factor}\Z", make)
    device.memory.limits.check_images(1, -(-height // factor), -(-width // factor))


@pytest.mark.parametrize("scale", [5_000, 5e7])
def test_a_render_scaled_too_far_is_refused_at_once(scale: float) -> None:
    """A scale of 5,000 crashed."""
    gaussians = Gaussians.from_points(np.zeros((3, 3)), np.ones((3, 3)), 0)
    camera = Camera(np.eye(4), np.array([[8.0, 0, 6], [0, 8, 4.5], [0, 0, 1]]), 12, 9).scaled(scale)
    says = rf"^an image of {camera.width}×{camera.height} pixels with 3 channels .* times shorter, .*\Z"
    refused(says, render, gaussians, camera)


def screen_filling(count: int) -> ProjectedSplats:
    """Splats that cover every pixel of an image of 8192×8192."""
    means = torch.full((1, count, 2), 4096.0)
    conics = torch.tensor([1e-12, 0.0, 1e-12]).expand(1, count, 3).contiguous()
    ones = torch.ones(1, count)
    return ProjectedSplats(means, ones, conics, ones, torch.ones(1, count, 2, dtype=torch.int32))


@pytest.mark.parametrize(("count", "number"), [(130, "545,259,520"), (1025, "more than 4,294,967,294"), (1200, "more than")])
def test_too_many_intersections_are_refused(count: int, number: str) -> None:
    """The number wrapped at 2³²: with 1,024 splats it was 0, and the picture black."""
    says = rf"^the splats touch {number}.* tiles in all, and lists hold 536,\d\d\d,\d\d\d at most: .*--downscale.*\Z"
    refused(says, bin_tiles, screen_filling(count), 8192, 8192, Options(4))


def test_dispatches_fit_the_device() -> None:
    Limits().check_dispatch((65535, 65535, 65535))
    for groups in ((65536, 1, 1), (1, 65536, 1), (1, 1, 65536)):
        says = "^the work needs .* workgroups, but this device allows 65535×65535×65535 at once"
        refused(says, Limits().check_dispatch, groups)


def test_a_recorder_refuses_what_the_device_does_not_take() -> None:
    dispatch = get_device().record().dispatch
    refused("^the work needs 1×1×65536 workgroups", dispatch, "status", "checkCapacity", (1, 1, 65536))


def test_threads_have_numbers_of_32_bits() -> None:
    columns, rows, _ = linear_groups((1 << 32) - (1 << 21))
    assert columns * rows * 64 <= 1 << 32
    refused("too many for one dispatch", linear_groups, (1 << 32) - (1 << 21) + 1)


def test_a_grid_that_a_later_stage_could_not_index_is_refused_at_once() -> None:
    device = get_device()
    check_stages(device, [(16, 16, 16), (64, 64, 64)], 9)
    says = r"^a grid of 1022×1022×1022 voxels takes 127\.3 GiB, .*--resolutions.*\Z"
    refused(says, check_stages, device, [(16, 16, 16), (1022, 1022, 1022)], 9)


def test_a_grid_for_which_there_is_no_memory_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1 << 30))
    says = r"^a grid of 200×200×200 voxels takes \d.* GiB with .*; .*--resolutions"
    refused(says, check_stages, get_device(), [(200, 200, 200)], 9)
