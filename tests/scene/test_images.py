import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from splat_py import Camera, load_dataset
from splat_py.image.pictures import read_picture
from splat_py.scene import images
from splat_py.scene.images import View
from tests.refusals import refused
from tests.scene.captures import HEIGHT, WIDTH, picture, ring, write_image, write_transforms

OPENCV = {"k1": -0.21, "k2": 0.06, "p1": 0.004, "p2": -0.006, "k3": 0.01}
FISHEYE = {"k1": 0.05, "k2": -0.02, "k3": 0.01, "k4": -0.002}


def dots(centres: NDArray[np.float64], width: int, height: int, sigma: float = 2.0) -> NDArray[np.uint8]:
    """White dots on black, `centres` [D, 2] in pixels with the first pixel's centre at (0.5, 0.5)."""
    x, y = np.arange(width) + 0.5, np.arange(height) + 0.5
    gx = np.exp(-0.5 * ((x - centres[:, :1]) / sigma) ** 2)
    gy = np.exp(-0.5 * ((y - centres[:, 1:]) / sigma) ** 2)
    grey = np.rint(255 * np.einsum("dy,dx->yx", gy, gx).clip(0, 1)).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=2)


@pytest.mark.parametrize("downscale", [1, 2])
@pytest.mark.parametrize("model", ["OPENCV", "OPENCV_FISHEYE"])
def test_undistorted_dots_are_where_a_pinhole_sees_them(tmp_path: Path, model: str, downscale: int) -> None:
    coefficients = FISHEYE if model == "OPENCV_FISHEYE" else OPENCV
    width, height = 320, 240
    K = np.array([[210.0, 0, 151], [0, 205, 127], [0, 0, 1]])
    camera = Camera(np.eye(4), K, width, height, "a.png")
    write_transforms(tmp_path, [camera], camera_model=model, **coefficients)
    x, y = (v.ravel() for v in np.meshgrid(np.linspace(-0.62, 0.62, 9), np.linspace(-0.45, 0.45, 7)))
    project = cv2.fisheye.projectPoints if model == "OPENCV_FISHEYE" else cv2.projectPoints
    points, still = np.stack([x, y, np.ones_like(x)], 1)[:, None], np.zeros(3)
    bent = project(points, still, still, K, np.array([*coefficients.values()]))[0][:, 0]
    assert np.abs(bent - (points[:, 0] @ K.T)[:, :2]).max() > 8, "the lens must bend visibly"
    write_image(tmp_path / "images/a.png", dots(bent, width, height))

    dataset = load_dataset(tmp_path, downscale=downscale)
    image, K = dataset.image(0), dataset.views[0].camera.K
    light = image[..., 0].astype(float) * (image[..., 3] > 0)
    errors = []
    for u, v in zip(K[0, 0] * x + K[0, 2], K[1, 1] * y + K[1, 2], strict=True):
        reach = 9 // downscale
        rows, columns = (slice(int(c) - reach, int(c) + reach + 1) for c in (v, u))
        if min(rows.start, columns.start) < 0 or rows.stop > image.shape[0] or columns.stop > image.shape[1]:
            continue
        patch = light[rows, columns]
        found_x = (patch.sum(0) * (np.arange(columns.start, columns.stop) + 0.5)).sum() / patch.sum()
        found_y = (patch.sum(1) * (np.arange(rows.start, rows.stop) + 0.5)).sum() / patch.sum()
        errors.append(np.hypot(found_x - u, found_y - v))
    assert len(errors) > 30
    assert max(errors) < 0.3


