"""`FsspecStore`, the store of all fsspec filesystems: http, s3, gs, memory and others.

It creates filesystems with valid credentials, and requests byte ranges.
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
from virtualds.importing import format_install_command, import_object
from virtualds.options import get_options
from virtualds.progress import DEBUG, is_logged, log
from virtualds.source_file import SourceFile, StorageOptions, host_of, kind_of
from virtualds.stores.conditional import TEST_PREFIX, create, find_versioning
from virtualds.stores.requests import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    IncompleteResponse,
    Request,
    Response,
    RetriesExhausted,
    check_small,
    check_whole_response,
    choose_cause,
    find_failure,
    limit_time,
    may_be_expired,
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

# ---------------------------------------------------------------------- credentials
# A function that returns credentials, which is called again when they expire.
#
# A user passes it as ``storage_options={"credentials": function}``. It returns fsspec options, such
# as ``key``, ``secret`` and ``token``. Options are never written into a set; the function is
# pickled for workers, and each process calls it.


CREDENTIALS_OPTION = "credentials"

RENEWAL_MARGIN = 300.0
"""Seconds before expiry at which credentials are renewed, at most half of their lifetime."""

CREDENTIAL_NAMES = {
    **dict.fromkeys(("accesskeyid", "awsaccesskeyid", "accesskey"), "key"),
    **dict.fromkeys(("secretaccesskey", "awssecretaccesskey", "secretkey"), "secret"),
    **dict.fromkeys(("sessiontoken", "awssessiontoken"), "token"),
    **dict.fromkeys(("expiration", "expiresat", "expirytime", "expires"), "expiration"),
}
"""Names of credentials in fsspec, by their names in AWS, earthaccess, obstore and botocore.

