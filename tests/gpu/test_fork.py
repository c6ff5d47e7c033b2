"""A device does not survive a fork, and says so."""

from __future__ import annotations

import os

import pytest

from splat_py.errors import SplatError
from splat_py.gpu.device import get_device


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_to_be_spawned() -> None:
    device = get_device()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        for use in (get_device, device.record):
            try:
                use()
            except SplatError as error:
                os.write(writing, str(error).encode() + b"\n")
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as said:
        assert said.read().count("forked from one that had opened the device, and cannot use it; start processes with") == 2
    device.record().submit()
