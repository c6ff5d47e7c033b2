"""A small scene, and its viewer, whose work runs in the test's thread."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("viser", reason="needs viser: pip install 'slang-splat[viewer]'")

import imageio.v3 as iio
import msgspec
import viser
import zstandard
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from splat_py import Dataset, Gaussians, load_dataset
from splat_py.demo.scene import write_demo_scene
from splat_py.render.views import RenderSettings
from splat_py.scene.camera import Camera
from splat_py.scene.pictures import to_bytes
from splat_py.scene.similarity import quaternion_of
from splat_py.viewer.opening import ViewedScene
from splat_py.viewer.page_server import page_server
from splat_py.viewer.viewer import Viewer

_PATIENCE = 60.0


class FakePage:
    def __init__(self, port: int, path: str = "", **how: Any) -> None:
        protocol: Any = [f"viser-v{viser.__version__}"]
        self._socket = connect(f"ws://127.0.0.1:{port}{path}", subprotocols=protocol, max_size=None, **how)
        self.messages: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            for data in self._socket:
                assert isinstance(data, bytes)
                size = int.from_bytes(data[8:16], "little")
                self.messages += msgspec.msgpack.decode(zstandard.decompress(data[16 : 16 + size]))["messages"]
        except ConnectionClosed:
            pass

    def send(self, kind: str, **fields: Any) -> None:
        self._socket.send(msgspec.msgpack.encode({"type": kind, **fields}))

    def look(self, camera: Camera, **other: Any) -> None:
        """Set the page's camera, or anything else."""
        turn = camera.viewmat[:3, :3].T
        fields = {
            "wxyz": quaternion_of(turn),
            "position": tuple(map(float, camera.position)),
            "fov": float(2 * np.arctan(0.5 * camera.height / camera.K[1, 1])),
            "near": 0.01,
            "far": 1000.0,
            "image_height": camera.height,
            "image_width": camera.width,
            "look_at": tuple(map(float, camera.position + camera.forward)),
            "up_direction": tuple(map(float, -camera.viewmat[1, :3])),
        }
        self.send("ViewerCameraMessage", **(fields | other))

    def click(self, camera: Camera, at: Any, **other: Any) -> None:
        """Click at shares of the width and height, or send anything else."""
        fields = {"event_type": "click", "ray_origin": tuple(map(float, camera.position)), "ray_direction": (0.0, 0.0, 1.0)}
        self.send("ScenePointerMessage", **(fields | {"screen_pos": (at,), "modifier": None} | other))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in list(self.messages) if message["type"] == kind]

    @property
    def frames(self) -> list[NDArray[np.uint8]]:
        found = (message["rgb_data"] for message in self.of("BackgroundImageMessage"))
        return [iio.imread(data, extension=".jpeg") for data in found if data]

    def set(self, label: str, value: Any) -> None:
        self.send("GuiUpdateMessage", uuid=self._control(label), updates={"value": value})

    def press(self, label: str) -> None:
        self.set(label, True)

    def _control(self, label: str) -> str:
        return next(m["uuid"] for m in self.messages if m.get("props", {}).get("label") == label)

    def close(self) -> None:
        self._socket.close()
        self._reader.join(timeout=10)


def psnr(one: NDArray, other: NDArray) -> float:
    return float(-10 * np.log10(np.mean((one.astype(np.float64) / 255 - other.astype(np.float64) / 255) ** 2) + 1e-12))


@dataclass
class Shown:
    viewer: Viewer
    port: int

    def until(self, condition: Callable[[], Any]) -> None:
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < _PATIENCE, "the condition never became true"
            if not self.viewer.work():
                self.viewer.requests.wait(0.02)

    def rest(self) -> None:
        while self.viewer.work() or self.viewer.frames.next_due() is not None:
            self.viewer.requests.wait(0.02)

    def drawn_page(self, view: int = 0, **other: Any) -> FakePage:
        page = self.page(view, **other)
        self.until(lambda: page.frames)
        return page

    def expected(self, camera: Any, mode: str = "color") -> NDArray[np.uint8]:
        """The render of a camera, given as an index into the dataset's or as an own camera."""
        camera = self.camera(camera) if isinstance(camera, int) else camera
        return to_bytes(self.viewer.scene.look.draw(self.viewer.scene.gaussians, camera, mode))

    def page(self, view: int = 0, **other: Any) -> FakePage:
        page = FakePage(self.port)
        page.look(self.camera(view), **other)
        return page

    def camera(self, view: int) -> Any:
        return self.viewer.scene.dataset.views[view].camera.resized(96, 96)


@pytest.fixture(scope="session")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_scene(tmp_path_factory.mktemp("viewed") / "demo", views=9, size=32)


@pytest.fixture(scope="session")
def dataset(capture: Path) -> Dataset:
    return load_dataset(capture)


@pytest.fixture(scope="session")
def gaussians(dataset: Dataset) -> Gaussians:
    return Gaussians.from_points(*dataset.points, opacity=0.9)


@pytest.fixture
def scene(dataset: Dataset, gaussians: Gaussians, tmp_path: Path) -> ViewedScene:
    look = RenderSettings(dataset.background, dataset.scene_scale, False, dataset.near)
    return ViewedScene(look, gaussians, dataset, tmp_path)


@pytest.fixture
def shown(scene: ViewedScene) -> Iterator[Shown]:
    with page_server("127.0.0.1", 0) as server:
        viewer = Viewer(server, scene)
        yield Shown(viewer, server.get_port())
        viewer.close()
