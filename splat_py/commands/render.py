"""`splat render`: pictures and videos of a scene."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, arg

from splat_py.commands.terminal import console, track
from splat_py.errors import SplatError
from splat_py.scene.missing_poses import require_scene
from splat_py.scene.videos import require_video_name
from splat_py.splats.own_types import OwnTypes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from splat_py.scene.camera import Camera
    from splat_py.scene.dataset import Dataset

# A picture of so many pixels takes 2 GiB, the largest buffer.
_MOST_PIXELS = (1 << 31) // 12


@dataclass
class Render:
    """Render a scene: the views of its dataset, or a video on a path around it.

    SCENE is a run's folder, or a file (.ply .compressed.ply .spz .sog .splat .ksplat .glb), which needs --data to know cameras.

    Example: splat render runs/fox --video orbit.mp4
    """

    scene: Annotated[Positional[Path], arg(metavar="SCENE")]
    # Folder for one PNG a view.
    out: Path | None = None
    # File for a video around the scene (.mp4, .gif or .webm).
    video: Path | None = None
    # Which views to render to --out.
    views: Annotated[str, arg(metavar="test|train|all")] = "test"
    # What is shown: colours; inverse depths, near ones bright; or normals in the world's frame, x, y, z as red, green, blue.
    mode: Annotated[str, arg(metavar="color|depth|normals")] = "color"
    # Length of the video in frames, at 30 a second.
    frames: int = 240
    # Multiply the pictures' sides by this; by default 1, and for a video what makes it at least 480 pixels high.
    scale: float | None = None
    # Capture whose cameras to use; by default the one the run was trained on.
    data: Path | None = None
    # Divide the photographs' sides by this; by default as the run was trained.
    downscale: float | None = None
    # metal, cuda, vulkan or software; see `splat devices`.
    device: str | None = None
    # Slang files that the scene was trained with, named again.
    own: OmitArgPrefixes[OwnTypes] = field(default_factory=OwnTypes)

    def run(self) -> None:
        """Render with a progress bar."""
        if self.out is None and self.video is None:
            raise SplatError("nothing to render: name a folder with --out, a file with --video, or both")
        if self.views not in ("test", "train", "all"):
            raise SplatError(f"--views is {self.views!r}; use test, train or all")
        if self.mode not in ("color", "depth", "normals"):
            raise SplatError(f"--mode is {self.mode!r}; use color, depth or normals")
        if self.frames < 1:
            raise SplatError(f"--frames is {self.frames}; it must be at least 1")
        if self.scale is not None and not 0 < self.scale < float("inf"):
            raise SplatError(f"--scale is {self.scale}; it must be above 0")
        if self.video is not None:
            require_video_name(self.video)
        require_scene(self.scene, self.data)
        from splat_py.gpu.device import get_device
        from splat_py.scene.camera import orbit
        from splat_py.scene.picture_names import picture_names
        from splat_py.scene.pictures import write_image
        from splat_py.scene.videos import film_camera, write_video
        from splat_py.splats.rendering import render, shown_depth, shown_normals
        from splat_py.splats.run_folder import learnt_of, open_scene

        device = get_device(self.device)
        gaussians, dataset, config = open_scene(self.scene, self.data, self.downscale, self.own)
        self._check_size(dataset)
        environment = learnt_of(self.scene, config).environment
        background = dataset.background if environment is None else environment

        def draw(camera: Camera) -> NDArray[np.float32]:
            how: dict[str, Any] = {"antialiased": config.antialiased, "near": dataset.near, "device": device}
            if self.mode == "depth":
                return shown_depth(gaussians, camera, dataset.scene_scale, **how)
            if self.mode == "normals":
                return shown_normals(gaussians, camera, **how)
            return render(gaussians, camera, background, **how)

        if self.out is not None:
            views = {"test": dataset.test, "train": dataset.train, "all": range(len(dataset))}[self.views]
            names = picture_names([view.name for view in dataset.views])
            for view in track(views, "views"):
                write_image(self.out / names[view], draw(dataset.views[view].camera.scaled(self.scale or 1)))
            console.print(f"{len(views)} views are in {self.out}")
        if self.video is not None:
            cameras = orbit([view.camera for view in dataset.views], self.frames, gaussians.means.cpu())
            write_video(self.video, (draw(film_camera(camera, self.scale)) for camera in track(cameras, "frames")))
            console.print(f"the video is {self.video}")

    def _check_size(self, dataset: Dataset) -> None:
        """Pictures must fit into memory."""
        scale = self.scale or 1.0
        largest = max((view.camera for view in dataset.views), key=lambda camera: camera.width * camera.height)
        if largest.width * largest.height * scale**2 > _MOST_PIXELS:
            most = (_MOST_PIXELS / (largest.width * largest.height)) ** 0.5
            size = f"{largest.width}×{largest.height}"
            raise SplatError(f"--scale is {scale:g}; for photographs of {size} pixels it must be at most {most:.3g}")
