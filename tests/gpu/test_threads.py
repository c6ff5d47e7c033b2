"""Torch's threads beside a driver in software: more than the cores, so that they sleep; a number of the user's own stays."""

import os

import psutil
import pytest
import torch

from splat_py.gpu import device

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count() or 1


VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS")
CHOSEN = [(variable, CORES, CORES) for variable in VARIABLES]


@pytest.mark.parametrize(
    ("variable", "threads", "expected"), [(None, CORES, CORES + 1), (None, CORES + 2, CORES + 2), *CHOSEN], ids=str
)
def test_threads_sleep_unless_the_user_has_chosen(
    variable: str | None, threads: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, "1")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        device._let_threads_sleep()
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)
