"""`LocalStore`, the store of local files, which reads with ``pread``, without seeks and locks.

A memory map would save a copy, but accessing a mapped file that has shrunk kills the process.
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
from virtualds.source_file import SourceFile, StorageOptions, is_in_folder, local_path
from virtualds.stores.store import (
    TEMPORARY_NAME_LENGTH,
    ChangedError,
    ListedFile,
    Range,
    RequestLimits,
    Store,
    StoreError,
    hash_version,
    make_temporary_name,
)

# ---------------------------------------------------------------------- temporary names
# A killed writer leaves its temporary file behind. The next writer of the same path removes it if
# it is old; a recent file may belong to a running writer.


LEFTOVER_AGE = 24 * 3600.0
"""Seconds without a change after which a temporary file is considered left behind."""

_TEMPORARY = re.compile(rf"\..{{1,{TEMPORARY_NAME_LENGTH}}}\.[0-9a-f]{{16}}")
"""Matches names from `make_temporary_name`."""


def remove_leftovers(path: str) -> None:
    """Remove temporary files of killed writers of a path, if they are older than `LEFTOVER_AGE`."""
    # best effort: ignore files that cannot be accessed or removed
    with suppress(OSError):
        for leftover in _list_leftovers(path, LEFTOVER_AGE):
            with suppress(OSError):
                remove_paths([leftover])


class Leftover(NamedTuple):
    """A temporary file or folder of a killed writer, and its size in bytes."""

    path: str
    nbytes: int


def list_leftovers(path: str, age: float) -> list[Leftover]:
    """Return temporary files of killed writers, next to a file or folder and below it.

    A temporary file is considered left behind after ``age`` seconds without a change.
    """
    paths = _list_leftovers(path, age)
    for folder, _, names in os.walk(path):
        files = (os.path.join(folder, name) for name in filter(_TEMPORARY.fullmatch, names))
        paths += [file for file in files if _is_older(file, age)]
    return [
        Leftover(p, sum(0 if stat.S_ISDIR(f.st_mode) else f.st_size for f in _walk_status(p)))
        for p in sorted(paths)
    ]


def remove_paths(paths: Iterable[str]) -> None:
    """Remove files, and folders with their content, ignoring those that no longer exist."""
    for path in paths:
        with suppress(FileNotFoundError):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)


def _list_leftovers(path: str, age: float) -> list[str]:
    """Return the temporary files and folders of killed writers next to a path."""
    folder, name = os.path.split(path)
    temporary_name = re.compile(rf"\.{re.escape(name[:TEMPORARY_NAME_LENGTH])}\.[0-9a-f]{{16}}")
    names = filter(temporary_name.fullmatch, os.listdir(folder))
    paths = (os.path.join(folder, name) for name in names)
    return [path for path in paths if _is_older(path, age)]


def _is_older(path: str, age: float) -> bool:
    """Return whether a file, or all files in a folder, have not changed for ``age`` seconds.

    A file that cannot be accessed counts as recent.
    """
    changes: list[float] = []
    with suppress(OSError):
        changes = [status.st_mtime for status in _walk_status(path)]
    return bool(changes) and max(changes) < time.time() - age


def _walk_status(path: str) -> Iterator[os.stat_result]:
    """Yield the stat results of a file, or of a folder and everything in it."""
    below = (os.path.join(f, name) for f, *names in os.walk(path) for name in chain(*names))
    for name in chain([path], below if not os.path.islink(path) else ()):
        with suppress(FileNotFoundError):
            yield os.lstat(name)


# ---------------------------------------------------------------------- locks
# The operating system releases a lock when its process ends. The holder removes the lock file when
# it releases the lock, so whoever has waited for a removed file must lock the new one.


NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)
"""Error numbers of filesystems without file locks."""

if sys.platform == "win32":
    import msvcrt

    def _acquire(handle: int) -> None:
        while True:
            try:
                msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
                return
            except PermissionError:
                time.sleep(0.01)

    def _release(handle: int, path: str) -> None:
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)
        os.close(handle)
        # this fails while another process has the file open, which then removes it
        with suppress(OSError):
            os.unlink(path)

else:
    import fcntl

    def _acquire(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX)

    def _release(handle: int, path: str) -> None:
        try:
            if _is_at_path(handle, path):
                # in a shared folder, this user may not be allowed to remove it
                with suppress(OSError):
                    os.unlink(path)
            # closing would not release the lock if a process forked in the meantime shares it
            fcntl.flock(handle, fcntl.LOCK_UN)
        finally:
            os.close(handle)


@contextmanager
def hold_lock(path: str) -> Iterator[None]:
    """Hold the lock of a path during the block, after waiting for other threads and processes."""
    while (handle := _lock(path)) is None:
        pass
    try:
        yield
    finally:
        _release(handle, path)


def _lock(path: str) -> int | None:
    """Open and lock a lock file; return None if it was removed in the meantime."""
    handle, is_locked = _open_lock(path), False
    try:
        _acquire(handle)
        is_locked = _is_at_path(handle, path)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise UnsupportedError(
            f"{path}: this filesystem does not support file locks, which keep writers apart; "
            f"use one that does, or let one process write at a time"
        ) from error
    finally:
        if not is_locked:
            os.close(handle)
    return handle if is_locked else None


def _open_lock(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError as error:
        # another user holds the lock, in a shared folder
        try:
            return os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise error from None


def _is_at_path(handle: int, path: str) -> bool:
    """Return whether an open file is still at its path, from which it may have been removed."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
    except OSError as error:
        # network filesystems raise this for a file that was removed by another machine
        if error.errno != errno.ESTALE:
            raise
        return False


