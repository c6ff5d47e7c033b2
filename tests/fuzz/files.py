"""Small valid files of every kind that the library reads, to be damaged."""

import dataclasses
from typing import Any

import numpy as np

from splat_py.train.config import TrainConfig
from splat_py.volume.config import VolumeConfig
from splat_py.volume.hash_grid import OCCUPANCY, HashShape

GAUSSIANS = 3
OWN = {"splat": "Wide", "splat_source": "import splat.prelude;\n\nstruct Wide : IFalloff\n{\n}", "splat_params": ("a=1", "b=2")}
HASH_SHAPE = HashShape((2, 3), 16)
# The key of the header in a file's metadata.
KINDS = {
    "splats": "splat_py",
    "own splats": "splat_py",
    "blobs": "splat_py.image.checkpoint",
    "volume": "splat_py",
    "hash grid": "splat_py",
    "result": "splat_py.image",
}


def header_of(kind: str) -> dict[str, Any]:
    """Header of a checkpoint of Gaussians, blobs, a volume or a hash grid, or of blobs as a result."""
    return {
        "splats": {"step": 4, "config": dataclasses.asdict(TrainConfig(steps=10, sh_degree=1)), "capacity": 12},
        "own splats": {"step": 4, "config": dataclasses.asdict(TrainConfig(10, 1, **OWN)), "capacity": 12},  # type: ignore[arg-type]
        "blobs": {"step": 4, "steps": 10, "picture": "5f"},
        "volume": {"step": 2, "config": dataclasses.asdict(VolumeConfig((4, 8), 3, 1))},
        "hash grid": {"step": 2, "config": dataclasses.asdict(VolumeConfig((4, 8), 3, field="hash"))},
        "result": {"width": 6, "height": 5, "psnr": 30.0},
    }[kind]


def arrays_of(kind: str) -> dict[str, np.ndarray]:
    shapes: dict[str, tuple[int, ...]]
    if kind in ("splats", "own splats"):
        rows: dict[str, tuple[int, ...]] = {
            "means": (3,),
            "quats": (4,),
            "log_scales": (3,),
            "logit_opacities": (),
            "sh": (4, 3),
        }
        rows |= {"extras": (2,)} if kind == "own splats" else {}
        shapes = {f"{name}{suffix}": (GAUSSIANS, *row) for name, row in rows.items() for suffix in ("", ".m", ".v")}
        shapes |= dict.fromkeys(("gradient_norms", "times_seen", "max_radii"), (GAUSSIANS,))
    elif kind == "volume":
        shapes = dict.fromkeys(("grid", "m", "v"), (4, 3, 2, 16)) | {"background": (3,)}
    elif kind == "hash grid":
        shapes = dict.fromkeys(("parameters", "m", "v"), (HASH_SHAPE.floats,)) | {"background": (3,)}
    else:
        shapes = dict.fromkeys(("params", "m", "v") if kind == "blobs" else ("params",), (9, 5))
    arrays = {name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()}
    if kind == "hash grid":
        arrays["cells"], arrays["size"] = np.array(HASH_SHAPE.cells, np.int32), np.array([HASH_SHAPE.size], np.int32)
        arrays["occupied"] = np.ones(OCCUPANCY**3, np.uint8)
    if kind in ("volume", "hash grid"):
        arrays["box"] = np.array([[-1.0, -1, -1], [1, 1, 1]])
    return arrays
