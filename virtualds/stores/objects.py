"""Files in S3 and in Azure, through obstore, as fsspec filesystems."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from importlib import import_module
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from itertools import chain
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from virtualds.errors import UnsupportedError
from virtualds.options import get_options
from virtualds.source_file import kind_of
from virtualds.stores.conditional import (
    WRITER_KEY,
    ConditionFailedError,
    FileVersion,
    UnsupportedConditionError,
)
from virtualds.stores.object_access import (
    UNREACHABLE_PROXY,
    BucketAccess,
    CredentialProvider,
    NoCredentialsError,
    complete_access,
    restrict_to_host,
    translate_options,
)
from virtualds.stores.requests import (
    OTHER_HOST,
    READ_TIMEOUT,
    IncompleteResponse,
    Request,
    Response,
    RetriesExhausted,
    TooSlowError,
    check_small,
    compute_time_limit,
    join_parts,
    retry_request,
)
from virtualds.stores.store import StoreError

# ---------------------------------------------------------------------- the library

T = TypeVar("T")

LONG_RESPONSE = 2**23
"""Size in bytes of responses up to which requests share one client, with one time limit."""

NO_RETRIES = {
    "max_retries": 0,
    "retry_timeout": timedelta(0),
    "backoff": {"init_backoff": timedelta(0), "max_backoff": timedelta(0), "base": 2},
}
"""Settings that disable the retries of obstore, since `stores.requests` retries requests."""

_LOADED_IN: set[int] = set()
"""Ids of processes in which obstore has been loaded for requests."""
_LOAD_LOCKS: dict[int, threading.Lock] = {}


def load_library() -> Any:
    """Import obstore so that it works in a forked process.

    obstore sends requests in threads of its own, which do not exist in a process that was forked
    after the first request. Such a child loads a copy of the library, which starts its own threads.
    """
    process = os.getpid()
    if process in _LOADED_IN:
        return sys.modules["obstore"]
    with _LOAD_LOCKS.setdefault(process, threading.Lock()):
        if process not in _LOADED_IN:
            if _LOADED_IN:
                _load_copy()
            import_module("obstore.store")
            _LOADED_IN.add(process)
    return sys.modules["obstore"]


def _load_copy() -> None:
    """Replace obstore by a copy without the state of the parent process."""
    names = [name for name in sys.modules if name.partition(".")[0] == "obstore"]
    old = {name: sys.modules.pop(name) for name in names}
    compiled = {
        name: file
        for name, module in old.items()
        if (file := getattr(module, "__file__", None)) and file.endswith((".so", ".pyd"))
    }
    for name, file in compiled.items():
        # a shared library is loaded only once by its path, so copy it to a file in memory
        copy = os.memfd_create("obstore")
        with open(file, "rb") as source:
            size = os.fstat(source.fileno()).st_size
            while (done := os.lseek(copy, 0, os.SEEK_CUR)) < size:
                os.sendfile(copy, source.fileno(), done, size - done)
        path = f"/proc/self/fd/{copy}"
        loader = ExtensionFileLoader(name, path)
        module = module_from_spec(ModuleSpec(name, loader, origin=path))
        sys.modules[name] = module
        loader.exec_module(module)


# ---------------------------------------------------------------------- errors


class ObjectError(OSError):
    """Raised if a server rejects a request; has the HTTP status and the server's error code."""

    def __init__(self, message: str, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.error_code = status, code


class NoSuchObject(ObjectError, FileNotFoundError):
    """Raised if an object or a bucket does not exist."""


class ClientConnectorDNSError(ConnectionError):
    """Raised if a host name cannot be resolved; named as in aiohttp, for `stores.requests`."""


class SSLError(ConnectionError):
    """Raised if a TLS connection fails; named as in botocore, for `stores.requests`."""


_STATUS = re.compile(r"status code: (\d{3})([^:\n]*)(?:: (.*))?", re.DOTALL)
_SOURCE = "\n\nDebug source:"
"""Separator of message and debugging information in errors of obstore."""
_NOISE = re.compile(
    r"Generic \w+ error: |Error performing (?:list request: )?| in [\d.]+\s?[mµn]?s\b"
)
"""Matches parts of messages of obstore that are removed."""
_REGION_REDIRECT = "Received redirect without LOCATION"
_NO_RANGES = "Received non-partial response"


def _to_plain_error(error: BaseException) -> BaseException:
    """Convert an error of obstore to one with a status and a code, or of another class.

    obstore has few classes of errors, so its message is parsed.
    """
    message, _, source = str(error).partition(_SOURCE)
    if (match := _STATUS.search(message)) is not None:
        status, body = int(match[1]), match[3] or ""
        code = _find_element("Code", body)
        reason = _find_element("Message", body).partition("\n")[0].partition("&#xA;")[0]
        text = reason or code or f"{status}{match[2]}"
        error_class = NoSuchObject if status == 404 else ObjectError
        return error_class(text, status, code or str(status))
    if isinstance(error, FileNotFoundError):
        return NoSuchObject(message.partition("\n")[0], 404, "404")
    text = _NOISE.sub("", message.partition("\n")[0])
    if f"{UNREACHABLE_PROXY}," in source:
        return ObjectError("credentials are for one host", 307, OTHER_HOST)
    if _REGION_REDIRECT in message:
        return ObjectError(text, 301, "PermanentRedirect")
    if "dns error" in source:
        return ClientConnectorDNSError(text)
    if "ertificate" in source or "InvalidContentType" in source or "InvalidMessage" in source:
        return SSLError(text)
    if "kind: Timeout" in source:
        return TimeoutError(text)
    if "HttpError" in source:
        return ConnectionError(text)
    return StoreError(text)


def _find_element(name: str, body: str) -> str:
    """Return the text of an XML element in the body of an error of S3 or Azure, or ""."""
    match = re.search(rf"<{name}>(.*?)</{name}>", body, re.DOTALL)
    return match[1].strip() if match else ""


# ---------------------------------------------------------------------- requests


def run_interruptibly(work: Callable[[], T], errors: tuple[type[BaseException], ...]) -> T:
    """Call ``work`` in another thread, so that Ctrl-C can interrupt the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except errors as error:
            done.set_exception(error)
        finally:
            if not done.done():
                done.set_exception(
                    RuntimeError("a request raised an unexpected exception, see above")
                )

    # a daemon thread, so that the process can exit if the main thread is interrupted
    threading.Thread(target=run, daemon=True).start()
    return done.result()


def _compute_time_limit(nbytes: int) -> float:
    # powers of two, since each limit needs a client with its own connections
    return compute_time_limit(max(LONG_RESPONSE, 1 << nbytes.bit_length()))


# ---------------------------------------------------------------------- the filesystem


_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._$-]*")
_INVALID_KEY = re.compile(r"^/|//|(^|/)\.\.?(/|$)|[\x00-\x1f\x7f]")
_VERSION = re.compile(r"\?(versionId|versionid)=(?P<version>[^?/]+)$")

MAX_DELETES_PER_REQUEST = 1000
"""Number of S3 objects that are deleted in one request."""


class ObjectFiles(AbstractFileSystem):  # type: ignore[misc]
    """The objects of one S3 bucket, or of one Azure container.

    Paths begin with the bucket, as in s3fs and adlfs, and urls with ``root``. The options are those
    of s3fs or adlfs, or a ``store`` of obstore. Without ``retries``, callers retry failed
    requests.
    """

    cachable = False
    conditions = ("If-None-Match: *", "If-Match")
    """Names of the HTTP conditions for creating an object, and for replacing a version."""

    def __init__(
        self, root: str, *, retries: bool = True, store: Any = None, **options: Any
    ) -> None:
        super().__init__()
        # load it first, so that a missing obstore is reported before other errors
        load_library()
        self.root, self._retries = root, retries
        access = None if store is not None else translate_options(root, options)
        self.bucket = access.bucket if access else root.partition("://")[2].partition("@")[0]
        if not _BUCKET.fullmatch(self.bucket):
            raise UnsupportedError(
                f"{root}: obstore does not support a bucket of that name; pass "
                f"{{'filesystem': ...}}, a filesystem of fsspec, in storage_options"
            )
        self.access, self._store, self._stores = access, store, dict[float, Any]()
        self.config: dict[str, Any] = {}
        self._provider: CredentialProvider | None = None
        self._options: dict[str, Any] = {}
        if access is not None:
            self.config, self._provider = complete_access(access)
            self._options = restrict_to_host(self.config, access.client)

    def _get_store(self, library: Any, nbytes: int) -> Any:
        """Return an obstore store with the time limit for a response of ``nbytes`` bytes."""
        if self.access is None:
            return self._store
        seconds = _compute_time_limit(nbytes)
        if seconds not in self._stores:
            store_class = {"s3": library.store.S3Store, "az": library.store.AzureStore}[
                self.access.kind
            ]
            self._stores[seconds] = store_class(
                self.access.bucket,
                config=self.config,
                client_options={**self._options, "timeout": f"{seconds}s"},
                retry_config=NO_RETRIES,
                credential_provider=self._provider,
            )
        return self._stores[seconds]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        bucket, slash, key = str(path).partition("://")[2].partition("/")
        if "://" not in path:
            return str(path)
        return f"{bucket.partition('@')[0]}{slash}{key}"

    def unstrip_protocol(self, name: str) -> str:
        key = name.partition("/")[2]
        return f"{self.root}/{key}" if key else self.root

    def _find_key(self, path: str) -> tuple[str, dict[str, Any]]:
        """Return the key of a path, and request options with the version, if the path has one."""
        bucket, _, key = self._strip_protocol(path).partition("/")
        version = _VERSION.search(key)
        key = key[: version.start()] if version else key
        if _INVALID_KEY.search(key) or bucket != self.bucket:
            raise UnsupportedError(
                f"{self.unstrip_protocol(path)}: obstore does not support an object of that name; "
                f"pass {{'filesystem': ...}}, a filesystem of fsspec, in storage_options"
            )
        return key.rstrip("/"), {"version": version["version"]} if version else {}

    def _find_object(self, path: str) -> tuple[str, dict[str, Any]]:
        """Return key and request options of an object; raise an error for the bucket."""
        key, version = self._find_key(path)
        if not key:
            raise IsADirectoryError(f"{self.unstrip_protocol(path)}: this is a bucket")
        return key, version

    def _send(self, work: Callable[[Any, Any], T], nbytes: int = 0) -> T:
        """Send the request of ``work``, and return its result.

        ``work`` takes obstore and its store; ``nbytes`` is the size of the data to transfer.
        """
        library = load_library()
        errors = (library.exceptions.BaseError, OSError, ValueError, RuntimeError)

        def attempt() -> T:
            start = time.monotonic()
            try:
                store = self._get_store(library, nbytes)
                return run_interruptibly(partial(work, library, store), errors)
            except (UnsupportedError, IncompleteResponse, StoreError):
                raise
            except errors as error:
                is_late = time.monotonic() - start > 0.9 * _compute_time_limit(nbytes)
                plain = _to_plain_error(error)
                if self._provider is not None and (cause := self._provider.error) is not None:
                    plain = NoCredentialsError(str(cause))
                    plain.__cause__ = cause
            raise TooSlowError(0) if is_late and isinstance(plain, TimeoutError) else plain

        if not self._retries:
            return attempt()
        try:
            return retry_request(attempt, Request("", self.root))
        except RetriesExhausted as failed:
            error = failed.__cause__ or failed
        raise error

    def _get_etag(self, meta: Mapping[str, Any]) -> str | None:
        """Return the etag with quotes, which Azure omits in listings."""
        etag = meta["e_tag"]
        return etag if not etag or etag.endswith('"') else f'"{etag}"'

    # ------------------------------------------------------------------ reading

    def fetch_range(self, path: str, offset: int = 0, length: int | None = None) -> Response:
        """Fetch a range of an object, or the whole object, with its current etag and size."""
        key, version = self._find_object(path)
        range_option = {} if length is None else {"range": (offset, offset + length)}

        def get(library: Any, store: Any) -> Response:
            start = time.monotonic()
            try:
                response = library.get(store, key, options={**range_option, **version})
            except library.exceptions.BaseError as error:
                if _NO_RANGES not in str(error):
                    raise
                response = library.get(store, key, options=version)
                check_small(response.meta["size"])
            begin, stop = response.range
            data = join_parts((bytes(part) for part in response.stream(1)), start)
            if begin > offset or len(data) != stop - begin:
                raise IncompleteResponse("the body is not the range that was announced")
            data = data if length is None else data[offset - begin :][:length]
            writer = response.attributes.get(WRITER_KEY)
            return Response(data, self._get_etag(response.meta), response.meta["size"], writer)

        return self._send(get, length or 0)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        if start is None and end is None:
            return self.fetch_range(path).data
        data: bytes = super().cat_file(path, start, end, **kwargs)
        return data

    def _fetch_head(self, path: str) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the properties and the metadata of an object, by a HEAD request."""
        key, version = self._find_object(path)

        def head(library: Any, store: Any) -> tuple[dict[str, Any], dict[str, str]]:
            response = library.get(store, key, options={"head": True, **version})
            return response.meta, response.attributes

        return self._send(head)

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Return the info dict of an object or folder; for an existing object, in one request."""
        path = self._strip_protocol(path)
        key, _ = self._find_key(path)
        folder = {"name": path.rstrip("/"), "size": 0, "type": "directory"}
        if not key:
            return folder
        try:
            meta, attributes = self._fetch_head(path)
        except NoSuchObject:
            if next(self._iterate_entries(key, delimited=False), None) is not None:
                return folder
            raise
        except ObjectError as error:
            # a response to HEAD has no body with the reason, so send a GET request
            self.fetch_range(path, 0, 1)
            raise error
        true_keys = {name.lower() for name, value in attributes.items() if value.lower() == "true"}
        return folder if true_keys & _FOLDER_MARKERS else self._describe(path, meta)

    def _describe(self, path: str, meta: Mapping[str, Any]) -> dict[str, Any]:
        version = {"ETag": self._get_etag(meta), "LastModified": meta["last_modified"]}
        return {"name": path, "size": meta["size"], "type": "file", **version}

    def _iterate_entries(self, key: str, *, delimited: bool) -> Iterator[dict[str, Any]]:
        """Yield info dicts of the entries of a folder, or of all objects below it."""
        prefix = key or None
        if delimited:
            listing = self._send(lambda library, store: library.list_with_delimiter(store, prefix))
            folders = {entry.rstrip("/") for entry in listing["common_prefixes"]}
            for entry in sorted(folders):
                yield {"name": f"{self.bucket}/{entry}", "size": 0, "type": "directory"}
        else:
            pages = self._send(lambda library, store: iter(library.list(store, prefix)))
            page_iterator = iter(partial(self._send, lambda *_: next(pages, None)), None)
            listing, folders = {"objects": chain.from_iterable(page_iterator)}, set()
        for entry in listing["objects"]:
            # skip empty objects that some tools write as folders
            if entry["path"] != key and not (entry["path"] in folders and not entry["size"]):
                yield self._describe(f"{self.bucket}/{entry['path']}", entry)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        key, _ = self._find_key(path)
        entries = list(self._iterate_entries(key, delimited=True))
        if not entries:
            path = self._strip_protocol(path)
            entries = [self._describe(path, self._fetch_head(path)[0])] if key else []
        return entries if detail else [entry["name"] for entry in entries]

    def list_names(self, path: str) -> set[str]:
        """Return the names in a folder, by one listing; none if there is no such folder."""
        entries = self._iterate_entries(self._find_key(path)[0], delimited=True)
        return {entry["name"].rpartition("/")[2] for entry in entries}

    def find(self, path: str, *args: Any, detail: bool = False, **kwargs: Any) -> Any:
        if args or kwargs:
            return super().find(path, *args, detail=detail, on_error="raise", **kwargs)
        key, _ = self._find_key(path)
        entries = {entry["name"]: entry for entry in self._iterate_entries(key, delimited=False)}
        return entries if detail else sorted(entries)

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        return _ObjectFile(self, path, mode, **kwargs)

    # ------------------------------------------------------------------ writing

    def put_object(self, path: str, data: bytes, **kwargs: Any) -> str:
        key, _ = self._find_object(path)
        # multipart uploads do not support conditions
        kwargs |= {"use_multipart": False}
        result = self._send(
            lambda library, store: library.put(store, key, data, **kwargs), len(data)
        )
        return str(self._get_etag(result))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        self.put_object(path, value)

    def put_conditionally(self, path: str, data: bytes, expected: str | None, writer: str) -> str:
        mode: Any = "create" if expected is None else {"e_tag": expected}
        try:
            return self.put_object(path, data, mode=mode, attributes={WRITER_KEY: writer})
        except ObjectError as error:
            self._raise_condition_error(path, error, expected)

    def _raise_condition_error(
        self, path: str, error: ObjectError, expected: str | None
    ) -> NoReturn:
        """Convert the error of a conditional write to one for a false or unsupported condition."""
        missing = expected is not None and error.error_code in ("NoSuchKey", "BlobNotFound", "404")
        if error.status == 412 or error.error_code in _FALSE_CONDITION_CODES or missing:
            url = self.unstrip_protocol(path)
            raise ConditionFailedError(f"{url}: was changed by another writer") from error
        if error.error_code in _NO_CONDITIONS_CODES:
            raise UnsupportedConditionError(str(error)) from error
        raise error

    def rm_file(self, path: str) -> None:
        self.remove([path])

    _rm = rm_file

    def remove(self, paths: Sequence[str]) -> None:
        keys = [self._find_object(path)[0] for path in paths]
        for begin in range(0, len(keys), MAX_DELETES_PER_REQUEST):
            self._remove(keys[begin : begin + MAX_DELETES_PER_REQUEST])

    def _remove(self, keys: list[str]) -> None:
        self._send(lambda library, store: library.delete(store, keys))

    # ------------------------------------------------------------------ versions

    def read_with_version(self, path: str) -> tuple[bytes, str]:
        response = self.fetch_range(path)
        return response.data, FileVersion.from_writer(str(response.etag), response.writer)

    def find_writer(self, path: str) -> tuple[str | None, str]:
        meta, attributes = self._fetch_head(path)
        return attributes.get(WRITER_KEY), str(self._get_etag(meta))

    def find_bucket(self, path: str) -> tuple[str, str]:
        return self.config.get("endpoint", "Amazon S3 or a given store"), self.bucket

    def list_times(self, prefix: str) -> dict[str, float]:
        key, _ = self._find_object(prefix)
        folder = key.rpartition("/")[0] or None
        pages = self._send(lambda library, store: iter(library.list(store, folder, offset=key)))
        return {
            f"{self.bucket}/{entry['path']}": entry["last_modified"].timestamp()
            for entry in self._send(lambda *_: next(pages, ()))
            if entry["path"].startswith(key)
        }


_FOLDER_MARKERS = frozenset({"hdi_isfolder", "is_directory"})
"""Metadata keys of empty blobs that are folders, in accounts with a hierarchical namespace."""
_FALSE_CONDITION_CODES = frozenset(
    {"PreconditionFailed", "ConditionalRequestConflict", "OperationAborted", "409"}
    | {"ConditionNotMet", "TargetConditionNotMet", "BlobAlreadyExists"}
)
"""Error codes of S3 and Azure for a write whose condition is false."""
_NO_CONDITIONS_CODES = frozenset(
    {"NotImplemented", "501", "InvalidArgument", "InvalidRequest", "400", "UnsupportedHeader"}
)
"""Error codes of servers that do not support conditional writes."""


class S3Files(ObjectFiles):
    """The objects of one S3 bucket."""

    protocol = ("s3", "s3a")


class AzureFiles(ObjectFiles):
    """The blobs of one Azure container."""

    protocol = ("az", "abfs", "abfss")

    def _remove(self, keys: list[str]) -> None:
        def remove_one(key: str) -> None:
            with suppress(NoSuchObject):
                ObjectFiles._remove(self, [key])

        remove_single: Callable[[str], None] = remove_one
        if (access := self.access) is not None and "sas_token" in access.secrets:
            # a SAS token of a container does not allow batch deletes, which obstore would use
            remove_single = partial(self._remove_signed, access)
        else:
            try:
                super()._remove(keys)
                return
            except NoSuchObject:
                # the batch stops at a missing blob, so delete the others one by one
                pass
        with ThreadPoolExecutor(get_options().max_requests) as pool:
            list(pool.map(remove_single, keys))

    def _remove_signed(self, access: BucketAccess, key: str) -> None:
        """Delete a blob with a request whose url contains the SAS token."""
        url = f"{access.config['endpoint']}/{self.bucket}/{quote(key)}"
        request = urllib.request.Request(f"{url}?{access.secrets['sas_token']}", method="DELETE")

        def send(*_: Any) -> None:
            try:
                urllib.request.urlopen(request, timeout=READ_TIMEOUT).close()
            except urllib.error.HTTPError as error:
                code = error.headers.get("x-ms-error-code")
                if error.code != 404:
                    raise ObjectError(code or error.reason, error.code, code) from None

        self._send(send)


class _ObjectFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file object that reads an object of a bucket."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.fetch_range(self.path, start, end - start).data
        return data


def make_object_files(root: str, options: dict[str, Any], *, retries: bool) -> ObjectFiles:
    """Create the filesystem of a bucket or container whose urls begin with ``root``."""
    files_class = {"s3": S3Files, "az": AzureFiles}[kind_of(root)]
    return files_class(root, retries=retries, **options)
