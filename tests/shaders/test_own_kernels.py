"""`splat.shaders.kernel`: own entry points on tensors and on the renderer's structs, and examples/depth_variance.py."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import splat_py as splat
from splat_py.render.options import Options
from splat_py.render.splats import ProjectedSplats
from splat_py.shaders import OwnKernel
from tests.refusals import refused

EXAMPLE = Path(__file__).parents[2] / "examples" / "depth_variance.py"
WIDTH, HEIGHT = 37, 22

WEIGHTED = """
uniform uint count;
uniform float power;
static const uint CHANNELS = 3;
/// [N, CHANNELS] colours
StructuredBuffer<float> colors;
StructuredBuffer<float> weights; // [N]
/// [count, CHANNELS]
RWStructuredBuffer<float> sums;
/// [1]
RWStructuredBuffer<uint> calls;
StructuredBuffer<float> vSums;
RWStructuredBuffer<float> vColors;
RWStructuredBuffer<Atomic<float>> vWeights;

[Differentiable]
float term(float color, float weight)
{
    return color * pow(weight, detach(power));
}

[shader("compute")] [numthreads(32, 1, 1)]
void weighted(uint3 id: SV_DispatchThreadID)
{
    if (id.x == 0)
        calls[0] += 1;
    if (id.x >= count * CHANNELS)
        return;
    sums[id.x] += term(colors[id.x], weights[id.x / CHANNELS]);
}

