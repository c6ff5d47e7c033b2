"""Photographs are stored upright under safe names, with their EXIF focal length; a video gives its sharpest frames."""

import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe
from PIL import Image, ImageOps

from splat_py.capture import capture
from splat_py.capture.photographs import (
    Exif,
    Original,
    find_photographs,
    oriented,
    read_exif,
    sharpness,
    store_frames,
    store_photograph,
    stored_names,
)
from splat_py.scene.pictures import read_picture, write_video
from tests.capture.room import photograph, room_cameras
from tests.refusals import refused
from tests.scene.captures import picture, write_image


def stored_with(path: Path, **tags: int) -> Path:
    """A JPEG with EXIF tags of the picture, or of the camera for `focal_35mm`."""
    exif = Image.Exif()
    exif[0x0112] = tags.get("orientation", 1)
    if "focal_35mm" in tags:
        exif.get_ifd(0x8769)[0xA405] = tags["focal_35mm"]
    Image.fromarray(picture(3, 60, 40)).save(path, exif=exif, quality=95)
    return path


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_pillows(orientation: int, tmp_path: Path) -> None:
    path = stored_with(tmp_path / "a.jpg", orientation=orientation, focal_35mm=30)
    exif = read_exif(path.read_bytes())
    assert exif.orientation == orientation
    assert exif.focal == pytest.approx(30 * np.hypot(60, 40) / np.hypot(36, 24))
    with Image.open(path) as image:
        upright = np.asarray(ImageOps.exif_transpose(image))[..., ::-1]
    np.testing.assert_array_equal(oriented(read_picture(path, cv2.IMREAD_COLOR), orientation), upright)
    stored = store_photograph(Original(path, "a.jpg"), "a.jpg", tmp_path / "images", tmp_path / "masks")
    again = read_picture(tmp_path / "images" / "a.jpg", cv2.IMREAD_COLOR)
    assert (stored.height, stored.width) == again.shape[:2] == upright.shape[:2]
    assert np.abs(again.astype(int) - upright).mean() < 4
    assert read_exif((tmp_path / "images" / "a.jpg").read_bytes()).orientation == 1


def test_upright_photographs_are_copied_and_other_kinds_lose_nothing(tmp_path: Path) -> None:
    for name in ("a.JPG", "b.png", "c.tif", "d.webp", "e.bmp"):
        write_image(tmp_path / name, picture(1))
    sources = find_photographs(tmp_path)
    assert stored_names(sources) == ["a.JPG", "b.png", "c.png", "d.png", "e.png"]
    for source, name in zip(sources, stored_names(sources), strict=True):
        store_photograph(source, name, tmp_path / "out" / "images", tmp_path / "out" / "masks")
        stored = tmp_path / "out" / "images" / name
        np.testing.assert_array_equal(read_picture(stored, -1), read_picture(source.path, -1))
        assert (stored.read_bytes() == source.path.read_bytes()) == (source.path.suffix == stored.suffix)


def test_a_photograph_of_another_kind_than_its_name_says_becomes_that_kind(tmp_path: Path) -> None:
    """COLMAP goes by the name, and would find no features in it."""
    for kind in ("WEBP", "GIF"):
        frames = [Image.fromarray(picture(i)) for i in range(3)]
        frames[0].save(tmp_path / "a.jpg", kind, save_all=True, append_images=frames[1:])
        store_photograph(Original(tmp_path / "a.jpg", "a.jpg"), "a.jpg", tmp_path / kind, tmp_path / "masks")
        with Image.open(tmp_path / kind / "a.jpg") as stored:
            assert stored.format == "JPEG" and stored.size == frames[0].size


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes there that have names in folders")
def test_pipes_devices_and_broken_links_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    os.mkfifo(tmp_path / "pipe.mp4")
    for name, target in (("device.jpg", "/dev/zero"), ("gone.jpg", "nowhere"), ("loop.jpg", "loop.jpg")):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "folder.jpg").mkdir()
    found = find_photographs(tmp_path)
    assert [source.name for source in found] == ["device.jpg", "gone.jpg", "loop.jpg", "pipe.jpg"]
    for source in found:
        refused(f"{source.name} cannot be read .*; check", store_photograph, source, "a.jpg", tmp_path / "x", tmp_path / "x")
    refused("pipe.mp4 cannot be read as a video", store_frames, tmp_path / "pipe.mp4", tmp_path, 2, lambda *progress: None)
    refused("pipe.mp4 is neither a folder of photographs nor a video", capture, tmp_path / "pipe.mp4", tmp_path / "out")
    refused(r"0 of 4 photographs can be read: .*device\.jpg", capture, tmp_path, tmp_path / "out")


