"""The page in examples/minimal.slang: its pictures and every gradient equal the library's."""

import runpy
from pathlib import Path

import numpy as np
import slangpy as spy
import torch

import splat_py as splat
from splat_py.gpu.device import get_device

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
COUNT, WIDTH, HEIGHT = 300, 37, 23
# Columns of a Gaussian's row.
COLUMNS = {"means": (0, 3), "quats": (3, 7), "log-scales": (7, 10), "logits": (10, 11), "colors": (11, 14)}


def test_picture_and_gradients_are_the_librarys() -> None:
    rng = np.random.default_rng(0)
    uniform, normal = rng.uniform, rng.normal
    scales, logits, colors = np.log(uniform(0.03, 0.2, (COUNT, 3))), normal(size=(COUNT, 1)), uniform(0, 1, (COUNT, 3))
    rows = np.concatenate([uniform(-1, 1, (COUNT, 3)), normal(size=(COUNT, 4)), scales, logits, colors], 1).astype(np.float32)
    # Some lie behind the camera; none is so far aside that the library clamps the projection's derivative.
    rows[:20, 2] -= 6
    viewmat, K = np.eye(4), np.array([[30.0, 0, 18], [0, 32, 11], [0, 0, 1]])
    viewmat[2, 3] = 4
    camera = splat.Camera(K=K, viewmat=viewmat, width=WIDTH, height=HEIGHT)
    kind = spy.DeviceType.vulkan if get_device().adapter.backend == "software" else spy.DeviceType.automatic
    device = spy.create_device(kind, include_paths=[EXAMPLES])
    renderer = runpy.run_path(str(EXAMPLES / "minimal.py"))["Renderer"](device, rows, WIDTH, HEIGHT)
    image = renderer.render(camera)
    v_image = normal(size=image.shape).astype(np.float32)
    v_rows = renderer.backward(v_image)

    leaf = torch.tensor(rows, requires_grad=True)
    means, quats, log_scales, logit, color = leaf.split([3, 4, 3, 1, 3], 1)
    view = torch.tensor(viewmat, dtype=torch.float32)[None], torch.tensor(K, dtype=torch.float32)[None]
    expected, _, _ = splat.rasterization(
        means, quats, log_scales.exp(), logit[:, 0].sigmoid(), color, *view, WIDTH, HEIGHT, near_plane=0.2
    )
    (expected[0] * torch.tensor(v_image)).sum().backward()
    np.testing.assert_allclose(image, expected[0].detach().numpy(), rtol=0, atol=1e-4)
    assert leaf.grad is not None
    for name, (first, end) in COLUMNS.items():
        v, v_expected = v_rows[:, first:end], leaf.grad[:, first:end].numpy()
        scale = np.abs(v_expected).max()
        assert scale > 0
        np.testing.assert_allclose(v, v_expected, rtol=1e-4, atol=1e-4 * scale, err_msg=name)


def test_the_page_fits_a_page() -> None:
    assert len((EXAMPLES / "minimal.slang").read_text(encoding="utf-8").splitlines()) <= 150
    assert len((EXAMPLES / "minimal.py").read_text(encoding="utf-8").splitlines()) <= 120
