"""The options of a training run, values that follow from them, and the files that hold them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from splat_py.fit.run_folder import RunRecord
from splat_py.scene.data_options import DataOptions
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.run import RunFolder
from tests.fuzz.files import arrays_of
from tests.refusals import refused

# Some fields of every type; tests/fit/test_checked.py tests that each field is read.
CONFIG = TrainConfig(1200, 1, init="random", init_num_pts=321, means_lr=0.001, antialiased=True, accumulate="pixel", seed=9)


def test_checkpoints_and_records_hold_all_options(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    state = arrays_of("splats")
    Checkpoint(40, CONFIG, state, 17).save(path)
    checkpoint = Checkpoint.load(path)
    assert (checkpoint.step, checkpoint.capacity, checkpoint.config) == (40, 17, CONFIG)
    assert checkpoint.state.keys() == state.keys()
    folder = RunFolder(tmp_path)
    RunRecord(DataOptions(tmp_path, downscale=4), CONFIG, "abc").save(folder.record_file)
    record = folder.record()
    assert (record.config, record.data.downscale, record.dataset) == (CONFIG, 4.0, "abc")
    assert TrainConfig.from_dict({}) == TrainConfig()
    assert TrainConfig.from_dict({"sh0_lr": 0.1, "seed": 1, "batch": 2}) == TrainConfig(sh0_lr=0.1, seed=1, batch=2)


@pytest.mark.parametrize("content", [None, [], 3, "steps", {"speed": 1}], ids=str)
def test_what_is_no_configuration(content: object, tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        TrainConfig.from_dict(content)  # type: ignore[arg-type]
    path = tmp_path / "checkpoint.safetensors"
    save_file(arrays_of("splats"), path, metadata={"splat_py": json.dumps({"step": 40, "config": content, "capacity": 17})})
    refused("is not a checkpoint of splat_py or is damaged; train without --resume", Checkpoint.load, path)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfe",
        b"[" * 100_000,
        b"[]",
        b'{"data": 3, "config": {}}',
        b'{"data": {"data": 3}, "config": {}}',
        b'{"data": {"data": "/x", "downscale": true}, "config": {}}',
        b'{"data": {"data": "/x"}, "config": {"antialiased": "true; }"}}',
        b'{"data": {"data": "/x"}, "config": {"means_lr": 1e999}}',
    ],
)
def test_damaged_descriptions_of_runs(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(data)
    refused(r"run\.json is damaged; train again", RunFolder(tmp_path).record)


def test_a_budget_follows_steps_and_pixels() -> None:
    config = TrainConfig(steps=1000)
    assert replace(config, steps=4000).budget_of(1e4, 9) == pytest.approx(2 * config.budget_of(1e4, 9), abs=2)
    assert config.budget_of(4e4, 9) == pytest.approx(2 * config.budget_of(1e4, 9), abs=2)
    assert replace(config, budget=1234).budget_of(1e4, 9) == 1234
    assert replace(config, budget=1234, max_gaussians=1000).budget_of(1e4, 9) == 1000
    assert TrainConfig(max_gaussians=10).budget_of(1e6, 9) == 10
    assert config.budget_of(1e4, 40_000) == 60_000
    assert TrainConfig(steps=1000).growth_limit(99, 500, 100) == 500


@pytest.mark.parametrize("config", [TrainConfig(steps=n) for n in (30, 500, 777, 2000, 30_000)], ids=lambda c: c.steps)
def test_even_growth_reaches_the_budget_at_the_last_densification(config: TrainConfig) -> None:
    count, counts = 1000, []
    for step in range(config.steps):
        if config.densifies_at(step):
            count = config.growth_limit(step, count, 9000)
            counts.append(count)
    if not counts:
        assert config.steps < 100
        return
    assert counts[-1] == 9000
    added = [after - before for before, after in zip([1000, *counts], counts, strict=False)]
    assert max(added) - min(added) <= len(added) + 1
    assert config.growth_limit(config.densify_end - 1, 10, 9000) == 9000


def test_schedules_of_full_and_of_shorter_runs() -> None:
    config = TrainConfig()
    assert config.short_run_lr_scale == 1 and config.means_lr_at(0, 2.0) == 2 * config.means_lr
    assert config.means_lr_at(config.steps, 2.0) == pytest.approx(0.02 * config.means_lr)
    refined = [step + 1 for step in range(config.steps) if config.densifies_at(step)]
    assert (refined[0], refined[1] - refined[0], refined[-1]) == (600, 100, 15_000)
    assert [step + 1 for step in range(config.steps) if config.resets_opacities_at(step)] == [3000, 6000, 9000, 12_000]
    config = TrainConfig(steps=7500)
    assert config.short_run_lr_scale == pytest.approx(2)
    assert config.means_lr_at(0, 1.0) == pytest.approx(2 * config.means_lr)
    assert config.means_lr_at(7500, 1.0) == pytest.approx(2 * config.means_lr * 0.01 * 2**1.5)
    assert replace(config, strategy="mcmc").means_lr_at(7500, 1.0) == pytest.approx(2 * config.means_lr * 0.01)
    assert TrainConfig(steps=10).short_run_lr_scale == 8
    assert TrainConfig(steps=100_000).short_run_lr_scale == 1
    assert TrainConfig(steps=200).densify_interval == 25
    assert TrainConfig(steps=1000).densify_interval == 50
    assert not any(TrainConfig(steps=60, densify_every=1000).densifies_at(step) for step in range(60))


def test_defaults_and_ranges() -> None:
    """The numbers of Kerbl et al. 2023 and of gsplat's trainer, which results in papers are for."""
    config = TrainConfig()
    assert (config.steps, config.sh_degree, config.sh_interval, config.ssim_lambda) == (30_000, 3, 1000, 0.2)
    rates = config.means_lr, config.quats_lr, config.scales_lr, config.opacities_lr, config.sh0_lr
    assert rates == (1.6e-4, 1e-3, 5e-3, 5e-2, 2.5e-3)
    thresholds = config.grow_grad2d, config.split_scale, config.prune_opacity, config.prune_scale
    assert thresholds == (2e-4, 0.01, 0.005, 0.1)
    when = config.densify_start, config.densify_every, config.densify_stop, config.opacity_reset_every
    assert when == (500, 100, 15_000, 3000)
    for name, value in {"sh_degree": 4, "ssim_lambda": 1.1, "steps": 0, "prune_opacity": 0.5, "means_lr": -1.0}.items():
        refused(f"{name} is", replace(config, **{name: value}).validate)
