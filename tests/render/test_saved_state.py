"""The state that the forward pass keeps for the backward pass: small, and independent of a pixel's depth."""

import gc
from typing import Any

import numpy as np
import pytest
import torch

import tests.reference as ref
from splat_py.gpu.arrays import Array as DeviceArray
from splat_py.gpu.device import get_device
from splat_py.render.images import Image
from splat_py.render.rasterization import rasterization
from tests.render.comparison import camera_of, leaves_of, scene_of

WIDTH, HEIGHT = 53, 37


def render(scene: ref.Scene, camera: ref.Camera, tile_size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    options: dict[str, Any] = {"sh_degree": scene.sh_degree, "tile_size": tile_size, "render_mode": "RGB+D"}
    return rasterization(**leaves_of(scene, [camera]), width=camera.width, height=camera.height, **options)[:2]


@pytest.mark.parametrize("tile_size", [4, 8, 16])
def test_saved_state_changes_no_pixel(tile_size: int) -> None:
    rng = np.random.default_rng(0)
    scene, camera = scene_of(rng, 80, sh_degree=3), camera_of(rng, WIDTH, HEIGHT)
    with_state = render(scene, camera, tile_size=tile_size)
    again = render(scene, camera, tile_size=tile_size)
    with torch.no_grad():
        without = render(scene, camera, tile_size=tile_size)
    assert with_state[0].requires_grad and not without[0].requires_grad
    for image, second, plain in zip(with_state, again, without, strict=True):
        assert image.detach().any()
        np.testing.assert_array_equal(image.detach().numpy(), second.detach().numpy())
        np.testing.assert_array_equal(image.detach().numpy(), plain.numpy())


def test_backward_changes_no_pixel() -> None:
    rng = np.random.default_rng(1)
    scene, camera = scene_of(rng, 80), camera_of(rng, WIDTH, HEIGHT)
    image, _ = render(scene, camera)
    before = image.detach().clone()
    image.square().sum().backward(retain_graph=True)
    image.sum().backward()
    np.testing.assert_array_equal(image.detach().numpy(), before.numpy())


def test_the_image_keeps_eight_bytes_a_pixel_for_its_backward_pass() -> None:
    image = Image.empty(get_device(), 2, HEIGHT, WIDTH, 3)
    kept = [value for name, value in vars(image).items() if isinstance(value, DeviceArray) and name not in ("colors", "alphas")]
    assert sum(array.nbytes for array in kept) == 8 * 2 * HEIGHT * WIDTH


def test_memory_does_not_grow_with_the_depth_of_a_pixel() -> None:
    """Ten and a hundred splats deep: the difference is the memory of splats and lists, not of pixels."""
    device = get_device()
    rng = np.random.default_rng(2)
    size, camera = 128, camera_of(rng, 128, 128)

    def live_bytes(count: int) -> tuple[int, int]:
        gc.collect()
        before = device.memory.live_bytes
        scene = scene_of(rng, count)
        scene = ref.Scene(scene.means * [0.1, 0.1, 1], scene.quats, scene.scales * 0 + 2, scene.opacities * 0.01, scene.colors)
        inputs = leaves_of(scene, [camera])
        inputs |= {name: inputs[name].detach() for name in ("viewmats", "Ks")}
        images, alphas, meta = rasterization(**inputs, width=size, height=size, tile_size=16)
        pairs = len(meta["flatten_ids"])
        del meta
        gc.collect()
        held = device.memory.live_bytes - before
        del images, alphas
        gc.collect()
        assert device.memory.live_bytes == before, "all memory is freed with the image"
        return held, pairs

    shallow, few = live_bytes(20)
    deep, many = live_bytes(400)
    assert many - few > 64 * 200
    # A splat: its inputs and its projection, some forty floats. A pair: its index, in its own buffer and in
    # the sort's. Buffers are rounded up by at most an eighth.
    assert deep - shallow < 1.25 * (380 * 4 * 80 + (many - few) * 4 * 4) + 4096
    # Per pixel: the image, alpha, final T and the position of the last splat.
    assert shallow < 1.25 * (size * size * 4 * (3 + 1 + 2) + 20 * 4 * 80 + few * 4 * 4) + 16384
