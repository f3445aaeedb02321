"""Run the application with uvicorn."""

from __future__ import annotations

import socket
from contextlib import suppress
from copy import deepcopy
from typing import Any

from virtualds_server.app import INSTALL_HINT

MAX_CONNECTIONS = 2000
"""Connections at once. The response to requests of further ones is 503."""


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket. Port 0 means any free port.

    Raises
    ------
    OSError
        This machine does not have the address, or the port is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off, which delays responses by 40 ms, only if the protocol
    # is given
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(MAX_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise OSError(
            f"host={host!r} port={port}: {error.strerror or error}; give another port or host"
        ) from error
    return listener


def get_socket_url(listener: socket.socket) -> str:
    """Return the url at which a socket listens."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def make_uvicorn_server(app: Any, logs_requests: bool = True) -> Any:
    """Return a uvicorn server that logs to standard error."""
    try:
        import uvicorn
    except ImportError as error:
        raise ImportError(f"serving needs uvicorn ({error}); {INSTALL_HINT}") from error
    # the command prints its result to standard output
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
            limit_concurrency=MAX_CONNECTIONS,
            server_header=False,
        )
    )


def run(server: Any, listener: socket.socket) -> None:
    """Serve until Ctrl-C or a signal stops the process."""
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