These are in lower case, without underscores.
"""

MAX_CREDENTIALS = 64
"""Maximum number of credential functions whose results are cached."""


RETRY_SECONDS = 60.0
"""Seconds until a function is called again if its new credentials were rejected as well."""


class Credentials(NamedTuple):
    """Options from a credential function, and when to renew them (seconds since 1970)."""

    options: dict[str, Any]
    until: float
    is_rejected: bool = False


_CREDENTIALS: dict[Hashable, Credentials] = {}
_LOCKS: dict[int, threading.Lock] = {}


def resolve_options(options: Mapping[str, Any] | None) -> StorageOptions | None:
    """Replace a credential function in options by its current result.

    Examples
    --------
    >>> resolve_options({"credentials": lambda: {"accessKeyId": "me"}, "use_ssl": False})["key"]
    'me'
    """
    if options is None or (credentials := get_credentials(options)) is None:
        return StorageOptions.of(options)
    other_options = {name: value for name, value in options.items() if name != CREDENTIALS_OPTION}
    return StorageOptions(other_options | credentials.options)


def get_credentials(options: Mapping[str, Any] | None) -> Credentials | None:
    """Return the current credentials of the function in options, or None without a function."""
    if not options or CREDENTIALS_OPTION not in options:
        return None
    function = options[CREDENTIALS_OPTION]
    if not callable(function):
        raise AccessError(
            f"storage_options: credentials is of type {type(function).__name__}; give a function "
            f"without arguments that returns a dict of options"
        )
    key = _make_function_key(function)
    # one thread calls the function, the others wait for the result
    with _get_lock():
        credentials = _CREDENTIALS.get(key)
        if credentials is None or time.time() >= credentials.until:
            credentials = _call_credential_function(function)
            _CREDENTIALS.pop(key, None)
            while len(_CREDENTIALS) >= MAX_CREDENTIALS:
                del _CREDENTIALS[next(iter(_CREDENTIALS))]
            _CREDENTIALS[key] = credentials
    return credentials


def discard_expired(
    function: Any, used: Credentials, error: BaseException, *, is_new: bool
) -> bool:
    """Discard expired credentials after an error; return whether to retry the request.

    Of concurrent requests that fail, only the first discards them. If new credentials are rejected
    as well (``is_new``), they are kept for a while.
    """
    if used.is_rejected or not may_be_expired(error):
        return False
    key = _make_function_key(function)
    with _get_lock():
        if _CREDENTIALS.get(key) is used:
            del _CREDENTIALS[key]
            if is_new:
                until = min(used.until, time.time() + RETRY_SECONDS)
                _CREDENTIALS[key] = used._replace(is_rejected=True, until=until)
    return not is_new


def _call_credential_function(function: Callable[[], Any]) -> Credentials:
    try:
        result = function()
    except Exception as error:
        error.add_note("raised by the function `credentials` in storage_options")
        raise
    if not isinstance(result, Mapping) or not result:
        raise AccessError(
            f"the function credentials of storage_options returned {type(result).__name__} without "
            f"options; let it return a dict, such as one of key, secret, token and expiration"
        )
    option_names = [
        CREDENTIAL_NAMES.get(str(name).lower().replace("_", ""), str(name)) for name in result
    ]
    options = dict(zip(option_names, result.values(), strict=True))
    # a datetime, a string (ISO 8601), or seconds since 1970
    if (end := options.pop("expiration", None)) is None:
        return Credentials(options, float("inf"))
    if isinstance(end, str):
        end = datetime.fromisoformat(end)
    if isinstance(end, datetime):
        end = (end if end.tzinfo else end.replace(tzinfo=UTC)).timestamp()
    now = time.time()
    return Credentials(options, float(max(end - RENEWAL_MARGIN, now + (end - now) / 2)))


def _make_function_key(function: Any) -> Hashable:
    """Return a hashable key, which is equal for unpickled copies of a `partial`."""
    if isinstance(function, partial):
        key = (function.func, function.args, tuple(sorted(function.keywords.items())))
        try:
            hash(key)
        except TypeError:
            return function
        return key
    return function  # type: ignore[no-any-return]


def _get_lock() -> threading.Lock:
    # by process, since no thread of a forked child would release a copy that the parent had
    # acquired
    return _LOCKS.setdefault(os.getpid(), threading.Lock())


# ---------------------------------------------------------------------- HTTP sessions
# HTTP sessions for fsspec, without a limit on connections.
#
# After a redirect to another host, headers, cookies and credentials are not sent, except for
# headers to the hosts in ``storage_options={"trusted_hosts": [...]}``.


SAFE_HEADERS = frozenset({"range", "accept", "accept-encoding", "user-agent"})
"""Headers (in lower case) without information about the user."""


class LoginPageError(PermissionError):
    """Raised if a server redirects to a web page of another host, such as a login page."""


def check_not_login_page(response: Any) -> None:
    """Raise `LoginPageError` if a response is a web page of another host than the requested one."""
    requested_url = response.history[0].url if response.history else response.url
    if response.content_type == "text/html" and requested_url.origin() != response.url.origin():
        raise LoginPageError(
            f"{requested_url.host} redirects to a page of {response.url.host}, such as a login"
        )


def add_session(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of the HTTP filesystem with a function that opens sessions.

    ``get_client`` of the user is kept. By default, aiohttp has a limit of 100 connections, and of 5
    minutes per file.
    """
    from fsspec.config import conf

    # include the values of fsspec's configuration, which may be secrets
    options = {**conf.get("http", {}), **conf.get("https", {}), **options}
    if "get_client" in options:
        return options
    if not options:
        # without secrets, skip the checks of redirects, which take a sixth of the time of a request
        return {"get_client": partial(_open_session, checks_redirects=False)}
    trusted = _to_origins(options.get("trusted_hosts") or ())
    options = {name: value for name, value in options.items() if name != "trusted_hosts"}
    client = dict(options.get("client_kwargs") or {})
    client_headers = dict(client.pop("headers", None) or {})
    headers = {**_to_headers(client), **client_headers}
    options["client_kwargs"] = {**client, "headers": headers} if headers else client
    if trusted:
        # cookies are never sent to other hosts
        both = {**client_headers, **dict(options.get("headers") or {})}.items()
        secrets = tuple((name, text) for name, text in both if name.lower() != "cookie")
        options["get_client"] = partial(_open_session, trusted=trusted, secrets=secrets)
    else:
        options["get_client"] = _open_session
    return options


def _to_origins(hosts: Iterable[str]) -> tuple[str, ...]:
    """Return the origins of hosts, with the scheme https by default."""
    from yarl import URL

    if isinstance(hosts, str):
        raise TypeError(f"trusted_hosts: got {hosts!r}; give a list of names of hosts")
    urls = (URL(host if "://" in host else f"https://{host}") for host in hosts)
    return tuple(sorted(str(url.origin()) for url in urls))


