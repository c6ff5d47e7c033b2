"""The server of the page: viser's, on this machine's own address unless another is asked for."""

from __future__ import annotations

import logging
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from splat_py.errors import SplatError

if TYPE_CHECKING:
    import viser

LOOPBACK, PORT = "127.0.0.1", 8080
OWN_NAMES = {"127.0.0.1", "localhost", "::1"}
# Ports that are tried where the first is taken.
_PORTS = 20


def require_viewer() -> None:
    """Raise SplatError where viser is not installed."""
    try:
        import viser  # noqa: F401
    except ImportError as error:
        raise SplatError("the viewer needs viser, which is not installed: pip install 'slang-splat[viewer]'") from error


@contextmanager
def page_server(host: str, port: int) -> Iterator[viser.ViserServer]:
    """A server that listens while the context lasts, on `port` or, where that is taken, one of the next; 0 takes any.

    Pages of other sites in the same browser are turned away, and nothing is ever sent to viser's public relay, which its pages
    could otherwise ask for.

    Raises:
        SplatError: viser is not installed, the address is none of this machine's, or no port is free.
    """
    require_viewer()
    import rich
    import viser

    port = _free_port(host, port)
    # viser prints what it does on rich's own console; ours is another.
    console = rich.get_console()
    quiet, console.quiet = console.quiet, True
    logging.getLogger("websockets.server").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        # Of pages that were closed while something was sent, and of what makes no sense, which is ignored.
        warnings.filterwarnings("ignore", message="Queued a .* on a closed connection")
        warnings.filterwarnings("ignore", message=r"\[viser\]")
        server = viser.ViserServer(host, port, verbose=False)
        try:
            server.request_share_url = lambda verbose=True: None  # type: ignore[method-assign]
            _turn_away_other_sites(server, host)
            server.gui.configure_theme(dark_mode=True, show_logo=False, show_share_button=False, control_width="medium")
            server.gui.set_panel_label("splat")
            yield server
        finally:
            server.stop()
            console.quiet = quiet


def address_of(server: viser.ViserServer) -> str:
    """What to open in a browser on this machine."""
    host = server.get_host()
    name = "localhost" if host in ("0.0.0.0", "::", "", LOOPBACK) else f"[{host}]" if ":" in host else host
    return f"http://{name}:{server.get_port()}"


def _free_port(host: str, port: int) -> int:
    """The first port that can be listened on; viser would wait forever for an address that is not this machine's."""
    if not 0 <= port <= 65535:
        raise SplatError(f"--port is {port}; ports are 0 to 65535")
    if port == 0:
        _listen(host, 0)
        return 0
    for candidate in range(port, min(port + _PORTS, 65536)):
        try:
            _listen(host, candidate)
            return candidate
        except OSError:
            continue
    raise SplatError(f"the ports {port} to {port + _PORTS - 1} of {host} are taken; choose another --port")


def _listen(host: str, port: int) -> None:
    """Raise SplatError if there is no such address here, OSError if the port is taken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address[0], 0))
            except OSError as error:
                raise SplatError(f"--host is {host}, which is no address of this machine; use 127.0.0.1 or 0.0.0.0") from error
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (socket.gaierror, UnicodeError) as error:
        raise SplatError(f"--host is {host}, which is no address of this machine; use 127.0.0.1 or 0.0.0.0") from error


def _turn_away_other_sites(server: viser.ViserServer, host: str) -> None:
    """Browsers let any page connect to any address: a page of another site could see the scene and press its buttons."""

    connections = server._websock_server

    async def check(connection: Any) -> None:
        request = connections._live_connections[connection.client_id].request
        headers: Any = {} if request is None else request.headers
        if not is_same_site(headers.get("Origin"), headers.get("Host"), host):
            del connections._live_connections[connection.client_id], connections._client_state_from_id[connection.client_id]
            # Nothing that it has sent is to be read; websockets closes it.
            raise ConnectionRefusedError("a page of another site")

    connections._client_connect_cb.insert(0, check)


def is_same_site(origin: str | None, asked: str | None, host: str) -> bool:
    """Whether a connection comes from the server's own page, or from no browser at all.

    Args:
        origin: of the page, as the browser says.
        asked: the name and port that the connection was made to. A name of somebody else's may lead here, too.
        host: where the server listens.
    """
    if origin is None:
        return True
    if asked is None or urlsplit(origin).netloc.lower() != asked.lower():
        return False
    return host not in OWN_NAMES or urlsplit(f"//{asked}").hostname in OWN_NAMES
