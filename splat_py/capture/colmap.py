"""Features, matches, cameras and points from pycolmap, and its database (https://colmap.github.io/database.html)."""

import importlib
import os
import shutil
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import combinations, groupby
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from splat_py.base.errors import SplatError
from splat_py.base.fields import shown_bytes
from splat_py.base.files import temporary_folder
from splat_py.capture.photographs import INSTALL, OnProgress, Photograph
from splat_py.capture.workspace import Workspace
from splat_py.scene.camera import Camera, mean_up
from splat_py.scene.data_options import CaptureOptions

_T = TypeVar("_T")

# A pair's id is the id of its first photograph times this, plus the id of its second one.
_PAIR = 2147483647
_DESCRIPTOR = 128
# A descriptor, and place and shape in six floats.
_FEATURE_BYTES = _DESCRIPTOR + 24
# One focal length and one coefficient: mapping begins with two photographs, which do not determine more (see `_refine`).
_CAMERA_MODEL = "SIMPLE_RADIAL"
# Up to so many photographs all pairs are compared, unless the photographs are ordered.
_EXHAUSTIVE = 200
# Photographs are compared with so many that follow in order, and with those that follow after 2, 4, 8 … up to 2**_POWERS.
_NEIGHBOURS, _POWERS = 8, 7
# Number of similar photographs to compare a photograph with, if photographs are ordered and if they are not.
_ALIKE_ORDERED, _ALIKE = 5, 30
# Photographs in a block of pairs, whose features stay in memory, and pairs that are matched in one call.
_BLOCK, _BATCH = 16, 128
# Numbers of visual words, of descriptors that a photograph contributes, and of all descriptors that words are made from.
_WORDS, _EACH, _SAMPLE = 64, 1000, 40_000
# A camera with so many photographs has enough data for all coefficients of OpenCV's model.
_FULL_LENS = 20
# Prefix of folders with incomplete models.
_PARTIAL = ".mapping-"
_ADVICE = (
    "photographs must overlap: walk around the subject, take one every ten degrees or so, keep most of what the last one "
    "showed in the picture, and choose a subject with texture"
)


def require_pycolmap() -> Any:
    try:
        pycolmap = importlib.import_module("pycolmap")
    except ImportError as error:
        raise SplatError(
            f"finding poses needs pycolmap, which is not installed: {INSTALL} (if there is no wheel, as for Linux on ARM, run "
            "COLMAP on another machine; splat_py reads its models without pycolmap)"
        ) from error
    if threading.current_thread() is threading.main_thread():
        # pycolmap has installed its own handler, which prints a stack trace; restore Python's.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)
    # COLMAP's messages would break up the lines of the progress.
    pycolmap.logging.minloglevel = int(pycolmap.logging.Level.FATAL)
    return pycolmap


def features_of(database: Path) -> dict[str, int | None]:
    """Return the number of features of each photograph, by name; None for photographs that were not searched yet."""
    return dict(_rows(database, "SELECT name, keypoints.rows FROM images LEFT JOIN keypoints USING (image_id)"))


