"""The cameras of a capture on the page: frustums with their photographs, held-out ones with their PSNR; a click goes there."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.scene.camera import Camera
from splat_py.viewer.page_camera import aim, quaternion_of

if TYPE_CHECKING:
    import viser

    from splat_py.scene.dataset import Dataset

# A thumbnail's longer side, pixels.
_THUMBNAIL = 128
# As shares of the scene's scale: how deep a frustum is, and how near it is when it is not drawn any more.
_DEPTH, NEARER = 0.12, 0.13
_TRAINING, _HELD_OUT = (90, 160, 250), (250, 170, 60)
# A page is slow with more; of more, every so many are shown.
_MOST = 1000


class Frustums:
    """Cameras of `dataset` in the scene of all pages.

    Args:
        focus, up: what pages turn around, and upwards, [3].
        scores: PSNR of held-out views that is known.
        reading: share of the time that a thread may take to read photographs.
    """

    def __init__(
        self,
        server: viser.ViserServer,
        dataset: Dataset,
        focus: NDArray[np.float64],
        up: NDArray[np.float64],
        scores: dict[int, float],
        reading: float,
    ) -> None:
        self._server, self._dataset, self._focus, self._up = server, dataset, focus, up
        self._scores: dict[int, float] = {}
        self._share = reading
        self._labels: dict[int, Any] = {}
        self._frustums: dict[int, Any] = {}
        self._reading: threading.Thread | None = None
        self._closed = threading.Event()
        with server.gui.add_folder("Cameras"):
            self._visible = server.gui.add_checkbox("Show cameras", True)
            # Names of files are text there, not HTML.
            names = ["–", *(f"{i + 1}: {view.name}" for i, view in enumerate(dataset.views))]
            self._chosen = server.gui.add_dropdown("Go to", names, initial_value=names[0])
        self._names = names
        self._root = server.scene.add_frame("/cameras", show_axes=False)
        self._visible.on_update(lambda event: self._show())
        self._chosen.on_update(self._go_to_chosen)
        held_out = set(dataset.test)
        shown = sorted({*dataset.test[:: len(dataset.test) // _MOST + 1], *dataset.train[:: len(dataset.train) // _MOST + 1]})
        for index in shown:
            self._add(index, held_out=index in held_out)
        for index, psnr in scores.items():
            self.set_score(index, psnr)

    def _add(self, index: int, *, held_out: bool) -> None:
        camera = self._dataset.views[index].camera
        handle = self._server.scene.add_camera_frustum(
            # Not the photograph's name: parts of a node's are separated by slashes.
            f"/cameras/{index}",
            fov=2 * math.atan(0.5 * camera.height / camera.K[1, 1]),
            aspect=camera.width / camera.height,
            scale=frustum_scale(camera, _DEPTH * self._dataset.scene_scale),
            thickness=1.5,
            thickness_units="screen",
            color=_HELD_OUT if held_out else _TRAINING,
            wxyz=quaternion_of(camera.viewmat[:3, :3].T),
            position=camera.position,
            cast_shadow=False,
            receive_shadow=False,
        )
        handle.on_click(lambda event: self.go_to(event.client, index))
        self._frustums[index] = handle

    def go_to(self, client: viser.ClientHandle, index: int) -> None:
        """Move a page to where a photograph was taken."""
        camera = self._dataset.views[index].camera
        aim(client, camera, self._distance(camera), self._up)

    def set_score(self, index: int, psnr: float) -> None:
        """Label a held-out camera."""
        self._scores[index] = psnr
        if index not in self._frustums or not math.isfinite(psnr):
            return
        text = f"{psnr:.1f} dB"
        if index in self._labels:
            self._labels[index].text = text
        else:
            name = f"/cameras/{index}/psnr"
            self._labels[index] = self._server.scene.add_label(name, text, font_screen_scale=0.8, anchor="bottom-center")

    @property
    def mean_score(self) -> float | None:
        """Of all held-out views, dB, once all have one."""
        found = [psnr for psnr in self._scores.values() if math.isfinite(psnr)]
        return float(np.mean(found)) if found and len(self._scores) == len(self._dataset.test) else None

    def read_photographs(self) -> None:
        """Begin to put photographs into frustums, if that has not begun."""
        if self._reading is None:
            self._reading = threading.Thread(target=self._read, daemon=True)
            self._reading.start()

    def close(self) -> None:
        """Stop reading."""
        self._closed.set()
        if self._reading is not None:
            self._reading.join(timeout=5)

    def _read(self) -> None:
        for index, frustum in self._frustums.items():
            began = time.monotonic()
            try:
                frustum.image = thumbnail(self._dataset.image(index)[..., :3])
            except (SplatError, OSError, MemoryError):
                continue  # it stays empty; whoever needs the photograph says what is wrong with it
            if self._closed.wait((time.monotonic() - began) * (1 / self._share - 1)):
                return

    def _show(self) -> None:
        self._root.visible = bool(self._visible.value)

    def _go_to_chosen(self, event: Any) -> None:
        name = self._chosen.value
        if event.client is not None and name in self._names[1:]:
            self.go_to(event.client, self._names.index(name) - 1)

    def _distance(self, camera: Camera) -> float:
        """To what a page turns around."""
        depth = float((self._focus - camera.position) @ camera.forward)
        return depth if depth > 0.05 * self._dataset.scene_scale else self._dataset.scene_scale


def frustum_scale(camera: Camera, depth: float) -> float:
    """What viser calls a frustum's scale if it is to be so deep: it draws all of one scale with the same volume."""
    half_width, half_height = (0.5 * side / camera.K[i, i] for i, side in enumerate((camera.width, camera.height)))
    return depth * float(np.cbrt(half_width * half_height / 3))


def thumbnail(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A picture [H, W, 3] at a thumbnail's size or below, by averaging areas."""
    height, width = image.shape[:2]
    step = -(-max(height, width) // _THUMBNAIL)
    rows, columns = max(1, height // step), max(1, width // step)
    if min(height, width) < step:
        return image[::step, ::step]
    parts = image[: rows * step, : columns * step].reshape(rows, step, columns, step, 3)
    return parts.mean(axis=(1, 3)).round().astype(np.uint8)
