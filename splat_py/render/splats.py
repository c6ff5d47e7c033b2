"""The data that stages pass on: on the device, a dataclass for each struct of slang/kernels; for torch, `ProjectedSplats`.

N Gaussians in one or more scenes, C cameras, equally many per scene; M splats, D channels. Dense splats: one for each camera
and Gaussian of its scene. Packed splats: only the visible ones (slang/kernels/splat_ids.slang).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import primal
from splat_py.gpu.device import Device
from splat_py.gpu.tensors import as_tensor
from splat_py.render.options import Options


@dataclass(frozen=True)
class GaussianArrays:
    """N Gaussians, activated or raw (`Options.raw_params`); also their gradients. With `covars`, quaternions and scales are
    empty."""

    means: Array  # [N, 3]
    quats: Array  # [N, 4]
    scales: Array  # [N, 3]
    opacities: Array  # [N]
    covars: Array | None = None  # [N, 6] xx, xy, xz, yy, yz, zz
    extras: Array | None = None  # [N, Options.extras]
    scenes: int = 1

    @property
    def count(self) -> int:
        """N."""
        return self.opacities.size

    @property
    def per_scene(self) -> int:
        return self.count // self.scenes

    @property
    def has_covars(self) -> bool:
        return self.covars is not None

    means_address, quats_address, scales_address = (
        property(attrgetter(f"{name}.address")) for name in ("means", "quats", "scales")
    )

    def map(self, function: Callable[[Array], Array]) -> Self:
        """Apply a function to each array but `extras`."""
        means, quats, scales, opacities = (function(a) for a in (self.means, self.quats, self.scales, self.opacities))
        return type(self)(means, quats, scales, opacities, None if self.covars is None else function(self.covars))


@dataclass(frozen=True)
class SplatIds:
    """The camera and the Gaussian of each packed splat: camera by camera, Gaussians ascending. Dense splats need no arrays."""

    images: Array | None = None  # [M] uint32, cameras
    gaussians: Array | None = None  # [M] uint32
    offsets: Array | None = None  # [C + 1] uint32, the first row of each camera
    # Packed splats are those of all cameras and Gaussians, in the order of dense ones.
    whole: bool = field(default=False, kw_only=True)

    @property
    def packed(self) -> bool:
        """True if only visible splats have a row."""
        return self.images is not None

    @classmethod
    def empty(cls, device: Device, splats: int, cameras: int) -> Self:
        """Allocate arrays for this many packed splats and cameras. Without Gaussians no kernel writes offsets: they are 0."""
        empty, full = device.memory.empty, device.memory.full
        return cls(empty(splats, np.uint32), empty(splats, np.uint32), full((cameras + 1,), 0, np.uint32))

    @classmethod
    def of_all(cls, device: Device, cameras: int, gaussians: int, scenes: int) -> Self:
        """The ids of splats of all cameras and of all `gaussians` of their scenes."""
        images, of_scene = np.divmod(np.arange(cameras * gaussians, dtype=np.uint32), np.uint32(gaussians))
        all_gaussians = images // np.uint32(cameras // scenes) * np.uint32(gaussians) + of_scene
        offsets = np.arange(cameras + 1, dtype=np.uint32) * np.uint32(gaussians)
        return cls(*(device.memory.array(a) for a in (images, all_gaussians, offsets)), whole=True)


# The ids of splats that are not packed.
DENSE = SplatIds()

_T = TypeVar("_T")


class Recent(dict[tuple[int, int], _T]):
    """A result of recent renders, by two of their sizes. The next render of these sizes may expect it."""

    def __setitem__(self, sizes: tuple[int, int], value: _T) -> None:
        if len(self) == 1024:
            self.clear()
        super().__setitem__(sizes, value)


# By the numbers of cameras and of splats, True if all splats were visible.
all_visible: Recent[bool] = Recent()


@dataclass(frozen=True)
class Splats:
    """Gaussians on the cameras' image planes. Shapes are those of dense splats; packed splats have M instead of C, N."""

    means2d: Array  # [C, N, 2] pixels
    depths: Array  # [C, N] camera z, or distance
    conics: Array  # [C, N, Options.shape_floats]
    opacities: Array  # [C, N]
    radii: Array  # [C, N, 2] int32, pixels; 0 where culled
    ids: SplatIds = DENSE
    extras: Array | None = None  # [C, N, Options.extras]
    normals: Array | None = None  # [C, N, 3] if evaluated along rays
    rays: Array | None = None  # [C, H, W, 6] pixels' origins and directions, if they have rays (`Options.with_rays`)

    @classmethod
    def empty(cls, device: Device, *shape: int, options: Options | None = None, ids: SplatIds | None = None) -> Self:
        """Allocate arrays for splats: cameras × Gaussians, or packed."""
        empty = device.memory.empty
        floats, along_rays = (options.shape_floats, options.along_rays) if options else (3, False)
        return cls(
            empty((*shape, 2)),
            empty(shape),
            empty((*shape, floats)),
            empty(shape),
            empty((*shape, 2), np.int32),
            ids or DENSE,
            normals=empty((*shape, 3)) if along_rays else None,
        )

    @property
    def count(self) -> int:
        """M."""
        return self.depths.size


