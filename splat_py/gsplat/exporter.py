"""Gaussians as bytes of files for viewers: PLY, antimatter15's .splat and SuperSplat's compressed PLY.

In all of them scales are logarithms and opacities logits as they are optimised; quaternions are w x y z of any length.
"""

from __future__ import annotations

import math
import os
import warnings
from io import BytesIO
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from plyfile import PlyData, PlyElement
from torch import Tensor

from splat_py.errors import SplatError
from splat_py.files import atomic_path
from splat_py.gsplat.utils import inverse_log_transform, log_transform
from splat_py.scene.gaussians import SH_C0, Gaussians

__all__ = [
    "encode_morton3_vec",
    "export_splats",
    "inverse_log_transform",
    "load_ply_to_splats",
    "log_transform",
    "pack_8888",
    "pack_111011",
    "pack_rotation",
    "pack_unorm",
    "sh2rgb",
    "sort_centers",
    "splat2ply_bytes",
    "splat2ply_bytes_compressed",
    "splat2splat_bytes",
]

Format = Literal["ply", "splat", "ply_compressed"]
# Bits along each axis of a Morton code; logarithms of scales that compressed files can hold; Y_0 as the viewers have it.
_MORTON_BITS = 10
_MOST_LOG_SCALE = 20.0
# Coefficients between which compressed files resolve 256 steps.
_SH_RANGE = 8.0


def export_splats(
    means: Tensor,
    scales: Tensor,
    quats: Tensor,
    opacities: Tensor,
    sh0: Tensor,
    shN: Tensor,
    format: Format = "ply",
    save_to: str | os.PathLike[str] | None = None,
) -> bytes:
    """The bytes of a file of Gaussians, without those that hold NaN or infinity.

    Args:
        means: [N, 3].
        scales: [N, 3], logarithms.
        quats: [N, 4].
        opacities: [N], logits.
        sh0: [N, 1, 3].
        shN: [N, K, 3].
        format: "ply"; "splat", which has no higher spherical harmonics; or "ply_compressed", without Gaussians of opacities up
            to 1/255.
        save_to: also write them to this file, which appears complete or not at all.

    Raises:
        SplatError: a shape or the format is wrong, or the file cannot be written.
    """
    count = len(means)
    given = {"means": means, "scales": scales, "quats": quats, "opacities": opacities, "sh0": sh0, "shN": shN}
    rows: dict[str, tuple[int | None, ...]] = {"means": (3,), "scales": (3,), "quats": (4,), "opacities": (), "sh0": (1, 3)}
    for name, tensor in given.items():
        wanted = (count, *rows.get(name, (None, 3)))
        if tensor.dim() != len(wanted) or any(b not in (None, a) for a, b in zip(tensor.shape, wanted, strict=True)):
            expected = ", ".join("K" if side is None else str(side) for side in wanted)
            raise SplatError(f"{name} has shape {list(tensor.shape)}; expected [{expected}]")
    if format not in get_args(Format):
        raise SplatError(f"format is {format!r}; use {', '.join(get_args(Format))}")

    # Coefficients of a channel lie together.
    given |= {"sh0": sh0[:, 0], "shN": shN.transpose(1, 2).reshape(count, 3 * shN.shape[1])}
    given = {name: tensor.detach() for name, tensor in given.items()}
    finite = torch.stack([tensor.reshape(count, math.prod(tensor.shape[1:])).isfinite().all(1) for tensor in given.values()])
    means, scales, quats, opacities, sh0, shN = (tensor[finite.all(0)] for tensor in given.values())
    if format == "ply":
        data = splat2ply_bytes(means, scales, quats, opacities, sh0, shN)
    elif format == "splat":
        data = splat2splat_bytes(means, scales, quats, opacities, sh0)
    else:
        data = splat2ply_bytes_compressed(means, scales, quats, opacities, sh0, shN)
    if save_to:
        with atomic_path(save_to) as temporary:
            temporary.write_bytes(data)
    return data


