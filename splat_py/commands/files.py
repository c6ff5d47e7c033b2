"""`splat export`, `splat edit`, `splat partition` and `splat merge`: scene files, web pages, editing and cells."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from splat_py.base.errors import NoDeviceError, SplatError
from splat_py.commands.terminal import OnDevice, console, explicit_options, print_error, print_losses, track
from splat_py.scene.sources import (
    ENDINGS,
    Split,
    is_scene_file,
    require_capture,
    require_ending,
    require_scene,
    require_scene_file,
)

if TYPE_CHECKING:
    from splat_py.scene.camera import Camera
    from splat_py.scene.dataset import Dataset
    from splat_py.scene.environment import Environment
    from splat_py.scene.gaussians import Gaussians
    from splat_py.scene.images import View

Three = tuple[float, float, float]
Six = tuple[float, float, float, float, float, float]
# Two points and their distance (`splat_py.scene.similarity.scale_of`).
Reference = tuple[float, float, float, float, float, float, float]
# A photograph, and a pixel's column and row in it.
Place = tuple[str, int, int]
# The run of `splat demo`.
_DEMO = Path("runs/demo/run")


@dataclass
class Export(OnDevice):
    """Write a scene to a file for other viewers, or to a web page that contains a viewer.

    SCENE is a file, or a run's folder, whose last checkpoint is exported. The ending of OUT selects the format: .ply or .glb;
    the smaller and less exact .compressed.ply, .spz, .sog, .splat and .ksplat (docs/files.md); or .html, a page that opens from
    disk in any browser without a network.

    With --playground, write a page whose kernels, as WGSL on WebGPU, draw the scene and fit pictures.

    For example:
      splat export runs/fox fox.html
      splat export runs/fox --playground fox.html
    """

    # A run's folder or a scene file; for a playground by default the run of `splat demo` in runs/demo.
    scene: Annotated[Positional[Path | None], arg(metavar="SCENE")] = None
    # The file to write.
    out: Annotated[Positional[Path | None], arg(metavar="OUT")] = None
    # Write only this page.
    playground: Annotated[Path | None, arg(metavar="PAGE.html")] = None
    # Capture with a page's initial camera and up direction; by default the run's.
    data: Path | None = None
    # Clean a page of a capture that looks at one place: leave out floaters, and what is around the subject if the cameras go
    # all around it, as `splat edit --keep-subject --remove-floaters` does.
    clean: bool = True
    # Version of a .spz: 2, 3, or 4, which needs the package zstandard.
    spz_version: int = 3
    # Add the sky of a run with --environment as a shell of 5,000 far Gaussians; a .html holds it without.
    bake_environment: bool = True

    def run(self) -> None:
        if self.playground is not None:
            self._write_playground(self.playground)
        elif self.scene is None or self.out is None:
            raise SplatError("name a scene and the file to write: splat export SCENE OUT")
        else:
            self._write(self.scene, self.out)

    def _write_playground(self, page: Path) -> None:
        if self.out is not None:
            raise SplatError(f"{self.out} and {page} are two files to write; write them one at a time")
        if page.suffix.lower() not in (".html", ".htm"):
            raise SplatError(f"{page} does not end in .html; name a page for the playground")
        scene = self.scene or _DEMO
        if self.scene is None and not (scene / "run.json").exists():
            raise SplatError(f"{scene} has no scene; name another, or run `splat demo` to make it")
        require_scene(scene)
        from splat_py.scene.gaussians import Gaussians
        from splat_py.train.run import RunFolder, capture_of, learnt_of
        from splat_py.viewer.pages.scene_pages import write_playground

        how: dict[str, Any] = {"title": _title(scene)}
        if is_scene_file(scene):
            gaussians = Gaussians.load(scene)
        else:
            folder = RunFolder(scene)
            config, gaussians = folder.record().config, folder.gaussians()
            how["antialiased"] = config.antialiased
            environment = learnt_of(scene, config).environment
            if environment is not None:
                gaussians = self._baked(page, gaussians, environment)
            # The photographs may have been moved away.
            dataset = capture_of(scene, None)
            if dataset is not None:
                how |= {"cameras": [view.camera for view in dataset.views], "near": dataset.near}
                if environment is None:
                    how["background"] = tuple(map(float, dataset.background))
        with console.status("making the page"):
            write_playground(page, gaussians, **how)
        size = page.stat().st_size / 1e6
        console.print(f"open {page} in a browser with WebGPU: {len(gaussians):,} Gaussians, {size:.1f} MB")

    def _write(self, scene: Path, out: Path) -> None:
        is_page = out.suffix.lower() == ".html"
        if not is_page and (out.name.lower() == "meta.json" or not is_scene_file(out)):
            raise SplatError(f"{out} does not end in {', '.join(ENDINGS)} or .html; choose one of these")
        if self.data is not None and not is_page:
            raise SplatError("--data is for pages, .html; leave it out for a scene file, which has no cameras")
        if is_scene_file(scene):
            require_scene(scene)
        elif not scene.is_dir():
            raise SplatError(f"{scene} is not a folder; name the folder of a training run, or a scene file")
        gaussians, environment, after = _gaussians(scene, out)
        if environment is not None and not is_page:
            gaussians = self._baked(out, gaussians, environment)
        how: dict[str, Any] = {}
        if is_page:
            from splat_py.train.run import capture_of
            from splat_py.viewer.pages.scene_pages import write_viewer

            how = {"title": _title(scene)}
            dataset = capture_of(scene, self.data)
            if environment is not None:
                how["background"] = environment
            elif dataset is not None:
                how["background"] = dataset.background
            if dataset is None:
                console.print("no capture found: the page begins with a view of the whole scene; name a capture with --data")
            else:
                how["cameras"] = [view.camera for view in dataset.views]
                if self.clean:
                    command = shlex.join(["splat", "export", str(scene), str(out)])
                    gaussians = _cleaned(gaussians, dataset.train_cameras, command, self.device)
        with console.status(f"writing {out}"):
            losses = write_viewer(out, gaussians, **how) if is_page else gaussians.save(out, self.spz_version)
        print_losses(out, losses)
        console.print(f"{len(gaussians):,} Gaussians{after} are in {out}")

    def _baked(self, out: Path, gaussians: "Gaussians", environment: "Environment") -> "Gaussians":
        """The scene for a file that holds no environment: in a shell, or with a sentence that says why not."""
        why = "--no-bake-environment leaves it out"
        if self.bake_environment:
            try:
                return environment.baked(gaussians)
            except SplatError as error:
                why = str(error)
        print_error(f"the sky is missing in {out}: {why}")
        return gaussians


def _cleaned(gaussians: "Gaussians", cameras: "list[Camera]", command: str, device: str | None) -> "Gaussians":
    """The scene of a page without what only disturbs there, with a sentence that says so."""
    from splat_py.render.floaters import cleaned

    try:
        gaussians, counts = cleaned(gaussians, cameras, lambda each: track(each, "cleaning"), device)
    except NoDeviceError as error:
        print_error(f"the page is not cleaned: {error}")
        return gaussians
    if removed := ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count):
        console.print(f"left out of the page: {removed}; `{command} --no-clean` keeps them")
    return gaussians


def _title(scene: Path) -> str:
    return scene.stem if is_scene_file(scene) else "demo" if scene == _DEMO else scene.resolve().name


def _gaussians(scene: Path, out: Path) -> "tuple[Gaussians, Environment | None, str]":
    """The scene, the environment learnt with it, and a clause with its number of steps."""
    if is_scene_file(scene):
        from splat_py.scene.gaussians import Gaussians

        return Gaussians.load(scene), None, ""
    from splat_py.train.capture_model import LearntCapture
    from splat_py.train.checkpoint import Checkpoint
    from splat_py.train.run import RunFolder

    checkpoint = Checkpoint.load(RunFolder(scene).checkpoint)
    gaussians, config = checkpoint.gaussians(), checkpoint.config
    # Other viewers do not read the type from the .ply's comments.
    if gaussians.splat != "Gaussian" and out.suffix.lower() == ".ply":
        console.print(f"splats are of type {config.splat}; other viewers draw them as Gaussians")
    if gaussians.features is not None:
        console.print(f"colours are of type {config.color}; other viewers show the same colour from all directions")
    return gaussians, LearntCapture.of(checkpoint.state).environment, f" after {checkpoint.step:,} steps"


@dataclass
class Edit(OnDevice):
    """Crop, clean, move and merge scenes, and cut objects out. All files, or folders of runs, except the last are read and
    merged; the last is written. Endings select formats: .ply .compressed.ply .spz .sog .splat .ksplat .glb (for a .sog folder
    name its meta.json).

    The order of the steps is fixed: merge; remove faulty Gaussians; crop, in the coordinates of the input files; keep or
    remove objects; keep the subject; remove floaters; keep harmonics; scale, then rotate about the origin, then translate.

    For example:
      splat edit room.ply table.spz both.sog --crop -1 -1 -1 1 1 1 --remove-floaters
      splat edit runs/fox/scene.ply fox.ply --keep-subject --remove-floaters --data runs/fox
      splat edit runs/fox fox.ply --keep-object 0001.jpg 540 600 --masks masks --data runs/fox
    """

    # Scenes to read, then the one to write.
    files: Annotated[Positional[tuple[Path, ...]], arg(metavar="IN [IN ...] OUT")]
    # Remove Gaussians with NaN, infinity or a zero quaternion.
    remove_faulty: bool = False
    # Keep Gaussians in a box: x y z of its lowest corner, then of its highest.
    crop: Six | None = None
    # Keep Gaussians in a sphere: x y z of its centre, then its radius.
    crop_sphere: tuple[float, float, float, float] | None = None
    # Keep the object that a pixel shows: a photograph of --data, and the pixel's column and row in it; repeat the three for
    # several. An object stands out of the plane (floor, table, wall) that most of the scene lies on, and touches no other.
    keep_object: Annotated[tuple[Place, ...], arg(metavar="PHOTO X Y [PHOTO X Y ...]")] = ()
    # Remove objects instead, named likewise.
    remove_object: Annotated[tuple[Place, ...], arg(metavar="PHOTO X Y [PHOTO X Y ...]")] = ()
    # The largest gap within an object, in spacings of Gaussians. More joins missing parts, less separates objects.
    reach: float = 1.3
    # Also write masks of the photographs of --data into this new folder: of kept objects, for `splat train --cut-out`; or of
    # all but removed ones, for the folder masks of a capture.
    masks: Path | None = None
    # Keep what the cameras of --data look at: the sphere around the point that they look at which fits into their pictures.
    keep_subject: bool = False
    # Remove faint, huge and isolated Gaussians, by the three thresholds below. With --data, also remove what only one
    # camera or none sees, what floats in front of one, and smears that a single photograph shows.
    remove_floaters: bool = False
    # A run's folder or a capture, with the photographs and cameras for --keep-object, --remove-object, --keep-subject and
    # --remove-floaters.
    data: Path | None = None
    # Faint: opacity below this; 0 removes none.
    faint: float = 0.005
    # Huge: standard deviation above this share of the scene's extent, and above half its distance from the middle.
    huge: float = 0.5
    # Isolated: mean distance to the eight nearest neighbours above this multiple of the median, and above five deviations.
    isolated: float = 20.0
    # Keep spherical harmonics up to this degree, 0 to 3.
    sh_degree: int | None = None
    # Multiply all lengths by this.
    scale: float = 1.0
    # Two points, x y z each, in coordinates of the input, and the distance that they shall have; in the place of --scale.
    scale_reference: Reference | None = None
    # Rotate by degrees about the axis x, then y, then z.
    rotate: Three = (0.0, 0.0, 0.0)
    # Translate by x y z, in units of the result.
    translate: Three = (0.0, 0.0, 0.0)
    # Version of a written .spz: 2, 3, or 4, which needs the package zstandard.
    spz_version: int = 3

    def run(self) -> None:
        if len(self.files) < 2:
            raise SplatError("name the files to read, then the file to write")
        *inputs, out = self.files
        require_ending(out)
        inputs = [path / "scene.ply" if (path / "run.json").is_file() else path for path in inputs]
        if not self.remove_floaters and explicit_options() & {"faint", "huge", "isolated"}:
            raise SplatError("--faint, --huge and --isolated are thresholds of --remove-floaters; add it")
        if self.scale_reference is not None and "scale" in explicit_options():
            raise SplatError("--scale and --scale-reference both set the scale; leave one out")
        places = self.keep_object + self.remove_object
        if (self.keep_subject or places) and self.data is None:
            needs = "--keep-subject" if self.keep_subject else "--keep-object" if self.keep_object else "--remove-object"
            raise SplatError(f"{needs} needs cameras; name the run's folder or the capture with --data")
        if self.keep_object and self.remove_object:
            raise SplatError("--keep-object keeps nothing else, so --remove-object has nothing to remove; leave one out")
        if not places and (self.masks or "reach" in explicit_options()):
            raise SplatError("--masks and --reach are for objects; name one with --keep-object or --remove-object")
        if self.data is not None and not (self.keep_subject or self.remove_floaters or places):
            raise SplatError("--data has cameras for --keep-object, --keep-subject and --remove-floaters; add one of these")
        for path in inputs:
            require_scene_file(path)
        from splat_py.scene.editing import merge
        from splat_py.scene.gaussians import Gaussians

        read = [Gaussians.load(path, self.remove_faulty) for path in inputs]
        before = sum(map(len, read))
        gaussians = self._edited(merge(read))
        if not len(gaussians):
            raise SplatError(f"none of {before:,} Gaussians are left; {out} was not written")
        with console.status(f"writing {out}"):
            losses = gaussians.save(out, self.spz_version)
        print_losses(out, losses)
        console.print(f"{len(gaussians):,} of {before:,} Gaussians are in {out}")

    def _edited(self, gaussians: "Gaussians") -> "Gaussians":
        import numpy as np

        from splat_py.scene import editing
        from splat_py.scene.camera import subject_sphere
        from splat_py.scene.similarity import Similarity, scale_of

        scale = self.scale if self.scale_reference is None else scale_of(self.scale_reference)
        similarity = Similarity(Similarity.from_degrees(*self.rotate).rotation, scale, np.array(self.translate))
        if self.remove_faulty:
            gaussians, count = editing.remove_faulty(gaussians)
            console.print(f"removed: {count:,} faulty")
        if self.crop is not None:
            gaussians = editing.crop(gaussians, self.crop[:3], self.crop[3:])
        if self.crop_sphere is not None:
            gaussians = editing.crop_sphere(gaussians, self.crop_sphere[:3], self.crop_sphere[3])
        dataset = None if self.data is None else _capture(self.data)
        cameras = [] if dataset is None else dataset.train_cameras
        if dataset is not None and (self.keep_object or self.remove_object):
            gaussians = self._cut_out(gaussians, dataset)
        if self.keep_subject:
            center, radius = subject_sphere(cameras)
            gaussians = editing.crop_sphere(gaussians, center, radius)
            place = " ".join(f"{x:.4g}" for x in (*center, radius))
            console.print(f"the subject: --crop-sphere {place} ({len(gaussians):,} Gaussians)")
        if self.remove_floaters:
            from splat_py.render.floaters import Floaters, remove_floaters

            floaters = Floaters(self.faint, self.huge, self.isolated)
            shown = track(cameras, "cameras") if cameras else ()
            gaussians, counts = remove_floaters(gaussians, floaters, shown, self.device)
            console.print("removed: " + ", ".join(f"{count:,} {kind}" for kind, count in counts.items()))
        if self.sh_degree is not None:
            gaussians = editing.keep_degree(gaussians, self.sh_degree)
        if (scale, self.rotate, self.translate) != (1.0, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)):
            gaussians = editing.transform(gaussians, similarity)
        return gaussians

    def _cut_out(self, gaussians: "Gaussians", dataset: "Dataset") -> "Gaussians":
        import numpy as np

        from splat_py.gpu.device import get_device
        from splat_py.render.selection import objects, pick, write_masks
        from splat_py.scene import editing

        device = get_device(self.device)
        how: dict[str, Any] = {"antialiased": gaussians.antialiased, "near": dataset.near, "device": device}
        places, removed = self.keep_object or self.remove_object, bool(self.remove_object)
        with console.status("finding objects"):
            labels, rows = objects(gaussians, self.reach), np.zeros(len(gaussians), bool)
            for photograph, x, y in places:
                view = _view(dataset, photograph)
                # Pixels are those of the stored photograph.
                rows |= pick(gaussians, labels, view.stored_camera.resized(view.lens.width, view.lens.height), x, y, **how)
        what = f"the object{'s' * (len(places) > 1)}: {rows.sum():,} Gaussians"
        if self.masks is not None:
            shown = track(dataset.views, "masks")
            count = write_masks(self.masks, dataset.root, shown, gaussians, rows, outside=removed, **how)
            what += f"; masks of {count} of {len(dataset)} photographs are in {self.masks}"
        console.print(what)
        return editing.select(gaussians, rows != removed)


def _capture(data: Path) -> "Dataset":
    """The capture of a run's folder, or a capture itself."""
    from splat_py.train.run import capture_of

    dataset = capture_of(data, None if (data / "run.json").exists() else data)
    if dataset is None:
        raise SplatError(f"the capture of {data} is missing or damaged; name the capture itself with --data")
    return dataset


