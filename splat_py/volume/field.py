"""Base class of the radiance fields that users hold, with their files, and one autograd function around march and replay."""

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from splat_py.base.arguments import as_integer, finite_array
from splat_py.base.errors import SplatError
from splat_py.base.fields import require_number
from splat_py.base.files import Layout, atomic_path, load_npz, load_tensors, reason, save_tensors
from splat_py.gpu.accumulation import alert_not_deterministic
from splat_py.gpu.autograd import (
    Stage,
    Tangents,
    first_derivative,
    forward_graph_break,
    has_tangent,
    load_state,
    primal,
    save_state,
)
from splat_py.gpu.device import Device, device_for, get_device
from splat_py.gpu.tensors import as_tensor, check_shape, check_tensors, is_shared
from splat_py.scene.camera import Camera
from splat_py.volume.device_field import Box, DeviceField, March, RayImage, Rays, camera_rays, stored


class Field(ABC):
    """A radiance field in a box, in front of a background."""

    # The kind of field in messages and files.
    _kind: ClassVar[str]
    # Names of the tensors in which the field is differentiable, and of those that may be float16.
    _names: ClassVar[tuple[str, ...]]
    _features: ClassVar[tuple[str, ...]] = ()

    box: NDArray[np.float64]
    background: NDArray[np.float32]

    def __post_init__(self) -> None:
        object.__setattr__(self, "box", Box.of(self.box).numpy())
        object.__setattr__(self, "background", finite_array("background", self.background, (3,)).astype(np.float32))

    @property
    @abstractmethod
    def steps_per_unit(self) -> float:
        """Default number of samples per world unit."""

    def _tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self._names}

    @abstractmethod
    def _parameters(self) -> list[Tensor]:
        """Return the tensors in the layout of the device."""

    @abstractmethod
    def _on_device(self, device: Device, *parameters: Any) -> DeviceField:
        """Make the device's field from `_parameters`."""

    @abstractmethod
    def _arrays(self) -> dict[str, NDArray[Any]]:
        """Return the contents of a file besides tensors, box and background."""

    @classmethod
    @abstractmethod
    def _of_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """Make a field from the arrays of a file."""

    @staticmethod
    @abstractmethod
    def _check_layout(header: dict[str, Any], layout: Layout) -> None:
        """Raise an error if a file's arrays are not those of `save`."""

    def _warn_of(self, camera: Camera) -> None:  # noqa: B027, optional
        """Warn about a camera that will see nothing."""

    def _march(self, steps_per_unit: float | None, *how: Any) -> March:
        steps = self.steps_per_unit if steps_per_unit is None else steps_per_unit
        require_number(steps_per_unit=steps)
        if not steps > 0:
            raise SplatError(f"steps_per_unit is {steps}; it must be above 0")
        return March(Box.of(self.box), float(steps), *how)

    @forward_graph_break
    def march(
        self,
        rays_o: Tensor,
        rays_d: Tensor,
        *,
        background: Tensor | None = None,
        steps_per_unit: float | None = None,
        jitter: bool = False,
        seed: int = 0,
        skip_empty: bool = True,
        device: Device | str | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return colours [..., 3], transmittances [...] and depths [...] of rays, as `volume.render` does for a grid.

        Differentiable once in the field's tensors, background and rays, backward or forward (torch.func.jvp and jacfwd).

        Args:
            background: [3] rgb; the field's by default.
            skip_empty: skip empty space; your own field (`SlangField`) is queried everywhere.

        Raises:
            SplatError: an argument has the wrong shape, dtype, device or value, or the field's Slang source is not trusted.
        """
        tensors = self._tensors()
        if background is None:
            background = torch.from_numpy(self.background).to(next(iter(tensors.values())).device)
        tensors |= {"rays_o": rays_o, "rays_d": rays_d, "background": background}
        check_tensors(tensors, halves=self._features, needed=tensors)
        if rays_o.dim() < 1 or rays_o.shape[-1] != 3:
            raise SplatError(f"rays_o has shape {list(rays_o.shape)}; expected [..., 3]")
        check_shape("rays_d", rays_d, tuple(rays_o.shape))
        check_shape("background", background, (3,))
        check_finite_tensors({"rays_o": rays_o, "rays_d": rays_d, "background": background})
        if (primal(rays_d) == 0).all(-1).any():
            raise SplatError("rays_d holds a direction of length 0; leave that ray out")
        march = self._march(steps_per_unit, bool(jitter), as_integer("seed", seed, 0, (1 << 32) - 1), bool(skip_empty))
        parameters, shape = self._parameters(), rays_o.shape[:-1]
        flat = (rays.reshape(-1, 3).contiguous() for rays in (rays_o, torch.nn.functional.normalize(rays_d, dim=-1)))
        size = (shape[-1], shape[-2]) if len(shape) > 1 and 0 not in shape else ()
        where = device_for(parameters[0], device)
        color, transmittance, depth = render_rays(size, march, where, self._on_device, *flat, background, *parameters)
        return color.reshape(*shape, 3), transmittance.reshape(shape), depth.reshape(shape)

    def render(
        self,
        viewmat: ArrayLike,
        K: ArrayLike,
        width: int,
        height: int,
        *,
        steps_per_unit: float | None = None,
        device: Device | str | None = None,
    ) -> NDArray[np.float32]:
        """Return the picture that a camera sees: [height, width, 3], from 0 to 1.

        Args:
            viewmat: [4, 4] world → camera, OpenCV axes.
            K: [3, 3] intrinsics in pixels.
            steps_per_unit: samples per world unit; by default the field's.

        Warns:
            UserWarning: the camera is in a wall of voxels, so that the picture shows nothing else.
        """
        camera = Camera(cast(Any, viewmat), cast(Any, K), width, height)
        self._warn_of(camera)
        device = get_device(device)
        march = self._march(steps_per_unit or None)
        field = self._on_device(device, *(stored(device, part.detach()) for part in self._parameters()))
        image = RayImage.empty(device, width * height)
        with device.recording() as recorder:
            field.record_occupancy(recorder, march)
            rays = camera_rays(device, recorder, [camera])
            field.record_forward(recorder, march, rays, device.memory.array(self.background), image)
        return np.clip(image.colors.numpy(), 0, 1).reshape(height, width, 3)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the field to a .safetensors or .npz file, atomically."""
        path, tensors = _field_path(path), {name: tensor.detach().cpu().numpy() for name, tensor in self._tensors().items()}
        arrays = {**tensors, **self._arrays(), "box": self.box, "background": self.background}
        if path.suffix == ".npz":
            with atomic_path(path) as temporary, temporary.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
        else:
            save_tensors(path, "splat_py", {"kind": self._kind}, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote.

        Raises:
            SplatError: the file is missing, damaged or of another kind.
        """
        path = _field_path(path)
        if not path.is_file():
            raise SplatError(f"{path} does not exist; name a radiance field's .safetensors or .npz")
        try:
            npz = path.suffix == ".npz"
            return cls._of_arrays(load_npz(path, cls._check_layout) if npz else load_tensors(path, None, cls._check_layout)[1])
        except Exception as error:  # zipfile and NumPy pass on their parsers' errors
            raise SplatError(f"{path} is not a {cls._kind} of splat_py or is damaged: {reason(error)}") from error


def _field_path(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if path.suffix not in (".npz", ".safetensors"):
        raise SplatError(f"{path} does not end in .safetensors or .npz, the formats of a radiance field")
    return path


def check_finite_tensors(tensors: dict[str, Tensor]) -> None:
    """Raise SplatError unless all their numbers are finite."""
    for name, tensor in tensors.items():
        if not torch.isfinite(primal(tensor)).all():
            raise SplatError(f"{name} holds a number that is not finite; check where it comes from")


@forward_graph_break
def render_rays(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Refuse transformations of the field's tensors, which `march` does not receive as arguments."""
    color, transmittance, depth, _ = _Render.apply(any(map(has_tangent, arguments)), *arguments)
    return color, transmittance, depth


class _Render(Stage):
    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Any]:
        pushed, size, march, device, field, rays_o, rays_d, background, *parameters = arguments
        array = device.memory.array
        volume = field(device, *(stored(device, part.detach()) for part in parameters))
        rays = Rays(array(rays_o.detach()), array(rays_d.detach()), *size)
        image = RayImage.empty(device, rays.count)
        behind = array(background)
        # `jvp` follows, which marches, too.
        marched = not (pushed and is_shared(image.colors, rays_o))
        with device.recording() as recorder:
            volume.record_occupancy(recorder, march)
            if marched:
                volume.record_forward(recorder, march, rays, behind, image)
        state = volume, march, rays, behind, image, marched, [part.dtype for part in parameters]
        return *image.tensors(rays_o), state

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        save_state(ctx, output[-1], *inputs[5:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        (volume, march, rays, behind, image, marched, _), (_, *tensors) = load_state(ctx), ctx.saved_tensors

        def push(directions: tuple[int, ...], given: list[Any]) -> tuple[Tensor, ...]:
            array, d_image = volume.device.memory.array, RayImage.empty(volume.device, *directions, rays.count)
            rays_o, rays_d, background = (array(tensor) for tensor in given[:3])
            parts = [part.flatten(len(directions)).float() for part in given[3:] if part is not None]
            field = array(torch.cat(parts, -1)) if parts else None
            with volume.device.recording() as recorder:
                d_inputs = Rays(rays_o, rays_d), background, field
                volume.record_tangents(recorder, march, rays, behind, image, *d_inputs, d_image, marched=marched)
            return d_image.tensors(given[0])

        return *Tangents.of(push, tensors, tangents[5:], range(3, len(tensors))), None

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *v_given: Tensor | None) -> tuple[Tensor | None, ...]:
        volume, march, rays, behind, image, _, dtypes = load_state(ctx)
        device, like = volume.device, ctx.saved_tensors[1]
        shapes = (rays.count, 3), (rays.count,), (rays.count,)
        v_results = [like.new_zeros(shape) if v is None else v for v, shape in zip(v_given, shapes, strict=False)]
        v_image = RayImage(*(device.memory.array(v) for v in v_results))
        wanted = ctx.needs_input_grad[5:]
        v_parameters: list[Tensor | None] = [None] * len(dtypes)
        v_rays = Rays(*(device.memory.empty((rays.count, 3)) for _ in range(2))) if any(wanted[:2]) else None
        if v_rays or any(wanted[3:]):
            if volume.groups == 0:
                alert_not_deterministic("volume.render")
            gradients = volume.empty_gradients()
            with device.recording() as recorder:
                recorder.clear(gradients)
                volume.record_backward(recorder, march, rays, behind, image, v_image, gradients, v_rays=v_rays)
            sums = volume.parts(as_tensor(gradients, like).sum(0))
            v_parameters = [part.to(dtype) for part, dtype in zip(sums, dtypes, strict=True)]
        v_ends = [as_tensor(v, like) for v in (v_rays.origins, v_rays.directions)] if v_rays else [None, None]
        v_background = (v_results[0] * as_tensor(image.transmittances, like)[:, None]).sum(0) if wanted[2] else None
        return None, None, None, None, None, *v_ends, v_background, *v_parameters
