"""Fixtures of the folders that emulate one language each; their conftest.py imports them."""

import pytest

from splat_py.gpu import device as devices
from tests.emulation.compiler import Compiler, find_clang
from tests.emulation.device import EmulatedDevice
from tests.emulation.programs import Programs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the test that everything has run last."""
    items.sort(key=lambda item: item.path.name == "test_run_everything.py")


@pytest.fixture(scope="session")
def clang() -> str:
    return find_clang()


@pytest.fixture(scope="session")
def programs(compiler: Compiler) -> Programs:
    return Programs(compiler)


@pytest.fixture(scope="session")
def native() -> devices.Device:
    try:
        return devices.get_device()
    except devices.NoDeviceError as error:
        pytest.skip(f"needs a device of the machine's own: {error}")


def skip_unless_all_run(request: pytest.FixtureRequest) -> None:
    """Skip the test that everything has run unless all tests of its folder run in one process."""
    folder = request.path.parent
    files = {path.name for path in folder.glob("test_run_*.py")}
    chosen = request.config.getoption("keyword") or request.config.getoption("markexpr")
    if chosen or not files <= {item.path.name for item in request.session.items}:
        pytest.skip(f"only where all tests of tests/{folder.name} run, in one process")


def use(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `device` the default one."""
    monkeypatch.setattr(devices, "choose", lambda name=None: device.adapter)
    monkeypatch.setattr(devices, "_open", lambda adapter: device)
