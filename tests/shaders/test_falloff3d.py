"""slang/splat/falloff3d.slang and splat_color.slang: a ray as a Gaussian sees it, and types through their interfaces."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from splat_py import shaders
from tests.reference.gaussian import rotations
from tests.shaders.oracle import assert_like, assert_value, float32, unit

COUNT = 40
RNG = np.random.default_rng(3)

OWN = """
import splat.prelude;
struct Lopsided : IFalloff3D
{
    float x, y, z, w;

    [Differentiable]
    float value(SplatRay ray)
    {
        float side = dot(ray.point, float3(x, y, z)) + ray.direction.y + mul(ray.axes, ray.position).z * w;
        return exp(dot(ray.point, ray.point) * -0.5) * sigmoid(side / ray.scales.x);
    }

    float sigmaMax(float opacity) { return opacity * 2.0 + x; }
}

struct Tinted : ISplatColor
{
    float x, y, z, w;

    [Differentiable]
    float3 color(float3 color, SplatRay ray)
    {
        return color * (1.0 + dot(ray.point, float3(x, y, z))) + ray.direction * w;
    }
}
"""


def inputs() -> list[Any]:
    """Shapes of Gaussians with scales from 0.1 to 1, rays that lead to them, and own numbers."""
    quats, scales = torch.tensor(RNG.normal(size=(COUNT, 4))), np.exp(RNG.uniform(-2.3, 0, (COUNT, 3)))
    white = rotations(quats).mT.numpy() / scales[:, :, None]
    position = RNG.normal(size=(COUNT, 3)) * 0.3 + [0, 0, 3]
    shape = np.concatenate([white.reshape(COUNT, 9), position, np.zeros((COUNT, 3))], 1)
    origin = RNG.normal(size=(COUNT, 3)) * 0.2
    direction = unit(position - origin + RNG.normal(size=(COUNT, 3)) * 0.3)
    own = dict(zip("xyzw", float32(RNG.normal(size=(4, COUNT))), strict=True))
    return [float32(shape), {"origin": float32(origin), "direction": float32(direction)}, own]


def seen(shape: Tensor, ray: dict[str, Tensor]) -> dict[str, Tensor]:
    white = shape[:, :9].unflatten(1, (3, 3))
    scales = 1 / white.norm(dim=-1)
    axes = white * scales[:, :, None]
    position = shape[:, 9:12] - ray["origin"]
    along, centre = ((white @ v[..., None])[..., 0] for v in (ray["direction"], position))
    point = along * ((along * centre).sum(-1) / along.square().sum(-1))[:, None] - centre
    direction = (axes @ ray["direction"][..., None])[..., 0]
    return {"point": point, "direction": direction, "scales": scales, "axes": axes, "position": position}


def along(own: dict[str, Tensor], point: Tensor) -> Tensor:
    return point[:, 0] * own["x"] + point[:, 1] * own["y"] + point[:, 2] * own["z"]


def value(ray: dict[str, Tensor], own: dict[str, Tensor]) -> Tensor:
    depth = (ray["axes"] @ ray["position"][..., None])[:, 2, 0]
    side = along(own, ray["point"]) + ray["direction"][:, 1] + depth * own["w"]
    return (-0.5 * ray["point"].square().sum(-1)).exp() * (side / ray["scales"][:, 0]).sigmoid()


def color(color: Tensor, ray: dict[str, Tensor], own: dict[str, Tensor]) -> Tensor:
    return color * (1 + along(own, ray["point"]))[:, None] + ray["direction"] * own["w"][:, None]


def test_rays() -> None:
    shape, ray, _ = inputs()
    assert_like(shaders.falloff3d.splatRay[15], seen, [shape, ray], value=(2e-4, 1e-5), rtol=2e-3, atol=1e-3)


def test_ones_own() -> None:
    own, (shape, ray, numbers) = shaders.source(OWN), inputs()
    fields = seen(torch.tensor(shape), {name: torch.tensor(part) for name, part in ray.items()})
    rays = {name: float32(part.numpy()) for name, part in fields.items()}
    assert_like(shaders.falloff3d.falloff3DOf[own], value, [rays, numbers], value=(1e-4, 1e-6), rtol=1e-3, atol=1e-4)
    rgb = float32(RNG.uniform(size=(COUNT, 3)))
    assert_like(shaders.splat_color.splatColorOf[own], color, [rgb, rays, numbers], value=(1e-4, 1e-5), rtol=1e-3, atol=1e-4)
    opacity = np.linspace(0.1, 1, COUNT)
    assert_value(shaders.falloff3d.sigmaMaxOfRays[own](opacity, numbers), opacity * 2 + numbers["x"])


def test_nothing_depends_on_a_value_of_no_weight() -> None:
    """Even where the type's own derivative is infinite."""
    text = OWN.replace("exp(dot(ray.point, ray.point) * -0.5)", "sqrt(ray.point.x * 0.0)")
    shape, ray, numbers = inputs()
    rays = shaders.falloff3d.splatRay[15](shape, ray)
    of_ray, of_own = shaders.falloff3d.falloff3DOf[shaders.source(text)].gradients(np.zeros(COUNT), rays, numbers)
    assert not any(part.any() for part in (*of_ray.values(), *of_own.values()))
