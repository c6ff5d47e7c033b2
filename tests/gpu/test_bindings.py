"""Mistakes in a dispatch, on kernels of the library: each is told by its name, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import slangpy as spy

from splat_py.errors import BindingError, SplatError
from splat_py.gpu.arrays import Array
from splat_py.gpu.bindings import Bindings
from splat_py.gpu.device import get_device
from splat_py.gpu.sources import declared
from tests.emulation.kernels import declared as entry_points

Change = Callable[[dict[str, Any], dict[str, Any]], object]


def _statistics() -> tuple[dict[str, Any], dict[str, Any]]:
    """What kernels/densify.slang takes for one Gaussian."""
    array = get_device().memory.array
    uniforms = {"gaussians": 1, "stride": 9, "offset": 0, "halfWidth": 2.0, "halfHeight": 2, "largerSide": np.float32(4)}
    buffers = {name: array(np.ones(9, np.float32)) for name in ("vMeans2d", "gradientNorms", "timesSeen", "maxRadii")}
    buffers |= {"status": array(np.zeros(2, np.uint32)), "radii": array(np.ones((1, 2), np.int32))}
    return uniforms, buffers


def _dispatch(uniforms: Mapping[str, Any], buffers: Mapping[str, Array | None]) -> None:
    recorder = get_device().record()
    recorder.dispatch("densify", "addStatistics", (1, 1, 1), uniforms, buffers)
    recorder.submit()


def test_what_the_kernel_takes() -> None:
    uniforms, buffers = _statistics()
    _dispatch(uniforms, buffers)
    assert buffers["timesSeen"].numpy()[0] == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda u, b: b.update(vMean2d=b["vMeans2d"]), "there is no buffer vMean2d; its buffers are status, radii"),
        (lambda u, b: b.pop("vMeans2d"), r"buffer vMeans2d \(float\) is missing"),
        (lambda u, b: b.update(Radii=b.pop("radii")), r"there is no buffer Radii, buffer radii \(int\) is missing"),
        (lambda u, b: u.update(width=3), "there is no uniform width; its uniforms are gaussians, stride"),
        (lambda u, b: u.pop("stride"), r"uniform stride \(uint\) is missing"),
        (lambda u, b: b.update(status=b["maxRadii"]), r"buffer status is float32 \[9\]; its elements are of type uint"),
        (lambda u, b: b.update(radii=b["status"]), r"buffer radii is uint32 \[2\]; its elements are of type int"),
        (lambda u, b: b.update(maxRadii=b["maxRadii"].bits), r"buffer maxRadii is uint32 \[9\]; its .* type float"),
        (lambda u, b: u.update(offset=-1), "uniform offset is -1; it must be an integer from 0 to 2³² - 1"),
        (lambda u, b: u.update(offset=1 << 32), "uniform offset is 4294967296; it must be an integer from 0"),
        (lambda u, b: u.update(offset=0.0), "uniform offset is 0.0; it must be an integer"),
        (lambda u, b: u.update(offset=False), "uniform offset is False; it must be an integer"),
        (lambda u, b: u.update(halfWidth=True), "uniform halfWidth is True; it must be a number"),
        (lambda u, b: u.update(halfWidth="2"), "uniform halfWidth is '2'; it must be a number"),
        (lambda u, b: u.update(offset=spy.uint2(0, 0)), "uniform offset is .*; it must be an integer"),
    ],
)
def test_mistakes(change: Change, message: str) -> None:
    uniforms, buffers = _statistics()
    times_seen = buffers["timesSeen"]
    change(uniforms, buffers)
    with pytest.raises(BindingError, match=f"densify.addStatistics: {message}"):
        _dispatch(uniforms, buffers)
    assert times_seen.numpy()[0] == 1


def test_a_mistake_is_the_librarys_and_not_its_users() -> None:
    assert not issubclass(BindingError, SplatError)


def test_elements_of_several_numbers() -> None:
    memory = get_device().memory
    floats = {**dict.fromkeys(("means2d", "conics", "opacities", "colors"), memory.empty(3)), "extras": None}
    bindings = Bindings.of("rasterize", "packSplats")
    bindings.check({"splats": 1}, {"packedSplats": memory.empty((1, 12)), **floats})
    with pytest.raises(BindingError, match=r"buffer packedSplats is float32 \[10\]; its elements are of type float4"):
        bindings.check({"splats": 1}, {"packedSplats": memory.empty(10), **floats})


def test_what_a_specialisation_switches_off_is_none() -> None:
    memory = get_device().memory
    uints = dict.fromkeys(("isectTiles", "isectCount", "isectIds", "tileOffsets"), memory.empty(4, np.uint32))
    uniforms = {"capacity": 1, "tiles": 1}
    bindings = Bindings.of("tiles", "findTileOffsets")
    with pytest.raises(BindingError, match=r"buffer isectSplats \(uint\) is missing, buffer tileIds \(uint\) is missing"):
        bindings.check(uniforms, uints)
    bindings.check(uniforms, {**uints, "isectSplats": None, "tileIds": None})
    with pytest.raises(BindingError, match="there is no buffer isects"):
        bindings.check(uniforms, {**uints, "isectSplats": None, "tileIds": None, "isects": None})


def test_reflection_and_declarations_agree() -> None:
    device = get_device()
    # One entry point of each module: reflection lists the globals of all.
    for module, entry in dict(entry_points()).items():
        assert device.kernels.get(module, entry).bindings.known == declared(f"kernels/{module}"), module


def test_a_kernel_is_read_once() -> None:
    kernels = get_device().kernels
    assert kernels.get("prefix_sum", "sumBlocks").bindings is kernels.get("prefix_sum", "sumBlocks").bindings
