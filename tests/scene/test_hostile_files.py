"""Files that never end, claim more than they hold, or hold absurd numbers: one sentence, at once, and no memory."""

import gzip
import json
import os
import struct
import sys
import tracemalloc
from pathlib import Path

import cv2
import numpy as np
import pytest

from splat_py import Gaussians, load_dataset
from splat_py.scene.dataset import KnownDepths
from splat_py.scene.formats.splat import encode_spz
from splat_py.scene.gaussians import FORMATS
from splat_py.scene.pictures import read_picture
from tests.formats.scenes import glb_of, glb_parts, random_gaussians, zip_of, zip_parts
from tests.refusals import refused
from tests.scene.captures import HEIGHT, WIDTH, ring, write_colmap, write_transforms

needs_pipes = pytest.mark.skipif(sys.platform == "win32", reason="no pipes there that have names in folders")
LENSES = {"OPENCV": 4, "OPENCV_FISHEYE": 4, "FULL_OPENCV": 8}


@needs_pipes
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("key", ["file_path", "mask_path", "depth_file_path", "ply_file_path"])
@pytest.mark.parametrize("ending", ["png", "npy", "pfm", "ply"])
def test_what_is_no_regular_file_is_refused_at_once(kind: str, key: str, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"endless.{ending}"
    {"pipe": os.mkfifo, "device": lambda path: os.symlink("/dev/zero", path), "folder": os.mkdir}[kind](path)
    extra = {"ply_file_path": path.name} if key == "ply_file_path" else {}
    write_transforms(tmp_path, ring(3), {1: {} if extra else {key: path.name}}, **extra)

    def read() -> None:
        with pytest.warns(UserWarning, match="endless"):
            dataset = load_dataset(tmp_path, test_every=0)
        assert key == "file_path" and len(dataset) == 2

    if key == "file_path":
        read()
    elif key == "depth_file_path":
        refused("endless", lambda: KnownDepths(load_dataset(tmp_path, test_every=0))[1])
    else:
        refused("endless", load_dataset, tmp_path)


@pytest.mark.parametrize("name", ["\0", "\ud800.png", "\ud800.npy", "x" * 5000])
@pytest.mark.parametrize("key", ["file_path", "mask_path", "depth_file_path", "ply_file_path"])
def test_names_that_no_file_can_have(name: str, key: str, tmp_path: Path) -> None:
    extra = {"ply_file_path": name} if key == "ply_file_path" else {}
    write_transforms(tmp_path, ring(3), {i: {} if extra else {key: name} for i in range(3)}, **extra)
    refused("file|exist", lambda: KnownDepths(load_dataset(tmp_path, test_every=0))[1])


@pytest.mark.parametrize("suffix", [".pfm", ".png"])
def test_a_mask_may_have_colours(suffix: str, tmp_path: Path) -> None:
    white = np.zeros((HEIGHT, WIDTH, 3), np.float32 if suffix == ".pfm" else np.uint8)
    white[:, 5:] = (0, 255, 255)
    write_transforms(tmp_path, ring(2), {0: {"mask_path": f"mask{suffix}"}})
    assert cv2.imwrite(str(tmp_path / f"mask{suffix}"), white)
    weights = load_dataset(tmp_path, test_every=0).image(0)[..., 3]
    assert not weights[:, :5].any() and (weights[:, 5:] == 255).all()


@pytest.mark.parametrize("number", [1e300, 1e-300, np.nan])
@pytest.mark.parametrize("model", LENSES)
@pytest.mark.parametrize("at", range(8))
def test_lenses_of_absurd_numbers(number: float, model: str, at: int, tmp_path: Path) -> None:
    parameters = [50.0, 50.0, WIDTH / 2, HEIGHT / 2, *[0.0] * LENSES[model]]
    parameters[at] = number
    write_colmap(tmp_path, ring(2), model, parameters, text=True)
    if abs(number) < 1 and at >= 2:
        # Almost zero is zero.
        assert (load_dataset(tmp_path, test_every=0).image(0)[..., 3] == 255).any()
    else:
        refused("00[01].png|cameras.txt|camera 1", load_dataset, tmp_path)


def claiming(ending: str, folder: Path, count: int) -> Path:
    """A small valid file, in which the number of Gaussians is replaced."""
    path, scene = folder / f"scene{ending}", random_gaussians(3, 0)
    data = gzip.decompress(encode_spz(scene, 3)) if ending == ".spz" else FORMATS[ending].encode(scene)
    if ending == ".spz":
        data = gzip.compress(data[:8] + struct.pack("<I", count) + data[12:])
    elif ending == ".sog":
        parts = zip_parts(data)
        data = zip_of(parts | {"meta.json": json.dumps(json.loads(parts["meta.json"]) | {"count": count}).encode()})
    else:
        text, rest = glb_parts(data)
        content = json.loads(text)
        for accessor in content["accessors"]:
            accessor["count"] = count
        data = glb_of(json.dumps(content).encode(), rest)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("count", [5_000_000, 2**31 - 1])
@pytest.mark.parametrize("ending", [".spz", ".sog", ".glb"])
def test_files_that_claim_millions_of_gaussians(ending: str, count: int, tmp_path: Path) -> None:
    path = claiming(ending, tmp_path, count)
    tracemalloc.start()
    try:
        refused(f"scene{ending}", Gaussians.load, path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, the memory in use is counted in other ways")
def test_a_chunk_of_a_png_that_claims_gigabytes(tmp_path: Path) -> None:
    import resource

    data = bytearray(cv2.imencode(".png", np.zeros((14, 20, 3), np.uint8))[1].tobytes())
    at = data.index(b"IDAT") - 4
    (tmp_path / "whole.png").write_bytes(data + b"more")
    assert read_picture(tmp_path / "whole.png", cv2.IMREAD_COLOR).shape == (14, 20, 3)
    data[at : at + 4] = (0x7FFFFFF0).to_bytes(4, "big")
    (tmp_path / "a.png").write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(r"a\.png cannot be decoded", read_picture, tmp_path / "a.png", cv2.IMREAD_COLOR)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 17
