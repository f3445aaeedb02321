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
from contextlib import suppress

GRACE = 24 * 3600.0
"""Seconds without a change after which a temporary file is one that was left."""

_KEPT = 40
"""Characters of the name of a file that its temporary name begins with."""


def make_temporary_name(path: str) -> str:
    """Return an unused name beside a path."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name[:_KEPT]}.{secrets.token_hex(8)}")


def remove_left_over(path: str) -> None:
    """Remove what killed writers of a path have left beside it, a day after they were killed."""
    folder, name = os.path.split(path)
    ours = re.compile(rf"\.{re.escape(name[:_KEPT])}\.[0-9a-f]{{16}}")
    # this is for tidiness: what cannot be seen or removed stays
    with suppress(OSError):
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if ours.fullmatch(entry.name)]
        for entry in found:
            with suppress(OSError):
                if _find_last_change(entry) < time.time() - GRACE:
                    _remove(entry)


def _find_last_change(entry: os.DirEntry[str]) -> float:
    """Return when a file, or any that lies in a folder, was last written to."""
    changed = entry.stat(follow_symlinks=False).st_mtime
    if entry.is_dir(follow_symlinks=False):
        for folder, folders, files in os.walk(entry.path):
            below = (os.path.join(folder, name) for name in (*folders, *files))
            changed = max(changed, *(os.lstat(path).st_mtime for path in below), 0.0)
    return changed


def _remove(entry: os.DirEntry[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path, ignore_errors=True)
    else:
        os.unlink(entry.path)
