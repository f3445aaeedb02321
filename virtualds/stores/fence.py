"""Leases and turns: how writers of one folder exclude each other, or wait for each other.

A lease is for files whose names are fixed. The marker is the file that readers open first. A writer
first replaces it with a fence, a marker with its own id, which locks out all earlier writers. Then
it writes the other files, and finally the new marker. Decision 15 explains why this is safe, and
why one of many writers always finishes. A turn excludes nobody; it is for writers that wait.
"""

from __future__ import annotations

import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from virtualds.errors import ConflictError, ReadError, VirtualdsError, make_exists_error
from virtualds.progress import INFO, is_logged, log
from virtualds.source_file import StorageOptions
from virtualds.stores import find_store
from virtualds.stores.store import ChangedError

WAIT_SECONDS = 1.0
"""Seconds for which other writers respect a fence that displaced no other."""
MAX_WAIT = 300.0
"""Maximum seconds for which a fence is respected."""
PAUSE = 0.02
"""Maximum seconds between two checks of a fence, or of a turn in a local folder."""


class ReadMarker(NamedTuple):
    """A marker, its version, and how many fences in a row the next fence displaces."""

    data: bytes
    version: str
    displaced: int


def read_marker(
    url: str, options: StorageOptions | None, count_displaced: Callable[[bytes], int | None]
) -> ReadMarker:
    """Read a marker; if it is a fence, wait until its writer has had time to finish.

    Each fence is respected for twice as long as the one that it displaced, so that one writer
    eventually has enough time. ``count_displaced`` takes a marker, and returns how many fences in a
    row it displaced, or None if it is not a fence.
    """
    store = find_store(url)
    while True:
        data, version = store.read_with_version(url, options)
        displaced = count_displaced(data)
        if displaced is None:
            return ReadMarker(data, version, 0)
        end = time.monotonic() + min(WAIT_SECONDS * 2.0 ** min(displaced, 99), MAX_WAIT)
        while store.find_version(url, options) == version:
            if time.monotonic() > end:
                return ReadMarker(data, version, displaced + 1)
            time.sleep(random.uniform(0, PAUSE))


class WriteLease:
    """The lease of one writer on a folder.

    Files of different writers must differ, so each writer puts its id into every file. ``version``
    is the version of the marker that this writer has read, or None if there was none. ``files`` are
    the paths of all other files that it will write and that may exist.
    """

    def __init__(
        self,
        root: str,
        marker: str,
        options: StorageOptions | None,
        version: str | None,
        files: Iterable[str],
    ) -> None:
        self._root = root
        self._marker = f"{root}/{marker}"
        self._options = options
        self._store = find_store(root)
        self._version = version
        self._store.check_conditions(root, options)
        # look up versions before writing the fence: if that succeeds, the versions are current
        self._versions = {
            path: self._store.find_version(f"{root}/{path}", self._options) for path in files
        }

    def replace_marker(self, data: bytes) -> None:
        """Replace the marker, first by the fence, and finally by the final marker.

        Raises `ConflictError` if another writer has replaced it in the meantime.
        """
        try:
            self._version = self._store.write_version(
                self._marker, data, self._options, self._version
            )
        except ChangedError as error:
            raise make_conflict_error(self._root) from error

    def put(self, path: str, data: bytes) -> None:
        """Write one of the files; raise `ConflictError` if another writer replaced the fence."""
        url = f"{self._root}/{path}"
        while True:
            try:
                self._store.write_version(url, data, self._options, self._versions.get(path))
                return
            except ChangedError as error:
                # look up the version before checking the fence, so that the version cannot be newer
                self._versions[path] = self._store.find_version(url, self._options)
                if not self.is_current():
                    raise make_conflict_error(self._root) from error

    def is_current(self) -> bool:
        """Return whether the marker is still the fence of this writer."""
        return self._store.find_version(self._marker, self._options) == self._version


