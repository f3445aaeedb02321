"""Conditional writes of object stores: one request each, and proved before they are relied on.

A server must first prove that it refuses a write whose condition is false, also of writes that come
at the same time: some servers ignore conditions, and the work of another writer would silently be
lost.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from virtualds.stores.conditional.by_content import ByContent
from virtualds.stores.retry import list_store_errors
from virtualds.stores.store import ChangedError

RACERS = 4
"""How many writes with one condition are tried at a time: the server must make one of them."""

WRITER = "virtualds-writer"
"""The name of the metadata that says which write made an object."""

PROOF = ".virtualds-proof-"
"""The prefix of the names of objects with which this module tries conditional writes."""
GRACE = 24 * 3600.0
"""Seconds after which such an object belongs to a process that was killed."""

_PROVED: dict[tuple[str, str], str] = {}
"""By endpoint and bucket: why conditional writes are unsafe there, empty if they are safe."""
_PROVING: dict[tuple[int, str, str], threading.Lock] = {}


class RefusedError(ChangedError):
    """The server refused a write, since its condition was false when the request came."""


class UnknownConditionError(OSError):
    """The server does not know conditional writes."""


class InObjectStore(ByContent, ABC):
    """Versions of objects, as their store names them: each method is one request, past all caches.

    A kind of store implements the abstract methods. They raise a `StoreError` or another error of
    the table `list_store_errors`, and `FileNotFoundError` for an object that does not exist.
    """

    conditions = ("If-None-Match: *", "If-Match")
    """What the protocol calls the conditions to create an object, and to replace a version."""

    @abstractmethod
    def find_bucket(self, filesystem: Any, path: str) -> tuple[str, str]:
        """Return the endpoint of the server, and the bucket (or container) of a path."""

    @abstractmethod
    def put_if(
        self, filesystem: Any, path: str, data: bytes, expected: str | None, writer: str
    ) -> str:
        """Write an object by one conditional request, with `WRITER` in its metadata.

        ``expected`` is the version that the object must have, None if it must not exist.

        Raises
        ------
        RefusedError
            The server says that the condition is false.
        UnknownConditionError
            The server says that it does not know conditions.
        """

    @abstractmethod
    def put(self, filesystem: Any, path: str, data: bytes) -> str:
        """Write an object whatever is there, and return the new version."""

    @abstractmethod
    def find_writer(self, filesystem: Any, path: str) -> tuple[str | None, str]:
        """Return the `WRITER` of an object, None if it has none, and the version."""

    @abstractmethod
    def list_times(self, filesystem: Any, prefix: str) -> dict[str, float]:
        """Return the paths that begin with a prefix, and when they were written, since 1970."""

    def find_missing_support(self, filesystem: Any) -> str:
        """Return why the installed libraries cannot send conditions, an empty text if they can."""
        return ""

    def find_unsafe_reason(self, filesystem: Any, path: str) -> str:
        """Return why conditional writes are unsafe; a process tries each bucket once."""
        if missing := self.find_missing_support(filesystem):
            return missing
        endpoint, bucket = self.find_bucket(filesystem, path)
        # by process: a forked child never gets a lock that its parent held
        with _PROVING.setdefault((os.getpid(), endpoint, bucket), threading.Lock()):
            if (endpoint, bucket) not in _PROVED:
                broken = self._find_broken_condition(filesystem, _parent_folder_of(path, bucket))
                reason = f"the server at {endpoint} does not keep conditional writes: {broken}"
                _PROVED[endpoint, bucket] = reason if broken else ""
        return _PROVED[endpoint, bucket]

    def _find_broken_condition(self, filesystem: Any, folder: str) -> str:
        """Try conditional writes of new objects in a folder; return what went wrong, if any."""
        self._remove_old_trials(filesystem, folder)
        paths = [f"{folder}{PROOF}{secrets.token_hex(16)}" for _ in range(2)]
        try:
            return self._find_false_write(filesystem, *paths)
        except UnknownConditionError as error:
            return f"it does not know them ({error})"
        finally:
            # the user may have the right to write, and not the right to remove
            with suppress(*list_store_errors()):
                self.remove(filesystem, paths)

    def _find_false_write(self, filesystem: Any, path: str, other: str) -> str:
        """Return which write of two new objects went wrong, if any."""
        create, replace = self.conditions
        refuses = "it refused a write whose condition was true"
        [first] = self._write_at_once(filesystem, [(path, None)])
        if first is None:
            return refuses
        again, missing = self._write_at_once(filesystem, [(path, None), (other, first)])
        if again:
            return f"it replaced an object in spite of {create}"
        if missing:
            return f"it wrote an object that did not exist, in spite of {replace}"
        raced = self._write_at_once(filesystem, [(other, None), (path, first)] * RACERS)
        for made, condition in ((raced[::2], create), (raced[1::2], replace)):
            if made.count(None) != RACERS - 1:
                several = f"of writes at the same time it made several, in spite of {condition}"
                return several if any(made) else refuses
        [late] = self._write_at_once(filesystem, [(path, first)])
        return f"it replaced an object that had changed, in spite of {replace}" if late else ""

    def _remove_old_trials(self, filesystem: Any, folder: str) -> None:
        """Remove what killed processes left, if the user may list and remove objects."""
        with suppress(*list_store_errors()):
            times = self.list_times(filesystem, folder + PROOF)
            old = [path for path, written in times.items() if written < time.time() - GRACE]
            self.remove(filesystem, old)

    def _write_at_once(
        self, filesystem: Any, writes: Sequence[tuple[str, str | None]]
    ) -> list[str | None]:
        """Write objects that are expected to have versions; return the new ones, None if refused.

        The requests are sent at the same time, since some servers check a condition when a request
        begins, and write when it ends.
        """

        def write(aim: tuple[str, str | None]) -> str | BaseException | None:
            try:
                # equal sizes: the server must not tell versions by size and time
                return self._write_if(filesystem, aim[0], secrets.token_bytes(32), aim[1])
            except ChangedError:
                return None
            except list_store_errors() as error:
                return error

        with ThreadPoolExecutor(len(writes)) as pool:
            answers = dict(enumerate(pool.map(write, writes)))
        written = {writes[number][0] for number, new in answers.items() if isinstance(new, str)}
        for number, answer in answers.items():
            # a server that is busy with one write of an object may put off the others
            if isinstance(answer, BaseException) and writes[number][0] not in written:
                raise answer
        return [answer if isinstance(answer, str) else None for answer in answers.values()]

    def write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        """Write an object by one conditional request."""
        if self.find_unsafe_reason(filesystem, path):
            return super().write(filesystem, path, data, expected)
        return self._write_if(filesystem, path, data, expected)

    def _write_if(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        writer = secrets.token_hex(16)
        try:
            return self.put_if(filesystem, path, data, expected, writer)
        except RefusedError:
            # libraries repeat a request without answer: the first may have been this very write
            with suppress(FileNotFoundError):
                found, version = self.find_writer(filesystem, path)
                if found == writer:
                    return version
            raise
        finally:
            filesystem.invalidate_cache(path)

    def check_and_write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        """Check the version, then write: a write of another writer in between goes unnoticed."""
        try:
            found = self.find_version(filesystem, path)
        except FileNotFoundError:
            found = None
        if found != expected:
            url = filesystem.unstrip_protocol(path)
            raise ChangedError(f"{url}: was changed by another writer")
        try:
            return self.put(filesystem, path, data)
        finally:
            filesystem.invalidate_cache(path)


def _parent_folder_of(path: str, bucket: str) -> str:
    """Return the folder of a path, or the bucket, with a slash at the end."""
    above = path.rstrip("/").rpartition("/")[0]
    return f"{above or bucket}/"
