"""Bad arguments of `rasterization` raise one clear sentence that names the argument."""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from splat_py import SplatError, rasterization, rasterization_2dgs
from splat_py.render.options import Options
from splat_py.render.project import project
from splat_py.render.rasterize import rasterize_to_pixels
from splat_py.render.shade import shade
from splat_py.render.tiles import bin_tiles

N, C, WIDTH, HEIGHT = 5, 2, 16, 12


def good() -> dict[str, Any]:
    K = torch.tensor([[20.0, 0, 8], [0, 20, 6], [0, 0, 1]])
    random = partial(torch.rand, generator=torch.Generator().manual_seed(3))
    return {
        "means": random(N, 3) + torch.tensor([0.0, 0.0, 3.0]),
        "quats": random(N, 4),
        "scales": random(N, 3),
        "opacities": random(N),
        "colors": random(N, 3),
        "viewmats": torch.eye(4).repeat(C, 1, 1),
        "Ks": K.repeat(C, 1, 1),
        "width": WIDTH,
        "height": HEIGHT,
        "backgrounds": random(C, 3),
    }


def sh(coefficients: int) -> torch.Tensor:
    return torch.rand(N, coefficients, 3)


def with_entry(shape: tuple[int, ...], index: tuple[int, ...], value: float) -> torch.Tensor:
    """A stack of identity matrices with one entry changed."""
    matrix = torch.eye(shape[-1]).repeat(*shape[:-2], 1, 1)
    matrix[index] = value
    return matrix


SHAPES = {
    "means": [(N, 2), (N,), (3,)],
    "quats": [(N, 3), (N + 1, 4), (N,)],
    "scales": [(N, 1), (N - 1, 3), (N,)],
    "opacities": [(N, 1), (N + 1,), ()],
    "colors": [(N + 1, 3), (C + 1, N, 3), (N, 0), (N,), (C, N + 1, 3)],
    "viewmats": [(4, 4), (C, 3, 4), (0, 4, 4)],
    "Ks": [(3, 3), (C + 1, 3, 3), (C, 4, 4), (C, 3)],
    "backgrounds": [(3,), (C, 4), (C + 1, 3)],
}
WRONG_SHAPES = [(name, shape) for name, shapes in SHAPES.items() for shape in shapes]

VALUES: dict[str, list[Any]] = {
    "width": [0, 16.5],
    "height": [-3, "12"],
    "tile_size": [5, 0, 32],
    "near_plane": [0.0, -1.0, math.nan],
    "far_plane": [math.nan],
    "eps2d": [-0.1, math.nan, math.inf],
    "radius_clip": [-1.0, math.nan],
    "colors": [None],
    "quats": [None],
    "covars": [torch.rand(N, 6), torch.rand(N, 3, 3, dtype=torch.float64)],
    "max_alpha": [1.0, 0.5],
    "radial_coeffs": [torch.zeros(6), torch.zeros(C, 5), [0.0] * 6],
    "tangential_coeffs": [torch.zeros(C + 1, 2), torch.full((C, 2), math.nan)],
    "thin_prism_coeffs": [torch.zeros(C, 3), torch.zeros(C, 4, dtype=torch.float64)],
    "extra_signals": [torch.rand(N + 1, 2)],
    "render_mode": ["DEPTH", None],
    "rasterize_mode": ["smooth"],
    "viewmats": [with_entry((C, 4, 4), (1, 0, 3), math.nan), with_entry((C, 4, 4), (0, 2, 3), math.inf)],
    "Ks": [
        with_entry((C, 3, 3), (1, 0, 2), math.nan),
        with_entry((C, 3, 3), (0, 0, 0), 0.0),
        with_entry((C, 3, 3), (1, 1, 1), -20.0),
    ],
}
BAD_VALUES: list[tuple[str, dict[str, Any]]] = [
    *((name, {name: value}) for name, values in VALUES.items() for value in values),
    ("far_plane", {"near_plane": 2.0, "far_plane": 1.0}),
    ("sh_degree", {"sh_degree": 5, "colors": sh(36)}),
    ("sh_degree", {"sh_degree": 4, "colors": sh(24)}),
    ("sh_degree", {"sh_degree": True, "colors": sh(4)}),
    ("sh_degree", {"sh_degree": -1, "colors": sh(1)}),
    ("sh_degree", {"sh_degree": 1.5, "colors": sh(16)}),
    ("sh_degree", {"sh_degree": 2, "colors": sh(4)}),
    ("colors", {"sh_degree": 0, "colors": torch.rand(N, 3)}),
    ("colors", {"sh_degree": 0, "colors": torch.rand(N, 1, 0)}),
    ("sparse_grad", {"sparse_grad": True, "packed": False}),
    ("radial_coeffs", {"radial_coeffs": torch.zeros(C, 6), "camera_model": "fisheye"}),
    ("radial_coeffs", {"radial_coeffs": torch.zeros(C, 4), "camera_model": "ortho"}),
    ("radial_coeffs", {"radial_coeffs": torch.zeros(C, 4), "camera_model": "equirectangular"}),
    ("tangential_coeffs", {"tangential_coeffs": torch.zeros(C, 2), "camera_model": "fisheye"}),
    ("extra_signals", {"extra_signals": torch.rand(N, 3, 2), "extra_signals_sh_degree": 1}),
    ("extra_signals_sh_degree", {"extra_signals": torch.rand(N, 36, 2), "extra_signals_sh_degree": 5}),
]


