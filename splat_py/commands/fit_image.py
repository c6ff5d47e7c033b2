"""`splat fit-image`: a picture file → blobs, their picture, and a video of how they got there."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from splat_py.commands.given import given_options
from splat_py.commands.terminal import FitBar, console
from splat_py.errors import SplatError
from splat_py.fields import LARGEST, Range, check_fields, dataclass_of
from splat_py.fit.resuming import extended, finished, refuse_contradictions, refuse_existing, require_checkpoint
from splat_py.fit.run_lock import run_lock
from splat_py.image.method import Method

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from splat_py.image.checkpoint import FitCheckpoint
    from splat_py.image.fitting import FitReport
    from splat_py.image.pictures import Picture

_RANGES: dict[str, Range] = {"blobs": (1, LARGEST), "steps": (1, LARGEST), "seed": (0, (1 << 63) - 1)}
# Longer side of the video, which has a hundred frames in memory.
_VIDEO_SIDE = 1280


@dataclass(frozen=True)
class _Begun:
    """run.json: what decides about a fit that is resumed. Fields and defaults are those of the command."""

    blobs: int = 40_960
    steps: int = 1_000
    init: Literal["detail", "random"] = "detail"
    background: tuple[float, float, float] = (1.0, 1.0, 1.0)
    seed: int = 42

    def save(self, path: Path) -> None:
        """Write to a file, atomically."""
        from splat_py.files import write_json

        write_json(path, {"config": asdict(self)})

    @classmethod
    def load(cls, path: Path) -> _Begun | None:
        """Read what `save` wrote, if there is a file.

        Raises:
            SplatError: it is damaged.
        """
        from splat_py.files import parse_json, reason

        try:
            begun = dataclass_of(cls, parse_json(path.read_text(encoding="utf-8"))["config"])
            check_fields(begun, _RANGES)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise SplatError(f"{path} is damaged; fit without --resume into another --out ({reason(error)})") from error
        return begun


@dataclass
class FitImage:
    """Approximate a picture with 2D Gaussians.

    The folder --out gets the picture as the Gaussians draw it (fit.png), the Gaussians (blobs.safetensors) and, if asked for,
    a video of the fit (fit.mp4). Any size; grey, RGB or RGBA, 8 or 16 bits. What the fit was begun with (run.json) and where it
    is (checkpoint.safetensors) are there, too, for --resume.

    Example: splat fit-image photo.jpg --blobs 40960 --steps 1000 --out runs/photo --video
    """

    # The picture.
    picture: Annotated[Positional[Path], arg(metavar="PICTURE")]
    # Folder for the results.
    out: Path
    # How many Gaussians.
    blobs: int = 40_960
    # Steps of Adam.
    steps: int = 1_000
    # Begin where the picture has detail, with its colours; or anywhere, in any colour.
    init: Literal["detail", "random"] = "detail"
    # Red, green and blue from 0 to 1, behind a picture with alpha.
    background: tuple[float, float, float] = (1.0, 1.0, 1.0)
    # Also write a video of the fit.
    video: bool = False
    # Of where the Gaussians begin.
    seed: int = 42
    # How a pixel finds its Gaussians: tiles, group (of which auto takes the faster one), or simple, for at most 256.
    method: Method = "auto"
    # Continue the fit of this picture in --out, with the options it was begun with; a larger --steps extends it.
    resume: bool = False
    # metal, mps, cuda, vulkan or software; see `splat devices`.
    device: str | None = None

    def run(self) -> None:
        """Fit with a live progress bar."""
        if self.out.exists() and not self.out.is_dir():
            raise SplatError(f"--out {self.out} is a file; name a folder")
        if self.picture.is_dir():
            raise SplatError(f"{self.picture} is a folder; name one picture in it")
        if not self.picture.exists():
            raise SplatError(f"{self.picture} does not exist; name a picture")
        check_fields(self._begun(), _RANGES)
        if self.resume:
            require_checkpoint(self.out)
        with run_lock(self.out):
            self._run(self.out / "checkpoint.safetensors", self.out / "run.json")

    def _run(self, kept: Path, record: Path) -> None:
        """With the folder locked: begin or resume a fit."""
        from splat_py.image.checkpoint import FitCheckpoint
        from splat_py.image.pictures import read_picture

        if not self.resume:
            refuse_existing(self.out, "blobs.safetensors", "fit.png", "fit.mp4")
            self._fit(self._begun(), read_picture(self.picture, self.background), None, kept, record)
            return
        checkpoint = FitCheckpoint.load(kept)
        # Older fits have no record.
        begun = _Begun.load(record) or replace(self._begun(), blobs=checkpoint.params.shape[1], steps=checkpoint.steps)
        begun = replace(begun, steps=self._check(begun))
        picture = read_picture(self.picture, begun.background)
        checkpoint.check_picture(picture)
        if checkpoint.step >= begun.steps and self._has_result(checkpoint):
            console.print(finished(self.out, "a larger --steps extends it"), soft_wrap=True)
        else:
            self._fit(begun, picture, replace(checkpoint, steps=begun.steps), kept, record)

    def _has_result(self, checkpoint: FitCheckpoint) -> bool:
        """Whether what is saved last is that of the checkpoint: of a fit that was extended there is an older one before."""
        import numpy as np

        from splat_py.image.result import ImageFit

        try:
            return np.array_equal(ImageFit.load(self.out / "blobs.safetensors").params, checkpoint.params)
        except SplatError:
            return False

    def _begun(self) -> _Begun:
        return _Begun(self.blobs, self.steps, self.init, self.background, self.seed)

    def _check(self, begun: _Begun) -> int:
        """The steps of a fit that is resumed.

        Raises:
            SplatError: an option contradicts it.
        """
        given = given_options()
        refuse_contradictions(self.out, begun, self._begun(), _Begun(), given, free=("steps",))
        return int(extended(self.out, "steps", given, begun.steps, self.steps, FitImage.steps))

    def _fit(self, begun: _Begun, picture: Picture, checkpoint: FitCheckpoint | None, kept: Path, record: Path) -> None:
        """Fit to the end, and leave what there is to leave."""
        import numpy as np

        from splat_py.gpu.device import get_device
        from splat_py.image.fitting import fit
        from splat_py.scene.pictures import to_bytes, write_image
        from splat_py.scene.videos import write_video

        device = get_device(self.device)
        height, width, _ = picture.shape
        console.print(f"{device.adapter.name} ({device.adapter.backend}): {width}×{height} pixels, {begun.blobs:,} Gaussians")
        unwritten = [begun] if checkpoint is None or _Begun.load(record) != begun else []
        frames: list[NDArray[np.uint8]] = []
        with FitBar(device, "fewer --steps or --blobs") as bar:
            bar.begin(begun.steps, checkpoint.step if checkpoint else 0)

            def on_report(report: FitReport) -> None:
                # The first report comes when everything has proved valid, before the first checkpoint.
                while unwritten:
                    unwritten.pop().save(record)
                bar.update(report.step, report.psnr)
                if self.video:
                    frames.append(to_bytes(_small(report.image)))

            result = fit(
                picture,
                begun.blobs,
                begun.steps,
                init=begun.init,
                seed=begun.seed,
                method=self.method,
                device=device,
                on_report=on_report,
                checkpoint=kept,
                resume=checkpoint,
            )
        write_image(self.out / "fit.png", result.render(device=device))
        if self.video:
            write_video(self.out / "fit.mp4", (np.float32(1 / 255) * frame for frame in frames))
        # At last: it says that the fit is finished.
        result.save(self.out / "blobs.safetensors")
        console.print(f"PSNR {result.psnr:.2f} dB; picture and Gaussians are in {self.out}")


def _small(image: Picture) -> Picture:
    """The picture, reduced to what the video is to show."""
    import cv2
    import numpy as np

    height, width, _ = image.shape
    scale = _VIDEO_SIDE / max(height, width)
    if scale >= 1:
        return image
    size = max(round(width * scale), 1), max(round(height * scale), 1)
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.float32)