def load_ply_to_splats(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """A PLY's Gaussians by the names that `export_splats` takes them, float32.

    Raises:
        SplatError: no PLY of Gaussians, or NaN in it.
    """
    gaussians = Gaussians.load_ply(path)
    if gaussians.splat != "Gaussian" or gaussians.features is not None:
        warnings.warn(f"{path} holds splats or colours that only splat_py knows; their numbers are left out", stacklevel=2)
    return {
        "means": gaussians.means,
        "scales": gaussians.log_scales,
        "quats": gaussians.quats,
        "opacities": gaussians.logit_opacities,
        "sh0": gaussians.sh[:, :1].contiguous(),
        "shN": gaussians.sh[:, 1:].contiguous(),
    }


def splat2ply_bytes(means: Tensor, scales: Tensor, quats: Tensor, opacities: Tensor, sh0: Tensor, shN: Tensor) -> bytes:
    """A PLY of float32 (scene/ply.py) without normals. sh0 is [N, 3], shN [N, 3 K], a channel after the other."""
    columns = {"xyz": means, "f_dc": sh0, "f_rest": shN, "opacity": opacities[:, None], "scale": scales, "rot": quats}
    plain = {"xyz": list("xyz"), "opacity": ["opacity"]}
    names = [name for key, part in columns.items() for name in plain.get(key) or _numbered(key, part.shape[1])]
    table = torch.cat(list(columns.values()), dim=1).to(torch.float32)
    return _ply({"vertex": _table(names, "<f4", table)})


def splat2splat_bytes(means: Tensor, scales: Tensor, quats: Tensor, opacities: Tensor, sh0: Tensor) -> bytes:
    """32 bytes a Gaussian along a Morton curve: mean and scales as float32, colour and opacity, quaternion as bytes."""
    order = sort_centers(means, torch.arange(len(means), device=means.device))
    colors = torch.cat([sh2rgb(sh0), opacities.sigmoid()[:, None]], dim=1) * 255
    rotations = quats / torch.linalg.norm(quats, dim=1, keepdim=True) * 128 + 128
    row = np.dtype([("mean", "<f4", 3), ("scales", "<f4", 3), ("rgba", "u1", 4), ("quat", "u1", 4)])
    splats = np.empty(len(means), row)
    splats["mean"], splats["scales"] = _numpy(means[order]), _numpy(scales.exp()[order])
    splats["rgba"], splats["quat"] = _numpy(_bytes(colors)[order]), _numpy(_bytes(rotations)[order])
    return splats.tobytes()


def splat2ply_bytes_compressed(
    means: Tensor,
    scales: Tensor,
    quats: Tensor,
    opacities: Tensor,
    sh0: Tensor,
    shN: Tensor,
    chunk_max_size: int = 256,
    opacity_threshold: float = 1 / 255,
) -> bytes:
    """A PLY of 16 bytes a Gaussian and one a coefficient above degree 0, quantised between bounds of each chunk.

    Args: as of `splat2ply_bytes`, and
        chunk_max_size: Gaussians along a Morton curve that share bounds.
        opacity_threshold: those up to this opacity are left out.
    """
    keep = opacities.sigmoid() > opacity_threshold
    means, scales, quats, opacities, sh0, shN = (a[keep] for a in (means, scales, quats, opacities, sh0, shN))
    order = sort_centers(means, torch.arange(len(means), device=means.device))
    colors = sh2rgb(sh0)
    bounds, packed = [], []
    for chunk in order.split(chunk_max_size) if len(order) else ():
        (low_mean, high_mean), position = _within_bounds(means[chunk])
        (low_scale, high_scale), size = _within_bounds(scales[chunk], _MOST_LOG_SCALE)
        (low_color, high_color), color = _within_bounds(colors[chunk])
        alpha = 1 / (1 + torch.exp(-opacities[chunk]))
        bounds.append(torch.cat([low_mean, high_mean, low_scale, high_scale, low_color, high_color]))
        rgba = torch.cat([color, alpha[:, None]], dim=1)
        words = (pack_111011(*position.T), pack_rotation(quats[chunk]), pack_111011(*size.T), pack_8888(*rgba.T))
        packed.append(torch.stack(words, dim=1))

    ranges = [
        f"{side}_{name}"
        for names in ("x y z", "scale_x scale_y scale_z", "r g b")
        for side in ("min", "max")
        for name in names.split()
    ]
    words_of = [f"packed_{name}" for name in ("position", "rotation", "scale", "color")]
    coefficients = _bytes((shN[order] / _SH_RANGE + 0.5) * 256)
    return _ply(
        {
            "chunk": _table(ranges, "<f4", torch.stack(bounds) if bounds else means.new_zeros(0, len(ranges))),
            "vertex": _table(words_of, "<u4", torch.cat(packed) if packed else means.new_zeros(0, len(words_of))),
            "sh": _table(_numbered("f_rest", shN.shape[1]), "u1", coefficients),
        }
    )


def sh2rgb(sh: Tensor) -> Tensor:
    """Colours of coefficients of degree 0."""
    return sh * SH_C0 + 0.5


def sort_centers(centers: Tensor, indices: Tensor) -> Tensor:
    """The indices [N] of centres [N, 3] in the order of a Morton curve through their bounding box."""
    if len(centers) == 0:
        return indices
    low, high = centers.aminmax(dim=0)
    sides = torch.where(high == low, 1, high - low)
    cells = ((centers - low) / sides * (1 << _MORTON_BITS)).floor().to(torch.int32)
    return indices[encode_morton3_vec(*cells.T).argsort().to(indices.device)]


def encode_morton3_vec(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Morton codes of the lowest ten bits of integers."""
    return part1by2_vec(x) | part1by2_vec(y) << 1 | part1by2_vec(z) << 2


def part1by2_vec(x: Tensor) -> Tensor:
    """The lowest ten bits of integers, two zeros between each and the next."""
    spread = torch.zeros_like(x)
    for bit in range(_MORTON_BITS):
        spread |= (x >> bit & 1) << 3 * bit
    return spread


def pack_unorm(value: Tensor, bits: int) -> Tensor:
    """Values from 0 to 1 as integers of so many bits, int64."""
    most = (1 << bits) - 1
    return (value * most + 0.5).floor().clamp(0, most).to(torch.int64)


def pack_111011(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Three values from 0 to 1 in 11, 10 and 11 bits of an integer, the first highest."""
    return _pack((x, y, z), (11, 10, 11))


def pack_8888(x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> Tensor:
    """Four values from 0 to 1 in 8 bits each of an integer, the first highest."""
    return _pack((x, y, z, w), (8, 8, 8, 8))


def pack_rotation(q: Tensor) -> Tensor:
    """Quaternions [N, 4] in 32 bits: which component is the largest, in two, and the others, times its sign, in ten each."""
    q = q / torch.linalg.norm(q, dim=-1, keepdim=True)
    largest = q.abs().argmax(dim=-1, keepdim=True)
    q = torch.where(q.gather(1, largest) < 0, -q, q)
    others = torch.arange(3, device=q.device).expand(len(q), 3)
    others = q.gather(1, others + (others >= largest).long())
    return largest[:, 0] << 30 | _pack(tuple((others * (math.sqrt(2) * 0.5) + 0.5).T), (10, 10, 10))


def _pack(values: tuple[Tensor, ...], widths: tuple[int, ...]) -> Tensor:
    word = torch.zeros(values[0].shape, dtype=torch.int64, device=values[0].device)
    for value, bits in zip(values, widths, strict=True):
        word = word << bits | pack_unorm(value, bits)
    return word


def _within_bounds(values: Tensor, most: float = math.inf) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Least and largest [C] of values [N, C], no further than `most` from zero, and the values between them as 0 to 1."""
    low, high = (bound.clamp(-most, most) for bound in values.aminmax(dim=0))
    # Where all are the same, any place between the bounds is theirs.
    return (low, high), (values - low) / torch.where(high == low, 1, high - low)


def _bytes(values: Tensor) -> Tensor:
    return values.clamp(0, 255).to(torch.uint8)


def _numpy(tensor: Tensor) -> NDArray:
    return tensor.detach().cpu().numpy()


def _numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}_{i}" for i in range(count)]


def _table(names: list[str], kind: str, values: Tensor) -> NDArray[np.void]:
    """Values [N, C] as rows of named fields of one type."""
    rows = np.ascontiguousarray(_numpy(values).astype(kind))
    row = np.dtype([(name, kind) for name in names])
    return rows.view(row)[:, 0] if names else np.empty(len(rows), row)


def _ply(elements: dict[str, NDArray[np.void]]) -> bytes:
    file = BytesIO()
    PlyData([PlyElement.describe(rows, name) for name, rows in elements.items()], byte_order="<").write(file)
    return file.getvalue()
