"""`splat fit-image` and `splat fit-volume`: fit a picture with 2D Gaussians, or a capture with a radiance field."""

import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from splat_py.base.errors import SplatError
from splat_py.base.fields import LARGEST, Range, check_fields, dataclass_of
from splat_py.commands.terminal import FitBar, OnDevice, console, explicit_options, left_out, require_folder, track
from splat_py.fit import run_folder
from splat_py.image.options import Method
from splat_py.scene.data_options import OMITTED_DATA, DataOptions
from splat_py.scene.sources import MOST_FRAMES, require_capture
from splat_py.volume.config import FIELD, VolumeConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from splat_py.image.fitting import FitReport
    from splat_py.image.pictures import FitCheckpoint, Picture
    from splat_py.scene.camera import Camera
    from splat_py.scene.dataset import Dataset
    from splat_py.volume.fitting import AnyField, VolumeTrainer
    from splat_py.volume.fitting import FitReport as VolumeReport

_RANGES: dict[str, Range] = {"blobs": (1, LARGEST), "steps": (1, LARGEST), "seed": (0, (1 << 63) - 1)}
_FIELD = VolumeConfig(steps_per_resolution=100, rays_per_step=1 << 16)


@dataclass(frozen=True)
class ImageOptions:
    """Options of the fit; its run.json keeps them for --resume."""

    # Number of Gaussians.
    blobs: int = 40_960
    # Number of Adam steps.
    steps: int = 1_000
    # Initial Gaussians: at the picture's details in its colours, or at random places in random colours.
    init: Literal["detail", "random"] = "detail"
    # Red, green and blue from 0 to 1, behind a picture with alpha.
    background: tuple[float, float, float] = (1.0, 1.0, 1.0)
    # Seed of the initial Gaussians.
    seed: int = 42

    @classmethod
    def load(cls, path: Path) -> "ImageOptions":
        from splat_py.base.files import parse_json, refusing, regular

        advice = "fit without --resume into another --out"
        with refusing(f"{path} is damaged", advice, ValueError, KeyError, TypeError, OSError):
            options = dataclass_of(cls, parse_json(regular(path).read_text(encoding="utf-8"))["config"])
            check_fields(options, _RANGES)
        return options