[shader("compute")] [numthreads(32, 1, 1)]
void weighted_bwd(uint3 id: SV_DispatchThreadID)
{
    if (id.x >= count)
        return;
    for (uint i = id.x * CHANNELS; i < id.x * CHANNELS + CHANNELS; i++)
    {
        var color = diffPair(colors[i]);
        var weight = diffPair(weights[id.x]);
        bwd_diff(term)(color, weight, vSums[i]);
        vColors[i] = color.d;
        vWeights[id.x].add(weight.d);
    }
}
"""


@pytest.fixture(scope="module")
def weighted() -> OwnKernel:
    return splat.shaders.kernel(WEIGHTED, "weighted")


def given(**other: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    colors, weights = rng.uniform(0, 1, (50, 3)).astype(np.float32), rng.uniform(0.5, 1, 50).astype(np.float32)
    return {"count": 50, "power": 2.0, "colors": colors, "weights": weights, "sums": (50, 3), "calls": (1,)} | other


def test_numpy_in_and_out(weighted: OwnKernel) -> None:
    arguments = given(sums=np.ones((50, 3), np.float32))
    found = weighted(150, **arguments)
    expected = 1 + arguments["colors"] * arguments["weights"][:, None] ** 2
    np.testing.assert_allclose(found["sums"], expected, rtol=1e-6)
    assert found["calls"].dtype == np.uint32 and found["calls"].tolist() == [1]
    assert (arguments["sums"] == 1).all()


def test_torch_and_its_gradients(weighted: OwnKernel) -> None:
    arguments = given()
    colors, weights = (torch.tensor(arguments[name], requires_grad=True) for name in ("colors", "weights"))
    found = weighted(150, **given(colors=colors, weights=weights))["sums"]
    v = torch.rand(50, 3)
    (found * v).sum().backward()
    expected = torch.autograd.grad((colors * weights[:, None] ** 2 * v).sum(), (colors, weights))
    for tensor, gradient in zip((colors, weights), expected, strict=True):
        assert tensor.grad is not None
        torch.testing.assert_close(tensor.grad, gradient)
    with torch.no_grad():
        assert not weighted(150, **given(colors=colors, weights=weights))["sums"].requires_grad


def test_each_dispatch_has_its_own_values() -> None:
    source = """
    uniform float divisor;
    uniform uint count;
    StructuredBuffer<float> values; // [count]
    RWStructuredBuffer<float> ratios; // [count]
    [shader("compute")] [numthreads(32, 1, 1)]
    void divide(uint3 id: SV_DispatchThreadID)
    {
        if (id.x < count)
            ratios[id.x] = values[id.x] / divisor;
    }
    """
    kernel, device, found = splat.shaders.kernel(source, "divide")._kernel, splat.get_device(), []
    # Dispatches of one recording share a shader object.
    with device.recording() as recorder:
        for divisor, count in ((0.0, 2), (-0.0, 2), (4.0, 3), (4.0, 3)):
            values = device.memory.array(np.arange(1, count + 1, dtype=np.float32))
            ratios = device.memory.empty(count)
            recorder.run(kernel, (1, 1, 1), {"divisor": divisor, "count": count, "values": values, "ratios": ratios})
            found.append((divisor, values, ratios))
    for divisor, values, ratios in found:
        with np.errstate(divide="ignore"):
            np.testing.assert_array_equal(ratios.numpy(), values.numpy() / np.float32(divisor))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"colors": np.zeros((50, 2), np.float32)}, r"colors has shape \[50, 2\]; the source says \[N, CHANNELS = 3\]"),
        ({"weights": np.zeros(49, np.float32)}, r"weights has shape \[49\]; the source says \[N = 50\]"),
        ({"sums": (49, 3)}, r"sums has shape \[49, 3\]; the source says \[count = 50, CHANNELS = 3\]"),
        ({"calls": (2,)}, r"calls has shape \[2\]; the source says \[1\]"),
        ({"weights": np.zeros(50)}, r"weights is float64 \[50\]; its elements are of type float"),
        ({"weights": torch.zeros(50, dtype=torch.float64)}, r"weights is float64 \[50\]; its elements are of type float"),
        ({"weights": np.array([None] * 50)}, r"weights is object \[50\]; its elements are of type float"),
        ({"weights": [1.0]}, "weights is a list; give a NumPy array or a torch tensor"),
        ({"weights": (50,)}, "weights is a tuple; give a NumPy array or a torch tensor"),
        ({"sums": (10**7, 10**7)}, r"an array \[10000000, 10000000\] of float32 takes"),
        ({"count": -1}, "uniform count is -1; it must be an integer from 0"),
        ({"weihgts": 1}, "there is no argument weihgts; its arguments are"),
        ({"vColors": 1}, "there is no argument vColors"),
    ],
)
def test_arguments_that_do_not_fit(weighted: OwnKernel, other: dict[str, Any], message: str) -> None:
    refused(message, weighted, 150, **given(**other))


def test_what_is_missing(weighted: OwnKernel) -> None:
    arguments = given()
    del arguments["weights"]
    refused(r"buffer weights \(float\) is missing", weighted, 150, **arguments)
    refused("threads is 1.5; give one to three whole numbers", weighted, 1.5, **given())  # type: ignore[arg-type]
    refused("threads is 1000000000000, but this device runs .* at most; give each several", weighted, 10**12, **given())
    # NumPy counts too.
    counted: Any = np.int64(150)
    assert weighted(counted, **given())["calls"] > 0
    text = WEIGHTED.replace("RWStructuredBuffer<Atomic<float>> vWeights;", "").replace("vWeights[id.x].add(weight.d);", "")
    tensor = torch.tensor(arguments["colors"][:, 0], requires_grad=True)
    refused(
        "weights needs a gradient; declare .* vWeights", splat.shaders.kernel(text, "weighted"), 150, **given(weights=tensor)
    )
    forward = splat.shaders.kernel(text.replace("weighted_bwd", "other"), "weighted")
    refused("weights needs a gradient; write weighted_bwd", forward, 150, **given(weights=tensor))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (WEIGHTED.replace("weighted(", "other("), "the source has no entry point weighted; name a function marked"),
        ("float weighted(float x) { return x; }", "the source has no entry point weighted; name a function marked"),
        ("uniform float3 shift;" + WEIGHTED, "shift is a vector<float,3>; declare a StructuredBuffer"),
        (
            "StructuredBuffer<float3> shifts;" + WEIGHTED,
            "shifts is a StructuredBuffer<vector<float,3>.*; declare a StructuredBuffer",
        ),
        ("Texture2D map;" + WEIGHTED, "map is a Texture2D.*; declare a StructuredBuffer"),
        (
            WEIGHTED.replace("uint3 id: SV", "uniform float x, uint3 id: SV"),
            "x is a parameter of weighted_bwd; declare it as a global",
        ),
        (WEIGHTED.replace("power)", "pwoer)"), r"cannot be compiled: line \d+: undefined identifier 'pwoer'"),
    ],
)
def test_sources_that_cannot_be_bound(text: str, message: str) -> None:
    refused(message, splat.shaders.kernel, text, "weighted")


def test_entry_points_have_names() -> None:
    refused("the entry point is called 'weight.*'; use at most 64", splat.shaders.kernel, WEIGHTED, "weight.*")


@pytest.fixture(scope="module")
def projected() -> tuple[ProjectedSplats, Options]:
    torch.manual_seed(3)
    means, options = torch.rand(300, 3) * 2 - 1, Options.on(splat.get_device())
    viewmats, Ks = torch.eye(4)[None].clone(), torch.tensor([[[40.0, 0, 18], [0, 40, 11], [0, 0, 1]]])
    viewmats[0, 2, 3] = 3
    scene = means, torch.randn(300, 4), torch.rand(300, 3) * 0.1 + 0.05, torch.rand(300)
    return splat.project(*scene, viewmats, Ks, WIDTH, HEIGHT, options), options


def example() -> Any:
    spec = spec_from_file_location("depth_variance", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_against_numpy(projected: tuple[ProjectedSplats, Options]) -> None:
    splats, options = projected
    found = example().depth_variance(splats, WIDTH, HEIGHT, options).numpy()

    tiles = splat.bin_tiles(splats, WIDTH, HEIGHT, options)
    offsets, ids = tiles.offsets.numpy(), tiles.ids.numpy()
    columns, tile = tiles.grid.columns, tiles.grid.tile_size
    means2d, conics, opacities, depths = (
        part.reshape(300, -1).double().numpy() for part in (splats.means2d, splats.conics, splats.opacities, splats.depths)
    )
    expected = np.zeros((HEIGHT, WIDTH))
    for y, x in np.ndindex(HEIGHT, WIDTH):
        number = y // tile * columns + x // tile
        seen = ids[offsets[number] : offsets[number + 1]]
        dx, dy = (np.array([x, y]) + 0.5 - means2d[seen]).T
        a, b, c = conics[seen].T
        alpha = np.minimum(opacities[seen, 0] * np.exp(-0.5 * (a * dx**2 + 2 * b * dx * dy + c * dy**2)), 0.999)
        alpha[alpha < 1 / 255] = 0
        weights = alpha * np.cumprod(np.append(1, 1 - alpha[:-1]))
        if weights.sum() > 0:
            mean = np.average(depths[seen, 0], weights=weights)
            expected[y, x] = np.average((depths[seen, 0] - mean) ** 2, weights=weights)
    assert expected.max() > 0.1
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_structs_that_do_not_fit_each_other(projected: tuple[ProjectedSplats, Options]) -> None:
    splats, options = projected
    tiles = splat.bin_tiles(splats, WIDTH, HEIGHT, options)
    kernel = splat.shaders.kernel(splat.shaders.load(EXAMPLE.with_suffix(".slang")), "depthVariance")
    rest = {"tile_size": options.tile_size, "width": WIDTH, "height": HEIGHT, "variance": (HEIGHT, WIDTH)}
    half = ProjectedSplats(*(getattr(splats, f)[:, :150] for f in ("means2d", "depths", "conics", "opacities", "radii")))
    refused("lists lists 300 splats and splats has 150; bin", kernel, (1, 1), splats=half, lists=tiles, **rest)
    short = ProjectedSplats(splats.means2d[:, :150], splats.depths, splats.conics, splats.opacities, splats.radii)
    refused("means2d of splats has room for fewer", kernel, (1, 1), splats=short, lists=tiles, **rest)
    refused("splats is a Tensor without means2d", kernel, (1, 1), splats=splats.depths, lists=tiles, **rest)
