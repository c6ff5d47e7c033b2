"""Commands that read and write scenes and their parts: `splat eval`, `render`, `export`, `edit`, `partition`."""

import json
import shlex
import shutil
import sys
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
import torch
import trimesh

from splat_py import Gaussians, RunFolder, load_dataset
from splat_py.scene.formats.ply import write_gaussians
from splat_py.scene.sources import ENDINGS
from splat_py.train.run import capture_of
from tests.commands.program import done, refusal, splat
from tests.formats.scenes import ball_on_floor


def test_eval_agrees_with_training(run: Path, capture: Path) -> None:
    output = done("eval", run, "--json", "scores.json", "--pictures", "pictures", cwd=run.parent)
    scores = json.loads((run.parent / "scores.json").read_text())
    trained = json.loads((run / "metrics.json").read_text())["held_out"]
    assert scores["psnr"] == pytest.approx(trained["psnr"], abs=1e-4)
    assert scores["ssim"] == pytest.approx(trained["ssim"], abs=1e-4)
    assert len(list((run.parent / "pictures").glob("*.png"))) == len(scores["views"]) == 2
    assert ("Matching colours lowers PSNR" in output) == (scores["corrected_psnr"] < scores["psnr"])
    file = ("eval", run / "scene.ply", "--data", capture, "--json", "file.json")
    for split, names in (((), ["004"]), (("--test-split", "first"), ["000", "008"])):
        done(*file, *split, cwd=run.parent)
        views = json.loads((run.parent / "file.json").read_text())["views"]
        assert [Path(view["name"]).stem for view in views] == names


def test_a_run_without_a_recorded_split_keeps_the_first_photographs(run: Path, tmp_path: Path) -> None:
    old = shutil.copytree(run, tmp_path / "old")
    record = json.loads((old / "run.json").read_text())
    del record["data"]["test_split"]
    (old / "run.json").write_text(json.dumps(record))
    assert all(f"images/{name}.png" in done("eval", old, cwd=tmp_path) for name in ("000", "008"))
    done("train", record["data"]["data"], "--out", old, "--resume", "--steps", 21, cwd=tmp_path)
    assert len(json.loads((old / "metrics.json").read_text())["held_out"]["views"]) == 2
    # Its capture has the run's camera model.
    record = json.loads((old / "run.json").read_text())
    (old / "run.json").write_text(json.dumps(record | {"config": record["config"] | {"camera": "equirectangular"}}))
    dataset = capture_of(old, None)
    assert dataset is not None and {view.camera.model for view in dataset.views} == {"equirectangular"}


def test_notebooks_show_scores_and_pictures_of_a_run(run: Path) -> None:
    folder = RunFolder(run)
    page = folder._repr_html_()
    assert f"<td>{folder.metrics()['held_out']['psnr']}</td>" in page
    assert page.count("<img") == 2
    steps = [point["step"] for point in folder.curve]
    assert steps == sorted(steps) and steps[0] == 0
    assert "<img" not in RunFolder(run.parent)._repr_html_()


def test_localize_a_photograph(run: Path, capture: Path) -> None:
    photograph = sorted((capture / "images").glob("*.png"))[3]
    output = done("localize", run, photograph, "--out", "beside.png", "--json", "pose.json", cwd=run.parent)
    assert f"from images/{photograph.name}" in output
    height, width, _ = iio.imread(photograph).shape
    assert iio.imread(run.parent / "beside.png").shape == (height, 2 * width + 1, 3)
    pose = json.loads((run.parent / "pose.json").read_text())
    view = next(view for view in load_dataset(capture).views if view.name == f"images/{photograph.name}")
    np.testing.assert_allclose(pose["viewmat"], view.camera.viewmat, atol=0.1)
    iio.imwrite(run.parent / "wide.png", np.zeros((20, 60, 3), np.uint8))
    assert "wide.png has 60×20 pixels but its lens was calibrated at" in refusal("localize", run, "wide.png", cwd=run.parent)