def test_exif_that_says_nothing_or_nonsense(tmp_path: Path) -> None:
    assert read_exif(b"") == read_exif(b"\xff\xd8\xff\xe1\x00\x10Exif\0\0garbage") == Exif()
    assert read_exif(stored_with(tmp_path / "a.jpg", orientation=9, focal_35mm=0).read_bytes()) == Exif()
    assert read_exif(stored_with(tmp_path / "a.jpg", focal_35mm=60_000).read_bytes()).focal is None
    whole = stored_with(tmp_path / "a.jpg", orientation=6, focal_35mm=28).read_bytes()
    for end in range(0, 200, 3):
        read_exif(whole[:end])
        read_exif(whole[:end] + b"\xff\0\xff\x7f" + whole[end + 4 :])


def test_masks_turn_with_their_photographs(tmp_path: Path) -> None:
    path = stored_with(tmp_path / "a.jpg", orientation=6)
    mask = np.zeros((40, 60), np.uint8)
    mask[:10] = 255
    for shape, pixels in (("stored", mask), ("upright", np.rot90(mask, -1))):
        cv2.imwrite(str(tmp_path / "mask.png"), pixels)
        store_photograph(Original(path, "a.jpg", tmp_path / "mask.png"), "a.jpg", tmp_path / shape, tmp_path / shape / "masks")
        stored = read_picture(tmp_path / shape / "masks" / "a.jpg.png", cv2.IMREAD_GRAYSCALE)
        np.testing.assert_array_equal(stored, np.rot90(mask, -1))
    cv2.imwrite(str(tmp_path / "mask.png"), mask[:, :9])
    masked = Original(path, "a.jpg", tmp_path / "mask.png")
    refused("mask .* same shape", store_photograph, masked, "a.jpg", tmp_path / "x", tmp_path / "x")


def test_where_photographs_and_masks_are_found(tmp_path: Path) -> None:
    names = ["IMG_10.jpg", "IMG_2.jpg", "below/IMG_1.jpg", "masks/IMG_2.png", ".hidden/IMG_3.jpg", "IMG_4.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = find_photographs(tmp_path)
    assert [source.name for source in found] == ["below/IMG_1.jpg", "IMG_2.jpg", "IMG_10.jpg"]
    assert [source.mask for source in found] == [None, tmp_path / "masks/IMG_2.png", None]
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "IMG_2.jpeg").touch()
    assert find_photographs(tmp_path) == [Original(tmp_path / "images/IMG_2.jpeg", "IMG_2.jpeg", tmp_path / "masks/IMG_2.png")]


def test_names_that_a_list_or_a_page_would_misread() -> None:
    names = ["a b.jpg", "a_b.jpg", "A_b.png", "<script>.jpg", "x/é&\"'.heic", "c.jpg", "c.heic", "\udcff.jpg"]
    stored = stored_names([Original(Path(name), name) for name in names])
    assert len({name.lower().rpartition(".")[0] for name in stored}) == len(names)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyzé0123456789_./A") for name in stored), stored
    assert stored[0] == "a_b.jpg" and stored[4] == "x/é___.jpg" and stored[5] == "c.jpg"


