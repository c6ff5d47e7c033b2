"""A radiance field in Slang of the user's own, as they hold it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.files import Layout, reason
from splat_py.fit.checked import require_layout
from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import opaque
from splat_py.gpu.device import Device, get_device
from splat_py.gpu.kernels import UserType
from splat_py.scene.camera import Camera
from splat_py.scene.slang_source import MOST_SOURCE, SlangSource
from splat_py.shaders import ShaderModule
from splat_py.volume.box import Box
from splat_py.volume.config import FIELD
from splat_py.volume.field import check_background
from splat_py.volume.field_files import existing_field, read_field, save_field
from splat_py.volume.marching import March
from splat_py.volume.own_volume import MOST_PARAMS, OwnVolume, padded, params_of
from splat_py.volume.rendering import check_rays, march_rays, picture_of, steps_of


@dataclass(frozen=True, eq=False)
class OwnRadianceField:
    """A function in Slang that makes density and colour of a place, a direction and numbers (`IFieldFunction` in
    slang/splat/field_function.slang).

    Attributes:
        kind: from `splat_py.shaders.source` or `load`; of a file, a type whose source is only compiled once it is trusted.
        params: [PARAMS] float32, the numbers.
        box: [2, 3] lower and upper corner in the world.
        background: [3] rgb behind the box.
        samples: along the box's longest side, where nobody says otherwise.

    Raises:
        SplatError: arrays that do not fit, numbers that are not finite, a box without volume, a source without PARAMS.
    """

    kind: UserType | ShaderModule | SlangSource
    params: Tensor
    box: NDArray[np.float64]
    background: NDArray[np.float32]
    samples: float = 64.0

    def __post_init__(self) -> None:
        if not isinstance(self.kind, SlangSource):
            object.__setattr__(self, "kind", FIELD.own(self.kind))
            count = params_of(self._trusted)
            if tuple(self.params.shape) != (count,) or self.params.dtype != torch.float32:
                given = f"{self.params.dtype} {list(self.params.shape)}"
                raise SplatError(f"params is {given}; {self._trusted.name} takes torch.float32 [{count}]")
        if not torch.isfinite(self.params).all():
            raise SplatError("params holds a number that is not finite; check where it comes from")
        object.__setattr__(self, "box", Box.of(self.box).numpy())
        object.__setattr__(self, "background", check_background(self.background))
        if not 0 < self.samples <= 1e6:
            raise SplatError(f"samples is {self.samples}; it must be above 0")

    @classmethod
    def new(
        cls, kind: UserType | ShaderModule, box: ArrayLike, background: ArrayLike = (0.0, 0.0, 0.0), seed: int = 0
    ) -> OwnRadianceField:
        """With the numbers that `first` in the source begins with."""
        own = FIELD.own(kind)
        return cls(own, torch.from_numpy(first_values(own, seed)), Box.of(box).numpy(), check_background(background))

    @property
    def steps_per_unit(self) -> float:
        """Samples a world unit where nobody says otherwise."""
        return self.samples / float(Box.of(self.box).sides.max())

    @property
    def _trusted(self) -> UserType:
        if isinstance(self.kind, SlangSource):
            raise SplatError(
                f"the field is Slang source from a file, {self.kind.name}, which could read and write any memory; "
                "call its trust_source() if you trust it"
            )
        assert isinstance(self.kind, UserType)
        return self.kind

    def trust_source(self) -> OwnRadianceField:
        """The same field, whose source may be compiled. It could read and write any memory of yours.

        Raises:
            SplatError: it cannot be compiled.
        """
        own = FIELD.trusted(self.kind, None, True, "the field")  # type: ignore[arg-type]
        assert isinstance(own, UserType)
        return replace(self, kind=own)

    @opaque
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
        """Colours [..., 3], transmittances [...] and depths [...] of rays, as `volume.render` has them of a grid.

        Differentiable in params, background and rays.

        Args:
            background: [3] rgb; the field's by default.
            skip_empty: changes nothing: every sample is queried.

        Raises:
            SplatError: an argument has the wrong shape, dtype, device or value, or nobody has trusted the source.
        """
        kind = self._trusted
        if background is None:
            background = torch.from_numpy(self.background).to(self.params.device)
        check_rays({"params": self.params, "rays_o": rays_o, "rays_d": rays_d, "background": background})
        march = March(
            Box.of(self.box), steps_of(self.steps_per_unit if steps_per_unit is None else steps_per_unit), jitter, seed
        )
        parameters = torch.cat([self.params, self.params.new_zeros(padded(len(self.params)) - len(self.params))])

        def volume(device: Device, array: Array) -> OwnVolume:
            return OwnVolume(device, array, kind)

        return march_rays([parameters], rays_o, rays_d, background, march, device, volume)

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
        """What a camera sees: [height, width, 3], from 0 to 1. See `RadianceField.render`."""
        kind = self._trusted
        camera = Camera(np.asarray(viewmat, np.float64), np.asarray(K, np.float64), width, height)
        device = get_device(device)
        parameters = np.zeros(padded(len(self.params)), np.float32)
        parameters[: len(self.params)] = self.params.detach().cpu().numpy()
        volume = OwnVolume(device, device.memory.array(parameters), kind)
        return picture_of(volume, March(Box.of(self.box), steps_per_unit or self.steps_per_unit), camera, self.background)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write numbers, box, background and the source to a .safetensors or .npz file, atomically."""
        assert not isinstance(self.kind, ShaderModule)
        arrays = {
            "params": self.params.detach().cpu().numpy(),
            "box": self.box,
            "background": self.background,
            "samples": np.array([self.samples]),
            "name": np.frombuffer(self.kind.name.encode(), np.uint8),
            "source": np.frombuffer(self.kind.text.encode(), np.uint8),
        }
        save_field(path, "function", arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str], kind: UserType | ShaderModule | None = None) -> OwnRadianceField:
        """Read what `save` wrote.

        Args:
            kind: the source, named again; else nothing is compiled until `trust_source()` says so.

        Raises:
            SplatError: the file is missing, damaged or something else, or `kind` is another source.
        """
        path = existing_field(path)
        try:
            arrays = read_field(path, _check)
            source = SlangSource(*(bytes(arrays[name]).decode() for name in ("name", "source")))
            params, samples = torch.from_numpy(arrays["params"]), float(arrays["samples"][0])
            field = cls(source, params, arrays["box"], arrays["background"], samples)
        except Exception as error:  # zipfile and NumPy let their parsers' errors through
            raise SplatError(f"{path} is not a field in Slang of splat_py or is damaged: {reason(error)}") from error
        if kind is None:
            return field
        own = FIELD.trusted(source, FIELD.own(kind), False, str(path))
        assert isinstance(own, UserType)
        return replace(field, kind=own)


