"""The store of all fsspec filesystems: http, s3, gs, memory and others.

It finds the filesystem of a url, with credentials that are currently valid, and requests ranges.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from importlib import import_module
from itertools import count
from typing import Any, NamedTuple, TypeVar

from virtualds.errors import AccessError, UnsupportedError, make_exists_error, without_secrets
from virtualds.importing import format_install_command, import_named
from virtualds.options import get_options
from virtualds.progress import DEBUG, is_logged, log
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.conditional import PROOF, create, find_versioning
from virtualds.stores.requests import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    IncompleteResponse,
    Request,
    Response,
    RetriesExhausted,
    cause_of,
    check_small,
    check_whole_response,
    find_failure,
    is_about_expiry,
    limit_time,
    retry_request,
    to_os_error,
)
from virtualds.stores.store import (
    ChangedError,
    ListedFile,
    Range,
    RequestError,
    Store,
    StoreError,
    list_store_errors,
)
from virtualds.streams import gunzip
from virtualds.urls import host_of, kind_of

# ---------------------------------------------------------------------- credentials
# Credentials that expire: a function returns them, and new ones when they are needed.
#
# A user passes the function as ``storage_options={"credentials": function}``. It returns options of
# fsspec, such as ``key``, ``secret`` and ``token``, that replace it. Options are never written into
# a set; a function is pickled for workers, and each process calls it for itself.


OPTION = "credentials"

MARGIN = 300.0
"""The number of seconds before their expiry at which credentials are renewed, but at most half of
their lifetime."""

NAMES = {
    **dict.fromkeys(("accesskeyid", "awsaccesskeyid", "accesskey"), "key"),
    **dict.fromkeys(("secretaccesskey", "awssecretaccesskey", "secretkey"), "secret"),
    **dict.fromkeys(("sessiontoken", "awssessiontoken"), "token"),
    **dict.fromkeys(("expiration", "expiresat", "expirytime", "expires"), "expiration"),
}
"""fsspec's names of credentials, by the names of AWS, earthaccess, obstore and botocore, in lower
case without underscores."""

MAX_CREDENTIALS = 64
"""The number of functions whose credentials are cached."""


RETRY_SECONDS = 60.0
"""The number of seconds until a function whose new credentials were also rejected is called
again."""


class Credentials(NamedTuple):
    """Credentials that a function returned, and their expiry in seconds since 1970."""

    options: dict[str, Any]
    until: float
    refused: bool = False


_CREDENTIALS: dict[Hashable, Credentials] = {}
_LOCKS: dict[int, threading.Lock] = {}


def resolve_options(options: Mapping[str, Any] | None) -> StorageOptions | None:
    """Return options in which a credential function is replaced by its current result.

    Errors of the function are not caught.

    Examples
    --------
    >>> resolve_options({"credentials": lambda: {"accessKeyId": "me"}, "use_ssl": False})["key"]
    'me'
    """
    if options is None or (grant := find_credentials(options)) is None:
        return StorageOptions.of(options)
    left = {name: value for name, value in options.items() if name != OPTION}
    return StorageOptions(left | grant.options)


def find_credentials(options: Mapping[str, Any] | None) -> Credentials | None:
    """Return the current result of the credential function in the options, if they have one."""
    if not options or OPTION not in options:
        return None
    function = options[OPTION]
    if not callable(function):
        raise AccessError(
            f"storage_options: credentials is of type {type(function).__name__}; give a function "
            f"without arguments that returns a dict of options"
        )
    name = _name(function)
    # one thread calls the function, the others wait for the result
    with _get_lock():
        found = _CREDENTIALS.get(name)
        if found is None or time.time() >= found.until:
            found = _call(function)
            _CREDENTIALS.pop(name, None)
            while len(_CREDENTIALS) >= MAX_CREDENTIALS:
                del _CREDENTIALS[next(iter(_CREDENTIALS))]
            _CREDENTIALS[name] = found
    return found


def renew(function: Any, used: Credentials, error: BaseException, *, is_new: bool) -> bool:
    """Drop credentials that have expired according to an error; return whether others exist.

    The function is called once, however many requests fail at the same time. Credentials that are
    new, and rejected too, stay for a while.
    """
    if used.refused or not is_about_expiry(error):
        return False
    name = _name(function)
    with _get_lock():
        if _CREDENTIALS.get(name) is used:
            del _CREDENTIALS[name]
            if is_new:
                until = min(used.until, time.time() + RETRY_SECONDS)
                _CREDENTIALS[name] = used._replace(refused=True, until=until)
    return not is_new


def _call(function: Callable[[], Any]) -> Credentials:
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
        return Credentials(named, float("inf"))
    if isinstance(end, str):
        end = datetime.fromisoformat(end)
    if isinstance(end, datetime):
        end = (end if end.tzinfo else end.replace(tzinfo=UTC)).timestamp()
    now = time.time()
    return Credentials(named, float(max(end - MARGIN, now + (end - now) / 2)))


def _name(function: Any) -> Hashable:
    """Return a key that is equal for equal functions, such as unpickled copies of a `partial`."""
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
# The HTTP session of fsspec, without a limit of connections, and without leaking secrets.
#
# Headers, cookies and credentials for one host are not sent to another one after a redirect. A user
# names the hosts that get the headers too: ``storage_options={"trusted_hosts": [...]}``.


OWN_HEADERS = frozenset({"range", "accept", "accept-encoding", "user-agent"})
"""Headers, in lower case, that contain nothing about the user."""


class LoginPageError(PermissionError):
    """A server sent a page of another host, such as a login, instead of a file."""


def check_no_login(response: Any) -> None:
    """Raise an error for a page from another host than the requested one."""
    asked = response.history[0].url if response.history else response.url
    if response.content_type == "text/html" and asked.origin() != response.url.origin():
        raise LoginPageError(
            f"{asked.host} redirects to a page of {response.url.host}, such as a login"
        )


def add_own_session(given: dict[str, Any]) -> dict[str, Any]:
    """Return HTTP options that contain our function for opening sessions.

    A client of the user is kept. aiohttp's defaults have limits: 100 connections to all hosts, 5
    minutes per file.
    """
    from fsspec.config import conf

    # fsspec would add the values of its own configuration, which may be secrets
    given = {**conf.get("http", {}), **conf.get("https", {}), **given}
    if "get_client" in given:
        return given
    if not given:
        # requests without secrets need no checks, which take a sixth of the time of a request
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
    """Return the origins of hosts; those without a scheme get https."""
    from yarl import URL

    if isinstance(hosts, str):
        raise TypeError(f"trusted_hosts: got {hosts!r}; give a list of names of hosts")
    urls = (URL(host if "://" in host else f"https://{host}") for host in hosts)
    return tuple(sorted(str(url.origin()) for url in urls))


def _to_headers(client: dict[str, Any]) -> dict[str, str]:
    """Remove cookies and credentials from the settings of a session, and return them as headers."""
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
    """Return a future of a session, which fsspec awaits on its event loop."""
    from aiohttp import ClientSession, ClientTimeout, TCPConnector, TraceConfig

    redirects = TraceConfig()
    redirects.on_request_redirect.append(_restrict_to_host)
    # `virtualds.stores.requests` limits the time of a whole response
    timeout = ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=READ_TIMEOUT)
    ours: dict[str, Any] = {"timeout": timeout}

    async def add_secrets(request: Any, handler: Any) -> Any:
        # they were removed from a redirected request
        if str(request.url.origin()) in trusted:
            request.headers.update(dict(secrets))
        return await handler(request)

    if trusted:
        ours["middlewares"] = (add_secrets,)
    if "connector" not in options:
        ours["connector"] = TCPConnector(limit=0)
    traces = [*([redirects] if is_watched else ()), *options.pop("trace_configs", ())]
    # ranges of a compressed response are not those of the file, so aiohttp must not decompress it
    settings = {**ours, "auto_decompress": False, **options, "trace_configs": traces}
    ready = loop.create_future()
    ready.set_result(ClientSession(**settings))
    return ready


async def _restrict_to_host(session: Any, context: Any, redirect: Any) -> None:
    """Remove the user's headers from a request that is redirected to another host.

    aiohttp uses one mapping of headers for all requests of a call, and passes it here.
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

