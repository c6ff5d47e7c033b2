"""The documents and examples: links and names exist, pictures and figures are current, and their Python runs."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_model import LIMITS, Limits, Time, occupancy
from benchmarks.gpu_recording import kernels
from benchmarks.gpu_sass import hot_loop
from benchmarks.gpu_tables import DOCUMENT as GPUS
from benchmarks.gpu_tables import read, written
from splat_py.commands.fit import ImageOptions
from splat_py.gpu.device import tuning_of
from splat_py.image.rasterizers import _AUTODIFF_BLOBS as AUTODIFF_BLOBS
from splat_py.scene.data_options import CaptureOptions
from splat_py.train.config import TrainConfig
from tests.emulation.compiler import find_clang

ROOT = Path(__file__).resolve().parents[1]
_FOLDERS = ("*.md", "benchmarks/*.md", "docs/**/*.md", "tests/*/*.md")
DOCUMENTS = [path for pattern in _FOLDERS for path in sorted(ROOT.glob(pattern))]
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:slang|splat_py|tests|docs|benchmarks|examples|notebooks)/[\w./*-]*)`")
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_and_paths_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    missing = [path for path in _PATH.findall(text) if not any(ROOT.glob(path))]
    for link in _LINK.findall(text):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = document.parent / file if file else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    assert not missing


def test_the_picture_of_a_step_is_what_its_script_draws() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "draw_training_step.py"))
    assert (ROOT / "docs" / "training-step.svg").read_text(encoding="utf-8") == script["draw"]()


def test_the_worked_examples_gradients_agree(capsys: pytest.CaptureFixture[str]) -> None:
    exec(_PYTHON.findall((ROOT / "docs" / "change-a-shader.md").read_text(encoding="utf-8"))[0], {})
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 6
    for _, derived, difference in rows:
        assert float(derived) == pytest.approx(float(difference), abs=1e-4)


def test_the_operator_is_compiled_exported_and_lowered() -> None:
    blocks = _PYTHON.findall((ROOT / "docs" / "portable.md").read_text(encoding="utf-8"))
    assert len(blocks) == 4
    # One file, as the compiler reads the source of what it compiles.
    exec(compile("\n".join(blocks), "portable.md", "exec"), {"__name__": "portable_md"})


def test_a_metal_kernel_runs_by_hand() -> None:
    """A process of its own runs it: the runner's threads and signal handlers exist once a process."""
    find_clang()
    (source,) = _PYTHON.findall((ROOT / "tests" / "metal" / "README.md").read_text(encoding="utf-8"))
    process = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.stdout.endswith("[12487503 12492501 12497500]\n"), process.stderr


EXAMPLES = sorted(ROOT.glob("examples/*.py"))
# Numbers of steps; the loss they print must fall, or the PSNR rise.
STEPS = {"features": 8, "fit_image": 26, "minimal": 50, "own_trainer": 61, "pose": 6, "train": 52, "volume": 3}
# dB on a held-out view; 9 pictures of 48 × 48 pixels give 22.0.
FLOORS = {"own_trainer": 18.0}
LESS, MORE = re.compile(r"loss ([\d.]+)"), re.compile(r"([\d.]+) dB")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    steps = STEPS.get(example.stem)
    monkeypatch.setattr(sys, "argv", [str(example), *(["--steps", str(steps)] if steps else [])])
    runpy.run_path(str(example), run_name="__main__")
    text = capsys.readouterr().out
    losses = [float(value) for value in LESS.findall(text)]
    qualities = [float(value) for value in MORE.findall(text)]
    assert not steps or losses[-1:] < losses[:1] or qualities[-1] > qualities[0], text
    assert example.stem not in FLOORS or qualities[-1] > FLOORS[example.stem], text
    for name in re.findall(r"(?:look at|scene is) ([^\s;]+)", text):
        assert Path(name).stat().st_size > 0


def test_an_example_is_a_page_and_the_readme_names_it() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(EXAMPLES) == 8
    for example in EXAMPLES:
        text = example.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 120
        assert f"examples/{example.name}" in readme
        assert f"python examples/{example.name}" in text


