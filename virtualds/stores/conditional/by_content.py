"""Versions of files in any filesystem: hashes of the bytes. Only memory keeps writers apart."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from virtualds.errors import UnsupportedError
from virtualds.options import get_options
from virtualds.stores.retry import list_store_errors
from virtualds.stores.store import ChangedError, version_of
from virtualds.stores.temporary import make_temporary_name
from virtualds.urls import KINDS

WITHOUT_FOLDERS = {"memory", *chain.from_iterable(KINDS.values())}
"""Filesystems without folders, whose files show once they are whole."""


class ByContent:
    """Versions in any filesystem: a hash of the bytes is the version."""

    needs = "cat_file"
    """The method that a filesystem must have for this class."""

    def read(self, filesystem: Any, path: str) -> tuple[bytes, str]:
        """Return the bytes of a file and their version."""
        data = bytes(filesystem.cat_file(path))
        return data, version_of(data)

    def find_version(self, filesystem: Any, path: str) -> str:
        """Return the version of a file."""
        return self.read(filesystem, path)[1]

    def find_unsafe_reason(self, filesystem: Any, path: str) -> str:
        """Return why conditional writes beside a path are unsafe, an empty text if they are not."""
        spoken = "/".join(sorted(list_protocols(filesystem)))
        return (
            f"conditional writes are known for local disk, memory, S3, Google Cloud and Azure, "
            f"not for {spoken}"
        )

    def demand_conditions(self, filesystem: Any, path: str) -> None:
        """Refuse a filesystem on which writers would not notice each other.

        Raises
        ------
        UnsupportedError
            Conditional writes are unsafe, and the setting ``only_writer`` is off.
        """
        reason = self.find_unsafe_reason(filesystem, path)
        if reason and not get_options().only_writer:
            raise UnsupportedError(
                f"{filesystem.unstrip_protocol(path)}: {reason}; write to a store whose "
                f"conditional writes keep several writers apart, or, if this is the only writer, "
                f"set virtualds.set_options(only_writer=True)"
            )

    def write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        """Write a file if its version is the expected one, and return the new version."""
        self.demand_conditions(filesystem, path)
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
        """Remove files; a file that is gone already is no error."""
        for path in paths:
            with suppress(FileNotFoundError):
                filesystem.rm_file(path)
        filesystem.invalidate_cache()


class InMemory(ByContent):
    """Versions of files in the memory of this process."""

    lock = threading.Lock()

    def find_unsafe_reason(self, filesystem: Any, path: str) -> str:
        """Return an empty text: a lock keeps writers apart."""
        return ""

    def write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        """Write a file under the lock."""
        with self.lock:
            return self.check_and_write(filesystem, path, data, expected)


def put(filesystem: Any, path: str, data: bytes) -> None:
    """Write a file; make the folders above it, in filesystems that have folders."""
    if _has_folders(filesystem):
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    filesystem.pipe_file(path, data)


def create(filesystem: Any, path: str, data: bytes) -> None:
    """Write a file that shows whole or not at all.

    If writing fails, what has the name already stays: another writer may have made it.
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
    """Rename a file, and replace the file that has the new name."""
    # of a name that is taken, some filesystems say so, and some do nothing
    with suppress(*list_store_errors()):
        filesystem.mv(path, new)
    if filesystem.exists(path):
        with suppress(FileNotFoundError):
            filesystem.rm_file(new)
        filesystem.mv(path, new)


def _has_folders(filesystem: Any) -> bool:
    return not list_protocols(filesystem) & WITHOUT_FOLDERS


def list_protocols(filesystem: Any) -> set[str]:
    """Return the protocols that a filesystem implements."""
    protocol = filesystem.protocol
    return {protocol} if isinstance(protocol, str) else set(protocol)
