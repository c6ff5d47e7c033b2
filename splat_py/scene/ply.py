"""Gaussians as PLY files in the layout of Kerbl et al. 2023 (Inria), and coloured point clouds.

One vertex a Gaussian, all float32, little endian: x y z, nx ny nz (zero), f_dc_0..2, f_rest_*, opacity
(logit), scale_0..2 (log), rot_0..3 (w x y z, not normalised). f_rest runs channel by channel: every red
coefficient, then every green one, then every blue one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from plyfile import PlyData, PlyElement

from splat_py.errors import SplatError
from splat_py.files import atomic_path, is_file, reason

Float32Array = NDArray[np.float32]

# Of a header.
_MOST_LINE_BYTES = 1 << 16
_REST_OF_DEGREE = {0: 0, 9: 1, 24: 2, 45: 3}


class GaussianArrays(NamedTuple):
    """What the file stores, for N Gaussians with K spherical-harmonics coefficients each; all float32."""

    means: Float32Array  # [N, 3]
    quats: Float32Array  # [N, 4], w x y z
    log_scales: Float32Array  # [N, 3]
    logit_opacities: Float32Array  # [N]
    sh: Float32Array  # [N, K, 3]


def _names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}_{i}" for i in range(count)]


def write_gaussians(path: str | os.PathLike[str], gaussians: GaussianArrays) -> None:
    """Write `gaussians` to `path` in Inria's layout; the file appears complete or not at all."""
    means, quats, log_scales, logit_opacities, sh = gaussians
    count, rest = len(means), 3 * (sh.shape[1] - 1)
    columns = [
        (["x", "y", "z"], means),
        (["nx", "ny", "nz"], np.zeros_like(means)),
        (_names("f_dc", 3), sh[:, 0]),
        (_names("f_rest", rest), sh[:, 1:].transpose(0, 2, 1).reshape(count, rest)),
        (["opacity"], logit_opacities[:, None]),
        (_names("scale", 3), log_scales),
        (_names("rot", 4), quats),
    ]
    row = np.dtype([(name, "<f4") for names, _ in columns for name in names])
    table = np.ascontiguousarray(np.concatenate([values for _, values in columns], axis=1), dtype="<f4")
    vertex = PlyElement.describe(table.view(row).reshape(count), "vertex")
    with atomic_path(path) as temporary:
        PlyData([vertex], byte_order="<").write(str(temporary))


def read_gaussians(path: str | os.PathLike[str]) -> GaussianArrays:
    """Read Gaussians by the names of their properties: any order, any number type, any further properties.

    Raises:
        SplatError: not a PLY, cut off, properties missing, f_rest not of a degree from 0 to 3, numbers not
            finite.
    """
    vertices = _read_vertices(path)
    present = set(vertices.dtype.names or ())
    rest = sum(name.startswith("f_rest_") for name in present)
    if rest not in _REST_OF_DEGREE:
        raise SplatError(
            f"{path} has {rest} f_rest properties; spherical harmonics of degree 0, 1, 2 and 3 have 0, 9, 24 and 45"
        )
    wanted = ["x", "y", "z", "opacity", *_names("f_dc", 3), *_names("f_rest", rest)]
    wanted += [*_names("scale", 3), *_names("rot", 4)]
    missing = [name for name in wanted if name not in present]
    if missing:
        raise SplatError(
            f"{path} has no {', '.join(missing)}; pass Gaussians in Inria's layout, not a point cloud or a compressed file"
        )
    count = len(vertices)
    finite = np.ones(count, dtype=bool)

    def gather(names: list[str]) -> Float32Array:
        nonlocal finite
        block = np.empty((count, len(names)), dtype=np.float32)
        with np.errstate(over="ignore"):  # a double beyond float32 becomes infinite and is reported below
            for i, name in enumerate(names):
                block[:, i] = vertices[name]
        finite &= np.isfinite(block).all(axis=1)
        return block

    higher = gather(_names("f_rest", rest)).reshape(count, 3, rest // 3).transpose(0, 2, 1)
    arrays = GaussianArrays(
        means=gather(["x", "y", "z"]),
        quats=gather(_names("rot", 4)),
        log_scales=gather(_names("scale", 3)),
        logit_opacities=gather(["opacity"])[:, 0].copy(),
        sh=np.ascontiguousarray(np.concatenate([gather(_names("f_dc", 3))[:, None], higher], axis=1)),
    )
    if not finite.all():
        raise SplatError(f"{path}: {int((~finite).sum())} of {count} Gaussians hold NaN or infinity; export it again")
    return arrays


def read_points(path: str | os.PathLike[str]) -> tuple[Float32Array, NDArray[np.uint8]]:
    """Read a point cloud: xyz [P, 3] float32 and rgb [P, 3] uint8, mid-grey where the file has no colour.

    Raises:
        SplatError: not a PLY, cut off, no x, y, z.
    """
    vertices = _read_vertices(path)
    present = vertices.dtype.names or ()
    if not {"x", "y", "z"} <= set(present):
        raise SplatError(f"{path} has no x, y, z; pass a point cloud")
    xyz = np.stack([vertices[name] for name in "xyz"], axis=1).astype(np.float32)
    if not {"red", "green", "blue"} <= set(present):
        return xyz, np.full(xyz.shape, 128, np.uint8)
    rgb = np.stack([vertices[name] for name in ("red", "green", "blue")], axis=1)
    if rgb.dtype.kind == "f":
        rgb = np.nan_to_num(rgb) * 255
    return xyz, np.clip(np.rint(rgb), 0, 255).astype(np.uint8)


def _check_counts(file: BinaryIO) -> None:
    """Raise ValueError where a file is shorter than its rows, which plyfile allocates before it reads them."""
    size, rows = os.fstat(file.fileno()).st_size, 0
    for line in iter(lambda: file.readline(_MOST_LINE_BYTES), b""):
        words = line.split()
        if words[:1] == [b"end_header"]:
            break
        if words[:1] == [b"element"]:
            rows += int(words[-1])
    if not 0 <= rows <= size:
        raise ValueError(f"{rows} rows in {size} bytes")
    file.seek(0)


def _read_vertices(path: str | os.PathLike[str]) -> NDArray[np.void]:
    if not is_file(Path(path)):
        raise SplatError(f"{str(path)[:300]} does not exist or is a folder; pass a .ply file")
    try:
        with Path(path).open("rb") as file:
            _check_counts(file)
            ply = PlyData.read(file)
            rest = b"" if ply.text else file.read(1)
    # plyfile lets the decoder's and NumPy's own errors through where a header is damaged.
    except Exception as error:
        raise SplatError(f"{path} is not a PLY file or is damaged ({reason(error)}); export it again") from error
    if rest:
        raise SplatError(f"{path} goes on after its last row: its header is of fewer rows; export it again")
    if "vertex" not in ply:
        raise SplatError(f"{path} has no element named vertex; pass a PLY of points or Gaussians")
    vertices: NDArray[np.void] = ply["vertex"].data
    if any(vertices.dtype[name].kind not in "fiu" for name in vertices.dtype.names or ()):
        raise SplatError(f"{path} has list properties in its vertices; pass a PLY of points or Gaussians")
    return vertices
