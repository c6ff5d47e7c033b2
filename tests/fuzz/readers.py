"""The readers, each with a function that writes a damaged file of its kind."""

import gzip
import io
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
from PIL import Image
from safetensors.numpy import save

from splat_py import Gaussians, load_dataset
from splat_py.base.errors import SplatError
from splat_py.capture.photographs import Original, Photograph, store_photograph
from splat_py.capture.workspace import Unregistered, Workspace
from splat_py.commands.experiment import Experiment
from splat_py.fit.run_folder import recorded_metrics
from splat_py.gsplat.compression import PngCompression
from splat_py.image.pictures import FitCheckpoint, ImageFit, read_picture
from splat_py.scene.camera_paths import KeyframePath
from splat_py.scene.colmap import read_observations
from splat_py.scene.dataset import KnownDepths
from splat_py.scene.formats import splat
from splat_py.scene.formats.ply import read_points
from splat_py.scene.gaussians import FORMATS
from splat_py.scene.partition import CELL_FILE, Cell, Grid, read_cell
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.run import RunFolder
from splat_py.volume.fitting import VolumeCheckpoint
from splat_py.volume.grid import RadianceField
from tests.formats.scenes import glb_of, glb_parts, random_gaussians, zip_of, zip_parts
from tests.fuzz.files import KINDS, OWN, arrays_of, header_of
from tests.fuzz.mutations import damaged_arrays, damaged_bytes, damaged_json, damaged_text, damaged_value
from tests.gsplat.test_compression import splats
from tests.scene.captures import picture, ring, write_colmap, write_transforms

_OWN_LINES = str(OWN["splat_source"]).split("\n")
POINTS = np.arange(12.0).reshape(4, 3)


Make = Callable[[Random], bytes]


@dataclass(frozen=True)
class Reader:
    """`write` puts a damaged file or folder into a folder that may have been used before; `read` reads it."""

    cases: int
    write: Callable[[Path, Random], None]
    read: Callable[[Path], Any]


def reader(cases: int, name: str, make: Make, read: Callable[[Path], Any]) -> Reader:
    return Reader(cases, lambda folder, random: (folder / name).write_bytes(make(random)), lambda folder: read(folder / name))


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


def _ply(cloud: bool) -> Make:
    samples = [_ply_bytes(text, cloud, own) for text in (False, True) for own in ((False,) if cloud else (False, True))]

    def make(random: Random) -> bytes:
        data = random.choice(samples)
        end = data.index(b"end_header")
        kind = random.randrange(3)
        if kind == 0:
            return damaged_bytes(data, random)
        return damaged_text(data[:end], random) + data[end:] if kind == 1 else data[:end] + damaged_bytes(data[end:], random)

    return make


# The masks and depths of a described capture by frame, and coefficients of the lenses of models.
MAPS = {
    0: {"mask": ".png", "depth_file": ".png"},
    1: {"mask": ".pfm", "depth_file": ".npy"},
    2: {"mask": ".jpg", "depth_file": ".pfm"},
}
LENSES = {
    "PINHOLE": (),
    "OPENCV_FISHEYE": (0.01, -0.002, 1e-3, -1e-4),
    "FULL_OPENCV": (0.01, -0.002, 1e-3, 1e-3, 1e-3, 0.02, 1e-3, 1e-4),
}


def _write_map(path: Path) -> None:
    """A mask or a depth map, by the name of its folder, as its ending says."""
    path.parent.mkdir(exist_ok=True)
    values = np.full((8, 12), 255.0 if path.parent.name == "mask" else 2000.0)
    values[0, 0] = 0
    if path.suffix == ".npy":
        np.save(path, values)
    elif path.suffix == ".pfm":
        # The mask has three colours.
        assert cv2.imwrite(str(path), np.dstack([values] * (3 if path.parent.name == "mask" else 1)).astype(np.float32))
    else:
        assert cv2.imwrite(str(path), values.astype(np.uint8 if path.parent.name == "mask" else np.uint16))


