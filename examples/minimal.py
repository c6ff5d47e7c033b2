"""Gaussian splatting on a page: train Gaussians on photographs with minimal.slang alone, through SlangPy's functional API.

    python examples/minimal.py                 # the embedded scene at 64 × 64: about a minute on two cores without a GPU

The library draws the photographs and reads them; projection, blending and every derivative are in minimal.slang.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import slangpy as spy
from numpy.typing import NDArray

import splat_py as splat
from splat_py.demo.scene import write_demo_scene
from splat_py.scene.camera import Camera
from splat_py.scene.pictures import write_image

Array = NDArray[np.float32]
# Adam's rates for columns of a Gaussian's row: mean 3, quaternion 4, log-scales 3, opacity logit, colour 3.
RATES = np.repeat([2e-3, 1e-2, 2e-2, 5e-2, 2e-2], [3, 4, 3, 1, 3]).astype(np.float32)


class Renderer:
    """Gaussians [N, 14] → pictures [H, W, 3], and back."""

    def __init__(self, device: spy.Device, gaussians: Array, width: int, height: int) -> None:
        self.module = spy.Module.load_from_file(device, "minimal.slang")
        self.device = device
        self.gaussians = spy.Tensor.from_numpy(device, gaussians).with_grads(zero=True)
        self.splats = spy.Tensor.zeros(device, (len(gaussians), 10), "float").with_grads(zero=True)
        self.image = spy.Tensor.zeros(device, (height, width), "float3").with_grads(zero=True)

    def render(self, camera: Camera) -> Array:
        """Project, sort by depth, blend."""
        self.camera = camera_struct(camera)
        self.module.projectGaussian(self.gaussians, self.camera, _result=self.splats)
        depths = self.splats.to_numpy()[:, 9]
        self.order = spy.Tensor.from_numpy(self.device, np.argsort(depths, kind="stable").astype(np.int32))
        self.module.fineRasterize(spy.call_id(), self.splats, self.order, _result=self.image)
        return self.image.to_numpy()

    def backward(self, v_image: Array) -> Array:
        """The gradient [N, 14] of the Gaussians, from that of the picture that `render` has drawn last."""
        self.splats.grad.clear()
        self.gaussians.grad.clear()
        self.image.grad.copy_from_numpy(v_image)
        self.module.fineRasterize.bwds(spy.call_id(), self.splats, self.order, _result=self.image)
        self.module.projectGaussian.bwds(self.gaussians, self.camera, _result=self.splats)
        return self.gaussians.grad.to_numpy()


def camera_struct(camera: Camera) -> dict[str, Any]:
    """The `Camera` of minimal.slang."""
    viewmat, K = camera.viewmat.astype(np.float32), camera.K.astype(np.float32)
    return {
        "rotation": spy.float3x3(np.ascontiguousarray(viewmat[:3, :3])),
        "translation": spy.float3(*viewmat[:3, 3].tolist()),
        "focal": spy.float2(*K[[0, 1], [0, 1]].tolist()),
        "center": spy.float2(*K[:2, 2].tolist()),
    }


def initial(dataset: splat.Dataset, count: int) -> Array:
    """Gaussians [N, 14] at some of the scene's points, round, and half transparent."""
    points, colors = dataset.points
    rows = np.zeros((count, 14), np.float32)
    chosen = np.random.default_rng(0).choice(len(points), count, replace=False)
    rows[:, :3], rows[:, 3] = points[chosen], 1
    rows[:, 7:10], rows[:, 11:] = np.log(0.08 * dataset.scene_scale / 4), colors[chosen] / np.float32(255)
    return rows


def train(
    renderer: Renderer, cameras: list[Camera], photographs: list[Array], views: Sequence[int], steps: int
) -> Iterator[tuple[int, Array]]:
    """Adam on the squared error of one photograph a step, taken from `views`. Yields the step and render - photograph."""
    gaussians, rng = renderer.gaussians.to_numpy(), np.random.default_rng(0)
    first, second = np.zeros_like(gaussians), np.zeros_like(gaussians)
    for step in range(1, steps + 1):
        view = rng.choice(views)
        difference = renderer.render(cameras[view]) - photographs[view]
        v_gaussians = renderer.backward(difference * np.float32(2 / difference.size))
        first, second = 0.9 * first + 0.1 * v_gaussians, 0.99 * second + 0.01 * v_gaussians**2
        gaussians -= RATES * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
        renderer.gaussians.copy_from_numpy(gaussians)
        yield step, difference


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gaussians", type=int, default=1000)
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--out", type=Path, default=Path("runs/minimal.png"))
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dataset = splat.load_dataset(write_demo_scene(Path(folder) / "scene", views=24, size=64))
        photographs = [dataset.image(view)[..., :3] / np.float32(255) for view in range(len(dataset))]
    cameras = [view.camera for view in dataset.views]
    device = spy.create_device(include_paths=[Path(__file__).resolve().parent])
    renderer = Renderer(device, initial(dataset, given.gaussians), cameras[0].width, cameras[0].height)
    for step, difference in train(renderer, cameras, photographs, dataset.train, given.steps):
        if step % 25 == 0:
            print(f"step {step:4}: {-10 * np.log10(np.mean(difference**2)):.1f} dB on this step's photograph")

    renders = [renderer.render(cameras[view]) for view in dataset.test]
    errors = [np.mean((render - photographs[view]) ** 2) for render, view in zip(renders, dataset.test, strict=True)]
    print(f"{-10 * np.log10(np.array(errors)).mean():.1f} dB, mean of {len(errors)} views that were held out")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_image(given.out, np.concatenate([photographs[dataset.test[0]], renders[0].clip(0, 1)], axis=1))
    print(f"look at {given.out}; it shows photograph | render")


if __name__ == "__main__":
    main()
