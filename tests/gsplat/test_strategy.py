"""The strategies against those of gsplat 1.5.3, whose Python part runs without CUDA, and relocation against its equation."""

import dataclasses
import inspect
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from splat_py.gsplat.optimizers import SelectiveAdam
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from splat_py.base.errors import SplatError
from splat_py.gsplat import strategy as own
from splat_py.gsplat.scene import GaussianScene
from splat_py.gsplat.strategy import DefaultStrategy, MCMCStrategy, Strategy, ops
from splat_py.gsplat.strategy.ops import compute_relocation
from tests.gsplat.comparison import HEIGHT, WIDTH, Training, adam, assert_same
from tests.reference.mcmc import equation_9
from tests.refusals import refused

# Refinements between a reset of opacities and the next one: gsplat 1.5.3 never resets them.
FIRST, STEPS = 1001, 21
DEFAULT = {"refine_every": 5, "reset_every": 1000, "grow_grad2d": 1.6e-3, "prune_scale3d": 0.03}
RADII = {"refine_scale2d_stop_iter": 1015, "grow_scale2d": 0.22, "prune_scale2d": 0.24}


momentum = partial(torch.optim.SGD, lr=5e-2, momentum=0.9)
amsgrad = partial(torch.optim.Adam, lr=5e-2, amsgrad=True)
sparse_adam = partial(torch.optim.SparseAdam, lr=5e-2)


class AllVisible(SelectiveAdam):
    def step(self) -> None:  # type: ignore[override]
        super().step(torch.ones(len(self.param_groups[0]["params"][0]), dtype=torch.bool))


def selective_adam(params: list[Parameter]) -> Optimizer:
    return AllVisible([{"params": params, "lr": 5e-2}], eps=1e-15, betas=(0.9, 0.999))


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({}, {}),
        ({"reset_every": 2000}, {"packed": True}),
        ({"absgrad": True, "grow_grad2d": 5e-3}, {"plain_dict": True}),
        ({"revised_opacity": True}, {"column_opacities": True, "make_optimizer": momentum}),
        # With several cameras, 1.5.3 keeps an arbitrary one of the radii.
        (RADII, {"cameras": 1}),
        (RADII, {"cameras": 1, "packed": True, "make_optimizer": amsgrad}),
        ({"pause_refine_after_reset": 12}, {"make_optimizer": sparse_adam}),
        ({"refine_stop_iter": 1013}, {"make_optimizer": selective_adam}),
    ],
)
def test_default_strategy(wheel: Any, options: dict[str, Any], setting: dict[str, Any]) -> None:
    strategies = [module.DefaultStrategy(**DEFAULT | options) for module in (own, wheel)]
    steps = side_by_side(strategies, setting, {"scene_scale": 1.5}, packed="packed" in setting)
    counts = [len(ours["means"]) for ours in steps]
    assert len({60, *counts}) > 2, "refinement must change the count"


@pytest.mark.parametrize("setting", [{}, {"column_opacities": True, "plain_dict": True}, {"make_optimizer": sparse_adam}])
def test_mcmc_strategy(wheel: Any, setting: dict[str, Any]) -> None:
    options = {"cap_max": 80, "refine_start_iter": 1004, "refine_stop_iter": 1020, "refine_every": 5, "min_opacity": 0.05}
    dead = (Training(**setting).params["opacities"].sigmoid() <= 0.05).flatten().nonzero().squeeze(1).tolist()
    *_, ours = side_by_side([module.MCMCStrategy(**options) for module in (own, wheel)], setting, {}, lr=1e-5)
    labels = ours["labels"].int().tolist()
    assert len(labels) > 65 and dead and not set(labels[:60]) & {i for i in dead if labels[i] != i}
    assert len(set(labels)) < 60


def side_by_side(strategies: list[Any], setting: dict[str, Any], scale: dict[str, float], **more: Any) -> Iterator[Any]:
    """Train with the library's strategy and with gsplat's; compare after every step and yield the library's parameters."""
    trainings = [Training(**setting) for _ in strategies]
    for training, strategy in zip(trainings, strategies, strict=True):
        strategy.check_sanity(training.params, training.optimizers)
        training.state = strategy.initialize_state(**scale)
    for step in range(FIRST, FIRST + STEPS):
        for training, strategy in zip(trainings, strategies, strict=True):
            training.step(strategy, step, **more)
        assert_same(*trainings)
        yield trainings[0].params


