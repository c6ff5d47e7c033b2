"""A kernel of your own on the renderer's splats and tile lists: how far apart the depths are that a pixel blends.

    python examples/depth_variance.py

A large variance marks edges and haze: pixels to which splats at different depths contribute. The kernel is
examples/depth_variance.slang, 40 lines.
"""

import argparse
from pathlib import Path

import torch

import splat_py as splat
from splat_py.render.options import Options
from splat_py.render.splats import ProjectedSplats
from splat_py.scene.pictures import write_image

SIZE = 128


def depth_variance(splats: ProjectedSplats, width: int, height: int, options: Options) -> torch.Tensor:
    """The variance of depth [height, width] in the pixels of one camera, in squared units of the scene."""
    tiles = splat.bin_tiles(splats, width, height, options)
    run = splat.shaders.kernel(splat.shaders.load(Path(__file__).with_suffix(".slang")), "depthVariance")
    size = {"tile_size": options.tile_size, "width": width, "height": height}
    return run((width, height), splats=splats, lists=tiles, variance=(height, width), **size)["variance"]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--gaussians", type=int, default=2000)
    arguments.add_argument("--out", type=Path, default=Path("runs/example-depth-variance.png"))
    given = arguments.parse_args()

    torch.manual_seed(0)
    means = torch.rand(given.gaussians, 3) * 2 - 1
    quats, scales = torch.randn(given.gaussians, 4), torch.full((given.gaussians, 3), 0.06)
    camera = splat.Camera.look_at((0, 0, -4), (0, 0, 0), (0, -1, 0), 40, SIZE, SIZE)
    viewmats, Ks = (torch.tensor(matrix, dtype=torch.float32)[None] for matrix in (camera.viewmat, camera.K))
    options = Options.on(splat.get_device())
    splats = splat.project(means, quats, scales, torch.full((given.gaussians,), 0.5), viewmats, Ks, SIZE, SIZE, options)
    variance = depth_variance(splats, SIZE, SIZE, options)
    print(f"standard deviation of depth: median {variance.sqrt().median():.3f}, largest {variance.max().sqrt():.3f}")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_image(given.out, (variance / variance.max())[..., None].expand(-1, -1, 3).cpu().numpy())
    print(f"look at {given.out}")


if __name__ == "__main__":
    main()
