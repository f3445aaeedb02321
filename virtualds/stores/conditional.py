"""Versions of files in fsspec filesystems, and conditional writes, which expect a version.

Object stores and memory support conditional writes. The filesystem of an object store has methods
for the requests (see `ObjectVersioning`). Before the first write, the server is tested: some
servers ignore conditions, or do not check them atomically, so that data of another writer would be
lost silently.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from typing import Any

from virtualds.errors import UnsupportedError
from virtualds.options import get_options
from virtualds.source_file import KINDS
from virtualds.stores.store import (
    ChangedError,
    hash_version,
    list_store_errors,
    make_temporary_name,
)

# ---------------------------------------------------------------------- other filesystems


WITHOUT_FOLDERS = {"memory", *chain.from_iterable(KINDS.values())}
"""Filesystems without folders, where a file becomes visible only when it is complete."""


class ContentVersioning:
    """Conditional reads and writes in any filesystem; a version is a hash of the content."""

    def read(self, filesystem: Any, path: str) -> tuple[bytes, str]:
        """Return the bytes and the version of a file."""
        data = bytes(filesystem.cat_file(path))
        return data, hash_version(data)

    def find_version(self, filesystem: Any, path: str) -> str:
        """Return the version of a file."""
        return self.read(filesystem, path)[1]

    def find_unsafe_reason(self, filesystem: Any, path: str) -> str:
        """Return the reason why conditional writes next to a path are unsafe, or "" if safe."""
        protocols = "/".join(sorted(find_protocols(filesystem)))
        return (
            f"conditional writes are supported on local disk, memory, S3, Google Cloud and "
            f"Azure, not on {protocols}"
        )

    def check_conditions(self, filesystem: Any, path: str) -> None:
        """Raise an error if conditional writes are unsafe, unless the user is the only writer."""
        reason = self.find_unsafe_reason(filesystem, path)
        if reason and not get_options().only_writer:
            raise UnsupportedError(
                f"{filesystem.unstrip_protocol(path)}: {reason}; write to a store whose "
                f"conditional writes keep several writers apart, or, if this is the only writer, "
                f"set virtualds.set_options(only_writer=True)"
            )

    def write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        """Write a file if it has the expected version, and return the new version."""
        self.check_conditions(filesystem, path)
        return self.check_and_write(filesystem, path, data, expected)

    def check_and_write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        """Check the version and then write, not atomically; return the new version."""
        filesystem.invalidate_cache()
        current = self.find_version(filesystem, path) if filesystem.isfile(path) else None
        if current != expected:
            raise ChangedError(f"{path}: was changed by another writer")
        put(filesystem, path, data)
        return hash_version(data)

    def remove(self, filesystem: Any, paths: Sequence[str]) -> None:
        """Remove files, ignoring those that no longer exist."""
        for path in paths:
            with suppress(FileNotFoundError):
                filesystem.rm_file(path)
        filesystem.invalidate_cache()


class MemoryVersioning(ContentVersioning):
    """Versions of files in the memory of this process."""

    lock = threading.Lock()

    def find_unsafe_reason(self, filesystem: Any, path: str) -> str:
        """Return "", since a lock makes writes atomic."""
        return ""

    def write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        with self.lock:
            return self.check_and_write(filesystem, path, data, expected)


def put(filesystem: Any, path: str, data: bytes) -> None:
    """Write a file, creating its parent folders if the filesystem has folders."""
    if _has_folders(filesystem):
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    filesystem.pipe_file(path, data)


def create(filesystem: Any, path: str, data: bytes) -> None:
    """Write a file that becomes visible only when it is complete.

    If writing fails, an existing file of that name is kept, which another writer may have created.
    """
    if not _has_folders(filesystem):
        filesystem.pipe_file(path, data)
        return
    name = path.rpartition("/")[2]
    temporary = path.removesuffix(name) + make_temporary_name(name)
    try:
        put(filesystem, temporary, data)
        # rename, replacing an existing file; if it exists, some filesystems raise an error, and
        # some do nothing
        with suppress(*list_store_errors()):
            filesystem.mv(temporary, path)
        if filesystem.exists(temporary):
            with suppress(FileNotFoundError):
                filesystem.rm_file(path)
            filesystem.mv(temporary, path)
    except BaseException:
        with suppress(*list_store_errors(), NotImplementedError):
            filesystem.rm_file(temporary)
        raise


def _has_folders(filesystem: Any) -> bool:
    return not find_protocols(filesystem) & WITHOUT_FOLDERS


def find_protocols(filesystem: Any) -> set[str]:
    """Return the protocols that a filesystem implements."""
    protocol = filesystem.protocol
    return {protocol} if isinstance(protocol, str) else set(protocol)


# ---------------------------------------------------------------------- object stores


CONCURRENT_WRITES = 4
"""Number of concurrent test writes with the same condition; exactly one must succeed."""

WRITER_KEY = "virtualdswriter"
"""Metadata key with the ids of the write that created an object, and of earlier writes.