def test_heic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heif = pytest.importorskip("pillow_heif", reason="needs pillow-heif")
    smooth = cv2.resize(picture(2, 6, 4), (96, 64), interpolation=cv2.INTER_CUBIC)
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "IMG_1.HEIC"
    heif.from_pillow(Image.fromarray(smooth)).save(path, exif=exif.tobytes(), quality=90)
    stored = store_photograph(Original(path, path.name), "IMG_1.jpg", tmp_path / "images", tmp_path / "masks")
    with Image.open(path) as image:
        expected = np.asarray(image.convert("RGB"))
    again = read_picture(tmp_path / "images" / "IMG_1.jpg", cv2.IMREAD_COLOR)[..., ::-1]
    assert expected.shape == again.shape == (stored.height, stored.width, 3)
    assert np.abs(again.astype(int) - expected).mean() < 4
    data, folders = path.read_bytes(), (tmp_path / "images", tmp_path / "masks")
    for damaged in (data[: len(data) // 2], b"", b"\0\0\0\x18ftypheic" + bytes(300)):
        (tmp_path / "b.heic").write_bytes(damaged)
        refused(r"b\.heic cannot be decoded", store_photograph, Original(tmp_path / "b.heic", "b.heic"), "b.jpg", *folders)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    says = r"HEIC photographs need pillow-heif: pip install 'slang-splat\[capture\]'; or con"
    refused(says, store_photograph, Original(path, path.name), "IMG_1.jpg", *folders)


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty frames, one second; all but every fifth are out of focus."""
    frames = [photograph(camera)[..., ::-1] for camera in room_cameras(30, degrees=1)]
    frames = [frame if i % 5 == 3 else cv2.GaussianBlur(frame, (0, 0), 3) for i, frame in enumerate(frames)]
    path = tmp_path_factory.mktemp("video") / "around.mp4"
    write_video(path, (frame / np.float32(255) for frame in frames))
    return path


def test_the_sharpest_frame_of_each_interval(video: Path, tmp_path: Path) -> None:
    cameras = room_cameras(30, degrees=1)
    told: list[tuple[int, int]] = []
    stored = store_frames(video, tmp_path, 6, lambda *progress: told.append(progress))
    assert [photograph.name for photograph in stored] == [f"frame_{i:06d}.jpg" for i in (3, 8, 13, 18, 23, 28)]
    assert told[-1] == (6, 6) and told == sorted(told)
    for i, stored_frame in zip((3, 8, 13, 18, 23, 28), stored, strict=True):
        pixels = read_picture(tmp_path / stored_frame.name, cv2.IMREAD_COLOR)
        differences = [np.abs(pixels.astype(int) - photograph(cameras[j])).mean() for j in (i - 2, i, min(i + 2, 29))]
        assert min(differences) == differences[1]
        assert (stored_frame.height, stored_frame.width) == pixels.shape[:2]
    assert len(store_frames(video, tmp_path, 0, lambda *progress: None)) == 24


def test_a_video_that_was_held_upright_is_turned(video: Path, tmp_path: Path) -> None:
    turned = tmp_path / "turned.mp4"
    command = [get_ffmpeg_exe(), "-loglevel", "error", "-display_rotation", "90", "-i", video, "-c", "copy", turned]
    subprocess.run(command, check=True)
    first = store_frames(turned, tmp_path, 2, lambda *progress: None)[0]
    assert (first.width, first.height) == (192, 256)
    plain = store_frames(video, tmp_path / "plain", 2, lambda *progress: None)[0]
    expected = np.rot90(read_picture(tmp_path / "plain" / plain.name, cv2.IMREAD_COLOR))
    assert np.abs(read_picture(tmp_path / first.name, cv2.IMREAD_COLOR).astype(int) - expected).mean() < 2


def test_files_that_are_no_video(video: Path, tmp_path: Path) -> None:
    data = video.read_bytes()
    (tmp_path / "secret.mp4").write_bytes(data)
    playlist = f"ffconcat version 1.0\nfile '{tmp_path / 'secret.mp4'}'\n"
    for name, content in (
        ("empty.mp4", b""),
        ("text.mov", b"not a video"),
        ("cut.mp4", data[:600]),
        ("other.mp4", playlist.encode()),
        ("list.mp4", b"#EXTM3U\n#EXTINF:1,\nsecret.mp4\n#EXT-X-ENDLIST\n"),
    ):
        (tmp_path / name).write_bytes(content)
        says = f"{name} cannot be read as a video .*; store it as MP4"
        refused(says, store_frames, tmp_path / name, tmp_path / "images", 4, lambda *progress: None)


def test_sharpness_falls_with_blur_and_not_with_light() -> None:
    sharp = photograph(room_cameras()[0])
    values = [sharpness(cv2.GaussianBlur(sharp, (0, 0), sigma)) for sigma in (0.5, 1, 2, 4)]
    assert values == sorted(values, reverse=True) and values[0] > 10 * values[3]
    assert sharpness((sharp // 2).astype(np.uint8)) == pytest.approx(sharpness(sharp), rel=0.1)
    assert sharpness(np.full((40, 30), 7, np.uint8)) == 0
