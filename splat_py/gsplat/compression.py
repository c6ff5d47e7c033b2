"""Scenes as folders of pictures, in gsplat's format.

meta.json has each parameter's shape, type and range. Means, after `log_transform`, are two PNGs: the low and the high bytes of
16 bits. Scales, quaternions, opacities and sh0 are square PNGs of 8 bits with one pixel a Gaussian. shN is an NPZ of 6-bit
centroids and each Gaussian's index: the palette of SOG, by Euclidean distances, while gsplat uses Manhattan distances. All
other parameters are stored unchanged as NPZs.

Folders may come from anyone, so the sizes in files are checked before any allocation.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.base.files import atomic_path, load_npz, parse_json, refusing, regular, write_json
from splat_py.gsplat.utils import inverse_log_transform, log_transform
from splat_py.scene.formats.packing import morton_order
from splat_py.scene.formats.sog import palette
from splat_py.scene.pictures import checked_size, write_pixels

# Regular files have a few KiB.
_MOST_META_BYTES = 1 << 20
# A parameter's name becomes a file name.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
_AGAIN = "compress the scene again"
_DTYPES = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool")
# Parameters in pictures, by which PLAS also sorts, and the shapes of a Gaussian's values.
_SHAPES = {"means": (3,), "scales": (3,), "quats": (4,), "opacities": (), "sh0": (1, 3)}


@dataclass(frozen=True)
class Entry:
    """A parameter as meta.json describes it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    # The range of each channel, or one for all; empty if values are stored unchanged.
    mins: NDArray[np.float32]
    maxs: NDArray[np.float32]
    bits: int

    def dequantize(self, steps: NDArray[np.integer], bits: int) -> NDArray[np.float32]:
        """The values of quantised steps [..., C], or of any shape with a single range."""
        share = steps.astype(np.float64) / (2**bits - 1)
        return (share * (self.maxs.astype(np.float64) - self.mins) + self.mins).astype(np.float32)


def read_entries(folder: Path) -> list[Entry]:
    """The parameters that meta.json lists."""
    path = folder / "meta.json"
    with refusing(f"{path} cannot be read", _AGAIN, OSError, ValueError, TypeError, KeyError, OverflowError):
        if path.stat().st_size > _MOST_META_BYTES:
            raise ValueError(f"it has more than {_MOST_META_BYTES} bytes")
        meta = parse_json(regular(path).read_text(encoding="utf-8"))
        if not isinstance(meta, dict):
            raise ValueError("it is not a dictionary")
        entries = [_entry(name, fields) for name, fields in meta.items()]
        if len({entry.shape[0] for entry in entries}) > 1:
            raise ValueError("its parameters have different numbers of Gaussians")
        return entries


def _entry(name: str, fields: dict[str, Any]) -> Entry:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:100]!r} is not a parameter's name")
    shape, dtype = fields["shape"], fields["dtype"]
    whole = isinstance(shape, list) and all(type(side) is int and 0 <= side < 1 << 32 for side in shape)
    if not whole or not 1 <= len(shape) <= 8:
        raise ValueError(f"{name} has no valid shape")
    if dtype not in _DTYPES:
        raise ValueError(f"{name} has no valid type")
    if tuple(shape[1:]) != _SHAPES.get(name, tuple(shape[1:])) or (name == "shN" and (len(shape), shape[-1]) != (3, 3)):
        raise ValueError(f"{name} has shape {shape}")
    quantised = name in (*_SHAPES, "shN") and 0 not in shape
    count = 1 if name == "shN" else math.prod(shape[1:])
    mins, maxs = (_range(name, fields[key], count) if quantised else np.zeros(0, np.float32) for key in ("mins", "maxs"))
    bits = fields["quantization"] if quantised and name == "shN" else 8
    if type(bits) is not int or not 1 <= bits <= 8:
        raise ValueError(f"{name} has steps of {bits} bits")
    return Entry(name, tuple(shape), getattr(torch, dtype), mins, maxs, bits)


def _range(name: str, numbers: Any, count: int) -> NDArray[np.float32]:
    given = numbers if isinstance(numbers, list) else [numbers]
    if len(given) != count or any(type(x) not in (int, float) or not math.isfinite(x) for x in given):
        raise ValueError(f"{name} has no valid range")
    with np.errstate(over="ignore"):
        bounds = np.array(given, np.float32)
    if not np.isfinite(bounds).all():
        raise ValueError(f"{name} has a range beyond float32")
    return bounds


