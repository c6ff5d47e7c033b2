"""Choices of `splat train --quality`: steps and the size of photographs that fit a time, from steps timed on the device, and
corrections that the photographs call for."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from splat_py.base.errors import SplatError
from splat_py.gpu.device import Device
from splat_py.scene.colmap import read_observations
from splat_py.scene.data_options import DataOptions
from splat_py.scene.dataset import DEFAULT_MEMORY_LIMIT, Dataset, pixels_of_points
from splat_py.scene.images import ImageStore
from splat_py.scene.partition import CELL_FILE
from splat_py.train.checkpoint import initial_count
from splat_py.train.config import TrainConfig
from splat_py.train.memory import plan_memory
from splat_py.train.trainer import Trainer
from splat_py.train.views import largest_divisor

# Seconds of training.
SECONDS = {"draft": 120.0, "good": 600.0, "best": 3600.0}
# Divisors of photographs' sides to choose from, the shorter side they leave at least, and the most pixels for each step. Two
# minutes on fox, against its held-out views at half size: 2,000 steps at an eighth 26.0 dB (16 pixels a step, no 3D filter),
# 980 at a quarter 29.9 dB (132), 660 at a third 29.9 dB (349).
_DIVISORS, _SHORTEST, _PIXELS_A_STEP = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0), 64, 200
# A trial's photographs, steps to warm up and to time, pixels at first, and Gaussians a pixel; photographs grow until one
# takes as many seconds as the last number.
_VIEWS, _WARM, _TIMED, _PIXELS, _DENSITIES, _LONG = 3, 3, 3, 30_000, (1 / 3, 2.0), 0.1
# Photographs that exposures are measured from, pixels of each, points that two of them must share, and the standard
# deviation in stops from which exposures are learnt (0.27 on fox: 31.3 → 31.8 dB after 600 steps at a twelfth, colours
# matched).
_SAMPLES, _SAMPLE_PIXELS, _FEWEST_POINTS, _STOPS = 24, 250_000, 20, 0.2


@dataclass(frozen=True)
class StepCost:
    """Seconds of a training step: `fixed` + `pixel` for each pixel of its photograph + `gaussian` for each Gaussian."""

    fixed: float
    pixel: float
    gaussian: float

    def seconds(self, config: TrainConfig, pixels: float, initial: int, divisor: int) -> float:
        """Return the seconds of a run on photographs of so many `pixels`, from `initial` Gaussians, with sides divided by
        `divisor` at first."""
        budget = max(config.budget_of(pixels, initial), initial)
        steps = range(0, config.steps, math.ceil(config.steps / 200))
        total = 0.0
        for step in steps:
            gaussians = initial + (budget - initial) * min(step / max(config.densify_end, 1), 1.0)
            total += self.fixed + self.pixel * pixels / config.divisor_at(step, divisor) ** 2 + self.gaussian * gaussians
        return total * config.steps / len(steps)


def choose(
    data: DataOptions,
    config: TrainConfig,
    given: frozenset[str],
    quality: str,
    device: Device,
    tell: Callable[[int, int], None],
) -> tuple[DataOptions, TrainConfig, list[str]]:
    """Return the options of a run whose training takes about `SECONDS[quality]`, and a sentence for each choice. Options that
    are `given` keep their values. `tell` is called with the steps of the trial that are done, and their number."""
    whole = data if "downscale" in given else replace(data, downscale=1.0)
    dataset, said = whole.load(0), []
    looks = given & {"exposure", "ppisp", "bilateral_grid"}
    lenses = any(view.camera.distortion is not None for view in dataset.views)
    decided = given & {"environment", "random_background"} or (lenses and "undistort" in given)
    if not looks and (stops := exposure_spread(sampled(whole))) is not None and stops >= _STOPS:
        config = replace(config, exposure=True)
        said.append(f"--exposure, because exposures differ by {stops:.1f} stops; --no-exposure leaves it out")
    if not decided and _can_have_environment(whole, config, dataset):
        config, whole = replace(config, environment=True), replace(whole, undistort=whole.undistort or lenses)
        dataset = whole.load(0)
        how = "--environment" + " --undistort" * lenses
        said.append(f"{how}, for the sky and what lies beyond the scene; --no-environment leaves it out")
    filters = not (given & {"filter_3d", "antialiased"} or config.has_surfels)
    filtered = replace(config, filter_3d=True, antialiased=True) if filters else config
    cost = measure(dataset, filtered, device, tell)
    initial, limit = initial_count(config, dataset), SECONDS[quality]
    for divisor in [1.0] if "downscale" in given else _divisors(dataset):
        scaled = _scaled(dataset, divisor)
        pixels, coarsest = scaled.pixels, largest_divisor(scaled)

        def takes(steps: int, pixels: float = pixels, coarsest: int = coarsest) -> float:
            return cost.seconds(replace(config, steps=steps), pixels, initial, coarsest)

        steps = config.steps if "steps" in given else _most_steps(takes, config.steps, limit)
        enough = takes(steps) <= limit if "steps" in given else steps * _PIXELS_A_STEP >= pixels
        chosen = replace(filtered if divisor * whole.downscale > 1 else config, steps=steps)
        if enough and _fits(scaled, chosen, device, data.max_bytes):
            break
    camera = scaled.views[scaled.train[0]].camera
    size = f"photographs of {camera.width}×{camera.height}" + f", 1/{divisor:g} of their size" * (divisor > 1)
    budget = max(chosen.budget_of(pixels, initial), initial)
    minutes = shown_seconds(takes(steps))
    said.insert(0, f"--quality {quality}: {steps:,} steps on {size}, up to {budget:,} Gaussians: about {minutes} of training")
    if chosen.filter_3d and filters:
        said.append("--filter-3d --antialiased, because photographs are downscaled; --no-filter-3d leaves both out")
    return replace(whole, downscale=whole.downscale * divisor), chosen, said


def shown_seconds(seconds: float) -> str:
    """Return a duration in the unit that a person would use."""
    for unit, size in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def measure(dataset: Dataset, config: TrainConfig, device: Device, tell: Callable[[int, int], None]) -> StepCost:
    """Time steps of short trials: at two sizes of photographs, and at the smaller one with more Gaussians."""
    smaller, done = max(math.sqrt(dataset.pixels / _PIXELS), 2.0), 0
    few, many = (math.ceil(density * dataset.pixels / smaller**2) for density in _DENSITIES)

    def timed(divisor: float, count: int) -> tuple[float, float]:
        nonlocal done
        trial = _trial(dataset, divisor, count, config.photographs)
        # All of its steps are alike: on whole photographs, with all harmonics, and without densification.
        steps = replace(
            config,
            steps=100_000,
            sh_interval=1,
            coarse_stop=0,
            densify_every=100_000,
            init="points",
            budget=0,
            max_gaussians=many,
        )
        trainer, seconds = Trainer(trial, steps, device=device), []
        for _ in range(_WARM + _TIMED):
            began = time.monotonic()
            trainer.advance()
            trainer.finish()
            seconds.append(time.monotonic() - began)
            done += 1
            tell(done, max(3 * (_WARM + _TIMED), done))
        return trial.pixels, float(np.median(seconds[_WARM:]))

    (pixels, base), (_, crowded) = timed(smaller, few), timed(smaller, many)
    divisor, largest, longest = smaller, pixels, base
    while divisor > 1 and (divisor == smaller or longest < _LONG):
        divisor = max(divisor / 2, 1.0)
        largest, longest = timed(divisor, few)
    pixel, gaussian = max(longest - base, 0.0) / max(largest - pixels, 1.0), max(crowded - base, 0.0) / (many - few)
    return StepCost(max(base - pixel * pixels - gaussian * few, 0.0), pixel, gaussian)


def sampled(data: DataOptions) -> Dataset:
    """Return a few training photographs, undistorted, small and in memory."""
    dataset = replace(data, undistort=True).load(0)
    views = [dataset.views[view] for view in _spaced(dataset.train, _SAMPLES)]
    few = replace(dataset, views=views, train=list(range(len(views))), test=[])
    few = _scaled(few, max(math.sqrt(few.pixels / _SAMPLE_PIXELS), 1.0))
    few.hold(DEFAULT_MEMORY_LIMIT)
    return few


def exposure_spread(sample: Dataset) -> float | None:
    """Return how much exposures differ: the standard deviation over the training photographs in stops, of the channel where it
    is largest. Each pair of photographs differs by the median over the points of the capture that both show. None if the
    capture does not say which photographs show a point."""
    if (model := sample.model) is None:
        return None
    observations, shown = read_observations(model), []
    for view in range(len(sample)):
        camera, image = sample.views[view].camera, sample.image(view)
        xyz = observations.get(camera.name, np.zeros((0, 3)))
        inside, pixels, _ = pixels_of_points(camera, xyz)
        # Clipped colours have lost their exposure, and the fourth channel is 0 where pixels do not count.
        colors = image[pixels]
        exposed = (colors.min(1) > 8) & (colors[:, :3].max(1) < 247)
        stops = 2.2 * np.log2(colors[exposed, :3] / 255.0)
        shown.append(dict(zip(map(bytes, xyz[inside][exposed]), stops, strict=True)))
    differences = []
    for one, other in combinations(shown, 2):
        common = one.keys() & other.keys()
        if len(common) >= _FEWEST_POINTS:
            differences.append(np.median([one[point] - other[point] for point in common], axis=0))
    # The median of |x| is 0.6745 σ, and a difference of two has √2 times the deviation of one.
    return float(np.median(np.abs(differences), axis=0).max() / (0.6745 * math.sqrt(2))) if differences else None


def _can_have_environment(data: DataOptions, config: TrainConfig, dataset: Dataset) -> bool:
    """True if an environment can be learnt, and shown by all that is made of the scene. Fisheye photographs would lose their
    edges, because it needs pinholes."""
    if any(view.camera.distortion is not None and view.camera.distortion.fisheye for view in dataset.views):
        return False
    plain = config.splat == "Gaussian" and config.has_harmonics and config.camera in ("dataset", "pinhole")
    whole = data.cut_out is None and not any(view.has_alpha for view in dataset.views) and dataset.points is not None
    return plain and whole and not config.random_background and not (data.data / CELL_FILE).exists()


def _most_steps(takes: Callable[[int], float], most: int, limit: float) -> int:
    """Return the largest number of steps, up to `most`, that take `limit` seconds, and at least one."""
    low = 1
    while low < most:
        middle = (low + most + 1) // 2
        low, most = (middle, most) if takes(middle) <= limit else (low, middle - 1)
    # Two digits are exact enough, and easier to read.
    digit = 10 ** max(len(str(low)) - 2, 0)
    return low // digit * digit


def _divisors(dataset: Dataset) -> list[float]:
    side = min(min(camera.width, camera.height) for camera in dataset.train_cameras)
    return [divisor for divisor in _DIVISORS if side >= _SHORTEST * divisor] or [1.0]


def _fits(dataset: Dataset, config: TrainConfig, device: Device, max_memory: int | None) -> bool:
    try:
        plan_memory(dataset, config, device, max_memory)
    except SplatError:
        return False
    return True


def _spaced(views: list[int], count: int) -> list[int]:
    """Return at most `count` of the views, evenly spaced."""
    count = min(count, len(views))
    return [views[index * len(views) // count] for index in range(count)]


def _scaled(dataset: Dataset, divisor: float) -> Dataset:
    """Return the dataset with photographs whose sides are divided by `divisor`."""
    views = [replace(view, camera=view.camera.scaled(1 / divisor)) for view in dataset.views]
    return replace(dataset, views=views, _images=ImageStore(views, dataset.background, 0))


def _trial(dataset: Dataset, divisor: float, count: int, batch: int) -> Dataset:
    """Return a few photographs of a dataset at a size, and `count` points that cover pixels as those of a trained scene do: the
    dataset's own, repeated beside themselves, or random ones if it has none."""
    rng = np.random.default_rng(0)
    if dataset.points is None:
        xyz, rgb = rng.uniform(dataset.bounds[0], dataset.bounds[1], (count, 3)), np.full((count, 3), 128, np.uint8)
    else:
        rows = rng.integers(0, len(dataset.points[0]), count)
        xyz = rng.normal(dataset.points[0][rows], 0.01 * dataset.scene_scale)
        rgb = dataset.points[1][rows]
    views = _spaced(dataset.train, max(_VIEWS, batch))
    return replace(_scaled(dataset, divisor), train=views, test=[], points=(xyz.astype(np.float32), rgb))
