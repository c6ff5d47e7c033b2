"""One render, by splat_py and by the float64 reference, compared pixel by pixel and gradient by gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

import tests.reference as ref
from splat_py.render.rasterization import rasterization
from tests.reference.arrays import Array
from tests.reference.projection import EPS2D

GAUSSIAN_INPUTS = ("means", "quats", "scales", "opacities", "colors")


def rounded(values: Array) -> Array:
    """The nearest float32, so both renderers start from the same numbers."""
    return values.astype(np.float32).astype(np.float64)


def torch_input(values: Array) -> torch.Tensor:
    """A float32 leaf with requires_grad."""
    return torch.tensor(values, dtype=torch.float32, requires_grad=True)


def leaves_of(scene: ref.Scene, cameras: Sequence[ref.Camera]) -> dict[str, torch.Tensor]:
    """Arguments of `rasterization`, as leaves with requires_grad."""
    inputs = {name: torch_input(getattr(scene, name)) for name in GAUSSIAN_INPUTS}
    of_cameras = {"viewmats": [camera.viewmat for camera in cameras], "Ks": [camera.K for camera in cameras]}
    return inputs | {name: torch_input(np.stack(matrices)) for name, matrices in of_cameras.items()}


def viewmat_of(rng: np.random.Generator, tilt: float = 0.05) -> Array:
    """World → camera: nearly straight ahead, so scenes around (0, 0, 4) are in view."""
    rotation, triangle = np.linalg.qr(np.eye(3) + tilt * rng.normal(size=(3, 3)))
    viewmat = np.eye(4)
    viewmat[:3, :3] = rotation * np.sign(np.diag(triangle))
    viewmat[:3, 3] = 0.15 * rng.normal(size=3)
    return rounded(viewmat)


def camera_of(rng: np.random.Generator, width: int, height: int) -> ref.Camera:
    """A camera with two focal lengths and a principal point off the centre."""
    K = np.array([[1.1 * width, 0, 0.53 * width], [0, 1.4 * height, 0.45 * height], [0, 0, 1]])
    return ref.Camera(viewmat_of(rng), rounded(K), width, height)


def scene_of(rng: np.random.Generator, count: int, *, sh_degree: int | None = None, channels: int = 3) -> ref.Scene:
    """Overlapping Gaussians of all shapes around (0, 0, 4), some of them beyond the image's edge."""
    means = rng.uniform(-1, 1, (count, 3)) * [1.6, 1.4, 1.0] + [0, 0, 4]
    quats = rng.normal(size=(count, 4))
    scales = np.exp(rng.uniform(np.log(0.03), np.log(0.4), (count, 3)))
    opacities = rng.uniform(0.1, 1.0, count)
    if sh_degree is None:
        colors = rng.uniform(size=(count, channels))
    else:
        colors = 0.3 * rng.normal(size=(count, (sh_degree + 1) ** 2, 3))
    arrays = (rounded(x) for x in (means, quats, scales, opacities, colors))
    return ref.Scene(*arrays, sh_degree=sh_degree)


def crowded(rng: np.random.Generator, count: int = 1000) -> ref.Scene:
    """Many Gaussians over a few pixels, which become opaque long before their lists end."""
    return replace(
        scene_of(rng, count),
        means=rounded(rng.uniform(-1, 1, (count, 3)) * [0.8, 0.6, 1.0] + [0, 0, 4]),
        scales=rounded(rng.uniform(0.1, 0.6, (count, 3))),
        opacities=rounded(rng.uniform(0.3, 1.0, count)),
    )


@dataclass(frozen=True)
class Case:
    """A scene and how to render it. Only `colors` may differ between cameras: [C, N, D]."""

    scene: ref.Scene
    cameras: list[ref.Camera]
    backgrounds: Array | None = None  # [C, D]
    colors_per_camera: Array | None = None  # [C, N, D], instead of the scene's
    # Margin of `ref.untrusted_pixels`.
    margin: float = 1e-4
    # Factor on the tolerances.
    looser: float = 1.0
    # Further arguments of `rasterization`.
    options: dict[str, Any] = field(default_factory=dict)