def first_values(kind: UserType, seed: int) -> NDArray[np.float32]:
    """[PARAMS], of the source's `first`."""
    from splat_py import shaders

    count = params_of(kind)
    random = np.random.default_rng(seed).uniform(0, 1, count).astype(np.float32)
    first = shaders.field_function.firstOf[shaders.source(kind.text)]
    values = np.asarray(first(np.arange(count, dtype=np.uint32), random), np.float32).reshape(count)
    if not np.isfinite(values).all():
        raise SplatError(f"{kind.name}.first is not finite for number {int(np.argmin(np.isfinite(values)))}")
    return values


def _check(header: dict[str, Any], layout: Layout) -> None:
    """Raise if these are not the arrays that `OwnRadianceField.save` leaves."""
    (params,), (name,), (source,) = (layout[key][1] for key in ("params", "name", "source"))
    if not 1 <= params <= MOST_PARAMS or not 1 <= name <= 64 or not 1 <= source <= 4 * MOST_SOURCE:
        raise ValueError(f"it has {params} numbers and {source} bytes of source")
    shapes = {"params": (params,), "box": (2, 3), "background": (3,), "samples": (1,), "name": (name,), "source": (source,)}
    require_layout(layout, shapes, {"box": "F64", "samples": "F64", "name": "U8", "source": "U8"})
