"""The viewer: draws a scene for browser pages, one task at a time in the device's thread."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from splat_py.base.errors import DeviceLostError, SplatError
from splat_py.render.inspection import inspect
from splat_py.render.selection import write_masks
from splat_py.scene.camera import Camera
from splat_py.scene.editing import select
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.images import View
from splat_py.scene.pictures import to_bytes, write_video
from splat_py.scene.sources import MODES
from splat_py.train.evaluation import compare
from splat_py.viewer.objects import ObjectPanel
from splat_py.viewer.opening import NEARER, CropBox, Frustums, PathPanel, ViewedScene
from splat_py.viewer.page_server import Frames, Requests, axis_of, camera_of, pixel_of

if TYPE_CHECKING:
    import viser

_NOTE_SECONDS = 10.0
# Seconds of a full frame from which a page says that it is being rendered.
_SLOW = 0.5
# A click counts for the view in which it was made; the camera may move by this share of the scene's scale until it is answered.
_MOVED = 0.05
# The panel of a pixel's table, over the lower left of a page; its size in CSS pixels.
_TABLE, _TABLE_SIZE = '<div style="padding:0 1em;font:13px monospace;white-space:pre">{}</div>', {"width": 790, "height": 330}


class Viewer:
    """Shows a scene on every open page. Call its methods from one thread; viser calls the callbacks from others.

    Args:
        scene: the scene to draw; call `frames.change` after another one is set.
        may_take_long: raises SplatError while work of many seconds is not allowed.
        reading: share of the time that a thread may spend on reading photographs.
    """

    def __init__(
        self,
        server: "viser.ViserServer",
        scene: ViewedScene,
        may_take_long: Callable[[], None] = lambda: None,
        reading: float = 0.5,
    ) -> None:
        self.server, self.scene, self.requests = server, scene, Requests()
        self.frames = Frames(self.requests, self._draw)
        self._may_take_long = may_take_long
        self._rendering, self._full_seconds = server.gui.add_markdown("rendering…", visible=False), math.inf
        self._place_pages()
        self._mode = server.gui.add_dropdown("Show", MODES, initial_value=MODES[0], visible=scene.gaussians is not None)
        self._mode.on_update(lambda event: self._change(moving=False))
        self.cameras = None if scene.dataset is None else Frustums(server, scene, scene.dataset, reading)
        self._unscored = [] if scene.scores or scene.dataset is None else list(scene.dataset.test)
        self._crop = CropBox(server, scene, lambda: self._change(moving=True))
        self._objects = ObjectPanel(server, scene)
        self._path = PathPanel(server, scene)
        self._crop.export.on_click(lambda event: self._post("export", event, self._export))
        self._objects.keep.on_click(lambda event: self._post("export", event, lambda progress: self._cut_out(True)))
        self._objects.remove.on_click(lambda event: self._post("export", event, lambda progress: self._cut_out(False)))
        self._objects.masks.on_click(lambda event: self._post("masks", event, self._write_masks))
        self._path.save.on_click(lambda event: self._post("save", event, self._save))
        self._path.film.on_click(lambda event: self._post("film", event, self._film))
        # The table of each page that shows one.
        self._tables: dict[int, viser.PanelHandle] = {}
        if scene.gaussians is None:
            self._add_points()
        else:
            server.scene.on_click()(self._click)
            server.gui.add_command("Hide the pixel's table", hotkey="escape").on_trigger(self._hide_table)
        server.on_client_connect(self._on_connect)
        server.on_client_disconnect(self._on_disconnect)

    def work(self) -> bool:
        """Do one task for a page. Return True if there was one."""
        job = self.requests.next_job()
        if job is not None:
            job()
            return True
        return self.draw() or self.score()

    def draw(self) -> bool:
        return self.scene.gaussians is not None and self.frames.draw_next()

    def score(self) -> bool:
        """Compare the next held-out view and label its camera. Return True if there was one."""
        scene, cameras = self.scene, self.cameras
        if not (self.requests.any_page and self._unscored and scene.gaussians and scene.dataset and cameras and scene.scored):
            return False
        index = self._unscored.pop(0)
        with _telling(lambda fault: self._note(None, "PSNR", fault)):
            image = scene.look.draw(scene.gaussians, scene.dataset.views[index].camera)
            cameras.set_score(index, compare(image, scene.dataset.image(index), device=scene.look.device)[0])
        return True

    def score_again(self) -> bool:
        """Start over with the held-out views. Return False if some have not been compared yet."""
        if self._unscored:
            return False
        self._unscored = [] if self.scene.dataset is None else list(self.scene.dataset.test)
        return True

    def serve(self) -> None:
        """Serve pages until the user interrupts. Draws only if a page is open and something changes."""
        while True:
            if not self.work():
                self.requests.wait(self.frames.next_due() if self.scene.gaussians is not None else None)

    def close(self) -> None:
        if self.cameras is not None:
            self.cameras.close()

    # Methods that viser's threads call

    def _on_connect(self, client: "viser.ClientHandle") -> None:
        def moved(handle: Any) -> None:
            camera = camera_of(handle)
            if camera is not None:
                self.requests.move(client.client_id, camera)

        client.camera.on_update(moved)
        moved(client.camera)
        # The page may have disconnected before `move` stored it.
        if client.client_id not in self.server.get_clients():
            self.requests.forget(client.client_id)
        if self.cameras is not None:
            self.cameras.read_photographs()

    def _on_disconnect(self, client: "viser.ClientHandle") -> None:
        self.requests.forget(client.client_id)
        self._tables.pop(client.client_id, None)

    def _click(self, event: "viser.SceneClickEvent") -> None:
        if event.client_id in self._tables:
            self._hide_table(event)
        elif self._objects.on.value:
            self.requests.post(f"select {event.client_id}", lambda: self._select(event))
        else:
            self.requests.post(f"inspect {event.client_id}", lambda: self._inspect(event))

    def _hide_table(self, event: Any) -> None:
        table = self._tables.pop(event.client_id, None)
        if table is not None:
            table.remove()

    def _change(self, *, moving: bool) -> None:
        self.frames.change(moving=moving)
        self.requests.wake()

    def _post(self, name: str, event: Any, job: Callable[[Callable[[str], None]], str]) -> None:
        """Queue a button's job, and report its progress and result on its page."""

        def done() -> None:
            note = self._note(event.client, name.capitalize(), "…", loading=True)

            def progress(body: str) -> None:
                if note is not None:
                    note.body = body

            try:
                with _telling(progress):
                    progress(job(progress))
            finally:
                if note is not None:
                    note.loading, note.auto_close_seconds = False, _NOTE_SECONDS

        self.requests.post(name, done)

    # Methods that the device's thread calls

    def _draw(self, page: int, camera: Camera, full: bool) -> None:
        client, gaussians = self.server.get_clients().get(page), self.scene.gaussians
        if client is None or gaussians is None:
            return
        slow, began = full and self._full_seconds > _SLOW, time.monotonic()
        if slow:
            self._rendering.visible = True
            self.server.flush()
        with _telling(lambda fault: self._note(client, "Cannot draw this", fault)):
            client.scene.set_background_image(self._picture(camera), format="jpeg", jpeg_quality=92 if full else 60)
            client.flush()
        self._rendering.visible = False
        if full:
            self._full_seconds = time.monotonic() - began

    def _inside(self) -> Gaussians:
        """The Gaussians in the crop box."""
        assert self.scene.gaussians is not None
        return self._crop.inside(self.scene.gaussians)

    def _picture(self, camera: Camera, *, tinted: bool = True) -> NDArray[np.uint8]:
        mode = self._mode.value if self._mode.value in MODES else MODES[0]
        inside, look = self._inside(), self.scene.look
        picture = look.draw(inside, camera, mode)
        if tinted:
            self._objects.tint(picture, inside, camera, **look.how)
        return to_bytes(picture)

    def _clicked(self, event: "viser.SceneClickEvent") -> tuple[Any, Gaussians, Camera, tuple[int, int]] | None:
        """The page, the scene that it shows, its camera and the clicked pixel; None if the click was on a camera and has moved
        the page there."""
        client, gaussians = self.server.get_clients().get(event.client_id), self.scene.gaussians
        camera = None if client is None else camera_of(client.camera)
        pixel = None if camera is None else pixel_of(event, camera, _MOVED * self.scene.scale)
        if client is None or gaussians is None or camera is None or pixel is None:
            return None
        return client, self._inside(), camera, pixel

    def _select(self, event: "viser.SceneClickEvent") -> None:
        clicked = self._clicked(event)
        if clicked is None:
            return
        client, gaussians, camera, pixel = clicked
        with _telling(lambda fault: self._note(client, "Cannot select this", fault)):
            self._may_take_long()
            self._objects.toggle(gaussians, camera, *pixel, **self.scene.look.how)
            self.frames.change(moving=False)

    def _inspect(self, event: "viser.SceneClickEvent") -> None:
        """Show the splats of a clicked pixel."""
        clicked, look = self._clicked(event), self.scene.look
        if clicked is None:
            return
        client, gaussians, camera, pixel = clicked
        with _telling(lambda fault: self._note(client, "Cannot inspect this", fault)):
            found = inspect(gaussians, camera, *pixel, look.background, **look.how)
            self._hide_table(event)
            self._tables[event.client_id] = panel = client.gui.add_panel()
            with panel.add_tab("Pixel"):
                client.gui.add_html(_TABLE.format(found._repr_html_()))
            panel.float(x=15, y=-15, **_TABLE_SIZE)

    def _export(self, progress: Callable[[str], None]) -> str:
        if self.scene.gaussians is None:
            raise SplatError("there is no scene to export")
        inside = self._inside()
        if not len(inside):
            raise SplatError("no Gaussian is in the box; make it larger or move it")
        return self._saved(inside, "crop.ply")

    def _saved(self, gaussians: Gaussians, name: str) -> str:
        assert self.scene.gaussians is not None
        path = free_path(self.scene.folder, name)
        gaussians.save_ply(path)
        return f"{len(gaussians):,} of {len(self.scene.gaussians):,} Gaussians are in {path}"

    def _cut_out(self, keep: bool) -> str:
        inside = self._inside()
        return self._saved(select(inside, self._objects.require(inside) == keep), "object.ply" if keep else "rest.ply")

    def _write_masks(self, progress: Callable[[str], None]) -> str:
        dataset = self.scene.dataset
        if dataset is None:
            raise SplatError("there are no photographs; open the scene with --data")
        inside = self._inside()
        rows = self._objects.require(inside)
        self._may_take_long()

        def views() -> Iterator[View]:
            for i, view in enumerate(dataset.views):
                progress(f"photograph {i + 1} of {len(dataset)}")
                yield view
                # Between masks, serve pages that move.
                self.draw()

        path = free_path(self.scene.folder, "masks")
        count = write_masks(path, dataset.root, views(), inside, rows, **self.scene.look.how)
        return f"masks of {count} of {len(dataset)} photographs are in {path}; `splat train --cut-out` reads them"

    def _save(self, progress: Callable[[str], None]) -> str:
        path = free_path(self.scene.folder, "path.json")
        self._path.path().save(path)
        return f"{path}; `splat render --path` reads it"

    def _film(self, progress: Callable[[str], None]) -> str:
        if self.scene.gaussians is None:
            raise SplatError("there is no scene to film")
        self._may_take_long()
        keyframes = self._path.path()
        cameras = keyframes.cameras(keyframes.frames)

        def frames() -> Iterator[NDArray[np.floating]]:
            for i, camera in enumerate(cameras):
                progress(f"frame {i + 1} of {len(cameras)}")
                yield self._picture(camera, tinted=False) / np.float32(255)
                # Between frames of the video, serve pages that move.
                self.draw()

        path = free_path(self.scene.folder, "path.mp4")
        write_video(path, frames())
        return f"the video is {path}"

    # The state that pages begin with

    def _place_pages(self) -> None:
        first, scene, start = self.scene.first_camera(), self.scene, self.server.initial_camera
        self.server.scene.set_up_direction(scene.up)
        distance = float((scene.focus - first.position) @ first.forward)
        start.position = first.position
        start.look_at = first.position + (distance if distance > 0 else scene.scale) * first.forward
        start.up = axis_of(first, scene.up)
        start.fov = float(2 * np.arctan(0.5 * first.height / first.K[1, 1]))
        # These planes clip the page's lines and photographs, not the frames: near hides the frustum that the page is in.
        start.near, start.far = NEARER * scene.scale, 1e3 * scene.scale

    def _add_points(self) -> None:
        points = None if self.scene.dataset is None else self.scene.dataset.points
        if points is None:
            self.server.gui.add_markdown("This capture has no points; only its cameras are shown.")
            return
        step = len(points[0]) // 200_000 + 1
        self.server.scene.add_point_cloud(
            "/points", points[0][::step], points[1][::step], point_size=0.004 * self.scene.scale, precision="float32"
        )

    def _note(self, client: "viser.ClientHandle | None", title: str, body: str, *, loading: bool = False) -> Any:
        """Show a note on a page, or on all pages if `client` is None. Return a handle of one of them."""
        handle, pages, seconds = None, self.server.get_clients(), None if loading else _NOTE_SECONDS
        for other in pages.values() if client is None else [client]:
            if other.client_id in pages:
                handle = other.add_notification(title, body, loading=loading, auto_close_seconds=seconds)
        return handle


@contextmanager
def _telling(show: Callable[[str], object]) -> Iterator[None]:
    """Show an error in this context instead of raising it, unless the device is lost."""
    try:
        yield
    except DeviceLostError:
        raise
    except SplatError as error:
        show(str(error))


def free_path(folder: Path, name: str) -> Path:
    """The path `folder`/`name`, with -2, -3 … before the suffix if the file exists: nothing is overwritten."""
    names = (f"{Path(name).stem}-{number}{Path(name).suffix}" for number in count(2))
    return next(path for path in (folder / candidate for candidate in chain([name], names)) if not path.exists())
