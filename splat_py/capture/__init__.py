"""Photographs or a video to a captured scene: where each was taken from, by structure from motion through pycolmap."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from splat_py.capture.options import CaptureOptions
    from splat_py.capture.phases import capture
    from splat_py.capture.report import CaptureReport, Unregistered
else:
    from splat_py.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "CaptureOptions": "splat_py.capture.options",
            "CaptureReport": "splat_py.capture.report",
            "Unregistered": "splat_py.capture.report",
            "capture": "splat_py.capture.phases",
        },
    )

__all__ = ["CaptureOptions", "CaptureReport", "Unregistered", "capture"]