def read_picture(path: Path, entry: Entry) -> NDArray[np.uint8]:
    """Read a square PNG with one pixel a Gaussian as [N, C]."""
    count, channels = entry.shape[0], math.prod(entry.shape[1:])
    side = math.isqrt(count)
    wanted = (side, side) if channels == 1 else (side, side, channels)
    with refusing(f"{path} cannot be read", _AGAIN, Exception):  # decoders raise many types
        data = regular(path).read_bytes()
        checked_size(path, data)
        if side**2 != count or not data.startswith(b"\x89PNG"):
            raise ValueError("it is not a PNG of a square number of Gaussians")
        found = iio.improps(data, plugin="pillow")
        if tuple(found.shape) != wanted or found.dtype != np.uint8:
            raise ValueError(f"it is {list(found.shape)} {found.dtype} instead of {list(wanted)} uint8")
        return iio.imread(data, plugin="pillow").reshape(count, channels)


def read_arrays(path: Path, shapes: dict[str, tuple[int | None, ...]], kinds: str = "fiub") -> list[NDArray]:
    """Read arrays of an NPZ by name and shape; None in a shape allows any size. `kinds` has NumPy's letters for the allowed
    kinds of numbers."""
    # zipfile and NumPy pass on many types of errors from damaged data.
    with refusing(f"{path} cannot be read", _AGAIN, Exception):
        found = load_npz(path)
        for name, wanted in shapes.items():
            shape, dtype = found[name].shape, found[name].dtype
            if len(shape) != len(wanted) or any(b not in (None, a) for a, b in zip(shape, wanted, strict=True)):
                raise ValueError(f"{name} has shape {list(shape)}")
            if dtype.kind not in kinds:
                raise ValueError(f"{name} has type {dtype}")
        return [found[name] for name in shapes]


_CLUSTERS, _CLUSTER_BITS = 1 << 16, 6


@dataclass
class PngCompression:
    """Compresses scenes to folders and reads them again, with the same loss of precision as gsplat.

    Attributes:
        use_sort: first arrange the Gaussians with `sort_splats`, so that the pictures compress better.
        verbose: print progress.
    """

    use_sort: bool = True
    verbose: bool = True

    def compress(self, compress_dir: str | PathLike[str], splats: Mapping[str, Tensor]) -> None:
        """Write a folder. It holds the largest square number of Gaussians, without those of lowest opacity. SplatError if there
        are no Gaussians, a value is not finite, or a file cannot be written.

        Args:
            splats: means [N, 3], scales [N, 3] (log), quats [N, 4], opacities [N] (logit), sh0 [N, 1, 3] and shN [N, K, 3];
                other tensors [N, ...] are stored unchanged. `splats` is not modified.
        """
        kept = {name: tensor.detach() for name, tensor in splats.items()}
        for name, tensor in kept.items():
            if not tensor.isfinite().all():
                raise SplatError(f"splats[{name!r}] holds NaN or infinity; remove those Gaussians")
        count = len(kept["means"])
        side = math.isqrt(count)
        if side == 0:
            raise SplatError("splats has no Gaussians; compress needs at least one")
        kept |= {"means": log_transform(kept["means"]), "quats": F.normalize(kept["quats"], dim=-1)}
        if side**2 < count:
            best = kept["opacities"].argsort(descending=True)[: side**2]
            kept = {name: tensor[best] for name, tensor in kept.items()}
            if self.verbose:
                print(f"{count} Gaussians do not fill a square; leaving out the {count - side**2} of lowest opacity")
        if self.use_sort:
            kept = sort_splats(kept, self.verbose)
        folder = Path(compress_dir)
        meta = {name: self._write(folder, name, tensor, side) for name, tensor in kept.items()}
        write_json(folder / "meta.json", meta)

    def _write(self, folder: Path, name: str, values: Tensor, side: int) -> dict[str, Any]:
        """Write a parameter's files and return its entry for meta.json."""
        meta = {"shape": list(values.shape), "dtype": str(values.dtype).removeprefix("torch.")}
        if name in _SHAPES:
            steps, ranges = _quantize(values.reshape(side, side, -1), 16 if name == "means" else 8)
            pictures = {"means_l": steps & 255, "means_u": steps >> 8} if name == "means" else {name: steps}
            for picture, pixels in pictures.items():
                write_pixels(folder / f"{picture}.png", pixels)
            return meta | ranges
        if name != "shN":
            _write_arrays(folder / f"{name}.npz", arr=values.cpu().numpy())
            return meta
        if values.numel() == 0:
            return meta
        centroids, labels = palette(values.reshape(len(values), -1).float().cpu().numpy(), _CLUSTERS)
        steps, ranges = _quantize(torch.from_numpy(centroids).reshape(-1, 1, 1), _CLUSTER_BITS)
        steps = steps.reshape(centroids.shape).astype(np.uint8)
        _write_arrays(folder / "shN.npz", centroids=steps, labels=labels.astype(np.uint16))
        return meta | {key: value[0] for key, value in ranges.items()} | {"quantization": _CLUSTER_BITS}

    def decompress(self, compress_dir: str | PathLike[str]) -> dict[str, Tensor]:
        """Read the parameters in a folder, on the CPU. SplatError if a file is missing, damaged or does not match meta.json."""
        folder = Path(compress_dir)
        splats = {entry.name: self._read(folder, entry) for entry in read_entries(folder)}
        if "means" in splats:
            splats["means"] = inverse_log_transform(splats["means"])
        for name in (*_SHAPES, "shN"):
            if name in splats and not splats[name].isfinite().all():
                raise SplatError(f"{folder / 'meta.json'}: {name} has a range beyond its type; compress the scene again")
        return splats

    def _read(self, folder: Path, entry: Entry) -> Tensor:
        if math.prod(entry.shape) == 0:
            return torch.zeros(entry.shape, dtype=entry.dtype)
        if entry.name == "means":
            low, high = (read_picture(folder / f"means_{half}.png", entry) for half in "lu")
            values = entry.dequantize(high.astype(np.uint16) << 8 | low, 16)
        elif entry.name in _SHAPES:
            values = entry.dequantize(read_picture(folder / f"{entry.name}.png", entry), 8)
        elif entry.name != "shN":
            (values,) = read_arrays(folder / f"{entry.name}.npz", {"arr": entry.shape})
        else:
            path, width = folder / "shN.npz", math.prod(entry.shape[1:])
            steps, labels = read_arrays(path, {"centroids": (None, width), "labels": (entry.shape[0],)}, "u")
            if labels.max() >= len(steps):
                raise SplatError(f"{path} refers to missing centroids; compress the scene again")
            values = entry.dequantize(steps, entry.bits)[labels]
        return torch.from_numpy(values.reshape(entry.shape)).to(entry.dtype)


