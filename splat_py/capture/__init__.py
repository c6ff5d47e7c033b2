"""Photographs or a video to a captured scene: where each was taken from, by structure from motion through pycolmap."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from splat_py.capture.phases import capture
    from splat_py.capture.workspace import CaptureReport, Unregistered
    from splat_py.scene.data_options import CaptureOptions
else:
    from splat_py.base.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "CaptureOptions": "splat_py.scene.data_options",
            "CaptureReport": "splat_py.capture.workspace",
            "Unregistered": "splat_py.capture.workspace",
            "capture": "splat_py.capture.phases",
        },
    )

__all__ = ["CaptureOptions", "CaptureReport", "Unregistered", "capture"]
