"""PLY files: Gaussians in the layout of Kerbl et al. 2023 (Inria) or compressed, and coloured point clouds.

Inria's layout has one vertex a Gaussian, all float32, little endian: x y z, nx ny nz (zero), f_dc_0..2, f_rest_*, opacity
(logit), scale_0..2 (log), rot_0..3 (w x y z, not normalised). f_rest runs channel by channel: every red
coefficient, then every green one, then every blue one.

Splats other than Gaussians add a comment `splat_py splat TYPE NAME …` and a property `splat_NAME` for each name. The source of
a user's type follows line by line as JSON strings, `splat_py splat_source "…"`. Colours other than harmonics likewise add
`splat_py color TYPE`, `splat_py color_source "…"`, properties color_0 … and an element of weights. A comment
`splat_py antialiased` marks Gaussians that were trained with antialiased rendering.

The compressed layout of PlayCanvas and SuperSplat has 16 bytes a Gaussian, relative to the bounds of its chunk, and one byte a
harmonic. The element `chunk` has the lowest and highest position, log scale and rgb of 256 Gaussians. The element `vertex` has
four words: position and scale in 11, 10 and 11 bits, the rotation without its largest component in 2 + 3 · 10, rgb and opacity
in 8 each. The element `sh` has f_rest_*, from -4 to 4, channel by channel (developer.playcanvas.com, "Compressed PLY").
"""

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from plyfile import PlyData, PlyElement

from splat_py.base.errors import SplatError
from splat_py.base.files import atomic_path, is_file, parse_json, refusing, regular
from splat_py.scene.formats import packing
from splat_py.scene.formats.packing import USUAL_TYPES, Float32Array, StoredGaussians
from splat_py.shaders.declarations import MOST_NUMBERS, MOST_SOURCE, SlangSource, require_name

# The longest header line.
_MOST_LINE_BYTES = 1 << 20
_REST_OF_DEGREE = {0: 0, 9: 1, 24: 2, 45: 3}
_WEIGHTS, _MOST_FEATURES, _MOST_WEIGHTS = "color_weights", 192, 1 << 16
_ANTIALIASED = "splat_py antialiased"
# Compressed layout: Gaussians a chunk, and the width of the harmonics' range.
_CHUNK, _SH_RANGE = 256, 8.0
_WORDS = ("packed_position", "packed_rotation", "packed_scale", "packed_color")
# Log scales are clamped to these: more extreme ones would only widen their chunk's bounds.
COMPRESSED_LOG_SCALES = (-20.0, 20.0)
# Names of the properties with a chunk's lowest and highest values.
_BOUNDS = {
    kind: tuple([f"{end}_{prefix}{axis}" for axis in axes] for end in ("min", "max"))
    for kind, prefix, axes in (("means", "", "xyz"), ("scales", "scale_", "xyz"), ("colors", "", "rgb"))
}


def _names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}_{i}" for i in range(count)]


def write_gaussians(path: str | os.PathLike[str], gaussians: StoredGaussians) -> None:
    """Write `gaussians` to `path` in Inria's layout, atomically."""
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
        *(([f"splat_{name}"], values[:, None]) for name, values in params.items()),
        (_names("color", features.shape[1]), features),
    ]
    row = np.dtype([(name, "<f4") for names, _ in columns for name in names])
    table = np.ascontiguousarray(np.concatenate([values for _, values in columns], axis=1), dtype="<f4")
    vertex = PlyElement.describe(table.view(row).reshape(count), "vertex")
    comments, elements = [_ANTIALIASED] * antialiased, [vertex]
    for slot, (name, source) in types.items():
        if (name, source) != USUAL_TYPES[slot]:
            comments.append(" ".join(("splat_py", slot, name, *(params if slot == "splat" else ()))))
            lines = source.split("\n") if source else []
            comments += [f"splat_py {slot}_source {json.dumps(line)}" for line in lines]
    if weights is not None and len(weights):
        elements.append(PlyElement.describe(weights.astype("<f4").view([("weight", "<f4")]), _WEIGHTS))
    with atomic_path(path) as temporary:
        PlyData(elements, byte_order="<", comments=comments).write(str(temporary))


