"""The command line as a user meets it: run from another folder, with its output and exit code."""

import io
import os
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

# These set environment variables on import, which commands do late.
import splat_py.train.run
import splat_py.volume.fitting  # noqa: F401
from splat_py.commands.main import main


class Result(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def splat(*arguments: object, cwd: Path, **environment: str) -> Result:
    """Run a command in this process, whose device is already open. The command must leave the environment unchanged."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["splat", *map(str, arguments)])
        patch.setattr(warnings, "showwarning", warnings.showwarning)
        patch.setenv("COLUMNS", "200")
        for name, value in environment.items():
            patch.setenv(name, value)
        before = dict(os.environ)
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        assert dict(os.environ) == before
    return Result(code, out.getvalue(), err.getvalue())


def done(*arguments: object, cwd: Path, **environment: str) -> str:
    result = splat(*arguments, cwd=cwd, **environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def refusal(*arguments: object, cwd: Path, **environment: str) -> str:
    result = splat(*arguments, cwd=cwd, **environment)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("splat: ")]
    assert len(lines) == 1, result.stderr
    return lines[0]