def test_render_views_and_video(run: Path) -> None:
    done("render", run, "--out", "views", "--video", "orbit.mp4", "--frames", 4, "--scale", 1.5, cwd=run.parent)
    assert [iio.imread(view).shape for view in sorted((run.parent / "views").glob("*.png"))] == [(48, 48, 3)] * 2
    assert iio.imread(run.parent / "orbit.mp4").shape == (4, 48, 48, 3)


def test_suggested_views_are_those_of_uncertain_pictures(run: Path, capture: Path) -> None:
    output = done("suggest", run, "--among", "test", "--count", 2, cwd=run.parent)
    assert all(f"images/{name}.png" in output for name in ("000", "008")) and "in suggestions" in output, output
    pictures = [iio.imread(run.parent / "suggestions" / name) for name in ("1.png", "2.png")]
    assert [picture.shape for picture in pictures] == [(32, 2 * 32 + 1, 3)] * 2
    done("render", run, "--mode", "uncertainty", "--out", "uncertain", cwd=run.parent)
    alone = [iio.imread(path) for path in sorted((run.parent / "uncertain").glob("*.png"))]
    shown = [picture[:, 33:] for picture in pictures]
    assert any(all(np.array_equal(a, b) for a, b in zip(alone, order, strict=True)) for order in (shown, shown[::-1]))
    assert alone[0].any()
    done("suggest", run / "scene.ply", "--data", capture, "--count", 1, "--out", "one", cwd=run.parent)


def test_export_writes_what_training_wrote(run: Path) -> None:
    done("export", run, "again.ply", cwd=run.parent)
    assert (run.parent / "again.ply").read_bytes() == (run / "scene.ply").read_bytes()


def test_an_empty_scene_renders_the_background(run: Path, capture: Path, tmp_path: Path) -> None:
    empty = Gaussians.load_ply(run / "scene.ply")
    for name in ("means", "quats", "log_scales", "logit_opacities", "sh"):
        setattr(empty, name, getattr(empty, name)[:0])
    empty.save_ply(tmp_path / "empty.ply")
    done("render", "empty.ply", "--data", capture, "--out", "views", cwd=tmp_path)
    for view in (tmp_path / "views").glob("*.png"):
        assert not np.any(iio.imread(view))


