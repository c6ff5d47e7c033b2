"""Bad input is refused in one sentence that names the culprit, before anything is written."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from tests.commands.program import refusal


@pytest.fixture(scope="module")
def place(run: Path, capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a capture, a run, a photograph, damaged files and files of other kinds."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "capture").symlink_to(capture)
    (folder / "run").symlink_to(run)
    (folder / "photo.png").symlink_to(sorted((capture / "images").iterdir())[0])
    for name in ("empty", "bare", "full", "half"):
        (folder / name).mkdir()
    (folder / "full" / "thesis.txt").touch()
    (folder / "file").touch()
    for name in ("text.ply", "text.spz", "text.png", "text.jpg"):
        (folder / name).write_text("nothing of the sort")
    (folder / "bare" / "transforms.json").write_bytes((capture / "transforms.json").read_bytes())
    checkpoint = (run / "checkpoint.safetensors").read_bytes()
    (folder / "half" / "checkpoint.safetensors").write_bytes(checkpoint[: len(checkpoint) // 2])
    for name in ("damaged", "nan"):
        shutil.copytree(capture, folder / name)
    victim = sorted((folder / "damaged" / "images").iterdir())[0]
    victim.rename(victim.with_name("victim.png")).write_bytes(victim.with_name("victim.png").read_bytes()[:100])
    for name, change in (("damaged", victim.name), ("nan", "")):
        path = folder / name / "transforms.json"
        content = json.loads(path.read_text().replace(change, "victim.png") if change else path.read_text())
        if not change:
            content["frames"][0]["transform_matrix"][0][3] = float("nan")
        path.write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("line", "culprit"),
    [
        ("train empty --out out", "empty"),
        ("train bare --out out", "bare"),
        ("train damaged --steps 5 --out out", "victim.png"),
        ("train nan --out out", ""),
        ("train capture --downscale 1000 --out out", "downscale"),
        ("train capture --init-num-pts 0 --out out", "init_num_pts"),
        ("train capture --seed -1 --out deep/out", "seed is -1"),
        ("train capture --opacity-reset-every 0 --out deep/out", "opacity_reset_every is 0"),
        ("train capture --init random --init-num-pts 100000000000 --out deep/out", "init_num_pts is 100000000000"),
        ("train capture --steps 9 --init random --max-gaussians 5 --out deep/out", "max_gaussians is 5, less than the 10,000"),
        ("train capture --steps 9 --max-memory 200MB --out out", "may take 200 MB (--max-memory): use --max-memory"),
        ("train capture --steps 9 --max-memory 200MB --out out", "training would take"),
        ("train capture --steps 1 --out file/run", "file"),
        ("train capture --out file/run", "cannot write to file/run"),
        ("train capture --out half --resume", "checkpoint.safetensors"),
        ("train capture --out new --resume", "does not exist"),
        ("train capture --out run", "--resume"),
        ("eval run/scene.ply", "--data"),
        ("eval .", "run.json"),
        ("eval text.ply --data capture", "text.ply"),
        ("eval run --json .", "name a file"),
        ("eval [/red]", "[/red]"),
        ("render run", "--out"),
        ("render run --video a.mp4 --frames 1000000", "--frames is 1000000"),
        ("render run --out views --scale 1e308", "--scale is 1e+308"),
        ("render run --out views --scale 1e9", "--scale is 1e+09"),
        ("render run --out views --scale nan", "--scale is nan"),
        ("render run --out views --mode heat", "--mode is 'heat'; use color"),
        ("render run/scene.ply --mode uncertainty --video a.mp4 --path a.json", "--data"),
        ("suggest run --among circle", "--among is 'circle'; use orbit"),
        ("suggest run --among absent.json", "absent.json"),
        ("suggest run --count 0", "--count is 0; it must be from 1 to 48"),
        ("suggest run/scene.ply", "--data"),
        ("suggest run --out file", "file"),
        ("render run/scene.ply --path orbit --video a.mp4", "--data"),
        ("mesh run out.obj", "out.obj; use a name that ends in .ply or .glb"),
        ("mesh run/scene.ply out.glb", "--data"),
        ("mesh run run/scene.ply", "run/scene.ply is the scene itself"),
        ("mesh run out.glb --resolution 9", "resolution is 9; it must be a whole number from 16 to 1024"),
        ("mesh run out.glb --scale-reference 1 2 3 1 2 3 4", "--scale-reference is 1 2 3 1 2 3 4; give two different points"),
        ("mesh text.ply out.glb --data capture", "text.ply"),
        ("edit run/scene.ply out.ply --keep-subject", "--keep-subject needs cameras; name the run's folder"),
        ("edit run/scene.ply out.ply --keep-subject --data empty", "empty holds no photographs, no video and no capture"),
        ("edit run/scene.ply out.ply --data run", "add one of these"),
        ("edit run/scene.ply out.ply --remove-object 1.png 2 3", "--remove-object needs cameras; name the run's folder"),
        ("edit run/scene.ply out.ply --masks masks --data run", "name one with --keep-object or --remove-object"),
        ("edit run/scene.ply out.ply --keep-object 1.png 2 3 --remove-object 1.png 2 3 --data run", "leave one out"),
        ("train capture --cut-out empty --out out", "empty holds no mask with the name of a photograph in capture"),
        ("edit run/scene.ply out.ply --scale 1 --scale-reference 1 2 3 1 2 3 4", "leave one out"),
        ("export run scene.spz --data capture", "--data is for pages"),
        ("export run x.ply --spz-version 0", "SPZ version is 0"),
        ("edit run/scene.ply", "then the file to write"),
        ("edit run/scene.ply x.ply --crop-sphere 1000 0 0 1", "none of"),
        ("edit run/scene.ply x.ply --faint 0.1", "--remove-floaters"),
        ("edit text.spz x.ply", "text.spz is not a .spz file or is damaged"),
        *((f"partition capture --cells={cells} --out a", "give columns and rows, such as 2x2")
          for cells in ("1x1", "2", "0x4", "65x1", "9x9", "-2x2", "axb")),
        ("partition capture --overlap=-1 --out a", "overlap is -1.0"),
        ("partition absent --out a", "absent does not exist"),
        ("partition capture --out full", "choose another --out"),
        ("merge full --out a.ply", "holds no cell of a partition"),
        ("merge full --out a.obj", "does not end like a scene file"),
        ("fit-image photo.png --out photo.png", "photo.png is a file; name a folder"),
        ("fit-image photo.png --blobs 100000000000 --out deep/out", "blobs is 100000000000"),
        ("fit-image photo.png --seed -1 --out deep/out", "seed is -1"),
        ("fit-image photo.png --method autodiff --out many", "at most 400 blobs"),
        ("fit-image text.png --out out", "text.png"),
        ("fit-image photo.png --out empty --resume", "there is no checkpoint to resume from"),
        ("fit-image photo.png --out half --resume", "is damaged; fit without --resume"),
        ("fit-volume nowhere --out out", "nowhere"),
        ("fit-volume capture --box 0 0 0 1 0 1 --out out", "box is degenerate"),
        ("fit-volume capture --export field.ply --out out", "field.ply"),
        ("fit-volume capture --frames -1 --out out", "--frames"),
        ("fit-volume capture --frames 100000000000000000000 --out out", "--frames"),
        ("fit-volume capture --resume --out out", "checkpoint.safetensors does not exist"),
        ("fit-volume nowhere --out half", "--resume"),
        ("fit-volume nowhere --out half --resume", "damaged"),
        ("view text.jpg", "text.jpg"),
        ("view text.ply", "text.ply"),
        ("view empty", "empty"),
        ("bench --device metal", "metal"),
        ("bench --side 1000000", "side is 1000000; it must be at most"),
        ("bench --out .", "is a folder; name a file"),
    ],
)  # fmt: skip
def test_one_sentence(line: str, culprit: str, place: Path) -> None:
    def files() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()}

    before, folders = files(), sorted(place.iterdir())
    assert culprit in refusal(*shlex.split(line), cwd=place)
    assert (files(), sorted(place.iterdir())) == (before, folders)


def test_a_device_of_the_environment(tmp_path: Path) -> None:
    assert "abacus" in refusal("bench", cwd=tmp_path, SPLAT_DEVICE="abacus")


def test_an_address_of_a_viewer(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("viser")
    assert "--port" in refusal("view", run, "--port", "-3", cwd=tmp_path)
    assert "--host" in refusal("view", run, "--host", "203.0.113.7", cwd=tmp_path)
