"""Sixteen numbers of each Gaussian's own: rendered, differentiated, trained and stored as one number that is their sum."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py import Dataset, Gaussians, rasterization, shaders
from splat_py.render.views import render
from splat_py.shaders.declarations import MOST_NUMBERS
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.trainer import Trainer
from tests.render.test_camera_models import scene_of
from tests.render.test_falloffs import own

CAPTURE = (4, 24)
NAMES = tuple(f"n{i}" for i in range(MOST_NUMBERS))
# The weight of each number in the sum.
SHARES = torch.tensor([(-1) ** i * (i + 1) / 16 for i in range(MOST_NUMBERS)])
BODIES = {
    "IFalloff": "return exp(sigma * -0.5) * sigmoid(sigma * sum);",
    "IFalloff2D": "float2 u = standardised(d, conic); return exp(dot(u, u) * -0.5) * sigmoid(u.x * sum);",
    "IFalloff3D": "return exp(dot(ray.point, ray.point) * -0.5) * sigmoid(ray.point.x * sum);",
    "ISplatColor": "return color * (1.0 + sin(ray.point.x * sum) * 0.5);",
}


def source_of(kind: str, fields: str, total: str) -> Any:
    body = BODIES[kind].replace("sum", f"({total})")
    if kind in ("IFalloff", "IFalloff2D"):
        return shaders.source(own(body, kind=kind, fields=fields))
    method = "float value(SplatRay ray)" if kind == "IFalloff3D" else "float3 color(float3 color, SplatRay ray)"
    text = f"import splat.prelude;\nstruct Mine : {kind} {{ {fields} [Differentiable] {method} {{ {body} }}\n"
    return shaders.source(text + "float sigmaMax(float opacity) { return GaussianFalloff().sigmaMax(opacity); } }")


def sixteen(kind: str) -> Any:
    total = " + ".join(f"{name} * {share}" for name, share in zip(NAMES, SHARES.tolist(), strict=True))
    return source_of(kind, f"float {', '.join(NAMES)};", total)


@pytest.mark.parametrize("kind", BODIES)
def test_renders_and_gradients(kind: str) -> None:
    inputs = {name: tensor.detach() for name, tensor in scene_of("pinhole", 24, 18, seed=151).items()}
    rng = torch.Generator().manual_seed(5)
    numbers, way = torch.randn(2, MOST_NUMBERS, len(inputs["means"]), generator=rng)
    order = torch.randperm(MOST_NUMBERS, generator=rng).tolist()

    def of(splat: Any, **params: Tensor) -> Tensor:
        return rasterization(**inputs, width=24, height=18, splat=splat, splat_params=params)[0]

    def of_all(numbers: Tensor) -> Tensor:
        return of(sixteen(kind), **{NAMES[i]: numbers[i] for i in order})

    def of_sum(numbers: Tensor) -> Tensor:
        return of(source_of(kind, "float s;", "s"), s=SHARES @ numbers)

    (image, tangent), (wanted, wanted_tangent) = (torch.func.jvp(f, (numbers,), (way,)) for f in (of_all, of_sum))
    torch.testing.assert_close(image, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tangent, wanted_tangent, rtol=1e-3, atol=1e-4)
    given = [numbers.clone().requires_grad_() for _ in range(2)]
    for leaf, f in zip(given, (of_all, of_sum), strict=True):
        f(leaf).square().sum().backward()
    assert all(row.any() for row in given[1].grad)
    torch.testing.assert_close(given[0].grad, given[1].grad, rtol=1e-3, atol=1e-4 * float(given[1].grad.abs().max()))


def test_training_and_files(dataset: Dataset, tmp_path: Path) -> None:
    """One of the numbers has a rate of 0."""
    still = NAMES[5]
    config = TrainConfig(steps=6, densify_every=4, densify_start=1, accumulate="pair", splat_param_lr=0.01, sh_degree=0)
    config = replace(config, splat_param_lrs=(f"{still}=0",))
    initial = dict(zip(NAMES, np.linspace(-1, 1, MOST_NUMBERS).tolist(), strict=True))
    straight = Trainer(dataset, config, splat=sixteen("IFalloff"), splat_params=initial)
    gaussians = straight.fit()
    assert all((gaussians.params[name] != value).any() == (name != still) for name, value in initial.items())
    first = Trainer(dataset, config, splat=sixteen("IFalloff"), splat_params=initial)
    while first.step < 3:
        first.advance()
    first.save_checkpoint(tmp_path / "c.safetensors")
    resumed = Trainer(dataset, resume=Checkpoint.load(tmp_path / "c.safetensors"), trust_source=True).fit()
    gaussians.save_ply(tmp_path / "a.ply")
    loaded = Gaussians.load_ply(tmp_path / "a.ply").trust_source()
    assert list(loaded.params) == list(NAMES)
    for name in NAMES:
        assert torch.equal(resumed.params[name], gaussians.params[name]) and torch.equal(
            loaded.params[name], gaussians.params[name]
        )
    camera = dataset.views[0].camera
    np.testing.assert_array_equal(render(loaded, camera), render(gaussians, camera))
