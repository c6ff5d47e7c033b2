"""More of what gsplat's example scripts call (see test_patterns.py): what their options and their viewer ask for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import ParameterDict

from splat_py.gsplat.rendering import rasterization
from splat_py.gsplat.scene import GaussianScene
from splat_py.gsplat.stage import Stage
from splat_py.gsplat.strategy import MCMCStrategy
from tests.gsplat.test_patterns import COUNT, SIZE, STEPS, Trainer, default_strategy, targets


@pytest.mark.parametrize("packed", [False, True])
def test_poses_and_appearance_are_trained(packed: bool) -> None:
    """--app_opt --pose_opt --batch_size 2: colours of each camera [C, N, 3] from a network, cameras that need gradients."""
    splats = Trainer(default_strategy()).splats
    pixels, camtoworlds, Ks = targets()
    torch.manual_seed(3)
    shifts = torch.nn.Parameter(torch.zeros(2, 3))
    features, head = torch.nn.Parameter(torch.rand(COUNT, 8)), torch.nn.Linear(8 + 3, 3)
    optimizer = torch.optim.Adam([*splats.values(), shifts, features, *head.parameters()], 2e-2)
    losses = []
    for _ in range(STEPS):
        moved = camtoworlds + F.pad(shifts[:, :, None], (3, 0, 0, 1))
        directions = F.normalize(splats["means"][None] - moved[:, None, :3, 3], dim=-1)
        colors = torch.sigmoid(head(torch.cat([features.expand(2, -1, -1), directions], -1)))
        renders, _, info = rasterization(
            means=splats["means"],
            quats=splats["quats"],
            scales=splats["scales"].exp(),
            opacities=splats["opacities"].sigmoid(),
            colors=colors,
            viewmats=torch.linalg.inv_ex(moved).inverse,
            Ks=Ks,
            width=SIZE,
            height=SIZE,
            packed=packed,
            absgrad=True,
            render_mode="RGB+ED",
        )
        # --depth_loss: depths where points of the scene are, in disparity space.
        at = F.grid_sample(renders[..., 3:4].permute(0, 3, 1, 2), torch.zeros(2, 5, 1, 2), align_corners=True)
        disparity = torch.where(at > 0, 1 / at, torch.zeros_like(at))
        loss = F.l1_loss(renders[..., :3], pixels) + 0.01 * F.l1_loss(disparity, torch.full_like(at, 0.25))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert shifts.grad is not None and (shifts.grad != 0).all() and head.weight.grad is not None
    assert info["means2d"].absgrad.shape == info["means2d"].shape


@pytest.mark.parametrize("kind", ["default", "mcmc"])
def test_stages_render_what_is_trained(kind: str) -> None:
    """gsplat 1.6's simple_trainer: the stage renders the scene's splats, and strategies tell the scene of each change."""
    mcmc = MCMCStrategy(cap_max=90, refine_start_iter=1, refine_every=3, min_opacity=0.1, noise_lr=1.0)
    trainer = Trainer(default_strategy() if kind == "default" else mcmc, packed=True)
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


@torch.no_grad()
@pytest.mark.parametrize("camera_model", ["pinhole", "ortho", "fisheye"])
def test_viewers_render(camera_model: Any) -> None:
    """simple_viewer.py's function, with every setting that its panel has, and for a checkpoint of another length."""
    splats = Trainer(default_strategy()).splats
    checkpoint = {name: torch.cat([values, values]) for name, values in splats.state_dict().items()}
    for name in splats:
        splats[name].data = checkpoint[name]
    _, camtoworlds, Ks = targets()

    def image(render_mode: Any, rasterize_mode: Any = "classic", background: float = 0.0) -> tuple[Tensor, Tensor]:
        colors, alphas, info = rasterization(
            splats["means"],
            F.normalize(splats["quats"], p=2, dim=-1),
            splats["scales"].exp(),
            splats["opacities"].sigmoid(),
            torch.cat([splats["sh0"], splats["shN"]], dim=-2),
            camtoworlds[0].inverse()[None],
            Ks[0][None],
            SIZE,
            SIZE // 2,
            sh_degree=min(5, int(splats["shN"].shape[1] ** 0.5)),
            near_plane=1e-2,
            far_plane=1e2,
            radius_clip=0.5,
            eps2d=0.3,
            backgrounds=torch.tensor([(background,) * 3]) / 255.0,
            render_mode=render_mode,
            rasterize_mode=rasterize_mode,
            camera_model=camera_model,
            packed=False,
            with_ut=False,
            with_eval3d=False,
        )
        assert 0 < (info["radii"] > 0).all(-1).sum().item() <= 2 * COUNT
        return colors[0], alphas[0]

    black, alphas = image("RGB")
    white, _ = image("RGB", background=255.0)
    torch.testing.assert_close(white, black + 1 - alphas)
    depths = image("D")[0]
    covered = alphas > 1e-3
    torch.testing.assert_close(depths[covered] / alphas[covered], image("ED")[0][covered], rtol=1e-4, atol=1e-4)
    assert not torch.equal(image("RGB", "antialiased")[0], black)
