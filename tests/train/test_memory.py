"""A training run's memory is predicted before it begins, and photographs that do not fit beside it are streamed."""

import gc
import re
from dataclasses import replace
from pathlib import Path

import pytest

from splat_py.base.errors import SplatError
from splat_py.base.fields import bytes_of, shown_bytes
from splat_py.gpu.device import _GPU_TUNING, get_device
from splat_py.scene.data_options import DataOptions
from splat_py.scene.dataset import Dataset, load_dataset
from splat_py.train import memory
from splat_py.train.config import TrainConfig
from splat_py.train.memory import Size, Workload, plan_memory, predict
from splat_py.train.run import train
from splat_py.train.trainer import Trainer
from tests.refusals import refused
from tests.train.refinement import assert_same_bits

CAPTURE = 6, 96
LOADED = {"undistort": False}


@pytest.mark.parametrize(
    ("size", "expected"),
    [("8GB", 8 * 10**9), ("7.5 GiB", 7.5 * 2**30), ("500mb", 5e8), ("2g", 2e9), ("512M", 512e6), ("1ki", 1024), ("1TB", 1e12)],
)
def test_sizes_are_read_as_people_write_them(size: str, expected: float) -> None:
    assert bytes_of("max_memory", size) == expected


@pytest.mark.parametrize("size", ["", "8", "GB", "-1GB", "1e9GB", "8 PB", "8GBB", "9" * 40 + "GB", "nanGB"])
def test_what_is_no_size_is_refused(size: str) -> None:
    refused(r"max_memory is .*; give a number and a unit, such as 8GB", DataOptions(Path("a"), max_memory=size).validate)


def test_sizes_are_shown_shortly() -> None:
    assert (shown_bytes(740.4e6), shown_bytes(8.94e9), shown_bytes(999.6e6)) == ("740 MB", "8.9 GB", "1.0 GB")


@pytest.mark.parametrize(
    ("count", "divisor", "options"),
    [
        (4000, 1, {}),
        (4000, 1, {"splat": "Surfel"}),
        (300, 1, {"bilateral_grid": True}),
        (40_000, 2, {"accumulate": "pair", "sh_degree": 1, "batch": 2}),
    ],
)
def test_as_much_is_taken_as_was_predicted(capture: Path, count: int, divisor: int, options: dict) -> None:
    dataset = load_dataset(capture, downscale=divisor)
    config = TrainConfig(steps=26, densify_every=13, init="random", init_num_pts=count, max_gaussians=count, **options)
    memory = get_device().memory
    gc.collect()
    before = memory.peak_bytes = memory.live_bytes
    trainer = Trainer(dataset, config)
    trainer.fit()
    plan = trainer.memory
    predicted = plan.use.total - plan.use.freed - plan.use.ahead + plan.photographs
    measured = memory.peak_bytes - before
    if plan.shared:
        # A checkpoint's arrays are held besides everything on the device.
        saved = sum(values.nbytes for values in trainer.checkpoint().state.values())
        measured = max(measured, memory.live_bytes - before + saved)
    assert 0.8 * predicted < measured < 1.05 * predicted


def test_streamed_photographs_give_the_same_bits(capture: Path, dataset: Dataset) -> None:
    config = TrainConfig(steps=24, init="random", init_num_pts=300, accumulate="pair", densify_every=12, batch=2)
    held = Trainer(dataset, config)
    assert not held.memory.streams
    held.fit()
    streamed = Trainer(load_dataset(capture, memory_limit_bytes=0, undistort=False), config)
    streamed.memory = replace(streamed.memory, photographs=0, decoded=0)
    streamed.fit()
    assert_same_bits(streamed.parameters.state(), held.parameters.state())


def test_photographs_get_what_is_left(dataset: Dataset) -> None:
    device, config = get_device(), TrainConfig(steps=100)
    whole = plan_memory(dataset, config, device)
    each = 4 * 96 * 96
    if not whole.shared:
        pytest.skip("photographs are decoded in other memory")
    assert (whole.photographs, whole.decoded, whole.streams) == (5 * each, 6 * each, False)
    # The process itself grows and shrinks by far more than these photographs.
    work = Workload.of(dataset, config, device)
    many = replace(dataset, views=dataset.views * 20_000, train=list(range(1, 100_000)))
    least = predict(work, shared=True).total
    limited = plan_memory(many, config, device, whole.process + least + 100_000_000)
    assert limited.streams and limited.decoded == 0 and 5e7 < limited.photographs < 1.5e8


def test_what_does_not_fit_is_refused_with_numbers_that_do(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    # Memory that earlier tests have left does not count for this run.
    monkeypatch.setattr(memory, "process_bytes", lambda: 800_000_000)
    device, config = get_device(), TrainConfig(budget=4_000_000, max_gaussians=5_000_000)
    limit = 4_000_000_000
    with pytest.raises(SplatError) as error:
        plan_memory(dataset, config, device, limit)
    message = str(error.value)
    assert re.search(r"training would take [\d.]+ GB of memory, [\d.]+ GB of it for 4,000,000 Gaussians", message)
    assert "and may take 4.0 GB (--max-memory): use --budget" in message and "\n" not in message
    pattern = r"--budget (\d+), `splat partition \S+ --cells (\d+x\d+)` .* or a --max-memory of ([\d.]+) GB"
    budget, grid, least = re.search(pattern, message).groups()  # type: ignore[union-attr]
    assert int(budget) > 500_000 and grid in ("3x2", "3x3", "4x3")
    plan_memory(dataset, replace(config, budget=int(budget)), device, limit)
    plan_memory(dataset, config, device, bytes_of("", f"{float(least) + 0.1:.1f}GB"))


def test_large_photographs_are_what_takes_most() -> None:
    work = Workload(1000, 100_000, [Size(8000, 6000)] * 3, [], TrainConfig(), per_isect=False, tuning=_GPU_TUNING)
    assert predict(work, shared=False).largest(100_000).endswith("for images")
    assert predict(work.downscaled(2), shared=False).images < predict(work, shared=False).images / 2


def test_a_run_that_does_not_fit_leaves_nothing(capture: Path, tmp_path: Path) -> None:
    with pytest.raises(SplatError, match=r"may take 100 MB \(--max-memory\)"):
        train(DataOptions(capture, max_memory="100MB"), TrainConfig(steps=2), tmp_path / "run")
    assert not list((tmp_path / "run").glob("*.json"))
