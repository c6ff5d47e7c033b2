"""No kernel that CUDA devices run has only been compiled. The last test of a session (conftest.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda.kernels import for_gpus
from tests.emulation.programs import Programs


def test_every_kernel_has_run(programs: Programs, request: pytest.FixtureRequest) -> None:
    files = {path.name for path in Path(__file__).parent.glob("test_run_*.py")}
    if request.config.getoption("keyword") or not files <= {item.path.name for item in request.session.items}:
        pytest.skip("only where all tests of tests/cuda run, in one process")
    missing = for_gpus().keys() - {(specialisation.module, specialisation.entry) for specialisation in programs.executed}
    assert not missing, "no test runs " + ", ".join(sorted(map(str, missing)))
