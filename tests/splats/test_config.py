"""The options of a training run, and files that were written when some had other names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from splat_py.errors import SplatError
from splat_py.splats.checkpoint import Checkpoint
from splat_py.splats.config import TrainConfig
from splat_py.splats.run import RunFolder

# What was written until the options got the field's names, to the letter.
OLD = """{
  "steps": 1200, "sh_degree": 2, "sh_interval": 300, "init": "random", "random_points": 321, "ssim_share": 0.25,
  "rate_means": 0.001, "rate_quats": 0.002, "rate_scales": 0.003, "rate_opacities": 0.004, "rate_sh": 0.005,
  "densify_every": 50, "densify_start": 60, "densify_stop": 700, "densify_gradient": 0.0003, "split_scale": 0.02,
  "prune_opacity": 0.006, "prune_scale": 0.2, "opacity_reset_every": 400, "max_gaussians": 5000, "antialiased": true,
  "accumulate": "pixel", "checkpoint_every": 77, "seed": 9
}"""
EXPECTED = TrainConfig(
    steps=1200,
    sh_degree=2,
    sh_interval=300,
    init="random",
    init_num_pts=321,
    ssim_lambda=0.25,
    means_lr=0.001,
    quats_lr=0.002,
    scales_lr=0.003,
    opacities_lr=0.004,
    sh0_lr=0.005,
    densify_every=50,
    densify_start=60,
    densify_stop=700,
    grow_grad2d=0.0003,
    split_scale=0.02,
    prune_opacity=0.006,
    prune_scale=0.2,
    opacity_reset_every=400,
    max_gaussians=5000,
    antialiased=True,
    accumulate="pixel",
    checkpoint_every=77,
    seed=9,
    batch=1,
)


def old_state() -> dict[str, np.ndarray]:
    """Two Gaussians of a checkpoint."""
    shapes = {"means": (2, 3), "quats": (2, 4), "log_scales": (2, 3), "logit_opacities": (2,), "sh": (2, 9, 3)}
    state = {
        f"{name}{suffix}": np.full(shape, 0.5, np.float32) for name, shape in shapes.items() for suffix in ("", ".m", ".v")
    }
    return state | {name: np.ones(2, np.float32) for name in ("gradient_norms", "times_seen", "max_radii")}


def save_old_checkpoint(path: Path, config: str) -> None:
    save_file(old_state(), path, metadata={"splat_py": f'{{"step": 40, "config": {config}, "capacity": 17}}'})


def test_old_checkpoints_load(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    save_old_checkpoint(path, OLD)
    checkpoint = Checkpoint.load(path)
    assert (checkpoint.step, checkpoint.capacity, checkpoint.config) == (40, 17, EXPECTED)
    assert checkpoint.state.keys() == old_state().keys()
    checkpoint.save(path)
    assert Checkpoint.load(path).config == EXPECTED


def test_old_runs_open(tmp_path: Path) -> None:
    data = '{"data": "/captures/fox", "downscale": 4.0, "format": "auto", "test_every": 8, "memory_limit": 4096}'
    (tmp_path / "run.json").write_text(f'{{"data": {data}, "config": {OLD}}}')
    record = RunFolder(tmp_path).record()
    assert (record.config, record.data.downscale, record.dataset) == (EXPECTED, 4.0, None)


def test_fewer_fields_are_the_defaults() -> None:
    """But of the batch: what is older has one photograph a step, however many processes go on with it."""
    assert TrainConfig.from_dict({}) == TrainConfig(batch=1)
    assert TrainConfig.from_dict({"rate_sh": 0.1, "seed": 1, "batch": 2}) == TrainConfig(sh0_lr=0.1, seed=1, batch=2)


@pytest.mark.parametrize("content", [None, [], 3, "steps", {"speed": 1}, {"rate_sh": 0.1, "sh0_lr": 0.1}], ids=str)
def test_what_is_no_configuration(content: object, tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        TrainConfig.from_dict(content)  # type: ignore[arg-type]
    path = tmp_path / "checkpoint.safetensors"
    save_old_checkpoint(path, json.dumps(content))
    with pytest.raises(SplatError, match="is not a checkpoint of splat_py or is damaged; train without --resume"):
        Checkpoint.load(path)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfe",
        b"[" * 100_000,
        b"[]",
        b'{"data": 3, "config": {}}',
        b'{"data": {"data": 3}, "config": {}}',
        b'{"data": {"data": "/x", "downscale": true}, "config": {}}',
        b'{"data": {"data": "/x"}, "config": {"antialiased": "true; }"}}',
        b'{"data": {"data": "/x"}, "config": {"means_lr": 1e999}}',
    ],
)
def test_damaged_descriptions_of_runs(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(data)
    with pytest.raises(SplatError, match=r"run\.json is damaged; train again"):
        RunFolder(tmp_path).record()
