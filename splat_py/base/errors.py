"""`SplatError`, the one exception that users need to know, with four subclasses that the code distinguishes; and
`BindingError`, which users should never see."""

import re

# Characters that control a terminal, or the direction of its text; names of files may hold any.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text with escape sequences instead of control characters."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


class SplatError(ValueError, RuntimeError):
    """Bad input or an unusable device, told in one sentence: what is wrong, where, and what to do about it. Control characters
    in it are escaped. Also a RuntimeError, which gsplat's kernels and torch's operators raise for bad input."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class NoDeviceError(SplatError):
    """No device was found, or it cannot be opened."""


class DeviceLostError(SplatError):
    """The device stopped working while it was in use."""


class UnwritableError(SplatError):
    """A file cannot be written, as on a full disk."""


class RankLostError(SplatError):
    """Another process of the same training has ended."""


class BindingError(Exception):
    """A dispatch does not match its kernel's globals: a mistake in the library, not in its use."""
