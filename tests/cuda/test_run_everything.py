"""Every kernel of CUDA devices has run, and not only been compiled. The last test of a session (conftest.py)."""

import pytest

from tests.cuda.test_nvrtc import BY_KERNEL
from tests.emulation.fixtures import skip_unless_all_run
from tests.emulation.programs import Programs


def test_every_kernel_has_run(programs: Programs, request: pytest.FixtureRequest) -> None:
    skip_unless_all_run(request)
    missing = BY_KERNEL.keys() - {(specialisation.module, specialisation.entry) for specialisation in programs.executed}
    assert not missing, "no test runs " + ", ".join(sorted(map(str, missing)))
