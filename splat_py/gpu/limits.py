"""Limits of buffers, indices and dispatches, checked by arithmetic before anything is allocated."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import slangpy as spy

from splat_py.base.errors import SplatError

# Kernels number elements and threads with 32 bits.
_INDICES = 1 << 32
# Vulkan drivers may address a buffer by signed 32-bit bytes, as llvmpipe does; SlangPy does not report which do.
_VULKAN_BYTES = 1 << 31
# The value of a sum of counts that exceeds 32 bits (kernels/prefix_sum.slang).
SATURATED = _INDICES - 1


@dataclass(frozen=True)
class Limits:
    """A device's limits: bytes of a buffer that a kernel indexes, workgroups of a dispatch along x, y and z."""

    buffer_bytes: int = _VULKAN_BYTES
    groups: tuple[int, int, int] = (65535, 65535, 65535)

    @classmethod
    def of(cls, device: spy.Device) -> Self:
        """The limits that SlangPy reports for a device."""
        # SlangPy's CPU target reports 0.
        x, y, z = (int(n) or 65535 for n in device.info.limits.max_compute_dispatch_thread_groups)
        vulkan = device.info.type == spy.DeviceType.vulkan
        return cls(_VULKAN_BYTES if vulkan else 4 * _INDICES, (x, y, z))

    def check_array(self, shape: tuple[int, ...], dtype: np.dtype, by_address: bool = False) -> None:
        """Raise SplatError if a kernel could not index an array; by 64-bit addresses it may exceed the limit of a buffer."""
        size, most = math.prod(shape), self.buffer_bytes
        if size >= _INDICES * (4 if by_address else 1) or (size * dtype.itemsize > most and not by_address):
            advice = "use smaller images (--downscale), fewer Gaussians (--max-gaussians) or a smaller grid (--resolutions)"
            raise self._too_large(f"an array {list(shape)} of {dtype} takes", size * dtype.itemsize, advice)

    def check_images(self, cameras: int, height: int, width: int, channels: int = 3) -> None:
        """Raise SplatError if a kernel could not index float images [C, H, W, D]."""
        # NumPy's integers would wrap.
        height, width = int(height), int(width)
        nbytes = cameras * height * width * channels * 4
        if nbytes > self.buffer_bytes:
            what = f"an image of {width}×{height} pixels" if cameras == 1 else f"{cameras} images of {width}×{height} pixels"
            factor = math.isqrt((nbytes - 1) // self.buffer_bytes) + 1
            advice = f"make its sides {factor} times shorter, a capture's photographs' by --downscale {factor}"
            raise self._too_large(f"{what} with {channels} channels would take", nbytes, advice)

    def check_intersections(self, count: int) -> None:
        """Raise SplatError if tile lists of `count` intersections exceed 32 bits or a buffer."""
        # torch indexes intersections with signed integers.
        most = min(self.buffer_bytes // 4, _INDICES // 2 - 1)
        if count > most:
            number = f"more than {SATURATED - 1:,}" if count >= SATURATED else f"{count:,}"
            raise SplatError(
                f"the splats touch {number} tiles in all, and lists hold {most:,} at most: too many Gaussians are too large on "
                "the image; use smaller images (--downscale) or fewer Gaussians (--max-gaussians)"
            )

    def check_grid(self, size: tuple[int, ...], floats: int) -> None:
        """Raise SplatError if a kernel could not index a grid of voxels along x, y, z with so many floats each."""
        nbytes = math.prod(size) * floats * 4
        if nbytes > self.buffer_bytes:
            what = f"a grid of {'×'.join(map(str, size))} voxels takes"
            raise self._too_large(what, nbytes, "use lower --resolutions or a lower --sh-degree")

    def check_dispatch(self, groups: tuple[int, int, int]) -> None:
        """Raise SplatError if the device does not allow so many workgroups."""
        if any(n > most for n, most in zip(groups, self.groups, strict=True)):
            raise SplatError(
                f"the work needs {'×'.join(map(str, groups))} workgroups, but this device allows "
                f"{'×'.join(map(str, self.groups))} at once; use fewer cameras, smaller images (--downscale) or fewer Gaussians"
            )

    def _too_large(self, what_takes: str, nbytes: int, advice: str) -> SplatError:
        taken, most = (f"{count / 2**30:,.1f} GiB" for count in (nbytes, self.buffer_bytes))
        return SplatError(f"{what_takes} {taken}, but a kernel on this device indexes {most} at most; {advice}")


def check_threads(count: int, per_row: int) -> None:
    """Raise SplatError if 32 bits cannot number one thread per element, in whole rows of threads."""
    if count + per_row > _INDICES:
        raise SplatError(
            f"{count:,} elements are too many for one dispatch, which allows {_INDICES - per_row:,}; "
            "use fewer cameras, smaller images (--downscale) or fewer Gaussians"
        )
