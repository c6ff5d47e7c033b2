"""A small capture, and a run on it."""

from pathlib import Path

import pytest

from splat_py.demo.scene import write_demo_scene
from tests.commands.program import done


@pytest.fixture(scope="session")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_scene(tmp_path_factory.mktemp("capture") / "demo", views=9, size=32)


@pytest.fixture(scope="session")
def run(capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `splat train` leaves."""
    folder = tmp_path_factory.mktemp("elsewhere")
    assert "PSNR" in done("train", capture, "--steps", 20, "--test-split", "first", "--out", "runs/small", cwd=folder)
    return folder / "runs" / "small"