def test_what_the_lens_did_not_see_counts_nothing(tmp_path: Path) -> None:
    # Pincushion: the corners of the pinhole picture lie outside the photograph.
    write_transforms(tmp_path, [Camera(np.eye(4), [[60, 0, 24], [0, 60, 16], [0, 0, 1]], 48, 32, "a.png")], k1=0.3)
    write_image(tmp_path / "images/a.png", np.full((HEIGHT, WIDTH, 3), 255, np.uint8))
    image = load_dataset(tmp_path).image(0)
    weight = image[..., 3]
    assert set(np.unique(weight)) == {0, 255}
    assert not weight[[0, 0, -1, -1], [0, -1, 0, -1]].any()
    assert weight[16, 24] == 255
    assert (image[weight == 255][:, :3] == 255).all()
    # r (1 − 0.5 r²) turns back at r = 0.816: the corners would show the middle of the photograph again.
    write_transforms(tmp_path, [Camera(np.eye(4), [[20, 0, 24], [0, 20, 16], [0, 0, 1]], 48, 32, "a.png")], k1=-0.5)
    weight = load_dataset(tmp_path).image(0)[..., 3]
    x, y = np.meshgrid((np.arange(48) + 0.5 - 24) / 20, (np.arange(32) + 0.5 - 16) / 20)
    np.testing.assert_array_equal(weight == 255, np.hypot(x, y) <= np.sqrt(1 / 1.5))


@pytest.mark.parametrize("place", ["named", "stem", "colmap"])
def test_masks(tmp_path: Path, place: str) -> None:
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[5:20, 7:30] = 255
    path = {"named": "other/m.png", "stem": "masks/001.jpg", "colmap": "masks/001.png.png"}[place]
    write_image(tmp_path / path, mask)
    write_transforms(tmp_path, ring(2), {1: {"mask_path": path}} if place == "named" else None)
    dataset = load_dataset(tmp_path)
    np.testing.assert_array_equal(dataset.image(1)[..., 3], mask)
    np.testing.assert_array_equal(dataset.image(1)[..., :3], picture(1))
    assert (dataset.image(0)[..., 3] == 255).all()


