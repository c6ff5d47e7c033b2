"""Scripts for gsplat, reduced to what they call: the same functions with the same arguments, on scenes of a few Gaussians."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter, ParameterDict

from splat_py import rasterization
from splat_py.gsplat import strategy
from splat_py.gsplat.optimizers import SelectiveAdam
from splat_py.gsplat.strategy import DefaultStrategy, MCMCStrategy
from tests.gsplat.comparison import replace_cuda

SIZE, COUNT, STEPS = 24, 80, 9


def targets() -> tuple[Tensor, Tensor, Tensor]:
    """Two photographs [2, H, W, 3] of a coloured corner each, and their cameras, camera → world [2, 4, 4] and K [2, 3, 3]."""
    pixels = torch.full((2, SIZE, SIZE, 3), 0.9)
    pixels[0, : SIZE // 2, : SIZE // 2] = torch.tensor([0.9, 0.1, 0.1])
    pixels[1, SIZE // 2 :, SIZE // 2 :] = torch.tensor([0.1, 0.1, 0.9])
    camtoworlds = torch.eye(4).repeat(2, 1, 1)
    camtoworlds[:, 2, 3] = -4.0
    camtoworlds[1, 0, 3] = 0.3
    K = torch.tensor([[1.4 * SIZE, 0, SIZE / 2], [0, 1.4 * SIZE, SIZE / 2], [0, 0, 1]])
    return pixels, camtoworlds, K.repeat(2, 1, 1)


class Trainer:
    """As gsplat's examples/simple_trainer.py."""

    def __init__(
        self,
        controller: Any,
        packed: bool = False,
        sparse_grad: bool = False,
        visible_adam: bool = False,
        antialiased: bool = False,
    ) -> None:
        self.strategy, self.packed, self.sparse_grad, self.visible_adam = controller, packed, sparse_grad, visible_adam
        self.antialiased = antialiased
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
        if sparse_grad:
            optimizer_class = torch.optim.SparseAdam
        elif visible_adam:
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
        """Losses of `STEPS` steps."""
        pixels, camtoworlds, Ks = targets()
        means_optimizer = self.optimizers["means"]
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(means_optimizer, gamma=0.01 ** (1.0 / STEPS))]
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
            if self.is_default:
                self.strategy.step_post_backward(
                    params=self.splats,
                    optimizers=self.optimizers,
                    state=self.state,
                    step=step,
                    info=info,
                    packed=self.packed,
                )
            else:
                self.strategy.step_post_backward(
                    params=self.splats,
                    optimizers=self.optimizers,
                    state=self.state,
                    step=step,
                    info=info,
                    lr=schedulers[0].get_last_lr()[0],
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
        ({"refine_scale2d_stop_iter": 100}, {"packed": True}),
        ({"revised_opacity": True}, {"packed": True, "visible_adam": True, "antialiased": True}),
        ({}, {"packed": True, "sparse_grad": True}),
    ],
)
def test_simple_trainer_with_default_strategy(options: dict[str, Any], setting: dict[str, Any]) -> None:
    trainer = Trainer(default_strategy(**options), **setting)
    losses = trainer.train()
    assert losses[-1] < losses[0] and len(trainer.splats["means"]) > COUNT
    check_finite(trainer.splats)


@pytest.mark.parametrize("packed", [False, True])
def test_simple_trainer_with_mcmc(packed: bool) -> None:
    mcmc = MCMCStrategy(cap_max=90, refine_start_iter=1, refine_every=3, min_opacity=0.1, noise_lr=1.0)
    trainer = Trainer(mcmc, packed=packed)
    losses = trainer.train()
    assert losses[-1] < losses[0] and COUNT < len(trainer.splats["means"]) <= 90
    check_finite(trainer.splats)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["DefaultStrategy", "MCMCStrategy"])
def test_the_wheels_strategies_drive_our_renderer(monkeypatch: pytest.MonkeyPatch, name: str, packed: bool) -> None:
    """And do the same as ours, dense and packed."""
    wheel = pytest.importorskip("gsplat.strategy", reason="gsplat 1.5.3 is not installed (the dev extra has it)")
    replace_cuda(monkeypatch)
    options = {"refine_start_iter": 1, "refine_every": 3}
    options |= {"grow_grad2d": 1e-3} if name == "DefaultStrategy" else {"cap_max": 90, "min_opacity": 0.1, "noise_lr": 1.0}
    results = []
    for module in (strategy, wheel):
        trainer = Trainer(getattr(module, name)(**options), packed=packed)
        results.append((trainer.train(), len(trainer.splats["means"])))
    assert results[0][1] == results[1][1] > COUNT
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-3)


def test_packed_trains_as_dense() -> None:
    results = []
    for packed in (False, True):
        trainer = Trainer(default_strategy(), packed=packed)
        results.append((trainer.train(), len(trainer.splats["means"])))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-3)
    assert results[0][1] == results[1][1]


