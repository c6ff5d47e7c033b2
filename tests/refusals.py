"""Calls that must be refused with a sentence."""

from collections.abc import Callable
from typing import Any

import pytest

from splat_py.base.errors import SplatError


def refused(match: str, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> None:
    """Assert that the call raises a SplatError whose message matches."""
    with pytest.raises(SplatError, match=match):
        call(*arguments, **options)
