"""The device that runs Metal source, for all tests of this folder."""

import pytest

from tests.emulation.compiler import Compiler
from tests.emulation.fixtures import clang, native, programs, pytest_collection_modifyitems, use  # noqa: F401
from tests.emulation.programs import Programs
from tests.metal.device import MetalOnCpu
from tests.metal.program import METAL


@pytest.fixture(scope="session")
def compiler(clang: str, request: pytest.FixtureRequest) -> Compiler:  # noqa: F811
    """A compiler that keeps its results in pytest's cache."""
    return Compiler(clang, request.config.cache.mkdir("metal"), METAL)


@pytest.fixture
def metal(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> MetalOnCpu:  # noqa: F811
    device = MetalOnCpu(programs)
    use(device, monkeypatch)
    return device
