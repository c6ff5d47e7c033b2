"""A box on the page that cuts a scene: what is outside is not drawn, and what is inside can be written to a file."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from splat_py.scene.gaussians import Gaussians
from splat_py.viewer.page_camera import rotation_of

if TYPE_CHECKING:
    import viser

# Of the box to begin with, as a share of the scene's scale.
_SIDE = 0.6


class CropBox:
    """The box, its gizmo and its controls.

    Args:
        middle, scale: of the scene, world units: where the box begins.
        changed: told whenever another part of the scene is to be drawn.
        visible: whether there is anything to crop.
    """

    def __init__(
        self,
        server: viser.ViserServer,
        middle: NDArray[np.float64],
        scale: float,
        rotation: tuple[float, float, float, float],
        changed: Callable[[], None],
        visible: bool,
    ) -> None:
        self._server, self._scale, self._changed = server, scale, changed
        with server.gui.add_folder("Crop", expand_by_default=False, visible=visible):
            self._on = server.gui.add_checkbox("Crop to the box", False)
            step = 10 ** np.floor(np.log10(scale) - 2)
            sides = (_SIDE * scale, _SIDE * scale, _SIDE * scale)
            self._size = server.gui.add_vector3("Size", sides, min=(0.0, 0.0, 0.0), step=float(step))
            self.export = server.gui.add_button("Export what is inside", disabled=True)
        self._gizmo = server.scene.add_transform_controls(
            "/crop", scale=0.6 * sides[0], position=middle, wxyz=rotation, visible=False, depth_test=False
        )
        # Its edges: from each corner, along each axis that leads away from the first one.
        corners = [np.array(corner) for corner in itertools.product((0.0, 1.0), repeat=3)]
        edges = [(corner, corner + axis) for corner in corners for axis in np.eye(3) if corner @ axis == 0]
        self._box = server.scene.add_line_segments(
            "/crop/box",
            np.array(edges, np.float32) - 0.5,
            (250, 210, 60),
            thickness=1.5,
            thickness_units="screen",
            scale=sides,
            visible=False,
        )
        self._on.on_update(lambda event: self._update())
        self._size.on_update(lambda event: self._update())
        self._gizmo.on_update(lambda event: self._update())
        self._cut: tuple[Gaussians, bytes, Gaussians] | None = None

    def inside(self, gaussians: Gaussians) -> Gaussians:
        """Those whose centres are in the box, or all while there is none. The same object while nothing changes."""
        box = self._pose()
        if box is None:
            return gaussians
        key = b"".join(part.tobytes() for part in box)
        if self._cut is None or self._cut[0] is not gaussians or self._cut[1] != key:
            self._cut = gaussians, key, cropped(gaussians, *box)
        return self._cut[2]

    def _pose(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]] | None:
        """Middle [3], axes in columns [3, 3] and sides [3]; None while it is off or a page has sent what is no box."""
        if not self._on.value:
            return None
        middle, size, wxyz = (np.asarray(x, np.float64) for x in (self._gizmo.position, self._size.value, self._gizmo.wxyz))
        if not all(np.isfinite(part).all() for part in (middle, size, wxyz)) or not np.linalg.norm(wxyz) > 1e-6:
            return None
        return middle, rotation_of(wxyz), size

    def _update(self) -> None:
        on = bool(self._on.value)
        self._gizmo.visible = self._box.visible = on
        self.export.disabled = not on
        size = np.asarray(self._size.value, np.float64)
        if np.isfinite(size).all() and (size > 0).all():
            x, y, z = map(float, size)
            self._box.scale = x, y, z
        self._changed()


def cropped(
    gaussians: Gaussians, middle: NDArray[np.float64], axes: NDArray[np.float64], size: NDArray[np.float64]
) -> Gaussians:
    """The Gaussians whose centres are in a box of sides `size` [3] along `axes` (columns of [3, 3]) around `middle` [3]."""
    means = gaussians.means.cpu().numpy().astype(np.float64)
    mask = torch.from_numpy((np.abs((means - middle) @ axes) <= 0.5 * size).all(1)).to(gaussians.means.device)
    rows = {name: getattr(gaussians, name)[mask] for name in ("means", "quats", "log_scales", "logit_opacities", "sh")}
    params = {name: values[mask] for name, values in gaussians.params.items()}
    features = None if gaussians.features is None else gaussians.features[mask]
    return replace(gaussians, params=params, features=features, **rows)
