"""Processes that are forked or killed, and the configuration of killed runs."""

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import psutil

from splat_py.train.config import TrainConfig

ROOT = Path(__file__).resolve().parents[2]

# Few Gaussians, whose gradients add up in a fixed order.
SMALL = TrainConfig(sh_degree=0, init="random", densify_start=1, accumulate="pair")


def forked(work: Callable[[], Any]) -> int:
    """Fork a process that runs `work` and exits; return its id."""
    pid = os.fork()
    if pid == 0:
        do_and_exit(work)
    return pid


def do_and_exit(work: Callable[[], Any]) -> NoReturn:
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def die_at(owner: Any, name: str, late: int) -> None:
    function = getattr(owner, name)

    def dying(*arguments: Any, **options: Any) -> None:
        if late:
            function(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, dying)


def killed_after(seconds: float, pid: int, number: int = signal.SIGKILL) -> int:
    """Signal a process after so many seconds of processor time, which hardly depends on other processes; return its status."""
    process, status = psutil.Process(pid), (0, 0)
    while status[0] == 0:
        if cpu_seconds(process) >= seconds:
            os.kill(pid, number)
            return os.waitpid(pid, 0)[1]
        time.sleep(0.002)
        status = os.waitpid(pid, os.WNOHANG)
    return status[1]


def cpu_seconds(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        times = process.cpu_times()
        return times.user + times.system
    return 0.0


def children_seconds() -> float:
    """Processor time of all processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def output_of(module: str, *arguments: object, **environment: str) -> str:
    """Run a module of the tests as a program; return its output."""
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    own = os.environ | paths | environment
    process = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout
