"""The pictures on pages, and the pages' controls of the viewer."""

import contextlib
import math
import re
import time
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from splat_py import Gaussians, inspect
from splat_py.base.errors import SplatError
from splat_py.render.selection import objects, pick, shares
from splat_py.scene.camera_paths import KeyframePath
from splat_py.scene.sources import MODES
from splat_py.viewer.page_server import Frames, Requests, address_of, is_same_site, page_server
from tests.formats.scenes import ball_on_floor
from tests.viewer.conftest import FakePage, Shown, psnr


def test_a_frame_is_our_render_of_the_page_s_camera(shown: Shown) -> None:
    page = shown.drawn_page(view=2)
    shown.rest()
    expected = shown.expected(2)
    shown.until(lambda: page.frames[-1].shape == expected.shape)
    assert psnr(page.frames[-1], expected) > 30
    page.look(shown.camera(5))
    count = len(page.frames)
    shown.until(lambda: len(page.frames) > count)
    shown.rest()
    time.sleep(0.2)
    assert psnr(page.frames[-1], shown.expected(5)) > 30


def test_a_page_says_that_a_slow_frame_is_being_rendered(shown: Shown) -> None:
    def told(page: FakePage) -> list[bool]:
        return [m["updates"]["visible"] for m in page.of("GuiUpdateMessage") if "visible" in m["updates"]]

    page = shown.drawn_page()
    shown.rest()
    # Nobody knows before how long the first full frame takes.
    shown.until(lambda: told(page) == [True, False])
    shown.viewer._full_seconds = 0.1
    page.look(shown.camera(3))
    count = len(page.frames)
    shown.until(lambda: len(page.frames) > count)
    shown.rest()
    assert told(page) == [True, False]


def test_nothing_is_drawn_when_nothing_changes_or_no_page_is_open(shown: Shown) -> None:
    shown.rest()
    assert shown.viewer.frames.drawn == 0
    page = shown.drawn_page()
    shown.rest()
    drawn = shown.viewer.frames.drawn
    page.look(shown.camera(0))  # the same
    time.sleep(0.3)
    shown.rest()
    assert shown.viewer.frames.drawn == drawn
    assert shown.viewer.frames.next_due() is None
    page.close()
    shown.until(lambda: not shown.viewer.requests.any_page)
    shown.viewer.frames.change(moving=True)
    assert not shown.viewer.work()


def test_frames_are_small_while_a_camera_moves_and_full_when_it_rests(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, bool]] = []
    now = [0.0]
    requests = Requests()

    def draw(page: int, camera: object, full: bool) -> None:
        drawn.append((camera.width, full))  # type: ignore[attr-defined]
        now[0] += 1e-6 * camera.width**2  # type: ignore[attr-defined]

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    frames = Frames(requests, draw)
    for view in range(6):
        requests.move(7, shown.camera(view).resized(640, 640))
        now[0] += 0.05
        assert frames.draw_next()
        assert not frames.draw_next()
    assert all(width < 400 and not full for width, full in drawn)
    due = frames.next_due()
    assert due is not None and 0 < due <= 0.2
    now[0] += due + 1e-9
    assert frames.draw_next() and drawn[-1] == (640, True)
    assert frames.next_due() is None


def test_two_pages_have_a_camera_each(shown: Shown) -> None:
    pages = [shown.page(view) for view in (1, 4)]
    shown.until(lambda: all(page.frames for page in pages))
    shown.rest()
    shown.until(lambda: all(page.frames[-1].shape[0] == 96 for page in pages))
    for page, view in zip(pages, (1, 4), strict=True):
        assert psnr(page.frames[-1], shown.expected(view)) > 30
    pages[0].look(shown.camera(2))
    pages[0].close()
    pages[1].look(shown.camera(3))
    count = len(pages[1].frames)
    shown.until(lambda: len(pages[1].frames) > count)


@pytest.mark.parametrize(
    "nonsense",
    [
        {"position": (math.nan, 0.0, 0.0)},
        {"wxyz": (0.0, 0.0, 0.0, 0.0)},
        {"wxyz": (math.inf, 0.0, 0.0, 0.0)},
        {"fov": 0.0},
        {"fov": "wide"},
        {"image_width": 0},
        {"image_height": -5},
        {"position": (1e300, 0.0, 0.0)},
        {"position": (0.0, 0.0)},
    ],
)
def test_nonsense_from_a_page_is_ignored(shown: Shown, nonsense: dict) -> None:
    page = shown.page(**nonsense)
    time.sleep(0.3)
    shown.rest()
    assert shown.viewer.frames.drawn == 0
    other = shown.page(1)
    shown.until(lambda: other.frames)
    page.close()


