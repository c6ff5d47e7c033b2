"""One render, by splat_py and by the float64 reference, compared pixel by pixel and gradient by gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

import tests.reference as ref
from splat_py.render.rasterization import rasterization
from tests.reference.arrays import Array, Mask
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

    @property
    def render_mode(self) -> str:
        return str(self.options.get("render_mode", "RGB"))

    def scene_for(self, camera: int) -> ref.Scene:
        return self.scene if self.colors_per_camera is None else replace(self.scene, colors=self.colors_per_camera[camera])


@dataclass(frozen=True)
class Expected:
    """The reference's renders, one a camera, and the image gradients for both backward passes."""

    renders: list[ref.Rendered]
    untrusted: list[Mask]
    v_colors: list[Array]
    v_alphas: list[Array]

    @classmethod
    def of(cls, case: Case, rng: np.random.Generator) -> Expected:
        renders, masks, v_colors, v_alphas = [], [], [], []
        for index, camera in enumerate(case.cameras):
            render = ref.render(
                case.scene_for(index),
                camera,
                background=None if case.backgrounds is None else case.backgrounds[index],
                render_mode=case.render_mode,
                eps2d=case.options.get("eps2d", EPS2D),
                antialiased=case.options.get("rasterize_mode") == "antialiased",
            )
            untrusted = ref.untrusted_pixels(render, margin=case.margin)
            v_color = rounded(rng.normal(size=render.colors.shape))
            v_alpha = rounded(rng.normal(size=render.alphas.shape))
            if "ED" in case.render_mode:
                # Dividing by alpha = 1 - T, which float32 rounds to 6e-8, costs 6e-8 / alpha of precision.
                v_color[..., -1] = rounded(v_color[..., -1] * render.alphas)
            v_color[untrusted], v_alpha[untrusted] = 0.0, 0.0
            renders.append(render)
            masks.append(untrusted)
            v_colors.append(v_color)
            v_alphas.append(v_alpha)
        assert np.mean([mask.mean() for mask in masks]) < 0.05, "most pixels must be compared"
        return cls(renders, masks, v_colors, v_alphas)


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
    wanted_loss.backward()
    for name, tensor in inputs.items():
        actual, gradient = _gradient(tensor), _gradient(twins[name])
        assert gradient.any(), name
        parts: list[tuple[str, Any]] = [(name, ...)]
        if name in ("viewmats", "viewmats_rs"):
            parts = [(f"{name}: rotation", (..., slice(3), slice(3))), (f"{name}: translation", (..., slice(3), 3))]
        elif name == "Ks":
            parts = [(f"Ks[{i}, {j}]", (..., i, j)) for i, j in ((0, 0), (1, 1), (0, 2), (1, 2))]
            assert not actual[:, np.array([[0, 1, 0], [1, 0, 0], [1, 1, 1]], dtype=bool)].any()
        elif name.endswith(("_coeffs", "camera_params")):
            parts = [(f"{name}[{i}]", (..., i)) for i in range(tensor.shape[-1])]
        for part, index in parts:
            assert_close(part, actual[index], gradient[index], looser)


def check(case: Case, rng: np.random.Generator) -> dict[str, Any]:
    """Render forward and backward both ways, compare everything, and return splat_py's `meta`."""
    scene, cameras = case.scene, case.cameras
    expected = Expected.of(case, rng)
    inputs = leaves_of(scene, cameras)
    if case.colors_per_camera is not None:
        inputs["colors"] = torch_input(case.colors_per_camera)
    if case.backgrounds is not None:
        inputs["backgrounds"] = torch_input(case.backgrounds)
    images, alphas, meta = rasterization(
        **inputs,
        width=cameras[0].width,
        height=cameras[0].height,
        sh_degree=scene.sh_degree,
        **{"packed": False, **case.options},
    )
    meta["means2d"].retain_grad()
    v_colors, v_alphas = np.stack(expected.v_colors), np.stack(expected.v_alphas)
    loss = (images * torch.tensor(v_colors, dtype=torch.float32)).sum()
    (loss + (alphas[..., 0] * torch.tensor(v_alphas, dtype=torch.float32)).sum()).backward()

    for index, render in enumerate(expected.renders):
        trusted = ~expected.untrusted[index]
        image, alpha = images[index].detach().numpy(), alphas[index, ..., 0].detach().numpy()
        weight = np.ones_like(render.colors)
        if "ED" in case.render_mode:
            weight[..., -1] = render.alphas
        difference = np.abs(image - render.colors) * weight / np.maximum(np.abs(render.colors), 1.0)
        assert difference[trusted].max(initial=0.0) <= 1e-5 * case.looser, f"image of camera {index}"
        assert np.abs(alpha - render.alphas)[trusted].max(initial=0.0) <= 1e-5 * case.looser, f"alpha of camera {index}"

    v = [ref.render_backward(*parts) for parts in zip(expected.renders, expected.v_colors, expected.v_alphas, strict=True)]
    for name in GAUSSIAN_INPUTS:
        per_camera = np.stack([getattr(g, name) for g in v])
        keep_cameras = name == "colors" and case.colors_per_camera is not None
        gradient = inputs[name].grad
        if gradient is None:
            assert name == "colors" and "RGB" not in case.render_mode
            continue
        assert_close(name, gradient.numpy(), per_camera if keep_cameras else per_camera.sum(0), case.looser)
    # Translation, rotation and the four intrinsics differ by orders of magnitude: each kind has its own scale.
    v_viewmats = np.stack([g.viewmat for g in v])
    actual = _gradient(inputs["viewmats"])
    assert_close("rotation", actual[:, :3, :3], v_viewmats[:, :3, :3], case.looser)
    assert_close("translation", actual[:, :3, 3], v_viewmats[:, :3, 3], case.looser)
    assert not actual[:, 3].any()
    v_Ks = np.stack([g.K for g in v])
    actual = _gradient(inputs["Ks"])
    for row, column in ((0, 0), (1, 1), (0, 2), (1, 2)):
        assert_close(f"Ks[{row}, {column}]", actual[:, row, column], v_Ks[:, row, column], case.looser)
    assert not (actual * (v_Ks == 0)).any()
    if case.backgrounds is not None and "RGB" in case.render_mode:
        assert_close("backgrounds", _gradient(inputs["backgrounds"]), np.stack([g.background for g in v]), case.looser)
    packed = case.options.get("packed")
    rows = (meta["camera_ids"].numpy(), meta["gaussian_ids"].numpy()) if packed else (slice(None), slice(None))
    assert_close("means2d", meta["means2d"].grad.numpy(), np.stack([g.means2d for g in v])[rows], case.looser)
    if case.options.get("absgrad"):
        assert_close("absgrad", meta["means2d"].absgrad.numpy(), np.stack([g.means2d_abs for g in v])[rows], case.looser)
    return meta


def _gradient(tensor: torch.Tensor) -> Array:
    assert tensor.grad is not None
    return tensor.grad.numpy()