def _to_headers(client: dict[str, Any]) -> dict[str, str]:
    """Remove cookies and credentials from session settings, and return them as headers."""
    headers: dict[str, str] = {}
    cookies = client.get("cookies")
    if isinstance(cookies, Mapping) and all(isinstance(c, str) for c in cookies.values()):
        del client["cookies"]
        headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
    if (auth := client.pop("auth", None)) is not None:
        # RFC 7617, section 2
        pair = f"{auth.login}:{auth.password}".encode(auth.encoding)
        headers["Authorization"] = f"Basic {b64encode(pair).decode()}"
    return headers


def _open_session(
    *,
    loop: Any,
    trusted: tuple[str, ...] = (),
    secrets: tuple[tuple[str, str], ...] = (),
    checks_redirects: bool = True,
    **options: Any,
) -> Any:
    """Return a future of a session, which fsspec awaits in its event loop."""
    from aiohttp import ClientSession, ClientTimeout, TCPConnector, TraceConfig

    redirects = TraceConfig()
    redirects.on_request_redirect.append(_remove_user_headers)
    # `virtualds.stores.requests` limits the total time of a response
    timeout = ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=READ_TIMEOUT)
    defaults: dict[str, Any] = {"timeout": timeout}

    async def add_secrets(request: Any, handler: Any) -> Any:
        # restore the headers that a redirect removed
        if str(request.url.origin()) in trusted:
            request.headers.update(dict(secrets))
        return await handler(request)

    if trusted:
        defaults["middlewares"] = (add_secrets,)
    if "connector" not in options:
        defaults["connector"] = TCPConnector(limit=0)
    traces = [*([redirects] if checks_redirects else ()), *options.pop("trace_configs", ())]
    # ranges are ranges of the bytes as sent, so aiohttp must not decompress them
    settings = {**defaults, "auto_decompress": False, **options, "trace_configs": traces}
    future = loop.create_future()
    future.set_result(ClientSession(**settings))
    return future


async def _remove_user_headers(session: Any, context: Any, redirect: Any) -> None:
    """Remove the user's headers from a request that is redirected to another host.

    ``redirect.headers`` is the mapping that aiohttp uses for all requests of a call.
    """
    from yarl import URL

    response = redirect.response
    target = response.headers.get("Location") or response.headers.get("URI") or ""
    try:
        is_same_origin = response.url.join(URL(target)).origin() == response.url.origin()
    except ValueError:
        is_same_origin = False
    if not is_same_origin:
        for name in {name for name in redirect.headers if name.lower() not in SAFE_HEADERS}:
            del redirect.headers[name]


# ---------------------------------------------------------------------- filesystems


T = TypeVar("T")

FILESYSTEM_OPTION = "filesystem"
"""Name of the option with an fsspec filesystem to use."""


def use_filesystem(
    url: str,
    options: StorageOptions | None,
    work: Callable[[Any, str], T],
    *,
    retries: bool = False,
) -> T:
    """Call ``work`` with the filesystem of a url and the path in it, and return the result.

    ``retries`` is whether the filesystem itself retries failed requests. ``work`` is called again
    if credentials from a function have expired.
    """
    for is_new in (False, True):
        used = get_credentials(options)
        try:
            return work(*find_filesystem(url, options, retries=retries))
        except list_store_errors() as error:
            if (
                not options
                or not used
                or not discard_expired(options[CREDENTIALS_OPTION], used, error, is_new=is_new)
            ):
                raise
    raise AssertionError("new credentials are not discarded")