@cache
def _capture(kind: str, model: str = "PINHOLE") -> dict[str, bytes]:
    with TemporaryDirectory() as name:
        root = Path(name)
        cameras = ring(3 if kind == "transforms" else 2, width=12, height=8)
        if kind == "transforms":
            entries = {i: {f"{what}_path": f"{what}/{i}{ending}" for what, ending in each.items()} for i, each in MAPS.items()}
            write_transforms(root, cameras, entries, k1=0.01, camera_model="OPENCV", ply_file_path="points.ply")
            (root / "points.ply").write_bytes(_ply_bytes(text=False, cloud=True))
            for i, each in MAPS.items():
                for what, ending in each.items():
                    _write_map(root / what / f"{i}{ending}")
        else:
            lens = [9.0, 9.0, 6.0, 4.0]
            write_colmap(root, cameras, model, [*lens, *LENSES[model]], text=kind == "text", points=POINTS)
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _write_capture(
    kind: str, damage: Callable[[bytes, Random], bytes], models: Sequence[str] = ("PINHOLE",)
) -> Callable[[Path, Random], None]:
    def write(folder: Path, random: Random) -> None:
        files = dict(_capture(kind, random.choice(models)))
        described = [name for name in files if not name.startswith(("images/", "mask/", "depth_file/"))]
        name = random.choice(described if random.random() < (0.7 if kind == "transforms" else 0.9) else list(files))
        files[name] = damage(files[name], random) if name in described else _damaged_head(files[name], random, 40, 200)
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
    if any(view.depth_path is not None for view in dataset.views):
        known = KnownDepths(dataset)
        for i, view in enumerate(dataset.views):
            depths = known[i]
            assert depths.shape == (view.camera.height, view.camera.width)
            assert np.isfinite(depths).all() and (depths >= 0).all()


def _tensors(kind: str) -> Make:
    header, arrays = header_of(kind), arrays_of(kind)

    def make(random: Random) -> bytes:
        way = random.randrange(5)
        text = damaged_json(header, random).decode(errors="replace") if way < 2 else json.dumps(header)
        data = save(damaged_arrays(arrays, random) if way == 2 else arrays, {KINDS[kind]: text})
        if way == 3:
            size = int.from_bytes(data[:8], "little")
            inner = json.dumps(damaged_value(json.loads(data[8 : 8 + size]), random)).encode()
            data = len(inner).to_bytes(8, "little") + inner + data[8 + size :]
        return damaged_bytes(data, random) if way == 4 else data

    return make


def _field_arrays() -> dict[str, np.ndarray]:
    return {
        "density": np.ones((3, 4, 2), np.float32),
        "sh": np.ones((3, 4, 2, 4, 3), np.float32),
        "box": np.array([[0.0, 0, 0], [1, 1, 1]]),
        "background": np.ones(3, np.float32),
    }


def _field_npz(random: Random) -> bytes:
    """Damage the arrays, their headers, or the archive."""
    way = random.randrange(3)
    stream = io.BytesIO()
    store = random.choice((np.savez, np.savez_compressed))
    store(stream, **(damaged_arrays(_field_arrays(), random) if way == 0 else _field_arrays()))
    data = stream.getvalue()
    return data if way == 0 else (damaged_text, damaged_bytes)[way - 1](data, random)


def _field_tensors(random: Random) -> bytes:
    data = save(damaged_arrays(_field_arrays(), random) if random.random() < 0.5 else _field_arrays())
    return damaged_bytes(data, random) if random.random() < 0.6 else data


_RUN = {
    "data": {
        "data": "/captures/fox",
        "downscale": 2.0,
        "format": "auto",
        "test_every": 8,
        "undistort": True,
        "cut_out": "/captures/masks",
        "max_memory": "8GB",
    },
    "config": asdict(TrainConfig(**OWN)),  # type: ignore[arg-type]
    "dataset": "0" * 64,
}


_METRICS = {
    "steps": 4,
    "curve": [{"step": step, "seconds": 0.5, "psnr": 20.0} for step in (1, 3)],
    "held_out": {"psnr": 20.0, "views": [{"name": "a.jpg", "psnr": 20.5, "ssim": 0.5}]},
}


