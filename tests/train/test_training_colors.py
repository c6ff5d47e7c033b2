"""Training with colours other than harmonics: features and weights are learnt and stored; own cameras render."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plyfile import PlyData

from splat_py import Camera, Dataset, Gaussians, SplatError, load_dataset, shaders
from splat_py.render.colors import network_weights
from splat_py.render.views import render, with_model
from splat_py.scene.data_options import DataOptions
from splat_py.shaders.custom_types import CAMERA, OwnTypes
from splat_py.shaders.declarations import SlangSource
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.evaluation import evaluate
from splat_py.train.parameters import Parameters
from splat_py.train.run import open_scene, train
from splat_py.train.trainer import Trainer
from tests.formats.scenes import scene
from tests.refusals import refused
from tests.render.test_colors import OWN
from tests.scene.captures import ring, write_image, write_transforms
from tests.train.refinement import assert_resumes
from tests.train.test_distorted_photographs import LENSES, OWN_PINHOLE, known_gaussians

CAPTURE = 4, 24
# Each type's initial numbers of features and weights.
SIZES = {"SphericalGaussians": (21, 0), "ColorNetwork": (12, network_weights(12, 16)), "own": (4, 3)}
CONFIG = TrainConfig(steps=24, densify_every=10, densify_start=1, accumulate="pair", color_lr=0.02, sh_degree=0)


def named(kind: str) -> Any:
    return shaders.source(OWN) if kind == "own" else kind


@pytest.mark.parametrize("kind", SIZES)
def test_learns_keeps_and_resumes(kind: str, dataset: Dataset, tmp_path: Path) -> None:
    """Equal to the bit; the PLY and the checkpoint draw the same picture."""
    config = replace(CONFIG, color_features=9, color_weights=network_weights(9, 4)) if kind == "ColorNetwork" else CONFIG
    config, types = (config, {"color": named(kind)}) if kind == "own" else (replace(config, color=kind), {})
    begun = Trainer(dataset, config, **types).gaussians()
    whole, gaussians = (trainer.gaussians() for trainer in assert_resumes(dataset, config, tmp_path, 11, **types))
    assert len(gaussians) > len(begun), "densification added nothing"
    features, weights = (9, network_weights(9, 4)) if kind == "ColorNetwork" else SIZES[kind]
    assert gaussians.features is not None and gaussians.features.shape == (len(gaussians), features)
    assert (gaussians.weights is None) == (weights == 0)
    if gaussians.weights is not None and begun.weights is not None:
        assert gaussians.weights.shape == (weights,) and not torch.equal(gaussians.weights, begun.weights)

    camera = dataset.views[0].camera
    image = render(whole, camera)
    whole.save_ply(tmp_path / "a.ply")
    loaded = Gaussians.load_ply(tmp_path / "a.ply")
    assert loaded.color == (SlangSource("Lit", OWN) if kind == "own" else kind)
    if kind == "own":
        refused(r"Slang source of its own, Lit", render, loaded, camera)
    np.testing.assert_array_equal(render(loaded.trust_source(), camera), image)
    assert torch.equal(loaded.sh, whole.sh) and loaded.sh.shape[1:] == (1, 3)


def test_lobes_learn_where_they_point(tmp_path: Path) -> None:
    """Photographs of Gaussians that are bright from one side; training begins with only that side wrong."""

    def lit(axis: tuple[float, float, float]) -> Gaussians:
        features = torch.tensor([0.0, 0.0, 0.0, *axis, 0.8, -0.4, 0.2]).repeat(150, 1)
        return replace(known_gaussians(), color="SphericalGaussians", features=features)

    cameras = ring(8, radius=3.0, width=24, height=24)
    write_transforms(tmp_path, cameras)
    for camera in cameras:
        write_image(tmp_path / "images" / camera.name, (render(lit((2, 0, 0)), camera) * 255 + 0.5).astype(np.uint8))
    dataset = load_dataset(tmp_path, test_split="first")
    rates = dict.fromkeys(("means_lr", "quats_lr", "scales_lr", "opacities_lr"), 0.0)
    config = replace(
        CONFIG, steps=160, densify_every=1000, color="SphericalGaussians", color_features=9, color_lr=0.05, **rates
    )
    wrong = lit((0.5, 1.5, 0))
    trainer = Trainer(dataset, replace(config, init="random", init_num_pts=150))
    trainer.parameters = Parameters.fresh(trainer.device, wrong)
    scores = [evaluate(gaussians, dataset).psnr for gaussians in (wrong, trainer.fit())]
    # Measured: 23.1 and 34.3 dB.
    assert scores[1] > scores[0] + 10


def test_runs_with_a_source(capture: Path, tmp_path: Path) -> None:
    file = tmp_path / "lit.slang"
    file.write_text(OWN, encoding="utf-8")
    options, config = DataOptions(capture), replace(CONFIG, steps=4, color=str(file), init_num_pts=50)
    train(options, config, tmp_path / "run")
    content = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert (content["color"], content["color_features"], content["color_weights"]) == ("Lit", 4, 3)
    refused(r"carries Slang source of its own, Lit, .*--color FILE", open_scene, tmp_path / "run", None, None)
    named, data, _ = open_scene(tmp_path / "run", None, None, OwnTypes(color=str(file)))
    trusted, _, _ = open_scene(tmp_path / "run", None, None, OwnTypes(trust_source=True))
    assert evaluate(named, data).psnr == pytest.approx(evaluate(trusted, data).psnr)
    refused("carries Slang source of its own", train, options, TrainConfig(steps=6), tmp_path / "run", resume=True)
    train(options, TrainConfig(steps=6), tmp_path / "run", resume=True, trust_source=True)
    with pytest.raises(SplatError, match=r"--color-features is 7, but the run in .* was begun with 4"):
        train(options, TrainConfig(steps=8, color_features=7), tmp_path / "run", resume=True, trust_source=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"color_features": 5}, r"features is \('F32', "),
        ({"color_features": 0}, "color_features is missing"),
        ({"color_features": 10**6}, "color_features is 1000000; it must be at most 192"),
        ({"color_weights": 4}, r"weights is \('F32', "),
        ({"color_weights": 0}, "there is a tensor 'weights'"),
        ({"color_source": ""}, "color is 'Lit', and its source is missing"),
        ({"color": "SphericalHarmonics", "color_source": ""}, "there is"),
    ],
    ids=str,
)
def test_hostile_checkpoints(change: dict[str, Any], message: str, dataset: Dataset, tmp_path: Path) -> None:
    from splat_py.base.files import load_tensors, save_tensors

    path = tmp_path / "c.safetensors"
    Trainer(dataset, CONFIG, color=named("own")).save_checkpoint(path)
    header, arrays = load_tensors(path, "splat_py")
    save_tensors(path, "splat_py", {**header, "config": {**header["config"], **change}}, arrays)
    refused(message, Checkpoint.load, path)


def test_hostile_plys(tmp_path: Path) -> None:
    torch.manual_seed(0)
    parts = {"color": "ColorNetwork", "features": torch.randn(5, 3), "weights": torch.randn(network_weights(3, 2))}
    replace(scene(5, 0), **parts).save_ply(tmp_path / "a.ply")
    assert [element.name for element in PlyData.read(str(tmp_path / "a.ply"))] == ["vertex", "color_weights"]
    data = (tmp_path / "a.ply").read_bytes()
    changes = {
        (b"color_weights", b"color_heights"): None,
        (b"float weight", b"float height"): "element color_weights",
        (b"float color_1", b"float colour1"): "has no color_1",
        (b"splat_py color ColorNetwork", b"splat_py color Color;etwork"): "has a damaged color type",
        (b"splat_py color ColorNetwork", b"splat_py color ColorNetwork beta"): "has a damaged color type",
    }
    for (old, new), message in changes.items():
        assert old in data
        (tmp_path / "b.ply").write_bytes(data.replace(old, new))
        if message is None:
            assert Gaussians.load_ply(tmp_path / "b.ply").weights is None
            continue
        refused(message, Gaussians.load_ply, tmp_path / "b.ply")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"color": "Rainbow"}, "color is 'Rainbow'; use SphericalHarmonics, SphericalGaussians, ColorNetwork, or the name"),
        ({"color_features": 3}, "color_features is 3, but SphericalHarmonics has no color_features"),
        ({"color_weights": 3}, "color_weights is 3, but SphericalHarmonics has no color_weights"),
        ({"color": "SphericalGaussians", "color_features": 8}, r"SphericalGaussians need 3 \+ 6 per lobe"),
        ({"color": "ColorNetwork", "color_weights": 10}, "weights holds 10 numbers"),
        ({"color_features": -1}, "color_features is -1"),
    ],
    ids=str,
)
def test_mistakes(options: dict[str, Any], message: str, dataset: Dataset) -> None:
    refused(message, Trainer, dataset, TrainConfig(**options))


def test_a_camera_of_ones_own_draws_as_the_built_in_one() -> None:
    own = CAMERA.own(shaders.source(OWN_PINHOLE))
    camera = Camera.look_at((1, 2, 6), (1, 2, 3), (0, 1, 0), 60, 32, 24)
    expected = render(known_gaussians(), camera)
    np.testing.assert_allclose(render(known_gaussians(), with_model(camera, own)), expected, atol=1e-3)
    bent = replace(camera, distortion=LENSES["OPENCV"])
    np.testing.assert_allclose(render(known_gaussians(), with_model(bent, own)), expected, atol=1e-3)
