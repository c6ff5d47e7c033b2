"""`splat export`: a scene for other viewers, or as a page that is one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from splat_py.commands.terminal import console, print_error
from splat_py.errors import SplatError
from splat_py.scene.formats.endings import ENDINGS, is_scene_file
from splat_py.scene.missing_poses import require_scene

if TYPE_CHECKING:
    from splat_py.scene.gaussians import Gaussians


@dataclass
class Export:
    """Write a scene to a file that other viewers read, or to a web page with the viewer inside.

    SCENE is a run's folder, as it is in its last checkpoint, or a file. OUT's ending says what is written: .ply, whole;
    .compressed.ply .spz .sog .splat .ksplat, smaller and less exact (docs/files.md); .glb; or .html, one page that opens from
    disk in any browser, without a network.

    With --playground, a page in which the kernels themselves draw the scene and fit pictures, as WGSL on WebGPU.

    Examples:
      splat export runs/fox fox.html
      splat export runs/fox --playground fox.html
    """

    # A run's folder, or a file of Gaussians; of a playground by default what `splat demo` has left in runs/demo.
    scene: Annotated[Positional[Path | None], arg(metavar="SCENE")] = None
    # The file.
    out: Annotated[Positional[Path | None], arg(metavar="OUT")] = None
    # Write this page and nothing else.
    playground: Annotated[Path | None, arg(metavar="PAGE.html")] = None
    # Of a page: capture whose first camera and upright it begins with; by default the one the run was trained on.
    data: Path | None = None
    # Version of a .spz: 2, 3 or 4, which takes the package zstandard.
    spz_version: int = 3

    def run(self) -> None:
        """Convert."""
        if self.playground is not None:
            self._write_playground(self.playground)
        elif self.scene is None or self.out is None:
            raise SplatError("name a scene and the file to write: splat export SCENE OUT")
        else:
            self._write(self.scene, self.out)

    def _write_playground(self, page: Path) -> None:
        from splat_py.pages.playground_export import export_playground

        if self.out is not None:
            raise SplatError(f"there are two files to write, {self.out} and {page}; write one after the other")
        with console.status("making the page"):
            shown = export_playground(self.scene, page)
        console.print(f"open {page} in a browser with WebGPU: {len(shown):,} Gaussians, {page.stat().st_size / 1e6:.1f} MB")

    def _write(self, scene: Path, out: Path) -> None:
        is_page = out.suffix.lower() == ".html"
        if not is_page and (out.name.lower() == "meta.json" or not is_scene_file(out)):
            raise SplatError(f"{out} does not end in {', '.join(ENDINGS)} or .html, which are written")
        if self.data is not None and not is_page:
            raise SplatError("--data is of pages, .html; a scene's file has no cameras")
        if not is_scene_file(scene) and not scene.is_dir():
            raise SplatError(f"{scene} is not a folder; name the folder of a training run, or a scene's file")
        if is_scene_file(scene):
            require_scene(scene)
        gaussians, steps = _gaussians(scene, out)
        if is_page:
            losses = self._write_page(scene, out, gaussians)
        else:
            with console.status(f"writing {out}"):
                losses = gaussians.save(out, self.spz_version)
        for loss in losses:
            print_error(f"{out} does not hold {loss}")
        after = "" if steps is None else f" after {steps:,} steps"
        console.print(f"{len(gaussians):,} Gaussians{after} are in {out}")

    def _write_page(self, scene: Path, out: Path, gaussians: Gaussians) -> list[str]:
        """What the page does not hold."""
        from splat_py.pages.viewer import write_viewer
        from splat_py.splats.run_folder import capture_of

        dataset = capture_of(scene, self.data)
        if dataset is None:
            console.print("no capture is known: the page begins with a view of the whole scene (--data names one)")
        with console.status(f"writing {out}"):
            if dataset is None:
                return write_viewer(out, gaussians)
            return write_viewer(out, gaussians, [view.camera for view in dataset.views], dataset.background)


def _gaussians(scene: Path, out: Path) -> tuple[Gaussians, int | None]:
    """The scene, and after how many steps."""
    if is_scene_file(scene):
        from splat_py.scene.gaussians import Gaussians

        return Gaussians.load(scene), None
    from splat_py.splats.checkpoint import Checkpoint
    from splat_py.splats.run_folder import RunFolder

    checkpoint = Checkpoint.load(RunFolder(scene).checkpoint)
    gaussians = checkpoint.gaussians()
    # Other viewers do not read our comments of a .ply.
    if gaussians.splat != "Gaussian" and out.suffix.lower() == ".ply":
        name = checkpoint.config.splat
        console.print(f"splats are of type {name}; other viewers know only Gaussians, and will draw these as such")
    if checkpoint.config.environment:
        print_error(f"{out} does not hold the environment that was learnt with the scene; what is behind it is lost")
    if gaussians.features is not None:
        name = checkpoint.config.color
        console.print(f"colours are of type {name}; other viewers will show the same from all directions")
    return gaussians, checkpoint.step
