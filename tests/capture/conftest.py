"""Photographs of a room, the capture that `capture` makes from them, and copies of both to be changed."""

import shutil
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


@pytest.fixture
def source(photographs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(photographs, tmp_path / "photos"))


@pytest.fixture
def scene(report: CaptureReport, tmp_path: Path) -> Path:
    return Path(shutil.copytree(report.root, tmp_path / "scene"))