def test_huge_windows_are_limited(shown: Shown) -> None:
    page = shown.page(image_width=1_000_000_000, image_height=500_000_000)
    shown.until(shown.viewer.requests.pages)
    (asked,) = shown.viewer.requests.pages().values()
    assert asked.camera.width * asked.camera.height <= 1 << 21
    assert asked.camera.width == pytest.approx(2 * asked.camera.height, rel=0.01)
    page.close()


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_is_shown(shown: Shown, mode: str) -> None:
    page = shown.drawn_page()
    page.set("Show", mode)
    time.sleep(0.2)
    shown.rest()
    expected = shown.expected(0, mode)
    shown.until(lambda: page.frames[-1].shape == expected.shape and psnr(page.frames[-1], expected) > 25)
    page.set("Show", "../../etc/passwd")
    time.sleep(0.2)
    shown.rest()


def test_a_click_goes_to_a_camera_with_its_field_of_view(shown: Shown) -> None:
    page = shown.drawn_page(0, image_width=192)
    page.set("Go to", f"4: {shown.viewer.scene.dataset.views[3].name}")
    (client,) = shown.viewer.server.get_clients().values()
    camera, frustum = shown.viewer.scene.dataset.views[3].camera, shown.viewer.cameras._frustums[3]
    fov = 2 * math.atan(16 / camera.K[1, 1])
    shown.until(lambda: client.camera.fov == pytest.approx(fov, abs=1e-6))
    shown.until(lambda: np.allclose(client.camera.position, camera.position, atol=1e-9))
    shown.until(lambda: abs(float(client.camera.wxyz @ frustum.wxyz)) == pytest.approx(1, abs=1e-6))
    shown.until(lambda: any(not message["initial"] for message in page.of("SetCameraPositionMessage")))
    # A narrow window must show the picture's whole width.
    page.look(shown.camera(0), image_width=48)
    time.sleep(0.3)
    shown.viewer.cameras.go_to(client, 3)
    assert math.tan(client.camera.fov / 2) == pytest.approx(2 * 16 / camera.K[1, 1], rel=1e-3)


def test_cameras_have_photographs_and_held_out_ones_their_psnr(shown: Shown) -> None:
    dataset = shown.viewer.scene.dataset
    page = shown.page()
    shown.until(lambda: shown.viewer.cameras.mean_score is not None)
    shown.until(lambda: len(page.of("LabelMessage")) >= len(dataset.test))
    labels = {m["name"]: m["props"]["text"] for m in page.of("LabelMessage")}
    assert set(labels) == {f"/cameras/{i}/psnr" for i in dataset.test}
    assert all(text.endswith(" dB") for text in labels.values())
    shown.until(lambda: sum(f.image is not None for f in shown.viewer.cameras._frustums.values()) == len(dataset))


def test_what_is_in_the_box_is_shown_and_exported(shown: Shown, tmp_path: Path) -> None:
    page = shown.drawn_page()
    page.set("Crop to the box", True)
    page.set("Size", [0.9, 0.9, 0.9])
    shown.until(lambda: shown.viewer._crop._on.value and shown.viewer._crop._size.value[0] == pytest.approx(0.9))
    page.press("Export what is inside")
    shown.until(lambda: (tmp_path / "crop.ply").exists())
    shown.rest()
    cut, whole = Gaussians.load_ply(tmp_path / "crop.ply"), shown.viewer.scene.gaussians
    middle, axes, size = shown.viewer._crop._pose()
    inside = (np.abs((whole.means.numpy().astype(float) - middle) @ axes) <= size / 2).all(1)
    assert 0 < inside.sum() < len(whole)
    np.testing.assert_array_equal(cut.means.numpy(), whole.means.numpy()[inside])
    # Invalid boxes are ignored, existing files are kept, and an empty box gives a message.
    page.set("Size", [math.nan, 0.9, 0.9])
    time.sleep(0.2)
    assert shown.viewer._crop.inside(whole) is whole
    page.press("Export what is inside")
    shown.until(lambda: (tmp_path / "crop-2.ply").exists())
    page.set("Size", [0.0, 0.0, 0.0])
    time.sleep(0.2)
    page.press("Export what is inside")
    shown.until(lambda: any("no Gaussian is in the box" in str(m) for m in page.messages))
    assert sorted(path.name for path in tmp_path.glob("*.ply")) == ["crop-2.ply", "crop.ply"]