# ---------------------------------------------------------------------- rows of arrays
# Bytes are read directly into the rows of an array by ``preadv(2)`` with many buffers.
#
# An uncompressed chunk usually fills a region of the result, whose rows are not contiguous in
# memory. With ``preadv``, the system copies the bytes to these rows, which saves a second copy:
# half the time for rows of 2 to 64 KiB. ``os.preadv`` needs a Python object per row, which takes
# longer than the copy, so the function of the C library is called with a numpy array of buffers.


Array = npt.NDArray[Any]

MAX_ROWS = 1024
"""Maximum number of buffers per call: ``IOV_MAX`` on Linux, macOS and the BSDs."""
MAX_BYTES = 2**30
"""Maximum bytes per call: Linux reads at most 2 GiB, and macOS rejects more."""


def count_row_bytes(target: Array) -> int:
    """Return the size in bytes of a row: the longest contiguous part of an array."""
    return _find_row_axes(target)[1]


def read_into_array(handle: int, offset: int, target: Array) -> int:
    """Read bytes of a file into an array with any strides, in C order.

    Returns the number of bytes that were read, which is less than ``target.nbytes`` if the file is
    too short.
    """
    # unlike numpy, preadv does not check the memory that it writes to
    if not target.flags.writeable:
        raise ValueError("the array is read-only")
    if target.dtype.hasobject:
        raise ValueError(f"the array holds Python objects (dtype {target.dtype})")
    return _read_until_filled(
        target.nbytes, lambda n: _preadv(handle, _build_iovecs(target, n), offset + n)
    )


def read_contiguous(handle: int, offset: int, target: memoryview) -> int:
    """Read bytes of a file into contiguous memory; return the number of bytes that were read."""
    return _read_until_filled(
        target.nbytes, lambda n: os.preadv(handle, [target[n : n + MAX_BYTES]], offset + n)
    )


def _read_until_filled(nbytes: int, read: Callable[[int], int]) -> int:
    """Call ``read`` with the number of bytes so far, until ``nbytes`` or the end of the file."""
    done = 0
    while done < nbytes and (count := read(done)):
        done += count
    return done


