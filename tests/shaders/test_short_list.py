"""slang/parallel/short_list.slang: a workgroup's list, stage by stage."""

import itertools
from functools import partial

import numpy as np
import pytest
import slangpy as spy

from splat_py.gpu.device import get_device
from tests.shaders.kernels import dispatch
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
    """The list that a workgroup makes from blobs first … end - 1 with hits = 2 (1: near, but no overlap)."""
    left = dispatch(
        KERNEL.replace("STAGES", "\n    ".join(STAGES.values())),
        "makeList",
        1,
        params={"first": first, "end": end, "fromEnd": int(from_end)},
        hits=hits.astype(np.uint32),
        result=np.zeros(3 + SIZE, np.uint32),
    )
    count, low, high, *blobs = (int(x) for x in left["result"])
    return blobs[:count], (low, high)


@pytest.mark.parametrize("count", [0, 1, 2, 31, 33, 700, 1024])
@pytest.mark.parametrize("from_end", [False, True])
def test_all_fit(count: int, from_end: bool) -> None:
    """The list is in order for any number of blobs, without blobs that are only near."""
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


@pytest.mark.parametrize("order", itertools.permutations(STAGES), ids=" ".join)
def test_the_wrong_order_does_not_compile(order: tuple[str, ...]) -> None:
    """Each stage is called with the previous result, which has the wrong type."""
    names, stages = "abcd", list(STAGES)
    lines = []
    for position, stage in enumerate(order):
        index = stages.index(stage)
        line = STAGES[stage].replace(f" {names[index]} = ", f" {names[position]} = ")
        lines.append(line.replace(f"({names[max(index - 1, 0)]}", f"({names[max(position - 1, 0)]}"))
    load = partial(get_device().handle.load_module_from_source, "order_" + "_".join(order))
    source = KERNEL.replace("STAGES", "\n    ".join(lines))
    if list(order) == stages:
        load(source)
        return
    with pytest.raises(spy.SlangCompileError, match="error"):
        load(source)
