"""Rays through a radiance field on the device: what is bound to the kernels of slang/kernels/volume*.slang, and how."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device, Operator
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.persistent_groups import persistent_groups
from splat_py.gpu.sources import constant
from splat_py.volume.box import Box
from splat_py.volume.half_storage import features_of, halves_of

_BRICK = constant("kernels/voxel_layout", "BRICK")
_BLOCK = constant("kernels/volume_memory", "BLOCK")
_REMEMBERED = constant("kernels/cpu/voxel_grid", "REMEMBERED")
_WAVE = constant("kernels/cpu/wave_scatter", "WAVE")
# A ray that lets less light through than this has arrived.
MIN_TRANSMITTANCE = 1e-6

COEFFICIENTS = (1, 4, 9)


def row_floats(coefficients: int) -> int:
    """Floats of a voxel on the device: density, then K × rgb, padded to a power of two."""
    return {1: 4, 4: 16, 9: 32}[coefficients]


def _sides(grid: Tensor) -> tuple[int, int, int]:
    x, y, z = (2 - n % 2 for n in grid.shape[:3])
    return x, y, z


def to_voxel_order(grid: Tensor) -> Tensor:
    """[X, Y, Z, row] with rows in the order in which kernels want them (`VoxelLayout` in slang/kernels/voxel_layout.slang)."""
    (x, y, z), (a, b, c) = grid.shape[:3], _sides(grid)
    return grid.reshape(x // a, a, y // b, b, z // c, c, -1).permute(0, 2, 4, 1, 3, 5, 6).reshape(grid.shape)


def from_voxel_order(grid: Tensor) -> Tensor:
    """The inverse of `to_voxel_order`."""
    (x, y, z), (a, b, c) = grid.shape[:3], _sides(grid)
    return grid.reshape(x // a, y // b, z // c, a, b, c, -1).permute(0, 3, 1, 4, 2, 5, 6).reshape(grid.shape)


@dataclass(frozen=True)
class March:
    """How a ray is sampled."""

    box: Box
    # Samples a unit length, at least; a ray's chord is cut into equal steps.
    steps_per_unit: float
    # Place each sample at random in its step, not in the middle.
    jitter: bool = False
    seed: int = 0
    # Pass over bricks of voxels that have no density.
    skip_empty: bool = True
    # Rays go on to infinity, through space that is contracted around the box (slang/splat/contraction.slang).
    contracted: bool = False


@dataclass(frozen=True)
class Rays:
    """[rays, 3] each; directions are unit vectors."""

    origins: Array
    directions: Array
    # Of an image, if they are pixels, row by row and image by image.
    width: int = _BLOCK
    height: int | None = None

    @property
    def count(self) -> int:
        """Number of rays."""
        return self.origins.shape[0]

    @property
    def rows(self) -> int:
        """Of an image, or of all of them where images are lower than a block of pixels."""
        return self.height if self.height and self.height >= _BLOCK else -(-self.count // self.width)

    @property
    def images(self) -> int:
        """Number of images of so many rows."""
        return -(-self.count // max(self.width * self.rows, 1))

    @property
    def slots(self) -> int:
        """Threads for them, with the blocks of pixels at an image's edges in full."""
        return self.images * -(-self.rows // _BLOCK) * -(-self.width // _BLOCK) * _BLOCK**2


@dataclass(frozen=True)
class Image:
    """What rays return, or its adjoint: colour [rays, 3], transmittance [rays], depth [rays]."""

    colors: Array
    transmittances: Array
    depths: Array

    @classmethod
    def empty(cls, device: Device, rays: int) -> Image:
        """Undefined contents."""
        empty = device.memory.empty
        return cls(empty((rays, 3)), empty(rays), empty(rays))


@dataclass(frozen=True)
class TrainingStep:
    """What `Volume.record_training` reads and writes for the rays of one batch."""

    rays: Rays
    # [3] rgb behind the box.
    background: Array
    # [rays, 4] rgb and weight.
    photographs: Array
    # Factor of the squared errors.
    scale: float
    # What the rays return, and its adjoint, of which all but the colour is 0.
    image: Image
    v_image: Image
    # From `Volume.empty_gradients`; gradients are added to it.
    v_grid: Array
    # Squared errors by their weights, times `scale`, are added to element `slot`.
    errors: Array
    slot: int
    # Of this batch in the step, for the random offsets.
    first_ray: int = 0


# Arrays of a grid's size that a fit has besides its gradients: the grid and two moments; the same on the host while they are
# uploaded; and what resampling leaves.
FIT_ARRAYS = 8


def check_stages(device: Device, sizes: Iterable[tuple[int, ...]], coefficients: int) -> None:
    """Grids of these sizes, which a fit will have one after another.

    Raises:
        SplatError: a kernel could not index one, or there is too little memory for it.
    """
    for size in sizes:
        floats = row_floats(coefficients)
        device.memory.limits.check_grid(size, floats)
        needed = math.prod(size) * floats * 4 * (FIT_ARRAYS + replicas_on(device))
        if needed > device.memory.free_bytes:
            raise SplatError(
                f"a grid of {'×'.join(map(str, size))} voxels takes {needed / 2**30:.1f} GiB with its gradients and moments, "
                f"and {device.memory.free_bytes / 2**30:.1f} GiB are free; use lower --resolutions or a lower --sh-degree"
            )


class Marched(ABC):
    """A field on the device: what its kernels are called with, whichever it is."""

    def __init__(self, device: Device) -> None:
        device.require(Operator.VOLUME)
        self.device = device
        # Persistent workgroups of a replay on CPU drivers (kernels/cpu/volume.slang); 0: a thread a ray (kernels/volume.slang).
        self.groups = _persistent_groups(device)
        self.replicas = replicas_on(device)
        # For kernels that add up gradients of many threads, but for those of CPU drivers, which use no atomics.
        self._atomics = {} if device.native_float_atomics else {"NATIVE_ATOMICS": False}

    @abstractmethod
    def empty_gradients(self) -> Array:
        """For `record_backward` to add to: [replicas, …], undefined; the gradient is the replicas' sum."""

    def parts(self, gradient: Tensor) -> tuple[Tensor, ...]:
        """Of a gradient, that of each array that the field was made of."""
        return (gradient,)

    @abstractmethod
    def record_occupancy(self, recorder: Recorder, march: March) -> None:
        """Note which parts hold anything, after every change of the field."""

    @abstractmethod
    def record_adam(
        self, recorder: Recorder, settings: Mapping[str, float], gradients: Array, first_moments: Array, second_moments: Array
    ) -> None:
        """One step of Adam, which leaves `gradients` 0; settings are those of kernels/volume_optimize.slang."""

    @abstractmethod
    def _field_constants(self, march: March) -> dict[str, Any]: ...

    @abstractmethod
    def _field_uniforms(self, march: March) -> Mapping[str, int | float]: ...

    @abstractmethod
    def _field_buffers(self, gradients: Array | None) -> dict[str, Array | None]: ...

    def record_forward(
        self, recorder: Recorder, march: March, rays: Rays, background: Array, image: Image, first_ray: int = 0
    ) -> None:
        """March rays, [3] rgb behind them, into `image`."""
        recorder.stage("forward")
        recorder.dispatch(
            self._module("volume"),
            "volumeForward",
            linear_groups(rays.slots),
            self._uniforms(march, rays, first_ray),
            self._buffers(rays, background, image),
            **self._constants(march),
        )

    def record_backward(
        self,
        recorder: Recorder,
        march: March,
        rays: Rays,
        background: Array,
        image: Image,
        v_image: Image,
        v_grid: Array,
        first_ray: int = 0,
        v_rays: Rays | None = None,
    ) -> None:
        """Replay the march that made `image` and add to `v_grid`, from `empty_gradients`, what `v_image` asks of the grid, and
        write what it asks of the rays to `v_rays`, if there are any."""
        buffers = {
            **self._buffers(rays, background, image, v_grid),
            "vColors": v_image.colors,
            "vTransmittances": v_image.transmittances,
            "vDepths": v_image.depths,
            "vOrigins": v_rays.origins if v_rays else None,
            "vDirections": v_rays.directions if v_rays else None,
        }
        recorder.stage("replay")
        recorder.dispatch(
            self._module("volume"),
            "volumeBackward",
            (self.groups, 1, 1) if self.groups else linear_groups(rays.slots),
            self._uniforms(march, rays, first_ray),
            {**buffers, **self._queues(recorder)},
            RAYS=v_rays is not None,
            **self._constants(march),
            **({} if self.groups else self._atomics),
        )

    def record_training(self, recorder: Recorder, march: March, step: TrainingStep) -> None:
        """March rays, compare them with photographs and replay them."""
        rays, image = step.rays, step.image
        if self.groups:
            recorder.stage("march and replay")
            recorder.dispatch(
                self._module("volume"),
                "volumeTrain",
                (self.groups, 1, 1),
                self._uniforms(march, rays, step.first_ray, step.scale),
                {
                    **self._buffers(rays, step.background, image, step.v_grid),
                    **self._queues(recorder),
                    "photograph": step.photographs,
                    "samples": recorder.scratch((self.groups, _REMEMBERED, _WAVE, 4)),
                },
                **self._constants(march),
            )
        else:
            self.record_forward(recorder, march, rays, step.background, image, step.first_ray)
        recorder.stage("loss")
        recorder.dispatch(
            "volume_loss",
            "squaredError",
            linear_groups(rays.count),
            {"rays": rays.count, "scale": step.scale, "slot": step.slot},
            {
                "colors": image.colors,
                "photograph": step.photographs,
                "vColors": step.v_image.colors,
                "sums": step.errors,
                "sumBits": step.errors.bits,
            },
            **self._atomics,
        )
        if not self.groups:
            v_image, v_grid = step.v_image, step.v_grid
            self.record_backward(recorder, march, rays, step.background, image, v_image, v_grid, step.first_ray)

    def _sums(self, name: str, gradients: Array | None) -> dict[str, Array | None]:
        """Gradients to bind, where they add up atomically also as bits, for compare-and-swap."""
        return {name: gradients} | ({} if self.groups else {f"{name}Bits": gradients.bits if gradients else None})

    def _module(self, name: str) -> str:
        return f"cpu/{name}" if self.groups else name

    def _constants(self, march: March) -> dict[str, Any]:
        queues = {"QUEUES": self.replicas} if self.groups else {}
        return {"JITTER": march.jitter, **self._field_constants(march), **queues}

    def _uniforms(self, march: March, rays: Rays, first_ray: int, scale: float = 0.0) -> dict[str, int | float]:
        return {
            "rays": rays.count,
            "slots": rays.slots,
            "width": rays.width,
            "height": rays.rows,
            "images": rays.images,
            "firstRay": first_ray,
            "seed": march.seed,
            **march.box.uniforms,
            "stepsPerUnit": march.steps_per_unit,
            "minT": MIN_TRANSMITTANCE,
            "scale": scale,
            **self._field_uniforms(march),
        }

    def _queues(self, recorder: Recorder) -> dict[str, Array | None]:
        if not self.groups:
            return {}
        queues = recorder.scratch((self.replicas,), np.uint32)
        recorder.clear(queues)
        return {"queues": queues}

    def _buffers(self, rays: Rays, background: Array, image: Image, gradients: Array | None = None) -> dict[str, Array | None]:
        return {
            "origins": rays.origins,
            "directions": rays.directions,
            "background": background,
            "colors": image.colors,
            "transmittances": image.transmittances,
            "depths": image.depths,
            **({"samples": None} if self.groups else {}),
            **self._field_buffers(gradients),
        }


class Volume(Marched):
    """A grid [X, Y, Z, row_floats(K)] on the device, `to_voxel_order`, with its occupancy. Of halves, `stored` as words, it can
    only be marched through."""

    def __init__(self, device: Device, grid: Array, coefficients: int) -> None:
        super().__init__(device)
        self.grid, self.coefficients = grid, coefficients
        self._quads = row_floats(coefficients) // 4
        x, y, z = self.size
        self._bricks = (x // _BRICK + 1) * (y // _BRICK + 1) * (z // _BRICK + 1)
        self._occupancy = device.memory.empty(self._bricks, np.uint32)

    @property
    def size(self) -> tuple[int, ...]:
        """Voxels along x, y, z."""
        return self.grid.shape[:3]

    def empty_gradients(self) -> Array:
        """For `record_backward` to add to: [replicas, X, Y, Z, row_floats(K)], undefined; the gradient is the replicas' sum."""
        shape = (self.replicas, *self.size, row_floats(self.coefficients))
        return self.device.memory.empty(shape, by_address=self.groups > 0)

    def record_occupancy(self, recorder: Recorder, march: March) -> None:
        """Note which bricks hold anything, after every change of the grid."""
        x, y, z = self.size
        recorder.stage("occupancy")
        recorder.dispatch(
            "volume_occupancy",
            "markOccupied",
            linear_groups(self._bricks),
            {"sizeX": x, "sizeY": y, "sizeZ": z, "all": int(not march.skip_empty)},
            {**features_of("grid", self.grid), "occupancy": self._occupancy},
            QUADS=self._quads,
            **halves_of(self.grid),
        )

    def record_total_variation(self, recorder: Recorder, settings: Mapping[str, float], v_grid: Array) -> None:
        """Add the gradient of the total variation to `v_grid`; settings are those of kernels/volume_optimize.slang."""
        recorder.stage("total variation")
        arrays = {"grid": self.grid, "gradients": v_grid}
        self._record_optimiser(recorder, "volume_optimize", "addTotalVariation", settings, arrays)

    def record_adam(
        self, recorder: Recorder, settings: Mapping[str, float], v_grid: Array, first_moments: Array, second_moments: Array
    ) -> None:
        """One step of Adam, which leaves `v_grid` 0; settings are those of kernels/volume_optimize.slang."""
        arrays = {
            "grid": self.grid,
            "gradients": v_grid,
            "firstMoments": first_moments,
            "secondMoments": second_moments,
        }
        recorder.stage("adam")
        replicas = {"REPLICAS": self.replicas} if self.groups else {}
        self._record_optimiser(recorder, self._module("volume_optimize"), "adamVolume", settings, arrays, **replicas)

    def _record_optimiser(
        self,
        recorder: Recorder,
        module: str,
        entry: str,
        settings: Mapping[str, float],
        arrays: dict[str, Array],
        **constants: int,
    ) -> None:
        x, y, z = self.size
        recorder.dispatch(
            module,
            entry,
            linear_groups(self.grid.size // 4),
            {"sizeX": x, "sizeY": y, "sizeZ": z, **settings},
            arrays,
            QUADS=self._quads,
            **constants,
        )

    def _field_constants(self, march: March) -> dict[str, Any]:
        contracted = {"CONTRACTED": True} if march.contracted else {}
        return {"K": self.coefficients, "SKIP_EMPTY": march.skip_empty, **contracted, **halves_of(self.grid)}

    def _field_uniforms(self, march: March) -> Mapping[str, int | float]:
        return dict(zip(("sizeX", "sizeY", "sizeZ"), self.size, strict=True))

    def _field_buffers(self, gradients: Array | None) -> dict[str, Array | None]:
        return {**features_of("grid", self.grid), "occupancy": self._occupancy, **self._sums("vGrid", gradients)}


def replicas_on(device: Device) -> int:
    """Of a gradient: one for each work queue; where there are none, one."""
    return _persistent_groups(device) + 1


def _persistent_groups(device: Device) -> int:
    """Workgroups of a replay: one a processor core on CPU drivers; 0: as many as there are rays."""
    return persistent_groups() if device.software else 0