Azure does not accept hyphens in it, and some servers and proxies drop headers with underscores.
"""
MAX_WRITE_IDS = 4
"""Maximum number of write ids in the metadata under `WRITER_KEY`.

There are several, because other writers may already have replaced the version of this writer if its
response was lost.
"""

TEST_PREFIX = ".virtualds-proof-"
"""Prefix of the names of test objects for conditional writes."""
LEFTOVER_AGE = 24 * 3600.0
"""Seconds after which a test object is considered left behind by a killed process."""

_UNSAFE_REASONS: dict[tuple[str, str], str] = {}
"""The reason why conditional writes are unsafe, or "", by endpoint and bucket."""
_TEST_LOCKS: dict[tuple[int, str, str], threading.Lock] = {}


class FileVersion(str):
    """The id of a version of a file, with the ids of the latest writes, the last one first."""

    writes: tuple[str, ...] = ()
    is_replaced = False
    """Whether another writer has already replaced it, so that its id is unknown."""

    @classmethod
    def from_writer(cls, name: str, writer: str | None) -> FileVersion:
        """Create a version from its id and the metadata under `WRITER_KEY`."""
        version = cls(name)
        version.writes = tuple((writer or "").split())
        return version

    @classmethod
    def replaced(cls, write: str) -> FileVersion:
        """Create the version of a write that has been replaced by other writers."""
        version = cls(f"replaced {write}")
        version.is_replaced = True
        return version


class ConditionFailedError(ChangedError):
    """Raised if the server rejected a write whose condition was false."""


class UnsupportedConditionError(OSError):
    """Raised if the server does not support conditional writes."""


class ObjectVersioning(ContentVersioning):
    """Versions of objects: their etags or generations.

    The filesystem must have these methods, each of which sends one request and bypasses all caches.
    They raise errors of `list_store_errors`, and `FileNotFoundError` for a missing object.

    - ``find_bucket(path)`` returns the endpoint of the server, and the bucket or container.
    - ``read_with_version(path)`` returns the bytes and their `FileVersion`.
    - ``find_writer(path)`` returns the metadata under `WRITER_KEY`, or None, and the version.
    - ``put_object(path, data)`` writes unconditionally, and returns the new version.
    - ``put_conditionally(path, data, expected, writer)`` writes if the object has the
      version ``expected``, or if that is None, does not exist. ``writer`` is stored under
      `WRITER_KEY`. Raises `ConditionFailedError` if the condition is false, and
      `UnsupportedConditionError` if the server does not support conditions.
    - ``list_times(prefix)`` returns the modification times by path, in seconds since 1970.
    - ``remove(paths)`` deletes objects, ignoring those that no longer exist.

    Its attribute ``conditions`` has the names in the protocol of the conditions for creating an
    object and for replacing a version.
    """

    def read(self, filesystem: Any, path: str) -> tuple[bytes, str]:
        versioned: tuple[bytes, str] = filesystem.read_with_version(path)
        return versioned

    def find_version(self, filesystem: Any, path: str) -> str:
        return str(filesystem.find_writer(path)[1])

    def remove(self, filesystem: Any, paths: Sequence[str]) -> None:
        try:
            filesystem.remove(paths)
        finally:
            filesystem.invalidate_cache()

    def find_unsafe_reason(self, filesystem: Any, path: str) -> str:
        """Return the reason why conditional writes are unsafe, or ""; test each bucket once."""
        endpoint, bucket = filesystem.find_bucket(path)
        # by process, since a forked child cannot acquire a lock that its parent held
        with _TEST_LOCKS.setdefault((os.getpid(), endpoint, bucket), threading.Lock()):
            if (endpoint, bucket) not in _UNSAFE_REASONS:
                folder = path.rstrip("/").rpartition("/")[0] or bucket
                failure = self._find_broken_condition(filesystem, f"{folder}/")
                reason = f"the server at {endpoint} does not respect write conditions: {failure}"
                _UNSAFE_REASONS[endpoint, bucket] = reason if failure else ""
        return _UNSAFE_REASONS[endpoint, bucket]

    def _find_broken_condition(self, filesystem: Any, folder: str) -> str:
        """Test conditional writes of new objects in a folder; return what went wrong, or ""."""
        # remove test objects of killed processes, if the user may list and delete objects
        with suppress(*list_store_errors()):
            times = filesystem.list_times(folder + TEST_PREFIX)
            old = [path for path, written in times.items() if written < time.time() - LEFTOVER_AGE]
            self.remove(filesystem, old)
        paths = [f"{folder}{TEST_PREFIX}{secrets.token_hex(16)}" for _ in range(2)]
        try:
            return self._test_two_objects(filesystem, *paths)
        except UnsupportedConditionError as error:
            return f"it does not support any ({error})"
        finally:
            # the user may not be allowed to delete objects
            with suppress(*list_store_errors()):
                self.remove(filesystem, paths)

    def _test_two_objects(self, filesystem: Any, path: str, other: str) -> str:
        """Test writes of two new objects; return a description of the first failure, or ""."""
        create, replace = filesystem.conditions
        rejected = "it refused a write whose condition was true"
        [first] = self._write_concurrently(filesystem, [(path, None)])
        if first is None:
            return rejected
        overwritten, missing = self._write_concurrently(filesystem, [(path, None), (other, first)])
        if overwritten:
            return f"it replaced an object in spite of {create}"
        if missing:
            return f"it wrote an object that did not exist, in spite of {replace}"
        results = self._write_concurrently(
            filesystem, [(other, None), (path, first)] * CONCURRENT_WRITES
        )
        for versions, condition in ((results[::2], create), (results[1::2], replace)):
            if versions.count(None) != CONCURRENT_WRITES - 1:
                message = f"it accepted several concurrent writes, in spite of {condition}"
                return message if any(versions) else rejected
        [late] = self._write_concurrently(filesystem, [(path, first)])
        return f"it replaced an object that had changed, in spite of {replace}" if late else ""

    def _write_concurrently(
        self, filesystem: Any, writes: Sequence[tuple[str, str | None]]
    ) -> list[str | None]:
        """Write objects conditionally and concurrently; return versions, None for rejected writes.

        Some servers check a condition at the start of a request, and write at its end.
        """

        def write(target: tuple[str, str | None]) -> str | BaseException | None:
            try:
                # of equal size, to find servers that distinguish versions only by size and time
                return self._write_if(filesystem, target[0], secrets.token_bytes(32), target[1])
            except ChangedError:
                return None
            except list_store_errors() as error:
                return error

        with ThreadPoolExecutor(len(writes)) as pool:
            results = dict(enumerate(pool.map(write, writes)))
        written = {writes[number][0] for number, new in results.items() if isinstance(new, str)}
        for number, result in results.items():
            # while one write is in progress, a server may answer others with an error
            if isinstance(result, BaseException) and writes[number][0] not in written:
                raise result
        return [result if isinstance(result, str) else None for result in results.values()]

    def write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        if self.find_unsafe_reason(filesystem, path):
            return super().write(filesystem, path, data, expected)
        return self._write_if(filesystem, path, data, expected)

    def _write_if(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        if isinstance(expected, FileVersion) and expected.is_replaced:
            url = filesystem.unstrip_protocol(path)
            raise ChangedError(f"{url}: was changed by another writer")
        write = secrets.token_hex(16)
        earlier = expected.writes if isinstance(expected, FileVersion) else ()
        writer = " ".join([write, *earlier][:MAX_WRITE_IDS])
        try:
            return FileVersion.from_writer(
                filesystem.put_conditionally(path, data, expected, writer), writer
            )
        except ConditionFailedError:
            # an earlier attempt whose response was lost may have succeeded, and other writers may
            # have replaced its version
            with suppress(FileNotFoundError):
                current, version = filesystem.find_writer(path)
                writes = (current or "").split()
                if write in writes:
                    is_current = writes[0] == write
                    return (
                        FileVersion.from_writer(version, writer)
                        if is_current
                        else FileVersion.replaced(write)
                    )
            raise
        finally:
            filesystem.invalidate_cache(path)

    def check_and_write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        try:
            current = self.find_version(filesystem, path)
        except FileNotFoundError:
            current = None
        if current != expected:
            url = filesystem.unstrip_protocol(path)
            raise ChangedError(f"{url}: was changed by another writer")
        try:
            return str(filesystem.put_object(path, data))
        finally:
            filesystem.invalidate_cache(path)


# ---------------------------------------------------------------------- choice by filesystem

_CONTENT_VERSIONS, _MEMORY_VERSIONS, _OBJECT_VERSIONS = (
    ContentVersioning(),
    MemoryVersioning(),
    ObjectVersioning(),
)


def find_versioning(filesystem: Any) -> ContentVersioning:
    """Return the `ContentVersioning` object for the files of a filesystem."""
    if hasattr(filesystem, "put_conditionally"):
        return _OBJECT_VERSIONS
    return _MEMORY_VERSIONS if "memory" in find_protocols(filesystem) else _CONTENT_VERSIONS
