"""`splat bench --quality`: an experiment of kinds, seeds and captures, its page, and what it refuses."""

import json
import re
import signal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import splat_py.train.run
from splat_py.commands import experiment
from splat_py.commands.experiment import Experiment, Outcome, _half, summary
from splat_py.demo.scene import write_demo_scene
from splat_py.scene.pictures import beside, write_image
from splat_py.train.evaluation import Lpips
from splat_py.train.run import RunFolder, train
from splat_py.train.trainer import Trainer
from tests.commands.program import done, refusal
from tests.commands.test_resume import signalled_at
from tests.refusals import refused

SPLAT = """import splat.prelude;
struct Mine : IFalloff
{
    float power;
    [Differentiable]
    float value(float sigma) { return exp(-sigma * power); }
    float sigmaMax(float opacity) { return log(opacity / ALPHA_MIN) / power; }
}"""
EXPERIMENT = """
captures = ["{capture}"]
seeds = [3, 5]
common = {{steps = 6, test_every = 4, sh_degree = 0, accumulate = "pair"}}
[kinds.usual]
[kinds.mine]
splat = "mine.slang"
splat_params = ["power=1"]
steps = 9
"""


@pytest.fixture(scope="module")
def lab(capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an experiment that was interrupted and then ended."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "mine.slang").write_text(SPLAT)
    (folder / "powers.toml").write_text(EXPERIMENT.format(capture=capture))
    result = signalled_at({8: signal.SIGTERM}, "bench", "--quality", "powers.toml", cwd=folder)
    assert "run the command again to continue" in result.stderr
    assert run_of(folder, "usual", 3).metrics_file.exists() and run_of(folder, "mine", 3).checkpoint.exists()
    assert not run_of(folder, "mine", 3).metrics_file.exists()
    assert "1 of 4" not in done("bench", "--quality", "powers.toml", cwd=folder)
    return folder


def run_of(folder: Path, kind: str, seed: int) -> RunFolder:
    return RunFolder(folder / "runs" / "powers" / "demo" / kind / str(seed))


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "runs" / "powers" / "results.json").read_text())["captures"]["demo"]


def test_each_run_is_a_runs_folder_and_the_table_holds_means(lab: Path) -> None:
    found = results(lab)
    assert {kind: list(of["runs"]) for kind, of in found.items()} == {"usual": ["3", "5"], "mine": ["3", "5"]}
    for kind, steps in (("usual", 6), ("mine", 9)):
        for seed in (3, 5):
            run, outcome = run_of(lab, kind, seed), found[kind]["runs"][str(seed)]
            metrics, config = run.metrics(), run.record().config
            assert (config.steps, config.seed, config.splat_source != "") == (steps, seed, kind == "mine")
            assert outcome["psnr"] == metrics["held_out"]["psnr"] and outcome["gaussians"] == len(run.gaussians())
            # The time of an interrupted run is not known.
            assert (outcome["processor_seconds"] is None) == ((kind, seed) == ("mine", 3))
        scores = [one["psnr"] for one in found[kind]["runs"].values()]
        assert found[kind]["mean"]["psnr"] == pytest.approx(np.mean(scores))
        assert found[kind]["mean"]["psnr_deviation"] == pytest.approx(np.std(scores, ddof=1))
    assert summary([Outcome(1.0, 1.0, None, 1, 1, 2.0)])["psnr_deviation"] is None