def test_a_damaged_description(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    content = json.loads(path.read_text())
    for damaged in (path.read_text()[:-9], "[]", json.dumps({**content, "config": {"abacus": 1}}), json.dumps({"data": {}})):
        path.write_text(damaged)
        assert "run.json is damaged" in refusal("eval", "run", cwd=tmp_path)


@pytest.fixture(scope="module")
def files(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for ending in ENDINGS:
        result = splat("export", run, f"scene{ending}", cwd=folder)
        assert result.returncode == 0, result.stderr
        assert "20 steps" in result.stdout
        assert ("does not hold" in result.stderr) == (ending in (".splat", ".ksplat"))
    return folder


def test_every_format_is_scored_and_rendered(files: Path, capture: Path) -> None:
    scores = {}
    for ending in ENDINGS:
        done("eval", f"scene{ending}", "--data", capture, "--json", "scores.json", cwd=files)
        scores[ending] = json.loads((files / "scores.json").read_text())["psnr"]
        assert abs(scores[ending] - scores[".ply"]) < 0.2
    done("render", "scene.spz", "--data", capture, "--out", "views", cwd=files)
    assert list((files / "views").iterdir())


def test_a_file_becomes_one_of_another_format(files: Path, tmp_path: Path) -> None:
    for version in (2, 4):
        done("export", files / "scene.glb", "again.spz", "--spz-version", version, cwd=tmp_path)
        assert len(Gaussians.load(tmp_path / "again.spz")) == len(Gaussians.load(files / "scene.ply"))


def test_pages_are_written_from_runs_and_files(files: Path, run: Path, capture: Path, tmp_path: Path) -> None:
    for scene, options, known in (
        (run, (), True),
        (files / "scene.sog", ("--data", capture), True),
        (files / "scene.sog", (), False),
    ):
        assert ("no capture found" in done("export", scene, "page.html", *options, cwd=tmp_path)) != known
        assert "</html>" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_page_of_what_cameras_go_around_is_cleaned_unless_it_is_not_wanted(run: Path, capture: Path, tmp_path: Path) -> None:
    scene = Gaussians.load(run / "scene.ply")
    scene.means[:7] = 10 * torch.nn.functional.normalize(torch.randn(7, 3))
    scene.save_ply(tmp_path / "scene.ply")
    how = ("export", "scene.ply", "page.html", "--data", capture)
    printed = done(*how, cwd=tmp_path)
    assert "left out of the page: " in printed and "`splat export scene.ply page.html --no-clean` keeps them" in printed
    assert f"{len(scene):,} Gaussians are in" not in printed
    printed = done(*how, "--no-clean", cwd=tmp_path)
    assert "left out" not in printed and f"{len(scene):,} Gaussians are in" in printed
    result = splat(*how, "--device", "cuda" if sys.platform == "darwin" else "metal", cwd=tmp_path)
    assert result.returncode == 0 and "the page is not cleaned: " in result.stderr


def test_edits_in_their_order(files: Path, run: Path, tmp_path: Path) -> None:
    before = Gaussians.load(files / "scene.ply")
    half = float(before.means[:, 0].median())
    box = (-100, -100, -100, half, 100, 100)
    done("edit", files / "scene.ply", "half.ply", "--crop", *box, "--scale", 2, "--rotate", 0, 0, 90, cwd=tmp_path)
    after = Gaussians.load(tmp_path / "half.ply")
    kept = before.means[before.means[:, 0] <= half].numpy()
    np.testing.assert_allclose(after.means, 2 * kept[:, [1, 0, 2]] * [-1, 1, 1], atol=1e-4)
    edits = ("--sh-degree", 1, "--remove-floaters")
    printed = done("edit", run, "half.ply", "both.sog", *edits, cwd=tmp_path)
    assert "removed: " in printed and "faint" in printed
    both = Gaussians.load(tmp_path / "both.sog")
    assert both.sh_degree == 1 and len(both) <= len(before) + len(after)


def test_the_subject_is_kept_and_what_one_camera_sees_goes(run: Path, capture: Path, tmp_path: Path) -> None:
    scene = Gaussians.load(run / "scene.ply")
    camera = next(view.camera for view in load_dataset(capture).views)
    floaters = torch.from_numpy(camera.position + 0.4 * camera.forward) + 0.01 * torch.randn(12, 3)
    scene.means[:12], scene.logit_opacities[:12], scene.log_scales[:12] = floaters, 3.0, -3.0
    scene.save_ply(tmp_path / "scene.ply")
    for data in (run, capture):
        printed = done("edit", "scene.ply", "clean.ply", "--remove-floaters", "--data", data, cwd=tmp_path)
        assert "12 unseen, 0 near" in printed
        printed = done("edit", "scene.ply", "subject.ply", "--keep-subject", "--data", data, cwd=tmp_path)
        assert "the subject: --crop-sphere" in printed
        # The demo's cameras are 4.1 from what they look at, and see 45 degrees.
        away = np.linalg.norm(Gaussians.load(tmp_path / "subject.ply").positions - [0, 0, 0.3], axis=1)
        inside = np.linalg.norm(scene.positions - [0, 0, 0.3], axis=1) <= 4.1 * np.sin(np.pi / 8)
        assert len(away) == inside.sum() and not inside[:12].any()


def test_an_object_is_cut_out_and_trained_alone(capture: Path, tmp_path: Path) -> None:
    gaussians, ball = ball_on_floor()
    gaussians.save_ply(tmp_path / "scene.ply")
    where = ("--data", capture)
    seen = ("--keep-object", "004.png", 16, 16)
    printed = done("edit", "scene.ply", "ball.ply", *seen, "--masks", "masks", *where, cwd=tmp_path)
    assert "masks of 9 of 9 photographs are in masks" in printed
    done("edit", "scene.ply", "floor.ply", "--remove-object", "images/004.png", 16, 16, *where, cwd=tmp_path)
    kept, rest = (Gaussians.load(tmp_path / name) for name in ("ball.ply", "floor.ply"))
    assert len(kept) + len(rest) == len(gaussians) and abs(len(kept) - ball.sum()) < 0.1 * ball.sum()
    assert (kept.means[:, 2] > 0.02).all() and rest.means[:, 2].max() < 0.06
    for options, fault in (
        ((*seen[:2], 32, 0), "x is 32; it must be a whole number from 0 to 31"),
        ((*seen[:2], 16, 26), "shows the floor, table or wall"),
        (("--keep-object", "x.png", 1, 1), "x.png names 0 photographs"),
        ((*seen, "--masks", "masks"), "masks is not an empty folder"),
    ):
        assert fault in refusal("edit", "scene.ply", "no.ply", *options, *where, cwd=tmp_path)
    assert not (tmp_path / "no.ply").exists()

    train = ("train", capture, "--cut-out", "masks", "--out", "run", "--steps")
    done(*train, 60, cwd=tmp_path)
    assert json.loads((tmp_path / "run/run.json").read_text())["data"]["cut_out"] == str(tmp_path / "masks")
    assert json.loads((tmp_path / "run/run.json").read_text())["config"]["random_background"]
    done(*train, 61, "--resume", cwd=tmp_path)
    done("render", "run", "--mode", "alpha", "--views", "all", "--out", "views", cwd=tmp_path)
    view, mask = (iio.imread(tmp_path / path) for path in ("views/004.png", "masks/004.png.png"))
    assert view[mask == 255].mean() > view[mask == 0].mean() + 50


def test_a_mesh_in_real_units(run: Path, tmp_path: Path) -> None:
    reference = (0, 0, 0, 0, 3, 4, 10)
    assert "triangles are in it.ply" in done("mesh", run, "it.ply", "--resolution", 32, cwd=tmp_path)
    done("mesh", run, "closed.glb", "--resolution", 32, "--close-holes", cwd=tmp_path)
    done("mesh", run, "large.ply", "--resolution", 32, "--scale-reference", *reference, cwd=tmp_path)
    it, closed, large = (trimesh.load(tmp_path / name, force="mesh") for name in ("it.ply", "closed.glb", "large.ply"))
    assert closed.is_watertight and closed.volume > 0 and not it.is_watertight
    np.testing.assert_allclose(large.extents, 2 * it.extents, rtol=1e-5)
    done("edit", run / "scene.ply", "twice.ply", "--scale-reference", *reference, cwd=tmp_path)
    before, after = Gaussians.load(run / "scene.ply"), Gaussians.load(tmp_path / "twice.ply")
    np.testing.assert_allclose(after.means, 2 * before.means, rtol=1e-6)


def test_faulty_gaussians_are_left_out_when_asked(files: Path, tmp_path: Path) -> None:
    faulty = Gaussians.load(files / "scene.ply")
    faulty.quats[1] = 0
    write_gaussians(tmp_path / "faulty.ply", faulty.arrays())
    message = refusal("edit", "faulty.ply", "x.ply", cwd=tmp_path)
    assert "the first of them in row 2" in message and "--remove-faulty" in message
    assert "removed: 1 faulty" in done("edit", "faulty.ply", "x.ply", "--remove-faulty", cwd=tmp_path)
    assert len(Gaussians.load(tmp_path / "x.ply")) == len(faulty) - 1


def test_the_commands_that_are_printed_lead_to_a_scene(capture: Path, tmp_path: Path) -> None:
    how = ("--cells", "2x1", "--test-split", "first", "--out", "my cells")
    printed = done("partition", capture, *how, cwd=tmp_path)
    commands = [shlex.split(line)[1:] for line in printed.splitlines() if line.startswith("  splat ")]
    assert [words[0] for words in commands] == ["train", "train", "merge", "eval"]
    assert "was not trained; run `splat train 'my cells/cell-0-0'" in refusal(*commands[2], cwd=tmp_path)
    for words in commands:
        extra = ["--steps", "2", "--sh-degree", "0"] if words[0] == "train" else []
        printed = done(*words, *extra, cwd=tmp_path)
    assert all(f"images/{name}.png" in printed for name in ("000", "008"))
    assert len(Gaussians.load(tmp_path / "my cells" / "scene.ply")) > 1000
    done(*commands[0], "--resume", "--steps", "3", cwd=tmp_path)
