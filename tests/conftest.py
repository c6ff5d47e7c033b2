"""Fixtures every test may use."""

import signal
from pathlib import Path

import pytest

from benchmarks.two_rooms import write_two_rooms
from splat_py import Dataset, load_dataset
from splat_py.demo.scene import write_demo_scene

# Folders whose tests run in one process, files whose tests need not, and those of both that take longest.
TOGETHER = ("metal", "cuda")
APART = ("test_notebooks.py", "fuzz/test_readers.py")
LONGEST = ("metal", "cuda", "test_notebooks.py", "commands/selftest/test_selftest.py", "volume/test_march.py")


def pytest_configure() -> None:
    # Background jobs of scripts begin with SIGINT ignored. Tests send it, and wait for what it does.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Before xdist reads the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let one process of several run a whole file, or a folder whose tests share programs; begin with the longest."""
    tests = Path(__file__).parent

    def group(item: pytest.Item) -> str:
        name = item.path.relative_to(tests).as_posix()
        return next((folder for folder in TOGETHER if name.startswith(f"{folder}/")), name)

    items.sort(key=lambda item: LONGEST.index(group(item)) if group(item) in LONGEST else len(LONGEST))
    for item in items:
        apart = item.name if group(item) in APART else ""
        item.add_marker(pytest.mark.xdist_group(group(item) + apart))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real captures beside the checkout; tests that need it skip where it is absent."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the captures in ../shared/data, which are not part of the project")
    return folder


@pytest.fixture(scope="module")
def capture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's scene; the module's `CAPTURE` gives the number of views and their size."""
    views, size = request.module.CAPTURE
    return write_demo_scene(tmp_path_factory.mktemp("capture") / "demo", views=views, size=size)


@pytest.fixture(scope="module")
def dataset(capture: Path) -> Dataset:
    return load_dataset(capture)


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_two_rooms(tmp_path_factory.mktemp("rooms") / "data", views=24, size=32)