@dataclass
class FitImage(OnDevice):
    """Approximate a picture with 2D Gaussians.

    The picture may have any size; grey, RGB or RGBA; 8 or 16 bits. The folder --out gets the rendered Gaussians (fit.png), the
    Gaussians (blobs.safetensors), with --video a video of the fit (fit.mp4), and for --resume the options (run.json) and a
    checkpoint (checkpoint.safetensors).

    Example: splat fit-image photo.jpg --blobs 40960 --steps 1000 --out runs/photo --video
    """

    # The picture.
    picture: Annotated[Positional[Path], arg(metavar="PICTURE")]
    # Folder for the results.
    out: Path
    # Options of the fit.
    options: OmitArgPrefixes[ImageOptions] = field(default_factory=ImageOptions)
    # Also write a video of the fit.
    video: bool = False
    # The way a pixel finds its Gaussians: tiles, group, the faster of these (auto), or autodiff, for at most 400 Gaussians.
    method: Method = "auto"
    # Continue the fit of this picture in --out with its original options; a larger --steps extends it.
    resume: bool = False

    def run(self) -> None:
        require_folder(self.out)
        if self.picture.is_dir():
            raise SplatError(f"{self.picture} is a folder; name one picture in it")
        if not self.picture.exists():
            raise SplatError(f"{self.picture} does not exist; name a picture")
        check_fields(self.options, _RANGES)
        if self.resume:
            run_folder.require_checkpoint(self.out)
        kept, record = self.out / "checkpoint.safetensors", self.out / "run.json"
        with run_folder.run_lock(self.out):
            from splat_py.image.pictures import FitCheckpoint, read_picture

            if not self.resume:
                run_folder.refuse_existing(self.out, "blobs.safetensors", "fit.png", "fit.mp4")
                self._fit(self.options, read_picture(self.picture, self.options.background), None, kept, record)
                return
            checkpoint, options, given = FitCheckpoint.load(kept), ImageOptions.load(record), explicit_options()
            run_folder.refuse_contradictions(self.out, options, self.options, ImageOptions(), given, free=("steps",))
            steps = run_folder.extended(self.out, "steps", given, options.steps, self.options.steps, ImageOptions.steps)
            picture = read_picture(self.picture, options.background)
            checkpoint.check_picture(picture)
            if checkpoint.step >= steps and self._has_result(checkpoint):
                console.print(run_folder.finished(self.out, "a larger --steps extends it"))
            else:
                self._fit(replace(options, steps=steps), picture, replace(checkpoint, steps=steps), kept, record)

    def _has_result(self, checkpoint: "FitCheckpoint") -> bool:
        """True if the saved blobs are the checkpoint's; after an extension they are older until the fit finishes."""
        import numpy as np

        from splat_py.image.pictures import ImageFit

        try:
            return np.array_equal(ImageFit.load(self.out / "blobs.safetensors").params, checkpoint.params)
        except SplatError:
            return False

    def _fit(
        self, options: ImageOptions, picture: "Picture", checkpoint: "FitCheckpoint | None", kept: Path, record: Path
    ) -> None:
        import numpy as np

        from splat_py.base.files import write_json
        from splat_py.gpu.device import get_device
        from splat_py.image.fitting import fit
        from splat_py.scene.pictures import shrunk, to_bytes, write_image, write_video

        device = get_device(self.device)
        height, width, _ = picture.shape
        console.print(f"{device.adapter.name} ({device.adapter.backend}): {width}×{height} pixels, {options.blobs:,} Gaussians")
        unwritten = [options] if checkpoint is None or ImageOptions.load(record) != options else []
        frames: list[NDArray[np.uint8]] = []
        with FitBar(device, "fewer --steps or --blobs") as bar:
            bar.begin(options.steps, checkpoint.step if checkpoint else 0)

            def on_report(report: "FitReport") -> None:
                # The first report comes after all checks and before the first checkpoint.
                while unwritten:
                    write_json(record, {"config": asdict(unwritten.pop())})
                bar.update(report.step, report.psnr)
                if self.video:
                    frames.append(to_bytes(shrunk(report.image, 1280)))

            result = fit(
                picture,
                options.blobs,
                options.steps,
                init=options.init,
                seed=options.seed,
                method=self.method,
                device=device,
                on_report=on_report,
                checkpoint=kept,
                resume=checkpoint,
            )
        write_image(self.out / "fit.png", result.render(device=device))
        if self.video:
            write_video(self.out / "fit.mp4", (np.float32(1 / 255) * frame for frame in frames))
        # Written last: this file marks the fit as finished.
        result.save(self.out / "blobs.safetensors")
        console.print(f"PSNR {result.psnr:.2f} dB; picture and Gaussians are in {self.out}")


