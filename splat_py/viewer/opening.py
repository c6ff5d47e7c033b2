"""Opening a scene's file, a run or a capture; its controls on the page: cameras, a path of keyframes, a box that cuts it."""

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

from splat_py.base.errors import DeviceLostError, SplatError
from splat_py.gpu.device import Device
from splat_py.render.views import RenderSettings, through
from splat_py.scene.camera import Camera, find_focus, look_at_matrix, mean_up
from splat_py.scene.camera_paths import Keyframe, KeyframePath
from splat_py.scene.data_options import DataOptions
from splat_py.scene.dataset import NEAR, Dataset
from splat_py.scene.editing import select
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.pictures import shrunk
from splat_py.scene.similarity import rotation_matrices
from splat_py.scene.sources import is_scene_file
from splat_py.shaders.custom_types import CAMERA, OwnTypes
from splat_py.train.capture_model import LearntCapture
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.run import RunFolder, learnt_of
from splat_py.viewer.page_server import aim, camera_of, quaternion_of

if TYPE_CHECKING:
    import viser

# Degrees from the upper to the lower edge of a page where no camera says.
_FIELD_OF_VIEW = 60.0
# As shares of the scene's scale: how deep a frustum is, and how near it is when it is not drawn any more.
_DEPTH, NEARER = 0.12, 0.13
_TRAINING, _HELD_OUT = (90, 160, 250), (250, 170, 60)
# A page is slow with more; of more, every so many are shown.
_MOST = 1000
# Seconds between keyframes, to begin with and at most, and between two poses of a preview.
_SECONDS, _MOST_SECONDS, _TICK = 2.0, 30.0, 1 / 20
# The box's first sides, as a share of the scene's scale.
_SIDE = 0.6