@pytest.mark.parametrize("name", ["duplicate", "split", "remove", "reset_opa", "relocate", "sample_add"])
def test_operations_with_a_state_of_their_own(wheel: Any, name: str) -> None:
    """Calls by keyword, as in scripts, with a state whose tensors have any shape."""
    import gsplat.strategy.ops as wheels_ops

    trainings = [Training(), Training()]
    mask = torch.arange(60) % 7 == 3
    binoms = MCMCStrategy().initialize_state()["binoms"]
    arguments: dict[str, Any] = {
        "duplicate": {"mask": mask},
        "split": {"mask": mask, "revised_opacity": True},
        "remove": {"mask": mask},
        "reset_opa": {"value": 0.1},
        "relocate": {"mask": mask, "binoms": binoms, "min_opacity": 0.01},
        "sample_add": {"n": 11, "binoms": binoms},
    }[name]
    for training, operations in zip(trainings, (ops, wheels_ops), strict=True):
        training.step(Strategy(), 1)
        training.state = {"seen": torch.arange(60.0), "colour": torch.rand(60, 3, generator=torch.Generator().manual_seed(1))}
        torch.manual_seed(5)
        getattr(operations, name)(params=training.params, optimizers=training.optimizers, state=training.state, **arguments)
    assert_same(*trainings)


def test_signatures(wheel: Any) -> None:
    """1.5.3's arguments come first, in its order and with its defaults."""
    import gsplat.optimizers
    import gsplat.relocation
    import gsplat.strategy.ops as wheels_ops

    names = ["duplicate", "split", "remove", "reset_opa", "relocate", "sample_add"]
    names += ["_multinomial_sample", "_update_param_with_optimizer"]
    compared = [(getattr(ops, name), getattr(wheels_ops, name)) for name in names]
    compared += [(ops.compute_relocation, gsplat.relocation.compute_relocation)]
    compared += [(SelectiveAdam, gsplat.optimizers.SelectiveAdam), (SelectiveAdam.step, gsplat.optimizers.SelectiveAdam.step)]
    for mine, theirs in ((DefaultStrategy, wheel.DefaultStrategy), (MCMCStrategy, wheel.MCMCStrategy)):
        compared += [(mine, theirs), (mine.initialize_state, theirs.initialize_state), (mine.check_sanity, theirs.check_sanity)]
        compared += [(mine.step_pre_backward, theirs.step_pre_backward), (mine.step_post_backward, theirs.step_post_backward)]
        fields = [(field.name, field.default) for field in dataclasses.fields(theirs)]
        assert [(field.name, field.default) for field in dataclasses.fields(mine)][: len(fields)] == fields
    for mine, theirs in compared:
        expected = [(p.name, p.default) for p in inspect.signature(theirs).parameters.values()]
        assert [(p.name, p.default) for p in inspect.signature(mine).parameters.values()][: len(expected)] == expected, mine


def test_opacities_are_reset(wheel: Any) -> None:
    """Every gsplat but 1.5.3 resets, where `0 & step > 0` never holds; its `reset_opa` does the intended."""
    from gsplat.strategy.ops import reset_opa

    trainings = [Training(), Training()]
    options = {"reset_every": 20, "refine_start_iter": 1000}
    for training, strategy in zip(trainings, (DefaultStrategy(**options), wheel.DefaultStrategy(**options)), strict=True):
        training.state = strategy.initialize_state()
        for step in (0, 19, 20):
            training.step(strategy, step)
            if step == 0:
                assert training.params["opacities"].sigmoid().max() > 0.5
    theirs = trainings[1]
    reset_opa(params=theirs.params, optimizers=theirs.optimizers, state=theirs.state, value=0.01)
    assert_same(*trainings)
    assert trainings[0].params["opacities"].sigmoid().max() <= 0.01 + 1e-6


