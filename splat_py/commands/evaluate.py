"""`splat eval`: how well a scene predicts the photographs that were held out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from splat_py.commands.terminal import console
from splat_py.errors import SplatError
from splat_py.scene.missing_poses import require_cameras, require_scene
from splat_py.splats.own_types import OwnTypes

if TYPE_CHECKING:
    from splat_py.splats.evaluation import Scores, ViewScore


@dataclass
class Evaluate:
    """Compare a scene with the photographs that were held out from training: by view PSNR, SSIM and, where it can
    be, LPIPS, and PSNR once colours are matched, channel by channel, to the photograph's (gsplat's cc_psnr).

    SCENE is a run's folder, or a file (.ply .compressed.ply .spz .sog .splat .ksplat .glb), which needs --data.

    Example: splat eval runs/fox --json scores.json
    """

    scene: Annotated[Positional[Path], arg(metavar="SCENE")]
    # Write the scores here, as JSON.
    json: Path | None = None
    # Write photographs beside renders into this folder.
    pictures: Path | None = None
    # Capture to compare with; by default the one the run was trained on.
    data: Path | None = None
    # Divide the photographs' sides by this; by default as the run was trained.
    downscale: float | None = None
    # Fail, saying why, where LPIPS cannot be computed: it takes torchvision, torchmetrics or lpips, and AlexNet's weights,
    # which are never downloaded. Without this it is left out there.
    lpips: bool = False
    # metal, mps, cuda, vulkan or software; see `splat devices`.
    device: str | None = None
    # Slang files that the scene was trained with, named again.
    own: OmitArgPrefixes[OwnTypes] = field(default_factory=OwnTypes)

    def run(self) -> None:
        """Print a table."""
        require_scene(self.scene, self.data)
        require_cameras(self.scene, self.data)
        from splat_py.files import require_writable, write_json
        from splat_py.gpu.device import get_device
        from splat_py.splats.evaluation import evaluate
        from splat_py.splats.lpips import Lpips, open_lpips
        from splat_py.splats.run_folder import learnt_of, open_scene

        lpips = open_lpips()
        if self.lpips and not isinstance(lpips, Lpips):
            raise SplatError(f"LPIPS cannot be computed: {lpips}")
        if self.json is not None:
            require_writable(self.json)
        device = get_device(self.device)
        gaussians, dataset, config = open_scene(self.scene, self.data, self.downscale, self.own)
        scores = evaluate(
            gaussians,
            dataset,
            antialiased=config.antialiased,
            align_poses=config.refine_cameras,
            environment=learnt_of(self.scene, config).environment,
            pictures=self.pictures,
            lpips=lpips if isinstance(lpips, Lpips) else None,
            device=device,
        )
        _print_scores(scores)
        if self.json is not None:
            write_json(self.json, scores.to_json())


def _print_scores(scores: Scores) -> None:
    from rich.table import Table

    table = Table("view", "PSNR", "SSIM", *([] if scores.lpips is None else ["LPIPS"]), "PSNR, colours matched")

    def row(name: str, score: ViewScore | Scores) -> None:
        cells = [f"{score.psnr:.2f}", f"{score.ssim:.4f}", *([] if score.lpips is None else [f"{score.lpips:.4f}"])]
        table.add_row(name, *cells, f"{score.corrected_psnr:.2f}")

    for view in scores.views:
        row(view.name, view)
    table.add_section()
    row("mean", scores)
    console.print(table)
