"""Gaussians as PLY files in the layout of Kerbl et al. 2023 (Inria), and coloured point clouds.

One vertex a Gaussian, all float32, little endian: x y z, nx ny nz (zero), f_dc_0..2, f_rest_*, opacity
(logit), scale_0..2 (log), rot_0..3 (w x y z, not normalised). f_rest runs channel by channel: every red
coefficient, then every green one, then every blue one.

Splats that are no Gaussians have comments, `splat_py splat TYPE NAME …` and, line by line as JSON has strings, the source of a
type of the user's, `splat_py splat_source "…"`; and for each of the names a property `splat_NAME`. Colours that are no
harmonics have the same, `splat_py color TYPE` and `splat_py color_source "…"`, properties color_0 …, and an element of weights.
A comment `splat_py antialiased` says that they were trained to be rendered so.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from plyfile import PlyData, PlyElement

from splat_py.errors import SplatError
from splat_py.files import atomic_path, is_file, parse_json, reason
from splat_py.scene.slang_source import MOST_PARAMS, MOST_SOURCE, SlangSource, require_name

Float32Array = NDArray[np.float32]

# Of a header.
_MOST_LINE_BYTES = 1 << 20
_REST_OF_DEGREE = {0: 0, 9: 1, 24: 2, 45: 3}
_WEIGHTS, _MOST_FEATURES, _MOST_WEIGHTS = "color_weights", 192, 1 << 16
# In the place of infinite ones: an opacity of 1 but for float32's precision.
_MOST_LOGIT = 16.0
_ANTIALIASED = "splat_py antialiased"
# What there is of one's own, and what it is most often.
_USUAL = {"splat": ("Gaussian", ""), "color": ("SphericalHarmonics", "")}


class GaussianArrays(NamedTuple):
    """What the file stores, for N Gaussians with K spherical-harmonics coefficients each; all float32."""

    means: Float32Array  # [N, 3]
    quats: Float32Array  # [N, 4], w x y z
    log_scales: Float32Array  # [N, 3]
    logit_opacities: Float32Array  # [N]
    sh: Float32Array  # [N, K, 3]
    params: Mapping[str, Float32Array] = MappingProxyType({})  # [N] each, of splats that have any
    features: Float32Array | None = None  # [N, F], of colours that are no harmonics
    weights: Float32Array | None = None  # [W]
    # Of "splat" and "color" the name of a built-in type and "", or that of the user's and its source.
    types: Mapping[str, tuple[str, str]] = MappingProxyType(_USUAL)
    # Whether they were trained to be rendered with `antialiased`.
    antialiased: bool = False


def _names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}_{i}" for i in range(count)]


def write_gaussians(path: str | os.PathLike[str], gaussians: GaussianArrays) -> None:
    """Write `gaussians` to `path` in Inria's layout; the file appears complete or not at all."""
    means, quats, log_scales, logit_opacities, sh, params, features, weights, types, antialiased = gaussians
    features = np.zeros((len(means), 0), np.float32) if features is None else features
    count, rest = len(means), 3 * (sh.shape[1] - 1)
    columns = [
        (["x", "y", "z"], means),
        (["nx", "ny", "nz"], np.zeros_like(means)),
        (_names("f_dc", 3), sh[:, 0]),
        (_names("f_rest", rest), sh[:, 1:].transpose(0, 2, 1).reshape(count, rest)),
        (["opacity"], logit_opacities[:, None]),
        (_names("scale", 3), log_scales),
        (_names("rot", 4), quats),
        *(([_property(name)], values[:, None]) for name, values in params.items()),
        (_names("color", features.shape[1]), features),
    ]
    row = np.dtype([(name, "<f4") for names, _ in columns for name in names])
    table = np.ascontiguousarray(np.concatenate([values for _, values in columns], axis=1), dtype="<f4")
    vertex = PlyElement.describe(table.view(row).reshape(count), "vertex")
    comments, elements = [_ANTIALIASED] * antialiased, [vertex]
    for slot, (name, source) in types.items():
        if (name, source) != _USUAL[slot]:
            comments.append(" ".join(("splat_py", slot, name, *(params if slot == "splat" else ()))))
            lines = source.split("\n") if source else []
            comments += [f"splat_py {slot}_source {json.dumps(line)}" for line in lines]
    if weights is not None and len(weights):
        elements.append(PlyElement.describe(weights.astype("<f4").view([("weight", "<f4")]), _WEIGHTS))
    with atomic_path(path) as temporary:
        PlyData(elements, byte_order="<", comments=comments).write(str(temporary))


