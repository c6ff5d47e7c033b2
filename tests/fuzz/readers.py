"""The readers, each with how a damaged file of its kind is made."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
from PIL import Image
from plyfile import PlyData
from safetensors.numpy import save

from splat_py.capture.phases import recorded, recorded_report
from splat_py.capture.photographs import Photograph, Source, store_photograph
from splat_py.capture.report import Unregistered
from splat_py.capture.workspace import Workspace
from splat_py.gsplat.compression import PngCompression
from splat_py.image.checkpoint import FitCheckpoint
from splat_py.image.pictures import read_picture
from splat_py.image.result import ImageFit
from splat_py.scene import Gaussians, load_dataset
from splat_py.scene.cells import CELL_FILE, Cell, read_cell
from splat_py.scene.colmap import read_observations
from splat_py.scene.formats import compressed_ply, dot_splat, glb, ksplat, sog, spz
from splat_py.scene.keyframes import KeyframePath
from splat_py.scene.partition import Grid
from splat_py.scene.ply import read_points
from splat_py.splats.checkpoint import Checkpoint
from splat_py.splats.config import TrainConfig
from splat_py.splats.run_folder import RunFolder
from splat_py.volume.checkpoint import VolumeCheckpoint
from splat_py.volume.field import RadianceField
from tests.formats.scenes import random_gaussians
from tests.fuzz.files import KINDS, OWN, arrays_of, header_of
from tests.fuzz.mutations import damaged_arrays, damaged_bytes, damaged_json, damaged_text, damaged_value
from tests.gsplat.test_compression import splats
from tests.scene.captures import picture, ring, write_colmap, write_transforms

_OWN_LINES = str(OWN["splat_source"]).split("\n")
POINTS = np.arange(12.0).reshape(4, 3)


@dataclass(frozen=True)
class Reader:
    """`write` leaves a damaged file or folder below a folder that may have been used before; `read` reads it."""

    cases: int
    write: Callable[[Path, Random], None]
    read: Callable[[Path], Any]


# PLY


def _ply_bytes(text: bool, cloud: bool, own: bool = False) -> bytes:
    names = ["x", "y", "z", "red", "green", "blue"] if cloud else _gaussian_names() + ["splat_a", "splat_b", "color_0"] * own
    kinds = ["float"] * 3 + ["uchar"] * 3 if cloud else ["float"] * len(names)
    rows = np.random.default_rng(0).uniform(1, 2, (5, len(names)))
    head = ["ply", f"format {'ascii' if text else 'binary_little_endian'} 1.0"]
    if own:
        head += ["comment splat_py splat Wide a b", "comment splat_py color ColorNetwork"]
        head += [f"comment splat_py splat_source {json.dumps(line)}" for line in _OWN_LINES]
    head.append("element vertex 5")
    head += [f"property {kind} {name}" for kind, name in zip(kinds, names, strict=True)]
    dtype = np.dtype([(name, "<f4" if kind == "float" else "u1") for kind, name in zip(kinds, names, strict=True)])
    table = np.array([tuple(row) for row in rows], dtype)
    body = "\n".join(" ".join(f"{x:g}" for x in row) for row in table.tolist()).encode() + b"\n" if text else table.tobytes()
    return "\n".join([*head, "end_header", ""]).encode() + body


def _gaussian_names() -> list[str]:
    parts = (("f_dc", 3), ("f_rest", 9), ("scale", 3), ("rot", 4))
    return ["x", "y", "z", "opacity", *(f"{name}_{i}" for name, count in parts for i in range(count))]


def _write_ply(cloud: bool) -> Callable[[Path, Random], None]:
    samples = [_ply_bytes(text, cloud, own) for text in (False, True) for own in ((False,) if cloud else (False, True))]

    def write(folder: Path, random: Random) -> None:
        data = random.choice(samples)
        end = data.index(b"end_header")
        kind = random.randrange(3)
        if kind == 0:
            data = damaged_bytes(data, random)
        elif kind == 1:
            data = damaged_text(data[:end], random) + data[end:]
        else:
            data = data[:end] + damaged_bytes(data[end:], random)
        (folder / "file.ply").write_bytes(data)

    return write


# Captures


@cache
def _capture(kind: str) -> dict[str, bytes]:
    """The files of a whole capture, by their paths."""
    with TemporaryDirectory() as name:
        root = Path(name)
        cameras = ring(2, width=12, height=8)
        if kind == "transforms":
            write_transforms(root, cameras, k1=0.01, camera_model="OPENCV", ply_file_path="points.ply")
            (root / "points.ply").write_bytes(_ply_bytes(text=False, cloud=True))
        else:
            write_colmap(root, cameras, text=kind == "text", points=POINTS)
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _write_capture(kind: str, damage: Callable[[bytes, Random], bytes]) -> Callable[[Path, Random], None]:
    def write(folder: Path, random: Random) -> None:
        files = dict(_capture(kind))
        described = [name for name in files if not name.startswith("images/")]
        name = random.choice(described if random.random() < 0.9 else list(files))
        files[name] = damage(files[name], random) if name in described else damaged_bytes(files[name], random)
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            if not (folder / path).is_file() or (folder / path).read_bytes() != data:
                (folder / path).write_bytes(data)

    return write


def _damaged_description(data: bytes, random: Random) -> bytes:
    return damaged_bytes(data, random) if data.startswith(b"ply") else damaged_json(json.loads(data), random)


def _read_capture(folder: Path) -> None:
    dataset = load_dataset(folder)
    assert np.isfinite(dataset.scene_scale) and dataset.scene_scale > 0 and np.isfinite(dataset.bounds).all()
    for i, view in enumerate(dataset.views):
        assert dataset.image(i).shape == (view.camera.height, view.camera.width, 4)
    if dataset.model is not None:
        for points in read_observations(dataset.model).values():
            assert points.shape[1:] == (3,)


# Tensors


def _write_tensors(kind: str) -> Callable[[Path, Random], None]:
    header, arrays = header_of(kind), arrays_of(kind)

    def write(folder: Path, random: Random) -> None:
        way = random.randrange(5)
        text = damaged_json(header, random).decode(errors="replace") if way < 2 else json.dumps(header)
        damaged = damaged_arrays(arrays, random) if way == 2 else arrays
        data = save(damaged, {KINDS[kind]: text})
        if way == 3:
            size = int.from_bytes(data[:8], "little")
            inner = json.dumps(damaged_value(json.loads(data[8 : 8 + size]), random)).encode()
            data = len(inner).to_bytes(8, "little") + inner + data[8 + size :]
        elif way == 4:
            data = damaged_bytes(data, random)
        (folder / "file.safetensors").write_bytes(data)

    return write


def _field_arrays() -> dict[str, np.ndarray]:
    return {
        "density": np.ones((3, 4, 2), np.float32),
        "sh": np.ones((3, 4, 2, 4, 3), np.float32),
        "box": np.array([[0.0, 0, 0], [1, 1, 1]]),
        "background": np.ones(3, np.float32),
    }


def _write_field(folder: Path, random: Random) -> None:
    """As .npz: arrays, the heads of arrays, or the archive are damaged."""
    way = random.randrange(3)
    stream = io.BytesIO()
    store = random.choice((np.savez, np.savez_compressed))
    store(stream, **(damaged_arrays(_field_arrays(), random) if way == 0 else _field_arrays()))  # type: ignore[arg-type]
    data = stream.getvalue()
    if way == 1:
        data = damaged_text(data, random)
    elif way == 2:
        data = damaged_bytes(data, random)
    (folder / "file.npz").write_bytes(data)


def _write_field_tensors(folder: Path, random: Random) -> None:
    data = save(damaged_arrays(_field_arrays(), random) if random.random() < 0.5 else _field_arrays())
    (folder / "file.safetensors").write_bytes(damaged_bytes(data, random) if random.random() < 0.6 else data)


# The rest

_RUN = {
    "data": {
        "data": "/captures/fox",
        "downscale": 2.0,
        "format": "auto",
        "test_every": 8,
        "undistort": True,
        "max_memory": "8GB",
    },
    "config": asdict(TrainConfig(**OWN)),  # type: ignore[arg-type]
    "dataset": "0" * 64,
}


@cache
def _cell() -> dict[str, Any]:
    grid = Grid(((0.6, 0.8, 0.0), (-0.8, 0.6, 0.0)), (-1.5, 2.0), ((0.0,), (0.25,), (-3.0,)))
    return asdict(Cell(1, "0" * 64, (2, 1), **vars(grid)))


def _write_cell(folder: Path, random: Random) -> None:
    data = json.dumps(_cell()).encode()
    damaged = damaged_json(_cell(), random) if random.random() < 0.7 else damaged_bytes(data, random)
    (folder / CELL_FILE).write_bytes(damaged)


def _read_cell(folder: Path) -> None:
    cell = read_cell(folder)
    inside = [cell.grid.inside(place, POINTS) for place in cell.grid.places]
    assert cell.place in cell.grid.places and (np.sum(inside, 0) == 1).all()


def _write_run(folder: Path, random: Random) -> None:
    (folder / "run.json").write_bytes(damaged_json(_RUN, random))


@cache
def _pictures() -> list[bytes]:
    kinds = [(suffix, 3) for suffix in (".png", ".jpg", ".bmp", ".tif", ".webp")] + [(".png", 4), (".png", 1)]
    return [cv2.imencode(suffix, picture(3, 20, 14, channels))[1].tobytes() for suffix, channels in kinds]


def _write_picture(folder: Path, random: Random) -> None:
    data = random.choice(_pictures())
    # Sizes and types are at the beginning.
    head = random.choice((40, 200, len(data)))
    (folder / "file.png").write_bytes(damaged_bytes(data[:head], random) + data[head:])


@cache
def _compressed() -> dict[str, bytes]:
    """The files of a compressed scene, by their names."""
    with TemporaryDirectory() as name:
        root = Path(name)
        PngCompression(use_sort=False, verbose=False).compress(root, splats(9, coefficients=3))
        return {path.name: path.read_bytes() for path in root.iterdir()}


def _write_compressed(folder: Path, random: Random) -> None:
    files = dict(_compressed())
    name = random.choice(("meta.json", random.choice(list(files))))
    whole = files[name]
    files[name] = damaged_json(json.loads(whole), random) if name == "meta.json" else damaged_bytes(whole, random)
    for other, data in files.items():
        (folder / other).write_bytes(data)


def _read_compressed(folder: Path) -> None:
    for name, tensor in PngCompression().decompress(folder).items():
        # Features are stored as they are, whatever they hold.
        assert tensor.shape[0] in (0, 9) and (name == "features" or tensor.isfinite().all())


_PATH = {
    "version": 1,
    "size": [64, 48],
    "keyframes": [
        {"time": time, "position": [time, 0.5, -1.0], "quaternion": [1.0, 0.1 * time, 0.0, 0.0], "fov": 50.0 + time}
        for time in (0.0, 1.5, 2.0)
    ],
}


def _write_path(folder: Path, random: Random) -> None:
    (folder / "path.json").write_bytes(damaged_json(_PATH, random))


def _read_path(folder: Path) -> None:
    path = KeyframePath.load(folder / "path.json")
    assert len(path.cameras(5)) == 5 and path.frames > 0


def _read_picture(folder: Path) -> None:
    image = read_picture(folder / "file.png")
    assert image.dtype == np.float32 and image.shape[2] == 3 and np.isfinite(image).all()


def _loads(load: Callable[[Path], Any], name: str = "file.safetensors") -> Callable[[Path], Any]:
    return lambda folder: load(folder / name)


# What capturing reads


@cache
def _photograph() -> bytes:
    """A JPEG with EXIF."""
    exif = Image.Exif()
    exif[0x0112] = 6
    exif.get_ifd(0x8769).update({0x920A: 4.5, 0xA405: 28, 0xA20E: 3000.0, 0xA210: 3})
    stream = io.BytesIO()
    Image.fromarray(picture(3, 20, 14)).save(stream, "JPEG", exif=exif)
    return stream.getvalue()


def _write_photograph(folder: Path, random: Random) -> None:
    data = _photograph()
    end = 200
    damaged = damaged_bytes(data[:end], random) + data[end:] if random.random() < 0.8 else damaged_bytes(data, random)
    (folder / "file.jpg").write_bytes(damaged)


def _read_photograph(folder: Path) -> None:
    stored = store_photograph(Source(folder / "file.jpg", "file.jpg"), "a.jpg", folder / "images", folder / "masks")
    assert stored.focal is None or np.isfinite(stored.focal)
    assert np.isfinite(stored.sharpness) and np.isfinite(stored.contrast)


def _write_capture_record(folder: Path, random: Random) -> None:
    photographs = [{"name": "a.jpg", "source": "a.jpg", "width": 3, "height": 2, "focal": None, "camera": "3x2"}]
    content = {
        "version": 1,
        "source": str(folder.resolve()),
        "phases": {name: {"key": "5f", "done": True, "seconds": 1.5} for name in ("photographs", "features")},
        "photographs": [photographs[0] | {"sharpness": 1.0, "contrast": 0.5}],
        "unreadable": [{"name": "b.jpg", "reason": "damaged", "advice": "remove it"}],
        "left_out": [],
        "found": {"registered": ["a.jpg"], "points": 3, "error": 0.5},
    }
    (folder / "capture.json").write_bytes(damaged_json(content, random))


def _read_capture_record(folder: Path) -> None:
    workspace = Workspace(folder, folder)
    recorded(workspace, "photographs", Photograph)
    recorded(workspace, "unreadable", Unregistered)
    recorded_report(workspace)
    workspace.seconds()
# Formats of other viewers


@cache
def _scene_files(ending: str) -> list[bytes]:
    """Whole files of a format, of several degrees and versions."""
    scenes = [random_gaussians(6, degree) for degree in (0, 2)]
    if ending == ".spz":
        # Not compressed as well, so that damage does not only break the compression.
        packed = [spz.encode(scene, version) for scene in scenes for version in spz.VERSIONS]
        return packed + [gzip.decompress(data) for data in packed if data.startswith(b"\x1f\x8b")]
    if ending == ".compressed.ply":
        return [_written(compressed_ply.encode(scene)) for scene in scenes]
    encode = {".sog": sog.encode, ".splat": dot_splat.encode, ".ksplat": ksplat.encode, ".glb": glb.encode}[ending]
    return [encode(scene) for scene in scenes]


def _written(ply: PlyData) -> bytes:
    file = io.BytesIO()
    ply.write(file)
    return file.getvalue()


def _write_scene(ending: str) -> Callable[[Path, Random], None]:
    def write(folder: Path, random: Random) -> None:
        data = random.choice(_scene_files(ending))
        if ending == ".sog":
            data = _damaged_zip(data, random)
        elif ending == ".glb" and random.random() < 0.6:
            data = _damaged_glb(data, random)
        elif ending == ".compressed.ply" and random.random() < 0.5:
            end = data.index(b"end_header")
            data = damaged_text(data[:end], random) + data[end:]
        else:
            # Headers are where most goes wrong.
            head = random.choice((32, 48, 4200, 5200, len(data)))
            data = damaged_bytes(data[:head], random) + data[head:]
        (folder / f"file{ending}").write_bytes(data)

    return write


def _damaged_zip(data: bytes, random: Random) -> bytes:
    """The zip itself, its description or one of its pictures."""
    if random.random() < 0.2:
        return damaged_bytes(data, random)
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as whole, zipfile.ZipFile(packed, "w") as bundle:
        files = {name: whole.read(name) for name in whole.namelist()}
        name = random.choice(["meta.json"] * 5 + list(files))
        text = damaged_json(json.loads(files["meta.json"]), random)
        files[name] = text if name == "meta.json" else damaged_bytes(files[name], random)
        for name, content in files.items():
            bundle.writestr(name, content)
    return packed.getvalue()


def _damaged_glb(data: bytes, random: Random) -> bytes:
    """Its description."""
    (length,) = struct.unpack_from("<I", data, 12)
    text, rest = damaged_json(json.loads(data[20 : 20 + length]), random), data[20 + length :]
    return data[:8] + struct.pack("<III", 20 + len(text) + len(rest), len(text), 0x4E4F534A) + text + rest


def _load_scene(ending: str) -> Callable[[Path], None]:
    def load(folder: Path) -> None:
        Gaussians.load(folder / f"file{ending}").validate()

    return load


READERS: dict[str, Reader] = {
    "photograph with EXIF": Reader(400, _write_photograph, _read_photograph),
    "capture.json": Reader(400, _write_capture_record, _read_capture_record),
    "Gaussians": Reader(1800, _write_ply(cloud=False), _loads(Gaussians.load_ply, "file.ply")),
    **{
        ending: Reader(cases, _write_scene(ending), _load_scene(ending))
        for ending, cases in (
            (".spz", 500),
            (".sog", 300),
            (".compressed.ply", 300),
            (".splat", 200),
            (".ksplat", 500),
            (".glb", 500),
        )
    },
    "points": Reader(600, _write_ply(cloud=True), _loads(read_points, "file.ply")),
    "transforms": Reader(1500, _write_capture("transforms", _damaged_description), _read_capture),
    "COLMAP binary": Reader(1500, _write_capture("binary", damaged_bytes), _read_capture),
    "COLMAP text": Reader(900, _write_capture("text", damaged_text), _read_capture),
    "checkpoint": Reader(1000, _write_tensors("splats"), _loads(Checkpoint.load)),
    "checkpoint of one's own splats": Reader(1000, _write_tensors("own splats"), _loads(Checkpoint.load)),
    "checkpoint of blobs": Reader(600, _write_tensors("blobs"), _loads(FitCheckpoint.load)),
    "checkpoint of a volume": Reader(600, _write_tensors("volume"), _loads(VolumeCheckpoint.load)),
    "checkpoint of a hash grid": Reader(400, _write_tensors("hash grid"), _loads(VolumeCheckpoint.load)),
    "blobs": Reader(500, _write_tensors("result"), _loads(ImageFit.load)),
    "field npz": Reader(600, _write_field, _loads(RadianceField.load, "file.npz")),
    "field safetensors": Reader(400, _write_field_tensors, _loads(RadianceField.load)),
    "run.json": Reader(800, _write_run, lambda folder: RunFolder(folder).record()),
    "cell.json": Reader(500, _write_cell, _read_cell),
    "pictures": Reader(1000, _write_picture, _read_picture),
    "camera path": Reader(800, _write_path, _read_path),
    "compressed scene": Reader(250, _write_compressed, _read_compressed),
}
