"""`splat view`: a scene, a run or a capture in the browser."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from splat_py.commands.terminal import console, print_error
from splat_py.errors import SplatError
from splat_py.scene.formats.endings import ENDINGS, is_scene_file
from splat_py.splats.own_types import OwnTypes

if TYPE_CHECKING:
    from splat_py.viewer.opening import ViewedScene


@dataclass
class View:
    """Walk through a scene in the browser.

    SCENE is a file (.ply .compressed.ply .spz .sog .splat .ksplat .glb), the folder of a training run, or that of a capture, of
    which cameras, photographs and points are shown.
    Open the address that is printed; Ctrl-C ends it. What pages save (a crop, a camera path, a video) goes to one folder.

    Example: splat view runs/fox
    """

    scene: Annotated[Positional[Path], arg(metavar="SCENE")]
    # Capture whose cameras and photographs to show; by default the one the run was trained on.
    data: Path | None = None
    # Divide the photographs' sides by this; by default as the run was trained.
    downscale: float | None = None
    # Folder for what pages save; by default the run's, that of the file, or for a capture the current one.
    out: Path | None = None
    # Address to listen on. 0.0.0.0 lets everybody on the network see the scene and press the buttons.
    host: str = "127.0.0.1"
    # Port to listen on; where it is taken, one of the next.
    port: int = 8080
    # metal, mps, cuda, vulkan or software; see `splat devices`.
    device: str | None = None
    # Slang files that the scene was trained with, named again.
    own: OmitArgPrefixes[OwnTypes] = field(default_factory=OwnTypes)

    def run(self) -> None:
        """Serve pages until Ctrl-C."""
        if not self.scene.exists():
            raise SplatError(f"{self.scene} does not exist; name a scene's file, a run's folder or a capture")
        if self.scene.is_file() and not is_scene_file(self.scene):
            raise SplatError(f"{self.scene} ends in none of {', '.join(ENDINGS)}; name one that does, a run or a capture")
        if self.downscale is not None and not 1 <= self.downscale < float("inf"):
            raise SplatError(f"--downscale is {self.downscale}; it must be 1 or more")
        from splat_py.viewer.page_server import address_of, page_server, require_viewer

        require_viewer()
        from splat_py.gpu.device import get_device
        from splat_py.viewer.opening import open_viewed
        from splat_py.viewer.viewer import Viewer

        scene = open_viewed(self.scene, self.data, self.downscale, self.own, self.out, get_device(self.device))
        try:
            with page_server(self.host, self.port) as server:
                viewer = Viewer(server, scene)
                warn_if_open(self.host)
                console.print(f"{_what(scene)}: open {address_of(server)} (Ctrl-C ends)", soft_wrap=True)
                try:
                    viewer.serve()
                finally:
                    viewer.close()
        except KeyboardInterrupt as interrupt:
            # It is how a viewer ends.
            if getattr(interrupt, "number", signal.SIGINT) != signal.SIGINT:
                raise


def warn_if_open(host: str) -> None:
    """Say who else can see the page."""
    from splat_py.viewer.page_server import OWN_NAMES

    if host not in OWN_NAMES:
        print_error(f"--host {host}: whoever reaches this machine can see the scene, and have files written to its folder")


def _what(scene: ViewedScene) -> str:
    parts = [] if scene.gaussians is None else [f"{len(scene.gaussians):,} Gaussians"]
    parts += [] if scene.dataset is None else [f"{len(scene.dataset)} photographs"]
    return ", ".join(parts)
