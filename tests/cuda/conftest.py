"""The device that runs CUDA source, for all tests of this folder."""

import pytest

from tests.cuda.device import CudaOnCpu
from tests.cuda.program import CUDA
from tests.emulation.compiler import Compiler
from tests.emulation.fixtures import clang, native, programs, pytest_collection_modifyitems, use  # noqa: F401
from tests.emulation.programs import Programs


@pytest.fixture(scope="session")
def compiler(clang: str, request: pytest.FixtureRequest) -> Compiler:  # noqa: F811
    """A compiler that keeps its results in pytest's cache."""
    return Compiler(clang, request.config.cache.mkdir("cuda"), CUDA)


@pytest.fixture
def cuda(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> CudaOnCpu:  # noqa: F811
    device = CudaOnCpu(programs)
    use(device, monkeypatch)
    return device
