"""A page without a browser: viser's messages over a WebSocket of one's own."""

from __future__ import annotations

import threading
from typing import Any

import imageio.v3 as iio
import msgspec
import numpy as np
import viser
import zstandard
from numpy.typing import NDArray
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from splat_py.scene.camera import Camera
from splat_py.viewer.page_camera import quaternion_of


class FakePage:
    """What a browser's page sends and gets."""

    def __init__(self, port: int, **how: Any) -> None:
        protocol: Any = [f"viser-v{viser.__version__}"]
        self._socket = connect(f"ws://127.0.0.1:{port}", subprotocols=protocol, max_size=None, **how)
        self.messages: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            for data in self._socket:
                assert isinstance(data, bytes)
                size = int.from_bytes(data[8:16], "little")
                window = msgspec.msgpack.decode(zstandard.decompress(data[16 : 16 + size]))
                self.messages += window["messages"]
        except ConnectionClosed:
            pass

    def send(self, kind: str, **fields: Any) -> None:
        self._socket.send(msgspec.msgpack.encode({"type": kind, **fields}))

    def look(self, camera: Camera, **other: Any) -> None:
        """Say that the page's camera is there, or anything else."""
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

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in list(self.messages) if message["type"] == kind]

    @property
    def frames(self) -> list[NDArray[np.uint8]]:
        found = (message["rgb_data"] for message in self.of("BackgroundImageMessage"))
        return [iio.imread(data, extension=".jpeg") for data in found if data]

    def set(self, label: str, value: Any) -> None:
        """Use a control of the panel, by its label."""
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
