"""The page in a real browser."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import cv2
import imageio.v3 as iio
import numpy as np
import pytest

from splat_py.viewer.page_server import camera_of
from tests.browser import open_page
from tests.viewer.conftest import Shown, psnr

if TYPE_CHECKING:
    from playwright.sync_api import Page


@contextmanager
def working(shown: Shown) -> Iterator[None]:
    """Work for pages in another thread, since the test's own drives the browser."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            if not shown.viewer.work():
                shown.viewer.requests.wait(shown.viewer.frames.next_due())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        shown.viewer.requests.wake()
        thread.join()


def settle(page: "Page", shown: Shown) -> None:
    """Wait until nothing was drawn for a second. A browser without a GPU changes its resolution for a while."""
    for _ in range(20):
        drawn = shown.viewer.frames.drawn
        page.wait_for_timeout(1000)
        if shown.viewer.frames.drawn == drawn > 0:
            return
    pytest.fail("frames are drawn although nothing changes")


def test_the_page_shows_our_frame_and_a_jump_moves_it(shown: Shown) -> None:
    viewer = shown.viewer
    with open_page(900, 600, offline=False) as page:
        with working(shown):
            page.goto(f"http://127.0.0.1:{shown.port}")
            page.wait_for_selector("text=Show cameras")
            page.get_by_label("Show cameras").first.click()
            page.wait_for_function("() => document.querySelector('canvas') !== null")
            settle(page, shown)
            (client,) = viewer.server.get_clients().values()
            before = client.camera.position
            viewer.cameras.go_to(client, 4)
            settle(page, shown)
            assert not np.allclose(client.camera.position, before)
            camera = camera_of(client.camera)
            screenshot = iio.imread(page.screenshot())[..., :3]
        np.testing.assert_allclose(camera.position, viewer.scene.dataset.views[4].camera.position, atol=1e-4)
        # Browsers without a GPU request fewer pixels than they show.
        expected = cv2.resize(shown.expected(camera), (900, 600), interpolation=cv2.INTER_LINEAR)
        # The part without the panel at the right and the browser's warning at the upper left.
        rows, columns = slice(220, 600), slice(0, 560)
        assert psnr(screenshot[rows, columns], expected[rows, columns]) > 30
        assert expected[rows, columns].std() > 20


def test_a_click_shows_a_table_and_a_drag_does_not(shown: Shown) -> None:
    with open_page(1100, 700, offline=False) as page, working(shown):
        page.goto(f"http://127.0.0.1:{shown.port}")
        page.wait_for_selector("text=Show cameras")
        settle(page, shown)
        table = page.locator("text=T before")
        page.mouse.click(420, 330)
        table.wait_for()
        (client,) = shown.viewer.server.get_clients().values()
        camera = camera_of(client.camera)
        assert page.locator(f"text=pixel ({420 * camera.width // 1100}, {330 * camera.height // 700})").count() == 1
        page.keyboard.press("Escape")
        table.wait_for(state="detached")
        page.mouse.move(420, 330)
        page.mouse.down()
        page.mouse.move(470, 330, steps=5)
        page.mouse.up()
        settle(page, shown)
        assert not table.count()
        page.mouse.click(420, 330)
        table.wait_for()
        page.mouse.click(500, 250)
        table.wait_for(state="detached")
