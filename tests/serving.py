"""A server of `virtualds_server` on a free port of loopback, in a thread of this process."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from virtualds_server import create_app
from virtualds_server.app import bind_socket, get_socket_url

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""What a client of loopback knows of certificates: to read those of the system, which each new
client does, takes ten times as long as a request."""
get = partial(httpx.get, verify=NO_TLS)
request = partial(httpx.request, verify=NO_TLS)
make_client = partial(httpx.Client, verify=NO_TLS)


@contextmanager
def serving(what: Any, **how: Any) -> Iterator[str]:
    """Serve something, as `create_app` takes it; give the url, which ends with a slash."""
    with running(create_app(what, **how)) as url:
        yield url


@contextmanager
def serving_apart(target: Path) -> Iterator[str]:
    """Serve a set by the command in a process of its own, for readers that hold the GIL."""
    with running_command("serve", str(target)) as told:
        yield told["url"]


@contextmanager
def running_command(*arguments: str) -> Iterator[dict[str, Any]]:
    """Run a command that serves on a free port; give what it prints about it."""
    command = [sys.executable, "-m", "virtualds_cli", *arguments, "--port", "0", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            text = ""
            while not text.endswith("}\n"):
                line = process.stdout.readline()
                assert line, f"the command ended: {text}"
                text += line
            yield json.loads(text)
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def running(app: Any) -> Iterator[str]:
    """Run an application."""
    listening = bind_socket("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    until = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive() and time.monotonic() < until, "the server does not start"
        time.sleep(0.01)
    try:
        yield get_socket_url(listening)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
        listening.close()
