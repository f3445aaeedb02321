"""Versions of files in fsspec filesystems, and conditional writes, which expect a version.

Object stores and the memory of this process have conditional writes. A filesystem of objects has
the requests as methods (`ObjectVersions`); what is common to all of them is here. A server must
first prove that it rejects a write whose condition is false, also if writes arrive at the same
time: some servers ignore conditions, and the work of another writer would silently be lost.
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
from virtualds.stores.store import (
    ChangedError,
    list_store_errors,
    make_temporary_name,
    version_of,
)
from virtualds.urls import KINDS

# ---------------------------------------------------------------------- any filesystem


WITHOUT_FOLDERS = {"memory", *chain.from_iterable(KINDS.values())}
"""Filesystems without folders, whose files only appear once they are complete."""


class ContentVersions:
    """Versions in any filesystem: a hash of the bytes is the version."""

    def read(self, filesystem: Any, path: str) -> tuple[bytes, str]:
        """Return the bytes of a file and their version."""
        data = bytes(filesystem.cat_file(path))
        return data, version_of(data)

    def find_version(self, filesystem: Any, path: str) -> str:
        """Return the version of a file."""
        return self.read(filesystem, path)[1]

    def find_unsafe_reason(self, filesystem: Any, path: str) -> str:
        """Return the reason why conditional writes beside a path are unsafe, or "" if none."""
        spoken = "/".join(sorted(find_protocols(filesystem)))
        return (
            f"conditional writes are known for local disk, memory, S3, Google Cloud and Azure, "
            f"not for {spoken}"
        )

    def check_conditions(self, filesystem: Any, path: str) -> None:
        """Raise an error for a filesystem on which writers would not notice each other."""
        reason = self.find_unsafe_reason(filesystem, path)
        if reason and not get_options().only_writer:
            raise UnsupportedError(
                f"{filesystem.unstrip_protocol(path)}: {reason}; write to a store whose "
                f"conditional writes keep several writers apart, or, if this is the only writer, "
                f"set virtualds.set_options(only_writer=True)"
            )

    def write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        """Write a file if its version is the expected one, and return the new version."""
        self.check_conditions(filesystem, path)
        return self.check_and_write(filesystem, path, data, expected)

    def check_and_write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        """Check the version, then write: a write of another writer in between goes unnoticed."""
        filesystem.invalidate_cache()
        found = self.find_version(filesystem, path) if filesystem.isfile(path) else None
        if found != expected:
            raise ChangedError(f"{path}: was changed by another writer")
        put(filesystem, path, data)
        return version_of(data)

    def remove(self, filesystem: Any, paths: Sequence[str]) -> None:
        """Remove files; a file that no longer exists is not an error."""
        for path in paths:
            with suppress(FileNotFoundError):
                filesystem.rm_file(path)
        filesystem.invalidate_cache()


class MemoryVersions(ContentVersions):
    """Versions of files in the memory of this process."""

    lock = threading.Lock()

    def find_unsafe_reason(self, filesystem: Any, path: str) -> str:
        """Return "", since a lock prevents concurrent writes."""
        return ""

    def write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        with self.lock:
            return self.check_and_write(filesystem, path, data, expected)


def put(filesystem: Any, path: str, data: bytes) -> None:
    """Write a file; create its parent folders, in filesystems that have folders."""
    if _has_folders(filesystem):
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    filesystem.pipe_file(path, data)


def create(filesystem: Any, path: str, data: bytes) -> None:
    """Write a file that appears complete or not at all.

    If writing fails, a file that already has the name stays: another writer may have created it.
    """
    if not _has_folders(filesystem):
        filesystem.pipe_file(path, data)
        return
    name = path.rpartition("/")[2]
    temporary = path.removesuffix(name) + make_temporary_name(name)
    try:
        put(filesystem, temporary, data)
        _rename(filesystem, temporary, path)
    except BaseException:
        with suppress(*list_store_errors(), NotImplementedError):
            filesystem.rm_file(temporary)
        raise


def _rename(filesystem: Any, path: str, new: str) -> None:
    """Rename a file, and replace the file with the new name."""
    # if the name is taken, some filesystems raise an error, and some do nothing
    with suppress(*list_store_errors()):
        filesystem.mv(path, new)
    if filesystem.exists(path):
        with suppress(FileNotFoundError):
            filesystem.rm_file(new)
        filesystem.mv(path, new)


def _has_folders(filesystem: Any) -> bool:
    return not find_protocols(filesystem) & WITHOUT_FOLDERS


def find_protocols(filesystem: Any) -> set[str]:
    """Return the protocols that a filesystem implements."""
    protocol = filesystem.protocol
    return {protocol} if isinstance(protocol, str) else set(protocol)


# ---------------------------------------------------------------------- object stores


RACERS = 4
"""The number of concurrent test writes with one condition, of which the server must accept one."""

WRITER = "virtualdswriter"
"""The metadata key for the write that created an object, and the writes before it.

