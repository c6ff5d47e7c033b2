"""The `meta` dictionary that `rasterization` returns, under gsplat's names."""

from collections.abc import Callable, Iterator, MutableMapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from splat_py.gpu.tensors import as_tensor
from splat_py.render.rasterize import RenderedImages, median_splats
from splat_py.render.splats import ProjectedSplats
from splat_py.render.tiles import BinnedTiles


class Later(partial[Any]):
    """A value that is computed when it is first read."""


class Meta(dict[str, Any]):
    """A dictionary that computes some values when they are first read: they cost time and are rarely used."""

    def __init__(self, values: dict[str, Any], later: dict[str, Callable[[], Any]]) -> None:
        super().__init__(values | {key: Later(compute) for key, compute in later.items()})

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, Later):
            value = self[key] = value()
        return value

    # With its own iterator, copying the dictionary reads each value through `__getitem__`.
    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    # A mapping's methods call `__getitem__`; a dictionary's do not.
    get: Any = MutableMapping.get
    popitem: Any = MutableMapping.popitem
    setdefault: Any = MutableMapping.setdefault
    keys: Any = MutableMapping.keys
    items: Any = MutableMapping.items
    values: Any = MutableMapping.values
    __eq__: Any = MutableMapping.__eq__

    def pop(self, key: str, *default: Any) -> Any:
        if key in self:
            default = (self[key],)
        return super().pop(key, *default)

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __ror__(self, other: Any) -> Any:
        return other | dict(self)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)

    def __repr__(self) -> str:
        return repr(dict(self))


def values_of(splats: ProjectedSplats, cameras: int, gaussians: int) -> dict[str, Any]:
    """The keys of `meta` that splats alone decide, for scenes of so many cameras and Gaussians."""
    image_ids, gaussian_ids = splats.image_ids, splats.gaussian_ids
    return {
        "batch_ids": None if image_ids is None else image_ids // cameras,
        "camera_ids": None if image_ids is None else image_ids % cameras,
        "gaussian_ids": None if gaussian_ids is None else gaussian_ids % gaussians,
        "means2d": splats.means2d,
        "depths": splats.depths,
        "conics": splats.conics,
        "opacities": splats.opacities,
        "radii": splats.radii,
    }


def meta_of(splats: ProjectedSplats, tiles: BinnedTiles, images: RenderedImages, lead: torch.Size, gaussians: int) -> Meta:
    """Make the `meta` of [..., C] cameras that see N Gaussians each: gsplat's keys, and `final_T` and `n_contrib` of pixels."""
    grid = tiles.grid
    cameras, (_, height, width) = lead[-1], images.arrays.final_T.shape
    values = values_of(splats, cameras, gaussians) | {
        "tile_size": grid.tile_size,
        "tile_width": grid.columns,
        "tile_height": grid.rows,
        "isect_offsets": tiles.offsets[:-1].reshape(*lead, grid.rows, grid.columns),
        "flatten_ids": tiles.ids,
        "width": width,
        "height": height,
        "n_batches": lead[:-1].numel(),
        "n_cameras": cameras,
        "backend": "native",
    }
    depths, offsets, ids, arrays = splats.depths.detach(), tiles.offsets, tiles.ids, images.arrays

    def of_pixels(name: str) -> Callable[[], Tensor]:
        # A copy: the backward pass needs the original.
        return lambda: as_tensor(getattr(arrays, name), depths).clone().reshape(*lead, height, width)

    def median_ids() -> Tensor:
        found = median_splats(arrays, tiles)
        rows = found[found >= 0]
        found[found >= 0] = (rows if values["gaussian_ids"] is None else values["gaussian_ids"][rows]) % gaussians
        return found.reshape(*lead, height, width)

    return Meta(
        values,
        ({} if arrays.medians is None else {"median_ids": median_ids})
        | {
            "tiles_per_gauss": lambda: torch.bincount(ids, minlength=depths.numel()).to(torch.int32).reshape(depths.shape),
            "isect_ids": lambda: _isect_ids(depths, offsets, ids, grid.columns * grid.rows),
            "final_T": of_pixels("final_T"),
            "n_contrib": lambda: of_pixels("n_contrib")().view(torch.int32),
        },
    )


def _isect_ids(depths: Tensor, offsets: Tensor, ids: Tensor, tiles: int) -> Tensor:
    """gsplat's sort keys, [isects] int64: from the highest bits down, image, tile in the image, the depth's 32 bits."""
    counts = (offsets[1:] - offsets[:-1]).long()
    tile = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    bits = depths.flatten()[ids.long()].view(torch.int32).long()
    return (tile // tiles << 32 + tiles.bit_length()) | (tile % tiles << 32) | bits
