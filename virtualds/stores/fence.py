"""Write leases: several writers of one folder with fixed file names, by conditional writes.

Writers agree on the marker, the file that readers open first. A writer puts its own name into the
marker, which locks out all earlier writers: the fence. Then it writes the other files, and finally
the final marker. Decision 15 explains why that is safe, and why one of many writers always
finishes.
"""

from __future__ import annotations

import random
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from virtualds.errors import ConflictError, ReadError, make_exists_error
from virtualds.source_file import StorageOptions
from virtualds.stores import find_store
from virtualds.stores.store import ChangedError

WAIT_SECONDS = 1.0
"""The number of seconds for which other writers respect a fence, whose writer may be dead."""
MAX_WAIT = 300.0
"""The maximum number of seconds for which a fence is respected: several writers in a row may have
been killed."""
PAUSE = 0.02
"""Maximum time in seconds between two checks of a fence."""


class ReadMarker(NamedTuple):
    """A marker, its version, and the number of fences that the next fence displaces in a row."""

    data: bytes
    version: str
    displaced: int


def read_marker(
    url: str, options: StorageOptions | None, count_displaced: Callable[[bytes], int | None]
) -> ReadMarker:
    """Read a marker; if it is a fence, wait until its writer has had time to finish.

    Writers that displaced each other at once would never finish. A displaced writer may be slow:
    each fence is respected for twice as long as the one that it displaced, so finally one writer
    has the time. ``count_displaced`` returns how many fences in a row a marker displaced, or None
    for no fence.
    """
    store = find_store(url)
    while True:
        data, version = store.read_version(url, options)
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

    No two writers may write the same bytes: each puts its own name into every file. ``version`` is
    the version of the marker that this writer has read, or None if there was no marker; ``files``
    are the paths of all other files that may exist and that it will write.
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
        # looked up before the fence is written, which then verifies all of them at once
        self._found = {
            path: self._store.find_version(f"{root}/{path}", self._options) for path in files
        }

    def replace_marker(self, data: bytes) -> None:
        """Replace the marker: first with the fence, finally with the final marker.

        Raise `ConflictError` if another writer came first.
        """
        try:
            self._version = self._store.write_version(
                self._marker, data, self._options, self._version
            )
        except ChangedError as error:
            raise make_conflict_error(self._root) from error

    def put(self, path: str, data: bytes) -> None:
        """Write one of the files; raise `ConflictError` if another writer came first."""
        url = f"{self._root}/{path}"
        while True:
            try:
                self._store.write_version(url, data, self._options, self._found.get(path))
                return
            except ChangedError as error:
                # in this order: the version is ours to replace only if the fence is still in place
                self._found[path] = self._store.find_version(url, self._options)
                if not self.is_current():
                    raise make_conflict_error(self._root) from error

    def is_current(self) -> bool:
        """Return whether the marker is still this fence, so that no other writer came later."""
        return self._store.find_version(self._marker, self._options) == self._version


CLAIM = b'{"virtualds-is-creating-this":'
"""First bytes of the marker of an unfinished folder, which readers do not accept as a set."""


def is_claim(marker: bytes) -> bool:
    """Return whether a marker belongs to a folder whose creation is unfinished."""
    return marker.startswith(CLAIM)


def create_folder(
    root: str, marker: str, files: Iterable[tuple[str, bytes]], options: StorageOptions | None
) -> None:
    """Create a folder of files with fixed names, the marker last, in any store.

    Readers do not accept the fence as a marker. A later writer may take over from a killed one, and
    locks out one that is only slow. A folder that exists raises `FileExistsError`, and a writer
    that came first `ConflictError`.
    """

    def count_displaced(data: bytes) -> int | None:
        count = re.search(rb'"displaced":(\d{1,9})}', data)
        return None if not is_claim(data) else int(count[1]) if count else 0

    store = find_store(root)
    store.check_conditions(root, options)
    # first the files, then the marker: a writer writes its marker before its files
    listed = store.list_files(root, options)
    found = None
    with suppress(FileNotFoundError):
        found = read_marker(f"{root}/{marker}", options, count_displaced)
    if (found and not is_claim(found.data)) or (listed and not found):
        raise make_exists_error(root)
    fence = WriteLease(root, marker, options, found.version if found else None, ())
    displaced = found.displaced if found else 0
    fence.replace_marker(CLAIM + f'"{secrets.token_hex(16)}","displaced":{displaced}}}'.encode())
    for path, data in files:
        if path == marker:
            fence.replace_marker(data)
        else:
            fence.put(path, data)


@contextmanager
def explain_vanished_files(stands: Callable[[], bool], url: str) -> Iterator[None]:
    """Raise a `ConflictError` for a missing file if another writer has replaced the folder.

    ``stands`` returns whether the folder is still the one that was opened.
    """
    try:
        yield
    except ReadError as error:
        if stands():
            raise
        raise make_conflict_error(url) from error


def make_conflict_error(url: str) -> ConflictError:
    """Return the error for a writer that came too late."""
    return ConflictError(
        f"{url}: another writer was faster, and nothing has been written; open the set "
        f"and write again, as to_manifest(conflict='retry') does"
    )
