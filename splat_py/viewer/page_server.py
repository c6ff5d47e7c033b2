"""The page server, the cameras and requests of its pages, and the schedule of their frames."""

import http
import logging
import math
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from splat_py.base.errors import SplatError
from splat_py.scene.camera import Camera
from splat_py.scene.similarity import rotation_matrices

if TYPE_CHECKING:
    import viser

LOOPBACK, PORT = "127.0.0.1", 8080
OWN_NAMES = {"127.0.0.1", "localhost", "::1"}
# Number of ports to try if the first is taken.
_PORTS = 20
# The most pixels of a page's frame, and its longest side.
_MOST_PIXELS, _MOST_SIDE = 1 << 21, 4096
_FIELD_OF_VIEW = math.radians(1), math.radians(170)
# A camera rests after this many seconds without movement.
REST = 0.2
# Limits for a moving camera: the most seconds of a frame, and its smallest share of the sides and number of rows.
_QUICK, _LEAST_SHARE, _LEAST_ROWS = 0.05, 0.125, 96
# Share of the previous estimate that the new estimate of a pixel's time keeps.
_SMOOTHING = 0.5

Job = Callable[[], None]


def require_viewer() -> None:
    try:
        import viser  # noqa: F401
    except ImportError as error:
        raise SplatError("the viewer needs viser, which is not installed: pip install 'slang-splat[viewer]'") from error


@contextmanager
def page_server(host: str, port: int) -> "Iterator[viser.ViserServer]":
    """A server for the duration of the context, on `port` or, if it is taken, on one of the next; 0 means any free port. It
    rejects pages of other sites in the same browser and never uses viser's public relay. If other machines can reach `host`, it
    answers only those who know the token in its address."""
    import rich
    import viser

    port = _free_port(host, port)
    # viser prints to rich's global console; splat_py has its own.
    console = rich.get_console()
    quiet, console.quiet = console.quiet, True
    logging.getLogger("websockets.server").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        # viser warns of pages that close during a transfer and of invalid messages, which it ignores.
        warnings.filterwarnings("ignore", message="Queued a .* on a closed connection")
        warnings.filterwarnings("ignore", message=r"\[viser\]")
        token = "" if host in OWN_NAMES else secrets.token_urlsafe(16)
        with _asking_for(token):
            server = viser.ViserServer(host, port, verbose=False)
        try:
            server.token = token
            server.request_share_url = lambda verbose=True: None  # type: ignore[method-assign]
            _turn_away_other_sites(server, host)
            server.gui.configure_theme(dark_mode=True, show_logo=False, show_share_button=False, control_width="medium")
            server.gui.set_panel_label("splat")
            yield server
        finally:
            server.stop()
            console.quiet = quiet


def address_of(server: "viser.ViserServer") -> str:
    """The address to open in a browser on this machine."""
    host = server.get_host()
    name = "localhost" if host in ("0.0.0.0", "::", "", LOOPBACK) else f"[{host}]" if ":" in host else host
    token = server.token
    return f"http://{name}:{server.get_port()}{f'/{token}/' if token else ''}"


@contextmanager
def _asking_for(token: str) -> Iterator[None]:
    """Let a server that is made within this context answer only requests whose path begins with the token, if there is one. The
    page connects to the path that it was loaded from."""
    from websockets.asyncio import server

    serve, prefix, guarded = server.serve, f"/{token}".encode(), []

    def serve_to_some(*arguments: Any, process_request: Any, **options: Any) -> Any:
        def check(connection: Any, request: Any) -> Any:
            first, rest = request.path.encode(errors="replace")[: len(prefix)], request.path[len(prefix) :]
            if not secrets.compare_digest(first, prefix) or rest[:1] not in ("", "/", "?"):
                return connection.respond(http.HTTPStatus.FORBIDDEN, "Open the whole address that the viewer has printed.\n")
            request.path = rest if rest.startswith("/") else f"/{rest}"
            return process_request(connection, request)

        guarded.append(token)
        return serve(*arguments, process_request=check, **options)

    if not token:
        yield
        return
    server.serve = serve_to_some  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        server.serve = serve  # type: ignore[misc]
    if not guarded:
        raise SplatError("this version of viser cannot guard the viewer; use --host 127.0.0.1, or install viser 1.1")


