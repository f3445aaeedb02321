"""Local files, read with ``pread``: any number of threads read without seeks and locks.

A memory map would save a copy, but the system kills a process whose mapped file shrinks.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy.typing as npt

from virtualds.options import get_options
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.file_lock import hold_lock
from virtualds.stores.local_files import (
    check_regular,
    check_unchanged,
    exchange_paths,
    link_new,
    move_folder,
    open_checked,
    open_regular,
    path_of,
    put_in_place,
    raise_unless_gone,
    read_range,
    remove_empty,
    sync_folder,
    too_short_error,
    write_beside,
    write_in_new_folder,
)
from virtualds.stores.preadv import read_rows, read_stretch
from virtualds.stores.store import (
    ChangedError,
    ListedFile,
    Range,
    RequestLimits,
    StoreError,
    version_of,
)
from virtualds.stores.temporary import make_temporary_name, remove_left_over
from virtualds.urls import local_path

KNOWS_WHAT_IT_HOLDS = hasattr(os, "RWF_NOWAIT") and hasattr(os, "posix_fadvise")
"""Whether the system tells which pages are in its cache, and can be asked to read ahead."""

LEAST_PREFETCH = 2**16
"""Bytes: reading ahead saves no time for less than these."""

Array = npt.NDArray[Any]


class LocalStore:
    """The files of this machine."""

    # a call takes as long as copying a page or two
    reach = RequestLimits(gap=8 * 1024, run=2**20, at_once=0)

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        """Return the bytes of every range, if the file is still the one that was scanned."""
        with open_checked(file) as handle:
            return [
                read_range(handle, offset, length, item)
                for item, (offset, length) in enumerate(ranges)
            ]

    def read_into(
        self, file: SourceFile, ranges: Sequence[Range], targets: Sequence[memoryview | Array]
    ) -> None:
        """Read every range, as `get_ranges` does, into its target.

        A target is a stretch of memory or an array of any strides, and has the size of the range.
        """
        with open_checked(file) as handle:
            for item, ((offset, _), target) in enumerate(zip(ranges, targets, strict=True)):
                try:
                    if isinstance(target, memoryview):
                        count = read_stretch(handle, offset, target)
                    else:
                        count = read_rows(handle, offset, target)
                except OSError as error:
                    raise StoreError(error.strerror or str(error), item) from error
                if count < target.nbytes:
                    raise too_short_error(target.nbytes - count, item)

    def prefetch(self, file: SourceFile, ranges: Sequence[Range]) -> None:
        """Ask the system to read ahead, where it has ``posix_fadvise``."""
        wanted = sum(length for _, length in ranges)
        if not KNOWS_WHAT_IT_HOLDS or wanted < LEAST_PREFETCH:
            return
        begin = min(offset for offset, _ in ranges)
        span = max(offset + length for offset, length in ranges) - begin
        # a file that cannot be opened raises an error later, when it is read
        with suppress(OSError, StoreError):
            handle = open_regular(path_of(file.url), file.options)
            try:
                for offset, length in [(begin, span)] if span < 2 * wanted else ranges:
                    if not _is_at_hand(handle, offset):
                        os.posix_fadvise(handle, offset, length, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(handle)

    def check_unchanged(self, file: SourceFile) -> None:
        """Refuse a file whose size or modification time has changed."""
        if get_options().check_sources:
            try:
                check_unchanged(file, os.stat(path_of(file.url)))
            except StoreError:
                raise
            except OSError as error:
                raise StoreError(error.strerror or str(error)) from error

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        """Return the file with its size and modification time."""
        found = os.stat(path_of(url))
        if not stat.S_ISDIR(found.st_mode):
            check_regular(found)
        return SourceFile(url, found.st_size, found.st_mtime_ns)

    def read_head(
        self, url: str, options: StorageOptions | None, length: int
    ) -> tuple[SourceFile, bytes]:
        """Return the file with its size and modification time, and its first bytes."""
        file = self.describe(url, options)
        with os.fdopen(open_regular(path_of(url), options), "rb") as handle:
            return file, handle.read(length)

    def read_all(self, url: str, options: StorageOptions | None) -> bytes:
        """Return a whole file."""
        with os.fdopen(open_regular(path_of(url), options), "rb") as handle:
            return handle.read()

    def write_all(
        self, url: str, data: bytes, options: StorageOptions | None, *, replace: bool
    ) -> None:
        """Write a file under a temporary name, and rename it in one step."""
        path = os.path.realpath(local_path(url))
        remove_left_over(path)
        write_beside(path, data, lambda temporary: put_in_place(temporary, path, replace))

    def write_folder(
        self,
        url: str,
        files: Iterable[tuple[str, bytes]],
        options: StorageOptions | None,
        *,
        replace: bool,
        expected: str | None = None,
    ) -> None:
        """Write a folder under a temporary name, and rename it in one step."""
        path = os.path.realpath(local_path(url))
        remove_left_over(path)
        temporary, inside = make_temporary_name(path), ""
        try:
            os.mkdir(temporary)
            for inside, data in files:
                target = os.path.join(temporary, *inside.split("/"))
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with open(target, "xb") as handle:
                    handle.write(data)
                    handle.flush()
                    os.fsync(handle.fileno())
            if not replace:
                move_folder(temporary, path)
            elif expected is None:
                exchange_paths(temporary, path)
            else:
                self._exchange_version(temporary, path, f"{url.rstrip('/')}/{inside}", expected)
        finally:
            # this is the new folder if writing failed, else the old one
            shutil.rmtree(temporary, ignore_errors=True)

    def _exchange_version(self, temporary: str, path: str, marker: str, expected: str) -> None:
        """Exchange two folders, under the lock of the marker in the old folder."""
        try:
            # another writer that gets this lock later finds the new folder and its marker
            with hold_lock(lock_of(local_path(marker))):
                if self.find_version(marker, None) != expected:
                    raise ChangedError(f"{path}: was replaced or removed by another writer")
                exchange_paths(temporary, path)
        except FileNotFoundError as error:
            raise ChangedError(f"{path}: was removed by another writer") from error

    def demand_conditions(self, url: str, options: StorageOptions | None) -> None:
        """Refuse paths below a file; locks keep local writers apart."""
        above = os.path.dirname(local_path(url))
        while not os.path.exists(above):
            above = os.path.dirname(above)
        if not os.path.isdir(above):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), above)

    def read_version(self, url: str, options: StorageOptions | None) -> tuple[bytes, str]:
        """Return a whole file, and its version, which is a hash of its bytes."""
        data = self.read_all(url, options)
        return data, version_of(data)

    def find_version(self, url: str, options: StorageOptions | None) -> str | None:
        """Return the hash of the current bytes of a file, None if there is no such file."""
        try:
            return self.read_version(url, options)[1]
        except FileNotFoundError:
            return None

    def write_version(
        self, url: str, data: bytes, options: StorageOptions | None, expected: str | None
    ) -> str:
        """Create a file and the folders above it, or replace a file under a lock beside it."""
        # other writers lock and replace the file that a link leads to, so this one does, too
        path = os.path.realpath(local_path(url))
        if expected is None:
            write_in_new_folder(path, data, lambda temporary: link_new(temporary, path))
            return version_of(data)

        def replace(temporary: str) -> None:
            with hold_lock(lock_of(path)):
                if self.find_version(url, options) != expected:
                    raise ChangedError(f"{path}: was replaced or removed by another writer")
                os.replace(temporary, path)

        remove_left_over(path)
        try:
            write_beside(path, data, replace)
        except FileNotFoundError as error:
            raise ChangedError(f"{path}: was removed by another writer, with its folder") from error
        sync_folder(path)
        return version_of(data)

    def write_file(self, url: str, data: bytes, options: StorageOptions | None) -> None:
        """Create the folders above a file, and write the file under a temporary name first."""
        path = local_path(url)
        write_in_new_folder(path, data, lambda temporary: os.replace(temporary, path))

    def list_files(self, url: str, options: StorageOptions | None) -> list[ListedFile]:
        """Return the files below a folder, with their sizes and modification times."""
        root, beginning, found = local_path(url), url.rstrip("/"), list[ListedFile]()
        for folder, _, names in os.walk(root, onerror=raise_unless_gone):
            below = os.path.relpath(folder, root).replace(os.sep, "/")
            for name in names:
                # the file may be gone since the folder was listed
                with suppress(FileNotFoundError):
                    if not _is_lock(name):
                        inside = name if below == "." else f"{below}/{name}"
                        found.append(_list_file(os.path.join(folder, name), beginning, inside))
        return sorted(found, key=lambda listed: listed.path)

    def remove(self, urls: Iterable[str], options: StorageOptions | None) -> None:
        """Remove files, and folders that become empty below the one that holds all the files."""
        paths = [os.path.abspath(local_path(url)) for url in urls]
        for path in paths:
            with suppress(FileNotFoundError):
                os.unlink(path)
        folders = {os.path.dirname(path) for path in paths}
        for folder in folders:
            remove_empty(folder, os.path.commonpath(folders))


def _list_file(path: str, folder: str, inside: str) -> ListedFile:
    """Return the description of a file; a link that leads nowhere has no fingerprint."""
    found = os.lstat(path)
    modified, url = found.st_mtime, f"{folder}/{inside}"
    if stat.S_ISLNK(found.st_mode):
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return ListedFile(inside, SourceFile(url), modified)
    return ListedFile(inside, SourceFile(url, found.st_size, found.st_mtime_ns), modified)


def lock_of(path: str) -> str:
    """Return the name of the lock beside a file or folder."""
    folder, name = os.path.split(path)
    # a name has at most 255 bytes
    if len(os.fsencode(name)) > 240:
        name = version_of(os.fsencode(name))
    return os.path.join(folder, f".{name}.lock")


def _is_at_hand(handle: int, offset: int) -> bool:
    """Say whether the system holds a byte of a file in memory."""
    try:
        return os.preadv(handle, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False


def _is_lock(name: str) -> bool:
    """Say whether a name may be that of a lock, which must stay: its holder excludes others."""
    return name.startswith(".") and name.endswith(".lock")
