"""Opens local files and checks their fingerprints; writes each file as a whole or not at all."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from virtualds.errors import exists_already
from virtualds.options import get_options
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.store import ChangedError, StoreError
from virtualds.stores.temporary import make_temporary_name
from virtualds.urls import lies_under, local_path

BINARY = getattr(os, "O_BINARY", 0)
"""The flag that opens files in binary mode on Windows."""

NONBLOCK = getattr(os, "O_NONBLOCK", 0)
"""The flag that opens a pipe without waiting for a writer."""

WITHIN = "within"
"""The name of the access option that lists folders which symbolic links must not leave."""

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Arguments of Linux's renameat2(2)."""

ATTEMPTS = 20
"""How often to try to write into a folder that another process removes when it is empty."""


def write_beside(path: str, data: bytes, put: Callable[[str], None]) -> None:
    """Write a file under a temporary name, which ``put`` then replaces by the final one."""
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
    """Make a folder and write a file into it; try again if another process removes the folder."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_beside(path, data, put)
            break
        except (FileNotFoundError, FileExistsError):
            # makedirs raises FileExistsError if the folder goes away while makedirs looks at it
            if attempt == ATTEMPTS:
                raise
    sync_folder(path)


def link_new(temporary: str, path: str) -> None:
    """Give a temporary file its final name, on condition that no file has this name."""
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise ChangedError(f"{path}: was created by another writer") from error
    os.unlink(temporary)


def sync_folder(path: str) -> None:
    """Make the name of a file as durable as its bytes, if the filesystem can do this."""
    if os.name == "nt":
        return
    with suppress(OSError):
        handle = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def raise_unless_gone(error: OSError) -> None:
    """Raise the error of a folder that cannot be listed, unless the folder is gone."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def remove_empty(folder: str, kept: str) -> None:
    """Remove a folder and those above it, as long as they are empty, up to one that is kept."""
    while folder != kept:
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            pass
        except OSError:
            # the folder is not empty, or this process may not remove it
            return
        folder = os.path.dirname(folder)


def move_folder(temporary: str, path: str) -> None:
    """Give a folder its final name, unless a file or a folder with files has this name."""
    try:
        os.rename(temporary, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise exists_already(path) from error


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


def put_in_place(temporary: str, path: str, replace: bool) -> None:
    """Give a file its final name; without ``replace``, only if no other file has this name."""
    if replace:
        os.replace(temporary, path)
        return
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise exists_already(path) from error
    os.unlink(temporary)


@contextmanager
def open_checked(file: SourceFile) -> Iterator[int]:
    """Open a file, and check that it is still the one that was scanned."""
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
    """Return the path of a url; refuse names that no file can have, as broken sets hold."""
    path = local_path(url)
    with suppress(UnicodeEncodeError):
        if b"\0" not in os.fsencode(path):
            return path
    raise FileNotFoundError(errno.ENOENT, "no file can have such a name", path)


def open_regular(path: str, options: StorageOptions | None) -> int:
    """Open a regular file; refuse pipes and devices, since reading them may never end."""
    handle = os.open(path, os.O_RDONLY | BINARY | NONBLOCK)
    try:
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        check_regular(found)
        if options and WITHIN in options:
            _check_within(path, found, options[WITHIN])
    except BaseException:
        os.close(handle)
        raise
    return handle


def check_regular(found: os.stat_result) -> None:
    """Refuse pipes, devices and sockets."""
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(
            "this is not a regular file, but a pipe, a device or a socket; give a file"
        )


def _check_within(path: str, found: os.stat_result, folders: Any) -> None:
    """Refuse an open file outside the folders: links may have changed since the check of paths."""
    real = os.path.realpath(path)
    inside = any(lies_under(real, folder) for folder in folders)
    if not inside or not os.path.samestat(found, os.stat(real)):
        raise StoreError(f"the path leads to {real}, which lies under none of {list(folders)}")


OTHER_TIME_REMEDY = (
    "copy it again with its time (cp -p, rsync -t); or virtualds.sync scans it again; or, if its "
    "bytes are the same, virtualds.set_options(check_sources=False) reads it"
)


def check_unchanged(file: SourceFile, found: os.stat_result) -> None:
    """Refuse a file that has changed since it was scanned."""
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
    """Return the error for a file that ends before a chunk does."""
    return StoreError(f"the file ends {missing} bytes before the chunk does", item)
