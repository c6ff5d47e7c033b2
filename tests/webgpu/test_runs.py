"""The kernels as WGSL, run through wgpu and compared with the float64 results of `splat selftest`."""

import pytest

from splat_py.commands.selftest.checking import SelfTest
from tests.volume import test_march as marches
from tests.webgpu.device import WebGpu, open_wgpu

# A render with everything before and after it, its backward pass, training steps and volumes, without float atomics, which WGSL
# lacks. Other cases only differ in constants and in compile time.
CASES = (
    "prefix sum",
    "radix sort",
    "shade, degree 3",
    "tile lists, 16 px",
    "project, cameras, PerPixel, compare-and-swap",
    "rasterise, 3 ch, 16 px, PerWave, compare-and-swap",
    "rasterise, crowded tile, PerIntersection, 256 a dispatch",
    "contributors of pixels",
    "render, RGB, classic",
    "render, per intersection",
    "training step, auto",
    "image, tiles, compare-and-swap",
    "portable baseline",
    "volume, 4 coefficients, jitter",
    "volume, fitting step",
)


@pytest.fixture(scope="module")
def device() -> WebGpu:
    return WebGpu(open_wgpu())


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, device: WebGpu) -> None:
    test = SelfTest(device)
    test.cases = [case for case in test.cases if case.name == name]
    (outcome,) = test.run()
    assert outcome.verdict == "ok", f"{outcome.reason}\n{outcome.details}"


def test_volumes_of_halves(device: WebGpu) -> None:
    marches.assert_like_reference(marches.random_field(1), marches.random_rays(60), halves=True, device=device)
