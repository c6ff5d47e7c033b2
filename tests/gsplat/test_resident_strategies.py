"""The trainer's strategies, which run on the device, against gsplat 1.5.3's, with the same state and random numbers."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import Parameter, ParameterDict

from splat_py.fit.steps import Use
from splat_py.gpu.device import get_device
from splat_py.train.config import TrainConfig
from splat_py.train.density import densify, record_noise, relocate_and_grow, reset_opacities
from splat_py.train.parameters import Parameters
from tests.gsplat.comparison import adam
from tests.reference.mcmc import draw
from tests.reference.random_numbers import normals
from tests.train.refinement import Arrays, key_of, state_of

STEP, SCENE_SCALE, COUNT = 3200, 7.0, 700
CONFIG = TrainConfig(seed=3, prune_scale=0.02)
NAMES = {"means": "means", "quats": "quats", "log_scales": "scales", "logit_opacities": "opacities", "sh": "sh"}
MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq"}


def for_gsplat(state: Arrays) -> tuple[ParameterDict, dict[str, torch.optim.Optimizer]]:
    params = ParameterDict({name: Parameter(torch.from_numpy(state[ours].copy())) for ours, name in NAMES.items()})
    optimizers = {name: adam([params[name]]) for name in params}
    for ours, name in NAMES.items():
        moments = {theirs: torch.from_numpy(state[f"{ours}.{m}"].copy()) for m, theirs in MOMENTS.items()}
        optimizers[name].state[params[name]] = {"step": torch.tensor(9.0), **moments}
    return params, optimizers


def assert_same(ours: Arrays, params: ParameterDict, optimizers: dict[str, torch.optim.Optimizer]) -> None:
    for name, theirs in NAMES.items():
        np.testing.assert_allclose(ours[name], params[theirs].detach().numpy(), rtol=2e-5, atol=2e-5, err_msg=name)
        for m, moment in MOMENTS.items():
            values = optimizers[theirs].state[params[theirs]][moment]
            np.testing.assert_array_equal(ours[f"{name}.{m}"], values, err_msg=f"{name}.{m}")


def test_default(wheel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_of(COUNT)
    after = densify(Parameters(get_device(), state), CONFIG, STEP, SCENE_SCALE)
    reset_opacities(after, CONFIG)

    params, optimizers = for_gsplat(state)
    splits = state["gradient_norms"] / np.maximum(state["times_seen"], 1) > CONFIG.grow_grad2d
    splits &= np.exp(state["log_scales"]).max(axis=1) > CONFIG.split_scale * SCENE_SCALE
    (rows,) = np.nonzero(splits)
    key = key_of(CONFIG, STEP, Use.SPLIT)
    drawn = np.stack([normals(rows, key), normals(COUNT + rows, key)])
    monkeypatch.setattr(torch, "randn", lambda *shape, device: torch.from_numpy(drawn.astype(np.float32)).reshape(shape))
    statistics: dict[str, Any] = {"scene_scale": SCENE_SCALE}
    statistics |= {"grad2d": torch.from_numpy(state["gradient_norms"]), "count": torch.from_numpy(state["times_seen"])}
    strategy = wheel.DefaultStrategy(prune_scale3d=CONFIG.prune_scale)
    assert min(strategy._grow_gs(params, optimizers, statistics, STEP)) > 40
    assert strategy._prune_gs(params, optimizers, statistics, STEP) > 300
    wheel.ops.reset_opa(params, optimizers, statistics, 2 * strategy.prune_opa)
    assert_same(after.state(), params, optimizers)


def test_mcmc(wheel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_of(COUNT)
    after = relocate_and_grow(Parameters(get_device(), state), CONFIG, STEP)
    moved = after.state()

    params, optimizers = for_gsplat(state)
    dead = torch.from_numpy(state["logit_opacities"]).sigmoid().numpy() <= CONFIG.prune_opacity
    (dead_rows,), (alive_rows,) = np.nonzero(dead), np.nonzero(~dead)
    draws = []

    def same_draws(weights: torch.Tensor, n: int, replacement: bool = True) -> torch.Tensor:
        of_all = np.zeros(COUNT)
        rows = np.arange(COUNT) if draws else alive_rows
        of_all[rows] = weights.numpy()
        counters, use = (np.arange(COUNT, COUNT + n), Use.GROWTH) if draws else (dead_rows, Use.RELOCATION)
        draws.append(np.searchsorted(rows, draw(of_all, counters, key_of(CONFIG, STEP, use))))
        return torch.from_numpy(draws[-1])

    monkeypatch.setattr(wheel.ops, "_multinomial_sample", same_draws)
    strategy = wheel.MCMCStrategy()
    binoms = strategy.initialize_state()["binoms"]
    assert strategy._relocate_gs(params, optimizers, binoms) == len(dead_rows) > 100
    assert strategy._add_new_gs(params, optimizers, binoms) == 35
    assert len(draws) == 2
    assert_same(moved, params, optimizers)

    rate = 1e-6 * CONFIG.means_lr_at(STEP, SCENE_SCALE) / CONFIG.means_lr
    config = TrainConfig(seed=CONFIG.seed, means_lr=1e-6)
    with get_device().recording() as recorder:
        record_noise(recorder, after, config, STEP, SCENE_SCALE, get_device().memory.array(np.zeros(3, np.uint32)))
    drawn = normals(np.arange(735), key_of(CONFIG, STEP, Use.NOISE)).astype(np.float32)
    monkeypatch.setattr(torch, "randn_like", lambda means: torch.from_numpy(drawn))
    with torch.no_grad():
        wheel.ops.inject_noise_to_position(params, optimizers, {}, scaler=rate * strategy.noise_lr)
    noise = after.state()["means"] - moved["means"]
    assert np.abs(noise).max() > 1e-4
    assert_same(after.state(), params, optimizers)
    np.testing.assert_allclose(noise, params["means"].detach().numpy() - moved["means"], atol=3e-5)
