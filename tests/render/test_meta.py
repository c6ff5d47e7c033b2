"""The `meta` dictionary that `rasterization` returns: gsplat's keys, their shapes and values, and its behaviour."""

import copy
import pickle
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py import rasterization
from splat_py.render.meta import Meta
from tests.render.comparison import close
from tests.render.test_packed import HEIGHT, WIDTH, C, N, inputs_of

TILE, COLUMNS, ROWS = 8, 4, 3
OF_SPLATS = {"means2d": (2,), "depths": (), "conics": (3,), "opacities": (), "radii": (2,), "tiles_per_gauss": ()}
IDS = ("batch_ids", "camera_ids", "gaussian_ids")
LAZY = ("tiles_per_gauss", "isect_ids", "final_T", "n_contrib")
GSPLATS = {
    *("batch_ids", "camera_ids", "gaussian_ids", "radii", "means2d", "depths", "conics", "opacities", "tile_width"),
    *("tile_height", "tiles_per_gauss", "isect_ids", "flatten_ids", "isect_offsets", "width", "height", "tile_size"),
    *("n_batches", "n_cameras"),
}


def render(batch: tuple[int, ...] = (), **options: Any) -> tuple[Tensor, Tensor, dict[str, Any], dict[str, Tensor]]:
    inputs = inputs_of(batch)
    arguments: dict[str, Any] = {"width": WIDTH, "height": HEIGHT, "tile_size": TILE, **inputs, **options}
    images, alphas, meta = rasterization(**arguments)
    return images, alphas, meta, inputs


