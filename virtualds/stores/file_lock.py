"""A file lock between the threads and processes of a machine.

The operating system keeps the lock, so it ends with the process that holds it. The holder removes
the file; a waiter whose file has lost its name waits for the new file.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from virtualds.errors import UnsupportedError

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)
"""Error numbers of filesystems without locks."""

if sys.platform == "win32":
    import msvcrt
    import time

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
        # fails while another process has it open, which then removes it
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
            # a process forked in the meantime shares the lock: closing alone would not end it
            fcntl.flock(handle, fcntl.LOCK_UN)
        finally:
            os.close(handle)


@contextmanager
def hold_lock(path: str) -> Iterator[None]:
    """Hold the lock of this name; wait while another thread or process holds it."""
    handle = _acquire(path)
    try:
        yield
    finally:
        _release(handle, path)


def _acquire(path: str) -> int:
    while True:
        handle = _open(path)
        try:
            _wait_for(handle, path)
            if _has_name(handle, path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError as error:
        # another user holds it now, in a folder that both may write
        try:
            return os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise error from None


def _wait_for(handle: int, path: str) -> None:
    try:
        _wait(handle)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise UnsupportedError(
            f"{path}: this filesystem knows no file locks, which keep writers apart; use one that "
            f"does, or let one process write at a time"
        ) from error


def _has_name(handle: int, path: str) -> bool:
    """Say whether the open file still has this name: its last holder may have removed it."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
    except OSError as error:
        # the error of network filesystems for a file that another machine removed
        if error.errno != errno.ESTALE:
            raise
        return False
