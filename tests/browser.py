"""Pages in a real browser: Debian's chromium without a window, driven by Playwright. WebGPU and WebGL run in software there."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
_FLAGS = [
    "--no-sandbox",  # tests may run as root, which chromium's sandbox refuses
    "--enable-unsafe-webgpu",
    "--enable-features=Vulkan",
    "--use-vulkan=swiftshader",  # with the native driver, canvases drawn by WebGPU stay white
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
]


@contextmanager
def open_page(width: int = 800, height: int = 600, offline: bool = True) -> "Iterator[Page]":
    """An empty page; `page.goto(path.as_uri())` opens a file. Errors on the page fail the test that opened it.

    `offline` cuts the network off: a request for anything but files, data and blobs also fails the test.
    """
    if CHROMIUM is None:
        pytest.skip("needs a browser: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        try:
            page = browser.new_context(offline=offline, viewport={"width": width, "height": height}).new_page()
            errors: list[str] = []
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
            if offline:
                page.on("request", lambda sent: errors.append(sent.url) if sent.url.startswith(("http", "ws")) else None)
            yield page
            assert not errors, errors
        finally:
            browser.close()