def read_gaussians(path: str | os.PathLike[str]) -> StoredGaussians:
    """Read Gaussians in the compressed layout, or in Inria's by property names: any order, any number type, any extra
    properties. Infinite opacity logits are clamped; other numbers that are not finite pass."""
    vertices, ply = _read_vertices(path)
    present = set(vertices.dtype.names or ())
    if "chunk" in ply and "packed_position" in present:
        with refusing(f"{path} is damaged", "export it again", Exception):
            return _decode_compressed(ply)
    types, params = _read_types(path, ply.comments)
    has_features = types["color"] != USUAL_TYPES["color"]
    features = sum(name.startswith("color_") for name in present) if has_features else 0
    if features > _MOST_FEATURES or has_features > features:
        raise SplatError(f"{path} has {features} color_ properties; its colours need 1 to {_MOST_FEATURES}")
    rest = sum(name.startswith("f_rest_") for name in present)
    if rest not in _REST_OF_DEGREE:
        raise SplatError(
            f"{path} has {rest} f_rest properties; spherical harmonics of degree 0, 1, 2 and 3 have 0, 9, 24 and 45"
        )
    wanted = ["x", "y", "z", "opacity", *_names("f_dc", 3), *_names("f_rest", rest)]
    wanted += [*_names("scale", 3), *_names("rot", 4), *(f"splat_{name}" for name in params), *_names("color", features)]
    missing = [name for name in wanted if name not in present]
    if missing:
        raise SplatError(
            f"{path} has no {', '.join(missing)}; pass Gaussians in Inria's layout or compressed ones, not a point cloud"
        )
    count = len(vertices)

    def gather(names: list[str], most: float | None = None) -> Float32Array:
        block = np.empty((count, len(names)), dtype=np.float32)
        with np.errstate(over="ignore"):  # doubles beyond float32 become infinite
            for i, name in enumerate(names):
                block[:, i] = vertices[name]
        # Programs that unpack opacities of exactly 0 and 1 write infinite logits.
        if most is not None:
            np.clip(block, -most, most, out=block, where=np.isinf(block))
        return block

    weights = None
    if has_features and _WEIGHTS in ply:
        data = ply[_WEIGHTS].data
        if len(data) > _MOST_WEIGHTS or data.dtype.names != ("weight",) or data.dtype["weight"].kind not in "fiu":
            raise SplatError(f"{path} has a damaged element {_WEIGHTS}; export it again")
        with np.errstate(over="ignore"):
            weights = data["weight"].astype(np.float32)
    higher = gather(_names("f_rest", rest)).reshape(count, 3, rest // 3).transpose(0, 2, 1)
    return StoredGaussians(
        means=gather(["x", "y", "z"]),
        quats=gather(_names("rot", 4)),
        log_scales=gather(_names("scale", 3)),
        logit_opacities=gather(["opacity"], 16.0)[:, 0].copy(),
        sh=np.ascontiguousarray(np.concatenate([gather(_names("f_dc", 3))[:, None], higher], axis=1)),
        params={name: gather([f"splat_{name}"])[:, 0].copy() for name in params},
        features=gather(_names("color", features)) if has_features else None,
        weights=weights,
        types=types,
        antialiased=_ANTIALIASED in ply.comments,
    )


def _read_types(path: str | os.PathLike[str], comments: Sequence[str]) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """The name and source of the splat and colour types, and the names of the splat's parameters."""
    types, params = dict(USUAL_TYPES), []
    for slot in USUAL_TYPES:
        head, start = f"splat_py {slot} ", f"splat_py {slot}_source "
        heads = [comment.removeprefix(head).split(" ") for comment in comments if comment.startswith(head)]
        lines = [comment.removeprefix(start) for comment in comments if comment.startswith(start)]
        if not heads and not lines:
            continue
        with refusing(f"{path} has a damaged {slot} type", "export it again", ValueError):
            ((kind, *names),) = heads
            for name in (kind, *names):
                require_name("a type or a parameter", name)
            if len(set(names)) < len(names) or len(names) > (MOST_NUMBERS if slot == "splat" else 0):
                raise ValueError(f"the parameters are {' '.join(names)[:100]}")
            if sum(map(len, lines)) > 7 * MOST_SOURCE:
                raise ValueError("the Slang source is too long")
            texts = [parse_json(line) for line in lines]
            if not all(isinstance(text, str) for text in texts):
                raise ValueError("a line of the source is not a string")
            source = "\n".join(texts)
            if source:
                SlangSource(kind, source)
        types[slot] = kind, source
        params += names
    return types, params


def write_points(path: str | os.PathLike[str], points: Float32Array, colors: NDArray[np.uint8]) -> None:
    """Write a point cloud, xyz [P, 3] and rgb [P, 3], atomically."""
    columns = [(axis, "<f4") for axis in "xyz"] + [(channel, "u1") for channel in ("red", "green", "blue")]
    vertices = np.empty(len(points), columns)
    for (name, _), column in zip(columns, [*points.T, *colors.T], strict=True):
        vertices[name] = column
    with atomic_path(path) as temporary:
        PlyData([PlyElement.describe(vertices, "vertex")], byte_order="<").write(str(temporary))


def read_points(path: str | os.PathLike[str]) -> tuple[Float32Array, NDArray[np.uint8]]:
    """Read a point cloud: xyz [P, 3] float32 and rgb [P, 3] uint8, mid-grey if the file has no colours."""
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
    """The file, or a copy with a header that plyfile accepts: without elements that have no properties, which gsplat writes for
    harmonics of degree 0, and with question marks for characters that are not ASCII, as in comments."""
    size, rows, least, copied = os.fstat(file.fileno()).st_size, 0, 0, False
    lines: list[bytes] = []
    for line in iter(lambda: file.readline(_MOST_LINE_BYTES), b""):
        if len(line) == _MOST_LINE_BYTES:
            raise ValueError(f"its header has a line with more than {_MOST_LINE_BYTES} bytes")
        words = line.split()
        if words[:1] in ([b"element"], [b"end_header"]) and lines[-1:] and lines[-1].startswith(b"element"):
            lines.pop()
            copied = True
        lines.append(line)
        if words[:1] == [b"end_header"]:
            break
        if words[:1] == [b"element"]:
            rows = int(words[-1])
        # A number has at least one byte.
        least += max(rows, 0) if words[:1] == [b"property"] else 0
    if least > size:
        raise ValueError(f"it claims {least:,} numbers in {size:,} bytes")
    header = b"".join(lines)
    if header.startswith(b"ply") and (copied or not header.isascii()):
        return io.BytesIO(header.decode(errors="replace").encode("ascii", "replace") + file.read())
    file.seek(0)
    return file


def _read_vertices(path: str | os.PathLike[str]) -> tuple[NDArray[np.void], PlyData]:
    """The vertices and the whole file. SplatError if it is missing or damaged."""
    if not is_file(Path(path)):
        raise SplatError(f"{str(path)[:300]} does not exist or is a folder; pass a .ply file")
    # With a damaged header, plyfile also raises errors of the decoder and of NumPy.
    what = f"{path} is not a PLY file or is damaged"
    with refusing(what, "export it again", Exception), regular(path).open("rb") as file:
        stream = _checked(file)
        ply = PlyData.read(stream)
        rest = b"" if ply.text else stream.read(1)
    if rest:
        raise SplatError(f"{path} has data after its last row: its header states fewer rows; export it again")
    if "vertex" not in ply:
        raise SplatError(f"{path} has no element named vertex; pass a PLY of points or Gaussians")
    vertices: NDArray[np.void] = ply["vertex"].data
    if any(vertices.dtype[name].kind not in "fiu" for name in vertices.dtype.names or ()):
        raise SplatError(f"{path} has list properties in its vertices; pass a PLY of points or Gaussians")
    return vertices, ply


def encode_compressed(gaussians: StoredGaussians) -> bytes:
    """Encode Gaussians as a compressed PLY, in an order that keeps the extent of chunks small."""
    order = packing.morton_order(gaussians.means)
    count, chunks = len(order), -(-len(order) // _CHUNK)
    words = np.zeros(count, [(name, "<u4") for name in _WORDS])
    table = np.zeros(chunks, [(name, "<f4") for ends in _BOUNDS.values() for names in ends for name in names])
    scales = np.clip(gaussians.log_scales[order], *COMPRESSED_LOG_SCALES)
    for word, kind, values in (("packed_position", "means", gaussians.means[order]), ("packed_scale", "scales", scales)):
        within = _within_chunks(table, kind, values)
        x, y, z = (packing.to_levels(within[:, i], levels) for i, levels in enumerate((2047, 1023, 2047)))
        words[word] = x << 21 | y << 11 | z
    largest, others = packing.drop_largest(gaussians.quats[order])
    a, b, c = packing.to_levels(others / 2 + 0.5, 1023).T
    words["packed_rotation"] = largest.astype(np.uint32) << 30 | a << 20 | b << 10 | c
    rgb = packing.to_levels(_within_chunks(table, "colors", gaussians.colors[order]), 255)
    opacity = packing.to_levels(gaussians.opacities[order], 255)
    words["packed_color"] = rgb[:, 0] << 24 | rgb[:, 1] << 16 | rgb[:, 2] << 8 | opacity
    elements = [PlyElement.describe(table, "chunk"), PlyElement.describe(words, "vertex")]
    rest = 3 * (gaussians.sh.shape[1] - 1)
    if rest:
        higher = gaussians.sh[order, 1:].transpose(0, 2, 1).reshape(count, rest)
        levels = np.clip(np.floor((higher / _SH_RANGE + 0.5) * 256), 0, 255).astype(np.uint8)
        row = np.dtype([(f"f_rest_{i}", "u1") for i in range(rest)])
        elements.append(PlyElement.describe(levels.view(row).reshape(count), "sh"))
    file = io.BytesIO()
    PlyData(elements, byte_order="<").write(file)
    return file.getvalue()


def _within_chunks(table: NDArray[np.void], kind: str, values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Positions of values [N, 3] between their chunk's bounds, 0 to 1; writes the bounds into `table`."""
    starts = np.arange(0, len(values), _CHUNK)
    low, high = (f.reduceat(values.astype(np.float32), starts) if len(values) else values for f in (np.minimum, np.maximum))
    for names, bounds in zip(_BOUNDS[kind], (low, high), strict=True):
        for axis, name in enumerate(names):
            table[name] = bounds[:, axis]
    chunk = np.arange(len(values)) // _CHUNK
    extent = (high.astype(np.float64) - low)[chunk]
    return np.where(extent > 0, (values - low.astype(np.float64)[chunk]) / np.where(extent > 0, extent, 1), 0)


def _decode_compressed(ply: PlyData) -> StoredGaussians:
    table, words = ply["chunk"].data, ply["vertex"].data
    count = len(words)
    if len(table) != -(-count // _CHUNK):
        raise ValueError(f"{count} Gaussians have {len(table)} chunks")
    for name in _WORDS:
        if words.dtype[name] != np.uint32:
            raise ValueError(f"{name} is not a uint")
    chunk = np.arange(count) // _CHUNK

    def between(kind: str, where: NDArray[np.float64]) -> Float32Array:
        low, high = (np.stack([table[n].astype(np.float64) for n in names], 1)[chunk] for names in _BOUNDS[kind])
        with np.errstate(invalid="ignore", over="ignore"):
            return (low * (1 - where) + high * where).astype(np.float32)

    def three(word: NDArray[np.uint32]) -> NDArray[np.float64]:
        return np.stack([(word >> 21) / 2047, (word >> 11 & 1023) / 1023, (word & 2047) / 2047], 1)

    rotation, color = words["packed_rotation"], words["packed_color"]
    rgb = np.stack([color >> 24, color >> 16 & 255, color >> 8 & 255], 1) / 255
    if "min_r" in (table.dtype.names or ()):
        rgb = between("colors", rgb).astype(np.float64)
    others = np.stack([rotation >> 20 & 1023, rotation >> 10 & 1023, rotation & 1023], 1) / 1023 * 2 - 1
    return StoredGaussians(
        means=between("means", three(words["packed_position"])),
        quats=packing.restore_largest(rotation >> 30, others),
        log_scales=between("scales", three(words["packed_scale"])),
        logit_opacities=packing.logits_of((color & 255) / 255),
        sh=np.concatenate([packing.base_of(rgb).astype(np.float32)[:, None], _higher(ply, count)], 1),
    )


def _higher(ply: PlyData, count: int) -> Float32Array:
    if "sh" not in ply:
        return np.zeros((count, 0, 3), np.float32)
    rows = ply["sh"].data
    rest = len(rows.dtype.names or ())
    if len(rows) != count or rest not in _REST_OF_DEGREE:
        raise ValueError(f"{count} Gaussians have {len(rows)} rows of {rest} harmonics")
    columns = [rows[f"f_rest_{i}"] for i in range(rest)]
    if any(column.dtype != np.uint8 for column in columns):
        raise ValueError("harmonics are not bytes")
    levels = np.stack(columns, 1) if columns else np.zeros((count, 0), np.uint8)
    # The lowest and highest level decode to the ends of the range, the others to the middle of their interval.
    share = np.where(levels == 0, 0.0, np.where(levels == 255, 1.0, (levels + 0.5) / 256))
    return ((share - 0.5) * _SH_RANGE).astype(np.float32).reshape(count, 3, rest // 3).transpose(0, 2, 1)
