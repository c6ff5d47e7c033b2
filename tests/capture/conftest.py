"""Photographs of a room, and the capture that `capture` makes from them."""

from pathlib import Path

import pytest

from splat_py.capture import CaptureOptions, CaptureReport, capture
from tests.capture.room import room_cameras, write_photographs

# Small photographs have no more features.
FAST = CaptureOptions(features=600)


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photographs(tmp_path_factory.mktemp("room") / "photographs", room_cameras())


@pytest.fixture(scope="session")
def report(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> CaptureReport:
    return capture(photographs, tmp_path_factory.mktemp("captured") / "scene", FAST)
