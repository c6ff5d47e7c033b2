"""Objects that clicks select on the viewer's pages, and the panel's controls for them."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from splat_py.base.errors import SplatError
from splat_py.render.selection import REACH, Rows, objects, pick, shares
from splat_py.scene.camera import Camera
from splat_py.scene.gaussians import Gaussians
from splat_py.viewer.opening import ViewedScene

if TYPE_CHECKING:
    import viser

# The colour of selected objects, and its share in what they show.
_TINT, _TINTED = np.array([1.0, 0.35, 0.1], np.float32), 0.5
# The status of a scene without a selection.
_NOTHING = "nothing is selected"


class ObjectPanel:
    """The objects that clicks select, and their controls; `Viewer` handles the buttons."""

    def __init__(self, server: "viser.ViserServer", scene: ViewedScene) -> None:
        with server.gui.add_folder("Objects", expand_by_default=False, visible=scene.gaussians is not None):
            self.on = server.gui.add_checkbox("Select with clicks", False)
            self._reach = server.gui.add_slider("Reach", 0.5, 5.0, 0.1, REACH)
            self._status = server.gui.add_markdown(_NOTHING)
            self.keep = server.gui.add_button("Export the selection")
            self.remove = server.gui.add_button("Export the rest")
            self.masks = server.gui.add_button("Write masks")
        # A scene with its objects and their reach, and its selected Gaussians.
        self._labels: tuple[Gaussians, float, NDArray[np.int64]] | None = None
        self._selected: tuple[Gaussians, Rows] | None = None

    def selected(self, gaussians: Gaussians) -> Rows | None:
        """The selected Gaussians, True in [N]; None without any, or after the scene has changed."""
        if self._selected is not None and not (self._selected[0] is gaussians and self._selected[1].any()):
            self._selected, self._status.content = None, _NOTHING
        return None if self._selected is None else self._selected[1]

    def require(self, gaussians: Gaussians) -> Rows:
        """Return the selected Gaussians; SplatError without any."""
        rows = self.selected(gaussians)
        if rows is None:
            raise SplatError("no object is selected; tick “Select with clicks” and click on one")
        return rows

    def tint(self, picture: NDArray[np.float32], gaussians: Gaussians, camera: Camera, **how: object) -> None:
        """Tint the selected objects in a picture [H, W, 3] of the scene, in place."""
        rows = self.selected(gaussians)
        if rows is not None:
            picture += _TINTED * shares(gaussians, rows, camera, **how)[..., None] * (_TINT - picture)

    def toggle(self, gaussians: Gaussians, camera: Camera, x: int, y: int, **how: object) -> None:
        """Select the object at a pixel, or no longer if it was selected. SplatError as `splat_py.render.selection`."""
        before, reach = self.selected(gaussians), float(self._reach.value)
        self._status.content = "finding objects…"
        try:
            if self._labels is None or self._labels[0] is not gaussians or self._labels[1] != reach:
                self._labels = gaussians, reach, objects(gaussians, reach)
            rows = pick(gaussians, self._labels[2], camera, x, y, **how)
            if before is not None:
                rows = before & ~rows if before[rows].all() else before | rows
            self._selected = gaussians, rows
        finally:
            count = 0 if self._selected is None else self._selected[1].sum()
            self._status.content = f"{count:,} Gaussians are selected" if count else _NOTHING
