"""Radiance fields on the device: rays through them, in the kernels slang/kernels/volume*.slang."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from splat_py.base.arguments import as_numpy
from splat_py.base.errors import SplatError
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device, Operator, persistent_groups
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant
from splat_py.gpu.tensors import as_tensor, words_of
from splat_py.render.cameras import Cameras
from splat_py.scene.camera import Camera

_BLOCK = constant("kernels/volume_memory", "BLOCK")
_REMEMBERED = constant("kernels/cpu/fields", "REMEMBERED")
_WAVE = constant("kernels/cpu/wave_scatter", "WAVE")
# Kernel arguments for the arrays of all kinds of fields.
_MEMORY = ("grid", "grid_halves", "occupancy", "table", "table_halves", "numbers", "level_cells", "occupied_cells")


class Point(NamedTuple):
    x: float
    y: float
    z: float


@dataclass(frozen=True)
class Box:
    """An axis-aligned box in the world."""

    low: Point
    high: Point

    @classmethod
    def of(cls, box: ArrayLike) -> Self:
        """Make a box from [2, 3], its lower and upper corner."""
        corners = as_numpy("box", box, np.float64)
        if corners.shape != (2, 3):
            raise SplatError(f"box has shape {list(corners.shape)}; give its lower and upper corner, [2, 3]")
        if not np.isfinite(corners).all():
            raise SplatError("box holds a number that is not finite; give its lower and upper corner")
        if not (corners[0] < corners[1]).all():
            raise SplatError(
                f"box is degenerate, from {corners[0].tolist()} to {corners[1].tolist()}; "
                "its upper corner must exceed the lower one in x, y and z"
            )
        return cls(*(Point(*map(float, corner)) for corner in corners))

    @property
    def sides(self) -> NDArray[np.float64]:
        """Lengths along x, y, z."""
        return np.subtract(self.high, self.low)

    def numpy(self) -> NDArray[np.float64]:
        """Return the lower and upper corner, [2, 3]."""
        return np.array([self.low, self.high])


@dataclass(frozen=True)
class March:
    """The way in which a ray is sampled."""

    box: Box
    # Fewest samples per unit length; a ray's chord is cut into equal steps.
    steps_per_unit: float
    # Place each sample at random in its step, not in the middle.
    jitter: bool = False
    seed: int = 0
    skip_empty: bool = True
    # Continue rays to infinity, through space that is contracted around the box (slang/splat/volume.slang).
    contracted: bool = False
    # A ray stops once it lets less light through than this.
    min_T: float = 1e-6


@dataclass(frozen=True)
class Rays:
    """Origins and unit directions, [rays, 3] each."""

    origins: Array
    directions: Array
    # The size of an image if the rays are its pixels, row by row and image by image.
    width: int = _BLOCK
    height: int | None = None

    @property
    def count(self) -> int:
        return self.origins.shape[0]

    @property
    def rows(self) -> int:
        """Rows of an image, or of all images together if they are lower than a block of pixels."""
        return self.height if self.height and self.height >= _BLOCK else -(-self.count // self.width)

    @property
    def images(self) -> int:
        """Number of images with `rows` rows."""
        return -(-self.count // max(self.width * self.rows, 1))

    @property
    def slots(self) -> int:
        """Number of threads, with full blocks of pixels at the edges of an image."""
        return self.images * -(-self.rows // _BLOCK) * -(-self.width // _BLOCK) * _BLOCK**2


@dataclass(frozen=True)
class RayImage:
    """Results of rays, or their adjoints: colour [rays, 3], transmittance [rays], depth [rays]."""

    colors: Array
    transmittances: Array
    depths: Array

    @classmethod
    def empty(cls, device: Device, *rays: int) -> Self:
        """Allocate arrays with undefined contents."""
        empty = device.memory.empty
        return cls(empty((*rays, 3)), empty(rays), empty(rays))

    def tensors(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return them as tensors on the torch device of `like`."""
        return as_tensor(self.colors, like), as_tensor(self.transmittances, like), as_tensor(self.depths, like)


class GridSize(NamedTuple):
    """Voxels along each axis."""

    x: int
    y: int
    z: int


class TableSize(NamedTuple):
    """Sizes of a hash grid: entries of the largest level, of all levels, and floats of table and weights; or of a function."""

    per_level: int
    entries: int
    floats: int


