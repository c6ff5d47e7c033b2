"""PlayCanvas's SOG, version 2: lossless WebP pictures with one pixel a Gaussian, and meta.json, in a zip or a folder.

Positions are 16-bit numbers between bounds of sign(x) log(|x| + 1), in two pictures. Rotations are three of four components in
bytes. Scales and colours index codebooks of 256 numbers; opacities are bytes. Harmonics from degree 1 index a palette of up to
65,536 vectors, whose entries index a codebook (developer.playcanvas.com, "SOG format").
"""

import io
import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.cluster.vq import kmeans2

from splat_py.base.errors import SplatError
from splat_py.base.files import parse_json, regular
from splat_py.scene.formats import packing
from splat_py.scene.formats.packing import Float32Array, StoredGaussians
from splat_py.scene.pictures import decode as decode_picture

_COEFFICIENTS = {1: 3, 2: 8, 3: 15}
# The most vectors in a row of the palette's picture, and in the palette.
_PALETTE_COLUMNS, _MOST_PALETTE = 64, 1 << 16
# The longest side of a WebP picture, pixels.
_MOST_SIDE = 16383
# The fourth byte of a rotation is this plus the index of the omitted component.
_LARGEST = 252
# WebP is already compressed: refuse a file that unpacks to more than this multiple of the zip and more than this many bytes.
_MOST_RATIO, _LITTLE = 16, 1 << 20
# Entries of a codebook.
_BOOK = 256
# Iterations of k-means for numbers and for vectors.
_ROUNDS, _VECTOR_ROUNDS = 12, 6


