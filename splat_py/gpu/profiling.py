"""How long each stage of a recording took, by the device's own clock."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import slangpy as spy

_MOST_MARKS = 256


class Profile:
    """Timestamps between the stages of recordings. Metal has none: there, `seconds` stays empty."""

    def __init__(self, device: spy.Device) -> None:
        self._available = device.has_feature(spy.Feature.timestamp_query)
        self._frequency = device.info.timestamp_frequency
        self._names: list[str] = []
        if self._available:
            self._pool = device.create_query_pool(spy.QueryType.timestamp, _MOST_MARKS)

    def mark(self, encoder: spy.CommandEncoder, name: str) -> None:
        """The stage `name` begins here; an empty name ends the last one."""
        if self._available and len(self._names) < _MOST_MARKS:
            encoder.write_timestamp(self._pool, len(self._names))
            self._names.append(name)

    def collect(self) -> dict[str, float]:
        """Seconds in each stage since the last call; the recordings must have finished."""
        seconds: dict[str, float] = defaultdict(float)
        if self._names:
            ticks = np.array(self._pool.get_results(0, len(self._names)), dtype=np.int64)
            for name, duration in zip(self._names, np.diff(ticks), strict=False):
                if name:
                    seconds[name] += float(duration) / self._frequency
            self._pool.reset()
            self._names.clear()
        return dict(seconds)
