"""Orthographic and fisheye cameras, covariances, α's limit: whole renders against a float64 one in torch."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py import rasterization
from tests.reference.gaussian import covariances
from tests.render.comparison import compare, rounded, viewmat_of
from tests.render.torch_rendering import Projected, Rendered, render
from tests.shaders.camera_models import lenses

N, CAMERAS = 20, 2
MODELS = ("pinhole", "ortho", "fisheye", "equirectangular")
# Coefficients of distortion among gsplat's arguments, by camera model.
LENSES = {
    "pinhole": {"radial_coeffs": 6, "tangential_coeffs": 2, "thin_prism_coeffs": 4},
    "fisheye": {"radial_coeffs": 4},
}
# The image's corners are about 75 degrees from a fisheye's axis.
FOCAL = {"pinhole": 1.1, "ortho": 0.3, "fisheye": 0.48, "equirectangular": 0.35}


def scene_of(camera_model: str, width: int, height: int, seed: int) -> dict[str, Tensor]:
    """Float32 leaves: Gaussians all over the image and beyond its edges, and two cameras with different fx and fy."""
    rng = np.random.default_rng(seed)
    viewmats = np.stack([viewmat_of(rng) for _ in range(CAMERAS)])
    side = max(width, height)
    fx, fy = FOCAL[camera_model] * side, 1.2 * FOCAL[camera_model] * side
    if camera_model == "equirectangular":
        fx, fy = width / (2 * np.pi), height / np.pi
    K = np.array([[fx, 0, 0.53 * width], [0, fy, 0.46 * height], [0, 0, 1]])
    # Depths far enough apart that no rounding changes the order.
    depth = rng.permutation(np.linspace(2, 6, N))
    at = rng.uniform(-0.1, 1.1, (N, 2)) * [width, height] - K[:2, 2]
    plane = at / [fx, fy]
    if camera_model == "ortho":
        means = np.concatenate([plane, depth[:, None]], -1)
    elif camera_model == "pinhole":
        means = np.concatenate([plane, np.ones((N, 1))], -1) * depth[:, None]
    elif camera_model == "equirectangular":
        # Gaussians lie in all directions, also behind the camera and up to the poles.
        longitude, latitude = rng.uniform(-np.pi, np.pi, N), np.radians(rng.uniform(-85, 85, N))
        direction = np.stack([np.sin(longitude) * np.cos(latitude), np.sin(latitude), np.cos(longitude) * np.cos(latitude)], -1)
        means = direction * depth[:, None]
    else:
        angle = np.linalg.norm(plane, axis=1, keepdims=True)
        direction = np.concatenate([plane / angle * np.tan(np.minimum(angle, 1.35)), np.ones((N, 1))], -1)
        means = direction * depth[:, None]
        means[0, :2] = 0.0
    # About the same size in pixels.
    reach = 1.0 if camera_model == "ortho" else np.linalg.norm(means, axis=1, keepdims=True)
    arrays = {
        "means": means,
        "quats": rng.normal(size=(N, 4)),
        "scales": np.exp(rng.uniform(np.log(0.02), np.log(0.25), (N, 3))) * reach / FOCAL[camera_model] * 0.5,
        "opacities": rng.uniform(0.3, 1.0, N),
        "colors": rng.uniform(size=(N, 3)),
        "viewmats": viewmats,
        "Ks": np.tile(K, (CAMERAS, 1, 1)),
        "backgrounds": rng.uniform(size=(CAMERAS, 3)),
    }
    return {name: torch.tensor(rounded(array), dtype=torch.float32, requires_grad=True) for name, array in arrays.items()}


def with_lenses(inputs: dict[str, Tensor], camera_model: str) -> dict[str, Tensor]:
    """Add every coefficient of distortion to the inputs."""
    rng = np.random.default_rng(76)
    drawn = np.split(lenses(rng, CAMERAS, fisheye=camera_model == "fisheye"), (6, 8), -1)
    arrays = {name: part[:, : LENSES[camera_model].get(name)] for name, part in zip(LENSES["pinhole"], drawn, strict=True)}
    return inputs | {name: torch.tensor(arrays[name], dtype=torch.float32, requires_grad=True) for name in LENSES[camera_model]}


def lens_of(twins: dict[str, Tensor], c: int) -> Tensor | None:
    """The coefficients [12] of a camera, zero if not given; None without any."""
    if not any(name in twins for name in LENSES["pinhole"]):
        return None
    parts = []
    for name, count in LENSES["pinhole"].items():
        given = twins[name][c] if name in twins else torch.zeros(0).double()
        parts.append(torch.nn.functional.pad(given, (0, count - len(given))))
    return torch.cat(parts)


def check(
    inputs: dict[str, Tensor],
    camera_model: str,
    width: int,
    height: int,
    sigma_of: Callable[[dict[str, Tensor]], Tensor] = lambda t: covariances(t["quats"], t["scales"]),
    *,
    antialiased: bool = False,
    max_alpha: float = 0.999,
    with_depth: bool = False,
    packed: bool = True,
    margin: float = 1e-4,
    looser: float = 1.0,
    projected_of: Callable[[dict[str, Tensor], int], Projected] | None = None,
    own: Any = None,
    features_of: Callable[[dict[str, Tensor], int], Tensor] = lambda t, c: t["colors"],
    falloff_of: Callable[[dict[str, Tensor]], dict[str, Any]] = lambda t: {},
    splat_params: Mapping[str, Tensor] = MappingProxyType({}),
    **options: Any,
) -> list[Rendered]:
    """Check images, alphas and every input's gradient.

    Args:
        looser: factor on the tolerances.
        projected_of: the reference's projection for a camera model that it does not know.
        own: a camera model for `rasterization` that replaces `camera_model`.
        features_of: the reference's colours for a camera.
        falloff_of: the falloff of the reference's splats, which also depends on `splat_params`.
        options: for `rasterization`.
    """
    leaves = {**inputs, **splat_params}
    twins = {name: tensor.detach().double().requires_grad_() for name, tensor in leaves.items()}
    expected = [
        render(
            twins["means"],
            sigma_of(twins),
            twins["opacities"],
            features_of(twins, c),
            twins["viewmats"][c],
            twins["Ks"][c],
            width,
            height,
            camera_model=camera_model,
            lens=lens_of(twins, c),
            background=torch.nn.functional.pad(twins["backgrounds"][c], (0, int(with_depth))),
            antialiased=antialiased,
            max_alpha=max_alpha,
            with_depth=with_depth,
            margin=margin,
            projected=projected_of(twins, c) if projected_of else None,
            **falloff_of(twins),
        )
        for c in range(CAMERAS)
    ]
    arguments: dict[str, Any] = {"quats": None, "scales": None} | inputs
    images, alphas, _ = rasterization(
        **arguments,
        width=width,
        height=height,
        **options,
        camera_model=own or camera_model,
        rasterize_mode="antialiased" if antialiased else "classic",
        max_alpha=max_alpha,
        render_mode="RGB+D" if with_depth else "RGB",
        packed=packed,
        splat_params=splat_params or None,
    )
    for tensor in leaves.values():
        tensor.grad = None
    assert torch.stack([r.alpha for r in expected]).mean() > 0.05
    compare({"image": images, "alpha": alphas}, expected, leaves, twins, looser)
    return expected


@pytest.mark.parametrize("size", [(24, 18), (17, 29), (1, 5)], ids=str)
@pytest.mark.parametrize("camera_model", MODELS)
def test_camera_models(camera_model: str, size: tuple[int, int]) -> None:
    check(scene_of(camera_model, *size, seed=71), camera_model, *size)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("camera_model", LENSES)
def test_lenses(camera_model: str, packed: bool) -> None:
    inputs = with_lenses(scene_of(camera_model, 24, 18, seed=77), camera_model)
    check(inputs, camera_model, 24, 18, antialiased=packed, with_depth=packed, packed=packed)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("camera_model", MODELS)
def test_antialiased_with_depth(camera_model: str, packed: bool) -> None:
    inputs = scene_of(camera_model, 24, 18, seed=72)
    check(inputs, camera_model, 24, 18, antialiased=True, with_depth=True, packed=packed)


def with_covars(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Replace rotations and scales by covariances."""
    quats, scales = (inputs[name].detach().double() for name in ("quats", "scales"))
    others = {name: tensor for name, tensor in inputs.items() if name not in ("quats", "scales")}
    return others | {"covars": covariances(quats, scales).float().requires_grad_()}


