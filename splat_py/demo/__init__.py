"""The embedded scene of `splat demo`."""