def _free_port(host: str, port: int) -> int:
    """The first free port; viser would wait forever for an address that is not this machine's."""
    if not 0 <= port <= 65535:
        raise SplatError(f"--port is {port}; it must be 0 to 65535")
    try:
        _listen(host, 0)
    except (OSError, UnicodeError) as error:
        raise SplatError(f"--host is {host}, not an address of this machine; use 127.0.0.1 or 0.0.0.0") from error
    for candidate in range(port, min(port + _PORTS, 65536)) if port else (0,):
        with suppress(OSError):
            _listen(host, candidate)
            return candidate
    raise SplatError(f"the ports {port} to {port + _PORTS - 1} of {host} are taken; choose another --port")


def _listen(host: str, port: int) -> None:
    """Raise OSError if this machine does not have the address, or the port is taken; port 0 is any free one."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _turn_away_other_sites(server: "viser.ViserServer", host: str) -> None:
    """Reject pages of other sites: browsers let any page connect to any address, to see the scene and press its buttons."""
    connections = server._websock_server

    async def check(connection: Any) -> None:
        request = connections._live_connections[connection.client_id].request
        headers: Any = {} if request is None else request.headers
        if not is_same_site(headers.get("Origin"), headers.get("Host"), host):
            del connections._live_connections[connection.client_id], connections._client_state_from_id[connection.client_id]
            # Nothing it sent is read; websockets closes the connection.
            raise ConnectionRefusedError("a page of another site")

    connections._client_connect_cb.insert(0, check)


def is_same_site(origin: str | None, asked: str | None, host: str) -> bool:
    """True if a connection comes from the server's own page, or not from a browser. The browser sends the page's `origin` and
    the name and port `asked` that it connected to; a foreign domain name may resolve to this server, too."""
    if origin is None:
        return True
    if asked is None or urlsplit(origin).netloc.lower() != asked.lower():
        return False
    return host not in OWN_NAMES or urlsplit(f"//{asked}").hostname in OWN_NAMES


def camera_of(handle: Any) -> Camera | None:
    """The camera of a page at its window's size, shrunk to the largest frame; None if the page sent invalid values."""
    try:
        wxyz = np.asarray(handle.wxyz, dtype=np.float64).reshape(4)
        position = np.asarray(handle.position, dtype=np.float64).reshape(3)
        fov, width, height = float(handle.fov), int(handle.image_width), int(handle.image_height)
        seen = _FIELD_OF_VIEW[0] <= fov <= _FIELD_OF_VIEW[1] and min(width, height) > 0
        if not (seen and 1e-6 < np.linalg.norm(wxyz) < math.inf):
            return None
        factor = min(1.0, _MOST_SIDE / max(width, height), math.sqrt(_MOST_PIXELS / (width * height)))
        size = max(1, round(width * factor)), max(1, round(height * factor))
        return Camera.posed(position, rotation_matrices(wxyz), math.degrees(fov), *size, "page")
    except (SplatError, TypeError, ValueError, ArithmeticError, AssertionError, AttributeError):
        return None


def pixel_of(click: Any, camera: Camera, slack: float) -> tuple[int, int] | None:
    """Column and row of a click in the picture of its page's camera; None if the page sent invalid values, or the camera moved
    by more than `slack` after it, as by a click on another camera."""
    try:
        across, down = click.screen_pos
        x, y = math.floor(camera.width * float(across)), math.floor(camera.height * float(down))
        origin = np.asarray(click.ray_origin, dtype=np.float64).reshape(3)
    except (TypeError, ValueError, OverflowError):
        return None
    inside = 0 <= x < camera.width and 0 <= y < camera.height
    return (x, y) if inside and np.linalg.norm(origin - camera.position) <= slack else None


def axis_of(camera: Camera, up: NDArray[np.float64]) -> NDArray[np.float64]:
    """The axis [3] that a page at a camera orbits: as upright as the camera's roll allows, so that the horizon stays level."""
    right, own = camera.viewmat[0, :3], -camera.viewmat[1, :3]
    axis: NDArray[np.float64] = up - (up @ right) * right
    return axis / np.linalg.norm(axis) if axis @ own > 0.05 else own


def aim(client: "viser.ClientHandle", camera: Camera, distance: float, up: NDArray[np.float64]) -> None:
    """Move a page's camera to the pose of `camera` with its whole picture in view. The page then orbits the point at
    `distance`, with `up` [3] upwards if the camera is level."""
    page = client.camera
    fov_x, fov_y = (2 * math.atan(0.5 * side / camera.K[i, i]) for i, side in enumerate((camera.width, camera.height)))
    aspect = page.aspect if page.image_height else 1.0
    # If the window is narrower than the picture, its width decides.
    fov = max(fov_y, 2 * math.atan(math.tan(fov_x / 2) / max(aspect, 1e-3)))
    with client.atomic():
        page.position = camera.position
        page.look_at = camera.position + distance * camera.forward
        page.up_direction = axis_of(camera, up)
        page.fov = fov


