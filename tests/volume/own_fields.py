"""Own radiance fields in Slang for the tests, with twins in float64 torch."""

import torch
from torch import Tensor

# Reads single numbers by index, a row, and rows of a network.
MIXED = """
import splat.prelude;
struct Mixed : IFieldFunction
{
    static const int LINE = 4;
    static const int PARAMS = 3 * (4 + 4) + LINE + 2 + 1;

    [Differentiable]
    static float4 query<Weights : IFieldWeights>(no_diff Weights weights, float3 place, float3 direction)
    {
        float x[3] = { place.x, place.y, direction.z };
        float y[4] = networkAt<3, 4, 8, Weights>(weights, 0, 3, x);
        // A line of values along z, interpolated.
        float u = clamp(place.z * float(LINE) - 0.5, 0.0, float(LINE) - 1.001);
        float low = no_diff floor(u);
        uint i = uint(low);
        float f = u - low;
        float line = weightAt<Weights>(weights, 24 + i) * (1.0 - f) + weightAt<Weights>(weights, 25 + i) * f;
        float row[2] = rowAt<2, Weights>(weights, 28);
        return float4(exp(y[0] + line), y[1] * y[1] + row[0] * direction.x, y[2] + row[1] + 0.5, y[3] * line + 0.5);
    }

    static override float first(uint index, float random)
    {
        return index == 30 ? 0.25 : random - 0.2;
    }
}
"""
# Blobs: a place, the logarithms of sharpness and density, and a colour.
BLOBS = """
import splat.prelude;
struct Blobs : IFieldFunction
{
    static const int PARAMS = 8 * 4;

    [Differentiable]
    static float4 query<Weights : IFieldWeights>(no_diff Weights weights, float3 place, float3 direction)
    {
        float4 sum = float4(0.0);
        [ForceUnroll]
        for (int i = 0; i < 4; i++)
        {
            float blob[8] = rowAt<8, Weights>(weights, 8 * i);
            float3 off = place - float3(blob[0], blob[1], blob[2]);
            sum = sum + float4(1.0, blob[5], blob[6], blob[7]) * exp(blob[4] - dot(off, off) * exp(blob[3]));
        }
        return float4(sum.x, sum.yzw / (sum.x + 1e-3));
    }

    static override float first(uint index, float random)
    {
        uint i = index % 8;
        return i < 3 ? 0.25 + 0.5 * random : i == 3 ? 3.0 : i == 4 ? 1.0 : random;
    }
}
"""


def mixed(params: Tensor, place: Tensor, direction: Tensor) -> Tensor:
    """`Mixed`: values [N, 4] of params [31], places and directions [N, 3], float64."""
    x = torch.stack([place[:, 0], place[:, 1], direction[:, 2]], 1)
    rows = params[:24].reshape(3, 8)
    y = torch.relu(x @ rows[:, :3].T + rows[:, 3]) @ rows[:, 4:]
    u = (place[:, 2] * 4 - 0.5).clip(0, 2.999)
    i = u.detach().floor()
    f = u - i
    line = params[24 + i.long()] * (1 - f) + params[25 + i.long()] * f
    red = y[:, 1] ** 2 + params[28] * direction[:, 0]
    return torch.stack([torch.exp(y[:, 0] + line), red, y[:, 2] + params[29] + 0.5, y[:, 3] * line + 0.5], 1)
