"""Scripts for gsplat, reduced to their calls: the same functions with the same arguments, on scenes of a few Gaussians."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from splat_py.gsplat.optimizers import SelectiveAdam
from torch import Tensor
from torch.nn import Parameter, ParameterDict

from splat_py.gsplat import rasterization, strategy
from splat_py.gsplat.strategy import DefaultStrategy, MCMCStrategy

SIZE, COUNT, STEPS = 24, 80, 9


def targets() -> tuple[Tensor, Tensor, Tensor]:
    """Two photographs [2, H, W, 3] with a coloured corner each, and their cameras: camera → world [2, 4, 4], K [2, 3, 3]."""
    pixels = torch.full((2, SIZE, SIZE, 3), 0.9)
    pixels[0, : SIZE // 2, : SIZE // 2] = torch.tensor([0.9, 0.1, 0.1])
    pixels[1, SIZE // 2 :, SIZE // 2 :] = torch.tensor([0.1, 0.1, 0.9])
    camtoworlds = torch.eye(4).repeat(2, 1, 1)
    camtoworlds[:, 2, 3] = -4.0
    camtoworlds[1, 0, 3] = 0.3
    K = torch.tensor([[1.4 * SIZE, 0, SIZE / 2], [0, 1.4 * SIZE, SIZE / 2], [0, 0, 1]])
    return pixels, camtoworlds, K.repeat(2, 1, 1)


@dataclass
class Trainer:
    """Like gsplat's examples/simple_trainer.py."""

    strategy: Any
    packed: bool = False
    sparse_grad: bool = False
    visible_adam: bool = False
    antialiased: bool = False

    def __post_init__(self) -> None:
        controller = self.strategy
        self.is_default = type(controller).__name__ == "DefaultStrategy"
        torch.manual_seed(42)
        coefficients = torch.zeros(COUNT, 4, 3)
        coefficients[:, 0] = torch.rand(COUNT, 3) - 0.5
        values = [
            ("means", Parameter(2 * torch.rand(COUNT, 3) - 1), 1e-2),
            ("scales", Parameter(torch.log(0.05 + 0.2 * torch.rand(COUNT, 1)).repeat(1, 3)), 2e-2),
            ("quats", Parameter(torch.rand(COUNT, 4)), 1e-2),
            ("opacities", Parameter(torch.logit(torch.full((COUNT,), 0.1))), 5e-2),
            ("sh0", Parameter(coefficients[:, :1, :]), 5e-2),
            ("shN", Parameter(coefficients[:, 1:, :]), 2.5e-3),
        ]
        self.splats = ParameterDict({name: value for name, value, _ in values}).to("cpu")
        optimizer_class: Any = torch.optim.Adam
        if self.sparse_grad:
            optimizer_class = torch.optim.SparseAdam
        elif self.visible_adam:
            optimizer_class = SelectiveAdam
        self.optimizers = {
            name: optimizer_class([{"params": self.splats[name], "lr": lr, "name": name}], eps=1e-15, betas=(0.9, 0.999))
            for name, _, lr in values
        }
        controller.check_sanity(self.splats, self.optimizers)
        self.state = controller.initialize_state(scene_scale=1.0) if self.is_default else controller.initialize_state()

    def rasterize_splats(
        self, camtoworlds: Tensor, Ks: Tensor, width: int, height: int, masks: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        render_colors, render_alphas, info = rasterization(
            means=self.splats["means"],
            quats=self.splats["quats"],
            scales=torch.exp(self.splats["scales"]),
            opacities=torch.sigmoid(self.splats["opacities"]),
            colors=torch.cat([self.splats["sh0"], self.splats["shN"]], 1),
            viewmats=torch.linalg.inv(camtoworlds),
            Ks=Ks,
            width=width,
            height=height,
            packed=self.packed,
            absgrad=self.strategy.absgrad if self.is_default else False,
            sparse_grad=self.sparse_grad,
            rasterize_mode="antialiased" if self.antialiased else "classic",
            distributed=False,
            camera_model="pinhole",
            with_ut=False,
            with_eval3d=False,
            **kwargs,
        )
        if masks is not None:
            render_colors[~masks] = 0
        return render_colors, render_alphas, info

    def train(self, masks: Tensor | None = None) -> list[float]:
        pixels, camtoworlds, Ks = targets()
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(self.optimizers["means"], gamma=0.01 ** (1.0 / STEPS))]
        losses = []
        for step in range(STEPS):
            renders, alphas, info = self.rasterize_splats(
                camtoworlds=camtoworlds,
                Ks=Ks,
                width=SIZE,
                height=SIZE,
                sh_degree=1,
                near_plane=0.01,
                far_plane=1e10,
                render_mode="RGB+ED",
                masks=masks,
            )
            colors, depths = renders[..., 0:3], renders[..., 3:4]
            colors = colors + 0.2 * torch.ones(1, 3) * (1.0 - alphas)
            self.strategy.step_pre_backward(
                params=self.splats, optimizers=self.optimizers, state=self.state, step=step, info=info
            )
            loss = F.l1_loss(colors, pixels) + 1e-3 * depths.mean()
            loss.backward()
            losses.append(loss.item())
            if self.sparse_grad:
                self._make_sparse(info["gaussian_ids"])
            visibility = self._visibility(info) if self.visible_adam else None
            for optimizer in self.optimizers.values():
                if visibility is not None:
                    optimizer.step(visibility)
                else:
                    optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            for scheduler in schedulers:
                scheduler.step()
            more = {"packed": self.packed} if self.is_default else {"lr": schedulers[0].get_last_lr()[0]}
            self.strategy.step_post_backward(
                params=self.splats, optimizers=self.optimizers, state=self.state, step=step, info=info, **more
            )
        return losses

    def _make_sparse(self, gaussian_ids: Tensor) -> None:
        for name in self.splats:
            grad = self.splats[name].grad
            if grad is None or grad.is_sparse:
                continue
            self.splats[name].grad = torch.sparse_coo_tensor(
                indices=gaussian_ids[None], values=grad[gaussian_ids], size=self.splats[name].size(), is_coalesced=False
            )

    def _visibility(self, info: dict[str, Any]) -> Tensor:
        if self.packed:
            mask = torch.zeros_like(self.splats["opacities"], dtype=torch.bool)
            mask.scatter_(0, info["gaussian_ids"], 1)
            return mask
        return (info["radii"] > 0).all(-1).any(0)