def find_filesystem(
    url: str, options: StorageOptions | None, *, retries: bool = True
) -> tuple[Any, str]:
    """Return the fsspec filesystem of a url, and the path in it."""
    options = resolve_options(options)
    if options and FILESYSTEM_OPTION in options:
        if len(options) > 1:
            other_option = min(options.keys() - {FILESYSTEM_OPTION})
            raise UnsupportedError(
                f"{url}: storage_options have a filesystem, and {other_option!r} beside it; give "
                "that to the filesystem"
            )
        filesystem = options[FILESYSTEM_OPTION]
        return filesystem, filesystem._strip_protocol(url)
    kind = kind_of(url)
    try:
        if kind in _INSTALL_COMMANDS and "::" not in url:
            environment = tuple(map(os.environ.get, _READ_FROM_ENVIRONMENT.get(kind, ())))
            filesystem = _make_filesystem(os.getpid(), host_of(url), options, retries, environment)
            return filesystem, filesystem._strip_protocol(url)
        # a slow import
        import fsspec

        return fsspec.core.url_to_fs(url, **dict(options or {}))  # type: ignore[no-any-return]
    except (ImportError, TypeError, ValueError) as error:
        install = _INSTALL_COMMANDS.get(kind) if isinstance(error, ImportError) else None
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
"""Environment variables that libraries use to access a bucket.

They are part of the cache key, so that a variable that is set after an error takes effect.
"""


@lru_cache(maxsize=256)
def _make_filesystem(
    process: int,
    root_url: str,
    options: StorageOptions | None,
    retries: bool,
    environment: tuple[str | None, ...],
) -> Any:
    """Create the filesystem of a host or bucket; it is cached by process and environment."""
    kind, storage_options = kind_of(root_url), dict(options or {})
    if kind in ("http", "https"):
        import fsspec

        return fsspec.filesystem(kind, **add_session(storage_options))
    if kind == "gs":
        # import it first, so that an error names gcsfs, not one of its dependencies
        import_module("gcsfs")
    return import_object(_FACTORIES[kind])(root_url, storage_options, retries=retries)


_FACTORIES = {
    **dict.fromkeys(("s3", "az"), "virtualds.stores.objects:make_object_files"),
    "gs": "virtualds.stores.google_files:make_google_files",
}
"""Functions that create a filesystem, by kind of store; their modules need optional libraries."""

_INSTALL_COMMANDS = {
    **dict.fromkeys(("http", "https"), "pip install aiohttp"),
    **{
        kind: format_install_command(extra)
        for kind, extra in (("s3", "s3"), ("gs", "gcs"), ("az", "azure"))
    },
}
"""Commands that install the library, by kind of store."""


# ---------------------------------------------------------------------- byte ranges
# Byte ranges, with the etag and the size of the file if the response has them.
#
# The method of fsspec returns only bytes. So for HTTP and object stores, requests are sent here, in
# the session of the filesystem.


_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


def fetch(filesystem: Any, path: str, *range_: int, is_head: bool = False) -> Response:
    """Fetch a range (offset, length) of a file, or the whole file, with one request.

    With ``is_head``, the first bytes of a file are returned even if the server does not support
    range requests; the size of the response is then None.
    """
    if hasattr(filesystem, "fetch_range"):
        response: Response = filesystem.fetch_range(path, *range_)
        return response
    if hasattr(filesystem, "encode_url"):
        from fsspec.asyn import sync

        response = sync(filesystem.loop, _fetch_http, filesystem, path, range_, is_head)
        return response
    if not range_:
        return Response(bytes(call_with_timeout(filesystem, "cat_file", path)))
    begin, stop = range_[0], sum(range_)
    [data] = filesystem.cat_ranges([path], [begin], [stop], on_error="return")
    if isinstance(data, list_store_errors()):
        raise data
    if isinstance(data, BaseException):
        raise StoreError(f"{type(data).__name__}: {data}") from data
    return Response(bytes(data))


def fetch_head(filesystem: Any, path: str, length: int) -> Response | None:
    """Fetch the first bytes and the size of a file; None if that takes more than one request."""
    has_size = hasattr(filesystem, "fetch_range") or hasattr(filesystem, "encode_url")
    return fetch(filesystem, path, 0, length, is_head=True) if has_size else None


def call_with_timeout(filesystem: Any, method_name: str, path: str) -> Any:
    """Call a method of a filesystem within the time limit of a request."""
    # a wrapper may claim to be asynchronous even if the wrapped filesystem is not
    if not getattr(filesystem, "fs", filesystem).async_impl:
        return getattr(filesystem, method_name)(path)
    from fsspec.asyn import sync

    async def call() -> Any:
        async with limit_time():
            return await getattr(filesystem, f"_{method_name}")(path)

    return sync(filesystem.loop, call)


