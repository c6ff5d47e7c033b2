"""A capture in metres or kilometres gives the same picture."""

from pathlib import Path

import numpy as np
import pytest

from splat_py import Dataset, load_dataset
from splat_py.render.views import render
from splat_py.train.config import TrainConfig
from splat_py.train.evaluation import evaluate
from splat_py.train.trainer import StepReport, Trainer
from tests.scene.captures import ring, save_json, write_transforms

CONFIG = TrainConfig(steps=12, sh_degree=0, init="random", init_num_pts=300, densify_every=1000)


def scaled_capture(folder: Path, scale: float) -> Dataset:
    content = write_transforms(folder, ring(5))
    for frame in content["frames"]:
        frame["transform_matrix"] = (np.array(frame["transform_matrix"]) * [1, 1, 1, scale]).tolist()
        frame["transform_matrix"][3] = [0, 0, 0, 1]
    save_json(folder, content)
    return load_dataset(folder)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_near_plane_follows_the_scene(scale: float, tmp_path: Path) -> None:
    pictures, scores, losses = [], [], []
    for name, factor in (("one", 1.0), ("other", scale)):
        dataset = scaled_capture(tmp_path / name, factor)
        reports: list[StepReport] = []
        gaussians = Trainer(dataset, CONFIG).fit(reports.append)
        pictures.append(render(gaussians, dataset.views[1].camera, near=dataset.near))
        scores.append(evaluate(gaussians, dataset).psnr)
        losses.append(reports[-1].values.loss)
    assert pictures[0].mean() > 0.1
    np.testing.assert_allclose(pictures[1], pictures[0], atol=0.02)
    assert scores[1] == pytest.approx(scores[0], abs=0.05)
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