def default_strategy(**options: Any) -> DefaultStrategy:
    schedule: dict[str, Any] = {"refine_start_iter": 1, "refine_every": 3, "reset_every": 100, "grow_grad2d": 1e-3}
    return DefaultStrategy(**schedule | options)


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({}, {}),
        ({"absgrad": True, "grow_grad2d": 4e-3}, {"visible_adam": True}),
        ({"absgrad": True, "grow_grad2d": 4e-3, "refine_scale2d_stop_iter": 100}, {"packed": True}),
        ({"revised_opacity": True}, {"packed": True, "visible_adam": True, "antialiased": True}),
        ({}, {"packed": True, "sparse_grad": True}),
    ],
)
def test_simple_trainer_with_default_strategy(options: dict[str, Any], setting: dict[str, Any]) -> None:
    trainer = Trainer(default_strategy(**options), **setting)
    losses = trainer.train()
    assert losses[-1] < losses[0] and len(trainer.splats["means"]) > COUNT
    check_finite(trainer.splats)


MCMC = {"cap_max": 90, "refine_start_iter": 1, "refine_every": 3, "min_opacity": 0.1, "noise_lr": 1.0}
OPTIONS = {"DefaultStrategy": {"refine_start_iter": 1, "refine_every": 3, "grow_grad2d": 1e-3}, "MCMCStrategy": MCMC}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_wheels_strategies_drive_our_renderer(wheel: Any, name: str) -> None:
    results = []
    for module, packed in product((strategy, wheel), (False, True)):
        trainer = Trainer(getattr(module, name)(**OPTIONS[name]), packed=packed)
        results.append((trainer.train(), len(trainer.splats["means"])))
        check_finite(trainer.splats)
    losses, count = results[0]
    assert losses[-1] < losses[0] and count > COUNT and (name == "DefaultStrategy" or count <= 90)
    for other in results[1:]:
        assert other == (pytest.approx(losses, rel=1e-3), count)


def test_masks_are_written_into_images() -> None:
    """Images are not saved for the backward pass, so a script may write into them."""
    masks = torch.ones(2, SIZE, SIZE, dtype=torch.bool)
    masks[:, :, :4] = False
    losses = Trainer(default_strategy()).train(masks=masks)
    assert losses[-1] < losses[0]