# ---------------------------------------------------------------------- HTTP and Google


async def _fetch_http(
    filesystem: Any, path: str, range_: tuple[int, ...], is_head: bool
) -> Response:
    session = await filesystem.set_session()
    session_options = {"raise_for_status": False, **filesystem.kwargs}
    # headers of the request override those of the session
    headers = {**session_options.get("headers", {}), "Accept-Encoding": "identity"}
    if range_:
        headers["Range"] = f"bytes={range_[0]}-{sum(range_) - 1}"
    request_options = {**session_options, "headers": headers, "auto_decompress": False}
    async with limit_time() as deadline:
        response = await session.get(filesystem.encode_url(path), **request_options)
        try:
            # with raise_for_status=True, errors of aiohttp would not contain the redirects
            response.raise_for_status()
            check_not_login_page(response)
            max_bytes = _check_response(response, *range_, is_head=is_head) if range_ else None
            data = await deadline.gather(response.content.iter_any(), max_bytes)
        finally:
            # so that the server does not send the rest
            response.close()
    etag = response.headers.get(getattr(filesystem, "version_header", "ETag"))
    if max_bytes is not None:
        if len(data) < max_bytes:
            raise IncompleteResponse(f"the server sent {len(data)} bytes of an unknown number")
        return Response(data, etag)
    if not range_:
        # some servers send compressed files regardless of the request (RFC 9110, section 8.4)
        if _check_encoding(response, "gzip", "x-gzip"):
            data = await asyncio.to_thread(gunzip, data)
        return Response(data, etag, len(data))
    range_sent = _CONTENT_RANGE.match(_get_content_range(response) or "")
    if range_sent is None:
        return Response(data[range_[0] : sum(range_)], etag, len(data))
    if len(data) != (expected := int(range_sent[2]) + 1 - int(range_sent[1])):
        raise IncompleteResponse(f"the server sent {len(data)} of {expected} bytes")
    return Response(data, etag, None if range_sent[3] == "*" else int(range_sent[3]))


def _check_response(response: Any, offset: int, length: int, *, is_head: bool) -> int | None:
    """Check the headers of a response; return the number of bytes to read, or None for all.

    Without Content-Range, the body is the whole file (RFC 9110, section 14.4). With ``is_head``,
    only its first bytes are read.
    """
    _check_encoding(response)
    content_range, size = _get_content_range(response), response.content_length
    if content_range is None:
        if is_head and (size is None or size > length):
            return length
        check_small(size)
    elif (match := _CONTENT_RANGE.match(content_range)) is None or int(match[1]) != offset:
        raise StoreError(f"the server sent other bytes than requested: {content_range}")
    return None


def _check_encoding(response: Any, *supported: str) -> str:
    """Return the compression of a response, one of ``supported``, or "" if it has none.

    Raises an error for other compressions, since ranges would not be ranges of the file.
    """
    encoding = str(response.headers.get("Content-Encoding") or "").strip().lower()
    if encoding not in ("", "identity", *supported):
        raise StoreError(
            f"the server sends the file compressed (Content-Encoding: {encoding}), although the "
            f"request excludes that; serve it uncompressed, or copy it to local disk"
        )
    return encoding if encoding in supported else ""


def _get_content_range(response: Any) -> str | None:
    content_range: str | None = (
        response.headers.get("Content-Range") if response.status == 206 else None
    )
    return content_range


# ---------------------------------------------------------------------- the store


REPORTED_ERRORS = (
    ChangedError,
    RequestError,
    FileNotFoundError,
    FileExistsError,
    NotImplementedError,
)
"""Errors that are raised unchanged, because their message is complete or callers catch them."""

MTIME_KEYS = (
    *("mtime", "LastModified", "Last-Modified", "last_modified"),
    *("updated", "modified", "created"),
)
"""Keys of the modification time in fsspec's info dicts; immutable files have only ``created``."""

VERSION_KEYS = ("ETag", "generation", "etag")
"""Keys of the version in fsspec's info dicts; for Google, prefer the generation to the etag."""

_SEMAPHORES: dict[tuple[int, str, int], threading.Semaphore] = {}
"""Semaphores for concurrent requests, by process, host and limit."""