def test_figures_and_tables_are_of_todays_kernels() -> None:
    figures = read("gpu_static.json")["kernels"]
    expected, actual = kernels(), {name: tuple(of["used"]) for name, of in figures.items()}
    assert actual == expected, "run python -m benchmarks.gpu_static and python -m benchmarks.gpu_tables"
    text = GPUS.read_text(encoding="utf-8")
    assert text == written(text), "run python -m benchmarks.gpu_tables"


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("docs/photographs.md", f"{TrainConfig().steps:,} unless you say otherwise"),
        ("docs/geometry.md", f"The default of {TrainConfig().steps:,} steps"),
        ("docs/captures.md", f"at most {CaptureOptions().size:,} pixels (`--size`)"),
        ("docs/captures.md", f"at most {CaptureOptions().features:,} each"),
        ("docs/mac.md", f"more than {tuning_of('metal').segment:,} Gaussians"),
        ("docs/images-and-volumes.md", f"at most {AUTODIFF_BLOBS} blobs"),
        ("docs/images-and-volumes.md", f"--blobs {ImageOptions().blobs} --steps {ImageOptions().steps}"),
        ("README.md", f"in {len((ROOT / 'examples' / 'minimal.slang').read_text().splitlines())} lines"),
        ("notebooks/00-the-idea.ipynb", f"{len((ROOT / 'examples' / 'minimal.slang').read_text().splitlines())} lines"),
    ],
)
def test_figures_of_the_code(document: str, sentence: str) -> None:
    assert sentence in (ROOT / document).read_text(encoding="utf-8")


def test_the_readme_shows_the_loop_of_the_page() -> None:
    readme, page = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "examples/minimal.slang"))
    (loop,) = re.findall(r"^```hlsl\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert loop in page


@pytest.mark.parametrize(
    ("limits", "threads", "registers", "shared", "expected"),
    [
        # 65,536 registers hold 32 warps with 64 registers a thread, and 40 with 48.
        (LIMITS["sm_90"], 256, 64, 0, 0.5),
        (LIMITS["sm_90"], 256, 48, 0, 40 / 64),
        (LIMITS["sm_90"], 256, 32, 0, 1.0),
        # Seven blocks of 32 KiB, of one warp each.
        (LIMITS["sm_90"], 32, 32, 31 << 10, 7 / 64),
        (LIMITS["sm_75"], 32, 16, 0, 0.5),
        (Limits(48, 24, 100 << 10, 1 << 10), 1024, 32, 0, 32 / 48),
    ],
)
def test_occupancy(limits: Limits, threads: int, registers: int, shared: int, expected: float) -> None:
    assert occupancy(limits, threads, registers, shared) == pytest.approx(expected)


def test_what_binds_a_stage() -> None:
    time = Time(issue=1.0, memory=2.0, launch=0.5)
    assert (time.total, time.bound) == (2.5, "memory")


LISTING = """
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_1:
        /*0010*/                   LDG.E R1, desc[UR4][R2.64] ;
        /*0020*/                   FSETP.GT.AND P0, PT, R1, 1, PT ;
.L_x_2:
        /*0030*/                   MUFU.EX2 R1, R1 ;
        /*0040*/              @!P0 BRA `(.L_x_4) ;
        /*0050*/                   FADD R1, R1, R1 ;
.L_x_3:
        /*0060*/                   SHFL.BFLY PT, R1, R1, 0x1, 0x1f ;
        /*0070*/               @P1 BRA `(.L_x_3) ;
        /*0080*/                   RED.E.ADD.F32.FTZ.RN.STRONG.GPU desc[UR4][R2.64], R1 ;
.L_x_4:
        /*0090*/              @!P0 BRA.DIV UR4, `(.L_x_5) ;
        /*00a0*/               @P2 BRA `(.L_x_2) ;
        /*00b0*/               @P3 BRA `(.L_x_1) ;
        /*00c0*/                   EXIT ;
.L_x_5:
        /*00d0*/                   BRA `(.L_x_4) ;
"""


def test_the_hot_loop_of_a_listing() -> None:
    """The innermost loop with the exponential, and the part that a branch skips."""
    loop = hot_loop(LISTING)
    assert loop is not None
    assert loop.conditional == {"shuffle": 1, "atomic": 1, "branch": 1, "fp32": 1}
    assert loop.counts == {"mufu": 1, "shuffle": 1, "mask": 1, "atomic": 1, "branch": 3, "fp32": 1}
    assert loop.around == {"global load": 1, "branch": 1, "fp32": 1}
    assert hot_loop(LISTING.replace("MUFU.EX2", "MUFU.RCP")) is None