FILESYSTEM = "filesystem"
"""The option that contains an fsspec filesystem, which serves the urls."""


def use_filesystem(
    url: str,
    options: StorageOptions | None,
    work: Callable[[Any, str], T],
    *,
    retries: bool = False,
) -> T:
    """Call ``work`` with the filesystem of a url and the path in it, and return the result.

    ``retries`` is whether the filesystem repeats failed requests. Work is repeated once if
    credentials from a function have expired in the meantime.
    """
    for is_new in (False, True):
        used = find_credentials(options)
        try:
            return work(*find_filesystem(url, options, retries=retries))
        except list_store_errors() as error:
            if not options or not used or not renew(options[OPTION], used, error, is_new=is_new):
                raise
    raise AssertionError("credentials are renewed once")


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
            found = _make_filesystem(
                os.getpid(), host_of(url), options, retries, _read_environment(kind)
            )
            return found, found._strip_protocol(url)
        # imported here: it takes as long as importing the rest of virtualds
        import fsspec

        return fsspec.core.url_to_fs(url, **dict(options or {}))  # type: ignore[no-any-return]
    except (ImportError, TypeError, ValueError) as error:
        install = _INSTALLS.get(kind) if isinstance(error, ImportError) else None
        advice = f"; {install}" if install else ""
        raise StoreError(f"{error}{advice}") from error