@dataclass
class FitVolume(OnDevice):
    """Fit a radiance field to a folder of posed photographs: a grid of density and view-dependent colour, a hash grid, or your
    own Slang type.

    DATA is as for `splat train`. The box of the field is where the cameras look, or --box. The folder given by --out gets the
    field (field.safetensors), a checkpoint, held-out photographs beside their renders, metrics.json and a video.

    Example: splat fit-volume captures/fox --downscale 8 --out runs/fox-volume
    """

    # Folder of the run.
    out: Path
    data: OmitArgPrefixes[DataOptions] = OMITTED_DATA
    # Settings of the fit, with more steps a resolution than `volume.fit` and fewer rays a step: photographs take turns.
    config: OmitArgPrefixes[VolumeConfig] = _FIELD
    # Lower and upper corner of the box, six numbers in the capture's frame.
    box: tuple[float, float, float, float, float, float] | None = None
    # Continue the run in --out from its last checkpoint with its original options; further --resolutions after its own extend
    # it.
    resume: bool = False
    # With --resume: compile the Slang source stored in the run without naming its file again in --field. Such code can read and
    # write any of your memory.
    trust_source: bool = False
    # Also write the field here (.npz or .safetensors).
    export: Path | None = None
    # Length of the video in frames, at 30 a second; 0 makes no video.
    frames: int = 120

    def run(self) -> None:
        if not 0 <= self.frames <= MOST_FRAMES:
            raise SplatError(f"--frames is {self.frames}; it must be from 0 to {MOST_FRAMES:,}")
        if self.export is not None and self.export.suffix not in (".npz", ".safetensors"):
            raise SplatError(f"--export {self.export} does not end in .npz or .safetensors; use one of these")
        self.data.validate()
        path = self.out / "checkpoint.safetensors"
        if self.resume:
            run_folder.require_checkpoint(self.out)
        with run_folder.run_lock(self.out):
            self._run(path, self.out / "run.json")

    def _run(self, path: Path, record_path: Path) -> None:
        """Begin or resume a fit, with the folder locked."""
        if not self.resume:
            run_folder.refuse_existing(self.out, "field.safetensors", "metrics.json")
            require_capture(self.data.data)
        import numpy as np

        from splat_py.fit.run_folder import RunRecord, removed_without
        from splat_py.gpu.device import get_device
        from splat_py.volume.fitting import Views, VolumeCheckpoint, VolumeTrainer

        checkpoint = VolumeCheckpoint.load(path) if self.resume else None
        recorded = RunRecord.load(record_path, VolumeConfig.from_dict) if checkpoint else None
        config = self.config
        kind = config.field if config.field_source else FIELD.resolve(config.field)
        if not isinstance(kind, str):
            config = replace(config, field=kind.name, field_source=kind.text)
        record = RunRecord(replace(self.data, undistort=True), config)
        if checkpoint and recorded:
            fitted = tuple(float(x) for x in checkpoint.state["box"].ravel())
            if self.box is not None and not np.allclose(self.box, fitted):
                advice = "resume it without this option, or choose another --out"
                raise run_folder.contradiction(self.out, "box", fitted, self.box, advice)
            FIELD.refuse_another(self.out, recorded.config, checkpoint.config, config)
            record = recorded.resumed(self.out, record, _FIELD, explicit_options(), "resolutions")
            if checkpoint.step >= record.config.steps == run_folder.recorded_metrics(self.out / "metrics.json").get("steps"):
                console.print(run_folder.finished(self.out, "further --resolutions after its own extend it"))
                if self.export is not None:
                    from splat_py.volume import HashRadianceField, RadianceField, SlangField

                    own, hashed = record.config.is_own, record.config.field == "hash"
                    kept: type[AnyField] = SlangField if own else HashRadianceField if hashed else RadianceField
                    kept.load(self.out / "field.safetensors").save(self.export)
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
            console.print(f"{adapter.name} ({adapter.backend}): {len(views)} photographs{left_out(dataset)}")
            self._fit(trainer, dataset, path)

    def _fit(self, trainer: "VolumeTrainer", dataset: "Dataset", path: Path) -> None:
        from splat_py.base.files import write_json
        from splat_py.scene.camera import film_camera
        from splat_py.scene.camera_paths import orbit
        from splat_py.scene.pictures import write_video
        from splat_py.train.evaluation import evaluate_views

        device = trainer.device
        began, curve = time.perf_counter(), []
        with FitBar(device, "--downscale 8 or smaller --resolutions") as bar:
            bar.begin(trainer.config.steps, trainer.step)

            def record(report: "VolumeReport") -> None:
                elapsed = time.perf_counter() - began
                curve.append({"step": report.step, "seconds": elapsed, "voxels": list(report.size), "psnr": report.psnr})
                bar.update(report.step + 1, report.psnr, f"{'×'.join(map(str, report.size))} voxels")

            radiance_field = trainer.fit(record, path)
        metrics: dict[str, Any] = {"steps": trainer.config.steps, "seconds": time.perf_counter() - began, "curve": curve}
        radiance_field.save(self.out / "field.safetensors")
        if self.export is not None:
            radiance_field.save(self.export)

        def draw(camera: "Camera") -> "NDArray[np.float32]":
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
        # Written last: this file marks the run as finished.
        write_json(self.out / "metrics.json", metrics)
        console.print(f"field, pictures and metrics are in {self.out}")
