"""Scenes as folders of pictures, in gsplat's format.

meta.json has each parameter's shape, type and range. Means, as `log_transform` leaves them, are two PNGs: the low and the
high bytes of 16 bits. Scales, quaternions, opacities and sh0 are a PNG of 8 bits each, a pixel a Gaussian, in a square. shN is
an NPZ of centroids of 6 bits, of which each Gaussian has one: Euclidean k-means, where gsplat's is by Manhattan distances. All
other parameters are NPZs, as they are.
"""

from __future__ import annotations

import math
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

from splat_py.errors import SplatError
from splat_py.files import atomic_path, write_json
from splat_py.gsplat.compression.clusters import k_means
from splat_py.gsplat.compression.folder import Entry, read_arrays, read_entries, read_picture
from splat_py.gsplat.compression.sort import sort_splats
from splat_py.gsplat.utils import inverse_log_transform, log_transform

_CLUSTERS, _CLUSTER_BITS = 1 << 16, 6
_PICTURES = ("scales", "quats", "opacities", "sh0")


@dataclass
class PngCompression:
    """Compresses scenes to folders and reads them again, at gsplat's own loss of precision.

    Attributes:
        use_sort: arrange the Gaussians by `sort_splats` before, so that the pictures compress better.
        verbose: say what is going on.
    """

    use_sort: bool = True
    verbose: bool = True

    def compress(self, compress_dir: str | PathLike[str], splats: Mapping[str, Tensor]) -> None:
        """Write a folder. The Gaussians of lowest opacity that no square has room for are left out.

        Args:
            splats: means [N, 3], scales [N, 3] (log), quats [N, 4], opacities [N] (logit), sh0 [N, 1, 3] and shN [N, K, 3];
                anything else [N, ...] is stored as it is. It is not changed.

        Raises:
            SplatError: there are no Gaussians, one is not finite, or a file cannot be written.
        """
        kept = {name: tensor.detach() for name, tensor in splats.items()}
        for name, tensor in kept.items():
            if not tensor.isfinite().all():
                raise SplatError(f"splats[{name!r}] holds NaN or infinity; remove those Gaussians")
        count = len(kept["means"])
        side = math.isqrt(count)
        if side == 0:
            raise SplatError("splats: there are no Gaussians; compress takes one at least")
        kept |= {"means": log_transform(kept["means"]), "quats": F.normalize(kept["quats"], dim=-1)}
        if side**2 < count:
            best = kept["opacities"].argsort(descending=True)[: side**2]
            kept = {name: tensor[best] for name, tensor in kept.items()}
            if self.verbose:
                print(f"{count} Gaussians do not fill a square; the {count - side**2} of lowest opacity are left out")
        if self.use_sort:
            kept = sort_splats(kept, self.verbose)
        folder = Path(compress_dir)
        meta = {name: self._write(folder, name, tensor, side) for name, tensor in kept.items()}
        write_json(folder / "meta.json", meta)

    def _write(self, folder: Path, name: str, values: Tensor, side: int) -> dict[str, Any]:
        """A parameter's files, and what meta.json says of it."""
        meta = {"shape": list(values.shape), "dtype": str(values.dtype).removeprefix("torch.")}
        if name == "means":
            steps, ranges = _quantize(values.reshape(side, side, -1), 16)
            _write_picture(folder / "means_l.png", steps & 255)
            _write_picture(folder / "means_u.png", steps >> 8)
            return meta | ranges
        if name in _PICTURES:
            steps, ranges = _quantize(values.reshape(side, side, -1), 8)
            _write_picture(folder / f"{name}.png", steps)
            return meta | ranges
        if name != "shN":
            _write_arrays(folder / f"{name}.npz", arr=values.cpu().numpy())
            return meta
        if values.numel() == 0:
            return meta
        centroids, labels = k_means(values.reshape(len(values), -1).float(), _CLUSTERS)
        steps, ranges = _quantize(centroids.reshape(-1, 1, 1), _CLUSTER_BITS)
        steps = steps.reshape(centroids.shape).astype(np.uint8)
        _write_arrays(folder / "shN.npz", centroids=steps, labels=labels.cpu().numpy().astype(np.uint16))
        return meta | {key: value[0] for key, value in ranges.items()} | {"quantization": _CLUSTER_BITS}

    def decompress(self, compress_dir: str | PathLike[str]) -> dict[str, Tensor]:
        """The parameters that are in a folder, on the CPU.

        Raises:
            SplatError: a file is missing, damaged, or not what meta.json says.
        """
        folder = Path(compress_dir)
        splats = {entry.name: self._read(folder, entry) for entry in read_entries(folder)}
        if "means" in splats:
            splats["means"] = inverse_log_transform(splats["means"])
        for name in ("means", *_PICTURES, "shN"):
            if name in splats and not splats[name].isfinite().all():
                raise SplatError(f"{folder / 'meta.json'}: {name} has a range beyond its type; compress the scene again")
        return splats

    def _read(self, folder: Path, entry: Entry) -> Tensor:
        if math.prod(entry.shape) == 0:
            return torch.zeros(entry.shape, dtype=entry.dtype)
        if entry.name == "means":
            low, high = (read_picture(folder / f"means_{half}.png", entry) for half in "lu")
            values = entry.dequantize(high.astype(np.uint16) << 8 | low, 16)
        elif entry.name in _PICTURES:
            values = entry.dequantize(read_picture(folder / f"{entry.name}.png", entry), 8)
        elif entry.name != "shN":
            (values,) = read_arrays(folder / f"{entry.name}.npz", {"arr": entry.shape})
        else:
            path, width = folder / "shN.npz", math.prod(entry.shape[1:])
            steps, labels = read_arrays(path, {"centroids": (None, width), "labels": (entry.shape[0],)}, "u")
            if labels.max() >= len(steps):
                raise SplatError(f"{path} refers to centroids that it does not have; compress the scene again")
            values = entry.dequantize(steps, entry.bits)[labels]
        return torch.from_numpy(values.reshape(entry.shape)).to(entry.dtype)


def _quantize(grid: Tensor, bits: int) -> tuple[NDArray[np.uint16], dict[str, list[float]]]:
    """Values [H, W, C] in whole steps between each channel's least and largest, and these."""
    low, high = grid.amin((0, 1)), grid.amax((0, 1))
    steps = (grid - low) / torch.where(high == low, 1, high - low) * (2**bits - 1)
    return steps.round().cpu().numpy().astype(np.uint16), {"mins": low.tolist(), "maxs": high.tolist()}


def _write_picture(path: Path, pixels: NDArray[np.integer]) -> None:
    """[H, W, C] below 256 as a PNG."""
    with atomic_path(path) as temporary:
        iio.imwrite(temporary, pixels.astype(np.uint8).squeeze(2) if pixels.shape[2] == 1 else pixels.astype(np.uint8))


def _write_arrays(path: Path, **arrays: NDArray) -> None:
    with atomic_path(path) as temporary:
        np.savez_compressed(temporary, allow_pickle=False, **arrays)
