"""A web server on loopback that sends ranges of the files of a folder, and fails when told to."""

import re
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Fault:
    """What goes wrong with an answer: its status, its body, or what it says of itself.

    ``kind`` is one of ``status``, ``cut`` (the connection ends within the body), ``short``
    (the body is shorter than its range), ``slow``, ``deaf`` (the whole file) and
    ``shifted`` (other bytes).
    """

    kind: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0


@dataclass
class Served:
    """A running server: where it is, what it was asked for, and how it shall answer next."""

    url: str = ""
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    faults: deque[Fault] = field(default_factory=deque)
    always: Fault | None = None
    etag: str | None = None
    together: threading.Barrier | None = None

    def next_fault(self) -> Fault | None:
        try:
            return self.faults.popleft()
        except IndexError:
            return self.always


class RangeHandler(SimpleHTTPRequestHandler):
    """Files, and single ranges of them (RFC 9110, section 14)."""

    protocol_version = "HTTP/1.1"

    @property
    def served(self) -> Served:
        """What to do; a server that was told nothing does nothing wrong."""
        return getattr(self.server, "served", None) or Served()

    def send_head(self) -> Any:
        served = self.served
        served.requests.append((self.command, self.path, dict(self.headers)))
        if served.together is not None:
            served.together.wait(300)
        fault = served.next_fault()
        if fault is not None and fault.kind == "status":
            return self.send_fault(fault)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if wanted is None or not path.is_file() or (fault and fault.kind == "deaf"):
            return super().send_head()
        size = path.stat().st_size
        first, last = int(wanted[1]), min(int(wanted[2]), size - 1)
        if first >= size:
            self.send_error(416)
            return None
        self.server.ranges.append((first, last + 1 - first))  # type: ignore[attr-defined]
        self.send_part(path.read_bytes(), first, last, fault or Fault("none"))
        return None

    def send_fault(self, fault: Fault) -> None:
        self.send_response(fault.status)
        for name, value in fault.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(fault.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(fault.body)

    def send_part(self, data: bytes, first: int, last: int, fault: Fault) -> None:
        time.sleep(fault.seconds)
        shift = 1 if fault.kind == "shifted" else 0
        body = data[first + shift : last + 1 + shift]
        shown = body[:-3] if fault.kind in ("cut", "short") else body
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first + shift}-{last + shift}/{len(data)}")
        self.send_header("Content-Length", str(len(shown if fault.kind == "short" else body)))
        self.end_headers()
        self.wfile.write(shown)
        self.close_connection = fault.kind == "cut"

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "bytes")
        if (etag := self.served.etag) is not None:
            self.send_header("ETag", etag)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def get_request(self) -> tuple[socket.socket, Any]:
        """Send at once: else what follows the headers waits 40 ms for the client to acknowledge."""
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave in the middle are what some tests want."""


@contextmanager
def range_server(folder: Path) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Serve a folder; give its url, and the list of ranges that were asked for."""
    with _serving(folder) as server:
        yield server.served.url, server.ranges


@contextmanager
def faulty_server(folder: Path) -> Iterator[Served]:
    """Serve a folder; give what tells the server how to fail, and what it was asked for."""
    with _serving(folder) as server:
        yield server.served


@contextmanager
def running(handler: Any, **attributes: Any) -> Iterator[Any]:
    """Run a server that has these attributes, for its handler to find; give it with its url."""
    server: Any = Server(("127.0.0.1", 0), handler)
    server.url = f"http://127.0.0.1:{server.server_port}"
    for name, value in attributes.items():
        setattr(server, name, value)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def _serving(folder: Path) -> Iterator[Any]:
    handler = partial(RangeHandler, directory=str(folder))
    with running(handler, ranges=[], served=Served()) as server:
        server.served.url = server.url
        yield server
