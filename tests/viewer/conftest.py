"""A small scene, and a viewer of it whose work is done in the test's thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("viser", reason="needs viser: pip install 'slang-splat[viewer]'")

from splat_py.demo.scene import write_demo_scene
from splat_py.scene import Dataset, Gaussians, load_dataset
from splat_py.splats.render_modes import Look
from splat_py.viewer.opening import ViewedScene
from splat_py.viewer.page_server import page_server
from splat_py.viewer.viewer import Viewer
from tests.viewer.page import FakePage

_PATIENCE = 60.0


@dataclass
class Shown:
    """A viewer with its server, and pages."""

    viewer: Viewer
    port: int

    def until(self, condition: Callable[[], Any]) -> None:
        """Work until something is so."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < _PATIENCE, "it never came to be so"
            if not self.viewer.work():
                self.viewer.requests.wait(0.02)

    def rest(self) -> None:
        """Work until nothing is left to do."""
        while self.viewer.work() or self.viewer.frames.next_due() is not None:
            self.viewer.requests.wait(0.02)

    def page(self, view: int = 0, **other: Any) -> FakePage:
        """A page at one of the dataset's cameras."""
        page = FakePage(self.port)
        page.look(self.camera(view), **other)
        return page

    def camera(self, view: int) -> Any:
        assert self.viewer.scene.dataset is not None
        return self.viewer.scene.dataset.views[view].camera.resized(96, 96)


@pytest.fixture(scope="session")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_scene(tmp_path_factory.mktemp("viewed") / "demo", views=9, size=32)


@pytest.fixture(scope="session")
def dataset(capture: Path) -> Dataset:
    return load_dataset(capture)


@pytest.fixture(scope="session")
def gaussians(dataset: Dataset) -> Gaussians:
    assert dataset.points is not None
    return Gaussians.from_points(*dataset.points, opacity=0.9)


@pytest.fixture
def scene(dataset: Dataset, gaussians: Gaussians, tmp_path: Path) -> ViewedScene:
    look = Look(dataset.background, dataset.scene_scale, False, dataset.near)
    return ViewedScene(look, gaussians, dataset, tmp_path)


@pytest.fixture
def shown(scene: ViewedScene) -> Iterator[Shown]:
    with page_server("127.0.0.1", 0) as server:
        viewer = Viewer(server, scene)
        yield Shown(viewer, server.get_port())
        viewer.close()