_READ_FROM_ENVIRONMENT = {
    "s3": (
        *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"),
        *("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CA_BUNDLE"),
    ),
    "az": (
        *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ANON"),
        *("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_SAS_TOKEN"),
        *("AZURE_STORAGE_TENANT_ID", "AZURE_STORAGE_CLIENT_ID", "AZURE_STORAGE_CLIENT_SECRET"),
    ),
    "gs": ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"),
}
"""Variables that say how a bucket is reached. Whoever sets one in a notebook wants it to count."""


def _read_environment(kind: str) -> tuple[str | None, ...]:
    return tuple(map(os.environ.get, _READ_FROM_ENVIRONMENT.get(kind, ())))


@lru_cache(maxsize=256)
def _make_filesystem(
    process: int,
    root_url: str,
    options: StorageOptions | None,
    retries: bool,
    environment: tuple[str | None, ...],
) -> Any:
    """Return the filesystem of a host or bucket; each process and each environment has its own."""
    kind, given = kind_of(root_url), dict(options or {})
    if kind in ("http", "https"):
        import fsspec

        return fsspec.filesystem(kind, **add_own_session(given))
    if kind == "gs":
        # first, so that the error names it before the libraries that it needs
        import_module("gcsfs")
    return import_named(_OURS[kind])(root_url, given, retries=retries)


_OURS = {
    **dict.fromkeys(("s3", "az"), "virtualds.stores.objects:make_object_files"),
    "gs": "virtualds.stores.google_files:make_google_files",
}
"""Functions that make the filesystem of a kind of store, in modules that need an extra."""

_INSTALLS = {
    **dict.fromkeys(("http", "https"), "pip install aiohttp"),
    **{
        kind: format_install_command(extra)
        for kind, extra in (("s3", "s3"), ("gs", "gcs"), ("az", "azure"))
    },
}
"""The command that installs the library, by kind of store."""


# ---------------------------------------------------------------------- ranges
# Ranges of bytes through fsspec, with the etag and size of the file if the response has them.
#
# fsspec's own method only returns bytes. So for HTTP and object stores, the requests are sent here,
# with the session of their filesystem; for other filesystems, that method is used.


_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


def fetch(filesystem: Any, path: str, *wanted: int, begins: bool = False) -> Response:
    """Fetch a range of a file, or without a range the whole file, with one request.

    The size is None if it is unknown, or if the beginning of a file is requested from a server that
    does not support ranges.
    """
    if hasattr(filesystem, "fetch_range"):
        answer: Response = filesystem.fetch_range(path, *wanted)
        return answer
    if hasattr(filesystem, "encode_url"):
        from fsspec.asyn import sync

        asked: Response = sync(filesystem.loop, _ask_server, filesystem, path, wanted, begins)
        return asked
    if not wanted:
        return Response(bytes(call_with_timeout(filesystem, "cat_file", path)))
    begin, stop = wanted[0], sum(wanted)
    [data] = filesystem.cat_ranges([path], [begin], [stop], on_error="return")
    if isinstance(data, list_store_errors()):
        raise data
    if isinstance(data, BaseException):
        raise StoreError(f"{type(data).__name__}: {data}") from data
    return Response(bytes(data))


def get_beginning(filesystem: Any, path: str, length: int) -> Response | None:
    """Fetch the first bytes of a file and its size; return None if that takes two requests."""
    at_once = hasattr(filesystem, "fetch_range") or hasattr(filesystem, "encode_url")
    return fetch(filesystem, path, 0, length, begins=True) if at_once else None


