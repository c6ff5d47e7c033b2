"""The version of gsplat whose names and arguments these are; ours is `splat_py.__version__`."""

__version__ = "1.6.0"