class FsspecStore(Store):
    """The files of any fsspec filesystem."""

    read_only_message = "only local disk replaces a folder in one step; write to another url"

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
        """Return the file, with size and etag, and its first bytes, in one request if possible."""
        if (head := _fetch_head(url, options, length)) is not None:
            return SourceFile(url, head.size, None, head.etag, options), head.data
        file = self.describe(url, options)
        if file.size is None:
            # read a file of unknown size as a stream
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
        """Write a file; in object stores it becomes visible only when it is complete."""
        if not replace:
            try:
                self.write_version(url, data, options, None)
            except ChangedError as error:
                raise make_exists_error(url) from error
            return
        _use_retrying_filesystem("PUT", url, options, lambda fs, path: fs.pipe_file(path, data))

    def check_conditions(self, url: str, options: StorageOptions | None) -> None:
        _use_retrying_filesystem(
            "", url, options, lambda fs, path: find_versioning(fs).check_conditions(fs, path)
        )

    def read_with_version(self, url: str, options: StorageOptions | None) -> tuple[bytes, str]:
        """Return a whole file, and its version: the etag, or a hash of the bytes."""
        return _use_retrying_filesystem(
            "GET", url, options, lambda fs, path: find_versioning(fs).read(fs, path)
        )

    def find_version(self, url: str, options: StorageOptions | None) -> str | None:
        try:
            return _use_retrying_filesystem(
                "HEAD", url, options, lambda fs, path: find_versioning(fs).find_version(fs, path)
            )
        except FileNotFoundError:
            return None

    def write_version(
        self, url: str, data: bytes, options: StorageOptions | None, expected: str | None
    ) -> str:
        """Create or replace a file by a conditional write."""
        return _use_retrying_filesystem(
            "PUT",
            url,
            options,
            lambda fs, path: find_versioning(fs).write(fs, path, data, expected),
        )

    def write_file(self, url: str, data: bytes, options: StorageOptions | None) -> None:
        """Write a file that becomes visible only when it is complete."""
        _use_retrying_filesystem("PUT", url, options, lambda fs, path: create(fs, path, data))

    def list_files(self, url: str, options: StorageOptions | None) -> list[ListedFile]:
        """List the files below a folder, with sizes, etags and times if known."""

        def find_below(filesystem: Any, path: str) -> tuple[str, Any]:
            # list the current files, not cached ones
            filesystem.invalidate_cache()
            return path, filesystem.find(path, detail=True)

        try:
            path, infos = _use_retrying_filesystem("LIST", url, options, find_below)
        except (FileNotFoundError, NotADirectoryError):
            return []
        if not isinstance(infos, dict):
            # adlfs returns a list if the path is a file
            return []
        folder = f"{path.rstrip('/')}/"
        base = url.rstrip("/")
        return [
            ListedFile(
                relative,
                _describe_file(f"{base}/{relative}", info, options),
                get_modified_time(info),
            )
            for name, info in sorted(infos.items())
            if (relative := name.removeprefix(folder)) != name
            and not name.endswith("/")
            # omit temporary test objects
            and not name.rpartition("/")[2].startswith(TEST_PREFIX)
        ]

    def remove(self, urls: Iterable[str], options: StorageOptions | None) -> None:
        """Remove files, in S3 many per request; folders remain."""
        all_urls = list(urls)

        def remove(filesystem: Any, _: str) -> None:
            # all urls belong to the same filesystem
            paths = [find_filesystem(url, options)[1] for url in all_urls]
            find_versioning(filesystem).remove(filesystem, paths)

        if all_urls:
            _use_retrying_filesystem("DELETE", all_urls[0], options, remove)


def _use_retrying_filesystem(
    method: str, url: str, options: StorageOptions | None, work: Callable[[Any, str], T]
) -> T:
    """Call ``work`` with a filesystem that retries failed requests itself; return the result.

    ``method`` is the name of the request in the log; if it is empty, the request is not logged.
    """
    with describe_errors(url, method):
        return use_filesystem(url, options, work, retries=True)


