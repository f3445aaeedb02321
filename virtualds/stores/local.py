"""Local files, read with ``pread``: any number of threads read without seeks and locks.

A memory map would save a copy, but the system kills a process whose mapped file shrinks.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.errors import ReadError, UnsupportedError, make_exists_error
from virtualds.options import get_options
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.store import (
    NAME_PART,
    ChangedError,
    ListedFile,
    Range,
    RequestLimits,
    Store,
    StoreError,
    make_temporary_name,
    version_of,
)
from virtualds.urls import is_in_folder, local_path

# ---------------------------------------------------------------------- temporary names
# A killed writer leaves its temporary file behind. The next writer of the same file removes it once
# it is old, since a newer one may belong to a running writer.


GRACE = 24 * 3600.0
"""The number of seconds without a change after which a temporary file counts as abandoned."""

_TEMPORARY = re.compile(rf"\..{{1,{NAME_PART}}}\.[0-9a-f]{{16}}")
"""Temporary names of files."""


def remove_leftovers(path: str) -> None:
    """Remove files that killed writers of a path have left beside it, if they are a day old."""
    # this is for tidiness: what cannot be examined or removed stays
    with suppress(OSError):
        for left in _list_leftovers(path, GRACE):
            with suppress(OSError):
                remove_paths([left])


class Leftover(NamedTuple):
    """A file or folder that a killed writer has left, and its size."""

    path: str
    nbytes: int


def list_leftovers(path: str, age: float) -> list[Leftover]:
    """Return the files that killed writers have left beside a file or folder, and below it.

    A temporary file counts as left after ``age`` seconds without a change.
    """
    found = _list_leftovers(path, age)
    for folder, _, names in os.walk(path):
        below = (os.path.join(folder, name) for name in filter(_TEMPORARY.fullmatch, names))
        found += [file for file in below if _is_older(file, age)]
    return [
        Leftover(one, sum(0 if stat.S_ISDIR(f.st_mode) else f.st_size for f in _walk_status(one)))
        for one in sorted(found)
    ]


def remove_paths(paths: Iterable[str]) -> None:
    """Remove files, and folders with their content; what no longer exists is not an error."""
    for path in paths:
        with suppress(FileNotFoundError):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)


def _list_leftovers(path: str, age: float) -> list[str]:
    """Return the files and folders that killed writers of a path have left beside it."""
    folder, name = os.path.split(path)
    ours = re.compile(rf"\.{re.escape(name[:NAME_PART])}\.[0-9a-f]{{16}}")
    beside = (os.path.join(folder, name) for name in os.listdir(folder) if ours.fullmatch(name))
    return [one for one in beside if _is_older(one, age)]


def _is_older(path: str, age: float) -> bool:
    """Return whether a file, or every file in a folder, was last written more than ``age`` ago.

    A file that cannot be examined counts as recent.
    """
    changes: list[float] = []
    with suppress(OSError):
        changes = [found.st_mtime for found in _walk_status(path)]
    return bool(changes) and max(changes) < time.time() - age


def _walk_status(path: str) -> Iterator[os.stat_result]:
    """Yield the status of a file, or of a folder and everything in it."""
    below = (os.path.join(f, name) for f, *names in os.walk(path) for name in chain(*names))
    for one in chain([path], below if not os.path.islink(path) else ()):
        with suppress(FileNotFoundError):
            yield os.lstat(one)


# ---------------------------------------------------------------------- locks
# The operating system manages the lock, so it ends with the process that holds it. The holder
# removes the file; a waiter whose file has lost its name waits for the new file.


NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)
"""Error numbers of filesystems without locks."""

if sys.platform == "win32":
    import msvcrt

    def _wait(handle: int) -> None:
        while True:
            try:
                msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
                return
            except PermissionError:
                time.sleep(0.01)

    def _release(handle: int, path: str) -> None:
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)
        os.close(handle)
        # fails while another process has it open, which will then remove it
        with suppress(OSError):
            os.unlink(path)

else:
    import fcntl

    def _wait(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX)

    def _release(handle: int, path: str) -> None:
        try:
            if _has_name(handle, path):
                # in a folder of several users we may not be allowed to; then it stays
                with suppress(OSError):
                    os.unlink(path)
            # a process forked in the meantime shares the lock: closing alone would not release it
            fcntl.flock(handle, fcntl.LOCK_UN)
        finally:
            os.close(handle)


@contextmanager
def hold_lock(path: str) -> Iterator[None]:
    """Hold the lock of a path in the block; wait while another thread or process holds it."""
    while (handle := _lock(path)) is None:
        pass
    try:
        yield
    finally:
        _release(handle, path)


def _lock(path: str) -> int | None:
    """Open and lock a file; return None if the file has lost its name in the meantime."""
    handle, holds = _open_lock(path), False
    try:
        _wait(handle)
        holds = _has_name(handle, path)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise UnsupportedError(
            f"{path}: this filesystem knows no file locks, which keep writers apart; use one that "
            f"does, or let one process write at a time"
        ) from error
    finally:
        if not holds:
            os.close(handle)
    return handle if holds else None


def _open_lock(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError as error:
        # another user holds it now, in a folder in which both may write
        try:
            return os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise error from None


def _has_name(handle: int, path: str) -> bool:
    """Return whether an open file still has its name, which its previous owner may have removed."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
    except OSError as error:
        # the error of network filesystems for a file that another machine removed
        if error.errno != errno.ESTALE:
            raise
        return False