def test_clicked_objects_are_tinted_and_cut_out(shown: Shown, tmp_path: Path) -> None:
    viewer, dataset = shown.viewer, shown.viewer.scene.dataset
    gaussians, _ = ball_on_floor()
    viewer.scene.gaussians = gaussians
    page, camera = shown.drawn_page(4), shown.camera(4)
    page.press("Export the selection")
    shown.until(lambda: any("no object is selected" in str(m) for m in page.messages))
    page.set("Select with clicks", True)
    shown.until(lambda: viewer._objects.on.value)
    page.click(camera, (0.5, 0.8))
    shown.until(lambda: any("shows the floor, table or wall" in str(m) for m in page.messages))
    page.click(camera, (0.5, 0.5))
    shown.until(lambda: viewer._objects.selected(gaussians) is not None)
    shown.rest()
    rows = pick(gaussians, objects(gaussians), camera, 48, 48, **viewer.scene.look.how)
    np.testing.assert_array_equal(viewer._objects.selected(gaussians), rows)
    plain, tinted = (picture.astype(float) for picture in (shown.expected(4), page.frames[-1]))
    ball = shares(gaussians, rows, camera) > 0.9
    assert (tinted - plain)[ball][:, 0].mean() > 30 and np.abs(tinted - plain)[shares(gaussians, rows, camera) == 0].mean() < 4
    for label, name in (("Export the selection", "object.ply"), ("Export the rest", "rest.ply"), ("Write masks", "masks")):
        page.press(label)
        shown.until((tmp_path / name).exists)
    shown.rest()
    for name, kept in (("object.ply", rows), ("rest.ply", ~rows)):
        np.testing.assert_array_equal(Gaussians.load_ply(tmp_path / name).means, gaussians.means[kept])
    assert sorted(path.name for path in (tmp_path / "masks").iterdir()) == [f"{view.path.name}.png" for view in dataset.views]
    page.click(camera, (0.5, 0.5))
    shown.until(lambda: viewer._objects.selected(gaussians) is None)


def test_keyframes_become_a_file_and_a_video(shown: Shown, tmp_path: Path) -> None:
    import imageio.v3 as iio

    page = shown.drawn_page(0)
    page.press("Save as JSON")
    shown.until(lambda: any("two keyframes" in str(m) for m in page.messages))
    for view in (0, 1, 2):
        page.look(shown.camera(view))
        time.sleep(0.2)
        page.press("Add this view")
        shown.until(lambda view=view: len(shown.viewer._path._poses) == view + 1)
    page.press("Remove the last")
    shown.until(lambda: len(shown.viewer._path._poses) == 2)
    page.set("Seconds between", 0.2)
    time.sleep(0.2)
    page.press("Save as JSON")
    page.press("Render to MP4")
    shown.until(lambda: (tmp_path / "path.json").exists() and (tmp_path / "path.mp4").exists())
    path = KeyframePath.load(tmp_path / "path.json")
    assert path.size == (96, 96) and path.seconds == pytest.approx(0.2)
    video = iio.imread(tmp_path / "path.mp4")
    assert video.shape == (7, 96, 96, 3)
    assert psnr(video[-1], shown.expected(path.cameras(7)[-1])) > 25
    page.press("Preview / stop")
    shown.until(lambda: page.of("SetCameraPositionMessage"))


def test_a_click_shows_the_splats_of_a_pixel_until_another_click_or_escape(shown: Shown) -> None:
    page, camera, scene = shown.drawn_page(2), shown.camera(2), shown.viewer.scene
    tables, gone = (lambda: page.of("GuiHtmlMessage")), (lambda: page.of("GuiPanelRemoveMessage"))
    page.click(camera, (0.5, 0.25))
    shown.until(tables)
    content = tables()[0]["props"]["content"]
    expected = inspect(scene.gaussians, camera, 48, 24, scene.look.background, **scene.look.how)
    assert len(expected.ids) > 3 and expected._repr_html_() in content
    assert set(re.findall(r"<\w+", content)) == {"<div", "<p", "<span", "<table", "<tr", "<th", "<td"}
    page.click(camera, (0.9, 0.9))
    shown.until(gone)
    page.click(camera, (0.5, 0.25))
    shown.until(lambda: len(tables()) == 2)
    page.send("CommandTriggerMessage", uuid=page.of("RegisterCommandMessage")[0]["uuid"])
    shown.until(lambda: len(gone()) == 2)


