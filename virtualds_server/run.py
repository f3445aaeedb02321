"""Running the application with uvicorn."""

from __future__ import annotations

import socket
from contextlib import suppress
from copy import deepcopy
from typing import Any

from virtualds_server.app import NEEDED

MOST_CONNECTIONS = 2000
"""Requests and connections at once; the server answers more with 503."""


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 is any free one.

    Raises
    ------
    OSError
        The address is not of this machine, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio lets Nagle's algorithm delay every answer by 40 ms if the protocol is not named
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(MOST_CONNECTIONS)
    except OSError as error:
        found.close()
        raise OSError(
            f"host={host!r} port={port}: {error.strerror or error}; give another port or host"
        ) from error
    return found


def find_url(listening: socket.socket) -> str:
    """Return the url at which a socket listens."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def make_server(app: Any, logs_requests: bool = True) -> Any:
    """Return a server of uvicorn, which logs on standard error."""
    try:
        import uvicorn
    except ImportError as error:
        raise ImportError(f"serving needs uvicorn ({error}); {NEEDED}") from error
    # standard output is for the report
    logging = deepcopy(uvicorn.config.LOGGING_CONFIG)
    logging["handlers"]["access"]["stream"] = "ext://sys.stderr"
    logging["loggers"]["virtualds.server"] = {
        "handlers": ["default"],
        "level": "INFO",
        "propagate": False,
    }
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=logging,
            log_level="info" if logs_requests else "warning",
            limit_concurrency=MOST_CONNECTIONS,
            server_header=False,
        )
    )


def run(server: Any, listening: socket.socket) -> None:
    """Serve until Ctrl-C, or until the process is told to end."""
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listening])
