"""GLB with KHR_gaussian_splatting: glTF 2.0 points with an attribute for each property (github.com/KhronosGroup/glTF).

The writer stores float32, so nothing is lost. Scales are linear, quaternions x y z w, harmonics as in a PLY. Axes are left, up,
front; a PLY has right, down, front. The reader also accepts the extension's integer types, nodes that move, turn and scale, and
the log scales of earlier drafts, which it recognises by negative numbers.
"""

import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splat_py.base.files import parse_json
from splat_py.scene.camera import affine
from splat_py.scene.formats import packing
from splat_py.scene.formats.packing import StoredGaussians
from splat_py.scene.similarity import Similarity, rotation_matrices

EXTENSION = "KHR_gaussian_splatting"
_MAGIC, _JSON, _BINARY = 0x46546C67, 0x4E4F534A, 0x004E4942
_HEADER, _CHUNK = struct.Struct("<III"), struct.Struct("<II")
_FLOAT, _BYTE, _POINTS, _ARRAY_BUFFER = 5126, 5121, 0, 34962
_KINDS = {5120: "i1", 5121: "u1", 5122: "<i2", 5123: "<u2", 5125: "<u4", _FLOAT: "<f4"}
_WIDTHS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4}
# Half a turn about z, which swaps right, down, front and left, up, front.
_FLIP = Similarity(rotation=np.diag([-1.0, -1.0, 1.0]))
_MOST_NODES = 10_000


def encode(gaussians: StoredGaussians) -> bytes:
    flipped = _FLIP.of_arrays(gaussians)
    opacities = gaussians.opacities
    rgba = packing.to_levels(np.concatenate([gaussians.colors, opacities[:, None]], 1), 255).astype(np.uint8)
    columns: dict[str, NDArray[Any]] = {
        "POSITION": flipped.means,
        "COLOR_0": rgba,
        f"{EXTENSION}:ROTATION": packing.normalized(flipped.quats)[:, [1, 2, 3, 0]],
        f"{EXTENSION}:SCALE": flipped.scales,
        f"{EXTENSION}:OPACITY": opacities[:, None],
        **{name: flipped.sh[:, i] for i, name in enumerate(_harmonics(flipped.sh.shape[1]))},
    }
    views: list[dict[str, Any]] = []
    accessors: list[dict[str, Any]] = []
    binary = bytearray()
    for name, column in columns.items():
        column = np.ascontiguousarray(column, "u1" if name == "COLOR_0" else "<f4")
        views.append({"buffer": 0, "byteOffset": len(binary), "byteLength": column.nbytes, "target": _ARRAY_BUFFER})
        kind = next(kind for kind, width in _WIDTHS.items() if width == column.shape[1])
        component = _BYTE if name == "COLOR_0" else _FLOAT
        accessor = {"bufferView": len(accessors), "componentType": component, "count": len(column), "type": kind}
        if name == "COLOR_0":
            accessor["normalized"] = True
        if name == "POSITION" and len(column):
            accessor |= {"min": column.min(0).tolist(), "max": column.max(0).tolist()}
        accessors.append(accessor)
        binary += column.tobytes()
    kernel = {"kernel": "ellipse", "colorSpace": "srgb_rec709_display", "sortingMethod": "cameraDistance"}
    primitive = {
        "attributes": {name: i for i, name in enumerate(columns)},
        "mode": _POINTS,
        "extensions": {EXTENSION: {**kernel, "projection": "perspective"}},
    }
    tree = {
        "asset": {"version": "2.0", "generator": "splat_py"},
        "extensionsUsed": [EXTENSION],
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [primitive]}],
        "buffers": [{"byteLength": len(binary)}],
        "bufferViews": views,
        "accessors": accessors,
    }
    text = json.dumps(tree).encode()
    text += b" " * (-len(text) % 4)
    binary += b"\0" * (-len(binary) % 4)
    size = _HEADER.size + 2 * _CHUNK.size + len(text) + len(binary)
    head = _HEADER.pack(_MAGIC, 2, size) + _CHUNK.pack(len(text), _JSON)
    return head + text + _CHUNK.pack(len(binary), _BINARY) + binary


def _harmonics(count: int) -> list[str]:
    """Attribute names of the first `count` coefficients."""
    return [f"{EXTENSION}:SH_DEGREE_{degree}_COEF_{i}" for degree in range(4) for i in range(2 * degree + 1)][:count]


