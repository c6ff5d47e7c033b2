"""`splat mesh`: the surface of a scene, as triangles."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from splat_py.base.errors import SplatError
from splat_py.commands.files import Reference, Six
from splat_py.commands.terminal import OnDevice, console
from splat_py.scene.sources import require_cameras, require_mesh_name, require_scene
from splat_py.shaders.custom_types import OwnTypes


@dataclass
class MeshCommand(OnDevice):
    """Write the surface that a scene's cameras see as a mesh of coloured triangles, .ply or .glb, for modelling, printing and
    games.

    SCENE is a run's folder, or a file (.ply .compressed.ply .spz .sog .splat .ksplat .glb), which needs --data. What at least
    two cameras saw becomes surface, the rest stays open. Scenes trained with --splat Surfel are the most exact. Needs
    scikit-image and trimesh: pip install 'slang-splat[mesh]'.

    Example: splat mesh runs/fox fox.glb --close-holes
    """

    # A run's folder or a scene file.
    scene: Annotated[Positional[Path], arg(metavar="SCENE")]
    # The mesh to write: .ply, in the scene's axes, or .glb.
    out: Annotated[Positional[Path], arg(metavar="OUT")]
    # Capture with the cameras; by default the run's.
    data: Path | None = None
    # Voxels along the longest side: more give finer triangles, and take more memory and time.
    resolution: int = 256
    # Only in this box: x y z of its lowest corner, then of its highest; by default around what the cameras see.
    crop: Six | None = None
    # Count what no camera saw as inside, so that the mesh is closed (watertight).
    close_holes: bool = False
    # Two points of the scene, x y z each, and their real distance, for a mesh in real units.
    scale_reference: Reference | None = None
    # Slang files that the scene was trained with.
    own: OmitArgPrefixes[OwnTypes] = field(default_factory=OwnTypes)

    def run(self) -> None:
        require_mesh_name(self.out)
        require_scene(self.scene, self.data)
        require_cameras(self.scene, self.data)
        if self.out.resolve() in ((self.scene / "scene.ply").resolve(), self.scene.resolve()):
            raise SplatError(f"{self.out} is the scene itself; choose another name for the mesh")
        from splat_py.base.files import require_writable
        from splat_py.gpu.device import get_device
        from splat_py.render.mesh import mesh
        from splat_py.scene.similarity import scale_of
        from splat_py.viewer.opening import open_viewed

        require_writable(self.out)
        scale = 1.0 if self.scale_reference is None else scale_of(self.scale_reference)
        scene = open_viewed(self.scene, self.data, own=self.own, device=get_device(self.device), without_capture=False)
        gaussians, dataset = scene.gaussians, scene.dataset
        assert gaussians is not None and dataset is not None
        bounds = None if self.crop is None else (self.crop[:3], self.crop[3:])
        how = {"resolution": self.resolution, "bounds": bounds, "close_holes": self.close_holes, **scene.look.how}
        made = mesh(gaussians, dataset.train_cameras, **how)
        made._replace(vertices=made.vertices * scale).save(self.out)
        console.print(f"{len(made.faces):,} triangles are in {self.out}")
