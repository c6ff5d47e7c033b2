"""Keyframes on the page: poses that a camera goes through, watched, saved as JSON, or rendered to a video."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.scene.camera import Camera
from splat_py.scene.keyframes import Keyframe, KeyframePath
from splat_py.viewer.frustums import frustum_scale
from splat_py.viewer.page_camera import aim, camera_of, quaternion_of

if TYPE_CHECKING:
    import viser

# Seconds between keyframes, to begin with and at most, and between two poses of a preview.
_SECONDS, _MOST_SECONDS, _TICK = 2.0, 30.0, 1 / 20
_MOST_KEYFRAMES = 200
_COLOR = (240, 80, 160)


class PathPanel:
    """Keyframes of all pages together, and buttons for them.

    Attributes:
        save, film: buttons, for whoever can write files and draw.
    """

    def __init__(self, server: viser.ViserServer, scale: float, up: NDArray[np.float64]) -> None:
        self._server, self._scale, self._up = server, scale, up
        self._poses: list[Camera] = []
        self._handles: list[Any] = []
        self._lock = threading.Lock()
        # Pages that a preview moves.
        self._watching: set[int] = set()
        gui = server.gui
        with gui.add_folder("Camera path", expand_by_default=False):
            self._count = gui.add_markdown("no keyframes")
            add = gui.add_button("Add this view")
            remove = gui.add_button("Remove the last")
            self._seconds = gui.add_slider("Seconds between", 0.2, _MOST_SECONDS, 0.1, _SECONDS)
            watch = gui.add_button("Preview / stop")
            self.save = gui.add_button("Save as JSON")
            self.film = gui.add_button("Render to MP4")
        add.on_click(self._add)
        remove.on_click(lambda event: self._remove())
        watch.on_click(self._watch)

    def path(self) -> KeyframePath:
        """What the keyframes are now.

        Raises:
            SplatError: there are fewer than two.
        """
        with self._lock:
            poses = list(self._poses)
        if len(poses) < 2:
            raise SplatError("a path needs at least two keyframes; move and press “Add this view”")
        seconds = float(self._seconds.value)
        seconds = min(max(seconds, 0.1), _MOST_SECONDS) if math.isfinite(seconds) else _SECONDS
        # The whole path is filmed at the size of its first view, which videos want even.
        size = tuple(side + side % 2 for side in (poses[0].width, poses[0].height))
        return KeyframePath(tuple(Keyframe.of_camera(pose, i * seconds) for i, pose in enumerate(poses)), (size[0], size[1]))

    def _add(self, event: Any) -> None:
        camera = None if event.client is None else camera_of(event.client.camera)
        if camera is None:
            return
        with self._lock:
            if len(self._poses) == _MOST_KEYFRAMES:
                return
            self._poses.append(camera)
            handle = self._server.scene.add_camera_frustum(
                f"/path/{len(self._poses)}",
                fov=2 * math.atan(0.5 * camera.height / camera.K[1, 1]),
                aspect=camera.width / camera.height,
                scale=frustum_scale(camera, 0.08 * self._scale),
                color=_COLOR,
                thickness=2.0,
                thickness_units="screen",
                wxyz=quaternion_of(camera.viewmat[:3, :3].T),
                position=camera.position,
                cast_shadow=False,
                receive_shadow=False,
            )
            self._handles.append(handle)
        self._tell()

    def _remove(self) -> None:
        with self._lock:
            if self._poses:
                self._poses.pop()
                self._handles.pop().remove()
        self._tell()

    def _tell(self) -> None:
        count = len(self._poses)
        self._count.content = f"{count} keyframe{'s' * (count != 1)}" if count else "no keyframes"

    def _watch(self, event: Any) -> None:
        """Move the page along the path, in its own thread; pressed again, stop."""
        client = event.client
        if client is None:
            return
        with self._lock:
            if client.client_id in self._watching:
                self._watching.discard(client.client_id)
                return
            self._watching.add(client.client_id)
        try:
            path = self.path()
            cameras = path.cameras(max(2, round(path.seconds / _TICK)))
            for camera in cameras:
                if client.client_id not in self._watching or client.client_id not in self._server.get_clients():
                    return
                aim(client, camera, self._scale, self._up)
                time.sleep(_TICK)
        except SplatError as error:
            client.add_notification("Preview", str(error), auto_close_seconds=8)
        finally:
            self._watching.discard(client.client_id)
