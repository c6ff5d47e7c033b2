"""An error in a fit stops it at once and leaves the last good checkpoint."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splat_py import Dataset
from splat_py.base.errors import SplatError
from splat_py.fit.steps import check_finite
from splat_py.image.fitting import ImageFitter
from splat_py.image.fitting import fit as fit_image
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.trainer import Trainer
from splat_py.volume import VolumeCheckpoint, VolumeConfig, VolumeTrainer
from splat_py.volume.fitting import Views
from tests.refusals import refused

CAPTURE = 3, 24
LOADED = {"test_every": 0}
CONFIG = TrainConfig(steps=40, sh_degree=0, init="random", init_num_pts=100, checkpoint_every=5, densify_every=1000)


def damaging(trainer: Trainer, name: str, step: int) -> None:
    """Make one float of a parameter NaN from `step` on."""
    advance = trainer.advance

    def advance_and_damage() -> None:
        advance()
        if trainer.step == step:
            trainer.finish()
            values = trainer.parameters.arrays[name].numpy().copy()
            values.flat[3] = np.nan
            trainer.parameters.arrays[name].write(values)

    trainer.advance = advance_and_damage  # type: ignore[method-assign]


@pytest.mark.parametrize("name", ["means", "quats", "log_scales", "logit_opacities", "sh", "means.v"])
def test_a_parameter_that_is_not_finite(dataset: Dataset, tmp_path: Path, name: str) -> None:
    path = tmp_path / "checkpoint.safetensors"
    trainer = Trainer(dataset, CONFIG)
    damaging(trainer, name, 12)
    parameter = name.removesuffix(".v")
    with pytest.raises(SplatError, match=rf"^stopped after step 1[2-5]: NaN or infinity in {parameter}\b") as error:
        trainer.fit(checkpoint=path)
    assert "\n" not in str(error.value)
    assert Checkpoint.load(path).step == 10


def test_results_and_densification_are_checked(dataset: Dataset) -> None:
    trainer = Trainer(dataset, replace(CONFIG, steps=7, checkpoint_every=1000))
    damaging(trainer, "log_scales", 7)
    refused("stopped after step 7: NaN or infinity in log_scales", trainer.fit)
    trainer = Trainer(dataset, replace(CONFIG, densify_every=2, checkpoint_every=1000))
    damaging(trainer, "quats", 5)
    refused("stopped after step 6: NaN or infinity in quats", trainer.fit)


@pytest.mark.parametrize("change", [{"prune_opacity": 0.4}, {"prune_scale": 1e-6, "opacity_reset_every": 1}])
def test_thresholds_that_prune_everything(dataset: Dataset, tmp_path: Path, change: dict[str, float]) -> None:
    config = replace(CONFIG, densify_every=2, **change)  # type: ignore[arg-type]
    says = r"no Gaussian is left after step \d+: all have been pruned by prune_opacity"
    refused(says, Trainer(dataset, config).fit, checkpoint=tmp_path / "checkpoint.safetensors")


def test_fewer_gaussians_than_there_are_points(dataset: Dataset) -> None:
    refused(r"max_gaussians is 7, less than the [\d,]+ points of .*; raise it", Trainer, dataset, TrainConfig(max_gaussians=7))


def test_a_picture_that_diverges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advance, path = ImageFitter.advance, tmp_path / "checkpoint.safetensors"

    def damage(fitter: ImageFitter) -> None:
        advance(fitter)
        if fitter.step == 6:
            params = fitter.params()
            params[6, 2] = np.inf
            fitter._work.parameters.write(params)

    monkeypatch.setattr(ImageFitter, "advance", damage)
    picture = np.random.default_rng(0).uniform(size=(9, 8, 3)).astype(np.float32)
    refused("stopped after step 6: NaN or infinity in the colours", fit_image, picture, 10, 20, on_report=lambda report: None)
    refused("stopped after step 10: NaN or infinity in the colours", fit_image, picture, 10, 20, checkpoint=path)
    assert path.exists()


def test_a_volume_that_diverges(dataset: Dataset, tmp_path: Path) -> None:
    config = VolumeConfig((4,), 20, sh_degree=0, checkpoint_every=2)
    trainer = VolumeTrainer(Views.of_dataset(dataset), dataset.bounds, config)
    advance, path = trainer.advance, tmp_path / "checkpoint.safetensors"

    def damage() -> None:
        advance()
        if trainer.step == 5:
            values = trainer._optimiser.m.numpy().copy()
            values.flat[0] = np.nan
            trainer._optimiser.m.write(values)

    trainer.advance = damage  # type: ignore[method-assign]
    refused("stopped after step 6: ", trainer.fit, checkpoint=path)
    assert VolumeCheckpoint.load(path).step == 4


def test_large_numbers_are_finite() -> None:
    """The numbers are finite, but their sum is not."""
    check_finite({"large": np.full(10, 1e308)}, 3)
    both = np.array([np.inf, -np.inf], np.float32)
    refused("stopped after step 1,003: NaN or infinity in both", check_finite, {"both": both}, 1003)
