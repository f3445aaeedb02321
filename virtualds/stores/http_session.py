"""The HTTP session of fsspec, without a limit of connections and without leaks.

Headers, cookies and credentials for one host are not sent to another one that it redirects to. A
user names the hosts that get the headers too: ``storage_options={"trusted_hosts": [...]}``.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from virtualds.stores.retry import CONNECT_TIMEOUT, READ_TIMEOUT

OWN_HEADERS = frozenset({"range", "accept", "accept-encoding", "user-agent"})
"""Headers, in lower case, that hold nothing about the user."""


class LoginPageError(PermissionError):
    """A server sent a page of another host, such as a login, in place of a file."""


def demand_no_login(response: Any) -> None:
    """Refuse a page of another host than the one that was asked.

    Raises
    ------
    LoginPageError
    """
    asked = response.history[0].url if response.history else response.url
    if response.content_type == "text/html" and asked.origin() != response.url.origin():
        raise LoginPageError(
            f"{asked.host} redirects to a page of {response.url.host}, such as a login"
        )


def add_own_session(given: dict[str, Any]) -> dict[str, Any]:
    """Return HTTP options that make requests go through our session.

    A client of the user stays. aiohttp's defaults have limits: 100 connections to all hosts, 5
    minutes per file.
    """
    if "get_client" in given:
        return given
    trusted = _to_origins(given.get("trusted_hosts") or ())
    given = {name: value for name, value in given.items() if name != "trusted_hosts"}
    client = dict(given.get("client_kwargs") or {})
    named = dict(client.pop("headers", None) or {})
    told = {**_to_headers(client), **named}
    given["client_kwargs"] = {**client, "headers": told} if told else client
    if trusted:
        # cookies are for one host
        both = {**named, **dict(given.get("headers") or {})}.items()
        secrets = tuple((name, text) for name, text in both if name.lower() != "cookie")
        given["get_client"] = partial(_open_session, trusted=trusted, secrets=secrets)
    else:
        given["get_client"] = _open_session
    return given


def _to_origins(hosts: Iterable[str]) -> tuple[str, ...]:
    """Return the origins of hosts; one without a scheme is asked by https."""
    from yarl import URL

    if isinstance(hosts, str):
        raise TypeError(f"trusted_hosts: got {hosts!r}; give a list of names of hosts")
    urls = (URL(host if "://" in host else f"https://{host}") for host in hosts)
    return tuple(sorted(str(url.origin()) for url in urls))


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


def _open_session(
    *,
    loop: Any,
    trusted: tuple[str, ...] = (),
    secrets: tuple[tuple[str, str], ...] = (),
    **options: Any,
) -> Any:
    """Return a session, as a future: fsspec waits for what this returns, on its loop."""
    from aiohttp import ClientSession, ClientTimeout, TCPConnector, TraceConfig

    redirects = TraceConfig()
    redirects.on_request_redirect.append(_keep_to_one_host)
    # `virtualds.stores.retry` limits the time of a whole response
    timeout = ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=READ_TIMEOUT)
    ours: dict[str, Any] = {"timeout": timeout}
    if trusted:
        ours["middlewares"] = (_tell_trusted_hosts(trusted, dict(secrets)),)
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


def _tell_trusted_hosts(trusted: tuple[str, ...], secrets: dict[str, str]) -> Any:
    """Return what puts headers back into requests that are redirected to some hosts."""

    async def tell(request: Any, handler: Any) -> Any:
        if str(request.url.origin()) in trusted:
            request.headers.update(secrets)
        return await handler(request)

    return tell