# ---------------------------------------------------------------------- rows of arrays
# Reads bytes of a file straight into the rows of an array: ``preadv(2)`` with many buffers.
#
# A chunk without codecs usually fills a box of the result, whose rows are not contiguous in memory.
# With ``preadv`` the system copies the bytes to these rows, which saves a second copy: half the
# time for rows of 2 to 64 KiB. ``os.preadv`` needs a Python object for every row, and creating
# these takes longer than copying the rows. So this module calls the function of the C library:
# numpy builds its table of rows in a few operations.


Array = npt.NDArray[Any]

MAX_ROWS = 1024
"""Maximum number of rows of one call: ``IOV_MAX`` of Linux, macOS and the BSDs."""
MAX_BYTES = 2**30
"""The maximum size in bytes of one call: Linux reads at most 2 GiB, and macOS rejects more."""


def count_row_bytes(target: Array) -> int:
    """Return the size in bytes of a row: the longest contiguous part of the array."""
    return _count_rows(target)[1]


def read_rows(handle: int, offset: int, target: Array) -> int:
    """Read the elements of an array with any strides from a file, in C order.

    Return the number of bytes that were read: less than the array has if the file is too short.
    """
    # preadv does not check the memory that it writes to
    if not target.flags.writeable:
        raise ValueError("the array is read-only")
    if target.dtype.hasobject:
        raise ValueError(f"the array holds Python objects (dtype {target.dtype})")
    return _read_until_filled(
        target.nbytes, lambda n: _preadv(handle, _build_table(target, n), offset + n)
    )


def read_contiguous(handle: int, offset: int, target: memoryview) -> int:
    """Read bytes into contiguous memory, as `read_rows` does for arrays of many rows."""
    return _read_until_filled(
        target.nbytes, lambda n: os.preadv(handle, [target[n : n + MAX_BYTES]], offset + n)
    )


def _read_until_filled(nbytes: int, read: Callable[[int], int]) -> int:
    """Call ``read`` with the number of bytes done, until all are done or the file ends."""
    done = 0
    while done < nbytes and (count := read(done)):
        done += count
    return done


def _count_rows(target: Array) -> tuple[int, int]:
    """Return the number of axes before the axes of a row, and the size of a row in bytes."""
    apart, length = target.ndim, target.itemsize
    shape, strides = target.shape, target.strides
    while apart and (strides[apart - 1] == length or shape[apart - 1] == 1):
        apart -= 1
        length *= shape[apart]
    return apart, length


def _build_table(target: Array, done: int) -> Array:
    """Return the addresses and lengths of the rows of the next call, after ``done`` bytes.

    The table is an array of ``iovec`` (``<sys/uio.h>``).
    """
    apart, length = _count_rows(target)
    row, part = divmod(done, length)
    most = min(MAX_ROWS, MAX_BYTES // length or 1, target.nbytes // length - row)
    table = np.empty((most, 2), np.uintp)
    table[:] = target.__array_interface__["data"][0], length
    indexes = np.unravel_index(np.arange(row, row + most), target.shape[:apart] or (1,))
    for along, stride in zip(indexes, target.strides[:apart], strict=False):
        # if a stride is negative, the address wraps around, as in C
        table[:, 0] += (along * stride).astype(np.uintp)
    table[0] = table[0, 0] + part, min(length - part, MAX_BYTES)
    return table


def _preadv(handle: int, table: Array, offset: int) -> int:
    while True:
        count: int = _find_preadv()(
            handle, table.__array_interface__["data"][0], len(table), offset
        )
        if count >= 0:
            return count
        if (number := ctypes.get_errno()) != errno.EINTR:
            raise OSError(number, os.strerror(number))


@cache
def _find_preadv() -> Any:
    """Return ``preadv`` of the C library, with 64-bit offsets."""
    library = ctypes.CDLL(None, use_errno=True)
    # glibc for 32-bit processors has another name for the function with 64-bit offsets
    function = getattr(library, "preadv64", None) or library.preadv
    function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]
    function.restype = ctypes.c_ssize_t
    return function


