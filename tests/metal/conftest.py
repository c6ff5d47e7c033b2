"""The device that runs Metal source, for all tests of this folder."""

import pytest

from tests.emulation.compiler import Compiler
from tests.emulation.fixtures import clang, native, programs, pytest_collection_modifyitems, use  # noqa: F401
from tests.emulation.kernels import shipped
from tests.emulation.programs import Programs
from tests.metal.device import MetalOnCpu
from tests.metal.program import METAL


@pytest.fixture(scope="session")
def compiler(clang: str, request: pytest.FixtureRequest) -> Compiler:  # noqa: F811
    """A compiler that keeps its results in pytest's cache."""
    return Compiler(clang, request.config.cache.mkdir("metal"), METAL)


@pytest.fixture(scope="session")
def prepared(programs: Programs) -> Programs:  # noqa: F811
    """Programs that already prepare all that ships."""
    programs.prepare(shipped())
    return programs


@pytest.fixture
def metal(prepared: Programs, monkeypatch: pytest.MonkeyPatch) -> MetalOnCpu:
    device = MetalOnCpu(prepared)
    use(device, monkeypatch)
    return device