@dataclass(frozen=True)
class Asked:
    camera: Camera
    # Time of the camera's last move, by `time.monotonic`.
    since: float


class Requests:
    """The newest camera of each page, and the jobs of buttons by name: a second press replaces a waiting job."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._pages: dict[int, Asked] = {}
        self._jobs: dict[str, Job] = {}
        self._changed = False

    def move(self, page: int, camera: Camera) -> None:
        """Set a page's camera; an unchanged camera wakes nothing."""
        with self._news:
            before = self._pages[page].camera if page in self._pages else None
            names = ("viewmat", "K", "width", "height")
            if before is None or not all(np.array_equal(getattr(before, name), getattr(camera, name)) for name in names):
                self._pages[page] = Asked(camera, time.monotonic())
                self.wake()

    def forget(self, page: int) -> None:
        with self._news:
            self._pages.pop(page, None)
            self.wake()

    def post(self, name: str, job: Job) -> None:
        with self._news:
            self._jobs[name] = job
            self.wake()

    def wake(self) -> None:
        """End the current or next `wait`."""
        with self._news:
            self._changed = True
            self._news.notify_all()

    def pages(self) -> dict[int, Asked]:
        with self._news:
            return dict(self._pages)

    @property
    def any_page(self) -> bool:
        """True if a page is open. Takes no lock, since training reads it between steps."""
        return bool(self._pages)

    def next_job(self) -> Job | None:
        """Remove and return the oldest job, or None."""
        with self._news:
            name = next(iter(self._jobs), None)
            return None if name is None else self._jobs.pop(name)

    def wait(self, seconds: float | None) -> None:
        """Wait for a change, at most `seconds`; None waits without limit."""
        with self._news:
            if not self._changed:
                self._news.wait(seconds)
            self._changed = False


@dataclass
class _Shown:
    """A page's frame: the scene's version, the time of its camera, and True if it has full size."""

    version: int
    since: float
    full: bool
    # The time of drawing.
    at: float


class Frames:
    """The frames of all pages. `draw` gets a page, a camera and True for a full frame, False for a preview."""

    def __init__(self, requests: Requests, draw: Callable[[int, Camera, bool], None]) -> None:
        self._requests, self._draw = requests, draw
        self._shown: dict[int, _Shown] = {}
        self._version, self._changed = 0, -math.inf
        self._pixel_seconds = 1e-6
        self.drawn = 0

    def change(self, *, moving: bool) -> None:
        """Draw all pages again; `moving` draws small frames during a continuous change, as by a slider."""
        self._version += 1
        if moving:
            self._changed = time.monotonic()

    def next_due(self) -> float | None:
        """Seconds until the next frame is due, 0 for now; None if all pages are up to date."""
        waits = [wait for page, asked in self._requests.pages().items() if (wait := self._due(page, asked)) is not None]
        return min(waits, default=None)

    def draw_next(self) -> bool:
        pages = self._requests.pages()
        self._shown = {page: shown for page, shown in self._shown.items() if page in pages}
        due = [page for page, asked in pages.items() if self._due(page, asked) == 0]
        if not due:
            return False
        page = min(due, key=lambda page: self._shown[page].at if page in self._shown else -math.inf)
        asked, version, began = pages[page], self._version, time.monotonic()
        share = 1.0 if began - self._moved(asked) >= REST else self._share(asked.camera)
        camera = asked.camera if share == 1 else asked.camera.scaled(share)
        # Record it before drawing: a frame that fails is not tried again and again.
        self._shown[page] = _Shown(version, asked.since, share == 1, began)
        self._draw(page, camera, share == 1)
        self.drawn += 1
        took = (time.monotonic() - began) / (camera.width * camera.height)
        self._pixel_seconds = _SMOOTHING * self._pixel_seconds + (1 - _SMOOTHING) * took
        return True

    def _moved(self, asked: Asked) -> float:
        return max(asked.since, self._changed)

    def _due(self, page: int, asked: Asked) -> float | None:
        shown = self._shown.get(page)
        if shown is None or (shown.version, shown.since) != (self._version, asked.since):
            return 0.0
        return None if shown.full else max(0.0, self._moved(asked) + REST - time.monotonic())

    def _share(self, camera: Camera) -> float:
        """The share of the sides for which a frame takes at most `_QUICK` seconds."""
        share = math.sqrt(_QUICK / (self._pixel_seconds * camera.width * camera.height))
        share = max(share, _LEAST_SHARE, min(1.0, _LEAST_ROWS / camera.height))
        return 1.0 if share > 0.8 else share
