"""The device that runs Metal source, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from splat_py.gpu import device as devices
from tests.metal.checker import find_clang
from tests.metal.device import MetalOnCpu
from tests.metal.kernels import shipped
from tests.metal.program import Compiler
from tests.metal.programs import Programs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What asks whether everything has run comes last."""
    items.sort(key=lambda item: item.path.name == "test_run_everything.py")


@pytest.fixture(scope="session")
def clang() -> str:
    return find_clang()


@pytest.fixture(scope="session")
def compiler(clang: str, request: pytest.FixtureRequest) -> Compiler:
    """Keeps what it compiles in pytest's own cache."""
    return Compiler(clang, request.config.cache.mkdir("metal"))


@pytest.fixture(scope="session")
def programs(compiler: Compiler) -> Iterator[Programs]:
    everything = Programs(compiler)
    yield everything
    everything.close()


@pytest.fixture(scope="session")
def prepared(programs: Programs) -> Programs:
    """With all that ships already in the making."""
    programs.prepare(shipped())
    return programs


@pytest.fixture(scope="session")
def native() -> devices.Device:
    """The machine's own device, to compare with."""
    try:
        return devices.get_device()
    except devices.NoDeviceError as error:
        pytest.skip(f"needs a device of the machine's own: {error}")


@pytest.fixture
def metal(prepared: Programs, monkeypatch: pytest.MonkeyPatch) -> MetalOnCpu:
    """The device that everything runs on that does not name another."""
    device = MetalOnCpu(prepared)
    monkeypatch.setattr(devices, "choose", lambda name=None: device.adapter)
    monkeypatch.setattr(devices, "_open", lambda adapter: device)
    return device
