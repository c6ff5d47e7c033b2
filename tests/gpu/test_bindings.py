"""Mistakes in a dispatch of the library's kernels: each error names the argument, before anything runs."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
import slangpy as spy

from splat_py.base.errors import BindingError, SplatError
from splat_py.gpu.arrays import Array
from splat_py.gpu.bindings import Bindings
from splat_py.gpu.device import get_device
from splat_py.gpu.sources import Globals, declared
from splat_py.render.tiles import TileGrid
from tests.emulation.kernels import declared as entry_points

Change = Callable[[dict[str, Any]], object]


def _statistics() -> dict[str, Any]:
    """Arguments of kernels/densify.slang for one Gaussian."""
    array = get_device().memory.array
    numbers = {"gaussians": 1, "stride": 9, "offset": 0, "half_width": 2.0, "half_height": 2, "larger_side": np.float32(4)}
    names = ("v_means2d", "depths", "gradient_norms", "times_seen", "max_radii")
    floats = {name: array(np.ones(9, np.float32)) for name in names}
    return numbers | floats | {"status": array(np.zeros(2, np.uint32)), "radii": array(np.ones((1, 2), np.int32))}


def _dispatch(arguments: Mapping[str, Any]) -> None:
    with get_device().recording() as recorder:
        recorder.dispatch("densify", "addStatistics", (1, 1, 1), **arguments)


def test_what_the_kernel_takes() -> None:
    arguments = _statistics()
    _dispatch(arguments)
    assert arguments["times_seen"].numpy()[0] == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.update(v_mean2d=a["v_means2d"]), "there is no argument v_mean2d; its arguments are .*, status, "),
        (lambda a: a.pop("v_means2d"), r"buffer vMeans2d \(float\) is missing"),
        (lambda a: a.update(radius=a.pop("radii")), "there is no argument radius"),
        (lambda a: a.update(width=3), "there is no argument width"),
        (lambda a: a.pop("stride"), r"uniform stride \(uint\) is missing"),
        (lambda a: a.update(status=a["max_radii"]), r"buffer status is float32 \[9\]; its elements are of type uint"),
        (lambda a: a.update(radii=a["status"]), r"buffer radii is uint32 \[2\]; its elements are of type int"),
        (lambda a: a.update(max_radii=a["max_radii"].as_uint32), r"buffer maxRadii is uint32 \[9\]; its .* type float"),
        (lambda a: a.update(offset=-1), "uniform offset is -1; it must be an integer from 0 to 2³² - 1"),
        (lambda a: a.update(offset=1 << 32), "uniform offset is 4294967296; it must be an integer from 0"),
        (lambda a: a.update(offset=0.0), "uniform offset is 0.0; it must be an integer"),
        (lambda a: a.update(offset=False), "uniform offset is False; it must be an integer"),
        (lambda a: a.update(half_width=True), "uniform halfWidth is True; it must be a number"),
        (lambda a: a.update(half_width="2"), "uniform halfWidth is '2'; it must be a number"),
        (lambda a: a.update(offset=spy.uint2(0, 0)), "uniform offset is .*; it must be an integer"),
    ],
)
def test_mistakes(change: Change, message: str) -> None:
    arguments = _statistics()
    times_seen = arguments["times_seen"]
    change(arguments)
    with pytest.raises(BindingError, match=f"densify.addStatistics: {message}"):
        _dispatch(arguments)
    assert times_seen.numpy()[0] == 1


@dataclass(frozen=True)
class Grid:
    """A grid of tiles, with an array that the kernel's struct lacks, or without one of its numbers."""

    columns: int
    rows: int
    cameras: int
    tiles: Array


@dataclass(frozen=True)
class NarrowGrid:
    columns: int


def test_structs() -> None:
    """A dataclass has the fields of its struct."""
    bindings, array = Bindings.of("tiles", "findMaxTileCount"), get_device().memory.empty(4, np.uint32)

    def values(grid: object) -> Any:
        return bindings.values({"grid": grid, "tile_offsets": array, "max_tile_count": None})

    numbers, buffers = values(TileGrid(16, 2, 3, 4))
    assert numbers == {"grid_columns": 2, "grid_rows": 3, "grid_cameras": 4} and buffers == {"tileOffsets": array}
    # A specialisation may not read a struct at all.
    assert values(None)[0] == dict.fromkeys(numbers, 0)
    with pytest.raises(BindingError, match="grid is a Grid; its struct lacks tiles"):
        values(Grid(2, 3, 4, array))
    with pytest.raises(BindingError, match=r"grid is a NarrowGrid without rows, for grid\.rows"):
        values(NarrowGrid(2))
    with pytest.raises(BindingError, match=r"uniform grid\.rows is None; it must be an integer"):
        values(TileGrid(16, 2, cast(int, None), 4))


def test_a_mistake_is_the_librarys_and_not_its_users() -> None:
    assert not issubclass(BindingError, SplatError)


def test_elements_of_several_numbers() -> None:
    memory = get_device().memory
    bindings = Bindings.of("splat_rows", "packSplats")
    arguments = {"splats": None, "colors": None, "directions": 1}
    bindings.values(arguments | {"packed_splats": memory.empty((1, 12))})
    with pytest.raises(BindingError, match=r"buffer packedSplats is float32 \[10\]; its elements are of type float4"):
        bindings.values(arguments | {"packed_splats": memory.empty(10)})


def test_what_a_specialisation_switches_off_is_none() -> None:
    bindings = Bindings.of("tiles", "findTileOffsets")
    arguments = dict.fromkeys(bindings._parts)
    assert bindings.values(arguments)[1] == {}
    del arguments["isect_count"], arguments["tile_ids"]
    with pytest.raises(BindingError, match=r"buffer isectCount \(uint\) is missing, buffer tileIds \(uint\) is missing"):
        bindings.values(arguments)


def test_reflection_and_declarations_agree() -> None:
    session = get_device().handle.slang_session
    # One entry point of each module: reflection lists the globals of all.
    for module, entry in dict(entry_points()).items():
        loaded = session.load_module(f"kernels/{module}")
        layout = session.link_program([loaded], [loaded.entry_point(entry)]).layout
        assert _reflected(layout) == declared(f"kernels/{module}"), module


def _reflected(layout: spy.ProgramLayout) -> Globals:
    """The globals of a linked program."""
    kind = spy.TypeReflection.Kind
    buffers: dict[str, str] = {}
    uniforms: dict[str, str] = {}
    block: dict[str, str] = {}

    def add(name: str, variable: spy.TypeLayoutReflection) -> None:
        if variable.kind == kind.struct:
            for field in variable.fields:
                add(f"{name}.{field.name}", field.type_layout)
        elif variable.kind in (kind.scalar, kind.vector):
            uniforms[name] = _as_written(variable.type)
        else:
            buffers[name] = _as_written(variable.element_type_layout.type)

    for variable in layout.parameters:
        if variable.type_layout.kind == kind.constant_buffer:
            fields = variable.type_layout.element_type_layout.fields
            block = {field.name: _as_written(field.type_layout.type) for field in fields}
        else:
            add(variable.name, variable.type_layout)
    return Globals(buffers, uniforms | block)


def _as_written(kind: spy.TypeReflection) -> str:
    """The name of a scalar or vector type in Slang."""
    return re.sub(r"vector<(\w+), *(\d)>", r"\1\2", kind.full_name)


def test_a_kernel_is_read_once() -> None:
    kernels = get_device().kernels
    assert kernels.get("prefix_sum", "sumBlocks").bindings is kernels.get("prefix_sum", "sumBlocks").bindings
