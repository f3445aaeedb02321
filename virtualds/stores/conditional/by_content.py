"""Versions of files in any filesystem: hashes of the bytes. Only memory keeps writers apart."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from virtualds.errors import UnsupportedError
from virtualds.options import get_options
from virtualds.stores.store import ChangedError, version_of

WITHOUT_FOLDERS = {"memory", "s3", "gs", "gcs", "abfs", "abfss", "az"}
"""Filesystems that have files only: a writer makes no folders there."""


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
    if not list_protocols(filesystem) & WITHOUT_FOLDERS:
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    filesystem.pipe_file(path, data)


def list_protocols(filesystem: Any) -> set[str]:
    """Return the protocols that a filesystem implements."""
    protocol = filesystem.protocol
    return {protocol} if isinstance(protocol, str) else set(protocol)
