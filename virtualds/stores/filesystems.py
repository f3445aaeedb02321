"""Finding the fsspec filesystem of a url, with credentials that are valid now."""

from __future__ import annotations

import os
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from virtualds.errors import AccessError, UnsupportedError
from virtualds.importing import import_named, say_install
from virtualds.source_file import StorageOptions
from virtualds.stores.object_access import translate_options
from virtualds.stores.requests import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    is_about_expiry,
    list_store_errors,
)
from virtualds.stores.store import StoreError
from virtualds.urls import host_of, kind_of

# ---------------------------------------------------------------------- credentials
# Credentials that expire: a function gives them, and gives new ones when they are needed.
#
# A user gives the function as ``storage_options={"credentials": function}``. It returns options of
# fsspec, such as ``key``, ``secret`` and ``token``, in place of itself. Options are never written
# into a set; a function travels to workers by pickling, and each process asks it for itself.


OPTION = "credentials"

MARGIN = 300.0
"""Seconds before their end at which credentials are renewed; half of their life if that is less."""

NAMES = {
    **dict.fromkeys(("accesskeyid", "awsaccesskeyid", "accesskey"), "key"),
    **dict.fromkeys(("secretaccesskey", "awssecretaccesskey", "secretkey"), "secret"),
    **dict.fromkeys(("sessiontoken", "awssessiontoken"), "token"),
    **dict.fromkeys(("expiration", "expiresat", "expirytime", "expires"), "expiration"),
}
"""Names of fsspec for those of AWS, earthaccess, obstore and botocore, in lower case without _."""

MOST = 64
"""Functions whose credentials are kept."""


PATIENCE = 60.0
"""Seconds after which a function is asked again whose new credentials were refused, too."""


class Grant(NamedTuple):
    """What a function gave, and until when, in seconds since 1970, it is used."""

    options: dict[str, Any]
    until: float
    refused: bool = False


_GRANTS: dict[Hashable, Grant] = {}
_LOCKS: dict[int, threading.Lock] = {}


def resolve_options(options: Mapping[str, Any] | None) -> StorageOptions | None:
    """Return options in which present credentials stand in place of the function that gives them.

    Errors of the function pass.

    Examples
    --------
    >>> resolve_options({"credentials": lambda: {"accessKeyId": "me"}, "use_ssl": False})["key"]
    'me'
    """
    if options is None or (grant := find_grant(options)) is None:
        return StorageOptions.of(options)
    left = {name: value for name, value in options.items() if name != OPTION}
    return StorageOptions(left | grant.options)


def find_grant(options: Mapping[str, Any] | None) -> Grant | None:
    """Return what the function of options gives at present, None if they have no function."""
    if not options or OPTION not in options:
        return None
    function = options[OPTION]
    if not callable(function):
        raise AccessError(
            f"storage_options: credentials is of type {type(function).__name__}; give a function "
            f"without arguments that returns a dict of options"
        )
    name = _name(function)
    # one thread asks, the others wait for its answer
    with _get_lock():
        found = _GRANTS.get(name)
        if found is None or time.time() >= found.until:
            found = _ask(function)
            _GRANTS.pop(name, None)
            while len(_GRANTS) >= MOST:
                del _GRANTS[next(iter(_GRANTS))]
            _GRANTS[name] = found
    return found


def renew(function: Any, used: Grant, error: BaseException, *, is_new: bool) -> bool:
    """Forget credentials that have expired, as an error says; say whether there are newer ones.

    The function is asked once, however many requests fail at the same time. Credentials that are
    new, and refused too, stay for a while.
    """
    if used.refused or not is_about_expiry(error):
        return False
    name = _name(function)
    with _get_lock():
        if _GRANTS.get(name) is used:
            del _GRANTS[name]
            if is_new:
                until = min(used.until, time.time() + PATIENCE)
                _GRANTS[name] = used._replace(refused=True, until=until)
    return not is_new


def _ask(function: Callable[[], Any]) -> Grant:
    try:
        given = function()
    except Exception as error:
        error.add_note("this function is `credentials` of storage_options")
        raise
    if not isinstance(given, Mapping) or not given:
        raise AccessError(
            f"the function credentials of storage_options returned {type(given).__name__} without "
            f"options; let it return a dict, such as one of key, secret, token and expiration"
        )
    known = [NAMES.get(str(name).lower().replace("_", ""), str(name)) for name in given]
    named = dict(zip(known, given.values(), strict=True))
    # a datetime, ISO 8601, or seconds
    if (end := named.pop("expiration", None)) is None:
        return Grant(named, float("inf"))
    if isinstance(end, str):
        end = datetime.fromisoformat(end)
    if isinstance(end, datetime):
        end = (end if end.tzinfo else end.replace(tzinfo=UTC)).timestamp()
    now = time.time()
    return Grant(named, float(max(end - MARGIN, now + (end - now) / 2)))


def _name(function: Any) -> Hashable:
    """Return what is the same for equal functions: each unpickled `partial` is another object."""
    if isinstance(function, partial):
        name = (function.func, function.args, tuple(sorted(function.keywords.items())))
        try:
            hash(name)
        except TypeError:
            return function
        return name
    return function  # type: ignore[no-any-return]


def _get_lock() -> threading.Lock:
    # a forked child has its own: threads of the parent do not release the child's copy
    return _LOCKS.setdefault(os.getpid(), threading.Lock())


# ---------------------------------------------------------------------- sessions of HTTP
# The HTTP session of fsspec, without a limit of connections and without leaks.
#
# Headers, cookies and credentials for one host are not sent to another one that it redirects to. A
# user names the hosts that get the headers too: ``storage_options={"trusted_hosts": [...]}``.


