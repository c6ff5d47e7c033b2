"""Every specialisation that ships has run, and not only been compiled. The last test of a session (conftest.py)."""

import pytest

from tests.emulation.fixtures import skip_unless_all_run
from tests.emulation.kernels import shipped
from tests.emulation.programs import Programs


def test_every_specialisation_has_run(programs: Programs, request: pytest.FixtureRequest) -> None:
    skip_unless_all_run(request)
    missing = set(shipped()) - programs.executed
    assert not missing, "no test runs " + ", ".join(sorted(map(str, missing)))
