"""Gaussians as optimised parameters, and reading and writing scene files of all formats."""

import math
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from splat_py.base.arguments import as_numpy
from splat_py.base.errors import SplatError
from splat_py.base.files import atomic_path, reason, regular
from splat_py.base.html import histogram, table
from splat_py.scene.formats import glb, ply, sog, splat
from splat_py.scene.formats.packing import FLOAT32_LOGS, StoredGaussians
from splat_py.scene.formats.packing import SH_C0 as SH_C0
from splat_py.scene.formats.splat import SPZ_DEFAULT_VERSION
from splat_py.scene.sources import COMPRESSED_PLY, ENDINGS, META, PLY, ending_of, require_scene_file
from splat_py.shaders.custom_types import COLOR, SPLAT, OwnTypes
from splat_py.shaders.declarations import MOST_NUMBERS, SlangSource, require_name

if TYPE_CHECKING:
    from splat_py.gpu.kernels import UserType

_DEGREE_OF_COUNT = {1: 0, 4: 1, 9: 2, 16: 3}
_TENSORS = ("means", "quats", "log_scales", "logit_opacities", "sh")


@dataclass(frozen=True)
class _Format:
    """A file format: its highest degree of harmonics, whether it records antialiased training, and the smallest and largest
    log scale that it holds."""

    encode: Callable[[StoredGaussians], bytes]
    decode: Callable[[bytes], StoredGaussians] | None = None
    degree: int = 3
    antialiased: bool = False
    log_scales: tuple[float, float] = FLOAT32_LOGS


FORMATS = {
    COMPRESSED_PLY: _Format(ply.encode_compressed, log_scales=ply.COMPRESSED_LOG_SCALES),
    ".spz": _Format(splat.encode_spz, splat.decode_spz, antialiased=True, log_scales=splat.SPZ_LOG_SCALES),
    ".sog": _Format(sog.encode, sog.decode, antialiased=True, log_scales=(-np.inf, np.inf)),
    ".splat": _Format(splat.encode_splat, splat.decode_splat, degree=0),
    ".ksplat": _Format(splat.encode_ksplat, splat.decode_ksplat, degree=2, log_scales=splat.KSPLAT_LOG_SCALES),
    ".glb": _Format(glb.encode, glb.decode),
}
# The loss of surfels in files and pages that hold Gaussians only.
FLAT = "surfels: they are flat Gaussians"
# Tolerance for log scales beyond a format's limits.
_ROUNDED = 0.01


def read_scene(path: str | os.PathLike[str]) -> StoredGaussians:
    path = Path(path)
    ending = require_scene_file(path)
    if ending in (PLY, COMPRESSED_PLY):
        return ply.read_gaussians(path)
    name = "SOG" if ending == META else ending
    try:
        # Decoders pass on any error that NumPy, zipfile and others raise for damaged files. Callers check for NaN.
        with np.errstate(all="ignore"):
            if ending == META:
                return sog.decode_folder(path)
            decode = FORMATS[ending].decode
            assert decode is not None
            return decode(regular(path).read_bytes())
    except SplatError as error:
        raise SplatError(f"{path}: {error}") from error
    except MemoryError:
        raise
    except Exception as error:
        raise SplatError(f"{path} is not a {name} file or is damaged ({reason(error)}); export it again") from error