class Turn:
    """The turn to change a folder; writers that try again after conflicts wait for it.

    Without it, all but one of them would work in vain, and a long change would lose to short ones
    again and again. The turn is a file that only one writer can create, and that it renews while it
    works. Only the order of writers depends on it: each commit is still conditional.
    """

    RENEW_SECONDS, TURN_SECONDS, PATIENCE = 5.0, 30.0, 120.0
    """Seconds between renewals, seconds without a renewal until others take the turn over, and
    seconds for which they wait for one writer that renews it."""

    def __init__(self, root: str, file: str, options: StorageOptions | None) -> None:
        self._root, self._url, self._options = root, f"{root}/{file}", options
        self._store, self._writer = find_store(root), secrets.token_hex(8).encode()
        self._version: str | None = None
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def take(self) -> None:
        """Wait for the turn, and take it."""
        is_remote = bool(self._store.request_limits.max_requests)
        version, writer, pause = None, b"", PAUSE
        since = renewed = time.monotonic()
        while True:
            found, found_version = self._read()
            now, found_writer = time.monotonic(), found[: len(self._writer)]
            if found_writer != writer:
                if found_writer and not writer and is_logged(INFO):
                    log(INFO, f"{self._root}: this writer waits for another one to finish")
                writer, since = found_writer, now
            if found_version != version:
                version, renewed = found_version, now
            if now - since > self.PATIENCE:
                # go on without the turn: its writer may be waiting for this one
                return
            if version is None or now - renewed > self.TURN_SECONDS:
                with suppress(ChangedError):
                    self._write(version)
                    with suppress(RuntimeError):
                        self._thread.start()
                    return
            time.sleep(random.uniform(0, pause))
            pause = min(2 * pause, 0.5) if is_remote else PAUSE

    def _read(self) -> tuple[bytes, str | None]:
        try:
            return self._store.read_with_version(self._url, self._options)
        except (FileNotFoundError, NotADirectoryError):
            return b"", None

    def _write(self, expected: str | None) -> None:
        data = self._writer + secrets.token_hex(8).encode()
        self._version = self._store.write_version(self._url, data, self._options, expected)

    def _renew(self) -> None:
        """Rewrite the file regularly, so that others see that this writer is at work."""
        while not self._has_ended.wait(self.RENEW_SECONDS):
            try:
                self._write(self._version)
            except ChangedError:
                # another writer has taken it over
                return
            except (OSError, VirtualdsError):
                continue

    def end(self) -> None:
        """Let the next writer have its turn."""
        if self._version is None:
            return
        self._has_ended.set()
        if self._thread.is_alive():
            self._thread.join(1)
        if self._store.find_version(self._url, self._options) == self._version:
            self._store.remove([self._url], self._options)


CLAIM = b'{"virtualds-is-creating-this":'
"""First bytes of the fence of a folder that is being created, which readers reject."""


def is_claim(marker: bytes) -> bool:
    """Return whether a marker is the fence of a folder that is being created."""
    return marker.startswith(CLAIM)


def create_folder(
    root: str, marker: str, files: Iterable[tuple[str, bytes]], options: StorageOptions | None
) -> None:
    """Create a folder of files with fixed names in any store, the marker last.

    A later writer may take over from a killed one, and locks out a slow one. Raises
    `FileExistsError` if the folder exists, and `ConflictError` if another writer was faster.
    """

    def count_displaced(data: bytes) -> int | None:
        count = re.search(rb'"displaced":(\d{1,9})}', data)
        return None if not is_claim(data) else int(count[1]) if count else 0

    store = find_store(root)
    store.check_conditions(root, options)
    # list files before reading the marker, since a writer writes its marker first
    existing_files = store.list_files(root, options)
    current = None
    with suppress(FileNotFoundError):
        current = read_marker(f"{root}/{marker}", options, count_displaced)
    if (current and not is_claim(current.data)) or (existing_files and not current):
        raise make_exists_error(root)
    lease = WriteLease(root, marker, options, current.version if current else None, ())
    displaced = current.displaced if current else 0
    lease.replace_marker(CLAIM + f'"{secrets.token_hex(16)}","displaced":{displaced}}}'.encode())
    for path, data in files:
        if path == marker:
            lease.replace_marker(data)
        else:
            lease.put(path, data)


@contextmanager
def explain_vanished_files(is_unchanged: Callable[[], bool], url: str) -> Iterator[None]:
    """Convert `ReadError` to `ConflictError` if another writer has replaced the folder.

    ``is_unchanged`` returns whether the folder is still the one that was opened.
    """
    try:
        yield
    except ReadError as error:
        if is_unchanged():
            raise
        raise make_conflict_error(url) from error


def make_conflict_error(url: str) -> ConflictError:
    """Return the error for a writer if another writer was faster."""
    return ConflictError(
        f"{url}: another writer was faster, and nothing has been written; open the set "
        f"and write again, as to_manifest(conflict='retry') does"
    )
