"""Opening a scene file, run or capture for the viewer, and the page's controls: cameras, keyframes and a crop box."""

import itertools
import math
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from splat_py.base.errors import SplatError
from splat_py.gpu.device import Device
from splat_py.render.views import RenderSettings, through
from splat_py.scene.camera import Camera, best_covered, find_focus, look_at_matrix, mean_up
from splat_py.scene.camera_paths import Keyframe, KeyframePath
from splat_py.scene.data_options import DataOptions
from splat_py.scene.dataset import NEAR, Dataset
from splat_py.scene.editing import select
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.pictures import shrunk
from splat_py.scene.similarity import quaternion_of, rotation_matrices
from splat_py.scene.sources import is_scene_file
from splat_py.shaders.custom_types import CAMERA, OwnTypes
from splat_py.train.capture_model import LearntCapture
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.run import RunFolder, learnt_of
from splat_py.viewer.page_server import aim, camera_of

if TYPE_CHECKING:
    import viser

# Vertical field of view of a page without cameras, degrees.
_FIELD_OF_VIEW = 60.0
# Depth of a frustum and the page's near plane, as shares of the scene's scale: frustums nearer than that vanish.
_DEPTH, NEARER = 0.12, 0.13
_TRAINING, _HELD_OUT = (90, 160, 250), (250, 170, 60)
# The most frustums of a split; pages are slow with more, so only every n-th is shown.
_MOST = 1000
# Seconds between keyframes, default and maximum, and between two poses of a preview.
_SECONDS, _MOST_SECONDS, _TICK = 2.0, 30.0, 1 / 20


@dataclass(eq=False)
class ViewedScene:
    look: RenderSettings  # settings for drawing frames
    gaussians: Gaussians | None  # None for a capture alone
    dataset: Dataset | None  # cameras, photographs and points, or None for a scene file alone
    folder: Path  # the folder for files that pages write
    scores: dict[int, float] = field(default_factory=dict)  # PSNR in dB of held-out views by index into the dataset's views
    scored: bool = True  # True if held-out views can be compared with renders; False if training refined their poses

    @property
    def up(self) -> NDArray[np.float64]:
        """The up direction in the world: from the cameras, otherwise −y, as in most COLMAP scenes."""
        if self.dataset is None:
            return np.array([0.0, -1.0, 0.0])
        return mean_up([view.camera for view in self.dataset.views])

    @property
    def focus(self) -> NDArray[np.float64]:
        """The point [3] that pages turn around."""
        if self.dataset is not None:
            return find_focus(self.dataset.train_cameras)[0]
        return extent_of(self.gaussians)[0]

    @property
    def scale(self) -> float:
        """A length proportional to the scene's size, above 0."""
        return self.dataset.scene_scale if self.dataset is not None else extent_of(self.gaussians)[1]

    def first_camera(self) -> Camera:
        """A page's first view: that of the best covered training photograph, or `whole_view`."""
        if self.dataset is None:
            return whole_view(self.gaussians)
        points = None if self.dataset.points is None else self.dataset.points[0]
        known = points if self.gaussians is None else self.gaussians.positions
        return best_covered(self.dataset.train_cameras, self.focus[None] if known is None else known)


