"""Anything else that fsspec knows: http, s3, gs, memory and so on."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache, partial
from itertools import count
from typing import Any

import virtualds.stores.fsspec_ranges as fsspec_ranges
import virtualds.stores.obstore_ranges as obstore_ranges
from virtualds.errors import UnsupportedError
from virtualds.manifest import SourceFile, StorageOptions
from virtualds.options import get_options
from virtualds.store import (
    ChangedError,
    Listed,
    Range,
    Reach,
    StoreError,
    far_reach,
    version_of,
)
from virtualds.stores.answer import Answer, cause_of, checked, failure
from virtualds.stores.fsspec_ranges import located, reading
from virtualds.stores.retry import GaveUp, retried
from virtualds.urls import host_of

SIDE_BY_SIDE = 16
"""Requests of one call; whoever wants more of them under way calls in more threads."""

MODIFIED = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
"""What filesystems call the time of modification; the last is of stores of whole files."""

WITHOUT_FOLDERS = {"memory", "s3", "gs", "gcs", "abfs", "az"}
"""Filesystems whose folders need not be made: there is nothing but files."""

DELETED_AT_ONCE = 1000
"""Objects that one request to S3 may remove."""

WRITER = "virtualds-writer"
"""Metadata of an object: who wrote it."""

_TURNS: dict[tuple[int, str, int], threading.Semaphore] = {}

LOST = {"PreconditionFailed", "412", "ConditionalRequestConflict", "OperationAborted", "409"}
"""What S3 answers to a conditional write that came too late."""


class FsspecStore:
    """The files of any fsspec filesystem."""

    @property
    def reach(self) -> Reach:
        """Reach of a far store."""
        return far_reach()

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        """Return the bytes of every range, through obstore or fsspec, asked again if need be."""
        if len(ranges) == 1:
            return [_get_range(file, 0, ranges[0])]
        with ThreadPoolExecutor(min(len(ranges) or 1, SIDE_BY_SIDE)) as pool:
            return list(pool.map(partial(_get_range, file), count(), ranges))

    def expect(self, file: SourceFile, ranges: Sequence[Range]) -> None:
        """Do nothing: what is wanted soon is asked for at once."""

    def confirm(self, file: SourceFile) -> None:
        """Do nothing: to see whether a file has changed would be a request."""

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        """Return the file with its size and, where the store has one, its etag."""
        filesystem, path = reading(url, options)
        # what is there now, not what some listing has said
        filesystem.invalidate_cache(path)
        with _told_of(url):
            info = retried(lambda _: fsspec_ranges.within(filesystem, "info", path))
        return _described(url, info, options)

    def head(
        self, url: str, options: StorageOptions | None, length: int
    ) -> tuple[SourceFile, bytes]:
        """Return the file with its size and etag, and its first bytes, if possible at once."""
        filesystem, path = reading(url, options)
        if (found := _beginning(url, filesystem, path, length)) is not None:
            return SourceFile(url, found.size, None, found.etag, options), found.data
        file = self.describe(url, options)
        if file.size is None:
            # nobody knows where it ends
            with filesystem.open(path, "rb") as handle:
                return file, handle.read(length)
        length = min(length, file.size)
        return file, self.get_ranges(file, [(0, length)])[0] if length else b""

    def read_all(self, url: str, options: StorageOptions | None) -> bytes:
        """Return a whole file, asked for again if need be."""
        filesystem, path = reading(url, options)
        with _told_of(url):
            return retried(lambda _: fsspec_ranges.get_whole(filesystem, path))

    def write_all(
        self, url: str, data: bytes, options: StorageOptions | None, *, replace: bool
    ) -> None:
        """Put a file; object stores show it whole or not at all."""
        filesystem, path = located(url, options)
        if not replace and filesystem.exists(path):
            raise FileExistsError(f"{url}: exists already; pass mode='w' to replace it")
        filesystem.pipe_file(path, data)

    def write_folder(
        self,
        url: str,
        files: Iterable[tuple[str, bytes]],
        options: StorageOptions | None,
        *,
        replace: bool,
        expected: str | None = None,
    ) -> None:
        """Put the files of a folder, the last one when all others are there."""
        filesystem, root = located(url, options)
        if replace:
            raise UnsupportedError(
                f"{url}: only on local disk is a folder replaced in one step; write to another url"
            )
        if filesystem.exists(root) and filesystem.find(root):
            raise FileExistsError(
                f"{url}: exists already; pass mode='w' to replace a reference set, remove anything "
                f"else"
            )
        put: list[str] = []
        try:
            for inside, data in files:
                put.append(f"{root.rstrip('/')}/{inside}")
                _put(filesystem, put[-1], data)
        except BaseException:
            _remove(filesystem, put)
            raise

    def read_version(self, url: str, options: StorageOptions | None) -> tuple[bytes, str]:
        """Return a whole file, and its version: the etag in S3, elsewhere a hash of its bytes."""
        filesystem, path = located(url, options)
        return _way(filesystem).read(filesystem, path)

    def version(self, url: str, options: StorageOptions | None) -> str | None:
        """Return the version that is there now, None if there is no such file."""
        filesystem, path = located(url, options)
        try:
            return _way(filesystem).version(filesystem, path)
        except FileNotFoundError:
            return None

    def write_version(
        self, url: str, data: bytes, options: StorageOptions | None, expected: str | None
    ) -> str:
        """Create or replace a file in S3 by a conditional write, in memory under a lock."""
        filesystem, path = located(url, options)
        return _way(filesystem).write(filesystem, path, data, expected)

    def write_file(self, url: str, data: bytes, options: StorageOptions | None) -> None:
        """Put a file; object stores show it whole or not at all."""
        filesystem, path = located(url, options)
        try:
            _put(filesystem, path, data)
        except BaseException:
            with suppress(OSError, NotImplementedError):
                filesystem.rm_file(path)
            raise

    def list_files(self, url: str, options: StorageOptions | None) -> list[Listed]:
        """Return the files below a folder, with sizes, etags and times where they are told."""
        filesystem, path = located(url, options)
        filesystem.invalidate_cache()
        try:
            found = filesystem.find(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        folder = f"{path.rstrip('/')}/"
        beginning = url.rstrip("/")
        return [
            Listed(inside, _described(f"{beginning}/{inside}", info, options), _modified(info))
            for name, info in sorted(found.items())
            if (inside := name.removeprefix(folder)) != name and not name.endswith("/")
        ]

    def remove(self, urls: Iterable[str], options: StorageOptions | None) -> None:
        """Remove files, in S3 many by one request; folders stay."""
        found = [located(url, options) for url in urls]
        if found:
            # one url after another leads to one and the same filesystem
            filesystem = found[0][0]
            _way(filesystem).remove(filesystem, [path for _, path in found])


def _get_range(file: SourceFile, item: int, wanted: Range) -> bytes:
    """Return the bytes of one range; obstore makes the first attempt, where it can."""
    offset, length = wanted
    if not length:
        return b""

    def ask(attempt: int) -> bytes:
        again = attempt < get_options().retries
        with _turns_at(host_of(file.url), get_options().max_requests):
            fast = None if attempt else obstore_ranges.get_range(file, offset, length, again=again)
            answer = fast or fsspec_ranges.get_range(
                *reading(file.url, file.options), offset, length
            )
        return checked(answer, file, length)

    try:
        return retried(ask)
    except GaveUp as failed:
        error = failure(failed)
        raise StoreError(str(error), item) from cause_of(failed)


def _turns_at(host: str, at_once: int) -> threading.Semaphore:
    """Return what lets so many requests to a host be under way, whoever sends them."""
    # one for all threads, but not that of a parent, whose threads do not give back theirs
    return _TURNS.setdefault((os.getpid(), host, at_once), threading.Semaphore(at_once))


def _beginning(url: str, filesystem: Any, path: str, length: int) -> Answer | None:
    """Return the first bytes of a file, None if they and its size take more than one request."""
    try:
        found = retried(lambda _: fsspec_ranges.get_beginning(filesystem, path, length))
    except GaveUp as failed:
        error = failure(failed, url)
        judged = isinstance(failed.__cause__, StoreError)
        if isinstance(error, StoreError) and failed.attempts == 1 and not judged:
            # an empty file has no first bytes, and not all servers like to be asked so
            return None
        raise error from cause_of(failed)
    short = (
        found is not None and found.size is not None and len(found.data) < min(length, found.size)
    )
    return None if short else found


@contextmanager
def _told_of(url: str) -> Iterator[None]:
    """Name the url in the error of a request that failed for good."""
    try:
        yield
    except GaveUp as failed:
        raise failure(failed, url) from cause_of(failed)


class _ByContent:
    """What can be done with any filesystem."""

    needs = "cat_file"

    def read(self, filesystem: Any, path: str) -> tuple[bytes, str]:
        data = bytes(filesystem.cat_file(path))
        return data, version_of(data)

    def version(self, filesystem: Any, path: str) -> str:
        return self.read(filesystem, path)[1]

    def write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        if not get_options().only_writer:
            raise UnsupportedError(
                f"{path}: conditional writes are known for local disk, memory and S3, not for "
                f"{'/'.join(sorted(_protocols(filesystem)))}; keep what several writers change in "
                f"one of those, or, if nobody else writes, say so with "
                f"virtualds.set_options(only_writer=True)"
            )
        filesystem.invalidate_cache()
        found = self.version(filesystem, path) if filesystem.isfile(path) else None
        if found != expected:
            raise ChangedError(f"{path}: was changed by another writer")
        _put(filesystem, path, data)
        return version_of(data)

    def remove(self, filesystem: Any, paths: Sequence[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                filesystem.rm_file(path)
        filesystem.invalidate_cache()


class _InMemory(_ByContent):
    """The files of this process."""

    lock = threading.Lock()

    def write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        with self.lock:
            found = self.version(filesystem, path) if filesystem.isfile(path) else None
            if found != expected:
                raise ChangedError(f"{path}: was changed by another writer")
            filesystem.pipe_file(path, data)
        return version_of(data)


class _InS3(_ByContent):
    """S3 through s3fs: each of these is one request, past the caches of s3fs."""

    needs = "call_s3"

    def read(self, filesystem: Any, path: str) -> tuple[bytes, str]:
        from fsspec.asyn import sync

        with _s3_errors():
            answer = filesystem.call_s3("get_object", **_object(filesystem, path))
            body = answer["Body"]
            try:
                return sync(filesystem.loop, body.read), answer["ETag"]
            finally:
                body.close()

    def version(self, filesystem: Any, path: str) -> str:
        with _s3_errors():
            answer = filesystem.call_s3("head_object", **_object(filesystem, path))
        return str(answer["ETag"])

    def write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected}
        _demand_conditions(path)
        writer = secrets.token_hex(16)
        metadata = {**filesystem.s3_additional_kwargs.get("Metadata", {}), WRITER: writer}
        put = {**_object(filesystem, path), "Body": data, "Metadata": metadata, **condition}
        try:
            with _s3_errors():
                return str(filesystem.call_s3("put_object", **put)["ETag"])
        except OSError as error:
            if not _is_lost(error, expected):
                raise
            return self._own_version(filesystem, path, writer, error)
        finally:
            filesystem.invalidate_cache(path)

    def _own_version(self, filesystem: Any, path: str, writer: str, error: OSError) -> str:
        """Return the version if it is our own: a request whose answer was lost is sent again."""
        with _s3_errors(), suppress(FileNotFoundError):
            found = filesystem.call_s3("head_object", **_object(filesystem, path))
            if found.get("Metadata", {}).get(WRITER) == writer:
                return str(found["ETag"])
        raise ChangedError(f"s3://{path}: was changed by another writer") from error

    def remove(self, filesystem: Any, paths: Sequence[str]) -> None:
        buckets: dict[str, list[dict[str, str]]] = {}
        for path in paths:
            named = _object(filesystem, path)
            buckets.setdefault(named["Bucket"], []).append({"Key": named["Key"]})
        try:
            for bucket, keys in buckets.items():
                for start in range(0, len(keys), DELETED_AT_ONCE):
                    _delete(filesystem, bucket, keys[start : start + DELETED_AT_ONCE])
        finally:
            filesystem.invalidate_cache()


_WAYS: dict[str, _ByContent] = {"memory": _InMemory(), "s3": _InS3(), "s3a": _InS3()}
"""Ways to tell versions apart by protocol; any other filesystem can only be read and removed."""

_ANY_OTHER = _ByContent()


def _put(filesystem: Any, path: str, data: bytes) -> None:
    """Put a file, and the folders that it lies in where there are such."""
    if not _protocols(filesystem) & WITHOUT_FOLDERS:
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    filesystem.pipe_file(path, data)


def _protocols(filesystem: Any) -> set[str]:
    protocol = filesystem.protocol
    return {protocol} if isinstance(protocol, str) else set(protocol)


def _way(filesystem: Any) -> _ByContent:
    ways = (_WAYS[protocol] for protocol in _protocols(filesystem) if protocol in _WAYS)
    # other libraries than s3fs may answer for its protocols
    return next((way for way in ways if hasattr(filesystem, way.needs)), _ANY_OTHER)


def _object(filesystem: Any, path: str) -> dict[str, str]:
    bucket, key, _ = filesystem.split_path(path)
    return {"Bucket": bucket, "Key": key}


def _delete(filesystem: Any, bucket: str, keys: list[dict[str, str]]) -> None:
    with _s3_errors():
        answer = filesystem.call_s3(
            "delete_objects", Bucket=bucket, Delete={"Objects": keys, "Quiet": True}
        )
    for failed in answer.get("Errors", []):
        raise StoreError(f"s3://{bucket}/{failed.get('Key')}: {failed.get('Message')}")


def _is_lost(error: OSError, expected: str | None) -> bool:
    """Whether S3 refused a write because of its condition."""
    answer = getattr(error.__cause__, "response", None) or {}
    code = answer.get("Error", {}).get("Code")
    return code in LOST or (expected is not None and code in ("NoSuchKey", "404"))


@contextmanager
def _s3_errors() -> Iterator[None]:
    """Turn what the libraries below s3fs raise into an error of the store."""
    from aiohttp import ClientError
    from botocore.exceptions import BotoCoreError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise StoreError(f"{type(error).__name__}: {error}") from error


@cache
def _known_conditions() -> frozenset[str]:
    """Return the conditions that the installed botocore can send with a write."""
    from botocore.session import get_session

    put = get_session().get_service_model("s3").operation_model("PutObject")
    return frozenset(put.input_shape.members) & {"IfMatch", "IfNoneMatch"}


def _demand_conditions(path: str) -> None:
    # s3fs silently leaves out what botocore does not know
    if len(_known_conditions()) < 2:
        raise UnsupportedError(
            f"s3://{path}: the installed botocore cannot send conditional writes; install "
            f"botocore>=1.36"
        )


def _described(url: str, info: dict[str, Any], options: StorageOptions | None) -> SourceFile:
    return SourceFile(url, info.get("size"), None, info.get("ETag"), options)


def _modified(info: dict[str, Any]) -> float | None:
    """Return the time of modification, in seconds since 1970."""
    found = next((info[name] for name in MODIFIED if info.get(name) is not None), None)
    if isinstance(found, str):
        try:
            found = datetime.fromisoformat(found)
        except ValueError:
            return None
    return found.timestamp() if isinstance(found, datetime) else found


def _remove(filesystem: Any, paths: Iterable[str]) -> None:
    for path in paths:
        if filesystem.exists(path):
            filesystem.rm_file(path)