def _read_metrics(path: Path) -> None:
    """Damage is only a warning, and then the metrics begin anew."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        content = recorded_metrics(path)
    if told:
        assert not content
        raise SplatError(str(told[0].message))
    assert content and all(point["step"] + point["seconds"] is not None for point in content["curve"])
    assert all(isinstance(view["name"], str) for view in content.get("held_out", {"views": []})["views"])


@cache
def _cell() -> dict[str, Any]:
    grid = Grid(((0.6, 0.8, 0.0), (-0.8, 0.6, 0.0)), (-1.5, 2.0), ((0.0,), (0.25,), (-3.0,)))
    return asdict(Cell(**vars(grid), version=1, dataset="0" * 64, place=(2, 1)))


def _damaged_cell(random: Random) -> bytes:
    return damaged_json(_cell(), random) if random.random() < 0.7 else damaged_bytes(json.dumps(_cell()).encode(), random)


def _read_cell(path: Path) -> None:
    cell = read_cell(path.parent)
    inside = [cell.grid.inside(place, POINTS) for place in cell.grid.places]
    assert cell.place in cell.grid.places and (np.sum(inside, 0) == 1).all()


@cache
def _pictures() -> list[bytes]:
    kinds = [(suffix, 3) for suffix in (".png", ".jpg", ".bmp", ".tif", ".webp")] + [(".png", 4), (".png", 1)]
    return [cv2.imencode(suffix, picture(3, 20, 14, channels))[1].tobytes() for suffix, channels in kinds]


def _damaged_head(data: bytes, random: Random, *ends: int) -> bytes:
    """Damage what comes before one of these ends, such as a picture's size and type, or anything."""
    end = random.choice((*ends, len(data)))
    return damaged_bytes(data[:end], random) + data[end:]


@cache
def _compressed() -> dict[str, bytes]:
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
        # Features may hold any numbers.
        assert tensor.shape[0] in (0, 9) and (name == "features" or tensor.isfinite().all())


_PATH = {
    "version": 1,
    "size": [64, 48],
    "keyframes": [
        {"time": time, "position": [time, 0.5, -1.0], "quaternion": [1.0, 0.1 * time, 0.0, 0.0], "fov": 50.0 + time}
        for time in (0.0, 1.5, 2.0)
    ],
}


def _read_path(file: Path) -> None:
    path = KeyframePath.load(file)
    assert len(path.cameras(5)) == 5 and path.frames > 0


def _read_picture(path: Path) -> None:
    image = read_picture(path)
    assert image.dtype == np.float32 and image.shape[2] == 3 and np.isfinite(image).all()


@cache
def _photograph() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif.get_ifd(0x8769).update({0x920A: 4.5, 0xA405: 28, 0xA20E: 3000.0, 0xA210: 3})
    stream = io.BytesIO()
    Image.fromarray(picture(3, 20, 14)).save(stream, "JPEG", exif=exif)
    return stream.getvalue()


@cache
def _heic() -> bytes:
    import pillow_heif

    stream = io.BytesIO()
    image = Image.fromarray(cv2.resize(picture(2, 6, 4), (96, 64), interpolation=cv2.INTER_CUBIC))
    pillow_heif.from_pillow(image).save(stream, quality=50)
    return stream.getvalue()


def _read_photograph(path: Path) -> None:
    stored = store_photograph(Original(path, "file.jpg"), "a.jpg", path.with_name("images"), path.with_name("masks"))
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
    workspace.records("photographs", Photograph)
    workspace.records("unreadable", Unregistered)
    workspace.report()


@cache
def _scene_files(ending: str) -> list[bytes]:
    """Whole files of a format, in several degrees and versions."""
    scenes = [random_gaussians(6, degree) for degree in (0, 2)]
    if ending == ".spz":
        # Uncompressed ones as well, as damage would otherwise only break the compression.
        packed = [splat.encode_spz(scene, version) for scene in scenes for version in splat.SPZ_VERSIONS]
        return packed + [gzip.decompress(data) for data in packed if data.startswith(b"\x1f\x8b")]
    return [FORMATS[ending].encode(scene) for scene in scenes]


