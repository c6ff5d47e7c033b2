"""Damaged Slang files of a user's own: `shaders.load` refuses them with a SplatError that names the file, or compiles them."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from splat_py import shaders
from splat_py.errors import SplatError
from tests.fuzz.mutations import damaged_bytes
from tests.fuzz.test_readers import FACTOR, SEED, time_limit

CASES = 60
SOURCE = """import splat.gaussian;

public struct Blob : IDifferentiable { public float3 mean; public float[2] rates; }

[Differentiable]
public float energy(Blob blob, float x, no_diff uint n)
{
    float sum = 0.0;
    [MaxIters(4)]
    for (uint i = 0; i < n; i++)
        sum += dot(blob.mean, blob.mean) * x + blob.rates[i & 1];
    return sigmoid(sum);
}

public T twice<T : IArithmetic>(T x) { return x + x; }
"""
WORDS = ("", "(", "}", ";", "<", "float", "float3", "uint", "struct", "import", "nothing", "0", "1e999", "=", "->", "[", "😀")


def damaged(random: Random) -> bytes:
    if random.random() < 0.3:
        return damaged_bytes(SOURCE.encode(), random)
    tokens = re.findall(r"\w+|\s+|\S", SOURCE)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(tokens))
        tokens[at] = random.choice((*WORDS, random.choice(tokens)))
    return "".join(tokens).encode()


def test_damaged_sources(tmp_path: Path) -> None:
    # Not in anybody's five seconds.
    repr(shaders.gaussian)
    refused = 0
    for case in range(int(CASES * FACTOR)):
        file = tmp_path / f"case_{case}.slang"
        file.write_bytes(damaged(Random(f"{SEED} {case}")))
        try:
            with time_limit():
                repr(shaders.load(file))
        except SplatError as error:
            refused += 1
            assert file.name in str(error)  # noqa: PT017
    assert 0 < refused < CASES * FACTOR


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"public float f(float x) { return y; }", "cannot be compiled: line 1: undefined identifier"),
        (b"\n\nimport nothing;", r"cannot be compiled: line 3: cannot open file 'nothing\.slang'"),
        (b"\xff\xfe", "cannot be read"),
        (None, "does not exist or is not a file; name a Slang file"),
    ],
)
def test_what_is_wrong_is_said(source: bytes | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "own.slang"
    if source is not None:
        file.write_bytes(source)
    with pytest.raises(SplatError, match=rf"own\.slang {message}"):
        shaders.load(file)
