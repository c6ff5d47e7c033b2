"""Scenes keep a Gaussian's attributes with it while strategies change rows, and stages render them."""

from typing import Any

import pytest
import torch
from splat_py.gsplat.stage import Stage
from torch import Tensor
from torch.nn import Parameter, ParameterDict

import splat_py.gsplat as gsplat
from splat_py.gsplat.scene import GaussianScene, SceneError
from splat_py.gsplat.strategy import MCMCStrategy, ops
from tests.gsplat import scenes
from tests.gsplat.test_patterns import COUNT, MCMC, Trainer, default_strategy


def splats(count: int = 4) -> ParameterDict:
    values = {name: Parameter(value) for name, value in scenes.splats(count, coefficients=0).items()}
    values["means"].data[:, 0] = torch.arange(count)
    return ParameterDict(values)


def two_components() -> GaussianScene:
    scene = GaussianScene.from_splats(splats(), "ground", {"row": torch.arange(4.0)})
    scene.put("car", splats(2))
    scene.signal["row"][4:] = torch.tensor([4.0, 5.0])
    return scene


def test_strategies_keep_signals_with_their_gaussians() -> None:
    scene = GaussianScene.from_splats(splats(), "scene", {"row": torch.arange(4.0)})
    params = scene.splats
    optimizers = {name: torch.optim.Adam([values]) for name, values in params.items()}
    mask = torch.tensor([True, False, True, False])

    def check() -> None:
        scene.validate()
        torch.testing.assert_close(params["means"][:, 0].round().detach(), scene.signal["row"])

    ops.duplicate(params, optimizers, {}, mask, scene=scene)
    assert scene.signal["row"].tolist() == [0, 1, 2, 3, 0, 2]
    check()
    ops.remove(params, optimizers, {}, params["means"][:, 0] == 3, scene=scene)
    check()
    params["opacities"].data[:2] = torch.tensor([-9.0, 9.0])
    ops.relocate(params, optimizers, {}, params["opacities"] < -5, torch.ones(51, 51), scene=scene)
    check()
    ops.sample_add(params, optimizers, {}, 2, torch.ones(51, 51), scene=scene)
    assert scene.num_gaussians() == 7
    check()
    params["scales"].data.fill_(-20.0)
    ops.split(params, optimizers, {}, torch.arange(7) == 1, scene=scene)
    assert scene.num_gaussians() == 8
    check()


@pytest.mark.parametrize("as_mask", [False, True])
def test_rows_are_told_by_number_or_mask(as_mask: bool) -> None:
    def rows(*numbers: int) -> Tensor:
        numbers_ = torch.tensor(numbers)
        return torch.zeros(6, dtype=torch.bool).index_fill(0, numbers_, True) if as_mask else numbers_

    scene = two_components()
    scene.on_split(rows(1, 4), rows(0, 2, 3, 5))
    assert scene.signal["row"].tolist() == [0, 2, 3, 5, 1, 4, 1, 4]
    assert scene.component_index.tolist() == [0, 0, 0, 1, 0, 1, 0, 1]
    scene = two_components()
    scene.on_duplicate(rows(5))
    scene.on_permute(torch.tensor([6, 0, 1, 2, 3, 4, 5]))
    assert scene.signal["row"].tolist() == [5, 0, 1, 2, 3, 4, 5]


def test_components_and_files() -> None:
    scene = two_components()
    scene.splats["sh0"].requires_grad_(False)
    car = scene.get("car")
    assert car["index"] == 1 and car["splats"]["means"].shape == (2, 3) and car["signal"]["row"].tolist() == [4, 5]
    again = GaussianScene.from_state_dict(scene.state_dict())
    assert again.id == "ground" and again.component_names == ["ground", "car"] and not again.splats["sh0"].requires_grad
    assert torch.equal(again.get(0)["splats"]["means"], scene.get("ground")["splats"]["means"])
    assert torch.equal(again.component_index, scene.component_index)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianScene(""), "id is ''"),
        (lambda: GaussianScene.from_splats(ParameterDict(), "a"), "has no means"),
        (lambda: GaussianScene.from_splats(ParameterDict({"means": torch.zeros(1, 3)}), "a"), "missing required splat keys"),
        (lambda: GaussianScene.from_splats(splats(), "a", {"row": torch.zeros(3)}), "other lengths in {'row': 3}"),
        (lambda: two_components().put("car", splats()), "'car' is taken"),
        (lambda: two_components().put("bus", ParameterDict({"means": torch.zeros(1, 3)})), "lacks"),
        (lambda: two_components().get("bus"), "'bus' is not in the scene"),
        (lambda: GaussianScene.from_state_dict({"id": "a"}), "lacks"),
        (lambda: Stage().render("a"), "'a' is not registered"),
    ],
)
def test_what_does_not_fit(make: Any, message: str) -> None:
    with pytest.raises(SceneError, match=message) as caught:
        make()
    assert isinstance(caught.value, (ValueError, KeyError))


def test_a_stage_renders_the_current_splats() -> None:
    stage, scene = gsplat.stage.Stage(), GaussianScene.from_splats(splats(), "scene")
    stage.add_scene(scene, lambda splats, scale: splats["means"] * scale)
    scene.splats["means"] = Parameter(torch.ones(1, 3))
    assert stage.render("scene", scale=2).tolist() == [[2, 2, 2]]
    assert stage.scene_ids() == ["scene"] and stage.get_scene("scene") is scene
    with pytest.raises(SceneError, match="already registered"):
        stage.add_scene(scene, print)


@pytest.mark.parametrize("kind", ["default", "mcmc"])
def test_stages_render_what_is_trained(kind: str) -> None:
    """Like gsplat 1.6's simple_trainer: the stage renders the scene's splats, and strategies tell the scene of each change."""
    trainer = Trainer(default_strategy() if kind == "default" else MCMCStrategy(**MCMC), packed=True)
    scene = GaussianScene.from_splats(trainer.splats, id="scene", signal={"row": torch.arange(COUNT)})
    stage, renders = Stage(), trainer.rasterize_splats

    def render(splats: ParameterDict | None = None, **kwargs: Any) -> Any:
        assert splats is trainer.splats
        return renders(**kwargs)

    stage.add_scene(scene, render)
    step_post_backward = trainer.strategy.step_post_backward
    trainer.strategy.step_post_backward = lambda **kwargs: step_post_backward(scene=scene, **kwargs)
    trainer.rasterize_splats = lambda **kwargs: stage.render(scene.id, **kwargs)  # type: ignore[method-assign]
    losses = trainer.train()
    assert losses[-1] < losses[0]
    assert scene.num_gaussians() == len(scene.signal["row"]) == len(trainer.splats["means"]) > COUNT
    scene.validate()