def _scene(ending: str) -> Make:
    def make(random: Random) -> bytes:
        data = random.choice(_scene_files(ending))
        if ending == ".sog":
            return _damaged_zip(data, random)
        if ending == ".glb" and random.random() < 0.6:
            text, rest = glb_parts(data)
            return glb_of(damaged_json(json.loads(text), random), rest)
        if ending == ".compressed.ply" and random.random() < 0.5:
            end = data.index(b"end_header")
            return damaged_text(data[:end], random) + data[end:]
        # Headers go wrong most often.
        return _damaged_head(data, random, 32, 48, 4200, 5200)

    return make


def _damaged_zip(data: bytes, random: Random) -> bytes:
    if random.random() < 0.2:
        return damaged_bytes(data, random)
    files = zip_parts(data)
    name = random.choice(["meta.json"] * 5 + list(files))
    text = damaged_json(json.loads(files["meta.json"]), random)
    return zip_of(files | {name: text if name == "meta.json" else damaged_bytes(files[name], random)})


_EXPERIMENT = b"""seeds = [0, 1, 2]
common = {steps = 2000, downscale = 8.0, test_split = "first"}
[kinds.usual]
[kinds.mcmc]
strategy = "mcmc"
splat = "BetaKernel"
splat_params = ["b=1"]
antialiased = true
"""
TENSORS = "file.safetensors"
SCENES = {".spz": 500, ".sog": 300, ".compressed.ply": 300, ".splat": 200, ".ksplat": 500, ".glb": 500}
READERS: dict[str, Reader] = {
    "photograph with EXIF": reader(400, "file.jpg", lambda r: _damaged_head(_photograph(), r, *[200] * 4), _read_photograph),
    "HEIC": reader(400, "file.heic", lambda r: _damaged_head(_heic(), r, 60, 600), _read_photograph),
    "capture.json": Reader(400, _write_capture_record, _read_capture_record),
    "Gaussians": reader(1800, "file.ply", _ply(cloud=False), Gaussians.load_ply),
    **{
        ending: reader(cases, f"file{ending}", _scene(ending), lambda path: Gaussians.load(path).validate())
        for ending, cases in SCENES.items()
    },
    "points": reader(600, "file.ply", _ply(cloud=True), read_points),
    "transforms": Reader(600, _write_capture("transforms", _damaged_description), _read_capture),
    "COLMAP binary": Reader(600, _write_capture("binary", damaged_bytes, tuple(LENSES)), _read_capture),
    "COLMAP text": Reader(400, _write_capture("text", damaged_text, tuple(LENSES)), _read_capture),
    "checkpoint": reader(1000, TENSORS, _tensors("splats"), Checkpoint.load),
    "checkpoint of one's own splats": reader(1000, TENSORS, _tensors("own splats"), Checkpoint.load),
    "checkpoint of blobs": reader(600, TENSORS, _tensors("blobs"), FitCheckpoint.load),
    "checkpoint of a volume": reader(600, TENSORS, _tensors("volume"), VolumeCheckpoint.load),
    "checkpoint of a hash grid": reader(400, TENSORS, _tensors("hash grid"), VolumeCheckpoint.load),
    "blobs": reader(500, TENSORS, _tensors("result"), ImageFit.load),
    "field npz": reader(600, "file.npz", _field_npz, RadianceField.load),
    "field safetensors": reader(400, TENSORS, _field_tensors, RadianceField.load),
    "run.json": reader(800, "run.json", partial(damaged_json, _RUN), lambda path: RunFolder(path.parent).record()),
    "metrics.json": reader(500, "metrics.json", partial(damaged_json, _METRICS), _read_metrics),
    "cell.json": reader(500, CELL_FILE, _damaged_cell, _read_cell),
    "pictures": reader(1000, "file.png", lambda r: _damaged_head(r.choice(_pictures()), r, 40, 200), _read_picture),
    "experiment": reader(600, "file.toml", partial(damaged_text, _EXPERIMENT), Experiment.read),
    "camera path": reader(800, "path.json", partial(damaged_json, _PATH), _read_path),
    "compressed scene": Reader(250, _write_compressed, _read_compressed),
}