def call_with_timeout(filesystem: Any, verb: str, path: str) -> Any:
    """Call a method of a filesystem within the time limit of one request."""
    # a filesystem that wraps another may claim to be asynchronous even if the other is not
    if not getattr(filesystem, "fs", filesystem).async_impl:
        return getattr(filesystem, verb)(path)
    from fsspec.asyn import sync

    async def done() -> Any:
        async with limit_time():
            return await getattr(filesystem, f"_{verb}")(path)

    return sync(filesystem.loop, done)


# ---------------------------------------------------------------------- HTTP, Google


async def _ask_server(
    filesystem: Any, path: str, wanted: tuple[int, ...], begins: bool
) -> Response:
    session = await filesystem.set_session()
    given = {"raise_for_status": False, **filesystem.kwargs}
    # headers of a request override those of the session
    headers = {**given.get("headers", {}), "Accept-Encoding": "identity"}
    if wanted:
        headers["Range"] = f"bytes={wanted[0]}-{sum(wanted) - 1}"
    how = {**given, "headers": headers, "auto_decompress": False}
    async with limit_time() as pace:
        response = await session.get(filesystem.encode_url(path), **how)
        try:
            # not by aiohttp: its error loses the redirects
            response.raise_for_status()
            check_no_login(response)
            most = _check_response(response, *wanted, begins=begins) if wanted else None
            data = await pace.gather(response.content.iter_any(), most)
        finally:
            # stops the server from sending the rest
            response.close()
    etag = response.headers.get(getattr(filesystem, "version_header", "ETag"))
    if most is not None:
        if len(data) < most:
            raise IncompleteResponse(f"the server sent {len(data)} bytes of an unknown number")
        return Response(data, etag)
    if not wanted:
        # some servers send compressed files regardless of the request (RFC 9110, section 8.4)
        if _find_encoding(response, "gzip", "x-gzip"):
            data = await asyncio.to_thread(gunzip, data)
        return Response(data, etag, len(data))
    range_sent = _CONTENT_RANGE.match(_content_range_of(response) or "")
    if range_sent is None:
        return Response(data[wanted[0] : sum(wanted)], etag, len(data))
    if len(data) != (promised := int(range_sent[2]) + 1 - int(range_sent[1])):
        raise IncompleteResponse(f"the server sent {len(data)} of {promised} bytes")
    return Response(data, etag, None if range_sent[3] == "*" else int(range_sent[3]))


def _check_response(response: Any, offset: int, length: int, *, begins: bool) -> int | None:
    """Check the headers of a response; return the number of bytes to read, or None for all.

    Without Content-Range the body is the whole file, from a server without ranges (RFC 9110,
    section 14.4). If the beginning is requested, the first bytes are enough: this server has no
    ranges.
    """
    _find_encoding(response)
    content_range, size = _content_range_of(response), response.content_length
    if content_range is None:
        if begins and (size is None or size > length):
            return length
        check_small(size)
    elif (found := _CONTENT_RANGE.match(content_range)) is None or int(found[1]) != offset:
        raise StoreError(f"the server sent other bytes than were asked for: {content_range}")
    return None


def _find_encoding(response: Any, *known: str) -> str:
    """Return the compression of a response, or "" if it is not compressed.

    An unknown compression raises an error: its ranges are not those of the file.
    """
    encoding = str(response.headers.get("Content-Encoding") or "").strip().lower()
    if encoding not in ("", "identity", *known):
        raise StoreError(
            f"the server sends the file compressed (Content-Encoding: {encoding}), though it was "
            f"asked not to; serve it uncompressed, or copy it to local disk"
        )
    return encoding if encoding in known else ""


def _content_range_of(response: Any) -> str | None:
    found: str | None = response.headers.get("Content-Range") if response.status == 206 else None
    return found


# ---------------------------------------------------------------------- the store


REPORTED_ERRORS = (
    ChangedError,
    RequestError,
    FileNotFoundError,
    FileExistsError,
    NotImplementedError,
)
"""Errors that are raised unchanged: their messages are complete, or callers catch them."""

MODIFIED = (
    *("mtime", "LastModified", "Last-Modified", "last_modified"),
    *("updated", "modified", "created"),
)
"""Names of the modification time in fsspec's descriptions of files; stores of immutable files use
the last one."""

INFO_VERSIONS = ("ETag", "generation", "etag")
"""Keys that identify a version in fsspec's description of a file: Google has two kinds of etags."""

_TURNS: dict[tuple[int, str, int], threading.Semaphore] = {}
"""Semaphores that limit the concurrent requests of all threads to a host, by process."""


