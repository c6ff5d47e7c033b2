"""Training with non-Gaussian splats: their parameters are learnt and stored, and a source in a file is not trusted."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from splat_py import Camera, Dataset, Gaussians, SplatError, shaders
from splat_py.gpu.kernels import UserType
from splat_py.render.options import SPLATS
from splat_py.render.views import render
from splat_py.scene.data_options import DataOptions
from splat_py.scene.images import ImageStore, View
from splat_py.shaders.custom_types import OwnTypes
from splat_py.shaders.declarations import BUILT_IN, MOST_SOURCE, SlangSource
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.parameters import Parameters
from splat_py.train.run import RunFolder, open_scene, train
from splat_py.train.trainer import Trainer
from tests.formats.scenes import scene
from tests.refusals import refused
from tests.render.test_falloffs import SCALED
from tests.train.refinement import assert_resumes

# A Gaussian with its own width and height. Its comment is not ASCII.
OWN = "// σ · rate" + SCALED.replace("Mine", "Wide")
CAPTURE = (4, 24)
OWN_PARAMS = ("rate=1", "height=0.75")
# Densifies twice; gradients add up in a fixed order.
CONFIG = TrainConfig(steps=40, densify_every=10, densify_start=1, accumulate="pair", splat_param_lr=0.01, sh_degree=0)


def own_file(folder: Path, text: str = OWN) -> Path:
    file = folder / "wide.slang"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_parameters_are_those_of_rasterization() -> None:
    assert {name: tuple(parameters) for name, parameters in BUILT_IN.items()} == {name: SPLATS[name][1] for name in BUILT_IN}


# --- training ---


def test_learns_what_only_a_right_gradient_reaches() -> None:
    """Photographs of splats with different exponents; training begins with only the exponents wrong."""
    name, count = "GeneralizedExponential", 8
    rng = torch.Generator().manual_seed(3)
    right = Gaussians(
        means=torch.cat([torch.rand(count, 2, generator=rng) * 2 - 1, torch.rand(count, 1, generator=rng) + 3], 1),
        quats=torch.randn(count, 4, generator=rng),
        log_scales=torch.rand(count, 3, generator=rng) * 0.5 - 1.5,
        logit_opacities=torch.full((count,), 1.0),
        sh=torch.rand(count, 1, 3, generator=rng) * 2 - 1,
        params={"beta": torch.linspace(0.6, 2.0, count)},
        splat=name,
    )
    K = np.array([[30.0, 0, 16], [0, 30, 16], [0, 0, 1]])
    cameras = [Camera.look_at((x, 0, -0.5), (0, 0, 3.5), (0, -1, 0), 50, 32, 32) for x in (-1, 0, 1)]
    cameras = [replace(camera, K=K) for camera in cameras]
    photographs = [
        np.dstack([(render(right, c) * 255 + 0.5).astype(np.uint8), np.full((32, 32), 255, np.uint8)]) for c in cameras
    ]
    bounds, black = np.array([[-1.0, -1, 3], [1, 1, 4]]), np.zeros(3, np.float32)
    views, images = [cast(View, SimpleNamespace(camera=camera)) for camera in cameras], cast(ImageStore, photographs)
    data = Dataset(Path(), views, [0, 1, 2], [], None, 1.0, bounds, black, images)
    rates = dict.fromkeys(("means_lr", "quats_lr", "scales_lr", "opacities_lr", "sh0_lr"), 0.0)
    config = TrainConfig(steps=200, splat=name, splat_param_lr=0.03, sh_degree=0, densify_every=1000, ssim_lambda=0.0, **rates)
    start = Trainer(data, replace(config, init="random", init_num_pts=count))
    wrong = replace(right, params={"beta": torch.ones(count)})
    start.parameters = Parameters.fresh(start.device, wrong)
    start._reserve()
    learnt = start.fit()
    torch.testing.assert_close(learnt.params["beta"], right.params["beta"], rtol=0, atol=0.12)
    for other in ("means", "quats", "log_scales", "logit_opacities", "sh"):
        assert torch.equal(getattr(learnt, other), getattr(right, other)), other


@pytest.mark.parametrize("kind", ["BetaKernel", "own"])
def test_resuming_continues_bit_for_bit(kind: str, dataset: Dataset, tmp_path: Path) -> None:
    config = replace(CONFIG, splat_params=OWN_PARAMS) if kind == "own" else replace(CONFIG, splat=kind)
    types: dict[str, Any] = {"splat": shaders.source(OWN)} if kind == "own" else {}
    whole, resumed = assert_resumes(dataset, config, tmp_path, 17, **types)
    gaussians = resumed.gaussians()
    assert gaussians.params.keys() == whole.gaussians().params.keys() == set(resumed.config.parameters())
    assert len(gaussians) > len(dataset.points[0] if dataset.points else ()), "densification added nothing"
    for name, number in resumed.config.parameters().items():
        assert (gaussians.params[name] != number.initial).any(), name


def test_bounds_hold(dataset: Dataset) -> None:
    config = replace(CONFIG, steps=8, splat="GeneralizedExponential", splat_params=("beta=0.21",), splat_param_lr=5.0)
    beta = Trainer(dataset, config).fit().params["beta"]
    assert (float(beta.min()), float(beta.max())) == (np.float32(0.2), 8.0)


# --- storage ---


def own_gaussians(splat: str | UserType = "own") -> Gaussians:
    torch.manual_seed(0)
    kind = UserType("Wide", OWN) if splat == "own" else splat
    params = {"rate": torch.rand(5) + 0.5, "height": torch.rand(5) * 0.5} if splat == "own" else {"beta": torch.rand(5) + 0.5}
    return replace(scene(5, 1), params=params, splat=kind)


@pytest.mark.parametrize("splat", ["own", "GeneralizedExponential"])
def test_a_ply_keeps_parameters_and_source(splat: str, tmp_path: Path) -> None:
    gaussians = own_gaussians(splat)
    gaussians.save_ply(tmp_path / "a.ply")
    loaded = Gaussians.load_ply(tmp_path / "a.ply")
    assert list(loaded.params) == list(gaussians.params)
    for name, values in gaussians.params.items():
        assert torch.equal(loaded.params[name], values)
    assert loaded.splat == (SlangSource("Wide", OWN) if splat == "own" else splat)
    header = (tmp_path / "a.ply").read_bytes().partition(b"end_header")[0].decode("ascii")
    assert all(f"property float splat_{name}\n" in header for name in gaussians.params)
    # Loaded without trust and saved again, it is the same file.
    loaded.save_ply(tmp_path / "b.ply")
    assert (tmp_path / "b.ply").read_bytes() == (tmp_path / "a.ply").read_bytes()


def test_properties_that_nobody_explains_are_ignored(tmp_path: Path) -> None:
    own_gaussians("GeneralizedExponential").save_ply(tmp_path / "a.ply")
    data = (tmp_path / "a.ply").read_bytes()
    head, mark, rows = data.partition(b"end_header\n")
    lines = [line for line in head.split(b"\n") if not line.startswith(b"comment")]
    (tmp_path / "b.ply").write_bytes(b"\n".join(lines) + mark + rows)
    loaded = Gaussians.load_ply(tmp_path / "b.ply")
    assert loaded.params == {} and loaded.splat == "Gaussian"


HEAD, SOURCE = "comment splat_py splat Wide rate height", "comment splat_py splat_source "


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (HEAD, "comment splat_py splat Wide rate rate"),
        (HEAD, "comment splat_py splat Wide rate height more"),
        (HEAD, "comment splat_py splat Wide; rate height"),
        (HEAD, "comment splat_py splat Wide rate x;y"),
        (HEAD, "comment splat_py splat"),
        (HEAD, "comment splat_py splat Wide " + " ".join("abcdefghijklmnopq")),
        (HEAD, f"{HEAD}\n{HEAD}"),
        (HEAD, "comment nothing"),
        (f'{SOURCE}"import splat.prelude;"', f"{SOURCE}import"),
        (f'{SOURCE}"import splat.prelude;"', f"{SOURCE}3"),
        (f'{SOURCE}"import splat.prelude;"', f"{SOURCE}{'[' * 100_000}"),
        (f'{SOURCE}"import splat.prelude;"', f'{SOURCE}"\\u0000"'),
        (f'{SOURCE}"import splat.prelude;"', f'{SOURCE}"{"x" * (MOST_SOURCE + 1)}"'),
        (f'{SOURCE}"import splat.prelude;"', f'{SOURCE}"{"x" * (8 * MOST_SOURCE)}"'),
        (f'{SOURCE}"import splat.prelude;"', f'{SOURCE}"{"x" * (1 << 21)}"'),
    ],
    ids=str,
)
def test_hostile_plys(old: str, new: str, tmp_path: Path) -> None:
    own_gaussians().save_ply(tmp_path / "a.ply")
    data = (tmp_path / "a.ply").read_bytes()
    assert old.encode() in data
    (tmp_path / "b.ply").write_bytes(data.replace(old.encode(), new.encode()))
    damages = r"b\.ply (is damaged|has a damaged splat type|has no splat_more|is not a PLY file or is damaged)"
    with pytest.raises(SplatError, match=damages) as error:
        Gaussians.load_ply(tmp_path / "b.ply")
    assert len(str(error.value)) < 500


def test_source_is_not_compiled_before_it_is_trusted(tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    own_gaussians().save_ply(tmp_path / "a.ply")
    with monkeypatch.context() as patch:
        patch.setattr(shaders, "load", lambda *_: pytest.fail("compiled"))
        loaded = Gaussians.load_ply(tmp_path / "a.ply")
        with pytest.raises(SplatError, match=r"carries Slang source of its own, Wide, .*trust_source\(\) if you trust it"):
            render(loaded, dataset.views[0].camera)
    image = render(loaded.trust_source(), dataset.views[0].camera)
    np.testing.assert_array_equal(image, render(own_gaussians(), dataset.views[0].camera))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"splat_source": "x" * (MOST_SOURCE + 1)}, "65,537 characters; give at most 65,536"),
        ({"splat_source": "\0"}, "unprintable characters"),
        ({"splat": "Wide; }"}, "the type is called 'Wide; }'"),
        ({"splat_source": ""}, "splat is 'Wide', and its source is missing"),
        ({"splat_params": ["rate=1"]}, r"extras is \('F32', "),
        ({"splat_params": [f"{name}=1" for name in "abcdefghijklmnopq"]}, "17 parameters; a splat has 16 at most"),
        ({"splat_params": ["rate=nan", "height=1"]}, "write NAME=VALUE"),
        ({"splat_params": [3]}, "splat_params is"),
    ],
    ids=str,
)
def test_hostile_checkpoints(change: dict[str, Any], message: str, dataset: Dataset, tmp_path: Path) -> None:
    from splat_py.base.files import load_tensors, save_tensors

    path = tmp_path / "c.safetensors"
    config = replace(CONFIG, splat="Wide", splat_source=OWN, splat_params=OWN_PARAMS)
    gaussians = replace(own_gaussians(), sh=torch.zeros(5, 1, 3))
    state = Parameters.fresh(Trainer(dataset, CONFIG).device, gaussians).state()
    Checkpoint(0, config, state, 1).save(path)
    header, arrays = load_tensors(path, "splat_py")
    assert isinstance(Checkpoint.load(path).gaussians().splat, SlangSource)
    save_tensors(path, "splat_py", {**header, "config": {**header["config"], **change}}, arrays)
    refused(message, Checkpoint.load, path)


# --- runs ---


@pytest.fixture(scope="module")
def run(capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with an own type; the file that it began with is beside it."""
    folder = tmp_path_factory.mktemp("run")
    config = replace(CONFIG, splat=str(own_file(folder)), splat_params=OWN_PARAMS)
    train(DataOptions(capture), config, folder / "run")
    return folder / "run"


