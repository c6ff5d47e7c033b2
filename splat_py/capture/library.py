"""Libraries that only capturing needs: imported when it begins, and named where they are absent."""

from __future__ import annotations

import importlib
import signal
import threading
from typing import Any

from splat_py.errors import SplatError

_INSTALL = "pip install 'slang-splat[capture]'"


def require_pycolmap() -> Any:
    """The module pycolmap.

    Raises:
        SplatError: it is not installed, or its library does not load.
    """
    try:
        pycolmap = importlib.import_module("pycolmap")
    except ImportError as error:
        raise SplatError(
            f"finding poses needs pycolmap, which is not installed: {_INSTALL} (where there is no wheel of it, as for Linux on "
            "ARM, run COLMAP on another machine; its models are read without it)"
        ) from error
    if threading.current_thread() is threading.main_thread():
        # It has taken the signal for itself, to print a trace of calls.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)
    # COLMAP's own words would go between the lines of the progress.
    pycolmap.logging.minloglevel = int(pycolmap.logging.Level.FATAL)
    return pycolmap


def require_heif() -> Any:
    """The module pillow_heif.

    Raises:
        SplatError: it is not installed.
    """
    from splat_py.scene.missing_poses import CONVERT_HEIC

    try:
        return importlib.import_module("pillow_heif")
    except ImportError as error:
        raise SplatError(f"HEIC photographs need pillow-heif: {_INSTALL}; or {CONVERT_HEIC}") from error
