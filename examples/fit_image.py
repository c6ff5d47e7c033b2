"""Fit a picture with 2D Gaussians and draw it at twice its size.

    python examples/fit_image.py                     # a generated picture
    python examples/fit_image.py photo.jpg --blobs 20000

`splat.image.fit` runs whole steps on the device; `splat.image.render` draws the same picture as a differentiable torch
function, for your own losses.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import splat_py as splat
from splat_py.image.fitting import FitReport
from splat_py.scene.pictures import write_image


def rings(size: int = 160) -> NDArray[np.float32]:
    """Coloured rings that become finer outwards, [size, size, 3] from 0 to 1."""
    y, x = np.mgrid[:size, :size] / size - 0.5
    phase = 90 * (x**2 + y**2)
    return np.stack([0.5 + 0.4 * np.sin(phase + shift) for shift in (0.0, 1.5, 3.0)], axis=-1).astype(np.float32)


def show(report: FitReport) -> None:
    if report.step % 25 == 0:
        print(f"step {report.step:4}: {report.psnr:.1f} dB")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("picture", type=Path, nargs="?")
    options.add_argument("--blobs", type=int, default=2000)
    options.add_argument("--steps", type=int, default=150)
    options.add_argument("--out", type=Path, default=Path("runs/example-fit-image"))
    given = options.parse_args()

    picture = rings() if given.picture is None else given.picture
    result = splat.image.fit(picture, blobs=given.blobs, steps=given.steps, on_report=show)
    print(f"{given.blobs:,} blobs, {result.psnr:.1f} dB")
    given.out.mkdir(parents=True, exist_ok=True)
    result.save(given.out / "blobs.safetensors")
    write_image(given.out / "twice-as-large.png", result.render(2 * result.width, 2 * result.height))
    print(f"look at {given.out / 'twice-as-large.png'}")


if __name__ == "__main__":
    main()
