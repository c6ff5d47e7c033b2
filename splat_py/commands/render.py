"""`splat render`: pictures and videos of a scene."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from splat_py.commands.terminal import console, track
from splat_py.errors import SplatError
from splat_py.scene.formats.endings import is_scene_file
from splat_py.scene.missing_poses import require_cameras, require_scene
from splat_py.scene.videos import MOST_FRAMES, require_video_name
from splat_py.splats.own_types import OwnTypes
from splat_py.splats.render_modes import MODES, Look

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from splat_py.gpu.device import Device
    from splat_py.scene.camera import Camera
    from splat_py.scene.dataset import Dataset
    from splat_py.scene.gaussians import Gaussians
    from splat_py.scene.keyframes import KeyframePath

# Those of splat_py/scene/camera_paths.py, which is not imported to say that there is no such path.
_PATHS = ("orbit", "spiral", "dolly")
# Of a video on a path that says nothing about time.
_FRAMES = 240
# A picture of so many pixels takes 2 GiB, the largest buffer.
_MOST_PIXELS = (1 << 31) // 12


@dataclass
class Render:
    """Render a scene: the views of its dataset, or a video on a path around it.

    SCENE is a run's folder, or a file (.ply .compressed.ply .spz .sog .splat .ksplat .glb), which needs --data to know cameras,
    unless the video's --path is a file of keyframes.

    Example: splat render runs/fox --video orbit.mp4
    """

    scene: Annotated[Positional[Path], arg(metavar="SCENE")]
    # Folder for one PNG a view.
    out: Path | None = None
    # File for a video around the scene (.mp4, .gif or .webm).
    video: Path | None = None
    # Which views to render to --out.
    views: Annotated[str, arg(metavar="test|train|all")] = "test"
    # What is shown: colours; inverse depths, near ones bright; normals in the world's frame, x, y, z as red, green, blue;
    # opacity; or the number of contributions that pixels were blended from.
    mode: Annotated[str, arg(metavar="color|depth|normals|alpha|contributions")] = "color"
    # Path of the video's camera: around the scene, in a spiral, towards it, or keyframes that `splat view` has saved.
    path: Annotated[str, arg(metavar="orbit|spiral|dolly|FILE.json")] = "orbit"
    # Length of the video in frames, at 30 a second; by default 240, and for keyframes as long as they say.
    frames: int | None = None
    # Diameter of the camera's lens in world units: what is out of focus becomes blurred, by 32 views a picture. 0 is a pinhole.
    aperture: float = 0.0
    # Depth that is in focus, with --aperture; by default the median one in the middle of the picture.
    focus: float | None = None
    # Multiply the pictures' sides by this; by default 1, and for a video what makes it at least 480 pixels high.
    scale: float | None = None
    # Capture whose cameras to use; by default the one the run was trained on.
    data: Path | None = None
    # Divide the photographs' sides by this; by default as the run was trained.
    downscale: float | None = None
    # metal, mps, cuda, vulkan or software; see `splat devices`.
    device: str | None = None
    # Slang files that the scene was trained with, named again.
    own: OmitArgPrefixes[OwnTypes] = field(default_factory=OwnTypes)

    def run(self) -> None:
        """Render with a progress bar."""
        self._check()
        keyframes = self._keyframes()
        from splat_py.gpu.device import get_device
        from splat_py.scene.camera_paths import PATHS
        from splat_py.scene.picture_names import picture_names
        from splat_py.scene.pictures import write_image
        from splat_py.scene.videos import film_camera, write_video
        from splat_py.splats.depth_of_field import focuses, through_lens

        gaussians, dataset, look = self._open(get_device(self.device), keyframes)
        self._check_size([view.camera for view in dataset.views] if dataset else keyframes.cameras(1) if keyframes else [])

        def draw(cameras: Sequence[Camera], what: str) -> Iterator[NDArray[np.float32]]:
            depths: Sequence[float] = [self.focus or 1.0] * len(cameras)
            if self.aperture and self.focus is None:
                found = focuses(partial(look.depths, gaussians), track(cameras, "focus"), look.scene_scale)
                depths = [float(depth) for depth in found]
            for camera, depth in track(list(zip(cameras, depths, strict=True)), what):
                yield through_lens(partial(look.draw, gaussians, mode=self.mode), camera, self.aperture, depth)

        if self.out is not None and dataset is not None:
            views = {"test": dataset.test, "train": dataset.train, "all": range(len(dataset))}[self.views]
            names = picture_names([view.name for view in dataset.views])
            cameras = [dataset.views[view].camera.scaled(self.scale or 1) for view in views]
            for view, picture in zip(views, draw(cameras, "views"), strict=True):
                write_image(self.out / names[view], picture)
            console.print(f"{len(views)} views are in {self.out}")
        if self.video is not None:
            if keyframes is None and dataset is not None:
                photographed = [view.camera for view in dataset.views]
                cameras = PATHS[self.path](photographed, self.frames or _FRAMES, gaussians.means.cpu())
            elif keyframes is not None:
                cameras = keyframes.cameras(self.frames or keyframes.frames)
            write_video(self.video, draw([film_camera(camera, self.scale) for camera in cameras], "frames"))
            console.print(f"the video is {self.video}")

    def _check(self) -> None:
        """Refuse options that make no sense, before torch is imported."""
        if self.out is None and self.video is None:
            raise SplatError("nothing to render: name a folder with --out, a file with --video, or both")
        if self.views not in ("test", "train", "all"):
            raise SplatError(f"--views is {self.views!r}; use test, train or all")
        if self.mode not in MODES:
            raise SplatError(f"--mode is {self.mode!r}; use {', '.join(MODES[:-1])} or {MODES[-1]}")
        if self.frames is not None and not 1 <= self.frames <= MOST_FRAMES:
            raise SplatError(f"--frames is {self.frames}; it must be from 1 to {MOST_FRAMES:,}")
        if self.scale is not None and not 0 < self.scale < float("inf"):
            raise SplatError(f"--scale is {self.scale}; it must be above 0")
        if not 0 <= self.aperture < float("inf"):
            raise SplatError(f"--aperture is {self.aperture}; it must be 0 or more")
        if self.aperture and self.mode != "color":
            raise SplatError(f"--aperture blurs colours; leave it out with --mode {self.mode}")
        if self.focus is not None and not 0 < self.focus < float("inf"):
            raise SplatError(f"--focus is {self.focus}; it must be above 0")
        if self.path not in _PATHS and not self.path.lower().endswith(".json"):
            raise SplatError(f"--path is {self.path!r}; use {', '.join(_PATHS)} or a .json of keyframes")
        if self.path != _PATHS[0] and self.video is None:
            raise SplatError(f"--path {self.path} is that of a video; name its file with --video")
        if self.video is not None:
            require_video_name(self.video)
        require_scene(self.scene, self.data)
        if self.out is not None or self.path in _PATHS:
            require_cameras(self.scene, self.data)

    def _keyframes(self) -> KeyframePath | None:
        """Those of the file that --path names, if it does."""
        from splat_py.scene.keyframes import KeyframePath

        return None if self.path in _PATHS else KeyframePath.load(Path(self.path))

    def _open(self, device: Device, keyframes: KeyframePath | None) -> tuple[Gaussians, Dataset | None, Look]:
        """The scene, its capture, and how it is drawn. A file needs no capture for a video along keyframes."""
        from splat_py.splats.run_folder import learnt_of, open_scene
        from splat_py.viewer.opening import open_viewed

        if is_scene_file(self.scene) and self.data is None and keyframes is not None and self.out is None:
            scene = open_viewed(self.scene, own=self.own, device=device)
            assert scene.gaussians is not None
            return scene.gaussians, None, scene.look
        gaussians, dataset, config = open_scene(self.scene, self.data, self.downscale, self.own)
        environment = learnt_of(self.scene, config).environment
        background = dataset.background if environment is None else environment
        return gaussians, dataset, Look(background, dataset.scene_scale, config.antialiased, dataset.near, device)

    def _check_size(self, cameras: Sequence[Camera]) -> None:
        """Pictures must fit into memory."""
        scale = self.scale or 1.0
        largest = max(cameras, key=lambda camera: camera.width * camera.height)
        most = (_MOST_PIXELS / (largest.width * largest.height)) ** 0.5
        if scale > most:
            size = f"{largest.width}×{largest.height}"
            raise SplatError(f"--scale is {scale:g}; for photographs of {size} pixels it must be at most {most:.3g}")
