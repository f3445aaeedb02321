"""Several writers of one folder whose files have fixed names, by conditional writes alone.

The marker, the file that readers open first, is what writers agree on. Whoever wants to write puts
a name of its own into it, which keeps everybody out who did so before: the fence. Then it writes
the other files, and at last the marker with what it is to be. Decision 15 says why that is safe.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from virtualds.errors import ConflictError, ReadError, exists_already
from virtualds.source_file import StorageOptions
from virtualds.stores import find_store
from virtualds.stores.store import ChangedError


class WriteLease:
    """What one writer holds of a folder.

    No two writers may ever write the same bytes: each puts its own name into every file.

    Parameters
    ----------
    root : str
        Url of the folder.
    marker : str
        Name of the file that readers open first.
    options : StorageOptions, optional
    version : str or None
        The version of the marker that this writer has read, None if there was no marker.
    files : iterable of str
        Paths of all other files that may be there and that it is going to write.
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
        self._store.demand_conditions(root, options)
        # looked up before the fence stands, which then verifies all of them at once
        self._found = {path: self._store.version(f"{root}/{path}", self._options) for path in files}

    def replace_marker(self, data: bytes) -> None:
        """Replace the marker: first to put up the fence, last to commit.

        Raises
        ------
        ConflictError
            Another writer was faster.
        UnsupportedError
            The store knows no conditional writes.
        """
        try:
            self._version = self._store.write_version(
                self._marker, data, self._options, self._version
            )
        except ChangedError as error:
            raise outrun_error(self._root) from error

    def put(self, path: str, data: bytes) -> None:
        """Write one of the files.

        Raises
        ------
        ConflictError
            Another writer was faster.
        """
        url = f"{self._root}/{path}"
        while True:
            try:
                self._store.write_version(url, data, self._options, self._found.get(path))
                return
            except ChangedError as error:
                # first what is there now, then whether it is still for this writer to replace
                self._found[path] = self._store.version(url, self._options)
                if not self.stands():
                    raise outrun_error(self._root) from error

    def stands(self) -> bool:
        """Say whether no other writer came later."""
        return self._store.version(self._marker, self._options) == self._version


CLAIM = b'{"virtualds-is-creating-this":'
"""What the marker of a folder begins with that is being created: for readers there is no set."""


def is_claim(marker: bytes) -> bool:
    """Say whether a marker is that of a folder that somebody is creating, or has given up."""
    return marker.startswith(CLAIM)


def create_folder(
    root: str, marker: str, files: Iterable[tuple[str, bytes]], options: StorageOptions | None
) -> None:
    """Create a folder whose files have fixed names, the marker last, in any store.

    The fence is put up in a marker that no reader takes for one. Whoever comes later may take over
    what a killed writer has begun, and keeps out one that is only slow.

    Raises
    ------
    FileExistsError
        There is something of this name.
    ConflictError
        Another writer was faster.
    UnsupportedError
        The store knows no conditional writes.
    """
    store = find_store(root)
    store.demand_conditions(root, options)
    # first the files, then the marker: who writes files has written a marker before
    found = store.list_files(root, options)
    try:
        there, version = store.read_version(f"{root}/{marker}", options)
    except FileNotFoundError:
        there, version = b"", None
    if found and not is_claim(there):
        raise exists_already(root)
    fence = WriteLease(root, marker, options, version, ())
    fence.replace_marker(CLAIM + f'"{secrets.token_hex(16)}"}}'.encode())
    for path, data in files:
        if path == marker:
            fence.replace_marker(data)
        else:
            fence.put(path, data)


@contextmanager
def explain_vanished_files(stands: Callable[[], bool], url: str) -> Iterator[None]:
    """Say that another writer was faster where what is read of a folder is no longer there.

    ``stands`` says whether it still should be.
    """
    try:
        yield
    except ReadError as error:
        if stands():
            raise
        raise outrun_error(url) from error


def outrun_error(url: str) -> ConflictError:
    """Return the error that says that another writer was faster."""
    return ConflictError(
        f"{url}: another writer was faster, and nothing has been written; open the set "
        f"and write again, as to_manifest(conflict='retry') does"
    )
