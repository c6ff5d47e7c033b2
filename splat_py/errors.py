"""The one exception a user of splat_py has to know."""

from __future__ import annotations


class SplatError(ValueError):
    """Bad input or an unusable device, told in one sentence: what is wrong, where, and what to do about it."""