@dataclass(frozen=True)
class StridedRows:
    """Values of splats that lie `stride` floats apart in an array, from `offset` on; if `stride` is 0, all of it in order."""

    rows: Array
    stride: int
    offset: int = 0


@dataclass(frozen=True)
class ProjectedSplats:
    """Gaussians on the cameras' image planes, as torch tensors. `...` are scenes; packed splats have M instead of ..., C, N."""

    means2d: Tensor  # [..., C, N, 2] pixels
    depths: Tensor  # [..., C, N] camera z, or distance
    conics: Tensor  # [..., C, N, 3] (a, b, c) of the inverse covariance, 1/pixel²; or `Options.shape_floats` along rays
    opacities: Tensor  # [..., C, N] after antialiasing
    radii: Tensor  # [..., C, N, 2] int32, pixels; 0 where culled
    ids: SplatIds = DENSE
    extras: Tensor | None = None  # [..., C, N, E] parameters of the falloff
    normals: Tensor | None = (
        None  # [..., C, N, 3] of surfels, and third axes with `Options.with_rays`, in camera space; or zero
    )
    # [C, H, W, 6] the pixels' rays in camera space, at the first row of a rolling shutter: origin, unit direction or 0
    rays: Tensor | None = None

    def arrays(self, device: Device) -> Splats:
        """Copy the splats to a device, without normals."""
        tensors = (self.means2d, self.depths, self.conics, self.opacities, self.radii)
        means2d, depths, conics, opacities, radii = (device.memory.array(primal(t)) for t in tensors)
        others = (self.extras, self.rays)
        extras, rays = (None if t is None else device.memory.array(primal(t)) for t in others)
        return Splats(means2d, depths, conics, opacities, radii, self.ids, extras, rays=rays)

    @property
    def cameras(self) -> int:
        """C, counting all scenes."""
        return self.ids.offsets.size - 1 if self.ids.offsets is not None else self.depths.shape[:-1].numel()

    def complete(self) -> bool:
        """Return True if all packed splats are visible; else let `project(…, expect=True)` count them next time."""
        if not self.ids.whole or self.ids.images is None:
            return True
        self.ids.images.memory.flush()
        if bool((primal(self.radii)[:, 0] > 0).all()):
            return True
        all_visible[self.cameras, len(self.radii)] = False
        return False

    @cached_property
    def image_ids(self) -> Tensor | None:
        """The camera of each packed splat, [M] int64, counting through all scenes; None if dense."""
        return self._index(self.ids.images)

    @cached_property
    def gaussian_ids(self) -> Tensor | None:
        """The Gaussian of each packed splat, [M] int64, counting through all scenes; None if dense."""
        return self._index(self.ids.gaussians)

    def _index(self, array: Array | None) -> Tensor | None:
        if array is None:
            return None
        array.memory.flush()
        # torch has few operations on uint32.
        return as_tensor(array, self.depths).view(torch.int32).long()

    def gather(self, features: Tensor, gaussians: int, each_camera: bool) -> Tensor:
        """Expand features [..., N, D], or `each_camera` [..., C, N, D], to splats, with N = `gaussians` in each scene."""
        if self.ids.whole:
            rows = features.flatten(0, -2)
            if len(rows) == len(self.depths):
                return rows
            dense = rows.unflatten(0, (-1, 1, gaussians))
            return dense.expand(-1, self.cameras // len(dense), -1, -1).flatten(0, -2)
        if not self.ids.packed:
            return features if each_camera else features[..., None, :, :].expand(*self.depths.shape, features.shape[-1])
        rows, ids, images = features.reshape(-1, features.shape[-1]), self.gaussian_ids, self.image_ids
        assert ids is not None and images is not None
        return rows[images * gaussians + ids % gaussians if each_camera else ids]
