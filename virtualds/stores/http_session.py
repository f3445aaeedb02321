"""The HTTP session of fsspec, without a limit of connections and without leaks.

Headers, cookies and credentials for one host are not sent to another one that it redirects to.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from virtualds.stores.retry import CONNECT_TIMEOUT, READ_TIMEOUT

OWN_HEADERS = frozenset({"range", "accept", "accept-encoding", "user-agent"})
"""Headers, in lower case, that hold nothing about the user."""


def add_own_session(given: dict[str, Any]) -> dict[str, Any]:
    """Return HTTP options that make requests go through our session.

    A client of the user stays. aiohttp's defaults have limits: 100 connections to all hosts, 5
    minutes per file.
    """
    if "get_client" in given:
        return given
    given = {**given, "get_client": _open_session}
    client = dict(given.get("client_kwargs") or {})
    told = {**_to_headers(client), **dict(client.pop("headers", None) or {})}
    given["client_kwargs"] = {**client, "headers": told} if told else client
    return given


def _to_headers(client: dict[str, Any]) -> dict[str, str]:
    """Take cookies and credentials out of the settings of a session, and return them as headers."""
    found: dict[str, str] = {}
    cookies = client.get("cookies")
    if isinstance(cookies, Mapping) and all(isinstance(c, str) for c in cookies.values()):
        del client["cookies"]
        found["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
    if (auth := client.pop("auth", None)) is not None:
        # RFC 7617, section 2
        pair = f"{auth.login}:{auth.password}".encode(auth.encoding)
        found["Authorization"] = f"Basic {b64encode(pair).decode()}"
    return found


def _open_session(*, loop: Any, **options: Any) -> Any:
    """Return a session, as a future: fsspec waits for what this returns, on its loop."""
    from aiohttp import ClientSession, ClientTimeout, TCPConnector, TraceConfig

    redirects = TraceConfig()
    redirects.on_request_redirect.append(_keep_to_one_host)
    # `virtualds.stores.pace` limits the time of a whole response
    timeout = ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=READ_TIMEOUT)
    ours: dict[str, Any] = {"timeout": timeout}
    if "connector" not in options:
        ours["connector"] = TCPConnector(limit=0)
    traces = [redirects, *options.pop("trace_configs", ())]
    # ranges of a compressed response are not those of the file, so aiohttp must not inflate it
    settings = {**ours, "auto_decompress": False, **options, "trace_configs": traces}
    ready = loop.create_future()
    ready.set_result(ClientSession(**settings))
    return ready


async def _keep_to_one_host(session: Any, context: Any, redirect: Any) -> None:
    """Remove the user's headers from a request that is redirected to another host.

    aiohttp has one mapping of headers for all requests of one call, and passes it here.
    """
    from yarl import URL

    answer = redirect.response
    target = answer.headers.get("Location") or answer.headers.get("URI") or ""
    try:
        same = answer.url.join(URL(target)).origin() == answer.url.origin()
    except ValueError:
        same = False
    if not same:
        for name in {name for name in redirect.headers if name.lower() not in OWN_HEADERS}:
            del redirect.headers[name]