def test_the_statistics_of_a_step() -> None:
    """Dense, in batches and packed, against a loop: gradients in half images times cameras, and the largest radius."""
    strategy = DefaultStrategy(refine_scale2d_stop_iter=10)
    training = Training(cameras=6)
    info = training.info()
    grad = info["means2d"].grad = training._normal(6, 60, 2)
    scaled = grad.numpy() * np.array([WIDTH / 2, HEIGHT / 2]) * 6
    expected = {name: np.zeros(60) for name in ("grad2d", "count", "radii")}
    for camera in range(6):
        for i, radii in enumerate(info["radii"][camera].tolist()):
            if min(radii) > 0:
                expected["grad2d"][i] += np.hypot(*scaled[camera, i])
                expected["count"][i] += 1
                expected["radii"][i] = max(expected["radii"][i], max(radii) / WIDTH)
    assert expected["count"].max() > 2
    visible = (info["radii"] > 0).all(-1)
    ids = visible.nonzero()[:, 1]
    for radii, v, more in (
        (info["radii"], grad, {}),
        (info["radii"].reshape(2, 3, 60, 2), grad.reshape(2, 3, 60, 2), {}),
        (info["radii"][visible], grad[visible], {"gaussian_ids": ids}),
    ):
        state, centres = strategy.initialize_state(), torch.zeros_like(v, requires_grad=True)
        centres.grad = v
        meta = info | {"means2d": centres, "radii": radii} | more
        strategy.step_post_backward(training.params, training.optimizers, state, 1, meta, packed=bool(more))
        for name, values in expected.items():
            np.testing.assert_allclose(state[name].numpy(), values, rtol=1e-5)


@pytest.mark.parametrize(
    ("strategy", "more"),
    [(DefaultStrategy(**DEFAULT), {}), (MCMCStrategy(refine_every=5, min_opacity=0.05), {"lr": 1e-5})],  # type: ignore[arg-type]
    ids=["default", "mcmc"],
)
def test_a_scene_is_told_of_every_change(strategy: Any, more: dict[str, Any]) -> None:
    training = Training()
    scene = GaussianScene.from_splats(training.params, "scene", {"row": torch.arange(60.0)})
    training.state = strategy.initialize_state()
    for step in range(FIRST, FIRST + STEPS):
        training.step(strategy, step, scene=scene, **more)
    assert len(scene.signal["row"]) > 62
    torch.testing.assert_close(scene.signal["row"], training.params["labels"].data, rtol=0, atol=0)


def test_subclasses_need_not_know_of_scenes() -> None:
    """Scripts for 1.5 override these methods without the argument."""

    class Mine(DefaultStrategy):
        def _grow_gs(self, params: Any, optimizers: Any, state: Any, step: int) -> tuple[int, int]:  # type: ignore[override]
            return 0, 0

    training, strategy = Training(), Mine(**DEFAULT)  # type: ignore[arg-type]
    training.state = strategy.initialize_state()
    for step in range(FIRST, FIRST + 10):
        training.step(strategy, step)
    assert len(training.params["means"]) < 60


def test_noise_ends_and_spares_the_opaque() -> None:
    training = Training()
    training.params["opacities"].data[:30] = 2.0
    before = training.params["means"].detach().clone()
    ops.inject_noise_to_position(training.params, {}, {}, scaler=500.0, t=0.005, k=100.0)
    moved = (training.params["means"] != before).any(1)
    assert moved[30:].any() and not moved[:30].any()
    after = training.params["means"].detach().clone()
    strategy = MCMCStrategy(noise_injection_stop_iter=7)
    strategy.step_post_backward(training.params, training.optimizers, strategy.initialize_state(), 7, {}, lr=1e-3)
    assert torch.equal(training.params["means"], after)
    refused("noise_scale", ops.inject_noise_to_position, training.params, {}, {})
    refused("scaler", ops.inject_noise_to_position, training.params, {}, {}, 1.0, scaler=2.0)