# ---------------------------------------------------------------------- files
# Opens local files and checks their fingerprints; writes each file completely or not at all.


BINARY = getattr(os, "O_BINARY", 0)
"""The flag that opens files in binary mode on Windows."""

NONBLOCK = getattr(os, "O_NONBLOCK", 0)
"""The flag that opens a pipe without waiting for a writer."""

WITHIN = "within"
"""The name of the access option with the folders that symbolic links must not leave."""

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Arguments of Linux's renameat2(2)."""

ATTEMPTS = 20
"""The number of attempts to write into a folder that another process removes when it is empty."""


def write_temporary(path: str, data: bytes, put: Callable[[str], None]) -> None:
    """Write a file under a temporary name; then call ``put``, which renames it."""
    temporary = make_temporary_name(path)
    # the file is created inside the block, since an interrupt may come between any two steps
    try:
        # 0o666 is the mode of any new file; the umask of the process applies
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o666)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        put(temporary)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def write_in_new_folder(path: str, data: bytes, put: Callable[[str], None]) -> None:
    """Create a folder and write a file into it; try again if another process removes the folder."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_temporary(path, data, put)
            break
        except (FileNotFoundError, FileExistsError):
            # makedirs raises FileExistsError if the folder disappears while it runs
            if attempt == ATTEMPTS:
                raise
    sync_folder(path)


def link_new(temporary: str, path: str) -> None:
    """Give a temporary file its final name; raise an error if a file already has this name."""
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise ChangedError(f"{path}: was created by another writer") from error
    os.unlink(temporary)


def link_or_copy(path: str, target: str) -> None:
    """Create a hard link to a file, or a copy if the filesystem has no links."""
    try:
        os.link(path, target)
    except FileNotFoundError as error:
        raise ReadError(f"{path}: it is gone; open the set again") from error
    except OSError:
        with open(target, "xb") as handle, open(path, "rb") as source:
            shutil.copyfileobj(source, handle)
            handle.flush()
            os.fsync(handle.fileno())


def sync_folder(path: str) -> None:
    """Flush a folder to disk, if the filesystem supports it, so that new names are durable."""
    if os.name == "nt":
        return
    with suppress(OSError):
        handle = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_empty(folder: str, kept: str) -> None:
    """Remove a folder and its parents as long as they are empty, up to the folder ``kept``."""
    while folder != kept:
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            pass
        except OSError:
            # the folder is not empty, or this process is not allowed to remove it
            return
        folder = os.path.dirname(folder)


def move_folder(temporary: str, path: str) -> None:
    """Give a folder its final name, unless a file or a folder with files has this name."""
    try:
        os.rename(temporary, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise make_exists_error(path) from error


def exchange_paths(one: str, other: str) -> None:
    """Exchange the names of two folders: in one step on Linux, in several elsewhere."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is not None:
        names = (os.fsencode(one), os.fsencode(other))
        if renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0:
            return
    aside = f"{one}.old"
    os.rename(other, aside)
    os.rename(one, other)
    os.rename(aside, one)


@contextmanager
def open_checked(file: SourceFile) -> Iterator[int]:
    """Open a file, after checking that it has not changed since it was scanned."""
    try:
        handle = open_regular(path_of(file.url), file.options)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(error.strerror or str(error)) from error
    try:
        if get_options().check_sources:
            check_unchanged(file, os.fstat(handle))
        yield handle
    finally:
        os.close(handle)


def path_of(url: str) -> str:
    """Return the path of a url; raise an error if no file can have such a path."""
    path = local_path(url)
    with suppress(UnicodeEncodeError):
        if b"\0" not in os.fsencode(path):
            return path
    raise FileNotFoundError(errno.ENOENT, "no file can have such a name", path)