def fetch_info(url: str, options: StorageOptions | None) -> dict[str, Any]:
    """Return fsspec's info dict of a file in one request; raise an error for a folder."""

    def get_info(filesystem: Any, path: str) -> dict[str, Any]:
        # otherwise fsspec may return the cached state of an earlier listing
        filesystem.invalidate_cache(path)
        info: dict[str, Any] = call_with_timeout(filesystem, "info", path)
        return info

    with describe_errors(url):
        info = retry_request(partial(use_filesystem, url, options, get_info), Request("HEAD", url))
    if info.get("type") == "directory":
        raise make_folder_error(url)
    return info


def make_folder_error(url: str) -> IsADirectoryError:
    """Return the error for a folder where a file was expected."""
    return IsADirectoryError(f"{without_secrets(url)}: this is a folder; give files")


def _get_range(file: SourceFile, item: int, range_: Range) -> bytes:
    """Return the bytes of one range; ``item`` is its index, for errors."""
    offset, length = range_
    if not length:
        return b""

    def send() -> bytes:
        # by process, since no thread of a forked child would release a copy that the parent had
        # acquired
        max_requests = get_options().max_requests
        key = os.getpid(), host_of(file.url), max_requests
        with _SEMAPHORES.setdefault(key, threading.Semaphore(max_requests)):
            response = use_filesystem(
                file.url, file.options, lambda fs, path: fetch(fs, path, offset, length)
            )
        return check_whole_response(response, file, length)

    try:
        return retry_request(send, Request("GET", file.url, offset, length))
    except RetriesExhausted as failed:
        error = to_os_error(failed)
        reason = error.reason if isinstance(error, StoreError) else f"{error}"
        raise StoreError(reason, item, getattr(error, "remedy", "")) from choose_cause(failed)


def _fetch_head(url: str, options: StorageOptions | None, length: int) -> Response | None:
    """Fetch the first bytes and the size of a file; None if that takes more than one request."""
    try:
        response = retry_request(
            partial(use_filesystem, url, options, partial(fetch_head, length=length)),
            Request("GET", url, 0, length),
        )
    except RetriesExhausted as failed:
        error = to_os_error(failed, url)
        cause = failed.__cause__ or failed
        is_explained = isinstance(cause, StoreError) or find_failure(cause) is not None
        if isinstance(error, StoreError) and failed.attempts == 1 and not is_explained:
            # some servers reject ranges of an empty file
            return None
        raise error from choose_cause(failed)
    is_short = (
        response is not None
        and response.size is not None
        and len(response.data) < min(length, response.size)
    )
    return None if is_short else response


@contextmanager
def describe_errors(url: str, method: str = "") -> Iterator[None]:
    """Add the url and the remedy to the error of a failed request.

    ``method`` is the name in the log of a request that `retry_request` does not log.
    """
    start = time.monotonic()
    try:
        yield
        if method and is_logged(DEBUG):
            log(DEBUG, f"{Request(method, url)}: {time.monotonic() - start:.3f} s")
    except RetriesExhausted as failed:
        raise to_os_error(failed, url) from choose_cause(failed)
    except list_store_errors() as error:
        # add url and remedy only to errors of libraries, also if wrapped in a StoreError
        library_error = error.__cause__ if type(error) is StoreError else error
        if isinstance(error, REPORTED_ERRORS) or not isinstance(library_error, list_store_errors()):
            raise
        failed_once = RetriesExhausted(1)
        failed_once.__cause__ = library_error
        raise to_os_error(failed_once, url) from choose_cause(failed_once)


def _describe_file(url: str, info: dict[str, Any], options: StorageOptions | None) -> SourceFile:
    return SourceFile(url, info.get("size"), None, get_etag(info), options)


def get_etag(info: dict[str, Any]) -> str | None:
    """Return the etag of an info dict, or its equivalent in the store."""
    return next((str(info[name]) for name in VERSION_KEYS if info.get(name)), None)


def get_modified_time(info: dict[str, Any]) -> float | None:
    """Return the modification time of an info dict, in seconds since 1970."""
    modified = next((info[name] for name in MTIME_KEYS if info.get(name) is not None), None)
    if isinstance(modified, str):
        # ISO 8601, or the format of HTTP headers
        for parse in (datetime.fromisoformat, parsedate_to_datetime):
            with suppress(ValueError):
                return parse(modified).timestamp()
        return None
    return modified.timestamp() if isinstance(modified, datetime) else modified
