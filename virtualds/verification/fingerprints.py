"""Whether the files are there, and still those that were scanned: one request for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from virtualds.datasets.registry import COMPLAINTS
from virtualds.errors import VirtualdsError
from virtualds.reading.prefetch import Ahead, Way
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import store_for
from virtualds.stores.archive_index import is_zip
from virtualds.stores.responses import opaque
from virtualds.urls import scheme_of
from virtualds.verification.report import Problem

Place = tuple[str, StorageOptions | None]
"""Where a file is, and how it is asked for."""
TOLD_WITH_BYTES = {"file", "http", "https", "s3", "s3a"}
"""Schemes of which the first bytes of a file come with its size and etag.

fsspec would ask HTTP servers twice for what is not there, or where they refuse to answer HEAD; and
a local file tells its size to those who may not read it.
"""
HEAD = 4
"""Bytes that tell a zip archive."""
State = tuple[SourceFile, bytes | None] | Exception
"""A file as it is now with its first bytes, if they came along; or why nobody knows."""


@dataclass
class States:
    """What has become of the files.

    ``sizes`` are those of files that are there, if their store tells; ``sound`` are files that
    nothing speaks against; ``archives`` are those of them that may be zip archives;
    ``fingerprinted`` counts those whose time or etag could be compared.
    """

    sizes: dict[SourceFile, int] = field(default_factory=dict)
    sound: set[SourceFile] = field(default_factory=set)
    archives: set[SourceFile] = field(default_factory=set)
    places: int = 0
    fingerprinted: int = 0
    problems: list[Problem] = field(default_factory=list)


def states_of(files: Iterable[SourceFile]) -> States:
    """Ask for every file once, as many of a far host at a time as it may be asked for."""
    noted: dict[Place, list[SourceFile]] = {}
    for file in files:
        noted.setdefault((file.url, file.options), []).append(file)
    found = States(places=len(noted))
    for place, now in _asked(noted):
        compared = [_take_in(found, file, now) for file in noted[place]]
        found.fingerprinted += all(compared)
    found.problems.sort()
    return found


def _asked(places: Iterable[Place]) -> Iterator[tuple[Place, State]]:
    ahead = Ahead(places, lambda place: Way.to(place[0], 0), _state_of)
    try:
        for place, state in ahead:
            yield place, _state_of(place) if state is None else state
    finally:
        ahead.close()


def _state_of(place: Place) -> State:
    """Return a file as it is now."""
    url, options = place
    store = store_for(url)
    try:
        if scheme_of(url) in TOLD_WITH_BYTES:
            return store.head(url, options, HEAD)
        return store.describe(url, options), None
    except (VirtualdsError, *COMPLAINTS) as error:
        return error


def _take_in(found: States, file: SourceFile, state: State) -> bool:
    """Note what has become of a file; return whether its version could be compared."""
    if isinstance(state, Exception):
        kind = "missing" if isinstance(state, FileNotFoundError) else "unreachable"
        text = getattr(state, "strerror", None) or str(state) or type(state).__name__
        found.problems.append(Problem(file.url, "", None, kind, text))
        return False
    now, head = state
    if now.size is not None:
        found.sizes[file] = now.size
    change = _change(file, now)
    if change is None:
        found.sound.add(file)
        if head is None or is_zip(head):
            found.archives.add(file)
    else:
        found.problems.append(Problem(file.url, "", None, *change))
    times, etags = (file.mtime, now.mtime), (opaque(file.etag), opaque(now.etag))
    return None not in times or "" not in etags


def _change(noted: SourceFile, now: SourceFile) -> tuple[str, str] | None:
    """Return the gravest difference between a file as it was scanned and as it is now."""
    if None not in (noted.size, now.size) and noted.size != now.size:
        return "size", f"the file has {now.size} bytes, it had {noted.size} when scanned"
    was, etag = opaque(noted.etag), opaque(now.etag)
    if was and etag and was != etag:
        return "etag", f"its etag is {now.etag}, it was {noted.etag} when scanned"
    if noted.mtime is not None and now.mtime is not None and noted.mtime != now.mtime:
        return "modified", f"it was modified {_later(now.mtime - noted.mtime)}"
    return None


def _later(nanoseconds: int) -> str:
    side = "after" if nanoseconds > 0 else "before"
    return f"{abs(nanoseconds) / 1e9:,.3f} s {side} the time noted when it was scanned"
