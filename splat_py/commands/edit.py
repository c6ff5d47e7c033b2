"""`splat edit`: scenes cut, cleaned, moved and put together, in files of any format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from splat_py.commands.given import given_options
from splat_py.commands.terminal import console, print_error
from splat_py.errors import SplatError
from splat_py.scene.formats.endings import require_ending, require_scene_file

if TYPE_CHECKING:
    from splat_py.scene.gaussians import Gaussians

Three = tuple[float, float, float]


@dataclass
class Edit:
    """Crop, clean, move and merge scenes. The last file is written, all before it are read and merged;
    a name's ending says the format: .ply .compressed.ply .spz .sog .splat .ksplat .glb (.sog folders are read by meta.json).

    Done in this order, whatever the order of the options: merge; remove faulty ones; crop, in the coordinates of the
    files that are read; remove floaters; keep harmonics; scale, then rotate about the origin, then translate.

    Example: splat edit room.ply table.spz both.sog --crop -1 -1 -1 1 1 1 --remove-floaters
    """

    # Scenes to read, and the one to write.
    files: Annotated[Positional[tuple[Path, ...]], arg(metavar="IN [IN ...] OUT")]
    # Leave out what holds NaN, infinity or a quaternion of zeros, and so has nowhere to be drawn.
    remove_faulty: bool = False
    # Keep what is in a box: the lowest corner's x y z, then the highest's.
    crop: tuple[float, float, float, float, float, float] | None = None
    # Keep what is in a sphere: its centre's x y z, then its radius.
    crop_sphere: tuple[float, float, float, float] | None = None
    # Remove what is faint, huge or isolated, by the three thresholds below.
    remove_floaters: bool = False
    # Faint: opacity below this; 0 removes none.
    faint: float = 0.005
    # Huge: standard deviation above this share of the scene's extent (and of half its distance from the middle).
    huge: float = 0.5
    # Isolated: its eight nearest others so many times farther than usual (and than five of its own standard deviations).
    isolated: float = 20.0
    # Keep spherical harmonics up to this degree, 0 to 3.
    sh_degree: int | None = None
    # Multiply all lengths.
    scale: float = 1.0
    # Turn by degrees about the axis x, then y, then z.
    rotate: Three = (0.0, 0.0, 0.0)
    # Move, in units of the result.
    translate: Three = (0.0, 0.0, 0.0)
    # Version of a .spz that is written: 2, 3 or 4, which takes the package zstandard.
    spz_version: int = 3

    def run(self) -> None:
        """Read, edit, write, and say what was removed."""
        *inputs, out = self.files if len(self.files) > 1 else (None, None)
        if out is None:
            raise SplatError("name the files to read and, last, the one to write")
        for path in self.files:
            require_ending(path)
        if not self.remove_floaters and given_options() & {"faint", "huge", "isolated"}:
            raise SplatError("--faint, --huge and --isolated say what --remove-floaters removes; give that as well")
        for path in self.files[:-1]:
            require_scene_file(path)
        from splat_py.scene.editing import merge
        from splat_py.scene.gaussians import Gaussians

        read = [Gaussians.load(path, self.remove_faulty) for path in inputs if path is not None]
        before = sum(map(len, read))
        gaussians = self._edited(merge(read))
        if not len(gaussians):
            raise SplatError(f"none of {before:,} Gaussians are left; {out} was not written")
        with console.status(f"writing {out}"):
            losses = gaussians.save(out, self.spz_version)
        for loss in losses:
            print_error(f"{out} does not hold {loss}")
        console.print(f"{len(gaussians):,} of {before:,} Gaussians are in {out}")

    def _edited(self, gaussians: Gaussians) -> Gaussians:
        import numpy as np

        from splat_py.scene import editing
        from splat_py.scene.similarity import Similarity

        similarity = Similarity(Similarity.from_degrees(*self.rotate).rotation, self.scale, np.array(self.translate))
        if self.remove_faulty:
            gaussians, count = editing.remove_faulty(gaussians)
            console.print(f"removed: {count:,} faulty")
        if self.crop is not None:
            gaussians = editing.crop(gaussians, self.crop[:3], self.crop[3:])
        if self.crop_sphere is not None:
            gaussians = editing.crop_sphere(gaussians, self.crop_sphere[:3], self.crop_sphere[3])
        if self.remove_floaters:
            floaters = editing.Floaters(self.faint, self.huge, self.isolated)
            gaussians, counts = editing.remove_floaters(gaussians, floaters)
            console.print("removed: " + ", ".join(f"{count:,} {kind}" for kind, count in counts.items()))
        if self.sh_degree is not None:
            gaussians = editing.keep_degree(gaussians, self.sh_degree)
        if (self.scale, self.rotate, self.translate) != (1.0, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)):
            gaussians = editing.transform(gaussians, similarity)
        return gaussians