OWN_HEADERS = frozenset({"range", "accept", "accept-encoding", "user-agent"})
"""Headers, in lower case, that hold nothing about the user."""


class LoginPageError(PermissionError):
    """A server sent a page of another host, such as a login, in place of a file."""


def check_no_login(response: Any) -> None:
    """Refuse a page of another host than the one that was asked."""
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
    from fsspec.config import conf

    # fsspec would add what its own configuration says, which may be secrets
    given = {**conf.get("http", {}), **conf.get("https", {}), **given}
    if "get_client" in given:
        return given
    if not given:
        # requests without secrets need no watch, which takes a sixth of the time of one
        return {"get_client": partial(_open_session, is_watched=False)}
    trusted = _to_origins(given.get("trusted_hosts") or ())
    given = {name: value for name, value in given.items() if name != "trusted_hosts"}
    client = dict(given.get("client_kwargs") or {})
    named = dict(client.pop("headers", None) or {})
    headers = {**_to_headers(client), **named}
    given["client_kwargs"] = {**client, "headers": headers} if headers else client
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
    is_watched: bool = True,
    **options: Any,
) -> Any:
    """Return a session, as a future: fsspec waits for what this returns, on its loop."""
    from aiohttp import ClientSession, ClientTimeout, TCPConnector, TraceConfig

    redirects = TraceConfig()
    redirects.on_request_redirect.append(_keep_to_one_host)
    # `virtualds.stores.requests` limits the time of a whole response
    timeout = ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=READ_TIMEOUT)
    ours: dict[str, Any] = {"timeout": timeout}

    async def add_secrets(request: Any, handler: Any) -> Any:
        # they were taken out of a request that is redirected
        if str(request.url.origin()) in trusted:
            request.headers.update(dict(secrets))
        return await handler(request)

    if trusted:
        ours["middlewares"] = (add_secrets,)
    if "connector" not in options:
        ours["connector"] = TCPConnector(limit=0)
    traces = [*([redirects] if is_watched else ()), *options.pop("trace_configs", ())]
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


# ---------------------------------------------------------------------- filesystems


T = TypeVar("T")

FILESYSTEM, STORE = "filesystem", "store"
"""Options that hold an object which serves the urls: a filesystem of fsspec, a store of obstore."""


def use_filesystem(
    url: str,
    options: StorageOptions | None,
    work: Callable[[Any, str], T],
    *,
    retries: bool = False,
) -> T:
    """Return what work on a filesystem and a path in it returns, which repeats requests or not.

    Work is done once more if credentials, which a function gave, have expired meanwhile.
    """
    for is_new in (False, True):
        used = find_grant(options)
        try:
            return work(*find_filesystem(url, options, retries=retries))
        except list_store_errors() as error:
            if not options or not used or not renew(options[OPTION], used, error, is_new=is_new):
                raise
    raise AssertionError("credentials are renewed once")


def find_options(filesystem: Any, url: str) -> StorageOptions | None:
    """Return options by which a url leads to where it does in a filesystem of the user."""
    options = StorageOptions.of(filesystem.storage_options)
    if kind_of(url) in ("s3", "az"):
        try:
            translate_options(host_of(url), options)
        except (UnsupportedError, ValueError):
            return StorageOptions({FILESYSTEM: filesystem})
    return options


def find_filesystem(
    url: str, options: StorageOptions | None, *, retries: bool = True
) -> tuple[Any, str]:
    """Return the fsspec filesystem of a url, and the path in it."""
    options = resolve_options(options)
    if options and FILESYSTEM in options:
        if len(options) > 1:
            other = min(options.keys() - {FILESYSTEM})
            raise UnsupportedError(
                f"{url}: storage_options have a filesystem, and {other!r} beside it; give that to "
                f"the filesystem"
            )
        found = options[FILESYSTEM]
        return found, found._strip_protocol(url)
    kind = kind_of(url)
    try:
        if kind in _INSTALLS and "::" not in url:
            found = _make_filesystem(os.getpid(), host_of(url), options, retries)
            return found, found._strip_protocol(url)
        # imported here: it takes as long as importing the rest of virtualds
        import fsspec

        return fsspec.core.url_to_fs(url, **dict(options or {}))  # type: ignore[no-any-return]
    except (ImportError, TypeError, ValueError) as error:
        install = _INSTALLS.get(kind) if isinstance(error, ImportError) else None
        advice = f"; {install}" if install else ""
        raise StoreError(f"{error}{advice}") from error


@lru_cache(maxsize=256)
def _make_filesystem(
    process: int, place: str, options: StorageOptions | None, retries: bool
) -> Any:
    """Return the filesystem of a host or bucket; each process has its own."""
    kind, given = kind_of(place), dict(options or {})
    if kind in ("http", "https"):
        import fsspec

        return fsspec.filesystem(kind, **add_own_session(given))
    if kind == "gs":
        # first, so that its absence is named before that of the libraries below it
        import_module("gcsfs")
    return import_named(_OURS[kind])(place, given, retries=retries)


_OURS = {
    **dict.fromkeys(("s3", "az"), "virtualds.stores.objects:make_object_files"),
    "gs": "virtualds.stores.google_files:make_google_files",
}
"""What makes the filesystem of a kind of store, in modules that need a library of an extra."""

_INSTALLS = {
    **dict.fromkeys(("http", "https"), "pip install aiohttp"),
    **{kind: say_install(extra) for kind, extra in (("s3", "s3"), ("gs", "gcs"), ("az", "azure"))},
}
"""The command that installs the library, by kind of store."""
