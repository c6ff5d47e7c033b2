"""Errors tell a user who has photographs or a video, but no poses, how to find the poses."""

from pathlib import Path

import pytest

from splat_py import load_dataset
from splat_py.image import read_picture
from splat_py.scene.pictures import read_header
from tests.refusals import refused


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["a.jpg", "b.PNG"], "holds 2 photographs but no poses; find poses first: `splat"),
        (["images/a.jpg"], "holds 1 photograph but .*`splat capture .* --out FOLDER`, and pass FOLDER"),
        (["IMG_1.HEIC"], "holds 1 photograph but .*splat capture"),
        (["a.MOV"], "holds a video but no poses; .*splat capture"),
        (["notes.txt"], r"no photographs, no video and no capture \(a COLMAP model in sparse/0, transforms.json or"),
        (["a.CR2", "b.gif"], r"RAW and GIF files are not read \(1 .cr2, 1 .gif\); save them"),
    ],
)
def test_a_folder_without_poses(names: list[str], says: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    refused(f"{tmp_path}.*{says}", load_dataset, tmp_path)


def test_files_in_the_place_of_a_folder(tmp_path: Path) -> None:
    for name, says in (("a.mp4", "is a video without poses; .*splat capture"), ("scene.ply", "is a file; name")):
        (tmp_path / name).touch()
        refused(f"{name} {says}", load_dataset, tmp_path / name)
    refused("nowhere does not exist; name a folder of photographs", load_dataset, tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["IMG_1.HEIC", "a.heif"])
def test_heic_says_how_to_convert_it(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\0\0\0\x18ftypheic")
    for read in (read_header, read_picture):
        refused(f"{name} is a HEIC photograph, which is not supported; convert it to JPEG.*sips", read, tmp_path / name)