class Splatfacto(torch.nn.Module):
    """Like nerfstudio's models/splatfacto.py: opacities [N, 1], other names, and a strategy called from hooks."""

    def __init__(self, controller: DefaultStrategy | MCMCStrategy) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.gauss_params = ParameterDict(
            {
                "means": Parameter((torch.rand(COUNT, 3) - 0.5) * 2),
                "scales": Parameter(torch.log(0.05 + 0.2 * torch.rand(COUNT, 1)).repeat(1, 3)),
                "quats": Parameter(torch.randn(COUNT, 4)),
                "features_dc": Parameter(torch.rand(COUNT, 3)),
                "features_rest": Parameter(torch.zeros(COUNT, 3, 3)),
                "opacities": Parameter(torch.logit(0.1 * torch.ones(COUNT, 1))),
            }
        )
        self.pose = Parameter(torch.zeros(1, 6))
        groups = {**self.gauss_params, "camera_opt": self.pose}
        self.optimizers = {name: torch.optim.Adam([param], lr=2e-2, eps=1e-15) for name, param in groups.items()}
        self.schedulers = {"means": torch.optim.lr_scheduler.ExponentialLR(self.optimizers["means"], gamma=0.9)}
        self.strategy = controller
        self.is_default = isinstance(controller, DefaultStrategy)
        self.strategy_state = controller.initialize_state(**{"scene_scale": 1.0} if self.is_default else {})
        self.step = 0

    def get_outputs(self, camera_to_world: Tensor, K: Tensor, crop: Tensor | slice = slice(None)) -> tuple[Tensor, Tensor]:
        params = {name: param[crop] for name, param in self.gauss_params.items()}
        render, alpha, self.info = rasterization(
            means=params["means"],
            quats=params["quats"],
            scales=torch.exp(params["scales"]),
            opacities=torch.sigmoid(params["opacities"]).squeeze(-1),
            colors=torch.cat((params["features_dc"][:, None, :], params["features_rest"]), dim=1),
            viewmats=torch.linalg.inv(camera_to_world),
            Ks=K,
            width=SIZE,
            height=SIZE,
            packed=False,
            near_plane=0.01,
            far_plane=1e10,
            render_mode="RGB+ED",
            sh_degree=1,
            absgrad=self.is_default and self.strategy.absgrad,
            rasterize_mode="classic",
        )
        if self.training:
            self.strategy.step_pre_backward(self.gauss_params, self.optimizers, self.strategy_state, self.step, self.info)
        rgb = torch.clamp(render[:, ..., :3] + (1 - alpha) * torch.ones(3), 0.0, 1.0)
        depth = render[:, ..., 3:4]
        return rgb.squeeze(0), torch.where(alpha > 0, depth, depth.detach().max()).squeeze(0)

    def step_post_backward(self) -> None:
        more: dict[str, Any] = {"packed": False} if self.is_default else {"lr": self.schedulers["means"].get_last_lr()[0]}
        self.strategy.step_post_backward(
            params=self.gauss_params,
            optimizers=self.optimizers,
            state=self.strategy_state,
            step=self.step,
            info=self.info,
            **more,
        )


SPLATFACTO = {"refine_start_iter": 1, "refine_every": 2, "reset_every": 6, "pause_refine_after_reset": 1, "grow_grad2d": 5e-3}


@pytest.mark.parametrize(
    "controller",
    [DefaultStrategy(**SPLATFACTO, absgrad=True, verbose=True), MCMCStrategy(**MCMC | {"refine_every": 2})],
    ids=["default", "mcmc"],
)
def test_splatfacto(controller: DefaultStrategy | MCMCStrategy) -> None:
    pixels, camtoworlds, Ks = targets()
    model = Splatfacto(controller)
    losses = []
    for model.step in range(6):
        loss = F.l1_loss(model.get_outputs(camtoworlds[:1], Ks[:1])[0], pixels[0])
        for optimizer in model.optimizers.values():
            optimizer.zero_grad()
        loss.backward()
        for optimizer in model.optimizers.values():
            optimizer.step()
        for scheduler in model.schedulers.values():
            scheduler.step()
        model.step_post_backward()
        losses.append(loss.item())
    assert losses[-1] < losses[0] and model.gauss_params["means"].shape[0] > COUNT
    check_finite(model.gauss_params)
    model.eval()
    with torch.no_grad():
        rgb, depth = model.get_outputs(camtoworlds[1:], Ks[1:], model.gauss_params["means"][:, 0] > 0)
    assert rgb.shape == (SIZE, SIZE, 3) and depth.isfinite().all()


def check_finite(params: Any) -> None:
    assert len({len(param) for param in params.values()}) == 1
    assert all(param.isfinite().all() for param in params.values())