def decode(data: bytes) -> StoredGaussians:
    """The Gaussians of all nodes in a file."""
    magic, version, size = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != 2 or size > len(data):
        raise ValueError("it does not begin like a complete GLB of version 2")
    chunks: dict[int, bytes] = {}
    at = _HEADER.size
    while at < size:
        length, kind = _CHUNK.unpack_from(data, at)
        at += _CHUNK.size
        if at + length > size:
            raise ValueError("a chunk is cut off")
        chunks.setdefault(kind, data[at : at + length])
        at += length
    tree = parse_json(chunks[_JSON].decode())
    primitives = [
        (where, primitive)
        for where, mesh in _meshes(tree)
        for primitive in tree["meshes"][_index(mesh)]["primitives"]
        if EXTENSION in primitive.get("extensions", {})
    ]
    if not primitives:
        raise ValueError(f"it has no points with {EXTENSION}")
    # Nodes may repeat a mesh, and attributes may share numbers: allow Gaussians of 8 bytes.
    counts = [_index(tree["accessors"][_index(primitive["attributes"]["POSITION"])]["count"]) for _, primitive in primitives]
    packing.require_room(sum(counts), packing.MOST_NUMBERS, len(data), 8)
    binary = chunks.get(_BINARY, b"")
    return _FLIP.of_arrays(packing.joined([where.of_arrays(_primitive(tree, part, binary)) for where, part in primitives]))


def _index(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"it has {str(value)[:60]!r} instead of an index")
    return value


def _meshes(tree: dict[str, Any]) -> Iterator[tuple[Similarity, int]]:
    """The transform and mesh index of each of the scene's nodes that has a mesh."""
    nodes, seen = tree.get("nodes", []), 0
    scene = tree["scenes"][_index(tree.get("scene", 0))]
    stack = [(node, np.eye(4)) for node in scene.get("nodes", [])]
    while stack:
        index, above = stack.pop()
        node, seen = nodes[_index(index)], seen + 1
        if seen > _MOST_NODES:
            raise ValueError(f"it has more than {_MOST_NODES:,} nodes, or they form a cycle")
        matrix = above @ _matrix(node)
        stack += [(child, matrix) for child in node.get("children", [])]
        if "mesh" in node:
            yield Similarity.of_matrix(matrix), node["mesh"]


def _matrix(node: dict[str, Any]) -> NDArray[np.float64]:
    if "matrix" in node:
        return np.array(node["matrix"], np.float64).reshape(4, 4).T
    x, y, z, w = (float(value) for value in node.get("rotation", (0, 0, 0, 1)))
    linear = rotation_matrices([w, x, y, z]) * np.array(node.get("scale", (1, 1, 1)), np.float64).reshape(1, 3)
    return affine(linear, np.array(node.get("translation", (0, 0, 0)), np.float64).reshape(3))


def _primitive(tree: dict[str, Any], primitive: dict[str, Any], binary: bytes) -> StoredGaussians:
    """The Gaussians of a primitive in its node's frame."""
    described = primitive["extensions"][EXTENSION]
    if described.get("extensions") or described.get("kernel", "ellipse") != "ellipse":
        raise ValueError("its Gaussians are compressed or have an unsupported kernel")
    attributes = primitive["attributes"]
    degree = max((degree for degree in (1, 2, 3) if f"{EXTENSION}:SH_DEGREE_{degree}_COEF_0" in attributes), default=0)

    def column(name: str, width: int) -> NDArray[np.float32]:
        return _accessor(tree, attributes[name], binary, width)

    scales = column(f"{EXTENSION}:SCALE", 3)
    arrays = StoredGaussians(
        means=column("POSITION", 3),
        quats=packing.normalized(column(f"{EXTENSION}:ROTATION", 4)[:, [3, 0, 1, 2]]).astype(np.float32),
        log_scales=scales if (scales < 0).any() else packing.log_scales_of(scales),
        logit_opacities=packing.logits_of(column(f"{EXTENSION}:OPACITY", 1)[:, 0]),
        sh=np.stack([column(name, 3) for name in _harmonics((degree + 1) ** 2)], 1),
    )
    if len({len(part) for part in arrays[:5]}) > 1:
        raise ValueError("its attributes have different lengths")
    return arrays


def _accessor(tree: dict[str, Any], index: object, binary: bytes, width: int) -> NDArray[np.float32]:
    accessor = tree["accessors"][_index(index)]
    if "sparse" in accessor or "bufferView" not in accessor or _WIDTHS[accessor["type"]] != width:
        raise ValueError("an attribute is sparse, empty or of a wrong width")
    view = tree["bufferViews"][_index(accessor["bufferView"])]
    if _index(view.get("buffer", 0)) != 0 or "uri" in tree["buffers"][0]:
        raise ValueError("its numbers are in another file")
    dtype = np.dtype(_KINDS[accessor["componentType"]])
    count, start = _index(accessor["count"]), _index(view.get("byteOffset", 0)) + _index(accessor.get("byteOffset", 0))
    stride = _index(view.get("byteStride", 0)) or width * dtype.itemsize
    end = start + stride * (count - 1) + width * dtype.itemsize if count else start
    if stride < width * dtype.itemsize or end > len(binary):
        raise ValueError("an attribute extends beyond the end of the file")
    values = np.ndarray((count, width), dtype, binary, start, (stride, dtype.itemsize)).astype(np.float32)
    if accessor.get("normalized") is True and dtype.kind in "iu":
        values = np.maximum(values / np.iinfo(dtype).max, -1)
    return values.astype(np.float32)