def _find_row_axes(target: Array) -> tuple[int, int]:
    """Return the number of leading axes that index rows, and the size of a row in bytes."""
    outer_ndim, length = target.ndim, target.itemsize
    shape, strides = target.shape, target.strides
    while outer_ndim and (strides[outer_ndim - 1] == length or shape[outer_ndim - 1] == 1):
        outer_ndim -= 1
        length *= shape[outer_ndim]
    return outer_ndim, length


def _build_iovecs(target: Array, done: int) -> Array:
    """Return the buffers for the next call, after ``done`` bytes, as ``struct iovec``.

    The result is an array of addresses and lengths, one pair per row.
    """
    outer_ndim, length = _find_row_axes(target)
    row, skipped = divmod(done, length)
    row_count = min(MAX_ROWS, MAX_BYTES // length or 1, target.nbytes // length - row)
    buffers = np.empty((row_count, 2), np.uintp)
    buffers[:] = target.__array_interface__["data"][0], length
    indexes = np.unravel_index(np.arange(row, row + row_count), target.shape[:outer_ndim] or (1,))
    for index, stride in zip(indexes, target.strides[:outer_ndim], strict=False):
        # with a negative stride, the unsigned address wraps around, as in C
        buffers[:, 0] += (index * stride).astype(np.uintp)
    buffers[0] = buffers[0, 0] + skipped, min(length - skipped, MAX_BYTES)
    return buffers


def _preadv(handle: int, buffers: Array, offset: int) -> int:
    while True:
        count: int = _load_preadv()(
            handle, buffers.__array_interface__["data"][0], len(buffers), offset
        )
        if count >= 0:
            return count
        if (number := ctypes.get_errno()) != errno.EINTR:
            raise OSError(number, os.strerror(number))


@cache
def _load_preadv() -> Any:
    """Return the function ``preadv`` of the C library, with 64-bit offsets."""
    library = ctypes.CDLL(None, use_errno=True)
    # in glibc for 32-bit processors, preadv64 has 64-bit offsets
    function = getattr(library, "preadv64", None) or library.preadv
    function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]
    function.restype = ctypes.c_ssize_t
    return function


# ---------------------------------------------------------------------- files
# Opening files with a check of their fingerprint, and writing files atomically.


O_BINARY = getattr(os, "O_BINARY", 0)
"""Flag to open files in binary mode on Windows."""

O_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
"""Flag to open a pipe without waiting for a writer."""

FOLDERS_OPTION = "within"
"""Name of the access option with the folders that symbolic links must not leave."""

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Arguments of ``renameat2(2)`` of Linux."""

MAX_ATTEMPTS = 20
"""Maximum attempts to write into a folder that another process removes while it is empty."""


def write_temporary(path: str, data: bytes, rename: Callable[[str], None]) -> None:
    """Write a file under a temporary name, and call ``rename`` with that name."""
    temporary = make_temporary_name(path)
    # create the file within try, since an interrupt may occur at any point
    try:
        # 0o666 is the mode of any new file; the umask of the process applies
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_BINARY, 0o666)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        rename(temporary)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def write_in_new_folder(path: str, data: bytes, rename: Callable[[str], None]) -> None:
    """Create a folder and write a file into it, retrying if another process removes the folder."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_temporary(path, data, rename)
            break
        except (FileNotFoundError, FileExistsError):
            # makedirs raises FileExistsError if the folder disappears while it runs
            if attempt == MAX_ATTEMPTS:
                raise
    sync_folder(path)


def rename_without_replacing(temporary: str, path: str) -> None:
    """Rename a temporary file; raise `ChangedError` if a file of the final name exists."""
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise ChangedError(f"{path}: was created by another writer") from error
    os.unlink(temporary)


def link_or_copy(path: str, target: str) -> None:
    """Create a hard link to a file, or a copy if the filesystem has no hard links."""
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
    """Flush the folder of a path to disk, if possible, so that new names are durable."""
    if os.name == "nt":
        return
    with suppress(OSError):
        handle = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_empty(folder: str, top: str) -> None:
    """Remove a folder and its parents below the folder ``top``, as long as they are empty."""
    while folder != top:
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            pass
        except OSError:
            # the folder is not empty, or this process is not allowed to remove it
            return
        folder = os.path.dirname(folder)


