"""What `splat view` is given, opened: a scene's file, a run, or a capture."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splat_py.errors import DeviceLostError, SplatError
from splat_py.gpu.device import Device
from splat_py.scene.camera import Camera, find_focus, mean_up
from splat_py.scene.dataset import NEAR, Dataset
from splat_py.scene.formats.endings import is_scene_file
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.options import DataOptions
from splat_py.splats.checkpoint import Checkpoint
from splat_py.splats.own_types import CAMERA, COLOR, SPLAT, OwnTypes
from splat_py.splats.render_modes import Look
from splat_py.splats.rendering import through
from splat_py.splats.run_folder import RunFolder, learnt_of

# Degrees from the upper to the lower edge of a page where no camera says.
_FIELD_OF_VIEW = 60.0
_SIZE = 1280, 720


@dataclass(eq=False)
class ViewedScene:
    """What is shown.

    Attributes:
        look: how frames are drawn.
        gaussians: None of a capture alone.
        dataset: cameras, photographs and points, or None of a scene's file alone.
        scores: PSNR in dB of held-out views by index into the dataset's views.
        folder: where pages may have files written.
        scored: whether held-out views may be compared with renders: not where their poses were learnt in training.
    """

    look: Look
    gaussians: Gaussians | None
    dataset: Dataset | None
    folder: Path
    scores: dict[int, float] = field(default_factory=dict)
    scored: bool = True

    @property
    def up(self) -> NDArray[np.float64]:
        """Upwards in the world: as the cameras say, otherwise against y, as COLMAP's scenes mostly are."""
        if self.dataset is None:
            return np.array([0.0, -1.0, 0.0])
        return mean_up([view.camera for view in self.dataset.views])

    @property
    def focus(self) -> NDArray[np.float64]:
        """What there is to look at, [3]."""
        if self.dataset is not None:
            return find_focus([self.dataset.views[i].camera for i in self.dataset.train])[0]
        return self._extent[0]

    @property
    def scale(self) -> float:
        """A length in proportion to the scene, above 0."""
        return self.dataset.scene_scale if self.dataset is not None else self._extent[1]

    def first_camera(self) -> Camera:
        """Where a page begins: at the first training photograph, or before the middle of all Gaussians."""
        if self.dataset is not None:
            return self.dataset.views[self.dataset.train[0]].camera
        middle, extent = self._extent
        eye = middle + extent * np.array([0.0, -0.8, -2.5])
        return Camera.look_at(eye, middle, self.up, _FIELD_OF_VIEW, *_SIZE)

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
) -> ViewedScene:
    """What a scene's file, the folder of a run or that of a capture holds.

    Args:
        data, downscale: of the capture that goes with a scene; by default those of the run, if it is still there.
        own: Slang source that the scene was trained with.
        folder: where pages may have files written; by default the run's, beside the scene, or the current one for a capture.

    Raises:
        SplatError: a file is missing or damaged, or its Slang source is not trusted.

    Warns:
        UserWarning: the capture of a run is not there any more.
    """
    own = own or OwnTypes()
    if is_scene_file(target):
        gaussians = _trusted(Gaussians.load(target), own, target)
        dataset = None if data is None else _options(data, downscale).load(0)
        look = _look(dataset, gaussians.antialiased, gaussians, device)
        return ViewedScene(look, gaussians, dataset, folder or target.absolute().parent)
    if (target / "run.json").exists():
        return _open_run(target, data, downscale, own, folder, device)
    dataset = _options(target, downscale).load(0)
    return ViewedScene(_look(dataset, False, None, device), None, dataset, folder or Path.cwd())


def _open_run(
    target: Path, data: Path | None, downscale: float | None, own: OwnTypes, folder: Path | None, device: Device | None
) -> ViewedScene:
    run = RunFolder(target)
    record = run.record()
    options, config = record.data, record.config
    options = replace(options, data=data or options.data, downscale=downscale or options.downscale)
    # The scene is written after the last checkpoint; a run that was extended since has a newer one.
    finished = run.scene.exists() and not (
        run.checkpoint.exists() and run.checkpoint.stat().st_mtime > run.scene.stat().st_mtime
    )
    loaded = run.gaussians() if finished else Checkpoint.load(run.checkpoint).gaussians()
    gaussians = _trusted(loaded, own, target)
    environment, dataset = None, None
    if finished:
        learnt = learnt_of(target, config)
        environment = learnt.environment
    named = None if own.camera is None else CAMERA.named(own.camera)
    camera = CAMERA.trusted(CAMERA.of(config), named, own.trust_source, str(target))
    try:
        dataset = through(options.load(0), camera)
    except DeviceLostError:
        raise
    except SplatError as error:
        if data is not None:
            raise
        warnings.warn(f"the scene is shown without its capture: {error}", stacklevel=2)
    if dataset is not None and finished:
        dataset = learnt.refined(dataset)
    scene = ViewedScene(_look(dataset, config.antialiased, gaussians, device), gaussians, dataset, folder or target)
    if environment is not None:
        scene.look = replace(scene.look, background=environment)
    scene.scored = not config.refine_cameras
    if finished and dataset is not None:
        scene.scores = _recorded_scores(run, dataset)
    return scene


def _options(data: Path, downscale: float | None) -> DataOptions:
    """Photographs are then read one by one, when they are wanted."""
    return DataOptions(data, downscale or 1.0)


def _look(dataset: Dataset | None, antialiased: bool, gaussians: Gaussians | None, device: Device | None) -> Look:
    if dataset is not None:
        return Look(dataset.background, dataset.scene_scale, antialiased, dataset.near, device)
    look = Look((0.0, 0.0, 0.0), 1.0, antialiased, NEAR, device)
    scale = ViewedScene(look, gaussians, None, Path()).scale
    return replace(look, scene_scale=scale, near=min(NEAR, NEAR * scale))


def _trusted(gaussians: Gaussians, own: OwnTypes, source: Path) -> Gaussians:
    """With types that the user has named again, or trusts."""
    splat = None if own.splat is None else SPLAT.named(own.splat)
    color = None if own.color is None else COLOR.named(own.color)
    return replace(
        gaussians,
        splat=SPLAT.trusted(gaussians.splat, splat, own.trust_source, str(source)),
        color=COLOR.trusted(gaussians.color, color, own.trust_source, str(source)),
    )


def _recorded_scores(run: RunFolder, dataset: Dataset) -> dict[int, float]:
    """What the run has found, of views that are still held out."""
    try:
        found = {view["name"]: float(view["psnr"]) for view in run.metrics()["held_out"]["views"]}
    except (KeyError, TypeError, ValueError):
        return {}
    return {i: found[name] for i in dataset.test if (name := dataset.views[i].name) in found and np.isfinite(found[name])}
