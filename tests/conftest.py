"""Fixtures every test may use."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.two_rooms import write_two_rooms
from splat_py import Dataset, load_dataset
from splat_py.demo.scene import write_demo_scene

# Folders whose tests run in one process, files whose tests need not, and those of both that take longest.
TOGETHER = ("metal", "cuda")
APART = ("test_notebooks.py", "fuzz/test_readers.py")
LONGEST = ("tests/metal/", "tests/cuda/", "test_notebooks.py", "test_selftest.py", "volume/test_march.py")
# Beginnings of the names of tests that `make test` leaves to `make full`.
LONG = tuple(Path(__file__).with_name("long.txt").read_text(encoding="utf-8").splitlines())


def pytest_configure() -> None:
    # Background jobs of scripts begin with SIGINT ignored. Tests send it, and wait for what it does.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def group_of(nodeid: str) -> str:
    """The tests that one process of several runs: a file's, a folder's whose tests share programs, or a single one."""
    name, _, _ = nodeid.removeprefix("tests/").partition("::")
    if name in APART:
        return nodeid
    return next((folder for folder in TOGETHER if name.startswith(f"{folder}/")), name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of long.txt, and begin with those that take longest."""
    for item in items:
        if item.nodeid.startswith(LONG):
            item.add_marker("long")
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: min((place for name, place in order.items() if name in item.nodeid), default=len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Divide the tests among the processes by groups, in order."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return ByGroup(config, log)


@pytest.fixture
def dynamo() -> Iterator[Any]:
    """torch's compiler, without graphs of other tests."""
    dynamo = pytest.importorskip("torch._dynamo")
    dynamo.reset()
    yield dynamo
    dynamo.reset()


@pytest.fixture
def deterministic_torch() -> Iterator[Callable[..., None]]:
    """`torch.use_deterministic_algorithms` for one test."""
    torch = pytest.importorskip("torch")
    yield torch.use_deterministic_algorithms
    torch.use_deterministic_algorithms(False)


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
def dataset(request: pytest.FixtureRequest, capture: Path) -> Dataset:
    """The capture as a dataset; a module's `LOADED` gives options."""
    return load_dataset(capture, **getattr(request.module, "LOADED", {}))


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_two_rooms(tmp_path_factory.mktemp("rooms") / "data", views=24, size=32)