def test_masks_of_zero_and_one_at_another_size(tmp_path: Path) -> None:
    write_transforms(tmp_path, ring(1))
    mask = np.zeros((HEIGHT // 2, WIDTH // 2), np.uint8)
    mask[3:9, 4:15] = 1
    write_image(tmp_path / "masks/000.png", mask)
    np.testing.assert_array_equal(load_dataset(tmp_path).image(0)[..., 3], 255 * mask.repeat(2, 0).repeat(2, 1))
    write_image(tmp_path / "masks/000.png", mask.T)
    refused(r"mask .*000\.png has 16×24 pixels but its photograph 48×32", load_dataset, tmp_path)


@pytest.mark.parametrize("kind", ["grey", "grey16", "rgb16", "rgba16", "exif", "tiff"])
def test_stored_formats(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("images/000.tif" if kind == "tiff" else "images/000.png")
    write_transforms(tmp_path, ring(1), {0: {"file_path": f"images/{path.name}"}})
    rng = np.random.default_rng(0)
    if kind == "exif":
        exif = Image.Exif()
        exif[0x0112] = 6  # "turn me", but the poses refer to the stored pixels
        Image.fromarray(picture(0)).save(path, exif=exif)
        expected: NDArray[np.float64] = picture(0).astype(float)
    elif kind == "grey":
        write_image(path, picture(0)[..., 0])
        expected = picture(0)[..., :1].repeat(3, axis=2).astype(float)
    else:
        channels = {"grey16": 1, "rgb16": 3, "rgba16": 4, "tiff": 3}[kind]
        stored = rng.integers(0, 65536, (HEIGHT, WIDTH, channels)).astype(np.uint16)
        write_image(path, stored[..., 0] if channels == 1 else stored)
        expected = stored[..., :3] / 257.0
        if channels == 4:
            alpha = stored[..., 3:] / 65535
            expected = expected * alpha + 255 * (1 - alpha)
        expected = np.broadcast_to(expected, (HEIGHT, WIDTH, 3))
    np.testing.assert_allclose(
        load_dataset(tmp_path).image(0)[..., :3], expected, atol=1.5
    )  # colour, alpha and result each rounded


def test_streaming_gives_the_same_pictures_and_decodes_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_transforms(tmp_path, ring(5), k1=-0.1)
    decoded: list[str] = []
    load_view = images.load_view

    def counted(view: View, background: NDArray[np.float32]) -> NDArray[np.uint8]:
        decoded.append(view.path.name)
        return load_view(view, background)

    monkeypatch.setattr(images, "load_view", counted)
    names = [f"{i:03}.png" for i in range(5)]
    everything = 5 * 24 * 16 * 4
    cached = load_dataset(tmp_path, downscale=2, memory_limit_bytes=everything)
    assert sorted(decoded) == names
    order = (0, 1, 2, 3, 4, 4, 0, 3)
    expected = [cached.image(i) for i in order]
    assert len(decoded) == 5, "photographs that fit are decoded once"
    # Memory holds the last photograph, the last two, or all but one.
    again = {0: [0, 1, 2, 3, 4, 0, 3], everything * 2 // 5: [0, 1, 2, 3, 4, 0, 3], everything - 1: [0, 1, 2, 3, 4, 0]}
    for limit, misses in again.items():
        decoded.clear()
        streamed = load_dataset(tmp_path, downscale=2, memory_limit_bytes=limit)
        assert not decoded, "nothing is decoded before it is asked for"
        for i, pixels in zip(order, expected, strict=True):
            np.testing.assert_array_equal(streamed.image(i), pixels)
        assert decoded == [names[i] for i in misses]


def test_streaming_keeps_only_what_was_used_last(tmp_path: Path) -> None:
    write_transforms(tmp_path, ring(5))
    dataset = load_dataset(tmp_path, memory_limit_bytes=2 * WIDTH * HEIGHT * 4)
    for i in (0, 1, 0, 2):
        dataset.image(i)
    for path in (tmp_path / "images").iterdir():
        path.unlink()
    for i in (0, 2):
        np.testing.assert_array_equal(dataset.image(i)[..., :3], picture(i))
    refused(r"001\.png cannot be read", dataset.image, 1)
    write_transforms(tmp_path, ring(3))
    dataset = load_dataset(tmp_path)
    for path in (tmp_path / "images").iterdir():
        path.unlink()
    np.testing.assert_array_equal(dataset.image(-1)[..., :3], picture(2))
    with pytest.raises(IndexError):
        dataset.image(3)


def test_a_progress_bar_appears_where_loading_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_transforms(tmp_path, ring(3))
    load_dataset(tmp_path)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("splat_py.scene.images._PATIENCE_SECONDS", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    load_dataset(tmp_path)
    out, err = capsys.readouterr()
    assert (out, "Photographs" in err) == ("", True)


@pytest.mark.parametrize("damage", ["empty", "text", "half"])
@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_damaged_photographs_are_named(tmp_path: Path, damage: str, suffix: str) -> None:
    path = (tmp_path / "images/001.png").with_suffix(suffix)
    write_transforms(tmp_path, ring(3), {1: {"file_path": f"images/001{suffix}"}})
    data = cv2.imencode(suffix, picture(1))[1].tobytes()
    path.write_bytes({"empty": b"", "text": b"hello", "half": data[: len(data) // 2]}[damage])
    refused(rf"001\{suffix} cannot be decoded", load_dataset, tmp_path)


def test_a_thumbnail_does_not_hide_that_a_jpeg_is_cut_off(tmp_path: Path) -> None:
    write_transforms(tmp_path, ring(1), {0: {"file_path": "images/000.jpg"}})
    whole = cv2.imencode(".jpg", picture(0))[1].tobytes()
    comment = b"\xff\xfe" + (len(whole) + 2).to_bytes(2, "big") + whole  # a whole JPEG inside a segment
    path = tmp_path / "images/000.jpg"
    path.write_bytes(whole[:2] + comment + whole[2:])
    assert load_dataset(tmp_path).image(0).shape == (HEIGHT, WIDTH, 4)
    path.write_bytes(whole[:2] + comment + whole[2 : 2 * len(whole) // 3])
    refused(r"000\.jpg cannot be decoded", load_dataset, tmp_path)


def huge_png() -> bytes:
    data = bytearray(cv2.imencode(".png", np.zeros((1, 1, 3), np.uint8))[1].tobytes())
    data[16:24] = (100_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


def test_a_header_of_ten_gigapixels(tmp_path: Path) -> None:
    write_transforms(tmp_path, ring(3))
    (tmp_path / "images/001.png").write_bytes(huge_png())
    refused(r"001\.png claims [\d,]+ pixels in", load_dataset, tmp_path)
    refused(r"001\.png claims [\d,]+ pixels in", read_picture, tmp_path / "images/001.png")
    data = bytearray(cv2.imencode(".png", np.zeros((1, 1, 3), np.uint8))[1].tobytes())
    data[16:24] = (30_000).to_bytes(4, "big") * 2
    (tmp_path / "a.png").write_bytes(data)
    refused(r"a\.png is not a picture", read_picture, tmp_path / "a.png")


def stated(suffix: str, width: int, height: int) -> bytes:
    if suffix == ".exr":
        window = np.array([0, 0, width - 1, height - 1], "<i4").tobytes()
        return b"\x76\x2f\x31\x01\x02\0\0\0" + b"dataWindow\0box2i\0\x10\0\0\0" + window + b"\0"
    if suffix in (".hdr", ".pfm"):
        data = cv2.imencode(suffix, np.full((5, 7, 3), 0.5, np.float32))[1].tobytes()
        before, after = {
            ".hdr": (b"-Y 5 +X 7", b"-Y %d +X %d" % (height, width)),
            ".pfm": (b"7 5", b"%d %d" % (width, height)),
        }[suffix]
        assert before in data
        return data.replace(before, after, 1)
    kind = np.float32 if suffix == ".float.tif" else np.uint16
    changed = bytearray(cv2.imencode(".tif", np.zeros((5, 7, 3), kind))[1].tobytes())
    start = int.from_bytes(changed[4:8], "little") + 2
    for at in range(start, start + 24, 12):
        tag = int.from_bytes(changed[at : at + 2], "little")
        changed[at + 2 : at + 4] = b"\4\0"
        changed[at + 8 : at + 12] = {256: width, 257: height}[tag].to_bytes(4, "little")
    return bytes(changed)


@pytest.mark.parametrize("suffix", [".tif", ".float.tif", ".hdr", ".pfm", ".exr"])
def test_sizes_that_other_formats_state(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is allocated for the pixels, and true sizes are accepted."""
    path = tmp_path / f"images/000{suffix}"
    write_transforms(tmp_path, ring(1), {0: {"file_path": f"images/{path.name}"}})
    path.write_bytes(stated(suffix, 7, 5))
    if suffix != ".exr":
        assert read_picture(path).shape == (5, 7, 3)
    for data in (stated(suffix, 30_000, 20_000), stated(suffix, 9_000, 6_000)):
        path.write_bytes(data)
        monkeypatch.delattr(cv2, "imdecode", raising=False)
        refused(rf"000\{suffix} claims [\d,]+ pixels in", read_picture, path)
        refused(rf"000\{suffix} claims [\d,]+ pixels in", load_dataset, tmp_path)


def test_formats_whose_size_nobody_knows_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(cv2, "imdecode")
    for name, data in {"a.pam": b"P7\nWIDTH 7\n", "a.tif": b"II*\0\x08\0\0\0\xff\xff\0\1", "a.hdr": b"#?RADIANCE\n\n"}.items():
        (tmp_path / name).write_bytes(data)
        refused(rf"{name} is not a picture that can be read", read_picture, tmp_path / name)


def test_a_mask_that_leaves_nothing(tmp_path: Path) -> None:
    write_transforms(tmp_path, ring(3))
    write_image(tmp_path / "masks/001.png", np.zeros((HEIGHT, WIDTH), np.uint8))
    refused(r"masks/001\.png excludes every pixel of images/001\.png", load_dataset, tmp_path)
