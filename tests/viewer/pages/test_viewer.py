"""The page with SuperSplat's viewer: opened from disk, offline, it shows the same as the library's renderer."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from splat_py import Camera, Gaussians, show
from splat_py.fit.steps import psnr_of
from splat_py.render.views import render
from splat_py.scene.formats import sog
from splat_py.viewer.pages.scene_pages import first_camera, write_viewer
from tests.browser import open_page
from tests.formats.scenes import random_gaussians
from tests.refusals import refused

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


def screenshot(path: Path, width: int, height: int) -> np.ndarray:
    """The browser's picture, rgb from 0 to 1, once the scene is loaded and nothing moves."""
    with open_page(width, height) as page:
        page.goto(f"{path.as_uri()}?noui")
        # The page sets a marker: its policy forbids the polling scripts of other ways to wait.
        page.wait_for_selector("html[data-loaded]", state="attached", timeout=60_000)
        shots = [page.screenshot() for _ in range(2)]
        while shots[-1] != shots[-2]:
            page.wait_for_timeout(300)
            shots.append(page.screenshot())
            assert len(shots) < 60
    return cv2.imdecode(np.frombuffer(shots[-1], np.uint8), cv2.IMREAD_COLOR)[..., ::-1] / 255


def resized(camera: Camera, width: int, height: int) -> Camera:
    """The whole view, in a window of another size."""
    focal = camera.K[0, 0] / camera.width * min(width, height)
    return Camera(camera.viewmat, np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]]), width, height)


@pytest.mark.parametrize("kind", ["square", "wide", "no cameras"])
def test_the_page_shows_what_we_render(kind: str, tmp_path: Path) -> None:
    gaussians, cameras = table()
    cameras = [] if kind == "no cameras" else cameras
    background = (0.2, 0.3, 0.1)
    write_viewer(tmp_path / "page.html", gaussians, cameras, background)
    width = SIDE * 3 // 2 if kind == "wide" else SIDE
    shown = screenshot(tmp_path / "page.html", width, SIDE)
    expected = render(gaussians, resized(first_camera(gaussians, cameras), width, SIDE), background)
    assert expected.std() > 0.1
    assert psnr_of(np.mean((shown - expected) ** 2)) >= 25


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
    assert settings["mode"] == "orbit"
    write_viewer(tmp_path / "page.html", gaussians, [Camera.look_at((0, 0, 0.01), (0, 0, 1), (0, -1, 0), 60, 8, 8)])
    assert parts((tmp_path / "page.html").read_text(encoding="utf-8"))[0]["mode"] == "fly"


def test_what_the_viewer_cannot_draw_is_refused(tmp_path: Path) -> None:
    gaussians, _ = table()
    refused("the scene has no Gaussians", write_viewer, tmp_path / "page.html", Gaussians.of_arrays(random_gaussians(0)))
    betas = replace(gaussians, splat="BetaKernel", params={"b": gaussians.logit_opacities})
    refused(r"BetaKernel; export a \.ply", write_viewer, tmp_path / "page.html", betas)
    assert not list(tmp_path.iterdir())
