"""Servers on loopback that count what they are asked for and what they send."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from range_server import RangeHandler, running


@dataclass
class Counts:
    """What a server has answered."""

    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path and range of each."""
    sent: int = 0
    """Bytes of all answers."""
    meanwhile: Callable[[str], object] = lambda path: None
    """What happens before a request for a path is answered."""

    def of(self, name: str) -> int:
        """How many requests there were for a file."""
        return sum(path.endswith(f"/{name}") for _, path, _ in self.requests)


class CountingHandler(RangeHandler):
    """Files, and single ranges of them, counted."""

    def send_head(self) -> Any:
        counts: Counts = self.server.counts  # type: ignore[attr-defined]
        counts.requests.append((self.command, self.path, self.headers.get("Range")))
        counts.meanwhile(self.path)
        return super().send_head()

    def send_header(self, keyword: str, value: str) -> None:
        if keyword == "Content-Length" and self.command == "GET":
            self.server.counts.sent += int(value)  # type: ignore[attr-defined]
        super().send_header(keyword, value)


class SparseHandler(CountingHandler):
    """The same for files too large to be read."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        first, last = (int(n) for n in self.headers["Range"].removeprefix("bytes=").split("-"))
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(first)
            data = file.read(min(last, size - 1) + 1 - first)
        counts: Counts = self.server.counts  # type: ignore[attr-defined]
        counts.requests.append(("GET", self.path, self.headers["Range"]))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{first + len(data) - 1}/{size}")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class DeafHandler(SimpleHTTPRequestHandler):
    """Files as a whole, whatever was asked for."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        while data := source.read(2**14):
            try:
                outputfile.write(data)
            except OSError:  # whoever asked does not want more
                return
            self.server.counts.sent += len(data)  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: Any) -> None:
        pass


class ProxyHandler(BaseHTTPRequestHandler):
    """Whatever another server answers."""

    protocol_version = "HTTP/1.1"

    def pass_on(self, behind: str) -> None:
        counts: Counts = self.server.counts  # type: ignore[attr-defined]
        counts.requests.append((self.command, self.path, self.headers.get("Range")))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        connection = HTTPConnection(behind)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        data = answer.read()
        counts.sent += len(data)
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name not in ("Transfer-Encoding", "Connection", "Date", "Server"):
                self.send_header(name, value)
        if answer.getheader("Content-Length") is None:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        connection.close()

    def do_GET(self) -> None:
        self.pass_on(self.server.behind)  # type: ignore[attr-defined]

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(handler: Any, **attributes: Any) -> Iterator[tuple[str, Counts]]:
    """Run a server; give its url and what it counts."""
    with running(handler, counts=Counts(), ranges=[], **attributes) as server:
        yield server.url, server.counts


def counting_server(folder: Path, handler: Any = CountingHandler) -> Any:
    """Serve a folder; give its url and what was asked of it."""
    return serving(partial(handler, directory=str(folder)))


def counting_proxy(url: str) -> Any:
    """Stand before another server; give the url to ask instead, and what was asked of it."""
    return serving(ProxyHandler, behind=urlsplit(url).netloc)