def move_folder(temporary: str, path: str) -> None:
    """Rename a temporary folder; raise an error if a file or a non-empty folder has the name."""
    try:
        os.rename(temporary, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise make_exists_error(path) from error


def exchange_paths(first: str, second: str) -> None:
    """Exchange the names of two folders, atomically on Linux, in several steps elsewhere."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is not None:
        names = (os.fsencode(first), os.fsencode(second))
        if renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0:
            return
    temporary = f"{first}.old"
    os.rename(second, temporary)
    os.rename(first, second)
    os.rename(temporary, first)


@contextmanager
def open_checked(file: SourceFile) -> Iterator[int]:
    """Open a file, after checking that it has not changed since it was scanned."""
    try:
        handle = open_regular(to_local_path(file.url), file.options)
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


def to_local_path(url: str) -> str:
    """Return the local path of a url; raise `FileNotFoundError` for an impossible path."""
    path = local_path(url)
    with suppress(UnicodeEncodeError):
        if b"\0" not in os.fsencode(path):
            return path
    raise FileNotFoundError(errno.ENOENT, "no file can have such a name", path)


def open_regular(path: str, options: StorageOptions | None) -> int:
    """Open a regular file; raise an error for pipes and devices, which may never end."""
    handle = os.open(path, os.O_RDONLY | O_BINARY | O_NONBLOCK)
    try:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        check_regular(status)
        if options and FOLDERS_OPTION in options:
            # symbolic links may have changed since the url was checked
            real, folders = os.path.realpath(path), options[FOLDERS_OPTION]
            is_allowed = any(is_in_folder(real, folder) for folder in folders)
            if not is_allowed or not os.path.samestat(status, os.stat(real)):
                raise StoreError(
                    f"the path leads to {real}, which lies under none of {list(folders)}"
                )
    except BaseException:
        os.close(handle)
        raise
    return handle


def check_regular(status: os.stat_result) -> None:
    """Raise an error for pipes, devices and sockets."""
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(
            "this is not a regular file, but a pipe, a device or a socket; give a file"
        )


OTHER_TIME_REMEDY = (
    "copy it again with its time (cp -p, rsync -t); or virtualds.sync scans it again; or, if its "
    "bytes are the same, virtualds.set_options(check_sources=False) reads it"
)


def check_unchanged(file: SourceFile, status: os.stat_result) -> None:
    """Raise an error for a file that has changed since it was scanned."""
    if file.size is not None and file.size != status.st_size:
        raise StoreError(f"the file has {status.st_size} bytes, it had {file.size} when scanned")
    if file.mtime is not None and file.mtime != status.st_mtime_ns:
        raise StoreError(
            "the file was modified after it was scanned, or copied without its time: "
            "same size, other time",
            remedy=OTHER_TIME_REMEDY,
        )


def read_range(handle: int, offset: int, length: int, item: int) -> bytes:
    """Read a range of bytes of an open file."""
    parts = []
    # a call returns at most 2 GiB on Linux
    while length:
        try:
            part = os.pread(handle, length, offset)
        except OSError as error:
            raise StoreError(error.strerror or str(error), item) from error
        if not part:
            raise make_too_short_error(length, item)
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def make_too_short_error(missing: int, item: int) -> StoreError:
    """Return the error for a file that ends before the end of a chunk."""
    return StoreError(f"the file ends {missing} bytes before the chunk does", item)


# ---------------------------------------------------------------------- the store


CAN_PREFETCH = hasattr(os, "RWF_NOWAIT") and hasattr(os, "posix_fadvise")
"""Whether the system can prefetch, and report whether pages are cached."""

MIN_PREFETCH = 2**16
"""Minimum number of bytes for which prefetching saves time."""


class LocalStore(Store):
    """The files of this machine."""

    # a system call takes as long as copying one or two pages
    request_limits = RequestLimits(max_gap=8 * 1024, max_bytes=2**20, max_requests=0)

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        with open_checked(file) as handle:
            return [
                read_range(handle, offset, length, item)
                for item, (offset, length) in enumerate(ranges)
            ]

    def read_into(
        self, file: SourceFile, ranges: Sequence[Range], targets: Sequence[memoryview | Array]
    ) -> None:
        """Read each range into its target.

        A target is contiguous memory, or an array with any strides, of the size of the range.
        """
        with open_checked(file) as handle:
            for item, ((offset, _), target) in enumerate(zip(ranges, targets, strict=True)):
                try:
                    if isinstance(target, memoryview):
                        count = read_contiguous(handle, offset, target)
                    else:
                        count = read_into_array(handle, offset, target)
                except OSError as error:
                    raise StoreError(error.strerror or str(error), item) from error
                if count < target.nbytes:
                    raise make_too_short_error(target.nbytes - count, item)

    def prefetch(self, file: SourceFile, ranges: Sequence[Range]) -> None:
        """Ask the system to prefetch ranges, if ``posix_fadvise`` is available."""
        nbytes = sum(length for _, length in ranges)
        if not CAN_PREFETCH or nbytes < MIN_PREFETCH:
            return
        begin = min(offset for offset, _ in ranges)
        span = max(offset + length for offset, length in ranges) - begin
        # a file that cannot be opened will raise an error when it is read
        with suppress(OSError, StoreError):
            handle = open_regular(to_local_path(file.url), file.options)
            try:
                for offset, length in [(begin, span)] if span < 2 * nbytes else ranges:
                    if not _is_cached(handle, offset):
                        os.posix_fadvise(handle, offset, length, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(handle)

    def check_unchanged(self, file: SourceFile) -> None:
        if get_options().check_sources:
            try:
                check_unchanged(file, os.stat(to_local_path(file.url)))
            except StoreError:
                raise
            except OSError as error:
                raise StoreError(error.strerror or str(error)) from error

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        status = os.stat(to_local_path(url))
        if not stat.S_ISDIR(status.st_mode):
            check_regular(status)
        return SourceFile(url, status.st_size, status.st_mtime_ns)

    def read_head(
        self, url: str, options: StorageOptions | None, length: int
    ) -> tuple[SourceFile, bytes]:
        file = self.describe(url, options)
        with os.fdopen(open_regular(to_local_path(url), options), "rb") as handle:
            return file, handle.read(length)

    def read_all(self, url: str, options: StorageOptions | None) -> bytes:
        with os.fdopen(open_regular(to_local_path(url), options), "rb") as handle:
            return handle.read()

    def write_all(
        self, url: str, data: bytes, options: StorageOptions | None, *, replace: bool
    ) -> None:
        """Write a file under a temporary name, and rename it."""
        path = os.path.realpath(local_path(url))
        remove_leftovers(path)
        try:
            rename = os.replace if replace else rename_without_replacing
            write_temporary(path, data, lambda temporary: rename(temporary, path))
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
        """Write a folder under a temporary name, and rename it."""
        path = os.path.realpath(local_path(url))
        remove_leftovers(path)
        temporary, name = make_temporary_name(path), ""
        try:
            os.mkdir(temporary)
            for name, data in files:
                target = os.path.join(temporary, *name.split("/"))
                os.makedirs(os.path.dirname(target), exist_ok=True)
                if data is None:
                    link_or_copy(os.path.join(path, *name.split("/")), target)
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
                self._exchange_version(temporary, path, f"{url.rstrip('/')}/{name}", expected)
        finally:
            # this is the new folder if writing failed, otherwise the old one
            shutil.rmtree(temporary, ignore_errors=True)

    def _exchange_version(self, temporary: str, path: str, marker: str, expected: str) -> None:
        """Exchange two folders under the lock of the marker, if that has the expected version."""
        try:
            # the next writer that acquires this lock finds the new marker
            with hold_lock(get_lock_path(local_path(marker))):
                if self.find_version(marker, None) != expected:
                    raise ChangedError(f"{path}: was replaced or removed by another writer")
                exchange_paths(temporary, path)
        except FileNotFoundError as error:
            raise ChangedError(f"{path}: was removed by another writer") from error

    def check_conditions(self, url: str, options: StorageOptions | None) -> None:
        """Raise an error for a path below a file; local writes are always safe, by locks."""
        parent = os.path.dirname(local_path(url))
        while not os.path.exists(parent):
            parent = os.path.dirname(parent)
        if not os.path.isdir(parent):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), parent)

    def write_version(
        self, url: str, data: bytes, options: StorageOptions | None, expected: str | None
    ) -> str:
        """Create a file and its parent folders, or replace a file under a lock."""
        # like other writers, lock and replace the target of a symbolic link
        path = os.path.realpath(local_path(url))
        if expected is None:
            write_in_new_folder(
                path, data, lambda temporary: rename_without_replacing(temporary, path)
            )
            return hash_version(data)

        def replace(temporary: str) -> None:
            with hold_lock(get_lock_path(path)):
                if self.find_version(url, options) != expected:
                    raise ChangedError(f"{path}: was replaced or removed by another writer")
                os.replace(temporary, path)

        remove_leftovers(path)
        try:
            write_temporary(path, data, replace)
        except FileNotFoundError as error:
            raise ChangedError(f"{path}: was removed by another writer, with its folder") from error
        sync_folder(path)
        return hash_version(data)

    def write_file(self, url: str, data: bytes, options: StorageOptions | None) -> None:
        path = local_path(url)
        write_in_new_folder(path, data, lambda temporary: os.replace(temporary, path))

    def list_files(self, url: str, options: StorageOptions | None) -> list[ListedFile]:
        def check_error(error: OSError) -> None:
            # a folder that was removed counts as empty, but one that cannot be listed does not
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise error

        root, base_url, files = local_path(url), url.rstrip("/"), list[ListedFile]()
        for folder, _, names in os.walk(root, onerror=check_error):
            folder_path = os.path.relpath(folder, root).replace(os.sep, "/")
            for name in names:
                # the file may have been removed since the folder was listed
                with suppress(FileNotFoundError):
                    # skip lock files, which must not be removed
                    if not (name.startswith(".") and name.endswith(".lock")):
                        relative = name if folder_path == "." else f"{folder_path}/{name}"
                        files.append(_describe_file(os.path.join(folder, name), base_url, relative))
        return sorted(files, key=lambda listed: listed.path)

    def remove(self, urls: Iterable[str], options: StorageOptions | None) -> None:
        paths = [os.path.abspath(local_path(url)) for url in urls]
        for path in paths:
            with suppress(FileNotFoundError):
                os.unlink(path)
        folders = {os.path.dirname(path) for path in paths}
        # computed once, since there may be ten thousand folders
        common = os.path.commonpath(folders) if folders else ""
        for folder in folders:
            remove_empty(folder, common)


def _describe_file(path: str, base_url: str, relative: str) -> ListedFile:
    """Return the entry of a file in a listing; a broken symbolic link has no fingerprint."""
    status = os.lstat(path)
    modified, url = status.st_mtime, f"{base_url}/{relative}"
    if stat.S_ISLNK(status.st_mode):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return ListedFile(relative, SourceFile(url), modified)
    return ListedFile(relative, SourceFile(url, status.st_size, status.st_mtime_ns), modified)


def get_lock_path(path: str) -> str:
    """Return the path of the lock file of a file or folder, next to it."""
    folder, name = os.path.split(path)
    # a file name has at most 255 bytes
    if len(os.fsencode(name)) > 240:
        name = hash_version(os.fsencode(name))
    return os.path.join(folder, f".{name}.lock")


def _is_cached(handle: int, offset: int) -> bool:
    """Return whether the byte of a file at an offset is in the page cache of the system."""
    try:
        return os.preadv(handle, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False
