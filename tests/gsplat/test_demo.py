"""Density control by gsplat's wheel and by ours, on the embedded scene: as good a picture after 200 steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import Parameter, ParameterDict

import splat_py as splat
from splat_py.demo.scene import write_demo_scene
from splat_py.gsplat import strategy
from tests.gsplat.comparison import replace_cuda

STEPS, SIZE = 200, 64
RATES = {"means": 2e-3, "scales": 1e-2, "quats": 2e-3, "opacities": 5e-2, "sh0": 1e-2, "shN": 5e-4}
OPTIONS = {
    "DefaultStrategy": {"refine_start_iter": 40, "refine_every": 30, "grow_grad2d": 1.5e-3},
    "MCMCStrategy": {"refine_start_iter": 40, "refine_every": 30, "cap_max": 3000},
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> splat.Dataset:
    return splat.load_dataset(write_demo_scene(tmp_path_factory.mktemp("demo") / "demo", views=16, size=SIZE))


def cameras(dataset: splat.Dataset, view: int) -> tuple[torch.Tensor, torch.Tensor]:
    camera = dataset.views[view].camera
    return tuple(torch.tensor(np.asarray(m)[None], dtype=torch.float32) for m in (camera.viewmat, camera.K))  # type: ignore[return-value]


def views(dataset: splat.Dataset) -> Iterator[int]:
    order = np.random.default_rng(0)
    while True:
        yield from order.permutation(dataset.train).tolist()


def psnr_after(dataset: splat.Dataset, controller: Any, packed: bool) -> tuple[float, int]:
    """Of the held-out views, trained as gsplat's simple_trainer does; and how many Gaussians there are."""
    torch.manual_seed(0)
    assert dataset.points is not None
    start = splat.Gaussians.from_points(*dataset.points, sh_degree=1)
    values = (start.means, start.log_scales, start.quats, start.logit_opacities, start.sh[:, :1], start.sh[:, 1:])
    params = ParameterDict({name: Parameter(value.clone()) for name, value in zip(RATES, values, strict=True)})
    optimizers = {name: torch.optim.Adam([params[name]], lr=rate, eps=1e-15) for name, rate in RATES.items()}
    default = "Default" in type(controller).__name__
    state = controller.initialize_state(scene_scale=dataset.scene_scale) if default else controller.initialize_state()

    def render(view: int) -> tuple[torch.Tensor, dict[str, Any]]:
        sh = torch.cat([params["sh0"], params["shN"]], 1)
        viewmats, Ks = cameras(dataset, view)
        images, _, info = splat.rasterization(
            means=params["means"],
            quats=params["quats"],
            scales=params["scales"].exp(),
            opacities=params["opacities"].sigmoid(),
            colors=sh,
            viewmats=viewmats,
            Ks=Ks,
            width=SIZE,
            height=SIZE,
            sh_degree=1,
            packed=packed,
            backgrounds=torch.tensor(dataset.background[None]),
            accumulate="pair",
        )
        return images, info

    for step, view in zip(range(STEPS), views(dataset), strict=False):
        images, info = render(view)
        if default:
            controller.step_pre_backward(params, optimizers, state, step, info)
        photograph = torch.from_numpy(dataset.image(view)[None, ..., :3] / np.float32(255))
        splat.photometric_loss(images, photograph).backward()
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if default:
            controller.step_post_backward(params, optimizers, state, step, info, packed=packed)
        else:
            controller.step_post_backward(params, optimizers, state, step, info, lr=RATES["means"])
    with torch.no_grad():
        scores = [
            -10
            * np.log10(
                float(
                    (render(view)[0].clamp(0, 1) - torch.from_numpy(dataset.image(view)[None, ..., :3] / 255)).square().mean()
                )
            )
            for view in dataset.test
        ]
    return float(np.mean(scores)), len(params["means"])


@pytest.mark.parametrize(("name", "packed"), [("DefaultStrategy", True), ("MCMCStrategy", False)])
def test_as_good_as_the_wheels(dataset: splat.Dataset, monkeypatch: pytest.MonkeyPatch, name: str, packed: bool) -> None:
    wheel = pytest.importorskip("gsplat.strategy", reason="gsplat 1.5.3 is not installed (the dev extra has it)")
    replace_cuda(monkeypatch)
    results = [psnr_after(dataset, getattr(module, name)(**OPTIONS[name]), packed) for module in (strategy, wheel)]
    (ours, our_count), (theirs, their_count) = results
    start = len(dataset.points[0]) if dataset.points else 0
    assert our_count > 1.2 * start and abs(our_count - their_count) <= 0.01 * their_count, results
    assert ours > 20 and abs(ours - theirs) < 0.3, results
