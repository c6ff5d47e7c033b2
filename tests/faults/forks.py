"""Processes that are forked, processes that kill themselves at a call, and the configuration of killed runs."""

import os
import signal
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from splat_py.train.config import TrainConfig

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
