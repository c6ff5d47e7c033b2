"""slang/splat/rasterization.slang: a list that comes in parts, forward and backward, by the stop rule of images."""

from __future__ import annotations

import numpy as np
import pytest
import slangpy as spy

from splat_py.gpu.device import get_device
from tests.shaders.oracle import Array

BLOBS, PIXELS, ROW = 40, 16, 9
MIN_ALPHA, MIN_T = 1 / 255, 1 / 255

# A list whose parts are of a given length, whatever the workgroup does.
KERNEL = """
import parallel.gradient_accumulation;
import splat.blending;
import splat.blob2d;
import splat.pixels;
import splat.rasterization;
import splat.shape;
import splat.splat2d;

struct Params { uint blobs; uint part; };
ConstantBuffer<Params> params;
StructuredBuffer<float> blobs;
StructuredBuffer<float> vColors;
RWStructuredBuffer<float> colors;
RWStructuredBuffer<float> savedStates;
RWStructuredBuffer<Atomic<float>> vBlobs;

static uint currentPart = 0;

struct Sink : IGradientSink
{
    void add(uint index, float value) { vBlobs[index].add(value); }
};

struct Parts : ISplatList<3, 9>
{
    typealias Splat = BlobSplat;
    typealias Step = OverBlending;
    uint thread;
    uint base() { return currentPart * params.part; }
    uint size() { return min(params.part, params.blobs - base()); }
    float[9] load(uint position)
    {
        float row[9];
        for (int k = 0; k < 9; k++)
            row[k] = blobs[(base() + position) * 9 + k];
        return row;
    }
    static bool readsLanes() { return true; }
    [mutating]
    bool next(bool done)
    {
        if (WaveActiveAllTrue(done) || base() + params.part >= params.blobs)
            return false;
        currentPart++;
        return true;
    }
    [mutating]
    bool previous()
    {
        if (currentPart == 0)
            return false;
        currentPart--;
        return true;
    }
    Progress<3> begin(int p)
    {
        Progress<3> progress = {};
        progress.state.T = 1.0;
        return progress;
    }
    void save(int p, Progress<3> progress)
    {
        savedStates[(thread * 2 + p) * 2] = progress.state.T;
        savedStates[(thread * 2 + p) * 2 + 1] = float(progress.nContrib);
    }
    Replay<3> replay(int p, PixelState<3>.Differential v)
    {
        return { savedStates[(thread * 2 + p) * 2], uint(savedStates[(thread * 2 + p) * 2 + 1]), v };
    }
    void finish(int p, Replay<3> replay) {}
    uint backwardFrom(uint end) { return end; }
    uint chunkLength(uint lanes) { return lanes; }
    void accumulate(uint position, SplatGradient<9> gradient)
    {
        Sink sink;
        addOverWave<9, Sink>(sink, (base() + position) * 9, gradient.row);
    }
    void flush(uint chunk, uint count) {}
};

[shader("compute")]
[numthreads(8, 1, 1)]
void blend(uint thread: SV_GroupIndex)
{
    Parts list;
    list.thread = thread;
    Pixels<2> pixels = {};
    pixels.first = float2(thread * 2, 0) + 0.5;
    for (int p = 0; p < 2; p++)
    {
        pixels.offset[p] = float2(p, 0);
        // The last pixel is beyond the edge.
        pixels.inside[p] = thread * 2 + p < 15;
    }
    PixelState<3> states[2] = fineRasterize<3, 9, 2, Parts>(list, pixels);
    PixelState<3>.Differential v[2] = {};
    for (int p = 0; p < 2; p++)
    {
        for (int k = 0; k < 3; k++)
        {
            colors[(thread * 2 + p) * 3 + k] = states[p].color[k];
            v[p].color[k] = vColors[(thread * 2 + p) * 3 + k];
        }
    }
    bwd_diff(fineRasterize<3, 9, 2, Parts>)(list, pixels, v);
}
"""


def blend(blobs: Array, v: Array, part: int) -> tuple[Array, Array, Array]:
    """Colours [PIXELS, 3], (T, count) [PIXELS, 2] and gradients [BLOBS, 9]."""
    device = get_device()
    module = device.handle.load_module_from_source("blob_list_in_parts", KERNEL)
    program = device.handle.link_program([module], [module.entry_point("blend")])
    pipeline = device.handle.create_compute_pipeline(program)
    arrays = {
        "blobs": device.memory.array(blobs.astype(np.float32)),
        "vColors": device.memory.array(v.astype(np.float32)),
        "colors": device.memory.empty((PIXELS, 3)),
        "savedStates": device.memory.empty((PIXELS, 2)),
        "vBlobs": device.memory.array(np.zeros((len(blobs), ROW), np.float32)),
    }
    encoder = device.handle.create_command_encoder()
    with encoder.begin_compute_pass() as compute:
        cursor = spy.ShaderCursor(compute.bind_pipeline(pipeline))
        cursor["params"] = {"blobs": len(blobs), "part": part}
        for name, array in arrays.items():
            cursor[name] = array.buffer
        compute.dispatch_compute(spy.uint3(1, 1, 1))
    device.handle.wait_for_submit(device.handle.submit_command_buffer(encoder.finish()))
    return tuple(arrays[name].numpy().astype(float) for name in ("colors", "savedStates", "vBlobs"))  # type: ignore[return-value]


def expected(blobs: Array, v: Array) -> tuple[Array, Array, Array]:
    """The loop in float64; its derivative by the contract's formulas, with all states stored."""
    x = np.arange(PIXELS) + 0.5
    inside = np.arange(PIXELS) < 15
    T, count = np.ones(PIXELS), np.zeros(PIXELS)
    color = np.zeros((PIXELS, 3))
    steps = []
    for i, blob in enumerate(blobs):
        dx, dy = x - blob[0], 0.5 - blob[1]
        falloff = np.exp(-0.5 * (blob[2] * dx**2 + 2 * blob[3] * dx * dy + blob[4] * dy**2))
        alpha = blob[5] * falloff
        assert (np.abs(alpha - MIN_ALPHA) > 1e-7).all() and (np.abs(T - MIN_T) > 1e-6).all() and alpha.max() < 0.999
        blends = inside & (alpha >= MIN_ALPHA) & (T >= MIN_T)
        alpha = np.where(blends, alpha, 0)
        steps.append((alpha, falloff, dx, dy, T))
        color += (alpha * T)[:, None] * blob[6:9]
        T = T * (1 - alpha)
        count[blends] = i + 1
    gradient = np.zeros((len(blobs), ROW))
    behind = np.zeros(PIXELS)
    for i in range(len(blobs) - 1, -1, -1):
        alpha, falloff, dx, dy, before = steps[i]
        blob = blobs[i]
        here = v @ blob[6:9]
        v_alpha = np.where(alpha > 0, before * (here - behind), 0)
        gradient[i, 6:9] = (alpha * before) @ v
        gradient[i, 5] = v_alpha @ falloff
        v_sigma = -0.5 * alpha * v_alpha
        gradient[i, 0] = -(v_sigma * 2 * (blob[2] * dx + blob[3] * dy)).sum()
        gradient[i, 1] = -(v_sigma * 2 * (blob[3] * dx + blob[4] * dy)).sum()
        gradient[i, 2:5] = [(v_sigma * f).sum() for f in (dx * dx, 2 * dx * dy, dy * dy)]
        behind = alpha * here + (1 - alpha) * behind
    return color, np.stack([T, count], axis=1), gradient


@pytest.mark.parametrize("part", [1, 7, 8, 20, BLOBS])
@pytest.mark.parametrize("opacity", [0.1, 0.95], ids=["faint", "opaque"])
def test_parts_of_any_length(part: int, opacity: float) -> None:
    rng = np.random.default_rng(35)
    deviation = rng.uniform(1, 6, BLOBS)
    blobs = np.zeros((BLOBS, ROW))
    blobs[:, 0] = rng.uniform(-2, PIXELS + 2, BLOBS)
    blobs[:, 1] = rng.uniform(-1, 2, BLOBS)
    blobs[:, 2], blobs[:, 4] = 1 / deviation**2, 0.3
    blobs[:, 3] = 0.3 * np.sqrt(blobs[:, 2] * blobs[:, 4]) * rng.uniform(-1, 1, BLOBS)
    blobs[:, 5] = opacity * rng.uniform(0.8, 1, BLOBS)
    blobs[:, 6:] = rng.uniform(size=(BLOBS, 3))
    blobs = blobs.astype(np.float32).astype(float)
    v = rng.normal(size=(PIXELS, 3)).astype(np.float32).astype(float)
    v[15] = 0
    color, states, gradient = blend(blobs, v, part)
    wanted_color, wanted_states, wanted_gradient = expected(blobs, v)
    np.testing.assert_allclose(color, wanted_color, atol=1e-5)
    np.testing.assert_allclose(states, wanted_states, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradient, wanted_gradient, rtol=1e-4, atol=1e-5 * np.abs(wanted_gradient).max())
    stopped = states[:15, 0] < MIN_T
    assert stopped.all() if opacity > 0.5 else not stopped.any()
    assert (states[:15, 1] < BLOBS).any()
