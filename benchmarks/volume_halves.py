"""Features of radiance fields as halves: the error they cause and the memory they save, on the embedded demo's photographs.

    python benchmarks/volume_halves.py --out benchmarks/volume_halves.json

Fields are fitted as in benchmarks/fields.py, then their features are rounded to float16. Means over the held-out views: `psnr`
of both against the photographs, `of each other` of one's pictures against the other's. `gradient` is the norm of the difference
between the gradients of the views' squared errors in the features, over the norm of the gradient. `bytes a sample` are the
bytes to read for a sample's eight corners, on all levels.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor

from splat_py.base.files import write_json
from splat_py.demo.scene import write_demo_scene
from splat_py.gpu.device import get_device
from splat_py.scene.dataset import Dataset, load_dataset
from splat_py.train.benchmark import header
from splat_py.volume import HashRadianceField, RadianceField, render
from splat_py.volume.config import VolumeConfig
from splat_py.volume.device_field import camera_rays
from splat_py.volume.fitting import Views, VolumeTrainer
from splat_py.volume.grid import row_floats

FIELDS: dict[str, dict[str, Any]] = {
    "voxels, degree 0": {"sh_degree": 0},
    "voxels, degree 2": {"sh_degree": 2},
    "hash grid": {"field": "hash"},
}
RESOLUTIONS, RAYS = (16, 32, 64), 1 << 13


@dataclass
class Options:
    """Options of this benchmark."""

    # Steps of each of the three stages.
    steps: int = 100
    # Write the figures here, as JSON, instead of to the terminal.
    out: Path | None = None


def features_of(field: Any) -> dict[str, Tensor]:
    """The tensors that are stored as halves."""
    names = ("density", "sh") if isinstance(field, RadianceField) else ("table",)
    return {name: getattr(field, name).detach() for name in names}


def pictures(field: Any, dataset: Dataset) -> tuple[list[Tensor], list[Tensor]]:
    """Pictures of the held-out views, and gradients of their squared errors."""
    device = get_device()
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in features_of(field).items()}
    field = replace(field, **leaves)
    background = torch.from_numpy(field.background)
    found, gradients = [], []
    for index in dataset.test:
        recorder = device.record()
        rays = camera_rays(device, recorder, [dataset.views[index].camera])
        recorder.submit()
        ends = [torch.from_numpy(a.numpy().copy()) for a in (rays.origins, rays.directions)]
        if isinstance(field, RadianceField):
            colors, *_ = render(field.density, field.sh, *ends, field.box, background=background)
        else:
            colors, *_ = field.march(*ends)
        photograph = torch.from_numpy(np.float32(dataset.image(index)[..., :3] / 255)).reshape(-1, 3)
        # A sum: means of few rays have gradients below a half's range.
        parts = torch.autograd.grad((colors - photograph).square().sum(), list(leaves.values()))
        gradients.append(torch.cat([part.double().flatten() for part in parts]))
        found.append(colors.detach().double())
    return found, gradients


def psnr(a: Tensor, b: Tensor) -> float:
    """Return the PSNR, dB."""
    return -10 * float(torch.log10((a - b).square().mean()))


def compare(dataset: Dataset, steps: int, how: dict[str, Any]) -> dict[str, Any]:
    """A field as it was fitted, and the same with halves."""
    config = VolumeConfig(RESOLUTIONS, steps, rays_per_step=RAYS, jitter=True, **how)
    fitted: Any = VolumeTrainer(Views.of_dataset(dataset), dataset.bounds, config, background=dataset.background).fit()
    halved = replace(fitted, **{name: tensor.half() for name, tensor in features_of(fitted).items()})
    photographs = [torch.from_numpy(dataset.image(i)[..., :3] / 255).reshape(-1, 3) for i in dataset.test]
    (floats, of_floats), (halves, of_halves) = (pictures(field, dataset) for field in (fitted, halved))
    if isinstance(fitted, HashRadianceField):
        stored, sample = 4 * fitted.table.numel(), 4 * 2 * 8 * len(fitted.shape.cells)
    else:
        sample = 4 * 8 * row_floats(fitted.sh.shape[3])
        stored = fitted.density.numel() * sample // 8
    return {
        "psnr": {
            name: round(float(np.mean([psnr(a, b) for a, b in zip(rendered, photographs, strict=True)])), 3)
            for name, rendered in (("floats", floats), ("halves", halves))
        },
        "of each other": round(float(np.mean([psnr(a, b) for a, b in zip(floats, halves, strict=True)])), 1),
        "gradient": float(np.mean([(a - b).norm() / a.norm() for a, b in zip(of_floats, of_halves, strict=True)])),
        "MiB": {"floats": round(stored / 2**20, 1), "halves": round(stored / 2**21, 1)},
        "bytes a sample": {"floats": sample, "halves": sample // 2},
    }


def main(options: Options) -> None:
    """Measure, and write the figures."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = load_dataset(write_demo_scene(Path(folder, "demo"), size=64), test_split="first")
        found = {name: compare(dataset, options.steps, how) for name, how in FIELDS.items()}
    results = {**header(get_device()), "steps": 3 * options.steps, "fields": found}
    if options.out is None:
        print(json.dumps(results, indent=2, ensure_ascii=False))
    else:
        write_json(options.out, results)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
