"""`splat demo`: photographs, training, renders and a video, without a capture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from splat_py.commands.render import Render
from splat_py.commands.terminal import console
from splat_py.commands.train import Train
from splat_py.scene.options import DataOptions
from splat_py.splats.config import TrainConfig


@dataclass
class Demo:
    """Render a small embedded scene from known geometry, train on the pictures, and leave a scene, pictures and a video.

    Takes about a minute on two processor cores without a GPU.
    """

    # Folder for everything.
    out: Path = Path("runs/demo")
    # Training steps.
    steps: int = 750
    # metal, mps, cuda, vulkan or software; see `splat devices`.
    device: str | None = None

    def run(self) -> None:
        """Make the data, train, make the video."""
        import imageio.v3 as iio
        import numpy as np

        from splat_py.demo.scene import write_demo_scene
        from splat_py.gpu.device import get_device
        from splat_py.scene.pictures import write_image
        from splat_py.splats.run_folder import RunFolder

        # Where there is no device, nothing is made first.
        get_device(self.device)
        data = write_demo_scene(self.out / "photographs")
        folder = RunFolder(self.out / "run")
        resume = folder.checkpoint.exists()
        config = TrainConfig(steps=self.steps)
        Train(DataOptions(data), config, folder.root, resume=resume, device=self.device).run()
        video = self.out / "turntable.mp4"
        Render(folder.root, video=video, frames=120, device=self.device).run()
        rows = [iio.imread(path) for path in sorted(folder.pictures.glob("*.png"))]
        sheet = self.out / "side-by-side.png"
        write_image(sheet, np.concatenate(rows) / np.float32(255))
        console.print(f"look at {sheet} (photograph | render) and {video}; walk through the scene in {folder.page}")
