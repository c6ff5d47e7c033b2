"""The one exception a user of splat_py has to know, and the two kinds of it that the code itself tells apart."""

from __future__ import annotations


class SplatError(ValueError):
    """Bad input or an unusable device, told in one sentence: what is wrong, where, and what to do about it."""


class NoDeviceError(SplatError):
    """There is no device, or the one there is cannot be opened."""


class DeviceLostError(SplatError):
    """The device stopped working while it was in use."""
