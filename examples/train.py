"""Train Gaussians on photographs: the embedded scene, or your own capture.

    python examples/train.py                         # 21 pictures of 64 × 64 pixels; seconds
    python examples/train.py --capture captures/fox --steps 2000

`splat train` does this with a progress bar, checkpoints and a page to walk through.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

import splat_py as splat
from splat_py.demo.scene import write_demo_scene
from splat_py.scene.pictures import write_image
from splat_py.train.trainer import StepReport


def show(report: StepReport) -> None:
    if report.step % 50 == 0:
        print(f"step {report.step:5}: {report.gaussians:,} Gaussians, {report.values.psnr:.1f} dB on this step's photograph")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--capture", type=Path, help="COLMAP, transforms.json or NeRF-synthetic")
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--out", type=Path, default=Path("runs/example-train"))
    given = options.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        dataset = splat.load_dataset(given.capture or write_demo_scene(Path(folder) / "scene", views=24, size=64))
        trainer = splat.Trainer(dataset, splat.TrainConfig(steps=given.steps))
        scene = trainer.fit(on_step=show)

        # One photograph of every eight was held out.
        view = dataset.test[0]
        photograph = dataset.image(view)[..., :3] / np.float32(255)
        render = splat.render(scene, dataset.views[view].camera, dataset.background, near=dataset.near)
    error = float(np.mean((render - photograph) ** 2))
    print(f"{len(scene.means):,} Gaussians, {-10 * np.log10(error):.1f} dB on a view that was held out")
    given.out.mkdir(parents=True, exist_ok=True)
    scene.save(given.out / "scene.ply")
    write_image(given.out / "photograph-and-render.png", np.concatenate([photograph, render], axis=1))
    print(f"look at {given.out / 'photograph-and-render.png'}; the scene is {given.out / 'scene.ply'}")


if __name__ == "__main__":
    main()
