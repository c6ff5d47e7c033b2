"""The page with SuperSplat's viewer: opened from disk, offline, it shows the same as the library's renderer."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
import pytest

from splat_py import Camera, Gaussians, show
from splat_py.fit.steps import psnr_of
from splat_py.render.views import render
from splat_py.scene.environment import Environment
from splat_py.scene.formats import sog
from splat_py.viewer.pages.scene_pages import first_camera, write_viewer
from tests.browser import open_page
from tests.formats.scenes import random_gaussians
from tests.refusals import refused

if TYPE_CHECKING:
    from playwright.sync_api import Page

SIDE = 256


def table() -> tuple[Gaussians, list[Camera]]:
    """A scene whose up is no axis, and cameras around it, tilted and at different heights."""
    arrays = random_gaussians(1500, seed=2)
    arrays = arrays._replace(means=arrays.means * np.float32([1, 0.4, 0.7]))
    up = np.array([0.3, 0.5, 0.8])
    up /= np.linalg.norm(up)
    east = np.cross(up, [1.0, 0, 0])
    east /= np.linalg.norm(east)
    north = np.cross(up, east)
    cameras = []
    for i, angle in enumerate(np.linspace(0, 2 * np.pi, 9)[:8]):
        eye = 4 * (np.cos(angle) * east + np.sin(angle) * north) + (1.2 + 0.2 * (i % 2)) * up
        cameras.append(Camera.look_at(eye, (0.1, 0, 0), up, 38, 64, 64, f"{i}"))
    return Gaussians.of_arrays(arrays), cameras


def settled(page: "Page") -> bytes:
    """A picture of the page once nothing moves."""
    shots = [page.screenshot() for _ in range(2)]
    while shots[-1] != shots[-2]:
        page.wait_for_timeout(300)
        shots.append(page.screenshot())
        assert len(shots) < 60
    return shots[-1]


def screenshot(path: Path, width: int, height: int) -> np.ndarray:
    """The browser's picture, rgb from 0 to 1, once the scene is loaded."""
    with open_page(width, height) as page:
        page.goto(f"{path.as_uri()}?noui&still")
        # The page sets a marker: its policy forbids the polling scripts of other ways to wait.
        page.wait_for_selector("html[data-loaded]", state="attached", timeout=60_000)
        shot = settled(page)
    return cv2.imdecode(np.frombuffer(shot, np.uint8), cv2.IMREAD_COLOR)[..., ::-1] / 255


def resized(camera: Camera, width: int, height: int) -> Camera:
    """The whole view, in a window of another size."""
    focal = camera.K[0, 0] / camera.width * min(width, height)
    return Camera(camera.viewmat, np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]]), width, height)


@pytest.mark.parametrize("kind", ["square", "wide", "no cameras", "sky"])
def test_the_page_shows_what_we_render(kind: str, tmp_path: Path) -> None:
    gaussians, cameras = table()
    cameras = [] if kind == "no cameras" else cameras
    sky = Environment(np.random.default_rng(3).normal(0, 0.12, (16, 3)).astype(np.float32))
    background = sky if kind == "sky" else (0.2, 0.3, 0.1)
    write_viewer(tmp_path / "page.html", gaussians, cameras, background)
    width = SIDE * 3 // 2 if kind == "wide" else SIDE
    shown = screenshot(tmp_path / "page.html", width, SIDE)
    expected = render(gaussians, resized(first_camera(gaussians, cameras), width, SIDE), background)
    assert expected.std() > 0.09
    assert psnr_of(np.mean((shown - expected) ** 2)) >= (35 if kind == "sky" else 25)