def test_the_page_holds_its_pictures(lab: Path) -> None:
    addresses, cells = [], []

    class Page(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            addresses.extend(value or "" for name, value in attrs if name in ("src", "href"))

        def handle_data(self, data: str) -> None:
            cells.append(data)

    Page().feed((lab / "runs" / "powers" / "index.html").read_text(encoding="utf-8"))
    pictures = len(list(run_of(lab, "usual", 3).pictures.iterdir()))
    assert len(addresses) == 3 * pictures > 0 and all(address.startswith("data:image/jpeg;base64,") for address in addresses)
    assert {"usual", "mine", "photograph"} <= set(cells)


@pytest.mark.parametrize("width", [24, 130, 256])
def test_a_picture_is_found_beside_its_render(width: int, tmp_path: Path) -> None:
    write_image(tmp_path / "pair.png", beside(*(np.full((2, width, 3), shade, np.float32) for shade in (0.2, 0.6))))
    for right, shade in ((False, 51), (True, 153)):
        half = _half(tmp_path / "pair.png", right)
        assert (half == shade).all() and abs(half.shape[1] - width) <= 1


def test_finished_runs_are_kept_and_changed_ones_refused(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, text, before = lab / "powers.toml", (lab / "powers.toml").read_text(), results(lab)
    monkeypatch.setattr(Trainer, "advance", lambda trainer: pytest.fail("a finished run is trained again"))
    done("bench", "--quality", file, cwd=lab)
    assert results(lab) == before
    for old, new, message in (
        ("steps = 6", "steps = 7", "--steps is 7, but the run in .*usual.3 was begun with 6"),
        ("steps = 9", "steps = 9\nantialiased = true", "--antialiased is True, but the run in .*mine.3 was begun with False"),
        ("test_every = 4", "test_every = 3", "--test-every is 3, but"),
    ):
        file.write_text(text.replace(old, new))
        assert re.search(message, refusal("bench", "--quality", file, cwd=lab))
    file.write_text(text)
    (lab / "mine.slang").write_text(SPLAT.replace("-sigma", "-0.5 * sigma"))
    sentence = refusal("bench", "--quality", file, cwd=lab)
    assert re.search("--splat is a source of Mine, but the run in .*mine.3", sentence)
    (lab / "mine.slang").write_text(SPLAT)


def test_a_run_is_made_again_from_its_folder(lab: Path, tmp_path: Path) -> None:
    """Without the file of its Slang, and to the last bit with accumulate="pair"."""
    first = run_of(lab, "mine", 5)
    content = json.loads(first.record_file.read_text())
    assert content["version"] and content["config"]["seed"] == 5 and content["config"]["splat_source"] == SPLAT
    record = first.record()
    train(record.data, record.config, tmp_path / "again", trust_source=True)
    again = RunFolder(tmp_path / "again")
    assert again.metrics()["held_out"] == first.metrics()["held_out"]
    assert again.scene.read_bytes() == first.scene.read_bytes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kinds = ", "is not an experiment"),
        ("a = " + "[" * 10_000, "is not an experiment"),
        ("# " + "a" * (1 << 20), "more than 1,048,576 bytes"),
        ("", "names no run; add a table"),
        ("seeds = []\n[kinds.a]", "names no run; add a table"),
        ("seeds = [1, 1]\n[kinds.a]", r"seeds is \[1, 1\]; it must be a list of different whole numbers"),
        ("seeds = [true]\n[kinds.a]", "seeds is .*whole numbers"),
        ("seeds = [-1]\n[kinds.a]", "kind a: seed is -1; it must be at least 0"),
        (f"seeds = [0x{'f' * 4000}]\n[kinds.a]", "kind a: seed is a number of more than 18 digits"),
        ("seeds = 3\n[kinds.a]", "seeds is 3; it must be a list"),
        ('captures = ["a\\u0000"]\n[kinds.a]', "captures is .*paths in quotes"),
        ('captures = ["nowhere"]\n[kinds.a]', "nowhere does not exist"),
        ('captures = [".", "./."]\n[kinds.a]', "two captures of one name"),
        ("capture = 3\n[kinds.a]", "'capture' is no entry of an experiment; did you mean captures"),
        ("kinds = 3", "kinds is 3; it must be a table"),
        ("[kinds]\na = 3", "a is 3; it must be a table"),
        ('[kinds."../a"]', "the kind '../a' cannot name a folder"),
        ("[kinds.a]\nstepz = 3", "kind a: 'stepz' is no option of kinds; did you mean steps"),
        ("[kinds.a]\nsplat_source = ''", "'splat_source' is no option of kinds"),
        ("[kinds.a]\nseed = 3", "'seed' is no option of kinds"),
        ("[kinds.a]\nsteps = 3.5", "kind a: steps is 3.5; it must be a whole number"),
        ("[kinds.a]\nsteps = 0", "kind a: steps is 0; it must be at least 1"),
        ("[kinds.a]\nsplat = 'nowhere.slang'", "kind a: splat is 'nowhere.slang'"),
        ("common = {downscale = 0}\n[kinds.a]", "kind a: downscale is 0"),
        (f"seeds = {list(range(10_001))}\n[kinds.a]", "more than 10,000 runs"),
    ],
)
def test_what_is_no_experiment(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(text)
    refused(message, Experiment.read, tmp_path / "experiment.toml")


def test_help_shows_an_experiment(tmp_path: Path) -> None:
    """Parsers of docstrings join lines that are not indented."""
    assert "\n  seeds = [0, 1, 2]\n" in done("bench", "--help", cwd=tmp_path)


def test_the_embedded_demo_is_the_capture_if_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "write_demo_scene", lambda folder: write_demo_scene(folder, views=9, size=16))
    monkeypatch.setattr(splat_py.train.run, "open_lpips", lambda: Lpips(lambda x, y: torch.tensor(0.25)))
    (tmp_path / "one.toml").write_text("seeds = [0]\n[kinds.a]\nsteps = 1")
    printed = done("bench", "--quality", "one.toml", "--out", "lab", cwd=tmp_path)
    assert "demo, a, seed 0" in printed and "LPIPS" in printed and " 0.2500 " in printed
    assert RunFolder(tmp_path / "lab" / "demo" / "a" / "0").record().data.data == tmp_path / "lab" / "photographs"


def test_a_capture_that_holds_out_no_view(capture: Path, tmp_path: Path) -> None:
    (tmp_path / "all.toml").write_text(f'captures = ["{capture}"]\n[kinds.all]\ntest_every = 0')
    assert "holds out no view to measure with all" in refusal("bench", "--quality", "all.toml", cwd=tmp_path)
    assert not (tmp_path / "runs").exists()
