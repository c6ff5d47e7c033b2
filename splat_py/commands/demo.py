"""`splat demo`: photographs, training, two other fits, and a page that shows them all, without a capture."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splat_py.commands.fit_volume import FitVolume
from splat_py.commands.render import Render
from splat_py.commands.terminal import FitBar, console
from splat_py.commands.train import Train
from splat_py.scene.options import DataOptions
from splat_py.splats.config import TrainConfig
from splat_py.volume.config import VolumeConfig

if TYPE_CHECKING:
    from splat_py.demo.page import Figure, Section
    from splat_py.gpu.device import Device
    from splat_py.image.fitting import FitReport
    from splat_py.image.pictures import Picture
    from splat_py.pages.curves import Curve
    from splat_py.splats.run_folder import RunFolder

# Seconds of work on two processor cores.
_BLOBS, _IMAGE_STEPS = 2_000, 300
_FIELD = VolumeConfig((16, 32, 64), 40, rays_per_step=1 << 15)
# Of the turntable.
_FRAMES = 120
# How much larger than its photograph the picture of blobs is drawn.
_ENLARGED = 4
# Single photographs differ by several dB: points of a curve are means of so many around them.
_SMOOTHED = 9


@dataclass
class Demo:
    """Render a small embedded scene from known geometry, train on the pictures, fit an image and a radiance field, and leave a
    page that shows all of it (index.html), with a scene, pictures and a video.

    Takes about two minutes on two processor cores without a GPU.
    """

    # Folder for everything.
    out: Path = Path("runs/demo")
    # Training steps.
    steps: int = 750
    # metal, mps, cuda, vulkan or software; see `splat devices`.
    device: str | None = None

    def run(self) -> None:
        """Make the data, train, fit, make the video and the page."""
        config = TrainConfig(steps=self.steps)
        config.validate()
        import imageio.v3 as iio
        import numpy as np

        from splat_py.demo.page import write_page
        from splat_py.demo.scene import write_demo_scene
        from splat_py.gpu.device import get_device
        from splat_py.image.pictures import read_picture
        from splat_py.scene.pictures import write_image
        from splat_py.splats.run_folder import RunFolder

        # Where there is no device, nothing is made first.
        device = get_device(self.device)
        data = write_demo_scene(self.out / "photographs")
        folder = RunFolder(self.out / "run")
        Train(DataOptions(data), config, folder.root, resume=folder.checkpoint.exists(), device=self.device).run()
        video = self.out / "turntable.mp4"
        Render(folder.root, video=video, frames=_FRAMES, device=self.device).run()
        rows = [iio.imread(path) for path in sorted(folder.pictures.glob("*.png"))]
        sheet = self.out / "side-by-side.png"
        write_image(sheet, np.concatenate(rows) / np.float32(255))

        names = sorted((data / "images").iterdir())
        name = names[len(names) // 2]
        photograph = read_picture(name)
        sections = [
            _trained(folder, video),
            self._image(name, photograph, device),
            self._field(data),
            self._flat(folder, name, photograph, device),
        ]
        height, width, _ = photograph.shape
        adapter = device.adapter
        summary = (
            f"{len(names)} photographs of {width}×{height} pixels were ray traced from a scene in closed form, and these "
            f"systems learnt from them, on {adapter.name} ({adapter.backend}). Times include compiling shaders where needed."
        )
        page = self.out / "index.html"
        write_page(page, "splat_py: four systems", summary, sections)
        console.print(f"open {page}: all four systems, with pictures, curves and times", soft_wrap=True)
        console.print(f"or look at {sheet} (photograph | render) and {video}; walk through the scene in {folder.page}")

    def _image(self, name: Path, photograph: Picture, device: Device) -> Section:
        """A photograph as 2D Gaussians."""
        from splat_py.demo.page import Figure, Section
        from splat_py.image.fitting import fit
        from splat_py.scene.pictures import write_image

        out = self.out / "image"
        curve, begin = [], time.perf_counter()
        with FitBar(device, "a GPU") as bar:
            bar.begin(_IMAGE_STEPS)

            def on_report(report: FitReport) -> None:
                curve.append((time.perf_counter() - begin, report.psnr))
                bar.update(report.step, report.psnr, f"{_BLOBS:,} 2D Gaussians")

            result = fit(photograph, _BLOBS, _IMAGE_STEPS, device=device, on_report=on_report)
        seconds = time.perf_counter() - begin
        out.mkdir(exist_ok=True)
        large = out / "fit.png"
        write_image(large, result.render(_ENLARGED * result.width, device=device))
        result.save(out / "blobs.safetensors")
        return Section(
            "An image as 2D Gaussians",
            "Each blob is nine numbers, drawn by the rasteriser of the scene above and moved by the gradients that Slang "
            f"derives. Any size can be drawn: the picture here has {_ENLARGED} times the photograph's sides.",
            [
                _time(seconds),
                ("PSNR", f"{result.psnr:.2f} dB"),
                ("steps", f"{_IMAGE_STEPS:,}"),
                ("Gaussians", f"{_BLOBS:,}"),
            ],
            _curve("the photograph", curve),
            [Figure(name, "Photograph"), Figure(large, f"{_BLOBS:,} Gaussians, drawn {_ENLARGED} times as large")],
        )

    def _field(self, data: Path) -> Section:
        """A radiance field."""
        import json

        from splat_py.demo.page import Section

        out = self.out / "field"
        resume = (out / "checkpoint.safetensors").exists()
        FitVolume(DataOptions(data), out, _FIELD, resume=resume, frames=0, device=self.device).run()
        metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
        first, *others = _pairs((out / "held-out").glob("*.png"), "radiance field")
        return Section(
            "A radiance field by path replay",
            "Density and view-dependent colour in a grid of voxels. Gradients come from marching each ray a second time and "
            "undoing it step by step, so that nothing is stored along rays.",
            [
                _time(metrics["seconds"]),
                ("PSNR, held out", f"{metrics['held_out']['psnr']:.2f} dB"),
                ("steps", f"{metrics['steps']:,}"),
                ("voxels", "×".join(map(str, metrics["curve"][-1]["voxels"]))),
            ],
            _smoothed("photographs of the steps", metrics),
            [first],
            others,
        )

    def _flat(self, folder: RunFolder, name: Path, photograph: Picture, device: Device) -> Section:
        """The portable operator."""
        from splat_py.demo.flat_color import fit_flat_color
        from splat_py.demo.page import Figure, Section
        from splat_py.scene.pictures import write_image

        gaussians = folder.gaussians()
        flat = fit_flat_color(gaussians, photograph, device)
        picture = self.out / "flat-color.png"
        write_image(picture, flat.image)
        return Section(
            "The portable operator",
            "The smallest operator with the renderer's interface, in torch's primitives and in Slang: the mean of the "
            "Gaussians' colours, weighted by opacity, fills the image. It makes no picture: it is what a new platform runs "
            "first, and its gradients have a closed form. Here it learns the one colour that is least wrong.",
            [
                _time(flat.curve[-1][0]),
                ("PSNR", f"{flat.curve[-1][1]:.2f} dB"),
                ("Gaussians", f"{len(gaussians):,}"),
                ("torch, a pass and its gradient", f"{flat.torch_ms:.1f} ms"),
                ("Slang, the same", f"{flat.slang_ms:.1f} ms"),
                ("gradients differ by", f"{flat.difference:.1g} of the largest"),
            ],
            _curve("the photograph", flat.curve),
            [Figure(name, "Photograph"), Figure(picture, "One colour")],
        )


def _trained(folder: RunFolder, video: Path) -> Section:
    """The scene of 3D Gaussians."""
    from splat_py.demo.page import Figure, Section

    metrics = folder.metrics()
    return Section(
        "A scene of 3D Gaussians",
        "Trained from the photographs and their cameras; those that were held out are compared with its renders. The curve "
        "falls where the steps go on with larger photographs, which are harder.",
        [
            _time(metrics["seconds"]),
            ("PSNR, held out", f"{metrics['held_out']['psnr']:.2f} dB"),
            ("SSIM, held out", f"{metrics['held_out']['ssim']:.4f}"),
            ("steps", f"{metrics['steps']:,}"),
            ("Gaussians", f"{metrics['gaussians']:,}"),
        ],
        _smoothed("photographs of the steps", metrics),
        [Figure(video, "Turntable")],
        _pairs(folder.pictures.glob("*.png"), "render"),
        [(folder.page, "Walk through the scene"), (folder.scene, "The scene as a PLY")],
    )


def _time(seconds: float) -> tuple[str, str]:
    return "time", f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"


def _pairs(pictures: Iterable[Path], rendered: str) -> list[Figure]:
    from splat_py.demo.page import Figure

    return [Figure(path, f"{path.stem}: photograph | {rendered}") for path in sorted(pictures)]


def _curve(label: str, points: Iterable[tuple[float, float]]) -> Curve:
    from splat_py.pages.curves import Curve

    return Curve(label, [(seconds, psnr, 0.0) for seconds, psnr in points])


def _smoothed(label: str, metrics: dict[str, Any]) -> Curve:
    """The curve of the training loss in a metrics.json. In older ones only its end has a time."""
    import numpy as np

    rows = metrics["curve"]
    psnr = np.array([row["psnr"] for row in rows])
    places = np.arange(len(rows))
    around = np.minimum(_SMOOTHED // 2, np.minimum(places, places[::-1]))
    means = [float(psnr[i - n : i + n + 1].mean()) for i, n in enumerate(around)]
    per_step = metrics["seconds"] / metrics["steps"]
    return _curve(label, zip((row.get("seconds", row["step"] * per_step) for row in rows), means, strict=True))