def of_covars(twins: dict[str, Tensor]) -> Tensor:
    """Symmetric covariances from the upper triangles, the only part that is read."""
    upper = twins["covars"].triu()
    return upper + upper.triu(1).mT


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("camera_model", MODELS)
def test_covariances(camera_model: str, antialiased: bool, packed: bool) -> None:
    """Covariances instead of rotations and scales; elements below the diagonal are not read."""
    inputs = with_covars(scene_of(camera_model, 24, 18, seed=73))
    below = torch.ones(3, 3, dtype=torch.bool).tril(-1)
    inputs["covars"].detach()[:, below] = 7.0
    check(inputs, camera_model, 24, 18, of_covars, antialiased=antialiased, packed=packed)
    assert inputs["covars"].grad is not None and not inputs["covars"].grad[:, below].any()


@pytest.mark.parametrize("flat", [1, 2], ids=["discs", "needles"])
@pytest.mark.parametrize("as_covars", [False, True])
@pytest.mark.parametrize("camera_model", MODELS)
def test_without_a_volume(camera_model: str, as_covars: bool, flat: int) -> None:
    """One or two scales are zero."""
    inputs = scene_of(camera_model, 24, 18, seed=74)
    with torch.no_grad():
        inputs["scales"][:, :flat] = 0.0
    if as_covars:
        check(with_covars(inputs), camera_model, 24, 18, of_covars)
    else:
        check(inputs, camera_model, 24, 18)


@pytest.mark.parametrize("max_alpha", [0.999, 0.99])
def test_limit_of_alpha(max_alpha: float) -> None:
    """At the limit, only splats behind have gradients."""
    inputs = scene_of("pinhole", 24, 18, seed=75)
    with torch.no_grad():
        inputs["opacities"][:] = 1.0
        inputs["scales"] *= 3
    limited = check(inputs, "pinhole", 24, 18, max_alpha=max_alpha)
    assert all((r.alpha > max_alpha - 1e-6).any() for r in limited)
