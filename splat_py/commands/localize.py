"""`splat localize`: the pose from which a photograph of a scene was taken."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, arg

from splat_py.base.errors import printable
from splat_py.commands.terminal import OnDevice, console
from splat_py.scene.sources import require_cameras, require_scene
from splat_py.shaders.custom_types import OwnTypes

# Photographs are compared at up to this many pixels along their longer side.
_LONGEST = 1024


@dataclass
class Localize(OnDevice):
    """Find where a photograph of a scene was taken: its pose, how far it is known, and a picture of the photograph beside what
    the scene looks like from there.

    SCENE is a run's folder, or a file (.ply .compressed.ply .spz .sog .splat .ksplat .glb), which needs --data. The search
    starts from the capture's cameras that see most nearly the same. The photograph must come from the capture's kind of lens;
    with another zoom, add --focal.

    Example: splat localize runs/fox photo.jpg
    """

    # A run's folder or a scene file.
    scene: Annotated[Positional[Path], arg(metavar="SCENE")]
    # The photograph.
    photograph: Annotated[Positional[Path], arg(metavar="PHOTO")]
    # Capture with the cameras to start from; by default the run's.
    data: Path | None = None
    # Also find the focal length.
    focal: bool = False
    # The picture to write, by default beside the photograph as NAME.localized.png.
    out: Path | None = None
    # Write pose, intrinsics and uncertainty to this file, as JSON.
    json: Path | None = None
    # Slang files that the scene was trained with.
    own: OmitArgPrefixes[OwnTypes] = field(default_factory=OwnTypes)

    def run(self) -> None:
        require_scene(self.scene, self.data)
        require_cameras(self.scene, self.data)
        import numpy as np

        from splat_py.base.files import require_writable, write_json
        from splat_py.gpu.device import get_device
        from splat_py.render.localization import localize
        from splat_py.render.views import render
        from splat_py.scene.images import load_view, open_view
        from splat_py.scene.pictures import beside, read_header, write_image
        from splat_py.train.run import learnt_of, open_scene

        out = self.out or self.photograph.with_suffix(".localized.png")
        for path in (out, self.json):
            if path is not None:
                require_writable(path)
        width, height, _ = read_header(self.photograph)
        device = get_device(self.device)
        gaussians, dataset, config = open_scene(self.scene, self.data, None, self.own)
        environment = learnt_of(self.scene, config).environment
        how: dict[str, Any] = {"antialiased": config.antialiased, "near": dataset.near, "device": device}
        behind = dataset.background if environment is None else environment
        # Starts take the lens whose shape is the photograph's, and the places of all views.
        like = min(dataset.views, key=lambda view: abs(view.lens.width * height - view.lens.height * width))
        view = open_view(str(self.photograph), like.camera.viewmat, like.lens, self.photograph, None)
        camera = like.camera.resized(width, height).scaled(min(1.0, _LONGEST / max(width, height)))
        photograph = load_view(replace(view, camera=camera), dataset.background)
        starts = [replace(camera, viewmat=each.camera.viewmat) for each in dataset.views]
        with console.status("comparing"):
            found = localize(gaussians, photograph, starts, behind, focal=self.focal, **how)
        gain, offset = found.exposure
        picture = render(gaussians, found.camera, behind, **how) * gain + offset
        write_image(out, beside(photograph[..., :3] / np.float32(255), picture.clip(0, 1)))
        distances = [float(np.linalg.norm(each.position - found.camera.position)) for each in starts]
        nearest = int(np.argmin(distances))
        at = ", ".join(f"{x:.4g}" for x in found.camera.position)
        console.print(
            f"taken at ({at}), {distances[nearest]:.3g} from {printable(dataset.views[nearest].name)}; "
            f"± {found.degrees:.2g}° and ± {found.distance:.2g} (one standard deviation)"
        )
        console.print(f"colours differ by {found.residual:.3f} (root mean square, 0 to 1); both are in {printable(str(out))}")
        if self.json is not None:
            write_json(
                self.json,
                {
                    "viewmat": found.camera.viewmat.tolist(),
                    "K": found.camera.K.tolist(),
                    "width": found.camera.width,
                    "height": found.camera.height,
                    "residual": found.residual,
                    "covariance": found.covariance.tolist(),
                    "exposure": found.exposure.tolist(),
                },
            )