class DeviceField(ABC):
    """A field on the device: the interface to the kernels that all kinds share.

    Args:
        parameters: float32; a field of halves, `stored` as words, can only be marched through.
        gradient_shape: shape of a gradient without replicas.
        size: numbers of voxels; for parameters that are not voxels, their number over 4 · `quads`.
        quads: float4s from one voxel to the next.
    """

    # Name of the field in the kernels' modules.
    kind: str
    table_size = TableSize(0, 0, 0)

    def __init__(
        self, device: Device, parameters: Array, gradient_shape: tuple[int, ...], size: GridSize, quads: int = 1
    ) -> None:
        device.require(Operator.VOLUME)
        self.device, self.parameters, self.size, self.quads = device, parameters, size, quads
        self._gradient_shape = gradient_shape
        # Persistent workgroups of a replay on CPU drivers (kernels/cpu/volume.slang); 0: a thread a ray (kernels/volume.slang).
        self.groups = groups_on(device)

    def record_occupancy(self, recorder: Recorder, march: March) -> None:  # noqa: B027, optional
        """Record which parts of the field are not empty; called after every change of the field."""

    @abstractmethod
    def _memory(self) -> dict[str, Array | None]:
        """Return the field's arrays, by their names in kernels."""

    def _constants(self, march: March) -> dict[str, Any]:
        """Return the values of the field's own `extern` names."""
        return {}

    @property
    def replicas(self) -> int:
        """Number of replicas of a gradient: one for each persistent workgroup, or one if there are no such workgroups."""
        return max(self.groups, 1)

    def empty_gradients(self) -> Array:
        """Allocate what `record_backward` adds to: [replicas, …], undefined; the gradient is the replicas' sum."""
        return self.device.memory.empty((self.replicas, *self._gradient_shape), by_address=self.groups > 0)

    def parts(self, gradient: Tensor) -> tuple[Tensor, ...]:
        """Split a gradient into those of the arrays that the field was made of."""
        return (gradient,)

    def record_forward(
        self, recorder: Recorder, march: March, rays: Rays, background: Array, image: RayImage, first_ray: int = 0
    ) -> None:
        """March rays into `image`, with `background` [3] rgb behind them."""
        recorder.stage("forward")
        work = {"rays": rays, "background": background, "image": image, "first_ray": first_ray}
        self._dispatch(recorder, "volumeForward", linear_groups(rays.slots), march, **work)

    def record_backward(
        self,
        recorder: Recorder,
        march: March,
        rays: Rays,
        background: Array,
        image: RayImage,
        v_image: RayImage,
        gradients: Array,
        first_ray: int = 0,
        v_rays: Rays | None = None,
    ) -> None:
        """Replay the march that made `image`. Add the field's gradient, given `v_image`, to `gradients` from `empty_gradients`,
        and write the gradient of the rays to `v_rays`, if given."""
        recorder.stage("replay")
        work = {"rays": rays, "background": background, "image": image, "first_ray": first_ray}
        groups = (self.groups, 1, 1) if self.groups else linear_groups(rays.slots)
        adjoints = {"v_image": v_image, "v_rays": v_rays, "RAYS": v_rays is not None}
        self._dispatch(recorder, "volumeBackward", groups, march, gradients, **work, **adjoints)

    def record_tangents(
        self,
        recorder: Recorder,
        march: March,
        rays: Rays,
        background: Array,
        image: RayImage,
        d_rays: Rays,
        d_background: Array,
        d_field: Array | None,
        d_image: RayImage,
        *,
        marched: bool,
    ) -> None:
        """Write the tangents of `image` to `d_image`, given those of rays, background and the field, all [directions, …].

        Args:
            image: the result of `record_forward` if `marched`; else the rays are marched into it, too.
            d_field: [directions, floats] in the order of a gradient, or None for a field that stays as it is.
        """
        recorder.stage("tangents")
        directions = d_background.size // 3
        work = {"rays": rays, "background": background, "image": image, "first_ray": 0}
        work |= {"d_rays": d_rays, "d_background": d_background, "d_image": d_image, "directions": directions}
        groups = linear_groups(rays.slots)
        if d_field is None and directions > 1:
            if not marched:
                self.record_forward(recorder, march, rays, background, image)
            self._dispatch(recorder, "volumeRayTangents", groups, march, **work)
            return
        work |= {"d_field": d_field, "field_floats": math.prod(self._gradient_shape), "D_FIELD": d_field is not None}
        for direction in range(directions):
            self._dispatch(recorder, "volumeTangents", groups, march, tangent_index=direction, **work)

    def record_training(
        self,
        recorder: Recorder,
        march: March,
        rays: Rays,
        background: Array,
        image: RayImage,
        v_image: RayImage,
        gradients: Array,
        *,
        photographs: Array,
        scale: float,
        errors: Array,
        slot: int,
        first_ray: int = 0,
    ) -> None:
        """March rays, compare them with photographs and replay them.

        Args:
            image, v_image: receive the rays' results and the adjoint of their colours; the rest of `v_image` is 0.
            photographs: [rays, 4] rgb and weight.
            scale: factor of the squared errors.
            errors: the weighted squared errors, times `scale`, are added to element `slot`.
            first_ray: number of the first ray in the step, for the random offsets.
        """
        if self.groups:
            recorder.stage("march and replay")
            work = {"rays": rays, "background": background, "image": image, "first_ray": first_ray}
            samples = recorder.scratch((self.groups, _REMEMBERED, _WAVE, 4))
            work |= {"photograph": photographs, "scale": scale, "samples": samples}
            self._dispatch(recorder, "volumeTrain", (self.groups, 1, 1), march, gradients, **work)
        else:
            self.record_forward(recorder, march, rays, background, image, first_ray)
        recorder.stage("loss")
        recorder.dispatch(
            "volume_fit",
            "squaredError",
            linear_groups(rays.count),
            rays=rays,
            image=image,
            scale=scale,
            slot=slot,
            photograph=photographs,
            v_colors=v_image.colors,
            sums=errors,
            sum_bits=errors.as_uint32,
            NATIVE_ATOMICS=self.device.native_float_atomics,
        )
        if not self.groups:
            self.record_backward(recorder, march, rays, background, image, v_image, gradients, first_ray)

    def record_adam(
        self, recorder: Recorder, settings: Mapping[str, Any], gradients: Array, first_moments: Array, second_moments: Array
    ) -> None:
        """Take one Adam step and set `gradients` to 0; `settings` are Adam's settings and the rates (`FieldOptimiser`)."""
        recorder.stage("adam")
        if self.groups:
            settings = {**settings, "REPLICAS": self.replicas}
        recorder.dispatch(
            "cpu/volume" if self.groups else "volume_fit",
            "adamVolume",
            linear_groups(self.parameters.size // 4),
            grid=self.parameters,
            gradients=gradients,
            first_moments=first_moments,
            second_moments=second_moments,
            size=self.size,
            QUADS=self.quads,
            **settings,
        )

    def _dispatch(
        self, recorder: Recorder, entry: str, groups: tuple[int, int, int], march: March, *gradients: Array, **arguments: Any
    ) -> None:
        """Run an entry point of volume.slang."""
        v_field = gradients[0] if gradients else None
        if self.groups:
            arguments |= {"samples": None, **arguments, "REPLICAS": self.replicas, "CPU_DRIVER": True}
        else:
            arguments |= {"v_field_bits": v_field and v_field.as_uint32, "NATIVE_ATOMICS": self.device.native_float_atomics}
        arguments = {"d_field": None, "field_floats": 0, "tangent_index": 0, "directions": 0, **arguments}
        # A network output of 0 is a thin fog, of optical depth 1 along the longest side.
        unit_density = 1 / float(march.box.sides.max())
        arguments |= {"sampling": march, "size": self.size, "table_size": self.table_size, "unit_density": unit_density}
        # Only voxels have a separate kernel without skipping.
        arguments |= {**dict.fromkeys(_MEMORY), **self._memory(), "SKIP_EMPTY": True, **self._constants(march)}
        module = "cpu/volume" if self.groups else "volume"
        recorder.dispatch(module, entry, groups, v_field=v_field, Field=self.kind, JITTER=march.jitter, **arguments)


def groups_on(device: Device) -> int:
    """Return the number of persistent workgroups of a replay: one per processor core on CPU drivers; 0: one thread a ray."""
    return persistent_groups() if device.software else 0


def voxels_per_unit(box: Box, size: tuple[int, ...], contracted: bool = False) -> float:
    """Return the voxels per world unit, along the axis where they are smallest, in space that is not contracted."""
    sides = box.sides * (2 if contracted else 1)
    return float(max(n / side for n, side in zip(size, sides, strict=True)))


# --- features as halves, two in a word (slang/parallel/half_storage.slang) ---


def stored(device: Device, features: Tensor) -> Array:
    """Upload features [..., F]: float32 as they are, float16 as words [..., F / 2], for an even F."""
    if features.dtype == torch.float16:
        return device.memory.array(words_of(features).reshape(*features.shape[:-1], -1)).as_uint32
    return device.memory.array(features)


def is_halves(features: Array) -> bool:
    """True if the features are halves, `stored` as words."""
    return bool(features.dtype == np.uint32)


def features_of(name: str, features: Array) -> dict[str, Any]:
    """Return the kernels' arguments `name` and `name`_halves, of which one is None."""
    halves = is_halves(features)
    return {name: None if halves else features, f"{name}_halves": features if halves else None}


def camera_rays(device: Device, recorder: Recorder, cameras: Sequence[Camera]) -> Rays:
    """Record the rays through the pixels of cameras of one size, row by row and camera by camera."""
    width, height = cameras[0].width, cameras[0].height
    count = len(cameras) * width * height
    rays = Rays(device.memory.empty((count, 3)), device.memory.empty((count, 3)), width, height)
    viewmats, Ks = (
        device.memory.array(np.stack(matrices).astype(np.float32))
        for matrices in ([camera.viewmat for camera in cameras], [camera.K for camera in cameras])
    )
    recorder.stage("rays")
    pinholes = Cameras(viewmats, Ks, width, height)
    recorder.dispatch("volume_fit", "cameraRays", linear_groups(count), cameras=pinholes, pixel_rays=rays)
    return rays