def write_scene(
    path: str | os.PathLike[str], gaussians: StoredGaussians, spz_version: int = splat.SPZ_DEFAULT_VERSION
) -> list[str]:
    """Write Gaussians to a file, atomically, in the format of its ending. Returns a clause for each property that the format
    cannot hold; quantisation (docs/files.md) is not reported."""
    path = Path(path)
    ending = ending_of(path)
    if ending is None or ending == META:
        raise SplatError(f"{path} does not end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}; choose one of these")
    splat.require_version(spz_version)
    if ending == PLY:
        ply.write_gaussians(path, gaussians)
        return []
    splat_type, color = (gaussians.types[slot][0] for slot in ("splat", "color"))
    if splat_type not in ("Gaussian", "Surfel"):
        raise SplatError(f"{ending} holds Gaussians only, but these splats are of type {splat_type}; write a .ply")
    kind = FORMATS[ending]
    sizes = _sizes_lost(ending, gaussians, kind.log_scales)
    data = splat.encode_spz(gaussians, spz_version) if ending == ".spz" else kind.encode(gaussians)
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)
    losses = [FLAT] if splat_type == "Surfel" else []
    if color != "SphericalHarmonics":
        losses.append(f"colours of type {color}: they look the same from all directions")
    if gaussians.sh.shape[1] > (kind.degree + 1) ** 2:
        simpler = f"harmonics above degree {kind.degree}: reflections are simpler"
        losses.append(simpler if kind.degree else "how colours change with the view")
    if gaussians.antialiased and not kind.antialiased:
        losses.append("the antialiased setting of the training: set it in the viewer")
    return losses + sizes


def _sizes_lost(ending: str, gaussians: StoredGaussians, held: tuple[float, float]) -> list[str]:
    """A clause on Gaussians larger than the format's limit, if there are any; thinner ones are clamped, which is invisible.
    `held` has the smallest and the largest log scale of the format."""
    least, most = held[0] - _ROUNDED, held[1] + _ROUNDED
    # The largest axis decides how far flat and long Gaussians reach.
    largest = gaussians.log_scales.max(axis=1, initial=-np.inf)
    larger, smaller = int((largest > most).sum()), int((largest < least).sum())
    count = len(largest)
    for outside, comparison, bound, end in ((larger, "larger", held[1], "up to"), (smaller, "smaller", held[0], "from")):
        if 2 * outside > count:
            raise SplatError(
                f"{outside:,} of {count:,} Gaussians are {comparison} than {ending} holds: standard deviations {end} "
                f"{np.exp(bound):.3g} units; choose another --scale, or write a .ply"
            )
    return [f"sizes of {larger:,} of {count:,} Gaussians, with deviations above {np.exp(held[1]):.3g}"] if larger else []


