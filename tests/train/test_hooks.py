"""`Trainer(on_gradients=, on_update=, strategy=)`: callbacks between the stages of a step; strategies as gsplat has them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import Parameter

from splat_py import Dataset, SplatError
from splat_py.gsplat import DefaultStrategy, MCMCStrategy
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.trainer import Trainer
from tests.refusals import refused

CAPTURE = 4, 24
CONFIG = TrainConfig(steps=6, init="random", init_num_pts=300, coarse_stop=0, sh_degree=1, accumulate="pair")
PER_ROW = ("means", "quats", "log_scales", "logit_opacities", "sh")


def steps(trainer: Trainer, count: int) -> Trainer:
    for _ in range(count):
        trainer.advance()
    trainer.finish()
    return trainer


@pytest.mark.parametrize("changes", [{}, {"batch": 2}, {"splat": "BetaKernel"}], ids=["one", "two", "beta"])
def test_a_loss_of_parameters(changes: dict[str, Any], dataset: Dataset) -> None:
    """Gradients are complete, in views that torch adds to: a regulariser in torch does what the built-in one does."""
    config = replace(CONFIG, **changes)

    def regularise(step: int, params: Mapping[str, Parameter], info: dict[str, Any]) -> None:
        assert all(param.grad is not None and param.grad.shape == param.shape for param in params.values())
        assert all(param.grad.abs().max() > 0 for name, param in params.items() if step > 0 or name != "quats")
        (50 * params["scales"].exp().mean() + 3 * params["opacities"].sigmoid().mean()).backward()

    mine = steps(Trainer(dataset, config, on_gradients=regularise), 2).parameters.state()
    built_in = steps(Trainer(dataset, replace(config, scale_reg=50.0, opacity_reg=3.0)), 2).parameters.state()
    without = steps(Trainer(dataset, config), 2).parameters.state()
    for name in ("log_scales", "logit_opacities", "means", "sh"):
        np.testing.assert_allclose(mine[name], built_in[name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert np.abs(mine["log_scales"] - without["log_scales"]).max() > 0.01


def test_assigned_gradients_and_values_count(dataset: Dataset) -> None:
    def freeze(step: int, params: Mapping[str, Parameter], info: dict[str, Any]) -> None:
        params["means"].grad = None
        params["quats"].grad = torch.zeros_like(params["quats"])
        with pytest.raises(TypeError):
            params["means"] = params["quats"]  # type: ignore[index]

    def dim(step: int, params: Mapping[str, Parameter], info: dict[str, Any]) -> None:
        params["opacities"].data = params["opacities"].detach().clamp(max=-3)
        params["sh"].detach().zero_()

    trainer = Trainer(dataset, CONFIG, on_gradients=freeze, on_update=dim)
    before = trainer.parameters.state()
    after = steps(trainer, 2).parameters.state()
    np.testing.assert_array_equal(after["means"], before["means"])
    np.testing.assert_array_equal(after["quats"], before["quats"])
    assert (after["log_scales"] != before["log_scales"]).any()
    assert after["logit_opacities"].max() == -3
    assert not after["sh"].any()


def test_statistics(dataset: Dataset) -> None:
    """Gradients of centres are those that densification adds up."""
    seen = {}

    def note(step: int, params: Mapping[str, Parameter], info: dict[str, Any]) -> None:
        half = torch.tensor([info["width"], info["height"]]) / 2
        seen["norms"] = torch.where((info["radii"] > 0).all(-1), (info["means2d"].grad * half).norm(dim=-1), 0)[0]
        seen["added"] = info["gradient_norms"].clone()

    steps(Trainer(dataset, CONFIG, on_update=note), 1)
    assert seen["norms"].max() > 0
    torch.testing.assert_close(seen["norms"], seen["added"], rtol=1e-4, atol=1e-9)


def strategies() -> list[Any]:
    theirs = pytest.importorskip("gsplat", reason="gsplat is not installed")
    return [DefaultStrategy, theirs.DefaultStrategy]


@pytest.mark.parametrize("whose", [0, 1], ids=["ours", "gsplat's"])
def test_a_strategy_copies_rows_with_their_moments(whose: int, dataset: Dataset) -> None:
    """Gaussians with large gradients are appended where nothing is split or removed, and copies have no momentum."""
    grow = 1e-3
    strategy = strategies()[whose](
        grow_grad2d=grow, grow_scale3d=1e9, prune_opa=0.0, refine_start_iter=1, refine_every=3, refine_stop_iter=4
    )
    noted = {}

    def note(step: int, params: Mapping[str, Parameter], info: dict[str, Any]) -> None:
        if step == 3:
            noted.update({name: info[name].numpy().copy() for name in ("gradient_norms", "times_seen")})
            noted["state"] = trainer.parameters.state()

    trainer = Trainer(dataset, CONFIG, strategy=strategy, on_update=note)
    after = steps(trainer, 4).parameters.state()
    grown = noted["gradient_norms"] / np.maximum(noted["times_seen"], 1) > grow
    assert 0 < grown.sum() < len(grown)
    for name in PER_ROW:
        before = noted["state"]
        np.testing.assert_array_equal(after[name], np.concatenate([before[name], before[name][grown]]))
        np.testing.assert_array_equal(after[name + ".m"], np.concatenate([before[name + ".m"], 0 * before[name][grown]]))
    assert not after["gradient_norms"].any()
    assert len(trainer.fit()) == len(grown) + grown.sum()


def test_rows_change_until_the_last_step(dataset: Dataset) -> None:
    """Also within the steps whose parameters are averaged."""
    config = replace(CONFIG, steps=20, strategy="mcmc", splat="BetaKernel")
    strategy = MCMCStrategy(cap_max=350, refine_start_iter=0, refine_every=1, verbose=False)
    trainer = Trainer(dataset, config, strategy=strategy)
    assert len(trainer.fit()) == 350 == trainer.parameters.count


class Halves:
    """Keeps the more opaque half of the Gaussians, once."""

    def step_post_backward(self, params: Any, optimizers: Any, state: Any, step: int, info: Any) -> None:
        if step != 2:
            return
        kept = params["opacities"].argsort()[len(params["opacities"]) // 2 :]
        for name, param in list(params.items()):
            moments = optimizers[name].state.pop(param)
            params[name] = Parameter(param.detach()[kept])
            optimizers[name].state[params[name]] = {key: values[kept] for key, values in moments.items()}


def test_own_strategies_and_resuming(dataset: Dataset, tmp_path: Path) -> None:
    trainer = steps(Trainer(dataset, CONFIG, strategy=Halves()), 4)
    assert trainer.parameters.count == 150
    trainer.save_checkpoint(tmp_path / "c.safetensors")
    checkpoint = Checkpoint.load(tmp_path / "c.safetensors")
    refused("begun with a strategy object, .* give strategy again", Trainer, dataset, resume=checkpoint)
    resumed = Trainer(dataset, resume=checkpoint, strategy=Halves())
    np.testing.assert_array_equal(resumed.fit().means, trainer.fit().means)


def test_faults_of_strategies(dataset: Dataset) -> None:
    class Empties(Halves):
        def step_post_backward(self, params: Any, optimizers: Any, state: Any, step: int, info: Any) -> None:
            for name, param in list(params.items()):
                optimizers[name].state[param[:0]] = optimizers[name].state.pop(param)
                params[name] = Parameter(param.detach()[:0])
                optimizers[name].state[params[name]] = {"exp_avg": params[name], "exp_avg_sq": params[name]}

    class Forgets(Halves):
        def step_post_backward(self, params: Any, optimizers: Any, state: Any, step: int, info: Any) -> None:
            moments = optimizers["means"].state[params["means"]]
            params["means"] = Parameter(params["means"].detach()[:100])
            optimizers["means"].state[params["means"]] = moments

    refused("the strategy left no Gaussian after step 1;", steps, Trainer(dataset, CONFIG, strategy=Empties()), 1)
    refused("left parameters of 100 and 300 rows after step 1;", steps, Trainer(dataset, CONFIG, strategy=Forgets()), 1)
    refused("strategy is a str; give an object with", Trainer, dataset, CONFIG, strategy="mcmc")
    refused("a strategy object sees one photograph", Trainer, dataset, replace(CONFIG, batch=2), strategy=Halves())
    with pytest.raises(SplatError, match="begun with a strategy object"):
        Trainer(dataset, replace(CONFIG, own_strategy=True))
