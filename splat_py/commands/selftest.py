"""`splat selftest`: a table of the cases, and a JSON file to attach to an issue."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from splat_py.commands.terminal import console

if TYPE_CHECKING:
    from splat_py.selftest.checking import Outcome, SelfTest


@dataclass
class SelfTestCommand:
    """Run every kernel once on this machine's device, and compare with stored results of double precision.

    The first time, kernels are compiled: without a GPU that keeps one processor core busy for two to three minutes. Later, all
    of this takes ten to twenty seconds there. Prints a line a case: by how much its worst number is off, relative to the
    reference, and by how much it may be. The exit code is 1 if a case failed.
    The file --out has the same, versions, what the device says of itself and a few timings, but no names and no paths: please
    attach it to an issue, whether or not all is well, above all from an Apple GPU. On a Mac both ways to its GPU are tested,
    metal and mps, unless --device names one.

    Example: splat selftest --out mac.json
    """

    # Write the results here, as JSON.
    out: Path = Path("splat-selftest.json")
    # metal, mps, cuda, vulkan or software; see `splat devices`.
    device: str | None = None

    def run(self) -> None:
        """Run with a progress bar, print a table, write the file."""
        from splat_py.files import require_writable
        from splat_py.gpu.device import get_device
        from splat_py.selftest.checking import SelfTest, save
        from splat_py.selftest.ways import ways

        require_writable(self.out)
        names, skipped = ways(self.device)
        tests = [SelfTest(get_device(name)) for name in names]
        for test in tests:
            _run(test)
        save(self.out, tests, skipped)
        for name, reason in skipped.items():
            console.print(f"{name} was not tested: {reason}", soft_wrap=True)
        outcomes = [outcome for test in tests for outcome in test.outcomes]
        failed = sum(outcome.verdict == "FAILED" for outcome in outcomes)
        verdict = f"{failed} of {len(outcomes)} cases FAILED" if failed else "all is well"
        console.print(f"{verdict}; the results are in {self.out}", soft_wrap=True)
        if failed:
            sys.exit(1)


def _run(test: SelfTest) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    adapter = test.device.adapter
    console.print(f"{adapter.name} ({adapter.backend})")
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(test.cases))
        for outcome in test.run():
            progress.update(task, advance=1, description=outcome.name)
        for name in test.measure():
            progress.update(task, description=f"timing: {name}")
    _print_outcomes(test)
    _print_timings(test)


def _print_outcomes(test: SelfTest) -> None:
    from rich.table import Table

    table = Table("case", "worst error", "allowed", "", "ms")
    for outcome in test.outcomes:
        error = "" if outcome.error is None else f"{outcome.error:.1e} {outcome.worst}"
        style = "red" if outcome.verdict == "FAILED" else None
        table.add_row(outcome.name, error, _allowed(outcome), outcome.verdict, f"{outcome.milliseconds:.0f}", style=style)
    console.print(table)
    for outcome in test.outcomes:
        if outcome.reason:
            console.print(f"{outcome.name}: {outcome.verdict}: {outcome.reason}", soft_wrap=True)


def _allowed(outcome: Outcome) -> str:
    if outcome.error is None:
        return ""
    return f"{outcome.allowed:.0e}" if outcome.allowed else "exact"


def _print_timings(test: SelfTest) -> None:
    from rich.table import Table

    table = Table("median of 7", "ms")
    for name, milliseconds in test.timings.items():
        table.add_row(name, f"{milliseconds:.2f}")
    if test.timings:
        console.print(table)
