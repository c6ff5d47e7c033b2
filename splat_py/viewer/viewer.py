"""A scene on pages: what they ask for is drawn, one piece of work at a time, in the thread that has the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from splat_py.errors import DeviceLostError, SplatError
from splat_py.scene.camera import Camera, look_at_matrix
from splat_py.scene.pictures import to_bytes
from splat_py.scene.videos import write_video
from splat_py.splats.evaluation import compare
from splat_py.splats.render_modes import MODES
from splat_py.viewer.crop_box import CropBox
from splat_py.viewer.frames import Frames
from splat_py.viewer.frustums import NEARER, Frustums
from splat_py.viewer.opening import ViewedScene
from splat_py.viewer.page_camera import axis_of, camera_of, quaternion_of
from splat_py.viewer.path_panel import PathPanel
from splat_py.viewer.requests import Requests
from splat_py.viewer.saving import free_path

if TYPE_CHECKING:
    import viser

# JPEG's, of frames while a camera moves and when it rests.
_MOVING_QUALITY, _RESTING_QUALITY = 60, 92
# Points that a page shows of a capture without a scene.
_MOST_POINTS = 200_000
_NOTE_SECONDS = 10.0


class Viewer:
    """Shows a scene on every page that is open. All methods but the constructor's callbacks belong to one thread.

    Args:
        scene: whose Gaussians may be replaced (`show`).
        may_film: raises SplatError while no video may be rendered.
        reading: share of the time that a thread may take to read photographs.
    """

    def __init__(
        self,
        server: viser.ViserServer,
        scene: ViewedScene,
        may_film: Callable[[], None] = lambda: None,
        reading: float = 0.5,
    ) -> None:
        self.server, self.scene, self.requests = server, scene, Requests()
        self.frames = Frames(self.requests, self._draw)
        self._may_film = may_film
        self._place_pages()
        self._mode = server.gui.add_dropdown("Show", MODES, initial_value=MODES[0], visible=scene.gaussians is not None)
        self._mode.on_update(lambda event: self._change(moving=False))
        self.cameras: Frustums | None = None
        if scene.dataset is not None:
            self.cameras = Frustums(server, scene.dataset, scene.focus, scene.up, scene.scores, reading)
        self._unscored = self._held_out() if not scene.scores else []
        up = scene.up
        # A box that stands upright.
        axes = look_at_matrix(np.zeros(3), np.eye(3)[np.abs(up).argmin()], up)[:3, :3].T
        box, drawn = quaternion_of(axes), scene.gaussians is not None
        self._crop = CropBox(server, scene.focus, scene.scale, box, lambda: self._change(moving=True), drawn)
        self._path = PathPanel(server, scene.scale, up)
        self._crop.export.on_click(lambda event: self._post("export", event, self._export))
        self._path.save.on_click(lambda event: self._post("save", event, self._save_path))
        self._path.film.on_click(lambda event: self._post("film", event, self._film))
        if scene.gaussians is None:
            self._add_points()
        server.on_client_connect(self._on_connect)
        server.on_client_disconnect(lambda client: self.requests.forget(client.client_id))

    def show(self, scene: ViewedScene) -> None:
        """Another state of the scene, which pages then see."""
        self.scene = scene
        self.frames.change(moving=False)

    def work(self) -> bool:
        """Do one thing that a page waits for. Returns whether there was one."""
        job = self.requests.next_job()
        if job is not None:
            job()
            return True
        return self.draw() or self.score()

    def draw(self) -> bool:
        """Draw the frame that is due, if there is one."""
        return self.scene.gaussians is not None and self.frames.draw_next()

    def score(self) -> bool:
        """Compare the next held-out view, if there is one, and label its camera."""
        scene, cameras = self.scene, self.cameras
        if not (self.requests.any_page and self._unscored and scene.gaussians and scene.dataset and cameras and scene.scored):
            return False
        index = self._unscored.pop(0)
        try:
            image = scene.look.draw(scene.gaussians, scene.dataset.views[index].camera)
            cameras.set_score(index, compare(image, scene.dataset.image(index), device=scene.look.device)[0])
        except DeviceLostError:
            raise
        except SplatError as error:
            self._note(None, "PSNR", str(error))
        return True

    def score_again(self) -> bool:
        """Begin with the held-out views anew, if all have been compared."""
        if not self._unscored:
            self._unscored = self._held_out()
            return True
        return False

    def serve(self) -> None:
        """Work for pages until the user interrupts. Nothing is drawn while nothing changes, or no page is open."""
        while True:
            if not self.work():
                self.requests.wait(self.frames.next_due() if self.scene.gaussians is not None else None)

    def close(self) -> None:
        """Before the server ends."""
        if self.cameras is not None:
            self.cameras.close()

    # In viser's threads

    def _on_connect(self, client: viser.ClientHandle) -> None:
        def moved(handle: Any) -> None:
            camera = camera_of(handle)
            if camera is not None:
                self.requests.move(client.client_id, camera)

        client.camera.on_update(moved)
        moved(client.camera)
        # It may have gone before it was noted.
        if client.client_id not in self.server.get_clients():
            self.requests.forget(client.client_id)
        if self.cameras is not None:
            self.cameras.read_photographs()

    def _change(self, *, moving: bool) -> None:
        self.frames.change(moving=moving)
        self.requests.wake()

    def _post(self, name: str, event: Any, job: Callable[[Callable[[str], None]], str]) -> None:
        """Have a button's work done, and say on its page how it went."""
        client = event.client

        def done() -> None:
            note = self._note(client, name.capitalize(), "…", loading=True)
            progress = _updater(note)
            try:
                progress(job(progress))
            except DeviceLostError:
                raise
            except SplatError as error:
                progress(str(error))
            finally:
                if note is not None:
                    note.loading, note.auto_close_seconds = False, _NOTE_SECONDS

        self.requests.post(name, done)

    # In the thread that has the device

    def _draw(self, page: int, camera: Camera, full: bool) -> None:
        client, gaussians = self.server.get_clients().get(page), self.scene.gaussians
        if client is None or gaussians is None:
            return
        try:
            picture = self._picture(camera)
        except DeviceLostError:
            raise
        except SplatError as error:
            self._note(client, "Cannot draw this", str(error))
            return
        quality = _RESTING_QUALITY if full else _MOVING_QUALITY
        client.scene.set_background_image(picture, format="jpeg", jpeg_quality=quality)
        client.flush()

    def _picture(self, camera: Camera) -> NDArray[np.uint8]:
        assert self.scene.gaussians is not None
        mode = self._mode.value if self._mode.value in MODES else MODES[0]
        return to_bytes(self.scene.look.draw(self._crop.inside(self.scene.gaussians), camera, mode))

    def _export(self, progress: Callable[[str], None]) -> str:
        if self.scene.gaussians is None:
            raise SplatError("there is no scene to export")
        inside = self._crop.inside(self.scene.gaussians)
        if not len(inside):
            raise SplatError("no Gaussian is in the box; make it larger or move it")
        path = free_path(self.scene.folder, "crop.ply")
        inside.save_ply(path)
        return f"{len(inside):,} of {len(self.scene.gaussians):,} Gaussians are in {path}"

    def _save_path(self, progress: Callable[[str], None]) -> str:
        path = free_path(self.scene.folder, "path.json")
        self._path.path().save(path)
        return f"{path}; `splat render --path` reads it"

    def _film(self, progress: Callable[[str], None]) -> str:
        if self.scene.gaussians is None:
            raise SplatError("there is no scene to film")
        self._may_film()
        keyframes = self._path.path()
        cameras = keyframes.cameras(keyframes.frames)

        def frames() -> Iterator[NDArray[np.floating]]:
            for i, camera in enumerate(cameras):
                progress(f"frame {i + 1} of {len(cameras)}")
                yield self._picture(camera) / np.float32(255)
                # Pages that look around meanwhile get a frame now and then.
                self.draw()

        path = free_path(self.scene.folder, "path.mp4")
        write_video(path, frames())
        return f"the video is {path}"

    # What pages begin with

    def _held_out(self) -> list[int]:
        return [] if self.scene.dataset is None else list(self.scene.dataset.test)

    def _place_pages(self) -> None:
        first, scene, start = self.scene.first_camera(), self.scene, self.server.initial_camera
        self.server.scene.set_up_direction(scene.up)
        distance = float((scene.focus - first.position) @ first.forward)
        start.position = first.position
        start.look_at = first.position + (distance if distance > 0 else scene.scale) * first.forward
        start.up = axis_of(first, scene.up)
        start.fov = float(2 * np.arctan(0.5 * first.height / first.K[1, 1]))
        # Only the page's own lines and photographs are cut off, not our frames: those of a camera that one stands at.
        start.near, start.far = NEARER * scene.scale, 1e3 * scene.scale

    def _add_points(self) -> None:
        points = None if self.scene.dataset is None else self.scene.dataset.points
        if points is None:
            self.server.gui.add_markdown("This capture has no points; its cameras are all there is to see.")
            return
        step = len(points[0]) // _MOST_POINTS + 1
        self.server.scene.add_point_cloud(
            "/points", points[0][::step], points[1][::step], point_size=0.004 * self.scene.scale, precision="float32"
        )

    def _note(self, client: viser.ClientHandle | None, title: str, body: str, *, loading: bool = False) -> Any:
        """A note on a page, or on all. The handle of one."""
        handle = None
        pages = self.server.get_clients()
        for other in pages.values() if client is None else [client]:
            if other.client_id in pages:
                seconds = None if loading else _NOTE_SECONDS
                handle = other.add_notification(title, body, loading=loading, auto_close_seconds=seconds)
        return handle


def _updater(note: Any) -> Callable[[str], None]:
    def update(body: str) -> None:
        if note is not None:
            note.body = body

    return update
