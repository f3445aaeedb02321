"""Ranges of bytes, and listings, through obstore, if it is installed and knows the options.

obstore is only a shortcut. If it fails, fsspec repeats the request, and the user sees the answer or
the error of fsspec.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.credentials import resolve_options
from virtualds.stores.obstore_options import Translation, split_url, translate_options
from virtualds.stores.pace import TooSlowError, join_parts, seconds_for
from virtualds.stores.responses import Answer
from virtualds.stores.retry import CONNECT_TIMEOUT, PASSING_STATUSES, READ_TIMEOUT, BrokenAnswer
from virtualds.urls import kind_of

Result = TypeVar("Result")

FAILURES, REST = 3, 60.0
"""After so many failures in a row, obstore gets no requests for so many seconds."""

LONG_ANSWER = 2**23
"""Bytes: requests up to this length share one client, and so one timeout."""


HARMLESS = frozenset(
    {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"}
    | {"AWS_CA_BUNDLE", "AWS_PAGER", "AWS_EXECUTION_ENV", "AWS_EC2_METADATA_DISABLED"}
    | {"AWS_SHARED_CREDENTIALS_FILE"}
)
"""Variables that obstore ignores, or that have less weight than the options it gets."""

ENVIRONMENT = {"s3": ("AWS_",), "gs": ("GOOGLE_", "STORAGE_EMULATOR_HOST"), "az": ("AZURE_",)}
"""Prefixes of the environment variables that obstore or fsspec reads, by kind of store."""

META_VERSIONS = {"gs": "version"}
"""What names a version, in what obstore says of a file, if not the etag: Google's generation."""

NO_RETRIES = {
    "max_retries": 0,
    "retry_timeout": timedelta(0),
    "backoff": {"init_backoff": timedelta(0), "max_backoff": timedelta(0), "base": 2},
}
"""The settings that turn the retries of obstore off: `stores.retry` repeats requests."""

_STATUS = re.compile(r"status code: (\d{3})")
_forked = False


def _note_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    # the threads of obstore exist only in the parent: a forked child would wait for them for ever
    os.register_at_fork(after_in_child=_note_fork)


class _Client:
    """A store of obstore, which all threads share."""

    def __init__(
        self, store: Any, library: Any, errors: tuple[type[BaseException], ...], kind: str
    ) -> None:
        self.store, self.errors, self.is_http = store, errors, kind == "http"
        self.version = META_VERSIONS.get(kind, "e_tag")
        self.get, self.list_all = library.get, library.list_with_delimiter
        self.failures, self.rests_until = 0, 0.0

    def fetch(self, path: str, offset: int, length: int) -> Answer | BaseException:
        """Return an answer, or the error that obstore raised."""
        begun = time.monotonic()
        try:
            found = self.get(self.store, path, options={"range": (offset, offset + length)})
            if self.is_http and "Content-Encoding" in found.attributes:
                return BrokenAnswer("the server compresses what it sends")
            meta, (first, end) = found.meta, found.range
            data = join_parts((bytes(part) for part in found.stream(1)), begun)
            answer = Answer(data, meta[self.version], meta["size"])
        except self.errors as error:
            return error
        if first != offset or len(answer.data) != end - first:
            return BrokenAnswer("the body is not the range that was announced")
        self.failures = 0
        return answer

    def list_folder(self, path: str | None) -> list[dict[str, Any]] | None:
        """Return the entries of a folder, None if obstore raised an error."""
        try:
            found = self.list_all(self.store, path)
            entries = [
                {"name": _last_part(one), "type": "directory"} for one in found["common_prefixes"]
            ]
            # some tools write an empty object with the name of the folder
            for one in (one for one in found["objects"] if one["path"] != path):
                state = {"size": one["size"], "ETag": one["e_tag"]}
                times = {"LastModified": one["last_modified"], "type": "file"}
                entries.append({"name": _last_part(one["path"]), **state, **times})
        except self.errors:
            return None
        self.failures = 0
        return entries

    def count_failure(self) -> None:
        self.failures += 1
        if self.failures >= FAILURES:
            self.failures, self.rests_until = 0, time.monotonic() + REST


def get_range(file: SourceFile, offset: int, length: int, *, again: bool) -> Answer | None:
    """Return a range of a file, None if fsspec has to get it.

    Raises
    ------
    BrokenAnswer
        The failure is temporary, and ``again`` says that the caller repeats the request later.
    TooSlowError
        The bytes arrive too slowly.
    """
    place = None if _forked else split_url(file.url)
    # few different timeouts, since each needs a client with connections of its own
    longest = seconds_for(max(LONG_ANSWER, 1 << length.bit_length()))
    client = (
        None if place is None else _get_client(place[0], resolve_options(file.options), longest)
    )
    if place is None or client is None or time.monotonic() < client.rests_until:
        return None
    found = client.fetch(place[1], offset, length)
    if isinstance(found, Answer):
        return found
    if isinstance(found, TooSlowError):
        raise found
    if isinstance(found, FileNotFoundError):
        return None
    client.count_failure()
    if again and _may_pass(str(found)):
        raise BrokenAnswer(str(found)) from None
    return None


