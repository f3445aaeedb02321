"""An S3 server on loopback, in a process of its own: moto's, which keeps everything in memory.

It answers one request after the other, so a conditional write is atomic as it is in S3: moto itself
compares and writes in two steps, between which another thread of it could do the same.
"""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def s3_server() -> Iterator[dict[str, Any]]:
    """Run a server on a free port; give the storage options that lead s3fs to it."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__],
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
    server = make_server("127.0.0.1", 0, app, threaded=False)
    threading.Thread(target=end_with_parent, daemon=True).start()
    print(server.server_port, flush=True)
    server.serve_forever()


def end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