@pytest.mark.parametrize("replacement", [True, False])
def test_more_weights_than_multinomial_takes(monkeypatch: pytest.MonkeyPatch, replacement: bool) -> None:
    monkeypatch.setattr(ops, "_MAX_MULTINOMIAL", 4)
    weights = torch.tensor([0.0, 1.0, 0.0, 2.0, 5.0, 0.0])
    torch.manual_seed(0)
    if replacement:
        drawn = ops._multinomial_sample(weights, 40_000)
        np.testing.assert_allclose(np.bincount(drawn, minlength=6) / 40_000, weights / 8, atol=0.01)
    else:
        first = [ops._multinomial_sample(weights, 3, replacement=False) for _ in range(2000)]
        assert all(sorted(drawn.tolist()) == [1, 3, 4] for drawn in first)
        np.testing.assert_allclose(np.mean([int(drawn[0]) == 4 for drawn in first]), 5 / 8, atol=0.04)


def test_state_without_rows_untouched_optimizers_and_types_stay() -> None:
    training = Training(make_optimizer=lambda params: torch.optim.NAdam(params, lr=1e-3))
    training.step(Strategy(), 1)
    products = [float(o.state[training.params[name]]["mu_product"]) for name, o in training.optimizers.items()]
    training.state = {"scale": torch.tensor(2.0), "note": "mine", "rows": torch.ones(60), "none": None}
    ops.duplicate(training.params, training.optimizers, training.state, torch.arange(60) < 5)
    ops.sample_add(training.params, training.optimizers, training.state, 3, MCMCStrategy().initialize_state()["binoms"])
    assert training.state["note"] == "mine" and training.state["scale"] == 2 and len(training.state["rows"]) == 68
    kept = [o.state[training.params[name]] for name, o in training.optimizers.items()]
    assert [float(k["mu_product"]) for k in kept] == products and {len(k["exp_avg"]) for k in kept} == {68}
    params = {name: Parameter(value.double()) for name, value in Training().params.items() if value.requires_grad}
    optimizers = {name: adam([param]) for name, param in params.items()}
    ops.split(params, optimizers, {}, torch.arange(60) < 5)
    assert all(len(param) == 65 and param.dtype == torch.float64 for param in params.values())
    for name, param in params.items():
        param.grad = torch.ones_like(param)
        optimizers[name].step()
    ops.duplicate(params, optimizers, {}, torch.arange(65) < 5)
    assert optimizers["means"].state[params["means"]]["exp_avg"].dtype == torch.float64


def test_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    for strategy, more in (
        (DefaultStrategy(**DEFAULT, verbose=True), {}),  # type: ignore[arg-type]
        (MCMCStrategy(verbose=True, min_opacity=0.05), {"lr": 1e-5}),
    ):
        training = Training()
        training.state = strategy.initialize_state()
        training.step(strategy, 1100, **more)
        assert f"{len(training.params['means'])} now" in capsys.readouterr().out


def test_sanity() -> None:
    """Scripts for gsplat catch AssertionError; other callers catch SplatError."""
    for strategy in (DefaultStrategy(), MCMCStrategy()):
        training = Training()
        strategy.check_sanity(training.params, training.optimizers)
        missing = {name: o for name, o in training.optimizers.items() if name != "quats"}
        with pytest.raises(AssertionError, match="quats"):
            strategy.check_sanity(training.params, missing)
        refused("pose", strategy.check_sanity, training.params, training.optimizers | {"pose": training.optimizers["sh0"]})
        both = torch.optim.Adam([training.params["sh0"], training.params["shN"]])
        refused("one group with one parameter", strategy.check_sanity, training.params, training.optimizers | {"sh0": both})
        fewer = {name: param for name, param in training.params.items() if name != "scales"}
        with pytest.raises(SplatError, match="params lacks \\['scales'\\]"):
            strategy.check_sanity(fewer, {name: o for name, o in training.optimizers.items() if name != "scales"})