def open_regular(path: str, options: StorageOptions | None) -> int:
    """Open a regular file; raise an error for pipes and devices, which may never end."""
    handle = os.open(path, os.O_RDONLY | BINARY | NONBLOCK)
    try:
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        check_regular(found)
        if options and WITHIN in options:
            # links may have changed since paths were checked
            real, folders = os.path.realpath(path), options[WITHIN]
            inside = any(is_in_folder(real, folder) for folder in folders)
            if not inside or not os.path.samestat(found, os.stat(real)):
                raise StoreError(
                    f"the path leads to {real}, which lies under none of {list(folders)}"
                )
    except BaseException:
        os.close(handle)
        raise
    return handle


def check_regular(found: os.stat_result) -> None:
    """Raise an error for pipes, devices and sockets."""
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(
            "this is not a regular file, but a pipe, a device or a socket; give a file"
        )


OTHER_TIME_REMEDY = (
    "copy it again with its time (cp -p, rsync -t); or virtualds.sync scans it again; or, if its "
    "bytes are the same, virtualds.set_options(check_sources=False) reads it"
)


def check_unchanged(file: SourceFile, found: os.stat_result) -> None:
    """Raise an error for a file that has changed since it was scanned."""
    if file.size is not None and file.size != found.st_size:
        raise StoreError(f"the file has {found.st_size} bytes, it had {file.size} when scanned")
    if file.mtime is not None and file.mtime != found.st_mtime_ns:
        raise StoreError(
            "the file was modified after it was scanned, or copied without its time: "
            "same size, other time",
            remedy=OTHER_TIME_REMEDY,
        )


def read_range(handle: int, offset: int, length: int, item: int) -> bytes:
    """Read a range of bytes of an open file."""
    parts = []
    # one call returns at most 2 GiB on Linux
    while length:
        try:
            part = os.pread(handle, length, offset)
        except OSError as error:
            raise StoreError(error.strerror or str(error), item) from error
        if not part:
            raise too_short_error(length, item)
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def too_short_error(missing: int, item: int) -> StoreError:
    """Return the error for a file that ends before the end of a chunk."""
    return StoreError(f"the file ends {missing} bytes before the chunk does", item)


# ---------------------------------------------------------------------- the store


KNOWS_WHAT_IT_HOLDS = hasattr(os, "RWF_NOWAIT") and hasattr(os, "posix_fadvise")
"""Whether the system reports which pages are in its cache, and can read ahead."""

MIN_PREFETCH = 2**16
"""The number of bytes below which reading ahead saves no time."""


