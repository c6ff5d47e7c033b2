"""`SplatError`, the one exception that users need to know, with three subclasses that the code distinguishes; and
`BindingError`, which users should never see."""


class SplatError(ValueError):
    """Bad input or an unusable device, told in one sentence: what is wrong, where, and what to do about it."""


class NoDeviceError(SplatError):
    """No device was found, or it cannot be opened."""


class DeviceLostError(SplatError):
    """The device stopped working while it was in use."""


class RankLostError(SplatError):
    """Another process of the same training has ended."""


class BindingError(Exception):
    """A dispatch does not match its kernel's globals: a mistake in the library, not in its use."""