def test_messages() -> None:
    training, strategy = Training(), DefaultStrategy()
    training.state = strategy.initialize_state()
    arguments = (training.params, training.optimizers, training.state, 1)
    info = training.info()
    with pytest.raises(AssertionError, match="meta that rasterization returned"):
        strategy.step_pre_backward(*arguments, {})
    refused("no_grad", strategy.step_pre_backward, *arguments, info | {"means2d": info["means2d"].detach()})
    refused("step_pre_backward", strategy.step_post_backward, *arguments, info)
    refused("absgrad=True", DefaultStrategy(absgrad=True).step_post_backward, *arguments, info)
    surfels = DefaultStrategy(absgrad=True, key_for_gradient="gradient_2dgs")
    with pytest.raises(SplatError, match=r"'gradient_2dgs'\] has no absgrad, which only means2d has; leave"):
        surfels.step_post_backward(*arguments, info | {"gradient_2dgs": info["means2d"]})
    refused(r"lacks \['gaussian_ids'\].*packed=True", strategy.step_post_backward, *arguments, info, packed=True)
    with pytest.raises(AssertionError, match="radii"):
        strategy.step_post_backward(*arguments, {name: value for name, value in info.items() if name != "radii"})
    training = Training()
    before = dict(training.params.items())
    del training.optimizers["shN"]
    with pytest.raises(AssertionError, match="shN"):
        ops.remove(training.params, training.optimizers, {}, torch.arange(60) < 5)
    assert all(training.params[name] is param for name, param in before.items()), "a refused call changed some parameters"
    training = Training()
    refused("min_opacity", ops.relocate, training.params, training.optimizers, {}, torch.arange(60) >= 0, torch.eye(3))


def table(size: int) -> Tensor:
    return torch.tensor([[math.comb(n, k) for k in range(size)] for n in range(size)], dtype=torch.float32)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_against_the_equation(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    count = 400
    opacities = torch.from_numpy(np.concatenate([rng.uniform(0.005, 0.99, count - 3), [1e-4, 0.9999, 1.0]]).astype(np.float32))
    ratios = torch.from_numpy(np.concatenate([rng.integers(1, 52, count - 3), [51, 51, 40]]))
    scales = torch.from_numpy(rng.uniform(0.01, 3, (count, 3)).astype(np.float32))
    given = ratios.clone()
    new_opacities, new_scales = compute_relocation(opacities.reshape(shape), scales, ratios, table(51))
    assert new_opacities.shape == opacities.reshape(shape).shape and new_scales.dtype == torch.float32
    assert torch.equal(ratios, given)
    expected = [equation_9(float(o), int(n)) for o, n in zip(opacities, ratios, strict=True)]
    np.testing.assert_allclose(new_opacities.flatten(), [new for new, _ in expected], rtol=1e-6)
    np.testing.assert_allclose(new_scales, scales * torch.tensor([[f] for _, f in expected]), rtol=2e-6)


def test_one_stays_as_it_is_and_ratios_stay_in_the_table() -> None:
    opacities, scales = torch.tensor([0.2, 0.0, 0.7, 0.7]), torch.rand(4, 3)
    new, new_scales = compute_relocation(opacities, scales, torch.tensor([1, 3, 0, 99]), table(4))
    torch.testing.assert_close(new[:3], opacities[:3])
    torch.testing.assert_close(new_scales[:3], scales[:3])
    assert float(new[3]) == pytest.approx(equation_9(0.7, 4)[0])
    assert compute_relocation(opacities[:0], scales[:0], torch.empty(0), table(4))[1].shape == (0, 3)
    opacities, scales, ratios = torch.rand(3), torch.rand(3, 3), torch.ones(3)
    refused(r"ratios \[N\], not \[3\], \[3, 3\] and \[2\]", compute_relocation, opacities, scales, ratios[:2], table(4))
    refused("square", compute_relocation, opacities, scales, ratios, table(4)[:2])


def test_min_opacity_holds_before_scales_are_computed() -> None:
    opacities, scales = torch.tensor([2e-3, 0.2, 1.0]), torch.ones(3, 3)
    new, new_scales = compute_relocation(opacities, scales, torch.tensor([4, 2, 1]), table(8), min_opacity=0.005)
    np.testing.assert_allclose(new, [0.005, equation_9(0.2, 2)[0], 1 - 2**-23], rtol=1e-6)
    terms = [math.comb(4, k + 1) * (-1) ** k * 0.005 ** (k + 1) / math.sqrt(k + 1) for k in range(4)]
    assert float(new_scales[0, 0]) == pytest.approx(2e-3 / sum(terms), rel=1e-5)
