"""A capture that is killed and run again ends as one that nobody interrupted; every file is whole or absent."""

import itertools
import json
import os
import platform
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pycolmap", reason="needs pycolmap: pip install 'slang-splat[capture]'")

from splat_py import load_dataset
from splat_py.capture import capture
from splat_py.capture.colmap import features_of, matches_of
from splat_py.fit.process import signals_as_interrupts
from splat_py.scene.sources import find_model
from tests.capture.conftest import FAST
from tests.capture.room import room_cameras, write_photographs
from tests.faults.forks import children_seconds, do_and_exit, forked, killed_after, output_of

# Kills in total; `make soak` sets SOAK_STEPS.
KILLS = 60 if "SOAK_STEPS" in os.environ else 8
QUICK = replace(FAST, features=400)
STOPPED = {-signal.SIGKILL, 1}


def run(source: Path, out: Path) -> None:
    with suppress(KeyboardInterrupt), signals_as_interrupts():
        capture(source, out, QUICK)
        return
    os._exit(1)


def check_files(source: Path, out: Path) -> None:
    for path in out.glob("images/[!.]*.jpg"):
        assert path.read_bytes() == (source / path.name).read_bytes()
    if (out / "capture.json").exists():
        json.loads((out / "capture.json").read_text())
    if find_model(out):
        assert len(load_dataset(out)) == 5


def was_killed(seconds: float, number: int, source: Path, out: Path) -> bool:
    """Signal a capture after so many seconds of processor time; True if it had not ended."""
    code = os.waitstatus_to_exitcode(killed_after(seconds, forked(lambda: run(source, out)), number))
    check_files(source, out)
    assert code in {0, *STOPPED}, code
    return code in STOPPED


def main(root: Path) -> None:
    source = write_photographs(root / "photographs", room_cameras(5))
    straight = root / "straight"
    before = children_seconds()
    assert not was_killed(1e9, signal.SIGKILL, source, straight)
    seconds = children_seconds() - before
    record = json.loads((straight / "capture.json").read_text())
    signals, runs = itertools.cycle((signal.SIGKILL, signal.SIGTERM)), itertools.count()
    out = root / "run 0"
    for kill in range(KILLS):
        number = next(signals)
        # Processes that resume have less left to do.
        share = (kill + 0.5) / KILLS * (1.0 if not out.exists() else 0.4)
        if was_killed(share * seconds, number, source, out):
            print(f"killed by {number} after {share:.2f} of the time", flush=True)
        if kill % 2:
            run(source, out)
            again = json.loads((out / "capture.json").read_text())
            for name in ("photographs", "unreadable", "left_out"):
                assert again[name] == record[name]
            assert again["found"]["registered"] == record["found"]["registered"]
            for count in (features_of, matches_of):
                assert count(out / "database.db").keys() == count(straight / "database.db").keys()
            names = [{path.relative_to(folder) for path in folder.rglob("*")} for folder in (out, straight)]
            assert names[0] == names[1], names[0] ^ names[1]
            out = root / f"run {next(runs) + 1}"


@pytest.mark.skipif(platform.system() != "Linux", reason="elsewhere, processes cannot be forked with all libraries loaded")
def test_kills_of_a_capture(tmp_path: Path) -> None:
    printed = output_of("tests.faults.test_capture_kills", tmp_path)
    print(printed)
    assert printed.count("killed") >= 0.5 * KILLS


if __name__ == "__main__":
    do_and_exit(lambda: main(Path(sys.argv[1])))
