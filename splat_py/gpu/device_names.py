"""What devices are called. Needs nothing, so that commands can refuse other names at once."""

from __future__ import annotations

import os
import re

from splat_py.errors import SplatError

BACKENDS = ("metal", "mps", "cuda", "vulkan", "software")


def parse_device(name: str | None) -> tuple[str, int]:
    """Backend and index of `name`, or of the environment variable SPLAT_DEVICE: "vulkan:1" is the second of Vulkan's. The
    backend is empty where neither says one.

    Raises:
        SplatError: the name means nothing.
    """
    asked = name or os.environ.get("SPLAT_DEVICE") or ""
    backend, _, index = asked.partition(":")
    if asked and (backend not in BACKENDS or not re.fullmatch("[0-9]{0,4}", index)):
        raise SplatError(f"device {asked!r} is not known; use one of {', '.join(BACKENDS)}, or for example vulkan:1")
    return backend, int(index or 0)