@dataclass(eq=False, repr=False)
class Gaussians:
    """N anisotropic Gaussians with unconstrained parameters for optimisation. All tensors are float32.

    Attributes:
        means: [N, 3], world units.
        quats: [N, 4], rotations w x y z, of any length above zero.
        log_scales: [N, 3], natural logarithm of the standard deviations in world units.
        logit_opacities: [N].
        sh: [N, K, 3], spherical-harmonics coefficients of rgb with K = (degree + 1)², degree 0 to 3.
        params: [N] each, the parameters of `splat` by name, in its order.
        splat: the splat type, as in `rasterization`: a name or a user's type. A file's own type is a `SlangSource`, which is
            compiled only after `trust_source`.
        color: the type of colours, likewise. With types other than harmonics, `sh` is what viewers show.
        features, weights: [N, F] and [W], the inputs of colour types other than harmonics.
        antialiased: true if a file or run states that they were trained with `antialiased=True`.
    """

    means: torch.Tensor
    quats: torch.Tensor
    log_scales: torch.Tensor
    logit_opacities: torch.Tensor
    sh: torch.Tensor
    params: dict[str, torch.Tensor] = field(default_factory=dict)
    splat: "str | UserType | SlangSource" = "Gaussian"
    color: "str | UserType | SlangSource" = "SphericalHarmonics"
    features: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    antialiased: bool = False

    def __len__(self) -> int:
        return self.means.shape[0]

    def __repr__(self) -> str:
        return f"Gaussians({', '.join(f'{name}={value}' for name, value in self._summary().items())})"

    def _repr_html_(self) -> str:
        with torch.no_grad():
            sizes = self.log_scales.amax(-1).cpu() / math.log(10)
            pictures = histogram("opacities", self.opacities.cpu()), histogram("log10 of largest scales", sizes)
        return table("Gaussians", self._summary()) + "".join(pictures)

    def _summary(self) -> dict[str, object]:
        types = {slot: name for slot, (name, _) in self.types.items()}
        return {"count": f"{len(self):,}", **types, "sh_degree": self.sh_degree, "device": self.means.device}

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

    @property
    def types(self) -> dict[str, tuple[str, str]]:
        """Name and source of the types of `splat` and `color`."""
        kinds = {"splat": self.splat, "color": self.color}
        return {slot: (kind, "") if isinstance(kind, str) else (kind.name, kind.text) for slot, kind in kinds.items()}

    @property
    def positions(self) -> NDArray[np.float64]:
        """The means in NumPy, [N, 3]."""
        return self.means.detach().cpu().double().numpy()

    def to(self, device: torch.device | str) -> "Gaussians":
        """The same Gaussians on another device; tensors already there are shared."""
        weights = None if self.weights is None else self.weights.to(device)
        return replace(self.mapped(lambda tensor: tensor.to(device)), weights=weights)

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Gaussians":
        """A copy with `change` applied to each tensor that has a row per Gaussian: all except `weights`."""
        tensors: dict[str, Any] = {name: change(getattr(self, name)) for name in _TENSORS}
        params = {name: change(tensor) for name, tensor in self.params.items()}
        return replace(self, params=params, features=None if self.features is None else change(self.features), **tensors)

    def trust_source(self, own: OwnTypes | None = None, what: str = "the scene") -> "Gaussians":
        """Compile the Slang source that a file contains and return a copy that uses it. Such code can access any memory.

        `own` states what to trust: Slang files named again by the user, or by default any source; `what` names the origin for
        messages. SplatError if the source does not compile, differs from the named file, or is not trusted.
        """
        own = own or OwnTypes(trust_source=True)
        splat = SPLAT.trusted(self.splat, own.splat, own.trust_source, what)
        return replace(self, splat=splat, color=COLOR.trusted(self.color, own.color, own.trust_source, what))

    @classmethod
    def from_points(
        cls, xyz: ArrayLike | torch.Tensor, rgb: ArrayLike | torch.Tensor, sh_degree: int = 3, opacity: float = 0.1
    ) -> "Gaussians":
        """One round Gaussian a point, as large as the distance between points (Kerbl et al. 2023, section 5.1).

        The scale is the root mean square distance to the three nearest other points. If these coincide with
        the point, it is a tenth of the median scale of the others; a single point gets 1.

        Args:
            xyz: [P, 3] finite, world units.
            rgb: [P, 3] uint8, or floats from 0 to 1.
            sh_degree: 0 to 3; coefficients above degree 0 start at zero.
            opacity: between 0 and 1, the same for all.
        """
        points, colors = as_numpy("xyz", xyz, np.float64), as_numpy("rgb", rgb)
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

    def save(self, path: str | os.PathLike[str], spz_version: int = SPZ_DEFAULT_VERSION) -> list[str]:
        """Write a file, atomically, in the format of its ending: .ply, .compressed.ply, .spz (version 2, 3 or 4), .sog, .splat,
        .ksplat or .glb. Returns a clause for each property that the format cannot hold; docs/files.md lists the errors of
        quantisation. SplatError for another ending, or if `validate` fails."""
        self.validate()
        return write_scene(path, self.arrays(), spz_version)

    @classmethod
    def load(cls, path: str | os.PathLike[str], with_faulty: bool = False) -> "Gaussians":
        """Read a file of any of these formats, or a SOG's meta.json. `with_faulty` accepts `faulty` Gaussians, for
        `splat_py.scene.editing.remove_faulty`. Raises SplatError with the file and its fault."""
        return cls._read(read_scene(path), path, with_faulty)

    def save_ply(self, path: str | os.PathLike[str]) -> None:
        """Write a PLY in Inria's layout, with any ending. Raises SplatError if `validate` fails."""
        self.validate()
        ply.write_gaussians(path, self.arrays())

    @classmethod
    def load_ply(cls, path: str | os.PathLike[str]) -> "Gaussians":
        """Read a PLY, with any ending. Raises SplatError with the file and its fault."""
        return cls._read(ply.read_gaussians(path), path)

    @classmethod
    def _read(cls, arrays: StoredGaussians, path: str | os.PathLike[str], with_faulty: bool = False) -> "Gaussians":
        gaussians = cls.of_arrays(arrays)
        try:
            gaussians._validate("" if with_faulty else f"splat edit {shlex.quote(str(path))} repaired.ply --remove-faulty")
        except SplatError as error:
            raise SplatError(f"{path}: {error}") from error
        return gaussians

    def faulty(self) -> torch.Tensor:
        """True for rows [N] with NaN, infinity or a zero quaternion, which is not a rotation. `validate` refuses them."""
        return torch.stack(list(self._faulty().values())).any(dim=0)

    def _faulty(self) -> dict[str, torch.Tensor]:
        rows = {name: tensor for name, tensor in self._tensors().items() if name != "weights"}
        flat = {name: tensor.reshape(len(self), math.prod(tensor.shape[1:])) for name, tensor in rows.items()}
        faulty = {name: ~tensor.isfinite().all(dim=1) for name, tensor in flat.items()}
        return faulty | {"quats": faulty["quats"] | (self.quats == 0).all(dim=1)}

    def _tensors(self) -> dict[str, torch.Tensor]:
        tensors = {name: getattr(self, name) for name in (*_TENSORS, "features", "weights")}
        tensors |= {f"params[{name!r}]": tensor for name, tensor in self.params.items()}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def arrays(self) -> StoredGaussians:
        """The Gaussians as NumPy arrays for files."""
        arrays: dict[str, Any] = {name: tensor.detach().cpu().numpy() for name, tensor in self._tensors().items()}
        params = {name: arrays.pop(f"params[{name!r}]") for name in self.params}
        return StoredGaussians(**arrays, params=params, types=self.types, antialiased=self.antialiased)

    @classmethod
    def of_arrays(cls, arrays: StoredGaussians) -> "Gaussians":
        """The inverse of `arrays`. It does not compile types that are given as source."""
        names = (*_TENSORS, "features", "weights")
        stored = {name: values for name, values in arrays._asdict().items() if name in names and values is not None}
        fields: dict[str, Any] = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in stored.items()}
        fields |= {slot: SlangSource(name, text) if text else name for slot, (name, text) in arrays.types.items()}
        params = {name: torch.from_numpy(values) for name, values in arrays.params.items()}
        return cls(**fields, params=params, antialiased=arrays.antialiased)

    def validate(self) -> None:
        """Raise a SplatError that names the first tensor that does not match the class's description, and how."""
        self._validate("splat_py.scene.editing.remove_faulty")

    def _validate(self, remedy: str) -> None:
        """Check everything that `validate` checks, but `faulty` rows only if there is a remedy for them."""
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
        if len(self.params) > MOST_NUMBERS:
            raise SplatError(f"params has {len(self.params)} parameters; a splat can have at most {MOST_NUMBERS}")
        for name in self.params:
            require_name("a parameter in params", name)
        for kind in (self.splat, self.color):
            if not isinstance(kind, str | SlangSource):
                SlangSource(kind.name, kind.text)
        if self.color != "SphericalHarmonics" and self.features is None:
            raise SplatError("features is None, which only harmonics allow; give [N, F]")
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
        if remedy and (names := [name for name, faulty in self._faulty().items() if faulty.any()]):
            rows = self.faulty().nonzero()[:, 0].tolist()
            found = f"{len(rows):,} of {len(self):,} Gaussians, the first of them in row {rows[0] + 1:,}"
            what = f"NaN, infinity or a quaternion of zeros, in {', '.join(names)}"
            raise SplatError(f"{found}, hold {what}; remove them: {remedy}")


def _spacing(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """The root mean square distance [P] of each of `points` [P, 3] to its three nearest neighbours, above zero."""
    count = len(points)
    if count < 2:
        return np.ones(count)
    distances, _ = cKDTree(points).query(points, k=min(4, count), workers=-1)
    spacing: NDArray[np.float64] = np.sqrt((distances[:, 1:] ** 2).mean(axis=1))
    positive = spacing > 0
    spacing[~positive] = 0.1 * np.median(spacing[positive]) if positive.any() else 1.0
    return spacing
