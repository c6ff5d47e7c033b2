"""Damaged files: every reader refuses them with a SplatError, or makes a valid object from them, within time and memory; and
`shaders.load` refuses damaged Slang, naming the file, or compiles it.

Cases are numbered and depend on their number alone. `make fuzz` runs many more than `make test`.
"""

import os
import re
import resource
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType

import pytest

from splat_py import shaders
from splat_py.base.errors import SplatError
from tests.fuzz.mutations import damaged_bytes
from tests.fuzz.readers import READERS
from tests.refusals import refused

SECONDS = 5
# Limits for a reader over all its cases: growth of the memory in use, and memory that one case may allocate.
MOST_GROWTH, MOST_ALLOCATED = 512 << 20, 2 << 30
FACTOR = float(os.environ.get("FUZZ_FACTOR", "1"))
SEED = os.environ.get("FUZZ_SEED", "0")


@contextmanager
def time_limit() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def memory_limit() -> Iterator[None]:
    """Limit the memory, on Linux only: other kernels do not enforce it."""
    if sys.platform != "linux":
        yield
        return
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_ALLOCATED, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.parametrize("name", READERS)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    if name == "HEIC":
        pytest.importorskip("pillow_heif", reason="needs pillow-heif: pip install 'slang-splat[capture]'")
    reader = READERS[name]
    refusals: list[str] = []
    peak = peak_bytes()
    for case in range(int(reader.cases * FACTOR)):
        folder = tmp_path / str(case % 2)
        folder.mkdir(exist_ok=True)
        reader.write(folder, Random(f"{SEED} {name} {case}"))
        try:
            with warnings.catch_warnings(), time_limit(), memory_limit():
                warnings.simplefilter("ignore")
                reader.read(folder)
        except SplatError as error:
            refusals.append(str(error))
        except BaseException as error:
            kept = Path(shutil.copytree(folder, tmp_path / f"case-{case}"))
            pytest.fail(f"{name}, FUZZ_SEED={SEED}, case {case}, files in {kept}: {type(error).__name__}: {error}")
    assert peak_bytes() - peak < MOST_GROWTH
    unclear = [message for message in refusals if "\n" in message or len(message) > 1000]
    assert not unclear
    assert 0.2 < len(refusals) / (reader.cases * FACTOR) < 1, "damage is noticed, and not all cases are refused"


SLANG_CASES = 60
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


def damaged_source(random: Random) -> bytes:
    if random.random() < 0.3:
        return damaged_bytes(SOURCE.encode(), random)
    tokens = re.findall(r"\w+|\s+|\S", SOURCE)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(tokens))
        tokens[at] = random.choice((*WORDS, random.choice(tokens)))
    return "".join(tokens).encode()


def test_damaged_sources(tmp_path: Path) -> None:
    # Outside the five seconds that a case has.
    repr(shaders.gaussian)
    refused = 0
    for case in range(int(SLANG_CASES * FACTOR)):
        file = tmp_path / f"case_{case}.slang"
        file.write_bytes(damaged_source(Random(f"{SEED} {case}")))
        try:
            with time_limit():
                repr(shaders.load(file))
        except SplatError as error:
            refused += 1
            assert file.name in str(error)  # noqa: PT017
    assert 0 < refused < SLANG_CASES * FACTOR


def test_code_in_comments_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "own.slang"
    file.write_text("// if (x > 0) {\npublic float f(float x) { return x; } // for (\n")
    assert shaders.load(file).f(3.0) == 3.0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"public float f(float x) { return y; }", "cannot be compiled: line 1: undefined identifier"),
        (b"[Differentiable]\nvoid f()\n{ for (int i = (0; i < 3; i++) {} }", r"cannot be compiled: line 3: \( is not closed"),
        (b"float f()\n{ return 1;\n", r"cannot be compiled: line 2: \{ is not closed"),
        (b"struct float3 : IDifferentiable { float x; }", "cannot be compiled: line 1: float3 is a built-in type's name"),
        (b"\n\nimport nothing;", r"cannot be compiled: line 3: cannot open file 'nothing\.slang'"),
        (b"\xff\xfe", "cannot be read"),
        (None, "does not exist or is not a file; name a Slang file"),
    ],
)
def test_what_is_wrong_is_said(source: bytes | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "own.slang"
    if source is not None:
        file.write_bytes(source)
    refused(rf"own\.slang {message}", shaders.load, file)
