"""A scene: Gaussians as they are optimised and written to files."""

from __future__ import annotations

import math
import os
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from splat_py.errors import SplatError
from splat_py.scene.formats.files import read_scene, write_scene
from splat_py.scene.formats.packing import SH_C0 as SH_C0
from splat_py.scene.formats.spz import DEFAULT_VERSION
from splat_py.scene.ply import GaussianArrays, read_gaussians, write_gaussians
from splat_py.scene.slang_source import MOST_PARAMS, SlangSource, require_name

if TYPE_CHECKING:
    from splat_py.gpu.kernels import UserType

_DEGREE_OF_COUNT = {1: 0, 4: 1, 9: 2, 16: 3}
_TENSORS = ("means", "quats", "log_scales", "logit_opacities", "sh")


@dataclass(eq=False)
class Gaussians:
    """N anisotropic Gaussians with raw parameters: every number may be optimised freely. All tensors are float32.

    Attributes:
        means: [N, 3], world units.
        quats: [N, 4], rotations w x y z, of any length but zero.
        log_scales: [N, 3], natural logarithm of the standard deviations in world units.
        logit_opacities: [N].
        sh: [N, K, 3], spherical-harmonics coefficients of rgb with K = (degree + 1)², degree 0 to 3.
        params: [N] each, what `splat` takes of each, by name in its order.
        splat: what is drawn, as in `rasterization`: a name, or a type of one's own; of a file a `SlangSource`, which is not
            compiled before it is trusted (`trust_source`).
        color: how colours depend on the direction, in the same way. Of others than harmonics `sh` is what viewers show.
        features, weights: [N, F] and [W] that such colours are made of.
        antialiased: whether they were trained to be rendered with `antialiased=True`, as far as a file or a run says.
    """

    means: torch.Tensor
    quats: torch.Tensor
    log_scales: torch.Tensor
    logit_opacities: torch.Tensor
    sh: torch.Tensor
    params: dict[str, torch.Tensor] = field(default_factory=dict)
    splat: str | UserType | SlangSource = "Gaussian"
    color: str | UserType | SlangSource = "SphericalHarmonics"
    features: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    antialiased: bool = False

    def __len__(self) -> int:
        return self.means.shape[0]

    @property
    def scales(self) -> torch.Tensor:
        """Standard deviations in world units, [N, 3]."""
        return self.log_scales.exp()

    @property
    def opacities(self) -> torch.Tensor:
        """Opacities between 0 and 1, [N]."""
        return self.logit_opacities.sigmoid()

    @property
    def sh_degree(self) -> int:
        """Degree of the spherical harmonics, 0 to 3."""
        return _DEGREE_OF_COUNT[self.sh.shape[1]]

    def to(self, device: torch.device | str) -> Gaussians:
        """The same Gaussians on another device; tensors already there are shared."""
        params = {name: tensor.to(device) for name, tensor in self.params.items()}
        tensors = {name: getattr(self, name).to(device) for name in _TENSORS}
        features, weights = (None if part is None else part.to(device) for part in (self.features, self.weights))
        return replace(self, params=params, features=features, weights=weights, **tensors)

    def trust_source(self) -> Gaussians:
        """The same, with the Slang source that a file has brought compiled. It could read and write any memory.

        Raises:
            SplatError: it cannot be compiled.
        """
        from splat_py.splats.own_types import COLOR, SPLAT

        splat = SPLAT.trusted(self.splat, None, True, "the scene")
        return replace(self, splat=splat, color=COLOR.trusted(self.color, None, True, "the scene"))

    @classmethod
    def from_points(
        cls,
        xyz: ArrayLike | torch.Tensor,
        rgb: ArrayLike | torch.Tensor,
        sh_degree: int = 3,
        opacity: float = 0.1,
    ) -> Gaussians:
        """One round Gaussian a point, as large as the space between points (Kerbl et al. 2023, section 5.1).

        A scale is the root mean square distance to the three nearest other points. Where these coincide with
        the point, it is a tenth of the median scale of the others; a point alone gets 1.

        Args:
            xyz: [P, 3] finite, world units.
            rgb: [P, 3] uint8, or floats from 0 to 1.
            sh_degree: 0 to 3; coefficients above degree 0 start at zero.
            opacity: between 0 and 1, the same for all.
        """
        points, colors = np.asarray(xyz, dtype=np.float64), np.asarray(rgb)
        if points.ndim != 2 or points.shape[1] != 3 or colors.shape != points.shape:
            raise SplatError(f"xyz and rgb must both be [P, 3], not {list(points.shape)} and {list(colors.shape)}")
        if not np.isfinite(points).all():
            raise SplatError(f"xyz: {int((~np.isfinite(points)).any(1).sum())} points are not finite; remove them")
        if colors.dtype == np.uint8:
            colors = colors / 255.0
        elif colors.dtype.kind != "f" or not ((colors >= 0) & (colors <= 1)).all():
            raise SplatError("rgb must be uint8, or floats from 0 to 1")
        if sh_degree not in _DEGREE_OF_COUNT.values():
            raise SplatError(f"sh_degree is {sh_degree}; it must be 0, 1, 2 or 3")
        if not 0 < opacity < 1:
            raise SplatError(f"opacity is {opacity}; it must lie between 0 and 1")

        count = len(points)
        sh = np.zeros((count, (sh_degree + 1) ** 2, 3))
        sh[:, 0] = (colors - 0.5) / SH_C0
        return cls(
            means=torch.as_tensor(points, dtype=torch.float32),
            quats=torch.tensor([1.0, 0.0, 0.0, 0.0]).repeat(count, 1),
            log_scales=torch.as_tensor(np.log(_spacing(points)), dtype=torch.float32)[:, None].repeat(1, 3),
            logit_opacities=torch.full((count,), math.log(opacity / (1 - opacity)), dtype=torch.float32),
            sh=torch.as_tensor(sh, dtype=torch.float32),
        )

    def save(self, path: str | os.PathLike[str], spz_version: int = DEFAULT_VERSION) -> list[str]:
        """Write a file of the format that its name ends in (.ply, .compressed.ply, .spz, .sog, .splat, .ksplat, .glb), which
        appears complete or not at all.

        Args:
            spz_version: 2, 3 or 4, of a .spz.

        Returns:
            What the format cannot hold of these, a clause each; what quantisation costs is in docs/files.md.

        Raises:
            SplatError: another ending, splats that the format cannot hold, or what `validate` says.
        """
        self.validate()
        return write_scene(path, self.arrays(), spz_version)

    @classmethod
    def load(cls, path: str | os.PathLike[str], with_faulty: bool = False) -> Gaussians:
        """Read a file of any of these formats, or a SOG's meta.json.

        Args:
            with_faulty: read `faulty` Gaussians as well, for `splat_py.scene.editing.remove_faulty`.

        Raises:
            SplatError: with the file and its fault.
        """
        return cls._read(read_scene(path), path, with_faulty)

    def save_ply(self, path: str | os.PathLike[str]) -> None:
        """Write a PLY in Inria's layout, whatever its name ends in. Raises as `validate` does."""
        self.validate()
        write_gaussians(path, self.arrays())

    @classmethod
    def load_ply(cls, path: str | os.PathLike[str]) -> Gaussians:
        """Read a PLY, whatever its name ends in. Raises SplatError with the file and its fault."""
        return cls._read(read_gaussians(path), path)

    @classmethod
    def _read(cls, arrays: GaussianArrays, path: str | os.PathLike[str], with_faulty: bool = False) -> Gaussians:
        gaussians = cls.of_arrays(arrays)
        try:
            gaussians._validate_form()
            if not with_faulty and (clause := gaussians._faults()):
                raise SplatError(f"{clause}; leave them out: splat edit {shlex.quote(str(path))} repaired.ply --remove-faulty")
        except SplatError as error:
            raise SplatError(f"{path}: {error}") from error
        return gaussians

    def faulty(self) -> torch.Tensor:
        """Which hold NaN or infinity, or quaternions of zeros, that give no rotation: bool [N]. `validate` refuses them."""
        return torch.stack(list(self._faulty().values())).any(dim=0)

    def _faulty(self) -> dict[str, torch.Tensor]:
        """The same by tensor."""
        rows = {name: tensor for name, tensor in self._tensors().items() if name != "weights"}
        flat = {name: tensor.reshape(len(self), math.prod(tensor.shape[1:])) for name, tensor in rows.items()}
        faulty = {name: ~tensor.isfinite().all(dim=1) for name, tensor in flat.items()}
        return faulty | {"quats": faulty["quats"] | (self.quats == 0).all(dim=1)}

    def _faults(self) -> str:
        """A clause on faulty ones, or none."""
        where = ", ".join(name for name, faulty in self._faulty().items() if faulty.any())
        rows = self.faulty().nonzero()[:, 0].tolist()
        if not rows:
            return ""
        found = f"{len(rows):,} of {len(self):,} Gaussians, the first of them in row {rows[0] + 1:,}"
        return f"{found}, hold NaN, infinity or a quaternion of zeros, in {where}"

    def _tensors(self) -> dict[str, torch.Tensor]:
        """All that there are, by name."""
        tensors = {name: getattr(self, name) for name in _TENSORS}
        tensors |= {f"params[{name!r}]": tensor for name, tensor in self.params.items()}
        return tensors | {
            name: tensor for name, tensor in (("features", self.features), ("weights", self.weights)) if tensor is not None
        }

    def arrays(self) -> GaussianArrays:
        """The same in NumPy, as files have them."""
        means, quats, log_scales, logits, sh = (getattr(self, name).detach().cpu().numpy() for name in _TENSORS)
        params = {name: tensor.detach().cpu().numpy() for name, tensor in self.params.items()}
        features, weights = (None if t is None else t.detach().cpu().numpy() for t in (self.features, self.weights))
        own = {
            slot: (kind, "") if isinstance(kind, str) else (kind.name, kind.text)
            for slot, kind in (("splat", self.splat), ("color", self.color))
        }
        return GaussianArrays(means, quats, log_scales, logits, sh, params, features, weights, own, self.antialiased)

    @classmethod
    def of_arrays(cls, arrays: GaussianArrays) -> Gaussians:
        """The inverse of `arrays`. Types that are source are not trusted by it."""
        means, quats, log_scales, logits, sh = (torch.from_numpy(np.ascontiguousarray(values)) for values in arrays[:5])
        types = {slot: SlangSource(name, text) if text else name for slot, (name, text) in arrays.types.items()}
        return cls(
            means,
            quats,
            log_scales,
            logits,
            sh,
            params={name: torch.from_numpy(values) for name, values in arrays.params.items()},
            features=None if arrays.features is None else torch.from_numpy(arrays.features),
            weights=None if arrays.weights is None else torch.from_numpy(arrays.weights),
            splat=types["splat"],
            color=types["color"],
            antialiased=arrays.antialiased,
        )

    def validate(self) -> None:
        """Raise a SplatError that names the first tensor that is not what the class describes, and how."""
        self._validate_form()
        if clause := self._faults():
            raise SplatError(f"{clause}; leave them out: splat_py.scene.editing.remove_faulty")

    def _validate_form(self) -> None:
        """The same, but for rows that are `faulty`."""
        count = len(self) if self.means.ndim else 0
        shapes: dict[str, tuple[int | None, ...]] = {
            "means": (count, 3),
            "quats": (count, 4),
            "log_scales": (count, 3),
            "logit_opacities": (count,),
            "sh": (count, None, 3),
            "features": (count, None),
            "weights": (None,),
        }
        if len(self.params) > MOST_PARAMS:
            raise SplatError(f"params has {len(self.params)} parameters; a splat has {MOST_PARAMS} at most")
        for name in self.params:
            require_name("a parameter in params", name)
        for kind in (self.splat, self.color):
            if not isinstance(kind, str | SlangSource):
                SlangSource(kind.name, kind.text)
        if self.color != "SphericalHarmonics" and self.features is None:
            raise SplatError("features is None, which only harmonics do without; give [N, F]")
        for name, tensor in self._tensors().items():
            shape = shapes.get(name, (count,))
            if tensor.dtype != torch.float32:
                raise SplatError(f"{name} is {tensor.dtype}; convert it to torch.float32")
            if tensor.ndim != len(shape) or any(w not in (None, g) for g, w in zip(tensor.shape, shape, strict=True)):
                expected = "[" + ", ".join("K" if side is None else str(side) for side in shape) + "]"
                raise SplatError(f"{name} has shape {list(tensor.shape)}; it must be {expected}")
            if tensor.device != self.means.device:
                raise SplatError(f"{name} is on {tensor.device} and means on {self.means.device}; move them together")
        if self.sh.shape[1] not in _DEGREE_OF_COUNT:
            raise SplatError(f"sh has {self.sh.shape[1]} coefficients; degrees 0 to 3 have 1, 4, 9 and 16")
        if self.weights is not None and not self.weights.isfinite().all():
            raise SplatError("weights hold NaN or infinity, and all Gaussians share them")


def _spacing(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Root mean square distance [P] of each of `points` [P, 3] to its three nearest others, above zero."""
    count = len(points)
    if count < 2:
        return np.ones(count)
    distances, _ = cKDTree(points).query(points, k=min(4, count), workers=-1)
    spacing: NDArray[np.float64] = np.sqrt((distances[:, 1:] ** 2).mean(axis=1))
    positive = spacing > 0
    spacing[~positive] = 0.1 * np.median(spacing[positive]) if positive.any() else 1.0
    return spacing