def encode(gaussians: StoredGaussians) -> bytes:
    count = len(gaussians.means)
    if not count:
        raise SplatError("SOG cannot hold a scene without Gaussians; write another format")
    width = -(-int(np.ceil(np.sqrt(count))) // 4) * 4
    height = -(-count // width // 4) * 4
    if max(width, height) > _MOST_SIDE:
        raise SplatError(f"SOG holds at most {_MOST_SIDE**2:,} Gaussians, not {count:,}; write another format")
    order = packing.morton_order(gaussians.means)
    files: dict[str, bytes] = {}

    def write(name: str, values: NDArray[Any], alpha: NDArray[Any] | int = 255) -> list[str]:
        pixels = np.zeros((width * height, 4), np.uint8)
        pixels[:count, : values.shape[1]] = values
        pixels[:count, 3] = alpha
        files[f"{name}.webp"] = _webp(pixels.reshape(height, width, 4))
        return [f"{name}.webp"]

    means = gaussians.means[order].astype(np.float64)
    logs = np.sign(means) * np.log1p(np.abs(means))
    lowest, highest = logs.min(0), logs.max(0)
    levels = packing.to_levels((logs - lowest) / np.where(highest > lowest, highest - lowest, 1), 65535)
    largest, others = packing.drop_largest(gaussians.quats[order])
    scale_book, scales = codebook(gaussians.log_scales[order])
    color_book, colors = codebook(gaussians.sh[order, 0])
    opacity = packing.to_levels(gaussians.opacities[order], 255)
    meta: dict[str, Any] = {
        "version": 2,
        "asset": {"generator": "splat_py"},
        "count": count,
        **({"antialias": True} if gaussians.antialiased else {}),
        "means": {
            "mins": lowest.tolist(),
            "maxs": highest.tolist(),
            "files": [*write("means_l", levels & 255), *write("means_u", levels >> 8)],
        },
        "scales": {"codebook": scale_book.tolist(), "files": write("scales", scales)},
        "quats": {"files": write("quats", packing.to_levels(others / 2 + 0.5, 255), largest + _LARGEST)},
        "sh0": {"codebook": color_book.tolist(), "files": write("sh0", colors, opacity)},
    }
    if gaussians.sh.shape[1] > 1:
        higher = gaussians.sh[order, 1:]
        # Proportional to the number of Gaussians: a full palette would dominate a small file.
        size = min(_MOST_PALETTE, max(1024, 1 << int(np.log2(count))))
        vectors, labels = palette(higher.reshape(count, -1), size)
        book, indices = codebook(vectors)
        rows = -(-len(vectors) // _PALETTE_COLUMNS)
        pixels = np.zeros((rows * _PALETTE_COLUMNS, higher.shape[1], 4), np.uint8)
        pixels[: len(vectors), :, :3] = indices.reshape(len(vectors), -1, 3)
        pixels[..., 3] = 255
        files["shN_centroids.webp"] = _webp(pixels.reshape(rows, -1, 4))
        labels_file = write("shN_labels", np.stack([labels & 255, labels >> 8], 1))
        meta["shN"] = {
            "count": len(vectors),
            "bands": int(np.sqrt(gaussians.sh.shape[1])) - 1,
            "codebook": book.tolist(),
            "files": ["shN_centroids.webp", *labels_file],
        }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as bundle:
        for name, data in {"meta.json": json.dumps(meta).encode(), **files}.items():
            # No timestamp: the same scene gives the same file.
            bundle.writestr(zipfile.ZipInfo(name), data)
    return packed.getvalue()


def _webp(pixels: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    # `exact` keeps the colours of transparent pixels.
    Image.fromarray(pixels).save(file, "WEBP", lossless=True, exact=True, quality=100, method=4)
    return file.getvalue()


def decode(data: bytes) -> StoredGaussians:
    most = max(_LITTLE, _MOST_RATIO * len(data))
    with zipfile.ZipFile(io.BytesIO(data)) as bundle:

        def read(name: str) -> bytes:
            with bundle.open(name) as file:
                content = file.read(most + 1)
            if len(content) > most:
                raise ValueError(f"{name[:60]!r} has more than {most:,} bytes")
            return content

        return _decode(read, len(data))


def decode_folder(meta: Path) -> StoredGaussians:
    """Decode an unzipped SOG from its meta.json. Raises OSError and the errors of `decode`."""

    def read(name: str) -> bytes:
        if name in ("", ".", "..") or Path(name).name != name:
            raise ValueError(f"it names a file in another folder, {name[:60]!r}")
        return regular(meta.parent / (meta.name if name == "meta.json" else name)).read_bytes()

    return _decode(read, sum(path.stat().st_size for path in meta.parent.glob("*.webp")))


def _decode(read: Callable[[str], bytes], nbytes: int) -> StoredGaussians:
    """Decode the files that `read` returns by name, of `nbytes` in all."""
    meta = parse_json(read("meta.json").decode())
    if not isinstance(meta, dict) or meta.get("version") != 2:
        raise ValueError("its meta.json is not of version 2")
    count = meta["count"]
    if not isinstance(count, int) or not 0 < count <= _MOST_SIDE**2:
        raise ValueError("its count is not a number of Gaussians")
    # A Gaussian takes a 16th of a byte in pictures of a very even scene.
    packing.require_room(count, packing.MOST_NUMBERS, nbytes, 1 / 16)

    def pixels(part: str, index: int) -> NDArray[np.uint8]:
        return _pixels(read, meta[part]["files"][index])

    def rows(part: str, index: int = 0) -> NDArray[np.uint8]:
        flat = pixels(part, index).reshape(-1, 4)
        if len(flat) < count:
            raise ValueError(f"{part} has {len(flat):,} pixels for {count:,} Gaussians")
        return flat[:count]

    low, high = (_numbers(meta["means"][name], 3) for name in ("mins", "maxs"))
    levels = rows("means")[:, :3] + 256.0 * rows("means", 1)[:, :3]
    with np.errstate(over="ignore", invalid="ignore"):
        logs = low + levels / 65535 * (high - low)
        means = (np.sign(logs) * np.expm1(np.abs(logs))).astype(np.float32)
    quats, colors = rows("quats"), rows("sh0")
    # Smaller values of the fourth byte are reserved; read them as the identity.
    quats = np.where(quats[:, 3:] < _LARGEST, [128, 128, 128, _LARGEST], quats)
    scale_book, color_book = _numbers(meta["scales"]["codebook"], _BOOK), _numbers(meta["sh0"]["codebook"], _BOOK)
    sh = color_book[colors[:, None, :3]]
    if meta.get("shN") is not None:
        sh = np.concatenate([sh, _harmonics(meta["shN"], pixels("shN", 0), rows("shN", 1))], 1)
    return StoredGaussians(
        means=means,
        quats=packing.restore_largest(quats[:, 3] - _LARGEST, quats[:, :3] / 255 * 2 - 1),
        log_scales=scale_book[rows("scales")[:, :3]],
        logit_opacities=packing.logits_of(colors[:, 3] / 255),
        sh=sh,
        antialiased=meta.get("antialias") is True,
    )


def _harmonics(meta: dict[str, Any], centroids: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Float32Array:
    """Coefficients from degree 1, [N, K - 1, 3], for label pixels [N, 4]."""
    coefficients = _COEFFICIENTS[meta["bands"]]
    if centroids.shape[1] != _PALETTE_COLUMNS * coefficients:
        raise ValueError(f"its palette of harmonics is {centroids.shape[1]} pixels wide")
    vectors = _numbers(meta["codebook"], _BOOK)[centroids[..., :3]].reshape(-1, coefficients, 3)
    label = labels[:, 0] + 256 * labels[:, 1].astype(np.int64)
    if label.max() >= len(vectors):
        raise ValueError(f"it has {len(vectors)} vectors of harmonics but refers to vector {label.max()}")
    return vectors[label]


def _pixels(read: Callable[[str], bytes], name: object) -> NDArray[np.uint8]:
    if not isinstance(name, str):
        raise ValueError("a picture's name is not text")
    image = decode_picture(Path(name[:60]), read(name), cv2.IMREAD_UNCHANGED)
    if image is None or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in (3, 4):
        raise ValueError(f"{name[:60]!r} is not a colour picture of 8 bits")
    rgb = image[..., 2::-1]
    alpha = image[..., 3:] if image.shape[2] == 4 else np.full_like(image[..., :1], 255)
    return np.concatenate([rgb, alpha], 2)


def _numbers(values: object, count: int) -> Float32Array:
    """An array of `count` finite numbers from a list; a shorter list is padded with its last number."""
    if not isinstance(values, list) or not 0 < len(values) <= count:
        raise ValueError(f"a list of {count} numbers is missing")
    if not all(isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e38 for value in values):
        raise ValueError(f"a list of {count} numbers holds other values")
    return np.array(values + values[-1:] * (count - len(values)), np.float32)


def codebook(values: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """256 numbers in ascending order, and for each of `values` [...] the index of the nearest. Lloyd's iterations begin at
    quantiles, for the frequent values, mixed with even steps, for the rare ones."""
    flat = np.sort(values.reshape(-1).astype(np.float64))
    if not len(flat):
        return np.zeros(_BOOK, np.float32), values.astype(np.uint8)
    sums = np.concatenate([[0.0], np.cumsum(flat)])
    half = _BOOK // 2
    centers = np.concatenate([np.quantile(flat, np.linspace(0, 1, half)), np.linspace(flat[0], flat[-1], _BOOK - half)])
    centers.sort()
    for _ in range(_ROUNDS):
        edges = np.searchsorted(flat, (centers[1:] + centers[:-1]) / 2)
        starts, ends = np.concatenate([[0], edges]), np.concatenate([edges, [len(flat)]])
        counts = ends - starts
        centers = np.where(counts > 0, (sums[ends] - sums[starts]) / np.maximum(counts, 1), centers)
        centers.sort()
    centers = centers.astype(np.float32)
    labels = np.searchsorted((centers[1:] + centers[:-1]) / 2, values.reshape(-1))
    return centers, labels.reshape(values.shape).astype(np.uint8)


def palette(vectors: NDArray[np.float32], size: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """At most `size` vectors [P, D] that represent `vectors` [N, D], and the index [N] of each one's representative. k-means
    makes √size groups, then a share of vectors in each: all N against all 65,536 would take hours without a GPU."""
    if len(vectors) <= size:
        return vectors.copy(), np.arange(len(vectors))
    generator = np.random.default_rng(0)
    groups = max(1, round(size**0.5))
    with warnings.catch_warnings(action="ignore"):  # SciPy warns of empty groups
        _, group = kmeans2(vectors, groups, iter=_VECTOR_ROUNDS, minit="points", rng=generator)
        centers: list[NDArray[np.float32]] = []
        labels, at = np.empty(len(vectors), np.int64), 0
        for number in np.unique(group):
            rows = np.flatnonzero(group == number)
            # At least one vector a group, and at most `size` in all.
            share = 1 + int((len(rows) - 1) * (size - groups) / max(1, len(vectors) - groups))
            own, label = kmeans2(vectors[rows], min(share, len(rows)), iter=_VECTOR_ROUNDS, minit="points", rng=generator)
            centers.append(own)
            labels[rows] = label + at
            at += len(own)
    return np.concatenate(centers).astype(np.float32), labels
