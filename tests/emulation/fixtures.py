"""What the folders with a language each have in common: their conftest.py imports it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from splat_py.gpu import device as devices
from tests.emulation.compiler import Compiler, find_clang
from tests.emulation.device import EmulatedDevice
from tests.emulation.programs import Programs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What asks whether everything has run comes last."""
    items.sort(key=lambda item: item.path.name == "test_run_everything.py")


@pytest.fixture(scope="session")
def clang() -> str:
    return find_clang()


@pytest.fixture(scope="session")
def programs(compiler: Compiler) -> Iterator[Programs]:
    """Of the folder's own compiler."""
    everything = Programs(compiler)
    yield everything
    everything.close()


@pytest.fixture(scope="session")
def native() -> devices.Device:
    """The machine's own device, to compare with."""
    try:
        return devices.get_device()
    except devices.NoDeviceError as error:
        pytest.skip(f"needs a device of the machine's own: {error}")


def use(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything run on it that does not name another."""
    monkeypatch.setattr(devices, "choose", lambda name=None: device.adapter)
    monkeypatch.setattr(devices, "_open", lambda adapter: device)
