"""slang/splat/pixels.slang."""

from __future__ import annotations

import numpy as np

from splat_py import shaders
from tests.shaders.oracle import assert_value

SOURCE = """
import splat.pixels;

public float4 places(float2 first, float2 offset, bool inside)
{
    Pixels<2> pixels = { first, { float2(0.0), offset }, { true, inside } };
    Pixels<1> second = pixels.only(1);
    return float4(pixels.position(1), second.position(0)) * (second.inside[0] ? 1.0 : -1.0);
}
"""


def test_one_of_them_is_where_it_was() -> None:
    places = shaders.source(SOURCE).places
    first, offset = np.array([[10.5, 3.5], [0.5, 7.5]]), np.array([[1.0, 2.0], [3.0, 0.0]])
    expected = np.concatenate([first + offset] * 2, axis=1)
    assert_value(places(first, offset, True), expected)
    assert_value(places(first, offset, False), -expected)
