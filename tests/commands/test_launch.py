"""How soon the command line answers: what takes seconds to import is imported when it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import splat_py

_HEAVY = ("torch", "slangpy", "cv2", "scipy", "pycolmap", "imageio", "plyfile", "numpy")


def _imported(code: str, cwd: Path, *arguments: str) -> tuple[set[str], str]:
    """The heavy modules that a program has imported at its end, and what it printed."""
    report = f"import atexit, sys; atexit.register(lambda: print('\\n', *({_HEAVY!r} & sys.modules.keys())))\n".replace(
        f"{_HEAVY!r}", f"set({_HEAVY!r})"
    )
    command = [sys.executable, "-c", report + code, *arguments]
    environment = {"PYTHONPATH": str(Path(splat_py.__file__).parents[1]), "HOME": str(cwd), "PATH": ""}
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in result.stderr, result.stderr
    return set(result.stdout.splitlines()[-1].split()), result.stdout + result.stderr


_MAIN = "from splat_py.commands.main import main; main()"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--help"], "fit-image"),
        (["--version"], f"splat_py {splat_py.__version__}"),
        (["capture", "--help"], "--mapper"),
        (["capture", "nowhere", "--out", "scene"], "nowhere does not exist"),
        (["capture", ".", "--out", "scene", "--size", "3"], "size is 3"),
        (["train", "--help"], "--ssim-lambda"),
        (["fit-volume", "--help"], "--resolutions"),
        (["train", "nowhere", "--out", "run"], "nowhere is not a folder"),
        (["train", "nowhere", "--abacus"], "abacus"),
        (["train", "nowhere", "--out", "run", "--means-lr", "nan"], "means_lr is nan"),
        (["fit-volume", "nowhere", "--out", "run", "--downscale", "0"], "downscale is 0"),
        (["render", "nowhere", "--out", "views"], "nowhere is not the folder of a training run"),
        (["eval", "nowhere.ply"], "nowhere.ply does not exist"),
        (["export", "nowhere", "scene.ply"], "nowhere is not a folder"),
        (["export", "nowhere", "scene.obj"], "scene.obj does not end in"),
        (["export", "nowhere.spz", "scene.html"], "nowhere.spz does not exist"),
        (["edit", "nowhere.ply", "scene.txt"], "scene.txt has no ending"),
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
        (["view", ".", "--downscale", "0"], "--downscale is 0"),
    ],
)
def test_help_and_mistakes_are_answered_before_anything_heavy_is_imported(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    heavy, text = _imported(_MAIN, tmp_path, *arguments)
    assert says in text
    assert not heavy


def test_the_package_imports_its_public_names_when_they_are_used(tmp_path: Path) -> None:
    assert _imported("import splat_py; assert set(splat_py.__all__) <= set(dir(splat_py))", tmp_path)[0] == set()
    for module in (splat_py, splat_py.scene, splat_py.image, splat_py.volume):
        for name in module.__all__:
            assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="abacus"):
        _ = splat_py.abacus