class LocalStore(Store):
    """The files of this machine."""

    # a call takes as long as copying a page or two
    reach = RequestLimits(gap=8 * 1024, run=2**20, at_once=0)

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        with open_checked(file) as handle:
            return [
                read_range(handle, offset, length, item)
                for item, (offset, length) in enumerate(ranges)
            ]

    def read_into(
        self, file: SourceFile, ranges: Sequence[Range], targets: Sequence[memoryview | Array]
    ) -> None:
        """Read every range into its target, as `get_ranges` does.

        A target is contiguous memory or an array of any strides, and has the size of the range.
        """
        with open_checked(file) as handle:
            for item, ((offset, _), target) in enumerate(zip(ranges, targets, strict=True)):
                try:
                    if isinstance(target, memoryview):
                        count = read_contiguous(handle, offset, target)
                    else:
                        count = read_rows(handle, offset, target)
                except OSError as error:
                    raise StoreError(error.strerror or str(error), item) from error
                if count < target.nbytes:
                    raise too_short_error(target.nbytes - count, item)

    def prefetch(self, file: SourceFile, ranges: Sequence[Range]) -> None:
        """Ask the system to read ahead, if ``posix_fadvise`` is available."""
        wanted = sum(length for _, length in ranges)
        if not KNOWS_WHAT_IT_HOLDS or wanted < MIN_PREFETCH:
            return
        begin = min(offset for offset, _ in ranges)
        span = max(offset + length for offset, length in ranges) - begin
        # a file that cannot be opened raises an error later, when it is read
        with suppress(OSError, StoreError):
            handle = open_regular(path_of(file.url), file.options)
            try:
                for offset, length in [(begin, span)] if span < 2 * wanted else ranges:
                    if not _is_cached(handle, offset):
                        os.posix_fadvise(handle, offset, length, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(handle)

    def check_unchanged(self, file: SourceFile) -> None:
        if get_options().check_sources:
            try:
                check_unchanged(file, os.stat(path_of(file.url)))
            except StoreError:
                raise
            except OSError as error:
                raise StoreError(error.strerror or str(error)) from error

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        found = os.stat(path_of(url))
        if not stat.S_ISDIR(found.st_mode):
            check_regular(found)
        return SourceFile(url, found.st_size, found.st_mtime_ns)

    def read_head(
        self, url: str, options: StorageOptions | None, length: int
    ) -> tuple[SourceFile, bytes]:
        file = self.describe(url, options)
        with os.fdopen(open_regular(path_of(url), options), "rb") as handle:
            return file, handle.read(length)

    def read_all(self, url: str, options: StorageOptions | None) -> bytes:
        with os.fdopen(open_regular(path_of(url), options), "rb") as handle:
            return handle.read()

    def write_all(
        self, url: str, data: bytes, options: StorageOptions | None, *, replace: bool
    ) -> None:
        """Write a file under a temporary name, and rename it in one step."""
        path = os.path.realpath(local_path(url))
        remove_leftovers(path)
        try:
            put = os.replace if replace else link_new
            write_temporary(path, data, lambda temporary: put(temporary, path))
        except ChangedError as error:
            raise make_exists_error(path) from error

    def write_folder(
        self,
        url: str,
        files: Iterable[tuple[str, bytes | None]],
        options: StorageOptions | None,
        *,
        replace: bool,
        expected: str | None = None,
    ) -> None:
        """Write a folder under a temporary name, and rename it in one step."""
        path = os.path.realpath(local_path(url))
        remove_leftovers(path)
        temporary, inside = make_temporary_name(path), ""
        try:
            os.mkdir(temporary)
            for inside, data in files:
                target = os.path.join(temporary, *inside.split("/"))
                os.makedirs(os.path.dirname(target), exist_ok=True)
                if data is None:
                    link_or_copy(os.path.join(path, *inside.split("/")), target)
                    continue
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

    def check_conditions(self, url: str, options: StorageOptions | None) -> None:
        """Raise an error for paths below a file; locks keep local writers apart."""
        above = os.path.dirname(local_path(url))
        while not os.path.exists(above):
            above = os.path.dirname(above)
        if not os.path.isdir(above):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), above)

    def write_version(
        self, url: str, data: bytes, options: StorageOptions | None, expected: str | None
    ) -> str:
        """Create a file and the folders above it, or replace a file under a lock beside it."""
        # other writers lock and replace the file that a link points to, so this one does, too
        path = os.path.realpath(local_path(url))
        if expected is None:
            write_in_new_folder(path, data, lambda temporary: link_new(temporary, path))
            return version_of(data)

        def replace(temporary: str) -> None:
            with hold_lock(lock_of(path)):
                if self.find_version(url, options) != expected:
                    raise ChangedError(f"{path}: was replaced or removed by another writer")
                os.replace(temporary, path)

        remove_leftovers(path)
        try:
            write_temporary(path, data, replace)
        except FileNotFoundError as error:
            raise ChangedError(f"{path}: was removed by another writer, with its folder") from error
        sync_folder(path)
        return version_of(data)

    def write_file(self, url: str, data: bytes, options: StorageOptions | None) -> None:
        path = local_path(url)
        write_in_new_folder(path, data, lambda temporary: os.replace(temporary, path))

    def list_files(self, url: str, options: StorageOptions | None) -> list[ListedFile]:
        def refuse(error: OSError) -> None:
            # a folder that has disappeared is empty; another that cannot be listed may not be
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise error

        root, beginning, found = local_path(url), url.rstrip("/"), list[ListedFile]()
        for folder, _, names in os.walk(root, onerror=refuse):
            below = os.path.relpath(folder, root).replace(os.sep, "/")
            for name in names:
                # the file may have disappeared since the folder was listed
                with suppress(FileNotFoundError):
                    # a lock must stay: its holder excludes others
                    if not (name.startswith(".") and name.endswith(".lock")):
                        inside = name if below == "." else f"{below}/{name}"
                        found.append(_describe_file(os.path.join(folder, name), beginning, inside))
        return sorted(found, key=lambda listed: listed.path)

    def remove(self, urls: Iterable[str], options: StorageOptions | None) -> None:
        paths = [os.path.abspath(local_path(url)) for url in urls]
        for path in paths:
            with suppress(FileNotFoundError):
                os.unlink(path)
        folders = {os.path.dirname(path) for path in paths}
        for folder in folders:
            remove_empty(folder, os.path.commonpath(folders))


def _describe_file(path: str, folder: str, inside: str) -> ListedFile:
    """Return the description of a file; a broken link has no fingerprint."""
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


def _is_cached(handle: int, offset: int) -> bool:
    """Return whether the system has a byte of a file in its cache."""
    try:
        return os.preadv(handle, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False
