"""`splat render`, `splat eval`, `splat suggest` and `splat view`: pictures and videos of a scene, its scores, views that more
photographs should be taken from, and the viewer."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from splat_py.base.errors import SplatError, printable
from splat_py.commands.terminal import OnDevice, console, print_error, require_folder, track
from splat_py.scene import sources
from splat_py.scene.data_options import DataOptions
from splat_py.scene.sources import MODES, Split, require_cameras, require_scene
from splat_py.shaders.custom_types import OwnTypes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from splat_py.scene.camera import Camera
    from splat_py.train.evaluation import Scores, ViewScore

# The names in splat_py/scene/camera_paths.py, which is too slow to import before options are checked.
_PATHS = ("orbit", "spiral", "dolly")
# Candidates of `splat suggest` on a path.
_CANDIDATES = 48
# A picture with this many pixels needs 2 GiB, the largest buffer.
_MOST_PIXELS = (1 << 31) // 12


@dataclass
class SceneOptions:
    """The scene and its capture."""

    # A run's folder or a scene file; `splat view` also accepts a capture.
    scene: Annotated[Positional[Path], arg(metavar="SCENE")]
    # Capture with the cameras and photographs to use; by default the run's.
    data: Path | None = None
    # Divide the sides of photographs by this; by default as in training.
    downscale: float | None = None
    # Slang files that the scene was trained with.
    own: OmitArgPrefixes[OwnTypes] = field(default_factory=OwnTypes)

    def check(self) -> None:
        """Refuse an invalid divisor."""
        if self.downscale is not None:
            DataOptions(self.scene, self.downscale).validate()


@dataclass
class Evaluate(OnDevice):
    """Compare a scene with its held-out photographs: PSNR and SSIM of each view, LPIPS if available, and PSNR after matching
    colours to the photograph's, channel by channel (gsplat's cc_psnr).

    SCENE is a run's folder, or a file (.ply .compressed.ply .spz .sog .splat .ksplat .glb), which needs --data.

    Example: splat eval runs/fox --json scores.json
    """

    source: OmitArgPrefixes[SceneOptions]
    # The photograph of every eight that is held out: the middle or the first one; by default as in training, and the middle one
    # for a file.
    test_split: Split | None = None
    # Write the scores to this file, as JSON.
    json: Path | None = None
    # Write photographs beside renders into this folder.
    pictures: Path | None = None
    # Fail if LPIPS cannot be computed. It needs torchvision, torchmetrics or lpips, and AlexNet's weights, which are never
    # downloaded. Without this option unavailable LPIPS is left out.
    lpips: bool = False

    def run(self) -> None:
        self.source.check()
        require_scene(self.source.scene, self.source.data)
        require_cameras(self.source.scene, self.source.data)
        from rich.table import Table

        from splat_py.base.files import require_writable, write_json
        from splat_py.gpu.device import get_device
        from splat_py.train.evaluation import Lpips, evaluate, open_lpips
        from splat_py.train.run import learnt_of, open_scene

        lpips = open_lpips()
        if self.lpips and not isinstance(lpips, Lpips):
            raise SplatError(f"LPIPS cannot be computed: {lpips}")
        if self.json is not None:
            require_writable(self.json)
        device = get_device(self.device)
        source = self.source.scene, self.source.data, self.source.downscale, self.source.own
        gaussians, dataset, config = open_scene(*source, test_split=self.test_split)
        learnt = learnt_of(self.source.scene, config)
        scores = evaluate(
            gaussians,
            dataset,
            antialiased=config.antialiased,
            align_poses=config.refine_cameras,
            environment=learnt.environment,
            response=learnt.response,
            pictures=self.pictures,
            lpips=lpips if isinstance(lpips, Lpips) else None,
            device=device,
        )
        table = Table("view", "PSNR", "SSIM", *([] if scores.lpips is None else ["LPIPS"]), "PSNR, colours matched")
        rows: list[tuple[str, ViewScore | Scores]] = [*((view.name, view) for view in scores.views), ("mean", scores)]
        for name, row in rows:
            cells = [f"{row.psnr:.2f}", f"{row.ssim:.4f}", *([] if row.lpips is None else [f"{row.lpips:.4f}"])]
            # A line above the mean.
            table.add_row(printable(name), *cells, f"{row.corrected_psnr:.2f}", end_section=len(table.rows) + 2 == len(rows))
        console.print(table)
        if scores.corrected_psnr < scores.psnr:
            console.print(
                "Matching colours lowers PSNR here: renders differ from photographs in shape more than in colour. The match "
                "takes that for lower contrast, and raises it together with the differences."
            )
        if self.json is not None:
            write_json(self.json, scores.to_json())


@dataclass
class Render(OnDevice):
    """Render a scene: the views of its dataset, or a video on a path around it.

    SCENE is a run's folder, or a file (.ply .compressed.ply .spz .sog .splat .ksplat .glb), which needs --data for cameras
    unless the video's --path is a keyframe file.

    Example: splat render runs/fox --video orbit.mp4
    """

    source: OmitArgPrefixes[SceneOptions]
    # Folder for one PNG a view.
    out: Path | None = None
    # File for a video around the scene (.mp4, .gif or .webm).
    video: Path | None = None
    # Views to render to --out.
    views: Annotated[str, arg(metavar="test|train|all")] = "test"
    # Mode of pictures: colours; inverse depths, near ones bright; normals in the world's frame, x, y, z as red, green, blue;
    # opacity; the number of splats blended into each pixel; or how uncertain the photographs leave colours, white for a
    # standard deviation of 0.05 and more.
    mode: Annotated[str, arg(metavar="color|depth|normals|alpha|contributions|uncertainty")] = "color"
    # Path of the video's camera: around the scene, in a spiral, towards it, or a keyframe file from `splat view`.
    path: Annotated[str, arg(metavar="orbit|spiral|dolly|FILE.json")] = "orbit"
    # Length of the video in frames, at 30 a second; by default 240, or the duration of the keyframes.
    frames: int | None = None
    # Diameter of the camera's lens in world units, which blurs everything out of focus with 32 views a picture; 0 is a pinhole.
    aperture: float = 0.0
    # Depth in focus with --aperture; by default the median depth in the middle of the picture.
    focus: float | None = None
    # Multiply the sides of pictures by this; by default 1, or for a video enough for a height of at least 480 pixels.
    scale: float | None = None

    def run(self) -> None:
        self._check()
        from splat_py.gpu.device import get_device
        from splat_py.render.views import focuses, through_lens
        from splat_py.scene.camera import film_camera
        from splat_py.scene.camera_paths import PATHS, KeyframePath
        from splat_py.scene.pictures import picture_names, write_image, write_video
        from splat_py.viewer.opening import open_viewed

        keyframes = None if self.path in _PATHS else KeyframePath.load(Path(self.path))
        source = self.source.scene, self.source.data, self.source.downscale, self.source.own
        scene = open_viewed(*source, device=get_device(self.device), without_capture=False)
        gaussians, dataset, look = scene.gaussians, scene.dataset, scene.look
        assert gaussians is not None
        scale = self.scale or 1.0
        cameras = [view.camera for view in dataset.views] if dataset else keyframes.cameras(1) if keyframes else []
        largest = max(cameras, key=lambda camera: camera.width * camera.height)
        most = (_MOST_PIXELS / (largest.width * largest.height)) ** 0.5
        if scale > most:
            size = f"{largest.width}×{largest.height}"
            raise SplatError(f"--scale is {scale:g}; for photographs of {size} pixels it must be at most {most:.3g}")

        shot = partial(look.draw, gaussians, mode=self.mode)
        if self.mode == "uncertainty" and dataset is not None:
            from splat_py.render.information import draw_uncertainty, information

            photographed = dataset.train_cameras
            known = information(gaussians, track(photographed, "photographs"), look.background, **look.how)
            shot = partial(draw_uncertainty, gaussians, known=known, look=look)

        def draw(cameras: "Sequence[Camera]", what: str) -> "Iterator[NDArray[np.float32]]":
            depths: Sequence[float] = [self.focus or 1.0] * len(cameras)
            if self.aperture and self.focus is None:
                found = focuses(partial(look.depths, gaussians), track(cameras, "focus"), look.scene_scale)
                depths = [float(depth) for depth in found]
            for camera, depth in track(list(zip(cameras, depths, strict=True)), what):
                yield through_lens(shot, camera, self.aperture, depth)

        if self.out is not None and dataset is not None:
            views = {"test": dataset.test, "train": dataset.train, "all": range(len(dataset))}[self.views]
            names = picture_names([view.name for view in dataset.views])
            cameras = [dataset.views[view].camera.scaled(scale) for view in views]
            for view, picture in zip(views, draw(cameras, "views"), strict=True):
                write_image(self.out / names[view], picture)
            console.print(f"{len(views)} views are in {self.out}")
        if self.video is not None:
            if keyframes is None and dataset is not None:
                photographed = [view.camera for view in dataset.views]
                cameras = PATHS[self.path](photographed, self.frames or 240, gaussians.means.cpu())
            elif keyframes is not None:
                cameras = keyframes.cameras(self.frames or keyframes.frames)
            write_video(self.video, draw([film_camera(camera, self.scale) for camera in cameras], "frames"))
            console.print(f"the video is {self.video}")

    def _check(self) -> None:
        """Refuse invalid options before torch is imported."""
        if self.out is None and self.video is None:
            raise SplatError("nothing to render: name a folder with --out, a file with --video, or both")
        if self.out is not None:
            require_folder(self.out)
        if self.views not in ("test", "train", "all"):
            raise SplatError(f"--views is {self.views!r}; use test, train or all")
        if self.mode not in (*MODES, "uncertainty"):
            raise SplatError(f"--mode is {self.mode!r}; use {', '.join(MODES)} or uncertainty")
        if self.frames is not None and not 1 <= self.frames <= sources.MOST_FRAMES:
            raise SplatError(f"--frames is {self.frames}; it must be from 1 to {sources.MOST_FRAMES:,}")
        if self.scale is not None and not 0 < self.scale < float("inf"):
            raise SplatError(f"--scale is {self.scale}; it must be above 0")
        if not 0 <= self.aperture < float("inf"):
            raise SplatError(f"--aperture is {self.aperture}; it must be 0 or more")
        if self.aperture and self.mode != "color":
            raise SplatError(f"--aperture blurs colours; leave it out with --mode {self.mode}")
        if self.focus is not None and not 0 < self.focus < float("inf"):
            raise SplatError(f"--focus is {self.focus}; it must be above 0")
        if self.path not in _PATHS and not self.path.lower().endswith(".json"):
            raise SplatError(f"--path is {self.path!r}; use {', '.join(_PATHS)} or a .json file of keyframes")
        if self.path != _PATHS[0] and self.video is None:
            raise SplatError(f"--path {self.path} needs a video; name its file with --video")
        if self.video is not None:
            sources.require_video_name(self.video)
        self.source.check()
        require_scene(self.source.scene, self.source.data)
        if self.out is not None or self.path in _PATHS or self.mode == "uncertainty":
            require_cameras(self.source.scene, self.source.data)


@dataclass
class Suggest(OnDevice):
    """Suggest where to take more photographs: the views after which pictures from all candidates are least uncertain, as a
    table, and as pictures of each view's render beside its uncertainty (`splat render --mode uncertainty`).

    SCENE is a run's folder, or a file (.ply .compressed.ply .spz .sog .splat .ksplat .glb), which needs --data. Every view is
    chosen as if those above it had been photographed; the table says how much of the variance is then left. Parts without any
    Gaussian are no reason to suggest a view: look for holes with `splat view`, and save a path of keyframes through them for
    --among.

    Example: splat suggest runs/fox
    """

    source: OmitArgPrefixes[SceneOptions]
    # Candidates: 48 views on a path as of `splat render`, on that of a keyframe file from `splat view`, or the held-out views.
    among: Annotated[str, arg(metavar="spiral|orbit|dolly|FILE.json|test")] = "spiral"
    # Number of views to suggest.
    count: int = 4
    # Folder for one PNG a view.
    out: Path = Path("suggestions")

    def run(self) -> None:
        if self.among not in (*_PATHS, "test") and not self.among.lower().endswith(".json"):
            raise SplatError(f"--among is {self.among!r}; use {', '.join(_PATHS)}, test or a .json file of keyframes")
        if not 1 <= self.count <= _CANDIDATES:
            raise SplatError(f"--count is {self.count}; it must be from 1 to {_CANDIDATES}")
        require_folder(self.out)
        self.source.check()
        require_scene(self.source.scene, self.source.data)
        require_cameras(self.source.scene, self.source.data)
        import numpy as np
        from rich.table import Column, Table

        from splat_py.gpu.device import get_device
        from splat_py.render.information import draw_uncertainty, information, suggest
        from splat_py.scene.camera_paths import PATHS, KeyframePath
        from splat_py.scene.pictures import beside, write_image
        from splat_py.viewer.opening import open_viewed

        keyframes = KeyframePath.load(Path(self.among)) if self.among.lower().endswith(".json") else None
        source = self.source.scene, self.source.data, self.source.downscale, self.source.own
        scene = open_viewed(*source, device=get_device(self.device), without_capture=False)
        gaussians, dataset, look = scene.gaussians, scene.dataset, scene.look
        assert gaussians is not None and dataset is not None
        photographed = dataset.train_cameras
        if self.among == "test":
            candidates = [dataset.views[view].camera for view in dataset.test]
        elif keyframes is not None:
            candidates = keyframes.cameras(_CANDIDATES)
        else:
            candidates = PATHS[self.among](photographed, _CANDIDATES, gaussians.means.cpu())
        if not candidates:
            raise SplatError("--among test finds no held-out view; use spiral")
        known, wanted = (
            information(gaussians, track(cameras, what), look.background, **look.how)
            for cameras, what in ((photographed, "photographs"), (candidates, "pictures"))
        )
        seen = track(candidates, "candidates")
        chosen = suggest(gaussians, seen, known, wanted, look.background, count=self.count, **look.how)
        table = Table(Column("view", no_wrap=True), "variance left", "at", "nearest photograph", "from it", "turned")
        for rank, (index, left) in enumerate(chosen, 1):
            camera = candidates[index]
            distances = [float(np.linalg.norm(each.position - camera.position)) for each in photographed]
            nearest = dataset.views[dataset.train[int(np.argmin(distances))]]
            turned = np.degrees(np.arccos(np.clip(nearest.camera.forward @ camera.forward, -1, 1)))
            at = ", ".join(f"{x:.3g}" for x in camera.position)
            view, near = map(printable, (camera.name, nearest.name))
            table.add_row(f"{rank}: {view}", f"{left:.0%}", at, near, f"{min(distances):.3g}", f"{turned:.0f}°")
            shown = beside(look.draw(gaussians, camera), draw_uncertainty(gaussians, camera, known, look))
            write_image(self.out / f"{rank}.png", shown)
        console.print(table)
        console.print(f"renders and their uncertainty are in {self.out}")


@dataclass
class View(OnDevice):
    """Walk through a scene in the browser.

    SCENE is a file (.ply .compressed.ply .spz .sog .splat .ksplat .glb), the folder of a training run, or the folder of a
    capture, which shows cameras, photographs and points. Open the printed address; Ctrl-C stops the viewer. Pages save crops,
    camera paths and videos into the folder --out.

    Example: splat view runs/fox
    """

    source: OmitArgPrefixes[SceneOptions]
    # Folder for files that pages save; by default the run's, the scene file's, or for a capture the current one.
    out: Path | None = None
    # Address to listen on. 0.0.0.0 lets everybody who has the printed address see the scene and press the buttons.
    host: str = "127.0.0.1"
    # Port to listen on; if it is taken, one of the next.
    port: int = 8080

    def run(self) -> None:
        self.source.check()
        target = self.source.scene
        if not target.exists():
            raise SplatError(f"{target} does not exist; name a scene file, a run's folder or a capture")
        if target.is_file() and not sources.is_scene_file(target):
            raise SplatError(f"{target} does not end in {', '.join(sources.ENDINGS)}; name a scene file, a run or a capture")
        from splat_py.viewer.page_server import OWN_NAMES, address_of, page_server, require_viewer

        require_viewer()
        from splat_py.gpu.device import get_device
        from splat_py.viewer.opening import open_viewed
        from splat_py.viewer.viewer import Viewer

        scene = open_viewed(target, self.source.data, self.source.downscale, self.source.own, self.out, get_device(self.device))
        parts = [] if scene.gaussians is None else [f"{len(scene.gaussians):,} Gaussians"]
        parts += [] if scene.dataset is None else [f"{len(scene.dataset)} photographs"]
        try:
            with page_server(self.host, self.port) as server, closing(Viewer(server, scene)) as viewer:
                if self.host not in OWN_NAMES:
                    risk = "everybody who has the address below can see the scene and save files into its folder"
                    print_error(f"--host {self.host}: {risk}; elsewhere, put this machine's name in place of localhost")
                console.print(f"{', '.join(parts)}: open {address_of(server)} (Ctrl-C ends)")
                viewer.serve()
        except KeyboardInterrupt as interrupt:
            # Ctrl-C is the normal end of a viewer.
            if getattr(interrupt, "number", signal.SIGINT) != signal.SIGINT:
                raise
