"""An S3 server on loopback, in a process of its own: moto's, which keeps everything in memory.

It answers one request after the other, so a conditional write is atomic as it is in S3: moto itself
compares and writes in two steps, between which another thread of it could do the same.

It can have the faults of other servers, which ignore conditions or keep them by halves; and it can
tell what it was asked.
"""

import io
import logging
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

CONDITIONS = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")
EARLY = "early"
"""Conditions are checked when a request begins, a while before it is carried out."""
MISSING = "missing"
"""``If-Match`` is ignored for objects that do not exist."""
BUSY = "busy"
"""Of writes that come at the same time all but one are put off."""
WHILE = 0.02
"""Seconds that writes take if there may be several at a time."""


@contextmanager
def s3_server(*faults: str) -> Iterator[dict[str, Any]]:
    """Run a server on a free port; give the storage options that lead s3fs to it.

    Its faults are the conditions that it ignores, as WSGI names them, and those above.
    """
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__, *faults],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, process.stdout:
        try:
            url = f"http://127.0.0.1:{int(process.stdout.readline())}"
            yield {
                "key": "nobody",
                "secret": "nothing",
                "client_kwargs": {"endpoint_url": url, "region_name": "us-east-1"},
            }
        finally:
            process.kill()
            process.wait()


def main() -> None:
    # moto asks no other machine then
    os.environ |= {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing"}
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    app = DomainDispatcherApplication(create_backend_app)
    faults = sys.argv[1:]
    faulty = with_faults(app, faults)
    noted = noting(in_turn(faulty) if BUSY in faults else faulty)
    server = make_server("127.0.0.1", 0, noted, threaded=bool({EARLY, BUSY} & set(faults)))
    threading.Thread(target=end_with_parent, daemon=True).start()
    print(server.server_port, flush=True)
    server.serve_forever()


def noting(app: Any) -> Any:
    """Return an app that lists what it was asked at ``/requests``."""
    asked: list[str] = []

    def answer(environ: dict[str, Any], start: Any) -> Any:
        if environ["PATH_INFO"] == "/requests":
            start("200 OK", [("Content-Type", "text/plain")])
            return ["\n".join(asked).encode()]
        asked.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
        return app(environ, start)

    return answer


def with_faults(app: Any, faults: Sequence[str]) -> Any:
    """Return an app that takes conditions out of requests to write, as servers with faults do."""

    def answer(environ: dict[str, Any], start: Any) -> Any:
        if environ["REQUEST_METHOD"] == "PUT":
            etag = find_etag(app, environ)
            taken = {name for name in CONDITIONS if name in faults}
            if MISSING in faults and etag is None:
                taken.add("HTTP_IF_MATCH")
            if EARLY in faults and is_true(environ, etag):
                taken.update(CONDITIONS)
                time.sleep(WHILE)
            environ = {name: value for name, value in environ.items() if name not in taken}
        return app(environ, start)

    return answer


def in_turn(app: Any) -> Any:
    """Return an app that refuses to write while it writes, so that clients come back later."""
    writing = threading.Lock()

    def answer(environ: dict[str, Any], start: Any) -> Any:
        if environ["REQUEST_METHOD"] != "PUT":
            return app(environ, start)
        if not writing.acquire(blocking=False):
            start("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code><Message>reduce your rate</Message></Error>"]
        try:
            time.sleep(WHILE)
            return app(environ, start)
        finally:
            writing.release()

    return answer


def find_etag(app: Any, environ: dict[str, Any]) -> str | None:
    """Return the etag of the object that a request names, None if there is none."""
    asked = {k: v for k, v in environ.items() if k not in (*CONDITIONS, "CONTENT_LENGTH")}
    asked |= {"REQUEST_METHOD": "HEAD", "wsgi.input": io.BytesIO()}
    told: list[tuple[str, list[tuple[str, str]]]] = []
    list(app(asked, lambda status, headers, error=None: told.append((status, headers))))
    status, headers = told[0]
    return dict(headers).get("ETag") if status.startswith("200") else None


def is_true(environ: dict[str, Any], etag: str | None) -> bool:
    """Say whether the condition of a request is true at this moment."""
    if "HTTP_IF_MATCH" in environ:
        return environ["HTTP_IF_MATCH"].strip('"') == (etag or "").strip('"')
    return "HTTP_IF_NONE_MATCH" in environ and etag is None


def requests_to(options: dict[str, Any]) -> list[str]:
    """Return the methods and paths of all requests to a server so far."""
    endpoint = options["client_kwargs"]["endpoint_url"]
    with urllib.request.urlopen(f"{endpoint}/requests") as answer:
        return str(answer.read().decode()).splitlines()


def end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