def test_a_run_keeps_the_source_as_text(run: Path) -> None:
    content = json.loads((run / "run.json").read_text(encoding="utf-8"))["config"]
    assert (content["splat"], content["splat_source"], content["splat_params"]) == ("Wide", OWN, list(OWN_PARAMS))
    assert Gaussians.load_ply(run / "scene.ply").splat == SlangSource("Wide", OWN)
    assert "held_out" in json.loads((run / "metrics.json").read_text())


def test_a_scene_opens_where_its_source_is_named_or_trusted(run: Path, tmp_path: Path) -> None:
    refused(r"run carries Slang source of its own, Wide, .*--splat FILE.*--trust-source", open_scene, run, None, None)
    named, _, _ = open_scene(run, None, None, OwnTypes(str(own_file(tmp_path))))
    trusted, dataset, _ = open_scene(run, None, None, OwnTypes(trust_source=True))
    images = [render(gaussians, dataset.views[0].camera) for gaussians in (named, trusted)]
    np.testing.assert_array_equal(*images)
    other = tmp_path / "other.slang"
    other.write_text(OWN.replace("-0.5", "-0.6"), encoding="utf-8")
    refused(r"this source is not the one of .*run, of type Wide", open_scene, run, None, None, OwnTypes(str(other)))
    refused("has the splat Wide, not BetaKernel; leave --splat out", open_scene, run, None, None, OwnTypes("BetaKernel"))