@pytest.mark.parametrize("at", [(1.0, 0.5), (-0.01, 0.5), (math.nan, 0.5), (0.5, math.inf), (0.5,)])
def test_clicks_outside_of_the_picture_are_ignored(shown: Shown, at: object) -> None:
    page, camera = shown.drawn_page(), shown.camera(0)
    page.click(camera, at)
    # A camera was clicked, which the page went to.
    page.click(camera, (0.5, 0.5), ray_origin=tuple(map(float, shown.camera(3).position)))
    page.click(camera, (0.5, 0.5), ray_origin="here")
    time.sleep(0.2)
    shown.rest()
    assert not page.of("GuiHtmlMessage")
    page.click(camera, (0.5, 0.5))
    shown.until(lambda: page.of("GuiHtmlMessage"))


def test_what_cannot_be_drawn_is_said_once(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(camera: object) -> None:
        raise SplatError("there is no way to draw this")

    monkeypatch.setattr(shown.viewer, "_picture", refuse)
    page = shown.page()
    shown.until(lambda: any("no way to draw" in str(m) for m in page.messages))
    shown.rest()
    assert shown.viewer.frames.next_due() is None


def test_other_sites_are_turned_away(shown: Shown) -> None:
    page = FakePage(shown.port, origin=f"http://127.0.0.1:{shown.port}")
    page.look(shown.camera(0))
    shown.until(lambda: page.frames)
    stranger = FakePage(shown.port, origin="https://example.com")
    with contextlib.suppress(ConnectionClosed):
        stranger.look(shown.camera(0))
    stranger._reader.join(timeout=10)
    assert not stranger._reader.is_alive() and not stranger.messages
    shown.rest()
    assert len(shown.viewer.requests.pages()) == 1


@pytest.mark.parametrize(
    ("origin", "asked", "host", "same"),
    [
        (None, "localhost:8080", "127.0.0.1", True),
        ("http://localhost:8080", "localhost:8080", "127.0.0.1", True),
        ("http://localhost:9000", "localhost:9000", "127.0.0.1", True),
        ("http://evil.example:8080", "evil.example:8080", "127.0.0.1", False),
        ("http://evil.example", "localhost:8080", "127.0.0.1", False),
        ("null", "localhost:8080", "127.0.0.1", False),
        ("http://lab.example:8080", "lab.example:8080", "0.0.0.0", True),
    ],
)
def test_whose_page_it_is(origin: str | None, asked: str, host: str, same: bool) -> None:
    assert is_same_site(origin, asked, host) is same


def test_other_machines_need_the_token_of_the_address() -> None:
    with page_server("0.0.0.0", 0) as server:
        port, path = server.get_port(), urlsplit(address_of(server)).path.rstrip("/")
        assert len(path) > 20
        for wrong in ("/", "/index.html", "/?token", "/é", f"{path}x", f"/x{path}", path[:-1]):
            connection = HTTPConnection("127.0.0.1", port)
            connection.request("GET", quote(wrong, "/?="))
            answer = connection.getresponse()
            assert answer.status == 403 and len(answer.read()) < 100
            with pytest.raises(InvalidStatus, match="403"):
                FakePage(port, quote(wrong, "/?="))
        for right in (path, f"{path}/", f"{path}/?a=b"):
            connection = HTTPConnection("127.0.0.1", port)
            connection.request("GET", right)
            assert b"<html" in connection.getresponse().read()
        page = FakePage(port, path)
        page._reader.join(timeout=1)
        assert page.messages
        page.close()


def test_a_page_cannot_save_into_a_folder_that_is_none(shown: Shown, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shown.viewer.scene = replace(shown.viewer.scene, folder=tmp_path / "file")
    page = shown.drawn_page()
    page.press("Add this view")
    page.press("Save as JSON")
    shown.until(lambda: "at least two keyframes" in str(page.messages))
    page.press("Add this view")
    time.sleep(0.3)
    page.press("Save as JSON")
    shown.until(lambda: "cannot write" in str(page.messages))


def test_a_taken_port_is_passed_over_and_bad_addresses_are_refused() -> None:
    with page_server("127.0.0.1", 0) as first, page_server("127.0.0.1", first.get_port()) as second:
        assert second.get_port() > first.get_port()
    for host, port, word in (("127.0.0.1", 70000, "--port"), ("203.0.113.7", 8080, "--host"), ("no such name", 8080, "--host")):
        with pytest.raises(SplatError, match=word), page_server(host, port):
            pass


def test_no_page_can_ask_for_a_public_address(shown: Shown) -> None:
    page = shown.drawn_page()
    page.send("ShareUrlRequest")
    time.sleep(0.3)
    assert shown.viewer.server._share_tunnel is None