def _view(dataset: "Dataset", photograph: str) -> "View":
    """The view of a photograph, named by its path in the capture or its file's name."""
    found = [view for view in dataset.views if photograph in (view.name, view.path.name)]
    if len(found) != 1:
        raise SplatError(
            f"{photograph} names {len(found)} photographs of {dataset.root}; name one, such as {dataset.views[0].name}"
        )
    return found[0]


@dataclass
class Partition:
    """Divide a capture whose scene is too large for one device into overlapping cells.

    Each cell becomes a folder for `splat train`. It refers to the photographs that were taken in the cell or see enough of it;
    they are not copied. Train the cells one after the other or on several machines; `splat merge` joins them without their
    margins.

    Example: splat partition captures/town --cells 3x2 --out runs/town
    """

    # Folder of the capture, as for `splat train`. It needs points.
    data: Annotated[Positional[Path], arg(metavar="DATA")]
    # Folder to create, with a subfolder for each cell.
    out: Path
    # Number of cells along the direction of the cameras' largest spread, and across.
    cells: str = "2x2"
    # Share of its size by which a cell is widened at each side for training.
    overlap: float = 0.2
    # Hold out the middle one of every n photographs of the whole capture, in the order of their names; 0 holds out none.
    test_every: int = 8
    # Hold out the first one of these n instead, as papers do.
    test_split: Split = "middle"

    def run(self) -> None:
        from splat_py.scene.partition import MOST_CELLS, RUN, cell_name, divide, write_cells

        match = re.fullmatch(r"([0-9]{1,2})[x×]([0-9]{1,2})", self.cells)
        columns, rows = map(int, match.groups()) if match else (0, 0)
        if not 2 <= columns * rows <= MOST_CELLS:
            raise SplatError(f"cells is {self.cells[:32]!r}; give columns and rows, such as 2x2, at most {MOST_CELLS} cells")
        if not 0 <= self.overlap <= 1:
            raise SplatError(f"overlap is {self.overlap}; it must be a share of a cell's size, 0 to 1")
        require_capture(self.data)
        from splat_py.scene.dataset import load_dataset

        with console.status("dividing"):
            how: dict[str, Any] = {"test_every": self.test_every, "test_split": self.test_split}
            dataset = load_dataset(self.data, memory_limit_bytes=0, undistort=False, **how)
            grid, cells = divide(dataset, columns, rows, self.overlap)
            write_cells(dataset, grid, cells, self.out)
        console.print(f"{len(dataset.train)} photographs and {len(dataset.points[0]):,} points in {len(cells)} cells:")  # type: ignore[index]
        for cell in cells:
            console.print(f"{cell_name(cell.place)}: {len(cell.train)} photographs, {len(cell.points):,} points")
        console.print("train each cell with the same options, then merge them:")
        # Cells are parts of one scene: none chooses for itself.
        same = ["--quality", "off", *([] if dataset.test else ["--test-every", "0"])]
        for cell in cells:
            folder = self.out / cell_name(cell.place)
            _print_command("train", folder, "--out", folder / RUN, *same)
        merged = self.out / "scene.ply"
        _print_command("merge", self.out, "--out", merged)
        if dataset.test:
            split = [] if self.test_split == "middle" else ["--test-split", self.test_split]
            _print_command("eval", merged, "--data", self.data, *split)


@dataclass
class Merge:
    """Merge the cells of `splat partition` after each is trained in its folder `run`.

    Each cell keeps its own Gaussians and drops those in its margins; outer cells are unbounded. Use `splat edit` to merge other
    scenes.

    Example: splat merge runs/town --out town.ply
    """

    # The --out of `splat partition`, or the folders of its cells, which may have moved.
    cells: Annotated[Positional[tuple[Path, ...]], arg(metavar="FOLDER [FOLDER ...]")]
    # The scene to write; its ending selects the format, as for `splat edit`.
    out: Path

    def run(self) -> None:
        require_ending(self.out)
        from splat_py.train.run import merge_cells

        with console.status("merging"):
            gaussians, counts = merge_cells(self.cells)
            losses = gaussians.save(self.out)
        for name, (kept, count) in counts.items():
            console.print(f"{name}: {kept:,} of {count:,} Gaussians")
        print_losses(self.out, losses)
        console.print(f"{len(gaussians):,} Gaussians are in {self.out}")


def _print_command(*words: object) -> None:
    console.print(f"  splat {shlex.join(map(str, words))}")