def extent_of(gaussians: Gaussians | None) -> tuple[NDArray[np.float64], float]:
    """The median [3] of the means, and the distance from it, above 0, within which nine tenths of them lie."""
    if gaussians is None or not len(gaussians):
        return np.zeros(3), 1.0
    means = gaussians.positions[:: max(1, len(gaussians) // 100_000)]
    middle = np.median(means, axis=0)
    return middle, float(np.quantile(np.linalg.norm(means - middle, axis=1), 0.9)) or 1.0


def whole_view(gaussians: Gaussians | None) -> Camera:
    """A camera with the whole scene in view, from a little above, if -y is up."""
    middle, extent = extent_of(gaussians)
    distance = extent / np.sin(np.deg2rad(_FIELD_OF_VIEW) / 2)
    eye = middle + distance * np.array([0.0, -0.35, -1.0]) / np.hypot(0.35, 1)
    return Camera.look_at(eye, middle, (0, -1, 0), _FIELD_OF_VIEW, 1280, 1280)


def open_viewed(
    target: Path,
    data: Path | None = None,
    downscale: float | None = None,
    own: OwnTypes | None = None,
    folder: Path | None = None,
    device: Device | None = None,
    *,
    without_capture: bool = True,
) -> ViewedScene:
    """Open a scene file, the folder of a run, or the folder of a capture.

    Args:
        data, downscale: the scene's capture and its downscale factor; by default those of the run, if the capture exists.
        own: Slang source that the scene was trained with.
        folder: for files that pages write; by default the run's folder, the scene file's, or for a capture the current one.
        without_capture: open a run even if its capture is missing, with a warning.
    """
    own, divisor = own or OwnTypes(), 1.0 if downscale is None else downscale
    # A memory limit of 0 reads photographs one by one on demand.
    if is_scene_file(target):
        gaussians = Gaussians.load(target).trust_source(own, str(target))
        dataset = None if data is None else DataOptions(data, divisor).load(0)
        if dataset is not None and own.camera is not None:
            dataset = through(dataset, CAMERA.resolve(own.camera))
        look = look_of(dataset, gaussians.antialiased, gaussians, device)
        return ViewedScene(look, gaussians, dataset, folder or target.absolute().parent)
    if not (target / "run.json").exists():
        dataset = DataOptions(target, divisor).load(0)
        return ViewedScene(look_of(dataset, False, None, device), None, dataset, folder or Path.cwd())
    run = RunFolder(target)
    record = run.record()
    options, config = record.data, record.config
    options = replace(options, data=data or options.data, downscale=options.downscale if downscale is None else downscale)
    # The scene is written after the last checkpoint; a newer checkpoint means that the run was extended since.
    finished = run.scene.exists() and not (
        run.checkpoint.exists() and run.checkpoint.stat().st_mtime > run.scene.stat().st_mtime
    )
    loaded = run.gaussians() if finished else Checkpoint.load(run.checkpoint).gaussians()
    gaussians = loaded.trust_source(own, str(target))
    learnt = learnt_of(target, config) if finished else LearntCapture({})
    camera = CAMERA.trusted(CAMERA.of(config), own.camera, own.trust_source, str(target))
    try:
        dataset = through(options.load(0), camera, config.camera_params)
    except SplatError as error:
        if data is not None or not without_capture:
            raise
        warnings.warn(f"the scene is shown without its capture: {error}", stacklevel=2)
        dataset = None
    else:
        dataset = learnt.refined(dataset)
    look = look_of(dataset, config.antialiased, gaussians, device)
    if learnt.environment is not None:
        look = replace(look, background=learnt.environment)
    scores = _recorded_scores(run, dataset) if finished and dataset is not None else {}
    return ViewedScene(look, gaussians, dataset, folder or target, scores, scored=not config.refine_cameras)


def look_of(dataset: Dataset | None, antialiased: bool, gaussians: Gaussians | None, device: Device | None) -> RenderSettings:
    if dataset is not None:
        return RenderSettings(dataset.background, dataset.scene_scale, antialiased, dataset.near, device)
    scale = extent_of(gaussians)[1]
    return RenderSettings((0.0, 0.0, 0.0), scale, antialiased, min(NEAR, NEAR * scale), device)


def _recorded_scores(run: RunFolder, dataset: Dataset) -> dict[int, float]:
    """The PSNR that the run recorded, for views that are still held out."""
    try:
        found = {view["name"]: float(view["psnr"]) for view in run.metrics()["held_out"]["views"]}
    except (KeyError, TypeError, ValueError):
        return {}
    return {i: found[name] for i in dataset.test if (name := dataset.views[i].name) in found and np.isfinite(found[name])}


class Frustums:
    """The dataset's cameras on all pages. A thread reads their photographs, busy for the share `reading` of the time."""

    def __init__(self, server: "viser.ViserServer", scene: ViewedScene, dataset: Dataset, reading: float) -> None:
        self._server, self._dataset, self._focus, self._up = server, dataset, scene.focus, scene.up
        self._scores: dict[int, float] = {}
        self._share = reading
        self._labels: dict[int, Any] = {}
        self._frustums: dict[int, Any] = {}
        self._reading: threading.Thread | None = None
        self._closed = threading.Event()
        with server.gui.add_folder("Cameras"):
            self._visible = server.gui.add_checkbox("Show cameras", True)
            # viser shows these names as text, not as HTML.
            self._names = ["–", *(f"{i + 1}: {view.name}" for i, view in enumerate(dataset.views))]
            self._chosen = server.gui.add_dropdown("Go to", self._names, initial_value=self._names[0])
        self._root = server.scene.add_frame("/cameras", show_axes=False)
        self._visible.on_update(lambda event: setattr(self._root, "visible", bool(self._visible.value)))
        self._chosen.on_update(self._go_to_chosen)
        held_out = set(dataset.test)
        shown = sorted({*dataset.test[:: len(dataset.test) // _MOST + 1], *dataset.train[:: len(dataset.train) // _MOST + 1]})
        for index in shown:
            camera, depth = dataset.views[index].camera, _DEPTH * dataset.scene_scale
            color = _HELD_OUT if index in held_out else _TRAINING
            # An index instead of the photograph's name, whose slashes would separate nodes.
            self._frustums[index] = _add_frustum(server, f"/cameras/{index}", camera, depth, color, thickness=1.5)
            self._frustums[index].on_click(lambda event, index=index: self.go_to(event.client, index))
        for index, psnr in scene.scores.items():
            self.set_score(index, psnr)

    def go_to(self, client: "viser.ClientHandle", index: int) -> None:
        camera = self._dataset.views[index].camera
        # The distance of the point that the page orbits.
        depth = float((self._focus - camera.position) @ camera.forward)
        scale = self._dataset.scene_scale
        aim(client, camera, depth if depth > 0.05 * scale else scale, self._up)

    def set_score(self, index: int, psnr: float) -> None:
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
        """Mean PSNR of all held-out views in dB, once all have one."""
        found = [psnr for psnr in self._scores.values() if math.isfinite(psnr)]
        return float(np.mean(found)) if found and len(self._scores) == len(self._dataset.test) else None

    def read_photographs(self) -> None:
        if self._reading is None:
            self._reading = threading.Thread(target=self._read, daemon=True)
            self._reading.start()

    def close(self) -> None:
        self._closed.set()
        if self._reading is not None:
            self._reading.join(timeout=5)

    def _read(self) -> None:
        for index, frustum in self._frustums.items():
            began = time.monotonic()
            try:
                frustum.image = shrunk(self._dataset.image(index)[..., :3], 128)
            except (SplatError, OSError, MemoryError):
                continue  # the frustum stays empty; later uses of the photograph report the error
            if self._closed.wait((time.monotonic() - began) * (1 / self._share - 1)):
                return

    def _go_to_chosen(self, event: Any) -> None:
        name = self._chosen.value
        if event.client is not None and name in self._names[1:]:
            self.go_to(event.client, self._names.index(name) - 1)


def _add_frustum(
    server: "viser.ViserServer", name: str, camera: Camera, depth: float, color: tuple[int, int, int], thickness: float
) -> Any:
    """A frustum of the given depth. viser draws all frustums of one scale with the same volume."""
    half_width, half_height = (0.5 * side / camera.K[i, i] for i, side in enumerate((camera.width, camera.height)))
    return server.scene.add_camera_frustum(
        name,
        fov=2 * math.atan(half_height),
        aspect=camera.width / camera.height,
        scale=depth * float(np.cbrt(half_width * half_height / 3)),
        thickness=thickness,
        thickness_units="screen",
        color=color,
        wxyz=quaternion_of(camera.viewmat[:3, :3].T),
        position=camera.position,
        cast_shadow=False,
        receive_shadow=False,
    )


class PathPanel:
    """The keyframes, shared by all pages, and their buttons; `Viewer` handles the buttons `save` and `film`."""

    def __init__(self, server: "viser.ViserServer", scene: ViewedScene) -> None:
        self._server, self._scale, self._up = server, scene.scale, scene.up
        self._poses: list[Camera] = []
        self._handles: list[Any] = []
        self._lock = threading.Lock()
        # Pages with a running preview.
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
        with self._lock:
            poses = list(self._poses)
        if len(poses) < 2:
            raise SplatError("a path needs at least two keyframes; move and press “Add this view”")
        seconds = float(self._seconds.value)
        seconds = min(max(seconds, 0.1), _MOST_SECONDS) if math.isfinite(seconds) else _SECONDS
        # The whole path is rendered at the size of its first view, with even sides for the video encoder.
        size = tuple(side + side % 2 for side in (poses[0].width, poses[0].height))
        return KeyframePath(tuple(Keyframe.of_camera(pose, i * seconds) for i, pose in enumerate(poses)), (size[0], size[1]))

    def _add(self, event: Any) -> None:
        camera = None if event.client is None else camera_of(event.client.camera)
        if camera is None:
            return
        with self._lock:
            if len(self._poses) == 200:
                return
            self._poses.append(camera)
            name = f"/path/{len(self._poses)}"
            handle = _add_frustum(self._server, name, camera, 0.08 * self._scale, (240, 80, 160), thickness=2.0)
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
        """Move the page along the path, in viser's thread for the event; a second press stops it."""
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
            for camera in path.cameras(max(2, round(path.seconds / _TICK))):
                if client.client_id not in self._watching or client.client_id not in self._server.get_clients():
                    return
                aim(client, camera, self._scale, self._up)
                time.sleep(_TICK)
        except SplatError as error:
            client.add_notification("Preview", str(error), auto_close_seconds=8)
        finally:
            self._watching.discard(client.client_id)


class CropBox:
    """The crop box, its gizmo and its controls; it starts upright around the scene's focus. Calls `changed` when the box
    changes."""

    def __init__(self, server: "viser.ViserServer", scene: ViewedScene, changed: Callable[[], None]) -> None:
        self._changed, scale, up = changed, scene.scale, scene.up
        axes = look_at_matrix(np.zeros(3), np.eye(3)[np.abs(up).argmin()], up)[:3, :3].T
        with server.gui.add_folder("Crop", expand_by_default=False, visible=scene.gaussians is not None):
            self._on = server.gui.add_checkbox("Crop to the box", False)
            step = 10 ** np.floor(np.log10(scale) - 2)
            side = 0.6 * scale
            sides = side, side, side
            self._size = server.gui.add_vector3("Size", sides, min=(0.0, 0.0, 0.0), step=float(step))
            self.export = server.gui.add_button("Export what is inside", disabled=True)
        self._gizmo = server.scene.add_transform_controls(
            "/crop", scale=0.6 * sides[0], position=scene.focus, wxyz=quaternion_of(axes), visible=False, depth_test=False
        )
        # The edges of the box: from each corner along the axes on which its coordinate is 0.
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
        for control in (self._on, self._size, self._gizmo):
            control.on_update(lambda event: self._update())
        self._cut: tuple[Gaussians, bytes, Gaussians] | None = None

    def inside(self, gaussians: Gaussians) -> Gaussians:
        """The Gaussians whose centres are in the box, or all if it is off. Returns the same object until something changes."""
        box = self._pose()
        if box is None:
            return gaussians
        key = b"".join(part.tobytes() for part in box)
        if self._cut is None or self._cut[0] is not gaussians or self._cut[1] != key:
            middle, axes, size = box
            within = np.all(np.abs((gaussians.positions - middle) @ axes) <= 0.5 * size, axis=1)
            self._cut = gaussians, key, select(gaussians, within)
        return self._cut[2]

    def _pose(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]] | None:
        """Middle [3], axes in columns [3, 3] and sides [3] of the box; None if it is off or a page sent invalid numbers."""
        if not self._on.value:
            return None
        middle, size, wxyz = (np.asarray(x, np.float64) for x in (self._gizmo.position, self._size.value, self._gizmo.wxyz))
        if not all(np.isfinite(part).all() for part in (middle, size, wxyz)) or not np.linalg.norm(wxyz) > 1e-6:
            return None
        return middle, rotation_matrices(wxyz), size

    def _update(self) -> None:
        on = bool(self._on.value)
        self._gizmo.visible = self._box.visible = on
        self.export.disabled = not on
        size = np.asarray(self._size.value, np.float64)
        if np.isfinite(size).all() and (size > 0).all():
            x, y, z = map(float, size)
            self._box.scale = x, y, z
        self._changed()
