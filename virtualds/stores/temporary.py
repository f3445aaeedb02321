"""Temporary names of files and folders that are being written, and removal of old ones.

A writer that is killed leaves its temporary file. The next writer of the same file removes it once
it is old, since a younger one may belong to a live writer.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

GRACE = 24 * 3600.0
"""Seconds without a change after which a temporary file is one that was left."""

_KEPT = 40
"""Characters of the name of a file that its temporary name begins with."""
_TEMPORARY = re.compile(rf"\..{{1,{_KEPT}}}\.[0-9a-f]{{16}}")
"""Temporary names of files."""


def make_temporary_name(path: str) -> str:
    """Return an unused name beside a path."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name[:_KEPT]}.{secrets.token_hex(8)}")


def remove_left_over(path: str) -> None:
    """Remove what killed writers of a path have left beside it, a day after they were killed."""
    # this is for tidiness: what cannot be seen or removed stays
    with suppress(OSError):
        for entry in _list_beside(path, GRACE):
            with suppress(OSError):
                _remove(entry.path)


class LeftOver(NamedTuple):
    """A file or folder of a killed writer, and the bytes in it."""

    path: str
    nbytes: int


def list_left_over(path: str, age: float) -> list[LeftOver]:
    """Return what killed writers of a file or folder have left beside it, and files below it.

    Parameters
    ----------
    path : str
    age : float
        Seconds without a change after which a file belongs to a killed writer.
    """
    found = [entry.path for entry in _list_beside(path, age)]
    for folder, _, names in os.walk(path):
        for name in filter(_TEMPORARY.fullmatch, names):
            file = os.path.join(folder, name)
            with suppress(FileNotFoundError):
                if os.lstat(file).st_mtime < time.time() - age:
                    found.append(file)
    return [LeftOver(one, _measure(one)) for one in sorted(found) if os.path.lexists(one)]


def remove_paths(paths: Iterable[str]) -> None:
    """Remove files, and folders with all that they hold; what is gone already is no error."""
    for path in paths:
        with suppress(FileNotFoundError):
            _remove(path)


def _measure(path: str) -> int:
    """Return the bytes in a file or folder, of which others may remove parts meanwhile."""
    below = [os.path.join(folder, n) for folder, _, names in os.walk(path) for n in names]
    nbytes = 0
    for file in below if os.path.isdir(path) else [path]:
        with suppress(FileNotFoundError):
            nbytes += os.lstat(file).st_size
    return nbytes


def _list_beside(path: str, age: float) -> list[os.DirEntry[str]]:
    """Return the files and folders that killed writers of a path have left beside it."""
    folder, name = os.path.split(path)
    ours = re.compile(rf"\.{re.escape(name[:_KEPT])}\.[0-9a-f]{{16}}")
    with os.scandir(folder) as entries:
        found = [entry for entry in entries if ours.fullmatch(entry.name)]
    return [entry for entry in found if _is_older(entry, age)]


def _is_older(entry: os.DirEntry[str], age: float) -> bool:
    # it may be gone since the folder was listed
    with suppress(OSError):
        return _find_last_change(entry) < time.time() - age
    return False


def _find_last_change(entry: os.DirEntry[str]) -> float:
    """Return when a file, or any that lies in a folder, was last written to."""
    changed = entry.stat(follow_symlinks=False).st_mtime
    if entry.is_dir(follow_symlinks=False):
        for folder, folders, files in os.walk(entry.path):
            below = (os.path.join(folder, name) for name in (*folders, *files))
            changed = max(changed, *(os.lstat(path).st_mtime for path in below), 0.0)
    return changed


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        os.unlink(path)
