"""Prediction of a training run's peak memory from sizes alone, and of the rest that photographs may use."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import psutil

from splat_py.base.errors import SplatError
from splat_py.base.fields import shown_bytes
from splat_py.fit.steps import AHEAD
from splat_py.gpu.accumulation import accumulation
from splat_py.gpu.arrays import MOST_FREE_BYTES, bucket
from splat_py.gpu.device import Device, Tuning, free_bytes, process_bytes, shares_host_memory
from splat_py.render.tiles import in_one_word
from splat_py.scene.dataset import Dataset
from splat_py.shaders.declarations import along_rays
from splat_py.train.checkpoint import initial_count
from splat_py.train.config import TrainConfig
from splat_py.train.learnt_parts import GRID
from splat_py.train.photometric_loss import BAND_BYTES, CHANNELS, floats_a_pixel
from splat_py.train.step import ISECTS_PER_GAUSSIAN

# Intersections per tile in detailed scenes, if that is more than the initial capacity of the lists.
_ISECTS_PER_TILE = 450
# Bytes of compiled kernels and of their compiler, if they lie in the host's memory.
_COMPILED = 400_000_000
# Share of the free memory that a run may use by default; the rest is for other programs.
_FREE_SHARE = 0.75
# A cell of n holds less than so many n-ths of the scene's Gaussians; cells overlap at their edges.
_OVERLAP = 1.6
_MOST_DIVISOR, _GRIDS = 16, ((2, 1), (2, 2), (3, 2), (3, 3), (4, 3), (4, 4), (6, 4), (6, 6), (8, 8))
# The fewest Gaussians and the smallest photographs that the advice suggests.
_FEWEST_GAUSSIANS, _SMALLEST_SIDE = 1000, 64


class Size(NamedTuple):
    width: int
    height: int


@dataclass(frozen=True)
class Workload:
    """The sizes that decide how much memory a run takes."""

    # Numbers of Gaussians, initial and largest.
    initial: int
    gaussians: int
    # Sizes of the training and of the held-out photographs.
    train: Sequence[Size]
    others: Sequence[Size]
    config: TrainConfig
    per_isect: bool
    tuning: Tuning

    @classmethod
    def of(cls, dataset: Dataset, config: TrainConfig, device: Device, gaussians: int = 0) -> Self:
        sizes = [Size(view.camera.width, view.camera.height) for view in dataset.views]
        train, held_out = ([sizes[i] for i in part] for part in (dataset.train, dataset.test))
        initial = gaussians or initial_count(config, dataset)
        per_isect = accumulation(device, config.accumulate) == "PerIntersection"
        most = _most_of(config, train, initial)
        return cls(initial, most, train, held_out, config, per_isect, device.tuning)

    def downscaled(self, divisor: int) -> Self:
        train, others = ([Size(-(-w // divisor), -(-h // divisor)) for w, h in part] for part in (self.train, self.others))
        return replace(self, train=train, others=others, gaussians=_most_of(self.config, train, self.initial))


@dataclass(frozen=True)
class MemoryUse:
    """Bytes at the peak of a run, by purpose."""

    gaussians: int  # parameters, moments, gradients and splats
    lists: int  # of intersections of splats with tiles
    images: int  # renders, the loss and bilateral grids
    copies: int  # of the Gaussians, while they are densified, averaged or saved
    freed: int  # buffers kept for reuse
    ahead: int  # photographs being loaded

    @property
    def total(self) -> int:
        """The sum, without resident photographs."""
        return sum(vars(self).values())

    def largest(self, gaussians: int) -> str:
        """Describe the largest part, as a clause."""
        of_gaussians = self.gaussians + self.copies + self.freed
        nbytes, what = max((of_gaussians, f"{gaussians:,} Gaussians"), (self.lists, "tiles' lists"), (self.images, "images"))
        return f"{shown_bytes(nbytes)} of it for {what}"


@dataclass(frozen=True)
class MemoryPlan:
    """The expected memory of a run, and the bytes of photographs that stay."""

    use: MemoryUse  # on the device, and on the host if they share memory
    process: int  # the rest of the process, if they share memory
    photographs: int  # bytes that stay on the device; others are streamed
    decoded: int  # bytes that stay on the host
    streams: bool  # photographs are decoded more than once
    shared: bool  # the device and the host share memory

    @property
    def total(self) -> int:
        return self.process + self.use.total + self.photographs + (self.decoded if self.shared else 0)

    def shown(self) -> str:
        return f"about {shown_bytes(self.total)} of memory at its peak" + ", photographs streamed from disk" * self.streams


def predict(work: Workload, shared: bool) -> MemoryUse:
    """Predict the peak memory of a run in bytes, without resident photographs. Checkpoints are made in host memory, which
    counts if `shared`."""
    config, count = work.config, work.gaussians
    features = 3 * (config.sh_degree + 1) ** 2 if config.has_harmonics else config.color_features
    extras = len(config.parameters())
    groups = [3, 4, 3, 1, features] + [extras] * bool(extras)
    state = _rows(count, [*groups * 3, 1, 1, 1])
    parameters = state + _rows(count, groups[: 4 if config.learns_in_shading else 5])
    # Along rays, a shape of nine floats for surfels, else M and a position too; and normals (`Options.shape_floats`).
    through_space = along_rays(config.splat_source)
    shape = 9 if config.has_surfels else 15 if through_space else 3
    channels = 8 if config.has_surfels else 4 if config.depth_lambda else 3
    row = 3 + shape + channels + extras
    splats = _rows(count, [2, 1, shape, 1, 2, 3, row, 1] + [3] * (shape > 3))
    binning = _rows(count, [1] * 6)
    # Arrays of each photograph in a step stay until all photographs are done.
    packed = config.photographs * _rows(count, [-(-row // 4) * 4] + [channels] * (channels > 3))
    sums = _rows(count, [*groups, *[extras] * bool(extras), 1, 1, 1]) if config.photographs > 1 else 0

    largest = max(work.train, key=lambda size: size.width * size.height)
    tiles = -(-largest.width // work.tuning.tile_size) * -(-largest.height // work.tuning.tile_size)
    isects = max(ISECTS_PER_GAUSSIAN * count, _ISECTS_PER_TILE * tiles)
    per_isect = config.photographs * _rows(isects, [row] * work.per_isect)
    words = 5 if work.per_isect else 2 if in_one_word(count, tiles) else 4
    lists = _rows(isects, [1] * words) + per_isect

    # Renders; colours apart from other channels; and the images of exposures, an environment or random backgrounds.
    floats = 3 + channels + 1 + config.has_surfels + (3 + channels if channels > 3 else 0)
    looks = config.exposure + config.ppisp + config.bilateral_grid
    floats += 3 * (looks + config.environment) + config.random_background + 6 * through_space * (1 + config.refine_cameras)
    # Grids with their moments, and the gradients of those in a step.
    grids = config.bilateral_grid * _rows(len(work.train), [math.prod(GRID)] * 3)
    images = grids + config.bilateral_grid * config.photographs * _rows(1, [math.prod(GRID)])
    for size in set(work.train):
        pixels = size.width * size.height
        sweeps = [min(4 * pixels * CHANNELS * each, BAND_BYTES) for each in floats_a_pixel(work.tuning)]
        images += _rows(pixels, [1] * 3 + [3] + [1] * (floats - 3)) + sum(map(bucket, sweeps))

    # Moving Gaussians needs the arrays before and after, and the row indices.
    moved = parameters + _rows(count, [1] * 13) - packed - sums
    # The peak may also be at the parameters' means, or at a checkpoint when all steps are done.
    means = _rows(count, groups)
    saved = means + (state + means + grids - packed - per_isect if shared else 0)
    copies, freed = max(moved, means, saved), min(MOST_FREE_BYTES, parameters)
    ahead = (AHEAD + config.photographs) * 4 * largest.width * largest.height * (3 if shared else 1)
    return MemoryUse(parameters + splats + binning + packed + sums, lists, images, copies, freed, ahead)


def plan_memory(
    dataset: Dataset,
    config: TrainConfig,
    device: Device,
    max_memory: int | None = None,
    gaussians: int = 0,
    processes: int = 1,
) -> MemoryPlan:
    """Predict the memory of a run, and give the rest to photographs. SplatError if the run needs more than `max_memory` bytes:
    by default three quarters of the free memory, shared equally by the `processes` if the device uses the host's memory.
    `gaussians` is the number in a checkpoint to resume."""
    work, shared = Workload.of(dataset, config, device, gaussians), shares_host_memory(device)
    process = process_bytes() + _COMPILED * device.software if shared else 0
    limit = process + _FREE_SHARE * free_bytes(device) / (processes if shared else 1) if max_memory is None else max_memory
    use = predict(work, shared)
    if process + use.total > limit:
        raise SplatError(_refusal(work, dataset, shared, process, limit, max_memory is None))
    left = limit - process - use.total
    photographs = min(_photographs(work.train), left)
    decoded = _photographs([*work.train, *work.others])
    beside = left - photographs if shared else _FREE_SHARE * psutil.virtual_memory().available / processes
    streams = decoded > beside
    return MemoryPlan(use, process, int(photographs), 0 if streams else decoded, streams, shared)


def _refusal(work: Workload, dataset: Dataset, shared: bool, process: int, limit: float, by_default: bool) -> str:
    """Return one sentence: the predicted memory, and the options that would fit."""
    use = predict(work, shared)

    def fits(other: Workload) -> bool:
        return process + predict(other, shared).total <= limit

    advice = []
    # A budget never removes initial Gaussians.
    fewest = max(work.initial, _FEWEST_GAUSSIANS)
    if work.gaussians > fewest and fits(replace(work, gaussians=fewest)):
        advice.append(f"--budget {_most_gaussians(work, fewest, fits)}")
    for divisor in range(2, _MOST_DIVISOR + 1):
        smaller = work.downscaled(divisor)
        if min(map(min, smaller.train)) >= _SMALLEST_SIDE and fits(smaller):
            advice.append(f"a --downscale {divisor} times as large")
            break
    for columns, rows in _GRIDS:
        if fits(replace(work, gaussians=math.ceil(min(_OVERLAP / (columns * rows), 1) * work.gaussians))):
            advice.append(f"`splat partition {dataset.root} --cells {columns}x{rows}` and its cells one by one")
            break
    least = shown_bytes(1.01 * (process + use.total))
    what = "three quarters of the free memory" if by_default else "--max-memory"
    advice.append(f"--max-memory {least}" if by_default or not advice else f"a --max-memory of {least}")
    *others, last = advice
    instead = f"{', '.join(others)} or {last}" if others else last
    return (
        f"training would take {shown_bytes(process + use.total)} of memory, {use.largest(work.gaussians)}, and may take "
        f"{shown_bytes(limit)} ({what}): use {instead}"
    )


def _most_gaussians(work: Workload, low: int, fits: Callable[[Workload], bool]) -> int:
    """Return the largest budget that fits, rounded down to two digits."""
    counts = range(low, work.gaussians)
    most = low + bisect_left(counts, True, lo=1, key=lambda count: not fits(replace(work, gaussians=count))) - 1
    step = 10 ** max(len(str(most)) - 2, 0)
    return most // step * step


def _most_of(config: TrainConfig, train: Sequence[Size], initial: int) -> int:
    return max(config.budget_of(sum(width * height for width, height in train) / len(train), initial), initial)


def _rows(count: int, floats: Sequence[int]) -> int:
    """Return the allocated bytes of arrays with `count` rows, one array for each number of floats a row."""
    return sum(bucket(4 * count * each) for each in floats)


def _photographs(sizes: Sequence[Size]) -> int:
    return sum(bucket(4 * width * height) for width, height in sizes)