class FsspecStore(Store):
    """The files of any fsspec filesystem."""

    refusal = "only local disk replaces a folder in one step; write to another url"

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        if len(ranges) == 1:
            return [_get_range(file, 0, ranges[0])]
        with ThreadPoolExecutor(min(len(ranges) or 1, get_options().max_requests)) as pool:
            return list(pool.map(partial(_get_range, file), count(), ranges))

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        return _describe_file(url, fetch_info(url, options), options)

    def read_head(
        self, url: str, options: StorageOptions | None, length: int
    ) -> tuple[SourceFile, bytes]:
        """Return the file with size and etag, and its first bytes, if possible with one request."""
        if (found := _fetch_beginning(url, options, length)) is not None:
            return SourceFile(url, found.size, None, found.etag, options), found.data
        file = self.describe(url, options)
        if file.size is None:
            # its end is unknown, so it is read as a stream
            filesystem, path = find_filesystem(url, options, retries=False)
            with filesystem.open(path, "rb") as handle:
                return file, handle.read(length)
        length = min(length, file.size)
        return file, self.get_ranges(file, [(0, length)])[0] if length else b""

    def read_all(self, url: str, options: StorageOptions | None) -> bytes:
        with describe_errors(url):
            return retry_request(
                partial(use_filesystem, url, options, fetch), Request("GET", url)
            ).data

    def write_all(
        self, url: str, data: bytes, options: StorageOptions | None, *, replace: bool
    ) -> None:
        """Write a file; object stores show it complete or not at all."""
        if not replace:
            try:
                self.write_version(url, data, options, None)
            except ChangedError as error:
                raise make_exists_error(url) from error
            return
        _request_once("PUT", url, options, lambda fs, path: fs.pipe_file(path, data))

    def check_conditions(self, url: str, options: StorageOptions | None) -> None:
        _request_once(
            "", url, options, lambda fs, path: find_versioning(fs).check_conditions(fs, path)
        )

    def read_version(self, url: str, options: StorageOptions | None) -> tuple[bytes, str]:
        """Return a whole file, and its version: the etag, or otherwise a hash of its bytes."""
        return _request_once(
            "GET", url, options, lambda fs, path: find_versioning(fs).read(fs, path)
        )

    def find_version(self, url: str, options: StorageOptions | None) -> str | None:
        try:
            return _request_once(
                "HEAD", url, options, lambda fs, path: find_versioning(fs).find_version(fs, path)
            )
        except FileNotFoundError:
            return None

    def write_version(
        self, url: str, data: bytes, options: StorageOptions | None, expected: str | None
    ) -> str:
        """Create or replace a file by a conditional write, in memory under a lock."""
        return _request_once(
            "PUT",
            url,
            options,
            lambda fs, path: find_versioning(fs).write(fs, path, data, expected),
        )

    def write_file(self, url: str, data: bytes, options: StorageOptions | None) -> None:
        """Write a file, which appears complete or not at all."""
        _request_once("PUT", url, options, lambda fs, path: create(fs, path, data))

    def list_files(self, url: str, options: StorageOptions | None) -> list[ListedFile]:
        """Return the files below a folder, with sizes, etags and times if they are known."""

        def find_below(filesystem: Any, path: str) -> tuple[str, Any]:
            # as they are now
            filesystem.invalidate_cache()
            return path, filesystem.find(path, detail=True)

        try:
            path, found = _request_once("LIST", url, options, find_below)
        except (FileNotFoundError, NotADirectoryError):
            return []
        if not isinstance(found, dict):
            # adlfs lists the name of a file that is not a folder
            return []
        folder = f"{path.rstrip('/')}/"
        beginning = url.rstrip("/")
        return [
            ListedFile(
                inside, _describe_file(f"{beginning}/{inside}", info, options), modified_of(info)
            )
            for name, info in sorted(found.items())
            if (inside := name.removeprefix(folder)) != name
            and not name.endswith("/")
            # proofs only exist for a moment, like locks of local files
            and not name.rpartition("/")[2].startswith(PROOF)
        ]

    def remove(self, urls: Iterable[str], options: StorageOptions | None) -> None:
        """Remove files, in S3 many with one request; folders stay."""
        named = list(urls)

        def remove(filesystem: Any, _: str) -> None:
            # all urls belong to the same filesystem
            paths = [find_filesystem(url, options)[1] for url in named]
            find_versioning(filesystem).remove(filesystem, paths)

        if named:
            _request_once("DELETE", named[0], options, remove)