def list_names(url: str, options: StorageOptions | None) -> set[str] | None:
    """Return the names directly in a folder of an object store; None if obstore cannot list it.

    Reading and listing are two permissions, so a refusal says nothing about later requests.
    """
    if (asked := _find_lister(url, options)) is None:
        return None
    found = _run_apart(asked[0].list_folder, asked[1])
    return None if found is None else {entry["name"] for entry in found}


def list_folder(url: str, options: StorageOptions | None) -> list[dict[str, Any]] | None:
    """Return what lies directly in a folder of an object store, None if fsspec has to list it.

    It takes a twentieth of the time of s3fs. Each entry has the keys of s3fs; its name is the last
    part of the key.
    """
    # in a list, obstore has no generations of Google's objects
    if kind_of(url) == "gs" or (asked := _find_lister(url, options)) is None:
        return None
    client, path = asked
    found = _run_apart(client.list_folder, path)
    if found is None:
        client.count_failure()
    # of an empty folder, fsspec says whether there is such a bucket
    return found or None


def _find_lister(url: str, options: StorageOptions | None) -> tuple[_Client, str | None] | None:
    """Return the client that lists a folder, and its path there; None if obstore cannot."""
    place = None if _forked else split_url(f"{url.rstrip('/')}/name")
    if place is None or url.startswith("http"):
        return None
    client = _get_client(place[0], resolve_options(options), seconds_for(LONG_ANSWER))
    if client is None or time.monotonic() < client.rests_until:
        return None
    return client, place[1].rpartition("/")[0] or None


def _run_apart(work: Callable[..., Result], *given: Any) -> Result:
    """Do work in a thread that nobody waits for: obstore does not notice an interrupt."""
    done: Future[Result] = Future()

    def run() -> None:
        done.set_result(work(*given))

    threading.Thread(target=run, daemon=True).start()
    return done.result()


def _may_pass(text: str) -> bool:
    """Say whether obstore's message names a status with which a busy server answers."""
    found = _STATUS.search(text)
    return found is not None and int(found[1]) in PASSING_STATUSES


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


@lru_cache(maxsize=256)
def _get_client(place: str, options: StorageOptions | None, seconds: float) -> _Client | None:
    """Return the client of a server or bucket, None if only fsspec understands the options."""
    found = translate_options(place, options)
    if found is None or _has_other_settings(found, os.environ):
        return None
    return _build_client(found, seconds)


def _has_other_settings(found: Translation, environment: Mapping[str, str]) -> bool:
    """Say whether settings outside the options may mean different things to obstore and fsspec."""
    if found.kind == "http":
        from urllib.request import getproxies

        # obstore uses these proxies, and aiohttp does not
        return bool(getproxies().keys() & {"http", "https", "all"})
    prefixes = ENVIRONMENT[found.kind]
    names = {name.upper() for name in environment if name.upper().startswith(prefixes)}
    return bool(names - HARMLESS) or (found.kind == "s3" and _may_have_other_endpoint(found))


def _may_have_other_endpoint(found: Translation) -> bool:
    """Say whether a settings file, which only botocore reads, may name another endpoint."""
    path = os.path.expanduser("~/.aws/config")
    return "aws_endpoint" not in dict(found.config) and os.path.exists(path)


def _build_client(found: Translation, seconds: float) -> _Client | None:
    # obstore is an optional package
    try:
        import obstore
        from obstore import store
        from obstore.exceptions import BaseError
    except ImportError:
        return None
    errors = (BaseError, OSError, ValueError, RuntimeError)
    settings: dict[str, Any] = {
        "client_options": {
            "connect_timeout": f"{CONNECT_TIMEOUT}s",
            "read_timeout": f"{READ_TIMEOUT}s",
            "timeout": f"{seconds}s",
            "allow_http": True,
        },
        "retry_config": NO_RETRIES,
    }
    headers = dict(found.headers)
    if found.kind == "http":
        headers["Accept-Encoding"] = "identity"
    if headers:
        settings["client_options"]["default_headers"] = headers
    try:
        if found.kind == "http":
            made: Any = store.HTTPStore.from_url(found.place, **settings)
        else:
            kind: Any = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}
            made = kind[found.kind](found.place, config=dict(found.config), **settings)
    except errors:
        return None
    return _Client(made, obstore, errors, found.kind)