def matches_of(database: Path) -> dict[tuple[str, str], int]:
    """Return, for each compared pair of photographs, the number of matches that one geometry explains."""
    names = dict(_rows(database, "SELECT image_id, name FROM images"))
    rows = _rows(database, "SELECT pair_id, rows FROM two_view_geometries")
    return {(names[pair // _PAIR], names[pair % _PAIR]): count for pair, count in rows}


def descriptors_of(database: Path, name: str) -> NDArray[np.float32]:
    """Return the SIFT descriptors [F, 128] of a photograph, from 0 to 255."""
    query = "SELECT descriptors.rows, data FROM descriptors JOIN images USING (image_id) WHERE name = ?"
    rows = _rows(database, query, name)
    if not rows or not rows[0][0]:
        return np.zeros((0, _DESCRIPTOR), np.float32)
    return np.frombuffer(rows[0][1], np.uint8).reshape(-1, _DESCRIPTOR).astype(np.float32)


def _rows(database: Path, query: str, *values: object) -> list[tuple]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query, values).fetchall()


def extract_features(
    workspace: Workspace, photographs: Sequence[Photograph], options: CaptureOptions, on_progress: OnProgress
) -> None:
    """Write each photograph's features to the database, resuming if interrupted; equal sizes and EXIF mean one camera."""
    pycolmap = require_pycolmap()
    database = workspace.database
    if not (database.exists() and len(features_of(database)) == len(photographs)):
        # Start anew: either all cameras are there, or none.
        for path in database.parent.glob(f"{database.name}*"):
            path.unlink()
        pycolmap.Database.open(database).close()
        for _, group in groupby(sorted(photographs, key=attrgetter("camera")), key=attrgetter("camera")):
            members, reader = list(group), _reader(pycolmap, workspace.masks)
            first, own = members[0], [photograph.name for photograph in members]
            if first.focal is not None:
                reader.camera_params = f"{first.focal},{first.width / 2},{first.height / 2},0"
            pycolmap.import_images(database, workspace.images, pycolmap.CameraMode.SINGLE, own, reader)
    extraction = pycolmap.FeatureExtractionOptions()
    extraction.max_image_size = options.size
    extraction.sift.max_num_features = options.features
    reader = _reader(pycolmap, workspace.masks)
    missing = [name for name, count in features_of(database).items() if count is None]
    wanted, free = len(missing) * options.features * _FEATURE_BYTES, shutil.disk_usage(database.parent).free
    if wanted > free:
        # COLMAP would end the process.
        says = f"features may take {shown_bytes(wanted)}, and the disk of {database.parent} has {shown_bytes(free)} left"
        raise SplatError(f"{says}; free some space, choose another --out, or allow fewer --features")
    auto, cpu = pycolmap.CameraMode.AUTO, pycolmap.Device.cpu
    for names in _batches(missing, 2 * (os.cpu_count() or 1), len(photographs), on_progress):
        pycolmap.extract_features(database, workspace.images, names, auto, reader, extraction, cpu)


def _reader(pycolmap: Any, masks: Path) -> Any:
    reader = pycolmap.ImageReaderOptions()
    reader.camera_model = _CAMERA_MODEL
    if masks.is_dir():
        reader.mask_path = str(masks)
    return reader


def match_features(workspace: Workspace, photographs: Sequence[Photograph], ordered: bool, on_progress: OnProgress) -> None:
    """Write the matches of photographs to the database, resuming if interrupted."""
    pycolmap = require_pycolmap()
    database = workspace.database
    pairs = pairs_to_match(database, photographs, ordered)
    known = matches_of(database)
    missing = [(a, b) for a, b in pairs if (a, b) not in known and (b, a) not in known]
    pairing = pycolmap.ImportedPairingOptions()
    with temporary_folder() as folder:
        file = folder / "pairs.txt"
        pairing.match_list_path = str(file)
        for batch in _batches(missing, _BATCH, len(pairs), on_progress):
            file.write_text("".join(f"{a} {b}\n" for a, b in batch), encoding="utf-8")
            matching, geometry = pycolmap.FeatureMatchingOptions(), pycolmap.TwoViewGeometryOptions()
            pycolmap.match_image_pairs(database, matching, pairing, geometry, pycolmap.Device.cpu)


def _batches(missing: Sequence[_T], size: int, total: int, on_progress: OnProgress) -> Iterator[Sequence[_T]]:
    """Yield batches of the missing part of a total; report how much is done before the first one and after each."""
    done = total - len(missing)
    on_progress(done, total)
    for start in range(0, len(missing), size):
        yield (batch := missing[start : start + size])
        on_progress(done + start + len(batch), total)


def pairs_to_match(database: Path, photographs: Sequence[Photograph], ordered: bool) -> list[tuple[str, str]]:
    """Return the pairs of names to compare, of photographs with features: all pairs; or neighbours and look-alikes."""
    counts = features_of(database)
    names = [photograph.name for photograph in photographs if counts.get(photograph.name)]
    if not ordered and len(names) <= _EXHAUSTIVE:
        pairs = set(combinations(range(len(names)), 2))
    else:
        steps = {*range(1, _NEIGHBOURS + 1), *(2**power for power in range(_POWERS + 1))}
        pairs = {(i, i + step) for i in range(len(names)) for step in steps if i + step < len(names)}
        pairs |= set(look_alikes(database, names, _ALIKE_ORDERED if ordered else _ALIKE))
    # Block by block, since the features of photographs that were just matched are still in memory.
    in_blocks = sorted(pairs, key=lambda pair: (pair[0] // _BLOCK, pair[1] // _BLOCK, pair))
    return [(names[i], names[j]) for i, j in in_blocks]


def look_alikes(database: Path, names: Sequence[str], count: int) -> list[tuple[int, int]]:
    """Return the pairs (i, j), i < j, of each photograph with the `count` most similar ones; `names` are the database's."""
    from scipy.cluster.vq import kmeans2

    generator = np.random.default_rng(0)
    each = [_some(_unit_rows(descriptors_of(database, name)), _EACH, generator) for name in names]
    sample = _some(np.concatenate(each), _SAMPLE, generator)
    if len(sample) < 2 * _WORDS:
        return []
    words, _ = kmeans2(sample, _WORDS, iter=10, minit="points", rng=generator)
    vectors = np.stack([_vlad(descriptors, words) for descriptors in each])
    alike = vectors @ vectors.T
    np.fill_diagonal(alike, -np.inf)
    nearest = np.argsort(-alike, axis=1)[:, : min(count, len(names) - 1)]
    return sorted({(min(i, int(j)), max(i, int(j))) for i, row in enumerate(nearest) for j in row})


def _unit_rows(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)


def _some(rows: NDArray[np.float32], most: int, generator: np.random.Generator) -> NDArray[np.float32]:
    return rows if len(rows) <= most else rows[generator.choice(len(rows), most, replace=False)]


def _vlad(descriptors: NDArray[np.float32], words: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the VLAD vector: sums of the descriptors' differences from their words, each scaled to length 1, then all."""
    vector = np.zeros_like(words)
    if len(descriptors):
        nearest = np.argmax(descriptors @ words.T - 0.5 * (words**2).sum(1), axis=1)
        np.add.at(vector, nearest, descriptors - words[nearest])
    vector = _unit_rows(vector)
    return (vector / max(float(np.linalg.norm(vector)), 1e-6)).ravel()


def map_photographs(workspace: Workspace, count: int, options: CaptureOptions, on_progress: OnProgress) -> dict[str, int]:
    """Write the model with the most photographs, upright. Returns the number of each photograph's model; 0 is the written one.

    Incremental mapping was twice as fast and had lower errors in pixels on real captures; global mapping registers more
    photographs if they overlap little (benchmarks/README.md)."""
    pycolmap = require_pycolmap()
    ways = {"auto": ("incremental", "global"), "incremental": ("incremental",), "global": ("global",)}[options.mapper]
    models: list[Any] = []
    for left in workspace.root.glob(f"{_PARTIAL}*"):
        shutil.rmtree(left)
    with TemporaryDirectory(dir=workspace.root, prefix=_PARTIAL) as folder:
        for way in ways:
            if models and models[0].num_reg_images() >= count:
                break
            others = _map(pycolmap, way, workspace, Path(folder) / way, count, on_progress)
            # Another way must register more photographs to replace the first.
            if not models or (others and others[0].num_reg_images() > models[0].num_reg_images()):
                models = others
        if not models or models[0].num_reg_images() < 2:
            raise SplatError(f"no two of the {count} photographs in {workspace.source} fit together: {_ADVICE}")
        best = models[0]
        _refine(pycolmap, best)
        # Turn the model by the smallest rotation that makes +z point up, judged by how people held the camera.
        posed = [image.cam_from_world().matrix() for image in best.images.values() if image.has_pose]
        up = mean_up([Camera(np.vstack([matrix, (0, 0, 0, 1)]), np.eye(3), 1, 1) for matrix in posed])
        rotation, _ = Rotation.align_vectors([[0.0, 0.0, 1.0]], [up])
        best.transform(pycolmap.Sim3d(1.0, pycolmap.Rotation3d(rotation.as_matrix()), np.zeros(3)))
        on_progress(count, count)
        written = Path(folder) / "model"
        written.mkdir()
        best.write_binary(str(written))
        workspace.model.parent.mkdir(exist_ok=True)
        shutil.rmtree(workspace.model, ignore_errors=True)
        os.replace(written, workspace.model)
    # The first model with a photograph counts.
    numbered = reversed(list(enumerate(models)))
    return {image.name: part for part, model in numbered for image in model.images.values() if image.has_pose}


def _map(pycolmap: Any, way: str, workspace: Workspace, folder: Path, count: int, on_progress: OnProgress) -> list[Any]:
    """Return the models that one way of mapping finds, the one with the most photographs first."""
    registered = 0

    def proceed(first: int = 0) -> None:
        nonlocal registered
        registered = first or registered + 1
        on_progress(min(registered, count), count)

    folder.mkdir()
    if way == "incremental":
        options = pycolmap.IncrementalPipelineOptions()
        options.min_model_size = 3  # COLMAP's default is ten
        models = pycolmap.incremental_mapping(
            workspace.database,
            workspace.images,
            folder,
            options,
            initial_image_pair_callback=lambda: proceed(first=2),
            next_image_callback=proceed,
        )
    else:
        on_progress(0, count)
        models = pycolmap.global_mapping(workspace.database, workspace.images, folder, pycolmap.GlobalPipelineOptions())
    return sorted(models.values(), key=lambda model: -model.num_reg_images())


def _refine(pycolmap: Any, model: Any) -> None:
    """Adjust the whole model once more, with all coefficients of OpenCV's model for cameras with enough photographs."""
    taken = Counter(image.camera_id for image in model.images.values() if image.has_pose)
    full = [key for key, photographs in taken.items() if photographs >= _FULL_LENS]
    for key in full:
        camera = model.cameras[key]
        f, cx, cy, k = camera.params
        camera.model = pycolmap.CameraModelId.OPENCV
        camera.params = [f, f, cx, cy, k, 0.0, 0.0, 0.0]
    if full:
        # `pycolmap.bundle_adjustment` prints its progress even if it is told to be silent.
        options, config = pycolmap.BundleAdjustmentOptions(), pycolmap.BundleAdjustmentConfig()
        options.print_summary = False
        for key in model.reg_image_ids():
            config.add_image(key)
        config.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
        pycolmap.create_default_bundle_adjuster(options, config, model).solve()
        model.update_point_3d_errors()