# Tolerances of gradients; notebook 01 has the same.
RTOL, FLOOR, SHARE_OF_LARGEST = 1e-4, 1e-6, 1e-5


def assert_close(name: str, actual: Array, expected: Array, looser: float = 1.0) -> None:
    """Check each number within RTOL, or FLOOR, or a share of the array's largest entry, whichever is largest; times `looser`.

    A gradient is a sum over pixels (and cameras) of terms of both signs, each rounded to 6e-8 of its own size. If the terms
    cancel, the sum may be arbitrarily small, but its error is still that of the terms. The floor has to follow their size,
    and the array's largest entry measures it.
    """
    assert actual.shape == expected.shape, name
    assert np.isfinite(actual).all(), name
    largest = float(np.abs(expected).max(initial=0.0))
    rtol, atol = RTOL * looser, max(FLOOR, SHARE_OF_LARGEST * largest) * looser
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, err_msg=name)


def close(actual: torch.Tensor, expected: torch.Tensor, rtol: float = 1e-4, share: float = 1e-5) -> None:
    """Compare up to the order of sums: within `rtol`, or a share of the largest number."""
    largest = float(expected.detach().abs().max())
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=share * largest)


def parts_of(name: str, gradient: Array) -> list[tuple[str, Any]]:
    """Parts of an input that differ by orders of magnitude, so each has its own scale."""
    if name in ("viewmats", "viewmats_rs"):
        return [(f"{name}: rotation", (..., slice(3), slice(3))), (f"{name}: translation", (..., slice(3), 3))]
    if name == "Ks":
        return [(f"Ks[{i}, {j}]", (..., i, j)) for i, j in ((0, 0), (1, 1), (0, 2), (1, 2))]
    if name.endswith(("_coeffs", "camera_params")):
        return [(f"{name}[{i}]", (..., i)) for i in range(gradient.shape[-1])]
    return [(name, ...)]


def assert_gradients(inputs: Mapping[str, torch.Tensor], expected: Mapping[str, Array], looser: float = 1.0) -> None:
    """Compare the gradient of each input; what a render does not read has none."""
    for name, tensor in inputs.items():
        assert tensor.grad is not None, name
        actual = tensor.grad.numpy()
        unread = expected[name] == 0
        for part, index in parts_of(name, actual):
            assert_close(part, actual[index], expected[name][index], looser)
            unread[index] = False
        assert not actual[unread].any(), name


def compare(
    outputs: dict[str, torch.Tensor],
    renders: Sequence[Any],
    inputs: dict[str, torch.Tensor],
    twins: dict[str, torch.Tensor],
    looser: float = 1.0,
) -> None:
    """Compare outputs with the fields of `renders`, and every gradient of a random sum of them with that of its twin."""
    trusted = ~torch.stack([r.untrusted for r in renders])
    assert trusted.float().mean() > 0.9, "most pixels must be compared"
    loss, wanted_loss = torch.zeros(()), torch.zeros(()).double()
    generator = torch.Generator().manual_seed(70)
    for name, actual in outputs.items():
        wanted = torch.stack([getattr(r, name) for r in renders])
        assert wanted[trusted].abs().max() > 0.1, name
        torch.testing.assert_close(actual.double()[trusted], wanted[trusted], rtol=2e-5 * looser, atol=2e-5 * looser)
        v = torch.randn(actual.shape, generator=generator) * trusted[..., None]
        loss, wanted_loss = loss + (actual * v).sum(), wanted_loss + (wanted * v).sum()
    loss.backward()
    gradients = torch.autograd.grad(wanted_loss, [twins[name] for name in inputs])
    assert all(gradient.any() for gradient in gradients)
    assert_gradients(inputs, {name: gradient.numpy() for name, gradient in zip(inputs, gradients, strict=True)}, looser)