BATCHES: list[tuple[int, ...]] = [(), (2,), (1, 2)]


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_keys_and_shapes(packed: bool, batch: tuple[int, ...]) -> None:
    images, alphas, meta, _ = render(batch, packed=packed)
    assert set(meta) >= GSPLATS
    assert images.shape == (*batch, C, HEIGHT, WIDTH, 3) and alphas.shape == (*batch, C, HEIGHT, WIDTH, 1)
    sizes = {"width": WIDTH, "height": HEIGHT, "tile_size": TILE, "tile_width": COLUMNS, "tile_height": ROWS}
    sizes |= {"n_batches": int(np.prod(batch, dtype=int)), "n_cameras": C}
    for key, size in sizes.items():
        assert meta[key] == size and type(meta[key]) is int, key
    count = int((meta["radii"] > 0).all(-1).sum())
    lead = (count,) if packed else (*batch, C, N)
    for key, rest in OF_SPLATS.items():
        assert meta[key].shape == (*lead, *rest), key
    for key in IDS:
        assert (meta[key].shape == (count,) and not meta[key].is_floating_point()) if packed else meta[key] is None, key
    assert meta["radii"].dtype == torch.int32 and meta["tiles_per_gauss"].dtype == torch.int32
    assert meta["isect_offsets"].shape == (*batch, C, ROWS, COLUMNS) and meta["isect_offsets"].dtype == torch.int32
    intersections = len(meta["flatten_ids"])
    assert intersections > 50 and meta["flatten_ids"].dtype == torch.int32
    assert meta["isect_ids"].shape == (intersections,) and meta["isect_ids"].dtype == torch.int64
    for key, dtype in {"final_T": torch.float32, "n_contrib": torch.int32}.items():
        assert meta[key].shape == (*batch, C, HEIGHT, WIDTH) and meta[key].dtype == dtype
    assert meta["backend"] == "native"


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_intersections(packed: bool, batch: tuple[int, ...]) -> None:
    """Ids are sorted and have gsplat's bits (image, tile, depth); lists, counts and offsets agree."""
    _, _, meta, _ = render(batch, packed=packed)
    ids, splats, offsets = meta["isect_ids"], meta["flatten_ids"].long(), meta["isect_offsets"].flatten().long()
    assert (ids[1:] >= ids[:-1]).all()
    bits = (COLUMNS * ROWS).bit_length()
    image, tile, depth = ids >> 32 + bits, ids >> 32 & (1 << bits) - 1, ids & 0xFFFFFFFF
    assert tile.max() < COLUMNS * ROWS
    torch.testing.assert_close(depth.int().view(torch.float32), meta["depths"].detach().flatten()[splats], rtol=0, atol=0)
    of_splats = meta["batch_ids"] * C + meta["camera_ids"] if packed else torch.arange(meta["depths"].numel()) // N
    torch.testing.assert_close(image, of_splats[splats].long(), rtol=0, atol=0)
    # Each tile's intersections lie from its offset to the next one.
    ends = torch.cat([offsets[1:], torch.tensor([len(ids)])])
    torch.testing.assert_close(image * COLUMNS * ROWS + tile, torch.repeat_interleave(ends - offsets), rtol=0, atol=0)
    # A splat is in a tile at most once, and in as many as its count; never in a tile that its radii do not touch.
    assert len(torch.stack([splats, image * COLUMNS * ROWS + tile]).unique(dim=1)[0]) == len(splats)
    counts = meta["tiles_per_gauss"].flatten()
    assert int(counts.sum()) == len(splats)
    torch.testing.assert_close(torch.bincount(splats, minlength=len(counts)), counts.long(), rtol=0, atol=0)
    assert not counts[(meta["radii"] == 0).any(-1).flatten()].any()
    mean, radius = (meta[key].detach().reshape(-1, 2)[splats] for key in ("means2d", "radii"))
    low = torch.stack([tile % COLUMNS, tile // COLUMNS], -1) * TILE
    assert ((mean + radius > low) & (mean - radius < low + TILE)).all()


@pytest.mark.parametrize("packed", [False, True])
def test_pixels(packed: bool) -> None:
    """The remaining transmittance, and the position in its tile's list at which a pixel ended."""
    _, alphas, meta, _ = render((2,), packed=packed)
    torch.testing.assert_close(meta["final_T"], 1 - alphas[..., 0].detach(), rtol=0, atol=1e-7)
    counts = meta["n_contrib"]
    offsets = meta["isect_offsets"].flatten()
    lengths = torch.diff(offsets, append=torch.tensor([len(meta["flatten_ids"])])).reshape(meta["isect_offsets"].shape)
    of_pixels = lengths.repeat_interleave(TILE, -2).repeat_interleave(TILE, -1)[..., :HEIGHT, :WIDTH]
    assert counts.any() and (counts >= 0).all() and (counts <= of_pixels).all()
    torch.testing.assert_close(counts > 0, meta["final_T"] < 1, rtol=0, atol=0)


def assert_same(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(actual) == set(expected)
    for key, value in expected.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(actual[key], value, rtol=0, atol=0, msg=key)
        else:
            assert actual[key] == value, key


COPIES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "dict": dict,
    "two stars": lambda meta: {**meta},
    "items": lambda meta: dict(meta.items()),
    "zip": lambda meta: dict(zip(meta.keys(), meta.values(), strict=True)),
    "comprehension": lambda meta: {key: meta[key] for key in meta},
    "or": lambda meta: meta | {},
    "or from the right": lambda meta: {} | meta,
    "update": lambda meta: (new := {}, new.update(meta))[0],
    "in-place or": lambda meta: (new := {}, new.__ior__(meta))[0],
    "copy": lambda meta: meta.copy(),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle": lambda meta: pickle.loads(pickle.dumps(meta)),
    "get": lambda meta: {key: meta.get(key) for key in meta},
    "pop": lambda meta: {key: meta.pop(key) for key in list(meta)},
    "popitem": lambda meta: dict(meta.popitem() for _ in range(len(meta))),
    "setdefault": lambda meta: {key: meta.setdefault(key, 0) for key in meta},
    "json order": lambda meta: dict(sorted(meta.items(), key=lambda item: item[0])),
}


@pytest.mark.parametrize("way", COPIES)
def test_values_that_are_computed_when_they_are_read(way: str) -> None:
    """Values are present however the dictionary is read, computed once, and never None."""
    with torch.no_grad():
        first, second = render()[2], render()[2]
    expected = {key: first[key] for key in first}
    assert all(isinstance(expected[key], Tensor) for key in LAZY)
    assert_same(COPIES[way](second), expected)


def test_the_rest_of_a_dictionary() -> None:
    with torch.no_grad():
        meta = render()[2]
    assert isinstance(meta, dict) and type(meta) is Meta
    assert "final_T" in meta and "nothing" not in meta and len(meta) == len(list(meta)) == len(meta.keys())
    assert meta.get("nothing") is None and meta.get("nothing", 3) == 3 and meta.pop("nothing", 4) == 4
    with pytest.raises(KeyError):
        meta["nothing"]
    with pytest.raises(KeyError):
        meta.pop("nothing")
    # A value stays after the first read; a set value wins.
    assert meta["final_T"] is meta["final_T"] is meta.get("final_T")
    meta["n_contrib"] = "mine"
    meta.update(isect_ids="mine too")
    assert meta["n_contrib"] == "mine" and meta["isect_ids"] == "mine too"
    del meta["tiles_per_gauss"]
    assert "tiles_per_gauss" not in meta
    with pytest.raises(KeyError):
        meta["tiles_per_gauss"]
    assert meta == dict(meta)
    copy.deepcopy(meta)["depths"].zero_()
    assert meta["depths"].any()
    meta.clear()
    assert not meta and meta.get("final_T") is None


def test_a_representation_shows_values() -> None:
    with torch.no_grad():
        meta = render()[2]
    assert "'final_T': None" not in repr(meta) and "'final_T': tensor" in str(meta)


PROTECTED = ("means2d", "conics", "opacities", "radii", "flatten_ids", "isect_offsets")


INPUTS = ("means", "quats", "scales", "opacities", "viewmats", "Ks", "harmonics")
# Packed colours are a copy.
CHANGES = [
    *product(("meta",), PROTECTED, (False, True)),
    *product(("inputs",), INPUTS, (False, True)),
    ("inputs", "colors", False),
]


@pytest.mark.parametrize(("where", "name", "packed"), CHANGES)
def test_a_change_of_what_the_backward_pass_needs_is_an_error(where: str, name: str, packed: bool) -> None:
    """torch raises its own error instead of a wrong gradient."""
    sh = torch.rand(N, 4, 3, requires_grad=True)
    images, _, meta, inputs = render(packed=packed, **({"colors": sh, "sh_degree": 1} if name == "harmonics" else {}))
    with torch.no_grad():
        (meta if where == "meta" else inputs | {"harmonics": sh})[name].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        images.sum().backward()


@pytest.mark.parametrize("packed", [False, True])
def test_a_change_of_what_is_only_told_is_harmless(packed: bool) -> None:
    images, _, meta, inputs = render(packed=packed, absgrad=True)
    expected = torch.autograd.grad(images.square().sum(), list(inputs.values()), retain_graph=True)
    with torch.no_grad():
        for key in (*LAZY, "depths", *(IDS if packed else ())):
            meta[key].zero_()
        if packed:
            inputs["colors"].zero_()
    meta["means2d"].absgrad.zero_()
    actual = torch.autograd.grad(images.square().sum(), list(inputs.values()))
    for gradient, wanted in zip(actual, expected, strict=True):
        close(gradient, wanted, rtol=1e-5)
    assert meta["means2d"].absgrad.any()


def test_gradients_of_what_is_told() -> None:
    """Losses may use means2d, depths, conics and opacities."""
    _, _, meta, inputs = render(packed=True)
    sum(meta[key].sum() for key in ("means2d", "depths", "conics", "opacities")).backward()
    for name in ("means", "quats", "scales", "opacities", "viewmats"):
        assert inputs[name].grad.any(), name
    with torch.no_grad():
        assert not render()[2]["means2d"].requires_grad


@pytest.mark.parametrize("packed", [False, True])
def test_absgrad_is_there_after_the_forward_pass(packed: bool) -> None:
    images, _, meta, _ = render(packed=packed, absgrad=True)
    before = meta["means2d"].absgrad
    assert before.shape == meta["means2d"].shape and not before.any()
    images.sum().backward()
    assert meta["means2d"].absgrad.shape == before.shape and meta["means2d"].absgrad.any()
    assert not hasattr(render(packed=packed)[2]["means2d"], "absgrad")


def test_absgrad_of_many_channels_is_that_of_their_sum() -> None:
    """Eleven times three channels, of which each third has the gradient of one."""
    few, many = (
        render(absgrad=True, colors=torch.rand(N, 3, generator=torch.Generator().manual_seed(1)).repeat(1, k)) for k in (1, 11)
    )
    few[0].square().sum().mul(11).backward()
    many[0].square().sum().backward()
    torch.testing.assert_close(many[2]["means2d"].absgrad, few[2]["means2d"].absgrad, rtol=1e-3, atol=1e-4)
