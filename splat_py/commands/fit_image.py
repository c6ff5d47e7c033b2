"""`splat fit-image`: a picture file → blobs, their picture, and a video of how they got there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from splat_py.commands.terminal import FitBar, console
from splat_py.errors import SplatError
from splat_py.image.method import Method

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from splat_py.image.fitting import FitReport
    from splat_py.image.pictures import Picture

# Longer side of the video, which has a hundred frames in memory.
_VIDEO_SIDE = 1280


@dataclass
class FitImage:
    """Approximate a picture with 2D Gaussians.

    The folder --out gets the picture as the Gaussians draw it (fit.png), the Gaussians (blobs.safetensors) and, if asked for,
    a video of the fit (fit.mp4). Any size; grey, RGB or RGBA, 8 or 16 bits. An interrupted fit leaves checkpoint.safetensors
    there, for --resume.

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
    # Continue the fit of this picture that was interrupted in --out, with its Gaussians and its number of steps.
    resume: bool = False
    # metal, cuda, vulkan or software; see `splat devices`.
    device: str | None = None

    def run(self) -> None:
        """Fit with a live progress bar."""
        if self.out.exists() and not self.out.is_dir():
            raise SplatError(f"--out {self.out} is a file; name a folder")
        if self.picture.is_dir():
            raise SplatError(f"{self.picture} is a folder; name one picture in it")
        if not self.picture.exists():
            raise SplatError(f"{self.picture} does not exist; name a picture")
        import numpy as np

        from splat_py.gpu.device import get_device
        from splat_py.image.checkpoint import FitCheckpoint
        from splat_py.image.fitting import fit
        from splat_py.image.pictures import read_picture
        from splat_py.scene.pictures import to_bytes, write_image
        from splat_py.scene.videos import write_video

        kept = self.out / "checkpoint.safetensors"
        if kept.exists() and not self.resume:
            raise SplatError(f"{self.out} holds an unfinished fit; continue it with --resume, or choose another --out")
        checkpoint = FitCheckpoint.load(kept) if self.resume else None
        picture = read_picture(self.picture, self.background)
        device = get_device(self.device)
        height, width, _ = picture.shape
        blobs, steps = (checkpoint.params.shape[1], checkpoint.steps) if checkpoint else (self.blobs, self.steps)
        console.print(f"{device.adapter.name} ({device.adapter.backend}): {width}×{height} pixels, {blobs:,} Gaussians")
        frames: list[NDArray[np.uint8]] = []
        with FitBar(device, "fewer --steps or --blobs") as bar:
            bar.begin(steps)

            def on_report(report: FitReport) -> None:
                bar.update(report.step, report.psnr)
                if self.video:
                    frames.append(to_bytes(_small(report.image)))

            result = fit(
                picture,
                self.blobs,
                self.steps,
                init=self.init,
                seed=self.seed,
                method=self.method,
                device=device,
                on_report=on_report,
                checkpoint=kept,
                resume=checkpoint,
            )
        result.save(self.out / "blobs.safetensors")
        write_image(self.out / "fit.png", result.render(device=device))
        if self.video:
            write_video(self.out / "fit.mp4", (np.float32(1 / 255) * frame for frame in frames))
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