def test_masks_are_written_into_images() -> None:
    """Images are not saved for the backward pass: writing into them is allowed."""
    masks = torch.ones(2, SIZE, SIZE, dtype=torch.bool)
    masks[:, :, :4] = False
    losses = Trainer(default_strategy()).train(masks=masks)
    assert losses[-1] < losses[0]


def test_image_fitting() -> None:
    """As gsplat's examples/image_fitting.py: leaf tensors, one optimiser, positional arguments."""
    torch.manual_seed(1)
    gt_image = targets()[0][0]
    means = 2 * (torch.rand(COUNT, 3) - 0.5)
    scales, rgbs, quats, opacities = torch.rand(COUNT, 3), torch.rand(COUNT, 3), torch.randn(COUNT, 4), torch.ones(COUNT)
    viewmat = torch.eye(4)
    viewmat[2, 3] = 8.0
    focal = 0.5 * SIZE / math.tan(0.25 * math.pi)
    K = torch.tensor([[focal, 0, SIZE / 2], [0, focal, SIZE / 2], [0, 0, 1]])
    for tensor in (means, scales, quats, rgbs, opacities):
        tensor.requires_grad = True
    viewmat.requires_grad = False
    optimizer = torch.optim.Adam([rgbs, means, scales, opacities, quats], 0.05)
    losses = []
    for _ in range(STEPS):
        renders = rasterization(
            means,
            quats / quats.norm(dim=-1, keepdim=True),
            scales,
            torch.sigmoid(opacities),
            torch.sigmoid(rgbs),
            viewmat[None],
            K[None],
            SIZE,
            SIZE,
            packed=False,
        )[0]
        loss = F.mse_loss(renders[0], gt_image)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


class Splatfacto(torch.nn.Module):
    """As nerfstudio's models/splatfacto.py: opacities [N, 1], names of its own, and a strategy called from hooks."""

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
        self.strategy_state = (
            controller.initialize_state(scene_scale=1.0)
            if isinstance(controller, DefaultStrategy)
            else controller.initialize_state()
        )
        self.step = 0

    def get_outputs(self, camera_to_world: Tensor, K: Tensor, crop_ids: Tensor | None = None) -> dict[str, Tensor]:
        crop = slice(None) if crop_ids is None else crop_ids
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
            sparse_grad=False,
            absgrad=self.strategy.absgrad if isinstance(self.strategy, DefaultStrategy) else False,
            rasterize_mode="classic",
        )
        if self.training:
            self.strategy.step_pre_backward(self.gauss_params, self.optimizers, self.strategy_state, self.step, self.info)
        alpha = alpha[:, ...]
        rgb = torch.clamp(render[:, ..., :3] + (1 - alpha) * torch.ones(3), 0.0, 1.0)
        depth = render[:, ..., 3:4]
        depth = torch.where(alpha > 0, depth, depth.detach().max()).squeeze(0)
        return {"rgb": rgb.squeeze(0), "depth": depth, "accumulation": alpha.squeeze(0)}

    def step_post_backward(self) -> None:
        if isinstance(self.strategy, DefaultStrategy):
            self.strategy.step_post_backward(
                params=self.gauss_params,
                optimizers=self.optimizers,
                state=self.strategy_state,
                step=self.step,
                info=self.info,
                packed=False,
            )
        else:
            self.strategy.step_post_backward(
                params=self.gauss_params,
                optimizers=self.optimizers,
                state=self.strategy_state,
                step=self.step,
                info=self.info,
                lr=self.schedulers["means"].get_last_lr()[0],
            )


@pytest.mark.parametrize(
    "controller",
    [
        DefaultStrategy(
            prune_opa=0.02,
            grow_grad2d=5e-3,
            grow_scale3d=0.1,
            grow_scale2d=0.5,
            prune_scale3d=5.0,
            prune_scale2d=0.9,
            refine_scale2d_stop_iter=100,
            refine_start_iter=1,
            refine_stop_iter=100,
            reset_every=6,
            refine_every=2,
            pause_refine_after_reset=1,
            absgrad=True,
            revised_opacity=False,
            verbose=True,
        ),
        MCMCStrategy(
            cap_max=90,
            noise_lr=1.0,
            refine_start_iter=1,
            refine_stop_iter=100,
            refine_every=2,
            min_opacity=0.05,
            verbose=False,
        ),
    ],
    ids=["default", "mcmc"],
)
def test_splatfacto(controller: DefaultStrategy | MCMCStrategy) -> None:
    pixels, camtoworlds, Ks = targets()
    model = Splatfacto(controller)
    losses = []
    for model.step in range(6):
        outputs = model.get_outputs(camtoworlds[:1], Ks[:1])
        loss = F.l1_loss(outputs["rgb"], pixels[0])
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
        outputs = model.get_outputs(camtoworlds[1:], Ks[1:], model.gauss_params["means"][:, 0] > 0)
    assert outputs["rgb"].shape == (SIZE, SIZE, 3) and outputs["depth"].isfinite().all()


def check_finite(params: Any) -> None:
    counts = {len(param) for param in params.values()}
    assert len(counts) == 1
    assert all(param.isfinite().all() for param in params.values())
