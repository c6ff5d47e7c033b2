"""Parsing of Slang sources: small ones, made here, and the library's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from splat_py.base.errors import BindingError
from splat_py.gpu import sources
from splat_py.gpu.kernels import linear_groups, specialisation_source, specialising
from splat_py.gpu.sources import constant, declared, mentioned

_MODULES = {
    "kernels/parent": """
        /* import kernels.nothing; StructuredBuffer<float> commented; */
        import kernels.cpu.child;
        extern static const uint SIDE = 4;
        extern struct Way : IWay = First;
        static const int AREA = SIDE * SIDE + (2 << 1) - 9 / 3;  // static const int AREA = 1;
        static const float SMALL = -1e-3f;
        static const float TWELFTH = 1.0 / 12.0;
        static const uint2 PAIR = uint2(SIDE, 0x10u);
        static const int ODD = SIDE == 4 ? 1 : 2;

        struct Params
        {
            /// uint no;
            uint count;
            float rate;
            uint2 address;
        };
        ConstantBuffer<Params> params;

        StructuredBuffer<float> values;
        RWStructuredBuffer<Atomic<uint>> bits;
        RWStructuredBuffer<float4> rows;
        StructuredBuffer<float> unused;
        StructuredBuffer<int> size;

        struct Sink : ISink
        {
            uint first;
            void add(uint index) { rows[index] = 0.0; }
            void subtract(uint index) { unused[index]; }
            void begin() { unused[0]; }
            static uint size() { return size[0]; }
        };

        [BackwardDerivative(square_bwd)]
        float square(float x) { return x * x; }
        void square_bwd(inout DifferentialPair<float> x, float v) { bits[0].store(params.count); }

        [shader("compute")]
        [numthreads(SIDE, 1, 1)]
        void read(uint thread: SV_GroupIndex)
        {
            // unused
            printf("unused \\" // unused", values[thread] * params . rate);
            square(twice<uint>(thread).size);
        }

        void differentiate() { bwd_diff(square)(values[0], 1.0); }

        void sink() { Sink sink = { 0 }; fill<Sink>(sink); }
    """,
    "kernels/cpu/child": """
        public interface IWay { void go(); }
        public struct First : IWay { void go() {} }
        public struct Second : IWay { void go() {} }
        public RWStructuredBuffer<uint> counters;
        public float[2] twice<T>(T x, float rate[2]) { unused; return { counters[x], 0 }; }
        public void fill<Sink : ISink>(Sink sink) { sink.add(1); Sink.begin(); Sink.size(); }
        public static const int BASE = 7;
    """,
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in _MODULES.items():
        file = tmp_path / f"{name}.slang"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    monkeypatch.setattr(sources, "shader_folder", lambda: tmp_path)
    cached = (sources.scope, sources.declared, sources.mentioned)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.usefixtures("modules")
def test_constants() -> None:
    names = ("SIDE", "AREA", "SMALL", "TWELFTH", "PAIR", "BASE")
    assert [constant("kernels/parent", name) for name in names] == [4, 17, -1e-3, 1 / 12, (4, 16), 7]
    with pytest.raises(KeyError, match=r"kernels/parent\.slang knows no constant NONE"):
        constant("kernels/parent", "NONE")
    with pytest.raises(ValueError, match="ODD"):
        constant("kernels/parent", "ODD")
    # A module only knows the constants of modules that it imports.
    with pytest.raises(KeyError):
        constant("kernels/cpu/child", "SIDE")


@pytest.mark.usefixtures("modules")
def test_declared() -> None:
    found = declared("kernels/parent")
    assert found.uniforms == {"count": "uint", "rate": "float", "address": "uint2"}
    assert found.buffers == {
        "values": "float",
        "bits": "uint",
        "rows": "float4",
        "unused": "float",
        "size": "int",
        "counters": "uint",
    }
    assert declared("kernels/cpu/child").buffers == {"counters": "uint"}


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("entry", "buffers", "uniforms"),
    [
        # Through an imported function, which does not see its importer's names; not through a derivative that is never called.
        ("read", {"values": "float", "counters": "uint"}, {"rate": "float"}),
        ("differentiate", {"values": "float", "bits": "uint"}, {"count": "uint"}),
        # Through methods, if an imported function calls them; only static ones through a type.
        ("sink", {"rows": "float4", "size": "int"}, {}),
    ],
)
def test_mentioned(entry: str, buffers: dict[str, str], uniforms: dict[str, str]) -> None:
    found = mentioned("kernels/parent", entry)
    assert (found.buffers, found.uniforms) == (buffers, uniforms)
    assert mentioned("kernels/parent", entry) is found


@pytest.mark.usefixtures("modules")
def test_specialised_by_what_it_refers_to() -> None:
    # Constants in the size of its workgroup count. Unknown names are left for the error.
    given = {"SIDE": 8, "Way": "Second", "AREA": 3}
    assert specialising("parent", "read", given) == {"SIDE": 8, "AREA": 3}
    assert specialising("parent", "differentiate", given) == {"AREA": 3}


@pytest.mark.usefixtures("modules")
def test_specialisation() -> None:
    text = "export static const uint SIDE = 8;\n"
    assert specialisation_source("parent", {"SIDE": 8}) == text
    way = "export struct Way : IWay = Second;\n"
    assert specialisation_source("parent", {"Way": "Second", "SIDE": 8}) == f"import kernels.cpu.child;\n{text}{way}"
    with pytest.raises(BindingError, match="parent: there is no constant AREA to specialise; there are SIDE, Way"):
        specialisation_source("parent", {"AREA": 8})


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SIDE", "8; } void stolen() { *(uint*)0 = 1;"),
        ("SIDE", True),
        ("SIDE", -1),
        ("SIDE", 1.0),
        ("SIDE", None),
        ("SIDE", 1 << 32),
        ("Way", "Second; export struct Other : IWay = First"),
        ("Way", "IWay"),
        ("Way", "Sink"),
        ("Way", "go"),
        ("Way", 3),
    ],
)
def test_specialisation_takes_numbers_and_names_of_types_and_nothing_else(name: str, value: object) -> None:
    with pytest.raises(BindingError, match=f"parent: {name} is .*; it must be"):
        specialisation_source("parent", {name: value})


@pytest.mark.parametrize("value", ["PerPixel", "PerWave", "PerGroup", "PerIntersection"])
def test_a_type_or_its_alias(value: str) -> None:
    source = specialisation_source("project", {"Accumulation": value, "ANTIALIASED": True})
    assert "import parallel.gradient_accumulation;" in source
    assert f"Accumulation : IAccumulation = {value};" in source
    with pytest.raises(BindingError, match=r"project: ANTIALIASED is 'true; .*'; it must be of type bool"):
        specialisation_source("project", {"ANTIALIASED": "true; export static const int X = 1"})


def test_the_forward_pass_knows_no_directions() -> None:
    assert specialising("rasterize", "rasterizeForward", {"DIRECTIONS": 4, "CHANNELS": 1}) == {"CHANNELS": 1}


def test_the_librarys_own_constants() -> None:
    assert constant("kernels/prefix_sum", "BLOCK") == 2048
    assert constant("parallel/short_list", "SHORT_LIST_THREADS") == 32
    assert linear_groups(constant("parallel/threads", "THREADS") + 1) == (2, 1, 1)