def _request_once(
    method: str, url: str, options: StorageOptions | None, work: Callable[[Any, str], T]
) -> T:
    """Return the result of ``work`` on a filesystem; only its library may repeat requests.

    ``method`` is the name of the request in the log; without a name it is not logged.
    """
    with describe_errors(url, method):
        return use_filesystem(url, options, work, retries=True)


def fetch_info(url: str, options: StorageOptions | None) -> dict[str, Any]:
    """Return fsspec's description of one file, with one request."""

    def ask(filesystem: Any, path: str) -> dict[str, Any]:
        # the current state, not that of an earlier listing
        filesystem.invalidate_cache(path)
        found: dict[str, Any] = call_with_timeout(filesystem, "info", path)
        return found

    with describe_errors(url):
        found = retry_request(partial(use_filesystem, url, options, ask), Request("HEAD", url))
    if found.get("type") == "directory":
        raise folder_error(url)
    return found


def folder_error(url: str) -> IsADirectoryError:
    """Return the error for a folder that was expected to be a file."""
    return IsADirectoryError(f"{without_secrets(url)}: this is a folder; give files")


def _get_range(file: SourceFile, item: int, wanted: Range) -> bytes:
    """Return the bytes of one range."""
    offset, length = wanted
    if not length:
        return b""

    def ask() -> bytes:
        # a forked child has its own: threads of the parent do not release the child's copy
        at_once = get_options().max_requests
        turn = os.getpid(), host_of(file.url), at_once
        with _TURNS.setdefault(turn, threading.Semaphore(at_once)):
            answer = use_filesystem(
                file.url, file.options, lambda fs, path: fetch(fs, path, offset, length)
            )
        return check_whole_response(answer, file, length)

    try:
        return retry_request(ask, Request("GET", file.url, offset, length))
    except RetriesExhausted as failed:
        error = to_os_error(failed)
        reason = error.reason if isinstance(error, StoreError) else f"{error}"
        raise StoreError(reason, item, getattr(error, "remedy", "")) from cause_of(failed)


def _fetch_beginning(url: str, options: StorageOptions | None, length: int) -> Response | None:
    """Return the first bytes and size of a file, or None if that takes more than one request."""
    try:
        found = retry_request(
            partial(use_filesystem, url, options, partial(get_beginning, length=length)),
            Request("GET", url, 0, length),
        )
    except RetriesExhausted as failed:
        error = to_os_error(failed, url)
        cause = failed.__cause__ or failed
        judged = isinstance(cause, StoreError) or find_failure(cause) is not None
        if isinstance(error, StoreError) and failed.attempts == 1 and not judged:
            # an empty file has no first bytes, and some servers reject such ranges
            return None
        raise error from cause_of(failed)
    short = (
        found is not None and found.size is not None and len(found.data) < min(length, found.size)
    )
    return None if short else found


@contextmanager
def describe_errors(url: str, method: str = "") -> Iterator[None]:
    """Add the url and the remedy to the error of a failed request.

    ``method`` is the name in the log of a request that is sent once; `retry_request` logs others.
    """
    begun = time.monotonic()
    try:
        yield
        if method and is_logged(DEBUG):
            log(DEBUG, f"{Request(method, url)}: {time.monotonic() - begun:.3f} s")
    except RetriesExhausted as failed:
        raise to_os_error(failed, url) from cause_of(failed)
    except list_store_errors() as error:
        # complete errors are not changed; a StoreError that only wraps a library's error is
        foreign = error.__cause__ if type(error) is StoreError else error
        if isinstance(error, REPORTED_ERRORS) or not isinstance(foreign, list_store_errors()):
            raise
        once = RetriesExhausted(1)
        once.__cause__ = foreign
        raise to_os_error(once, url) from cause_of(once)


def _describe_file(url: str, info: dict[str, Any], options: StorageOptions | None) -> SourceFile:
    return SourceFile(url, info.get("size"), None, etag_of(info), options)


def etag_of(info: dict[str, Any]) -> str | None:
    """Return the etag of a file, or its equivalent in the store."""
    return next((str(info[name]) for name in INFO_VERSIONS if info.get(name)), None)


def modified_of(info: dict[str, Any]) -> float | None:
    """Return the modification time, in seconds since 1970."""
    found = next((info[name] for name in MODIFIED if info.get(name) is not None), None)
    if isinstance(found, str):
        # in ISO 8601, or in the format of HTTP headers
        for parse in (datetime.fromisoformat, parsedate_to_datetime):
            with suppress(ValueError):
                return parse(found).timestamp()
        return None
    return found.timestamp() if isinstance(found, datetime) else found
