"""slang/parallel/short_list.slang: a workgroup's list, stage by stage."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import slangpy as spy

from splat_py.gpu.device import get_device
from tests.shaders.oracle import Array

RNG = np.random.default_rng(31)
SIZE = 1024

STAGES = {
    "init": "InitializedShortList a = initShortList(thread);",
    "coarse": "FilledShortList b = coarseRasterize<Boxes>(a, boxes, tile, within, params.fromEnd != 0, thread, covered);",
    "pad": "PaddedShortList c = padShortList(b, thread);",
    "sort": "SortedShortList d = bitonicSort(c, thread);",
}

KERNEL = """
import splat.blob2d;
import parallel.short_list;

struct Params { uint first; uint end; uint fromEnd; };
ConstantBuffer<Params> params;
StructuredBuffer<uint> hits;
RWStructuredBuffer<uint> result;

struct Boxes : IBlobBoxes
{
    OrientedBox box(uint blob)
    {
        OrientedBox b = { float2(0.0), float2(1.0, 0.0), float2(hits[blob] == 2 ? 1.0 : -1e30) };
        return b;
    }
    bool isNear(uint blob, Rectangle rectangle) { return hits[blob] != 0; }
};

[shader("compute")]
[numthreads(SHORT_LIST_THREADS, 1, 1)]
void makeList(uint thread: SV_GroupIndex)
{
    Boxes boxes;
    Rectangle tile = { float2(0.0), float2(1.0) };
    Span within = { params.first, params.end };
    Span covered;
    STAGES
    if (thread == 0)
    {
        result[0] = shortListSize();
        result[1] = covered.first;
        result[2] = covered.end;
    }
    for (uint i = thread; i < shortListSize(); i += SHORT_LIST_THREADS)
        result[3 + i] = blobInShortList(d, i);
}
"""


def list_of(hits: Array, first: int, end: int, from_end: bool) -> tuple[list[int], tuple[int, int]]:
    """The list that a workgroup makes of those blobs of first … end - 1 with hits = 2 (1: near, but no overlap)."""
    device = get_device()
    source = KERNEL.replace("STAGES", "\n    ".join(STAGES.values()))
    name = "short_list_test"
    module = device.handle.load_module_from_source(name, source)
    program = device.handle.link_program([module], [module.entry_point("makeList")])
    pipeline = device.handle.create_compute_pipeline(program)
    result = device.memory.array(np.zeros(3 + SIZE, np.uint32))
    encoder = device.handle.create_command_encoder()
    with encoder.begin_compute_pass() as compute:
        cursor = spy.ShaderCursor(compute.bind_pipeline(pipeline))
        cursor["params"] = {"first": first, "end": end, "fromEnd": int(from_end)}
        cursor["hits"] = device.memory.array(hits.astype(np.uint32)).buffer
        cursor["result"] = result.buffer
        compute.dispatch_compute(spy.uint3(1, 1, 1))
    device.handle.wait_for_submit(device.handle.submit_command_buffer(encoder.finish()))
    count, low, high, *blobs = (int(x) for x in result.numpy())
    return blobs[:count], (low, high)


@pytest.mark.parametrize("count", [0, 1, 2, 31, 33, 700, 1024])
@pytest.mark.parametrize("from_end", [False, True])
def test_all_fit(count: int, from_end: bool) -> None:
    """In order, whatever the number, and those that are only near are not in it."""
    hits = np.zeros(1500, int)
    chosen = np.sort(RNG.choice(1024, count, replace=False)) + 200
    hits[RNG.choice(1500, 700)] = 1
    hits[chosen] = 2
    blobs, covered = list_of(hits, 200, 1224, from_end)
    assert blobs == list(chosen)
    assert covered == (200, 1224)


@pytest.mark.parametrize("from_end", [False, True])
def test_several_parts_make_the_whole(from_end: bool) -> None:
    hits = np.where(RNG.uniform(size=5000) < 0.6, 2, 1)
    first, end, parts = 0, 5000, []
    while first < end:
        blobs, covered = list_of(hits, first, end, from_end)
        assert blobs == [b for b in range(*covered) if hits[b] == 2]
        assert len(blobs) > SIZE - 256 or covered == (first, end)
        parts.append(blobs)
        if from_end:
            assert covered[1] == end
            end = covered[0]
        else:
            assert covered[0] == first
            first = covered[1]
    assert len(parts) > 2
    assert sorted(itertools.chain(*parts)) == list(np.flatnonzero(hits == 2))


@pytest.mark.parametrize(
    "order",
    [order for order in itertools.permutations(STAGES) if order != tuple(STAGES)],
    ids=lambda order: " ".join(order),
)
def test_the_wrong_order_does_not_compile(order: tuple[str, ...]) -> None:
    """Each stage is called with what the one before it has returned; the types know better."""
    names = "abcd"
    lines = []
    for position, stage in enumerate(order):
        right = names[list(STAGES).index(stage)]
        before = names[max(list(STAGES).index(stage) - 1, 0)]
        line = STAGES[stage].replace(f" {right} = ", f" {names[position]} = ")
        lines.append(line.replace(f"({before}", f"({names[max(position - 1, 0)]}"))
    source = KERNEL.replace("STAGES", "\n    ".join(lines))
    with pytest.raises(spy.SlangCompileError, match="error"):
        get_device().handle.load_module_from_source("wrong_" + "_".join(order), source)


def test_a_stage_left_out_does_not_compile() -> None:
    """Slang says which state it wants and which it was given."""
    unsorted = STAGES["sort"].replace("bitonicSort(c", "bitonicSort(b")
    lines = [STAGES["init"], STAGES["coarse"], unsorted]
    with pytest.raises(spy.SlangCompileError) as error:
        get_device().handle.load_module_from_source("unpadded", KERNEL.replace("STAGES", "\n    ".join(lines)))
    assert "FilledShortList" in str(error.value) and "PaddedShortList" in str(error.value)