def test_resuming_a_run_with_a_source(run: Path, capture: Path, tmp_path: Path) -> None:
    def resume(splat: str = "Gaussian", given: tuple[str, ...] = (), **options: Any) -> None:
        config = replace(TrainConfig(steps=44), splat=splat)
        train(DataOptions(capture), config, run, resume=True, given=given, **options)

    file = own_file(tmp_path)
    other = tmp_path / "other.slang"
    other.write_text(OWN.replace("-0.5", "-0.6"), encoding="utf-8")
    refused(r"carries Slang source of its own, Wide", resume)
    refused(r"--splat is BetaKernel, but the run in .* was begun with Wide", resume, "BetaKernel")
    refused(r"--splat is Gaussian, but the run in .* was begun with Wide", resume, "Gaussian", ("splat",))
    refused(r"--splat is a source of Wide, but the run .* of another source", resume, str(other))
    resume(str(file), ("splat",))
    assert Checkpoint.load(RunFolder(run).checkpoint).step == 44


def test_contradictions_of_a_checkpoint(dataset: Dataset, tmp_path: Path) -> None:
    trainer = Trainer(dataset, replace(CONFIG, splat="BetaKernel"))
    trainer.save_checkpoint(tmp_path / "c.safetensors")
    checkpoint = Checkpoint.load(tmp_path / "c.safetensors")
    Trainer(dataset, resume=checkpoint, splat="BetaKernel", splat_params={"b": 0.0})
    for splat in ("GeneralizedExponential", shaders.source(OWN)):
        with pytest.raises(SplatError, match="but the checkpoint was begun with BetaKernel; resume it without splat"):
            Trainer(dataset, resume=checkpoint, splat=splat)
    with pytest.raises(SplatError, match=r"params has b=1\.0, but the checkpoint was begun with none"):
        Trainer(dataset, resume=checkpoint, splat_params={"b": 1.0})
    with pytest.raises(SplatError, match="camera is fisheye, but the checkpoint was begun with dataset"):
        Trainer(dataset, resume=checkpoint, camera="fisheye")