def test_a_page_turns_until_it_is_touched(tmp_path: Path) -> None:
    write_viewer(tmp_path / "page.html", *table())
    with open_page(SIDE, SIDE) as page:
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_selector("html[data-loaded]", state="attached", timeout=60_000)
        assert page.locator(".sse-controlsButton").is_visible() and not page.locator(".sse-controlsHint").is_visible()
        first = page.screenshot()
        page.wait_for_timeout(2000)
        assert page.screenshot() != first
        page.mouse.click(SIDE // 2, SIDE // 2)
        settled(page)


def test_a_notebook_s_cell_shows_the_page(tmp_path: Path) -> None:
    shown, cell = show(*table(), height=SIDE), tmp_path / "cell.html"
    cell.write_text(f"<!doctype html><body>{shown._repr_html_()}</body>", encoding="utf-8")
    with open_page(SIDE, SIDE) as page:
        page.goto(cell.as_uri())
        page.frame_locator("iframe").locator("html[data-loaded]").wait_for(state="attached", timeout=60_000)
        assert page.frame_locator("iframe").locator("canvas").bounding_box()["height"] == SIDE


def parts(page: str) -> tuple[dict, bytes]:
    settings = re.search(r'<script type="application/json" id="settings">(.*?)</script>', page, re.DOTALL)
    scene = re.search(r'id="scene">(.*?)</script>', page, re.DOTALL)
    assert settings and scene
    return json.loads(settings[1]), base64.b64decode(scene[1])


def test_names_do_not_become_html(tmp_path: Path) -> None:
    gaussians, cameras = table()
    name = "<script>alert(1)</script>&\"'${title}</title><img src=x onerror=alert(1)>".replace("/", "∕")
    write_viewer(tmp_path / f"{name}.html", gaussians, cameras)
    page = (tmp_path / f"{name}.html").read_text(encoding="utf-8")
    title = page[page.index("<title>") : page.index("</title>")]
    assert "<" not in title[7:] and "&lt;script&gt;" in title
    assert page.count("<script") == page.count("</script>") == 3
    assert "MIT License" in page and "Copyright (c) 2011-2026 PlayCanvas" in page
    assert re.search(r"default-src 'none'", page)


def test_a_page_holds_the_scene_turned_upright(tmp_path: Path) -> None:
    gaussians, cameras = table()
    write_viewer(tmp_path / "page.html", replace(gaussians, antialiased=True), cameras)
    settings, scene = parts((tmp_path / "page.html").read_text(encoding="utf-8"))
    read = sog.decode(scene)
    assert len(read.means) == len(gaussians) and read.antialiased and settings["antialiased"]
    # The cameras are above, and the viewer's up is +y; it looks at its origin.
    assert settings["position"][1] > 0.5
    np.testing.assert_allclose(settings["target"], 0, atol=1e-9)
    # Once around, at one height, from the first view.
    path = np.reshape(settings["turn"]["position"], (-1, 3))
    assert settings["mode"] == "orbit" and np.ptp(path[:, 1]) < 1e-9 and (path.min(0) < -2)[[0, 2]].all()
    np.testing.assert_allclose(path[0], settings["position"])
    write_viewer(tmp_path / "page.html", gaussians, [Camera.look_at((0, 0, 0.01), (0, 0, 1), (0, -1, 0), 60, 8, 8)])
    settings, _ = parts((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert settings["mode"] == "fly" and np.ptp(np.reshape(settings["turn"]["position"], (-1, 3)), axis=0).max() == 0


def test_a_page_says_what_it_shows_and_begins_where_most_is_seen(tmp_path: Path) -> None:
    gaussians, cameras = table()
    away = [Camera.look_at(camera.position, 3 * camera.position, (0, 0, 1), 38, 64, 64) for camera in cameras]
    np.testing.assert_allclose(first_camera(gaussians, [*away, cameras[3]]).position, cameras[3].position)
    write_viewer(tmp_path / "page.html", gaussians, cameras, title='A "house"')
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<title>A &quot;house&quot;</title>" in page and 'og:title" content="A &quot;house&quot;"' in page
    assert 'og:description" content="A scene of 1,500 Gaussians from 8 photographs.' in page


def test_what_the_viewer_cannot_draw_is_refused(tmp_path: Path) -> None:
    gaussians, _ = table()
    refused("the scene has no Gaussians", write_viewer, tmp_path / "page.html", Gaussians.of_arrays(random_gaussians(0)))
    betas = replace(gaussians, splat="BetaKernel", params={"b": gaussians.logit_opacities})
    refused(r"BetaKernel; export a \.ply", write_viewer, tmp_path / "page.html", betas)
    assert not list(tmp_path.iterdir())