Azure does not accept hyphens, and some servers and proxies drop headers with underscores.
"""
KNOWN_WRITES = 4
"""The number of writes that this metadata lists: after a lost response, other writers may already
have replaced our version."""

PROOF = ".virtualds-proof-"
"""The prefix of the names of objects with which this module tests conditional writes."""
GRACE = 24 * 3600.0
"""The number of seconds after which such an object must belong to a process that was killed."""

_PROVED: dict[tuple[str, str], str] = {}
"""Why conditional writes are unsafe, or "" if they are safe, by endpoint and bucket."""
_PROVING: dict[tuple[int, str, str], threading.Lock] = {}


class FileVersion(str):
    """The name of a version of a file, with the writes that led to it, the latest first."""

    writes: tuple[str, ...] = ()
    is_replaced = False
    """Whether another writer has already replaced it; then its name is no name of a version."""

    @classmethod
    def of(cls, name: str, writer: str | None) -> FileVersion:
        """Build a version from its name and the value of `WRITER`."""
        found = cls(name)
        found.writes = tuple((writer or "").split())
        return found

    @classmethod
    def replaced(cls, write: str) -> FileVersion:
        """Return the version that a write created, and that others have replaced."""
        found = cls(f"replaced {write}")
        found.is_replaced = True
        return found


class ConditionFailedError(ChangedError):
    """The server rejected a write, since its condition was false when the request arrived."""


class UnknownConditionError(OSError):
    """The server does not support conditional writes."""


class ObjectVersions(ContentVersions):
    """Versions of objects, as named by their store.

    A filesystem of objects has these methods, each of which sends one request, bypassing all
    caches. They raise an error of the table `list_store_errors`, and `FileNotFoundError` for an
    object that does not exist.

    - ``find_bucket(path)`` returns the endpoint of the server, and the bucket or container.
    - ``read_version(path)`` returns the bytes, and their `FileVersion` with its `WRITER`.
    - ``find_writer(path)`` returns the `WRITER`, or None, and the version.
    - ``put_object(path, data)`` writes unconditionally, and returns the new version.
    - ``put_conditionally(path, data, expected, writer)`` writes, with `WRITER` in the metadata, if
      the object has the version ``expected``, or if that is None, does not exist. A server may
      report that this is false (`ConditionFailedError`), or that it does not support conditions
      (`UnknownConditionError`).
    - ``list_times(prefix)`` returns paths, and when they were written, in seconds since 1970.
    - ``remove(paths)`` removes objects; one that no longer exists is not an error.

    ``conditions`` are the protocol's names of the conditions for creating an object and for
    replacing a version.
    """

    def read(self, filesystem: Any, path: str) -> tuple[bytes, str]:
        found: tuple[bytes, str] = filesystem.read_version(path)
        return found

    def find_version(self, filesystem: Any, path: str) -> str:
        return str(filesystem.find_writer(path)[1])

    def remove(self, filesystem: Any, paths: Sequence[str]) -> None:
        try:
            filesystem.remove(paths)
        finally:
            filesystem.invalidate_cache()

    def find_unsafe_reason(self, filesystem: Any, path: str) -> str:
        """Return the reason why conditional writes are unsafe; a process tests each bucket once."""
        endpoint, bucket = filesystem.find_bucket(path)
        # by process: a forked child never gets a lock that its parent held
        with _PROVING.setdefault((os.getpid(), endpoint, bucket), threading.Lock()):
            if (endpoint, bucket) not in _PROVED:
                folder = path.rstrip("/").rpartition("/")[0] or bucket
                broken = self._find_broken_condition(filesystem, f"{folder}/")
                reason = f"the server at {endpoint} does not keep conditional writes: {broken}"
                _PROVED[endpoint, bucket] = reason if broken else ""
        return _PROVED[endpoint, bucket]

    def _find_broken_condition(self, filesystem: Any, folder: str) -> str:
        """Test conditional writes of new objects in a folder; return what went wrong, or ""."""
        # what killed processes left behind is removed, if the user may list and remove objects
        with suppress(*list_store_errors()):
            times = filesystem.list_times(folder + PROOF)
            old = [path for path, written in times.items() if written < time.time() - GRACE]
            self.remove(filesystem, old)
        paths = [f"{folder}{PROOF}{secrets.token_hex(16)}" for _ in range(2)]
        try:
            return self._find_wrong_write(filesystem, *paths)
        except UnknownConditionError as error:
            return f"it does not know them ({error})"
        finally:
            # the user may be allowed to write, but not to remove
            with suppress(*list_store_errors()):
                self.remove(filesystem, paths)

    def _find_wrong_write(self, filesystem: Any, path: str, other: str) -> str:
        """Return the description of the write of two new objects that went wrong, if any."""
        create, replace = filesystem.conditions
        refuses = "it refused a write whose condition was true"
        [first] = self._write_concurrently(filesystem, [(path, None)])
        if first is None:
            return refuses
        again, missing = self._write_concurrently(filesystem, [(path, None), (other, first)])
        if again:
            return f"it replaced an object in spite of {create}"
        if missing:
            return f"it wrote an object that did not exist, in spite of {replace}"
        raced = self._write_concurrently(filesystem, [(other, None), (path, first)] * RACERS)
        for made, condition in ((raced[::2], create), (raced[1::2], replace)):
            if made.count(None) != RACERS - 1:
                several = f"of writes at the same time it made several, in spite of {condition}"
                return several if any(made) else refuses
        [late] = self._write_concurrently(filesystem, [(path, first)])
        return f"it replaced an object that had changed, in spite of {replace}" if late else ""

    def _write_concurrently(
        self, filesystem: Any, writes: Sequence[tuple[str, str | None]]
    ) -> list[str | None]:
        """Write objects, each only if it has the expected version; return new versions, or None.

        The requests are sent at the same time, since some servers check a condition at the
        beginning of a request, and write at its end.
        """

        def write(aim: tuple[str, str | None]) -> str | BaseException | None:
            try:
                # equal sizes: the server must not distinguish versions by size and time
                return self._write_if(filesystem, aim[0], secrets.token_bytes(32), aim[1])
            except ChangedError:
                return None
            except list_store_errors() as error:
                return error

        with ThreadPoolExecutor(len(writes)) as pool:
            answers = dict(enumerate(pool.map(write, writes)))
        written = {writes[number][0] for number, new in answers.items() if isinstance(new, str)}
        for number, answer in answers.items():
            # a server may delay other writes of an object while one is in progress
            if isinstance(answer, BaseException) and writes[number][0] not in written:
                raise answer
        return [answer if isinstance(answer, str) else None for answer in answers.values()]

    def write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        if self.find_unsafe_reason(filesystem, path):
            return super().write(filesystem, path, data, expected)
        return self._write_if(filesystem, path, data, expected)

    def _write_if(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        if isinstance(expected, FileVersion) and expected.is_replaced:
            url = filesystem.unstrip_protocol(path)
            raise ChangedError(f"{url}: was changed by another writer")
        write = secrets.token_hex(16)
        before = expected.writes if isinstance(expected, FileVersion) else ()
        writer = " ".join([write, *before][:KNOWN_WRITES])
        try:
            return FileVersion.of(
                filesystem.put_conditionally(path, data, expected, writer), writer
            )
        except ConditionFailedError:
            # a request without a response is repeated: the first may have succeeded, and others may
            # have continued from it
            with suppress(FileNotFoundError):
                found, version = filesystem.find_writer(path)
                known = (found or "").split()
                if write in known:
                    is_last = known[0] == write
                    return (
                        FileVersion.of(version, writer) if is_last else FileVersion.replaced(write)
                    )
            raise
        finally:
            filesystem.invalidate_cache(path)

    def check_and_write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        try:
            found = self.find_version(filesystem, path)
        except FileNotFoundError:
            found = None
        if found != expected:
            url = filesystem.unstrip_protocol(path)
            raise ChangedError(f"{url}: was changed by another writer")
        try:
            return str(filesystem.put_object(path, data))
        finally:
            filesystem.invalidate_cache(path)


# ---------------------------------------------------------------------- which of them

_ANY_OTHER, _IN_MEMORY, _IN_OBJECTS = ContentVersions(), MemoryVersions(), ObjectVersions()


def find_versioning(filesystem: Any) -> ContentVersions:
    """Return the object that manages versions of files in a filesystem."""
    if hasattr(filesystem, "put_conditionally"):
        return _IN_OBJECTS
    return _IN_MEMORY if "memory" in find_protocols(filesystem) else _ANY_OTHER