def sentence_of(error: pytest.ExceptionInfo[Exception]) -> str:
    message = str(error.value)
    assert "\n" not in message and len(message) < 250, message
    return message


def check(name: str, changes: dict[str, Any], kind: type[Exception] = SplatError) -> None:
    with pytest.raises(kind) as error:
        rasterization(**(good() | changes))
    assert name in sentence_of(error)


def test_the_good_call_is_good() -> None:
    images, _, _ = rasterization(**good())
    assert images.shape == (C, 12, 16, 3)


@pytest.mark.parametrize(("name", "shape"), WRONG_SHAPES, ids=str)
def test_shapes(name: str, shape: tuple[int, ...]) -> None:
    check(name, {name: torch.ones(shape)})


@pytest.mark.parametrize("name", SHAPES)
def test_types(name: str) -> None:
    tensor = good()[name]
    wrong = [tensor.numpy(), tensor.tolist(), tensor.double(), tensor.bfloat16(), tensor.to("meta")]
    for value in wrong if name == "colors" else [*wrong, tensor.half()]:
        check(name, {name: value})


STRANGE = (None, "x", 2, -1, math.nan, True, 10**30, b"x", [], {}, (1, 2), object(), torch.zeros(3), np.zeros(3))


@pytest.mark.parametrize("render", [rasterization, rasterization_2dgs], ids=lambda render: render.__name__)
def test_values_of_any_type(render: Callable[..., Any]) -> None:
    """Each argument works with each strange value, or is refused in a sentence that names an argument."""
    names = list(inspect.signature(render).parameters)
    for name in names:
        for value in STRANGE:
            said = names[0]
            try:
                render(**(good() | {name: value}))
            except (SplatError, NotImplementedError) as error:
                said = str(error)
            assert any(known in said for known in names) and "\n" not in said, f"{name}={value!r}: {said}"


PROJECTED = [(name, shape) for name, shape in WRONG_SHAPES if name not in ("colors", "backgrounds") and 0 not in shape]


@pytest.mark.parametrize(("name", "shape"), PROJECTED, ids=str)
def test_shapes_of_a_projection(name: str, shape: tuple[int, ...]) -> None:
    given = good()
    del given["colors"], given["backgrounds"]
    with pytest.raises(SplatError, match=rf"^{name} has shape \[{', '.join(map(str, shape))}\]; expected"):
        project(**given | {name: torch.ones(shape)}, options=Options(16))


@pytest.mark.parametrize(
    ("name", "shape"), [("means", (N, 2)), ("features", (N - 1, 4, 3)), ("viewmats", (C, 3, 4)), ("radii", (C, N + 1, 2))]
)
def test_shapes_of_shading(name: str, shape: tuple[int, ...]) -> None:
    given = good()
    right = {"means": given["means"], "features": sh(4), "viewmats": given["viewmats"], "radii": torch.ones(C, N, 2).int()}
    with pytest.raises(SplatError, match=rf"^{name} has shape \[{', '.join(map(str, shape))}\]; expected"):
        shade(**right | {name: torch.ones(shape, dtype=right[name].dtype)}, color=1)


def test_shapes_of_pixels() -> None:
    given = good()
    gaussians = [given[name] for name in ("means", "quats", "scales", "opacities", "viewmats", "Ks")]
    splats, options = project(*gaussians, WIDTH, HEIGHT, Options(16)), Options(16)
    tiles = bin_tiles(splats, WIDTH, HEIGHT, options)
    with pytest.raises(SplatError, match=rf"^colors has shape \[{C}, {N - 1}, 3\]; expected \[{C}, {N}, D\]"):
        rasterize_to_pixels(splats, torch.ones(C, N - 1, 3), tiles, WIDTH, HEIGHT, None, options)


def test_surfels_need_a_pose_with_an_inverse() -> None:
    with pytest.raises(SplatError, match="viewmats holds a matrix without an inverse"):
        rasterization_2dgs(**(good() | {"viewmats": torch.zeros(C, 4, 4)}))


@pytest.mark.parametrize(("name", "changes"), BAD_VALUES, ids=lambda x: x if isinstance(x, str) else "")
def test_values(name: str, changes: dict[str, Any]) -> None:
    check(name, changes)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("camera_model", {"camera_model": "lidar"}),
        ("absgrad", {"colors": torch.rand(N, 129), "backgrounds": None, "absgrad": True}),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_is_not_supported(name: str, changes: dict[str, Any]) -> None:
    check(name, changes, NotImplementedError)


def test_batch_dimensions_that_differ() -> None:
    batch = {name: value[None] for name, value in good().items() if isinstance(value, torch.Tensor)}
    rasterization(**(good() | batch))
    for name in batch:
        if name != "means":
            check(name, batch | {name: good()[name]})


def test_numpy_integers_are_sizes() -> None:
    images, _, _ = rasterization(**(good() | {"width": np.int64(16), "height": np.int32(12)}))
    assert images.shape == (C, 12, 16, 3)
