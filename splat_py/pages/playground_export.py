"""What `splat export --playground` does: from a run's folder or a file to a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from splat_py.errors import SplatError
from splat_py.pages.playground import View, write_playground
from splat_py.scene.formats.endings import is_scene_file
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.missing_poses import require_scene
from splat_py.splats.config import TrainConfig
from splat_py.splats.run_folder import RunFolder, capture_of, learnt_of

# Where `splat demo` leaves its scene.
_DEMO = Path("runs/demo/run")


def export_playground(scene: Path | None, page: Path) -> Gaussians:
    """Write the page, and return what is in it.

    Args:
        scene: a run's folder or a file of Gaussians; the scene that `splat demo` has left in runs/demo if None.
        page: the HTML file.

    Raises:
        SplatError: there is no such scene, it cannot be read or shown, or the page cannot be written.
    """
    if page.suffix.lower() not in (".html", ".htm"):
        raise SplatError(f"{page} does not end in .html; a playground is a page")
    if scene is None:
        scene = _DEMO
        if not (scene / "run.json").exists():
            raise SplatError(f"there is no scene in {scene}; name one, or make that by `splat demo`")
    require_scene(scene)
    if is_scene_file(scene):
        gaussians = Gaussians.load(scene)
        write_playground(page, gaussians, title=scene.stem)
        return gaussians
    folder = RunFolder(scene)
    config, gaussians = folder.record().config, folder.gaussians()
    write_playground(
        page,
        gaussians,
        title="demo" if scene == _DEMO else scene.resolve().name,
        antialiased=config.antialiased,
        **_of_capture(folder, config),
    )
    return gaussians


def _of_capture(folder: RunFolder, config: TrainConfig) -> dict[str, Any]:
    """What only the photographs tell; nothing if they have been moved away."""
    dataset = capture_of(folder.root, None)
    if dataset is None:
        return {}
    cameras = [view.camera for view in dataset.views]
    found = {"view": View.of_cameras(cameras), "near": dataset.near}
    # What was learnt for infinity is in no kernel of the page's.
    learnt = learnt_of(folder.root, config).environment
    return found if learnt is not None else found | {"background": tuple(map(float, dataset.background))}