def _quantize(grid: Tensor, bits: int) -> tuple[NDArray[np.uint16], dict[str, list[float]]]:
    """Quantise values [H, W, C] in steps between each channel's minimum and maximum. Returns the steps and the ranges."""
    low, high = grid.amin((0, 1)), grid.amax((0, 1))
    steps = (grid - low) / torch.where(high == low, 1, high - low) * (2**bits - 1)
    return steps.round().cpu().numpy().astype(np.uint16), {"mins": low.tolist(), "maxs": high.tolist()}


def _write_arrays(path: Path, **arrays: NDArray) -> None:
    with atomic_path(path) as temporary:
        np.savez_compressed(temporary, allow_pickle=False, **arrays)


def sort_splats(splats: Mapping[str, Tensor], verbose: bool = True) -> dict[str, Tensor]:
    """Reorder all parameters in a square grid, by PLAS if it is installed, otherwise along Morton curves.

    PLAS (Morgenstern et al. 2023, Compact 3D scene representation via self-organizing Gaussian grids) arranges the grid by all
    parameters except shN. The Morton order lays a curve through space along one through the grid, which keeps neighbours close.

    Args:
        splats: [N, ...] each, including "means". SplatError if N is not a square number.
        verbose: print PLAS's progress.
    """
    means = splats["means"]
    side = math.isqrt(len(means))
    if side**2 != len(means):
        raise SplatError(f"splats has {len(means)} Gaussians; sort_splats needs a square number of them")
    try:
        from plas import sort_with_plas
    except ImportError:
        cells = np.arange(side**2)
        along_grid = np.stack([cells % side, cells // side, 0 * cells], 1).astype(np.float32)
        # The n-th Gaussian along a curve through space goes to the n-th cell along one through the grid.
        order = torch.empty(side**2, dtype=torch.int64)
        order[morton_order(along_grid)] = torch.from_numpy(morton_order(means.detach().float().cpu().numpy()))
        order = order.to(means.device)
    else:
        rows = torch.cat([splats[name].reshape(side**2, -1) for name in _SHAPES if name in splats], dim=1)
        # PLAS finds better arrangements from a random order.
        shuffled = torch.randperm(side**2, device=rows.device)
        grid = rows[shuffled].reshape(side, side, -1).permute(2, 0, 1)
        order = shuffled[sort_with_plas(grid, improvement_break=1e-4, verbose=verbose)[1].flatten()]
    return {name: tensor[order] for name, tensor in splats.items()}
