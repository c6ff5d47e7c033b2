"""How many Gaussians a run may have, and when it gets them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from splat_py.splats.budget import budget_of, growth_limit
from splat_py.splats.config import TrainConfig


def test_a_budget_follows_steps_and_pixels() -> None:
    config = TrainConfig(steps=1000)
    assert budget_of(replace(config, steps=4000), 1e4, 9) == pytest.approx(2 * budget_of(config, 1e4, 9), abs=2)
    assert budget_of(config, 4e4, 9) == pytest.approx(2 * budget_of(config, 1e4, 9), abs=2)
    assert budget_of(replace(config, budget=1234), 1e4, 9) == 1234
    assert budget_of(replace(config, budget=1234, max_gaussians=1000), 1e4, 9) == 1000
    assert budget_of(TrainConfig(max_gaussians=10), 1e6, 9) == 10
    assert budget_of(config, 1e4, 40_000) == 60_000


@pytest.mark.parametrize("config", [TrainConfig(steps=n) for n in (30, 500, 777, 2000, 30_000)], ids=lambda c: c.steps)
def test_even_growth_reaches_the_budget_at_the_last_densification(config: TrainConfig) -> None:
    count, counts = 1000, []
    for step in range(config.steps):
        if config.densifies_at(step):
            count = growth_limit(config, step, count, 9000)
            counts.append(count)
    if not counts:
        assert config.steps < 100
        return
    assert counts[-1] == 9000
    added = [after - before for before, after in zip([1000, *counts], counts, strict=False)]
    assert max(added) - min(added) <= len(added) + 1
    # Those that are pruned are made up for.
    assert growth_limit(config, config.densify_end - 1, 10, 9000) == 9000


def test_none_are_removed_to_keep_a_budget() -> None:
    assert growth_limit(TrainConfig(steps=1000), 99, 500, 100) == 500


def test_full_runs_are_the_fields() -> None:
    config = TrainConfig()
    assert config.haste == 1 and config.means_lr_at(0, 2.0) == 2 * config.means_lr
    assert config.means_lr_at(config.steps, 2.0) == pytest.approx(0.02 * config.means_lr)
    refined = [step + 1 for step in range(config.steps) if config.densifies_at(step)]
    assert (refined[0], refined[1] - refined[0], refined[-1]) == (600, 100, 15_000)
    assert [step + 1 for step in range(config.steps) if config.resets_opacities_at(step)] == [3000, 6000, 9000, 12_000]


def test_shorter_runs_learn_faster_up_to_eight_times() -> None:
    config = TrainConfig(steps=7500)
    assert config.haste == pytest.approx(2)
    assert config.means_lr_at(0, 1.0) == pytest.approx(2 * config.means_lr)
    assert config.means_lr_at(7500, 1.0) == pytest.approx(2 * config.means_lr * 0.01 * 2**1.5)
    assert replace(config, strategy="mcmc").means_lr_at(7500, 1.0) == pytest.approx(2 * config.means_lr * 0.01)
    assert TrainConfig(steps=10).haste == 8
    assert TrainConfig(steps=100_000).haste == 1
    assert TrainConfig(steps=200).densify_interval == 25
    assert TrainConfig(steps=1000).densify_interval == 50
    assert not any(TrainConfig(steps=60, densify_every=1000).densifies_at(step) for step in range(60))
