"""What stands between the compiler's WGSL and those who read it."""

from __future__ import annotations

import re

_NEGATION = re.compile(r"\(vec[234]<f32>\(0\) - ")


def negated_sums(source: str) -> list[str]:
    """Where the compiler has lost the brackets of a negated sum of vectors, so that -(a + b) is `(vec2<f32>(0) - a + b)`: Slang
    2026.5 and 2026.12 do.

    In Slang, -a - b says the same and arrives.
    """
    found = []
    for negation in _NEGATION.finditer(source):
        depth, is_sum, end = 0, False, negation.end()
        while depth >= 0:
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(source[end], 0)
            is_sum |= depth == 0 and source[end : end + 3] in (" + ", " - ")
            end += 1
        if is_sum:
            found.append(source[negation.end() : end - 1])
    return found


# What naga 29 does not know of the standard, and what it knows instead. Each is checked in test_wgsl.py.
_ENABLE = "enable subgroups;"
_SIGNED_LANE = re.compile(r"(subgroupShuffle\([^;]*, )i32\(")
_SIGNED_VARIABLE = re.compile(r"(subgroupShuffle\([^;]*, )(\w+)\)")
_ELECT = "subgroupElect()"
_ELECTED = "fn subgroupElect() -> bool { return subgroupExclusiveAdd(1u) == 0u; }\n"


def for_naga(source: str) -> str:
    """The same for naga, the validator in wgpu: it needs no word to enable subgroups, numbers lanes without a sign, and has to
    be told who is the first lane."""
    source = _SIGNED_LANE.sub(r"\1u32(", source.replace(_ENABLE, ""))
    source = _SIGNED_VARIABLE.sub(r"\1u32(\2))", source)
    return _ELECTED + source if _ELECT in source else source