@dataclass(eq=False)
class ViewedScene:
    look: RenderSettings  # how frames are drawn
    gaussians: Gaussians | None  # None of a capture alone
    dataset: Dataset | None  # cameras, photographs and points, or None of a scene's file alone
    folder: Path  # where pages may have files written
    scores: dict[int, float] = field(default_factory=dict)  # PSNR in dB of held-out views by index into the dataset's views
    scored: bool = True  # whether held-out views may be compared with renders: not where their poses were learnt in training

    @property
    def up(self) -> NDArray[np.float64]:
        """Upwards in the world: as the cameras say, otherwise against y, as COLMAP's scenes mostly are."""
        if self.dataset is None:
            return np.array([0.0, -1.0, 0.0])
        return mean_up([view.camera for view in self.dataset.views])

    @property
    def focus(self) -> NDArray[np.float64]:
        """The point [3] that pages turn around."""
        if self.dataset is not None:
            return find_focus([self.dataset.views[i].camera for i in self.dataset.train])[0]
        return self._extent[0]

    @property
    def scale(self) -> float:
        """A length in proportion to the scene, above 0."""
        return self.dataset.scene_scale if self.dataset is not None else self._extent[1]

    def first_camera(self) -> Camera:
        """A page's first view: the first training photograph's, or one from before the middle of all Gaussians."""
        if self.dataset is not None:
            return self.dataset.views[self.dataset.train[0]].camera
        middle, extent = self._extent
        eye = middle + extent * np.array([0.0, -0.8, -2.5])
        return Camera.look_at(eye, middle, self.up, _FIELD_OF_VIEW, 1280, 720)

    @property
    def _extent(self) -> tuple[NDArray[np.float64], float]:
        """The middle of nine tenths of the Gaussians, and how far they are from it."""
        if self.gaussians is None or not len(self.gaussians):
            return np.zeros(3), 1.0
        means = self.gaussians.means[:: max(1, len(self.gaussians) // 100_000)].cpu().numpy().astype(np.float64)
        middle = np.median(means, axis=0)
        return middle, float(np.quantile(np.linalg.norm(means - middle, axis=1), 0.9)) or 1.0


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
    """Open a scene's file, the folder of a run or that of a capture.

    Args:
        data, downscale: of the capture that goes with a scene; by default those of the run, if it is still there.
        own: Slang source that the scene was trained with.
        folder: where pages may have files written; by default the run's, beside the scene, or the current one for a capture.
        without_capture: whether a run is opened, with a warning, whose capture is not there any more.
    """
    own = own or OwnTypes()
    # Photographs are read one by one, when they are wanted.
    if is_scene_file(target):
        gaussians = Gaussians.load(target).trust_source(own, str(target))
        dataset = None if data is None else DataOptions(data, downscale or 1.0).load(0)
        if dataset is not None and own.camera is not None:
            dataset = through(dataset, CAMERA.resolve(own.camera))
        look = _look(dataset, gaussians.antialiased, gaussians, device)
        return ViewedScene(look, gaussians, dataset, folder or target.absolute().parent)
    if not (target / "run.json").exists():
        dataset = DataOptions(target, downscale or 1.0).load(0)
        return ViewedScene(_look(dataset, False, None, device), None, dataset, folder or Path.cwd())
    run = RunFolder(target)
    record = run.record()
    options, config = record.data, record.config
    options = replace(options, data=data or options.data, downscale=downscale or options.downscale)
    # The scene is written after the last checkpoint; a run that was extended since has a newer one.
    finished = run.scene.exists() and not (
        run.checkpoint.exists() and run.checkpoint.stat().st_mtime > run.scene.stat().st_mtime
    )
    loaded = run.gaussians() if finished else Checkpoint.load(run.checkpoint).gaussians()
    gaussians = loaded.trust_source(own, str(target))
    learnt = learnt_of(target, config) if finished else LearntCapture({})
    camera = CAMERA.trusted(CAMERA.of(config), own.camera, own.trust_source, str(target))
    dataset = None
    try:
        dataset = through(options.load(0), camera)
    except DeviceLostError:
        raise
    except SplatError as error:
        if data is not None or not without_capture:
            raise
        warnings.warn(f"the scene is shown without its capture: {error}", stacklevel=2)
    dataset = None if dataset is None else learnt.refined(dataset)
    look = _look(dataset, config.antialiased, gaussians, device)
    if learnt.environment is not None:
        look = replace(look, background=learnt.environment)
    scores = _recorded_scores(run, dataset) if finished and dataset is not None else {}
    return ViewedScene(look, gaussians, dataset, folder or target, scores, scored=not config.refine_cameras)


def _look(dataset: Dataset | None, antialiased: bool, gaussians: Gaussians | None, device: Device | None) -> RenderSettings:
    if dataset is not None:
        return RenderSettings(dataset.background, dataset.scene_scale, antialiased, dataset.near, device)
    look = RenderSettings((0.0, 0.0, 0.0), 1.0, antialiased, NEAR, device)
    scale = ViewedScene(look, gaussians, None, Path()).scale
    return replace(look, scene_scale=scale, near=min(NEAR, NEAR * scale))


def _recorded_scores(run: RunFolder, dataset: Dataset) -> dict[int, float]:
    """PSNR that the run has recorded, for views that are still held out."""
    try:
        found = {view["name"]: float(view["psnr"]) for view in run.metrics()["held_out"]["views"]}
    except (KeyError, TypeError, ValueError):
        return {}
    return {i: found[name] for i in dataset.test if (name := dataset.views[i].name) in found and np.isfinite(found[name])}


class Frustums:
    """Cameras of a scene's dataset on all pages; a thread reads their photographs in the share `reading` of its time."""

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
            # Names of files are text there, not HTML.
            self._names = ["–", *(f"{i + 1}: {view.name}" for i, view in enumerate(dataset.views))]
            self._chosen = server.gui.add_dropdown("Go to", self._names, initial_value=self._names[0])
        self._root = server.scene.add_frame("/cameras", show_axes=False)
        self._visible.on_update(lambda event: setattr(self._root, "visible", bool(self._visible.value)))
        self._chosen.on_update(self._go_to_chosen)
        held_out = set(dataset.test)
        shown = sorted({*dataset.test[:: len(dataset.test) // _MOST + 1], *dataset.train[:: len(dataset.train) // _MOST + 1]})
        for index in shown:
            self._add(index, held_out=index in held_out)
        for index, psnr in scene.scores.items():
            self.set_score(index, psnr)

    def _add(self, index: int, *, held_out: bool) -> None:
        # Not the photograph's name: parts of a node's are separated by slashes.
        name, color = f"/cameras/{index}", _HELD_OUT if held_out else _TRAINING
        depth = _DEPTH * self._dataset.scene_scale
        handle = _add_frustum(self._server, name, self._dataset.views[index].camera, depth, color, thickness=1.5)
        handle.on_click(lambda event: self.go_to(event.client, index))
        self._frustums[index] = handle

    def go_to(self, client: "viser.ClientHandle", index: int) -> None:
        camera = self._dataset.views[index].camera
        # Distance of the point that a page turns around.
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
                continue  # it stays empty; whoever needs the photograph says what is wrong with it
            if self._closed.wait((time.monotonic() - began) * (1 / self._share - 1)):
                return

    def _go_to_chosen(self, event: Any) -> None:
        name = self._chosen.value
        if event.client is not None and name in self._names[1:]:
            self.go_to(event.client, self._names.index(name) - 1)


def _add_frustum(
    server: "viser.ViserServer", name: str, camera: Camera, depth: float, color: tuple[int, int, int], thickness: float
) -> Any:
    """A frustum that is so deep: viser draws all of one scale with the same volume."""
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
    """Keyframes of all pages together, and buttons for them; `save` and `film` are for whoever can write files and draw."""

    def __init__(self, server: "viser.ViserServer", scene: ViewedScene) -> None:
        self._server, self._scale, self._up = server, scene.scale, scene.up
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


class CropBox:
    """The box, its gizmo and its controls; it begins upright, around what there is to look at. Calls `changed` whenever another
    part of the scene is to be drawn."""

    def __init__(self, server: "viser.ViserServer", scene: ViewedScene, changed: Callable[[], None]) -> None:
        self._changed, scale, up = changed, scene.scale, scene.up
        axes = look_at_matrix(np.zeros(3), np.eye(3)[np.abs(up).argmin()], up)[:3, :3].T
        visible = scene.gaussians is not None
        with server.gui.add_folder("Crop", expand_by_default=False, visible=visible):
            self._on = server.gui.add_checkbox("Crop to the box", False)
            step = 10 ** np.floor(np.log10(scale) - 2)
            sides = (_SIDE * scale, _SIDE * scale, _SIDE * scale)
            self._size = server.gui.add_vector3("Size", sides, min=(0.0, 0.0, 0.0), step=float(step))
            self.export = server.gui.add_button("Export what is inside", disabled=True)
        self._gizmo = server.scene.add_transform_controls(
            "/crop", scale=0.6 * sides[0], position=scene.focus, wxyz=quaternion_of(axes), visible=False, depth_test=False
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
        """Gaussians whose centres are in the box, or all while there is none. The same object while nothing changes."""
        box = self._pose()
        if box is None:
            return gaussians
        key = b"".join(part.tobytes() for part in box)
        if self._cut is None or self._cut[0] is not gaussians or self._cut[1] != key:
            middle, axes, size = box
            self._cut = (
                gaussians,
                key,
                select(gaussians, np.all(np.abs((gaussians.positions - middle) @ axes) <= 0.5 * size, axis=1)),
            )
        return self._cut[2]

    def _pose(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]] | None:
        """Middle [3], axes in columns [3, 3] and sides [3]; None while it is off or a page has sent what is no box."""
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
