"""The splats that each pixel blends, and their weights (kernels/contributors.slang)."""

from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sorting import PrefixSum
from splat_py.gpu.tensors import as_tensor
from splat_py.render.images import ListSegment
from splat_py.render.options import Options
from splat_py.render.splats import ProjectedSplats
from splat_py.render.tiles import BinnedTiles

# All of each tile's list.
WHOLE = ListSegment(0, (1 << 32) - 1)


class Contributors(NamedTuple):
    """The splats that pixels blend, [K] each, sorted by pixel, then front to back."""

    pixels: Tensor  # int64, row by row, image by image
    splats: Tensor  # int64, as lists number them
    weights: Tensor  # α T

    @classmethod
    def of(
        cls,
        projected: ProjectedSplats,
        tiles: BinnedTiles,
        options: Options,
        width: int,
        height: int,
        device: Device,
        part: ListSegment = WHOLE,
        transmittances: Tensor | None = None,
    ) -> Self:
        """Blend a part of each tile's list, before which pixels have `transmittances` [..., H, W], by default 1. Not
        differentiable."""
        splats, memory, sides = projected.arrays(device), device.memory, (tiles.grid.cameras, height, width)
        through = memory.full(sides, 1) if transmittances is None else memory.array(transmittances)
        counts = memory.empty(sides, np.uint32)
        before = PrefixSum(device, counts.size)
        blended: dict[str, Any] = {"splats": splats, "lists": tiles.arrays, "segment": part, "rays": splats.rays}
        blended |= {"width": width, "height": height, "pixels": counts.size, "transmittances": through, "options": options}

        def record(recorder: Recorder, **results: Any) -> None:
            recorder.dispatch("contributors", "findContributors", linear_groups(counts.size), **blended, **results)

        with device.recording() as recorder:
            record(recorder, counts=counts, offsets=None, contributors=None, weights=None)
            before.record(recorder, counts)
        total = int(before.total.numpy()[0])
        found, weights = memory.empty(total, np.uint32), memory.empty(total)
        with device.recording() as recorder:
            record(recorder, counts=None, offsets=before.offsets, contributors=found, weights=weights, LISTED=True)
        like = projected.means2d
        of_pixels, ids = (as_tensor(array, like).view(torch.int32).long().flatten() for array in (counts, found))
        pixels = torch.arange(len(of_pixels), device=ids.device).repeat_interleave(of_pixels)
        return cls(pixels, ids, as_tensor(weights, like))
