"""Damaged files: every reader refuses them with a SplatError, or makes a valid object of them, within time and memory.

Cases are numbered and depend on their number alone. `make fuzz` runs many more than `make test`.
"""

from __future__ import annotations

import os
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

from splat_py.errors import SplatError
from tests.fuzz.readers import READERS

SECONDS = 5
# Of a reader over all its cases: of memory in use, and of what one may ask for.
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
    """Linux only: elsewhere the kernel does not keep to it."""
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
    assert 0.2 < len(refusals) / (reader.cases * FACTOR) < 1, "damage is noticed, and is not all there is"


def test_there_are_ten_thousand_cases() -> None:
    assert sum(reader.cases for reader in READERS.values()) >= 10_000
