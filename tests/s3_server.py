"""An S3 server on loopback, in a process of its own: moto's, which keeps everything in memory.

It answers one request after the other, so a conditional write is atomic as it is in S3: moto itself
compares and writes in two steps, between which another thread of it could do the same.

It can be one that ignores conditions, as some servers do; and it can tell what it was asked.
"""

import logging
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CONDITIONS = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")


@contextmanager
def s3_server(*ignored: str) -> Iterator[dict[str, Any]]:
    """Run a server on a free port; give the storage options that lead s3fs to it.

    It ignores the conditions that are named, as WSGI names them.
    """
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__, *ignored],
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
    server = make_server("127.0.0.1", 0, noting(app), threaded=False)
    threading.Thread(target=end_with_parent, daemon=True).start()
    print(server.server_port, flush=True)
    server.serve_forever()


def noting(app: Any) -> Any:
    """Return an app that ignores conditions, and lists what it was asked at ``/requests``."""
    asked: list[str] = []

    def answer(environ: dict[str, Any], start: Any) -> Any:
        if environ["PATH_INFO"] == "/requests":
            start("200 OK", [("Content-Type", "text/plain")])
            return ["\n".join(asked).encode()]
        asked.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
        for name in sys.argv[1:]:
            environ.pop(name, None)
        return app(environ, start)

    return answer


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