def test_training_names_the_fields_of_a_source(dataset: Dataset) -> None:
    for params in ({"rate": 1.0}, {"rate": 1.0, "hight": 1.0}, {"rate": 1.0, "height": 1.0, "hight": 1.0}):
        with pytest.raises(SplatError, match=r"splat_params has rate.*; the fields of Wide are rate, height: give one"):
            Trainer(dataset, CONFIG, splat=shaders.source(OWN), splat_params=params)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"splat": "Cube"},
            "splat is 'Cube'; use Gaussian, GeneralizedExponential, BetaKernel, Surfel, or the name of a Slang file",
        ),
        ({"splat_params": ("beta=1",)}, "splat_params is 'beta=1'; Gaussian takes none"),
        ({"splat": "BetaKernel", "splat_params": ("b",)}, "splat_params is 'b'; write NAME=VALUE"),
        ({"splat": "BetaKernel", "splat_params": ("b=x",)}, "splat_params is 'b=x'; write NAME=VALUE"),
        ({"splat": "BetaKernel", "splat_params": ("b=1", "b=2")}, "names 'b' twice"),
        ({"splat": "BetaKernel", "splat_param_lrs": ("beta=1",)}, "splat_param_lrs has 'beta'; BetaKernel takes b"),
        (
            {"splat": "Mine", "splat_source": "//", "splat_param_lrs": ("beta=1",)},
            "splat_param_lrs has 'beta'; give its first value in splat_params",
        ),
        ({"splat": "BetaKernel", "splat_param_lrs": ("b=-1",)}, "splat_param_lrs is 'b=-1'; a learning rate lies"),
        ({"splat": "GeneralizedExponential", "splat_params": ("beta=0",)}, "beta must lie between 0.2 and 8"),
        ({"splat_param_lr": -1.0}, "splat_param_lr is -1.0"),
    ],
    ids=str,
)
def test_mistakes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SplatError, match=message):
        TrainConfig(**options).validate()
