"""`splat fit-volume`: from a capture to a radiance field, and the folder it leaves.

run.json                 what was fitted, to what, how
checkpoint.safetensors   to resume from
field.safetensors        the field; --export writes it elsewhere, also as .npz
metrics.json             scores of the held-out views, and the curve of the training loss
held-out/                photographs beside renders
turntable.mp4            a video around the box, unless --frames 0
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import OmitArgPrefixes

from splat_py.commands.given import given_options
from splat_py.commands.terminal import FitBar, console, left_out, track
from splat_py.errors import SplatError
from splat_py.fit.resuming import contradiction, finished, refuse_existing, require_checkpoint
from splat_py.fit.run_lock import run_lock
from splat_py.scene.missing_poses import require_capture
from splat_py.scene.options import DataOptions
from splat_py.scene.videos import MOST_FRAMES
from splat_py.volume.config import FIELD, VolumeConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from splat_py.scene.camera import Camera
    from splat_py.scene.dataset import Dataset
    from splat_py.volume.checkpoint import VolumeCheckpoint
    from splat_py.volume.fitting import FitReport, VolumeTrainer
    from splat_py.volume.optimisers import AnyField

_RESULTS = "field.safetensors", "metrics.json"


def _default_config() -> VolumeConfig:
    return VolumeConfig(steps_per_resolution=100, rays_per_step=1 << 16)


@dataclass
class FitVolume:
    """Fit a radiance field, a grid of density and view-dependent colour, a hash grid or Slang of your own, to a folder of posed
    photographs.

    DATA is what `splat train` takes. The box to fill is where the cameras look, if --box does not say otherwise. The folder
    --out gets the field (field.safetensors), a checkpoint, held-out photographs beside their renders, metrics.json and a video.

    Example: splat fit-volume captures/fox --downscale 8 --out runs/fox-volume
    """

    data: OmitArgPrefixes[DataOptions]
    # Folder of the run.
    out: Path
    # More steps a resolution than `volume.fit` takes, and fewer rays a step: photographs take turns.
    config: OmitArgPrefixes[VolumeConfig] = field(default_factory=_default_config)
    # Lower and upper corner of the box, six numbers in the capture's frame.
    box: tuple[float, float, float, float, float, float] | None = None
    # Continue the run in --out from its last checkpoint, with the options it was begun with; --resolutions that begin with its
    # own and go on extend it.
    resume: bool = False
    # With --resume: compile the Slang source that the run carries, without its file being named again in --field. It could read
    # and write any memory of yours.
    trust_source: bool = False
    # Also write the field here (.npz or .safetensors).
    export: Path | None = None
    # Length of the video in frames, at 30 a second; 0 makes none.
    frames: int = 120
    # metal, mps, cuda, vulkan or software; see `splat devices`.
    device: str | None = None

    def run(self) -> None:
        """Fit with a live progress bar, then evaluate."""
        if not 0 <= self.frames <= MOST_FRAMES:
            raise SplatError(f"--frames is {self.frames}; it must be from 0 to {MOST_FRAMES:,}")
        if self.export is not None and self.export.suffix not in (".npz", ".safetensors"):
            raise SplatError(f"--export {self.export} does not end in .npz or .safetensors")
        self.data.validate()
        path = self.out / "checkpoint.safetensors"
        if self.resume:
            require_checkpoint(self.out)
        else:
            refuse_existing(self.out, *_RESULTS)
            require_capture(self.data.data)
        with run_lock(self.out):
            self._run(path, self.out / "run.json")

    def _run(self, path: Path, record_path: Path) -> None:
        """With the folder locked: begin or resume a fit."""
        if not self.resume:
            # Another process may have been there in between.
            refuse_existing(self.out, *_RESULTS)
        import numpy as np

        from splat_py.fit.run_record import RunRecord, removed_without
        from splat_py.gpu.device import get_device
        from splat_py.volume.checkpoint import VolumeCheckpoint
        from splat_py.volume.fitting import VolumeTrainer
        from splat_py.volume.views import Views

        checkpoint = VolumeCheckpoint.load(path) if self.resume else None
        recorded = RunRecord.load(record_path, VolumeConfig.from_dict) if checkpoint else None
        kind = self.config.field if self.config.field_source else FIELD.named(self.config.field)
        config = self.config
        if not isinstance(kind, str):
            config = replace(config, field=kind.name, field_source=kind.text)
        record = RunRecord(replace(self.data, undistort=True), config)
        if checkpoint and recorded:
            self._check_box(checkpoint)
            FIELD.refuse_another(self.out, recorded.config, checkpoint.config, config)
            record = recorded.resumed(self.out, record, _default_config(), given_options(), "resolutions")
            if checkpoint.step >= record.config.steps == self._steps_of_metrics():
                console.print(finished(self.out, "more --resolutions, after those it has, extend it"), soft_wrap=True)
                if self.export is not None:
                    _load_field(self.out / "field.safetensors", record.config).save(self.export)
                return
            checkpoint = replace(checkpoint, config=record.config)
        record, dataset = record.load_dataset(self.out)
        box = dataset.bounds if self.box is None else np.reshape(self.box, (2, 3))
        views, device = Views.of_dataset(dataset), get_device(self.device)
        trainer = VolumeTrainer(
            views,
            box,
            record.config,
            background=dataset.background,
            device=device,
            resume=checkpoint,
            field=None if isinstance(kind, str) else kind,
            trust_source=self.trust_source,
        )
        with removed_without(path, record_path):
            if recorded is None or record.changes(recorded):
                record.save(record_path, box=trainer.box.numpy().tolist())
            adapter = device.adapter
            console.print(f"{adapter.name} ({adapter.backend}): {len(views)} photographs{left_out(dataset)}", soft_wrap=True)
            self._fit(trainer, dataset, path)

    def _check_box(self, checkpoint: VolumeCheckpoint) -> None:
        import numpy as np

        box = tuple(float(x) for x in checkpoint.state["box"].ravel())
        if self.box is not None and not np.allclose(self.box, box):
            raise contradiction(self.out, "box", box, self.box, "resume it without this option, or choose another --out")

    def _steps_of_metrics(self) -> int | None:
        """Of the finished fit."""
        try:
            return int(json.loads((self.out / "metrics.json").read_text(encoding="utf-8"))["steps"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _fit(self, trainer: VolumeTrainer, dataset: Dataset, path: Path) -> None:
        """Fit to the end, and leave what there is to leave."""
        from splat_py.files import write_json
        from splat_py.scene.camera_paths import orbit
        from splat_py.scene.videos import film_camera, write_video
        from splat_py.splats.evaluation import evaluate_views

        device = trainer.device
        began, curve = time.perf_counter(), []
        with FitBar(device, "--downscale 8 or smaller --resolutions") as bar:
            bar.begin(trainer.config.steps, trainer.step)

            def record(report: FitReport) -> None:
                elapsed = time.perf_counter() - began
                curve.append({"step": report.step, "seconds": elapsed, "voxels": list(report.size), "psnr": report.psnr})
                bar.update(report.step + 1, report.psnr, f"{'×'.join(map(str, report.size))} voxels")

            radiance_field = trainer.fit(record, path)
        metrics: dict[str, Any] = {
            "steps": trainer.config.steps,
            "seconds": time.perf_counter() - began,
            "curve": curve,
        }
        radiance_field.save(self.out / "field.safetensors")
        if self.export is not None:
            radiance_field.save(self.export)

        def draw(camera: Camera) -> NDArray[np.float32]:
            return radiance_field.render(camera.viewmat, camera.K, camera.width, camera.height, device=device)

        if dataset.test:
            held_out = track(dataset.test, "held-out views")
            scores = evaluate_views(draw, dataset, held_out, self.out / "held-out", device=device)
            metrics["held_out"] = scores.to_json()
            console.print(f"held-out views: PSNR {scores.psnr:.2f} dB, SSIM {scores.ssim:.4f}")
        if self.frames:
            points = None if dataset.points is None else dataset.points[0]
            cameras = orbit([view.camera for view in dataset.views], self.frames, points)
            write_video(self.out / "turntable.mp4", (draw(film_camera(camera, None)) for camera in track(cameras, "turntable")))
        # At last: it says that the run is finished.
        write_json(self.out / "metrics.json", metrics)
        console.print(f"field, pictures and metrics are in {self.out}")


def _load_field(path: Path, config: VolumeConfig) -> AnyField:
    from splat_py.volume import HashRadianceField, OwnRadianceField, RadianceField

    if config.is_own:
        return OwnRadianceField.load(path)
    return HashRadianceField.load(path) if config.field == "hash" else RadianceField.load(path)
