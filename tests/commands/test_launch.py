"""The command line answers soon: modules that take seconds to import are imported only when needed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import splat_py

_HEAVY = ("torch", "slangpy", "cv2", "scipy", "pycolmap", "imageio", "plyfile", "numpy")


# Run each list of arguments in turn; write what was printed and which heavy modules were imported by then.
_PROGRAM = """
import contextlib, io, json, sys
from splat_py.commands.main import main

results = []
for arguments in json.loads(sys.stdin.read()):
    sys.argv, printed = ["splat", *arguments], io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), contextlib.suppress(SystemExit):
        main()
    results.append((printed.getvalue(), sorted(HEAVY & sys.modules.keys())))
print(json.dumps(results))
"""
CASES: list[tuple[list[str], str]] = [
    (["--help"], "fit-image"),
    (["--version"], f"splat_py {splat_py.__version__}"),
    (["capture", "--help"], "--mapper"),
    (["capture", "nowhere", "--out", "scene"], "nowhere does not exist"),
    (["capture", ".", "--out", "scene", "--size", "3"], "size is 3"),
    (["train", "--help"], "--ssim-lambda"),
    (["fit-volume", "--help"], "--resolutions"),
    (["train", "nowhere", "--out", "run"], "nowhere does not exist"),
    (["fit-volume", "my photographs", "--out", "run"], "`splat capture 'my photographs' --out FOLDER`"),
    (["train", "nowhere", "--abacus"], "abacus"),
    (["train", "nowhere", "--out", "run", "--means-lr", "nan"], "means_lr is nan"),
    (["fit-volume", "nowhere", "--out", "run", "--downscale", "0"], "downscale is 0"),
    (["render", "nowhere", "--out", "views"], "nowhere is not the folder of a training run"),
    (["eval", "nowhere.ply"], "nowhere.ply does not exist"),
    (["eval", "nowhere", "--downscale", "0"], "downscale is 0"),
    (["export", "nowhere", "scene.ply"], "nowhere is not a folder"),
    (["export", "nowhere", "scene.obj"], "scene.obj does not end in"),
    (["export", "nowhere.spz", "scene.html"], "nowhere.spz does not exist"),
    (["edit", "nowhere.ply", "scene.txt"], "scene.txt does not end like"),
    (["fit-image", "nowhere.jpg", "--out", "fit"], "nowhere.jpg does not exist"),
    (["render", "nowhere", "--video", "orbit.abc"], "orbit.abc"),
    (["render", "nowhere", "--video", "a.mp4", "--path", "zigzag"], "orbit, spiral, dolly or a .json"),
    (["render", "nowhere", "--out", "views", "--path", "dolly"], "--video"),
    (["render", "nowhere", "--out", "views", "--mode", "heat"], "contributions"),
    (["render", "nowhere", "--out", "views", "--aperture", "-1"], "--aperture is -1"),
    (["render", "nowhere", "--out", "views", "--aperture", "1", "--mode", "depth"], "blurs colours"),
    (["render", "nowhere", "--out", "views", "--focus", "nan"], "--focus is nan"),
    (["view", "--help"], "--host"),
    (["view", "nowhere"], "nowhere does not exist"),
    (["view", ".", "--downscale", "0"], "downscale is 0"),
    (["trian", "nowhere", "--out", "run"], "trian"),
    (["bench", "--abacus"], "abacus"),
    (["train", "nowhere", "--out", "run", "--strategy", "abacus"], "abacus"),
    (["train", "nowhere", "--out", "run", "--resume"], "there is no checkpoint"),
    (["fit-volume", "nowhere", "--out", "run", "--resume"], "there is no checkpoint"),
    (["fit-image", __file__, "--out", "fit", "--resume"], "there is no checkpoint"),
    (["fit-image", __file__, "--out", "fit", "--blobs", "0"], "blobs is 0"),
    (["fit-image", __file__, "--out", "fit", "--blobs", "many"], "many"),
    (["edit", "nowhere.ply", "scene.ply"], "nowhere.ply does not exist"),
    (["demo", "--steps", "0"], "steps is 0"),
    (["bench", "--gaussians", "0"], "gaussians is 0"),
    (["bench", "--data", "nowhere"], "nowhere does not exist"),
    (["bench", "--quality", "nowhere.toml"], "nowhere.toml does not exist"),
    (["eval", __file__], "neither a run's folder nor"),
    (["bench", "--device", "abacus"], "'abacus' is not known"),
    (["selftest", "--device", "vulkan:x"], "'vulkan:x' is not known"),
]


def _run(code: str, cwd: Path, given: str = "") -> str:
    """The output of a program that runs without this process's environment and with an empty PATH."""
    environment = {"PYTHONPATH": str(Path(splat_py.__file__).parents[1]), "HOME": str(cwd), "PATH": "", "COLUMNS": "200"}
    code = f"HEAVY = set({_HEAVY!r})\n{code}"
    command = [sys.executable, "-c", code]
    result = subprocess.run(
        command, cwd=cwd, env=environment, input=given, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, list[str]]]:
    """The output of each case, and the heavy modules that were imported by then."""
    folder, given = tmp_path_factory.mktemp("launch"), json.dumps([arguments for arguments, _ in CASES])
    (folder / "my photographs").mkdir()
    (folder / "my photographs" / "a.jpg").touch()
    return json.loads(_run(_PROGRAM, folder, given).splitlines()[-1])


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda case: " ".join(CASES[case][0]).replace(__file__, "FILE"))
def test_help_and_mistakes_are_answered_before_anything_heavy_is_imported(
    case: int, answers: list[tuple[str, list[str]]]
) -> None:
    text, heavy = answers[case]
    assert CASES[case][1] in text and "Traceback" not in text
    assert not heavy


def test_the_package_imports_its_public_names_when_they_are_used(tmp_path: Path) -> None:
    code = "import sys, splat_py; assert set(splat_py.__all__) <= set(dir(splat_py)); print(HEAVY & sys.modules.keys())"
    assert _run(code, tmp_path) == "set()\n"
    for module in (splat_py, splat_py.image, splat_py.volume):
        for name in module.__all__:
            assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="abacus"):
        _ = splat_py.abacus