def _property(name: str) -> str:
    """Of a parameter."""
    return f"splat_{name}"


def read_gaussians(path: str | os.PathLike[str]) -> GaussianArrays:
    """Read Gaussians by the names of their properties: any order, any number type, any further properties; or compressed ones.
    Numbers that are not finite are not looked for, but that opacities may have infinite logarithms.

    Raises:
        SplatError: not a PLY, cut off, properties missing, f_rest not of a degree from 0 to 3, comments of ours damaged.
    """
    vertices, ply = _read_vertices(path)
    present = set(vertices.dtype.names or ())
    if "chunk" in ply and "packed_position" in present:
        return _read_compressed(path, ply)
    types, params = _read_types(path, ply.comments)
    has_features = types["color"] != _USUAL["color"]
    features = sum(name.startswith("color_") for name in present) if has_features else 0
    if features > _MOST_FEATURES or has_features > features:
        raise SplatError(f"{path} has {features} color_ properties; its colours need from 1 to {_MOST_FEATURES}")
    rest = sum(name.startswith("f_rest_") for name in present)
    if rest not in _REST_OF_DEGREE:
        raise SplatError(
            f"{path} has {rest} f_rest properties; spherical harmonics of degree 0, 1, 2 and 3 have 0, 9, 24 and 45"
        )
    wanted = ["x", "y", "z", "opacity", *_names("f_dc", 3), *_names("f_rest", rest)]
    wanted += [*_names("scale", 3), *_names("rot", 4), *map(_property, params), *_names("color", features)]
    missing = [name for name in wanted if name not in present]
    if missing:
        raise SplatError(
            f"{path} has no {', '.join(missing)}; pass Gaussians in Inria's layout or compressed ones, not a point cloud"
        )
    count = len(vertices)

    def gather(names: list[str], most: float | None = None) -> Float32Array:
        block = np.empty((count, len(names)), dtype=np.float32)
        with np.errstate(over="ignore"):  # a double beyond float32 becomes infinite
            for i, name in enumerate(names):
                block[:, i] = vertices[name]
        # Programs that unpack opacities of exactly 0 and 1 write the logarithm's infinities.
        if most is not None:
            np.clip(block, -most, most, out=block, where=np.isinf(block))
        return block

    higher = gather(_names("f_rest", rest)).reshape(count, 3, rest // 3).transpose(0, 2, 1)
    return GaussianArrays(
        means=gather(["x", "y", "z"]),
        quats=gather(_names("rot", 4)),
        log_scales=gather(_names("scale", 3)),
        logit_opacities=gather(["opacity"], _MOST_LOGIT)[:, 0].copy(),
        sh=np.ascontiguousarray(np.concatenate([gather(_names("f_dc", 3))[:, None], higher], axis=1)),
        params={name: gather([_property(name)])[:, 0].copy() for name in params},
        features=gather(_names("color", features)) if has_features else None,
        weights=_read_weights(path, ply) if has_features else None,
        types=types,
        antialiased=_ANTIALIASED in ply.comments,
    )


def _read_compressed(path: str | os.PathLike[str], ply: PlyData) -> GaussianArrays:
    """Those of PlayCanvas' layout."""
    from splat_py.scene.formats import compressed_ply

    try:
        return compressed_ply.decode(ply)
    except Exception as error:
        raise SplatError(f"{path} is damaged ({reason(error)}); export it again") from error


def _read_types(path: str | os.PathLike[str], comments: Sequence[str]) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """What splats and colours are, name and source, and the names of the splats' parameters.

    Raises:
        SplatError: our comments are not what we write.
    """
    types, params = dict(_USUAL), []
    for slot in _USUAL:
        head, start = f"splat_py {slot} ", f"splat_py {slot}_source "
        heads = [comment.removeprefix(head).split(" ") for comment in comments if comment.startswith(head)]
        lines = [comment.removeprefix(start) for comment in comments if comment.startswith(start)]
        if not heads and not lines:
            continue
        try:
            ((kind, *names),) = heads
            for name in (kind, *names):
                require_name("a type or a parameter", name)
            if len(set(names)) < len(names) or len(names) > (MOST_PARAMS if slot == "splat" else 0):
                raise ValueError(f"the parameters are {' '.join(names)[:100]}")
            if sum(map(len, lines)) > 7 * MOST_SOURCE:
                raise ValueError("the Slang source is too long")
            texts = [parse_json(line) for line in lines]
            if not all(isinstance(text, str) for text in texts):
                raise ValueError("a line of the source is no string")
            source = "\n".join(texts)
            if source:
                SlangSource(kind, source)
        except ValueError as error:
            raise SplatError(f"{path} is damaged in what it says of its {slot} ({reason(error)}); export it again") from error
        types[slot] = kind, source
        params += names
    return types, params


def _read_weights(path: str | os.PathLike[str], ply: PlyData) -> Float32Array | None:
    """Those that all Gaussians share; None if there are none."""
    if _WEIGHTS not in ply:
        return None
    data = ply[_WEIGHTS].data
    if len(data) > _MOST_WEIGHTS or data.dtype.names != ("weight",) or data.dtype["weight"].kind not in "fiu":
        raise SplatError(f"{path} is damaged in its element {_WEIGHTS}; export it again")
    with np.errstate(over="ignore"):
        return data["weight"].astype(np.float32)


def write_points(path: str | os.PathLike[str], points: Float32Array, colors: NDArray[np.uint8]) -> None:
    """Write a point cloud, xyz [P, 3] and rgb [P, 3]; the file appears complete or not at all."""
    columns = [(axis, "<f4") for axis in "xyz"] + [(channel, "u1") for channel in ("red", "green", "blue")]
    vertices = np.empty(len(points), columns)
    for (name, _), column in zip(columns, [*points.T, *colors.T], strict=True):
        vertices[name] = column
    with atomic_path(path) as temporary:
        PlyData([PlyElement.describe(vertices, "vertex")], byte_order="<").write(str(temporary))


def read_points(path: str | os.PathLike[str]) -> tuple[Float32Array, NDArray[np.uint8]]:
    """Read a point cloud: xyz [P, 3] float32 and rgb [P, 3] uint8, mid-grey where the file has no colour.

    Raises:
        SplatError: not a PLY, cut off, no x, y, z.
    """
    vertices, _ = _read_vertices(path)
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


def _checked(file: BinaryIO) -> BinaryIO:
    """What plyfile is to read: the file, or a copy in which letters of the header that are not ASCII, say of a comment, are
    question marks.

    Raises:
        ValueError: the file is shorter than its rows, which plyfile allocates before it reads them.
    """
    size, rows, header = os.fstat(file.fileno()).st_size, 0, b""
    for line in iter(lambda: file.readline(_MOST_LINE_BYTES), b""):
        header += line
        if len(line) == _MOST_LINE_BYTES:
            raise ValueError(f"its header has a line of more than {_MOST_LINE_BYTES} bytes")
        words = line.split()
        if words[:1] == [b"end_header"]:
            break
        if words[:1] == [b"element"]:
            rows += int(words[-1])
    if not 0 <= rows <= size:
        raise ValueError(f"{rows} rows in {size} bytes")
    if header.startswith(b"ply") and not header.isascii():
        return io.BytesIO(header.decode(errors="replace").encode("ascii", "replace") + file.read())
    file.seek(0)
    return file


def _read_vertices(path: str | os.PathLike[str]) -> tuple[NDArray[np.void], PlyData]:
    """The vertices, and all that there is."""
    if not is_file(Path(path)):
        raise SplatError(f"{str(path)[:300]} does not exist or is a folder; pass a .ply file")
    try:
        with Path(path).open("rb") as file:
            stream = _checked(file)
            ply = PlyData.read(stream)
            rest = b"" if ply.text else stream.read(1)
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
    return vertices, ply