def check(case: Case, rng: np.random.Generator) -> dict[str, Any]:
    """Render forward and backward both ways, compare everything, and return splat_py's `meta`."""
    scene, cameras, options = case.scene, case.cameras, {"render_mode": "RGB", "packed": False, **case.options}
    mode, size = options["render_mode"], {"width": cameras[0].width, "height": cameras[0].height}
    inputs = leaves_of(scene, cameras)
    if case.colors_per_camera is not None:
        inputs["colors"] = torch_input(case.colors_per_camera)
    if case.backgrounds is not None:
        inputs["backgrounds"] = torch_input(case.backgrounds)
    images, alphas, meta = rasterization(**inputs, **size, sh_degree=scene.sh_degree, **options)
    meta["means2d"].retain_grad()

    loss, v, masks = torch.zeros(()), [], []
    for c, camera in enumerate(cameras):
        render = ref.render(
            scene if case.colors_per_camera is None else replace(scene, colors=case.colors_per_camera[c]),
            camera,
            background=None if case.backgrounds is None else case.backgrounds[c],
            render_mode=mode,
            eps2d=options.get("eps2d", EPS2D),
            antialiased=options.get("rasterize_mode") == "antialiased",
        )
        untrusted = ref.untrusted_pixels(render, margin=case.margin)
        weight = np.ones_like(render.colors)
        if "ED" in mode:
            # Dividing by alpha = 1 - T, which float32 rounds to 6e-8, costs 6e-8 / alpha of precision.
            weight[..., -1] = render.alphas
        image, alpha = images[c].detach().numpy(), alphas[c, ..., 0].detach().numpy()
        difference = np.abs(image - render.colors) * weight / np.maximum(np.abs(render.colors), 1.0)
        assert difference[~untrusted].max(initial=0.0) <= 1e-5 * case.looser, f"image of camera {c}"
        assert np.abs(alpha - render.alphas)[~untrusted].max(initial=0.0) <= 1e-5 * case.looser, f"alpha of camera {c}"

        v_color = rounded(rounded(rng.normal(size=render.colors.shape)) * weight)
        v_alpha = rounded(rng.normal(size=render.alphas.shape))
        v_color[untrusted], v_alpha[untrusted] = 0.0, 0.0
        loss = loss + (images[c] * torch.tensor(v_color, dtype=torch.float32)).sum()
        loss = loss + (alphas[c, ..., 0] * torch.tensor(v_alpha, dtype=torch.float32)).sum()
        v.append(ref.render_backward(render, v_color, v_alpha))
        masks.append(untrusted)
    assert np.mean(masks) < 0.05, "most pixels must be compared"
    loss.backward()

    if "RGB" not in mode:
        assert all(inputs.pop(name).grad is None for name in ("colors", "backgrounds") if name in inputs)
    of_cameras = {
        name: np.stack([getattr(g, name) for g in v])
        for name in (*GAUSSIAN_INPUTS, "viewmat", "K", "background", "means2d", "means2d_abs")
    }
    expected = {name: of_cameras[name].sum(0) for name in GAUSSIAN_INPUTS}
    expected |= {f"{name}s": of_cameras[name] for name in ("viewmat", "K", "background")}
    if case.colors_per_camera is not None:
        expected["colors"] = of_cameras["colors"]
    assert_gradients(inputs, expected, case.looser)
    rows = (meta["camera_ids"].numpy(), meta["gaussian_ids"].numpy()) if options["packed"] else ...
    assert_close("means2d", meta["means2d"].grad.numpy(), of_cameras["means2d"][rows], case.looser)
    if options.get("absgrad"):
        assert_close("absgrad", meta["means2d"].absgrad.numpy(), of_cameras["means2d_abs"][rows], case.looser)
    return meta
