"""A web server on loopback that sends ranges of the files of a folder."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class RangeHandler(SimpleHTTPRequestHandler):
    """Files, and single ranges of them (RFC 9110, section 14)."""

    protocol_version = "HTTP/1.1"

    def send_head(self) -> Any:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if wanted is None or not path.is_file():
            return super().send_head()
        size = path.stat().st_size
        first, last = int(wanted[1]), min(int(wanted[2]), size - 1)
        if first >= size:
            self.send_error(416)
            return None
        self.server.ranges.append((first, last + 1 - first))  # type: ignore[attr-defined]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        self.wfile.write(path.read_bytes()[first : last + 1])
        return None

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def range_server(folder: Path) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Serve a folder; give its url, and the list of ranges that were asked for."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(RangeHandler, directory=str(folder)))
    server.daemon_threads = True
    server.ranges = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.ranges  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
