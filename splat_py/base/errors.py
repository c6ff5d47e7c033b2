"""The one exception a user of splat_py has to know, and the three kinds of it that the code itself tells apart; and one that a
user should never see."""


class SplatError(ValueError):
    """Bad input or an unusable device, told in one sentence: what is wrong, where, and what to do about it."""


class NoDeviceError(SplatError):
    """There is no device, or the one there is cannot be opened."""


class DeviceLostError(SplatError):
    """The device stopped working while it was in use."""


class RankLostError(SplatError):
    """Another process of the same training has ended."""


class BindingError(Exception):
    """A dispatch binds what its kernel does not take, or not all that it takes: a mistake in the library, not in its use."""
