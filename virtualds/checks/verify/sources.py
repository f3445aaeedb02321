"""Checking source files: which files references point to, and what has changed in them.

One walk goes through all references block by block, so that memory does not grow with their number.
Only the files are remembered, each once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.checks.verify.findings import Problem
from virtualds.chunks.columns import INLINE, MISSING, compact
from virtualds.chunks.manifest import BLOCK_CHUNKS, ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.datasets.registry import PARSER_ERRORS
from virtualds.errors import VirtualdsError
from virtualds.progress import ProgressOption, count_progress
from virtualds.reading.threads import HostSlot, Prefetcher
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.archive import is_zip
from virtualds.stores.requests import normalise_etag
from virtualds.urls import KINDS, kind_of

Arrays = Mapping[str, ManifestArray]


ChunkId = tuple[int, ...]


def split_blocks(
    manifest: ChunkManifest,
    first: ChunkId | None = None,
    axes: Sequence[int] | None = None,
    most: int = BLOCK_CHUNKS,
) -> Iterator[tuple[ChunkId, ChunkManifest]]:
    """Yield a manifest in pieces of at most ``most`` chunks, each with the id of its first chunk.

    A lazy manifest is cut along its slowest axis, so that every record is read once. Pieces are not
    loaded. A piece of which nothing exists may have any number of chunks.
    """
    if first is None or axes is None:
        first, axes = (0,) * len(manifest.shape), _order_axes(manifest)
    if manifest.size <= most or not axes or _is_empty(manifest):
        if manifest.size:
            yield first, manifest
        return
    axis, *rest = axes
    count = manifest.shape[axis]
    step = max(1, most * count // manifest.size)
    for start in range(0, count, step):
        part = manifest.take(axis, slice(start, min(start + step, count)))
        begin = (*first[:axis], first[axis] + start, *first[axis + 1 :])
        yield from split_blocks(part, begin, rest, most)


def _is_empty(manifest: ChunkManifest) -> bool:
    """Say whether it is known that no chunk exists."""
    known = manifest.find_existing()
    return known is not None and not known.size


def _order_axes(manifest: ChunkManifest) -> list[int]:
    axes = list(range(len(manifest.shape)))
    if manifest.rows is None:
        return axes
    strides = manifest.rows.strides
    return sorted(axes, key=lambda axis: -abs(strides[axis]))


@dataclass
class ReferenceSurvey:
    """Counts of all references, and the end of the last chunk in each file (``ends``)."""

    ends: dict[SourceFile, int] = field(default_factory=dict)
    references: int = 0
    missing: int = 0
    inline: int = 0
    problems: list[Problem] = field(default_factory=list)


def survey_references(arrays: Arrays) -> ReferenceSurvey:
    """Go through all references.

    References that cannot be read, or that no file can satisfy, are problems.
    """
    found, table = ReferenceSurvey(), _TableEnds()
    for name, array in arrays.items():
        for fragment in array.fragments:
            for first, part in split_blocks(fragment.manifest):
                try:
                    if _is_empty(part):
                        found.missing += part.size
                        continue
                    loaded = part.loaded()
                except (VirtualdsError, OSError) as error:
                    found.problems.append(_unread_problem(name, first, part, error))
                    continue
                _count_part(found, table, loaded)
                found.problems += _find_impossible(name, first, loaded)
    table.empty_into(found.ends)
    return found


def find_beyond(arrays: Arrays, sizes: Mapping[SourceFile, int]) -> Iterator[Problem]:
    """Yield a problem for every variable and file whose chunks reach past the end of the file.

    Parameters
    ----------
    arrays : mapping
    sizes : mapping of SourceFile to int
        The lengths of files with such chunks.
    """
    for name, array in arrays.items():
        for fragment in array.fragments:
            for first, part in split_blocks(fragment.manifest):
                try:
                    if _is_empty(part):
                        continue
                    yield from _find_beyond_in(name, first, part.loaded(), sizes)
                except (VirtualdsError, OSError):
                    continue  # the survey has reported it


def _find_beyond_in(
    name: str, first: ChunkId, part: ChunkManifest, sizes: Mapping[SourceFile, int]
) -> Iterator[Problem]:
    unbounded = np.iinfo(np.int64).max
    limits = np.array([*(sizes.get(file, unbounded) for file in part.files), unbounded, unbounded])
    # negative file codes index from the end
    outside = part.offset + part.length > limits[part.file]
    for number in np.unique(part.file[outside]).tolist():
        places = np.argwhere(outside & (part.file == number))
        at = tuple(places[0].tolist())
        row, more = part.lookup(at), len(places) - 1
        yield Problem(
            part.files[number].url,
            name,
            _shift_id(first, at),
            "range",
            f"bytes {row.offset} to {row.offset + row.length} lie beyond the end of the file at "
            f"{limits[number]}" + (f", and so do those of {more:,} more chunks" if more else ""),
        )


def _unread_problem(name: str, first: ChunkId, part: ChunkManifest, error: Exception) -> Problem:
    last = tuple(a + n - 1 for a, n in zip(first, part.shape, strict=True))
    notes = "; ".join(getattr(error, "__notes__", ()))
    text = f"{error}" + (f" ({notes})" if notes else "")
    return Problem(
        "", name, first, "references", f"those of chunks {first} to {last} are not checked: {text}"
    )


def _find_impossible(name: str, first: ChunkId, part: ChunkManifest) -> list[Problem]:
    """Return problems for empty or negative references: one row for each file."""
    columns = (compact(getattr(part, n)) for n in ("file", "offset", "length"))
    file, offset, length = np.broadcast_arrays(*columns)
    bad = (file >= 0) & ((length <= 0) | (offset < 0))
    found = []
    for number in np.unique(file[bad]).tolist() if bad.any() else ():
        places = np.argwhere(bad & (file == number))
        at = tuple(places[0].tolist())
        more = f", and {len(places) - 1:,} more" if len(places) > 1 else ""
        text = f"the reference is to {length[at]} bytes from byte {offset[at]}{more}"
        url = part.files[number].url
        found.append(Problem(url, name, _shift_id(first, at), "range", text))
    return found


def _shift_id(first: ChunkId, at: ChunkId) -> ChunkId:
    return tuple(a + b for a, b in zip(first, at, strict=True))


def _count_part(found: ReferenceSurvey, table: _TableEnds, part: ChunkManifest) -> None:
    file = compact(part.file)
    shown = part.size // file.size
    # MISSING and INLINE, the codes of chunks in no file, are -1 and -2
    counts = np.bincount(file.ravel() - INLINE, minlength=len(part.files) - INLINE)
    found.inline += int(counts[0]) * shown
    found.missing += int(counts[MISSING - INLINE]) * shown
    found.references += int(counts[-INLINE:].sum()) * shown
    table.include(part)


class _TableEnds:
    """Ends by file; the variables of one archive mostly share one table of files."""

    def __init__(self) -> None:
        self._files: tuple[SourceFile, ...] = ()
        self._ends: Ints = np.empty(0, np.int64)
        self._all: dict[SourceFile, int] = {}

    def include(self, part: ChunkManifest) -> None:
        """Add the ends of the chunks of a part."""
        if part.files is not self._files and part.files != self._files:
            self._flush()
            self._files = part.files
            self._ends = np.full(len(part.files), -1, np.int64)
        columns = (compact(getattr(part, n)) for n in ("file", "offset", "length"))
        file, offset, length = np.broadcast_arrays(*columns)
        there = file >= 0
        np.maximum.at(self._ends, file[there], (offset + length)[there])

    def _flush(self) -> None:
        for number in np.flatnonzero(self._ends >= 0).tolist():
            file, end = self._files[number], int(self._ends[number])
            self._all[file] = max(self._all.get(file, -1), end)

    def empty_into(self, ends: dict[SourceFile, int]) -> None:
        """Copy the found ends into ``ends``."""
        self._flush()
        ends.update(self._all)


FileLocation = tuple[str, StorageOptions | None]
"""The url of a file, and its access options."""


HEAD_KINDS = {"file", "http", "https", *KINDS}
"""Kinds of stores that give the first bytes of a file together with its size and etag.

fsspec would send two requests to HTTP servers for a missing file, or where they refuse HEAD; and a
local file shows its size even to users who may not read it.
"""


HEAD_BYTES = 4
"""Bytes that identify a zip archive."""


FileState = tuple[SourceFile, bytes | None] | Exception
"""A file with its present size and version, and its first bytes if known; or the error."""


@dataclass
class FileStates:
    """The present state of the files.

    ``sizes`` holds the known sizes of existing files; ``sound`` holds files without a problem;
    ``archives`` holds the sound files that may be zip archives; ``fingerprinted`` counts the files
    whose time or etag was compared.
    """

    sizes: dict[SourceFile, int] = field(default_factory=dict)
    sound: set[SourceFile] = field(default_factory=set)
    archives: set[SourceFile] = field(default_factory=set)
    places: int = 0
    fingerprinted: int = 0
    problems: list[Problem] = field(default_factory=list)


def fetch_states(files: Iterable[SourceFile], progress: ProgressOption = None) -> FileStates:
    """Fetch the state of every file once, with the usual number of requests to a remote host."""
    noted: dict[FileLocation, list[SourceFile]] = {}
    for file in files:
        noted.setdefault((file.url, file.options), []).append(file)
    found = FileStates(places=len(noted))
    with count_progress(progress, "checking", len(noted)) as advance:
        for place, now in _ask_files(noted):
            compared = [_note_state(found, file, now) for file in noted[place]]
            found.fingerprinted += all(compared)
            advance(1)
    found.problems.sort()
    return found


def _ask_files(places: Iterable[FileLocation]) -> Iterator[tuple[FileLocation, FileState]]:
    ahead = Prefetcher(places, lambda place: HostSlot.to(place[0], 0), _fetch_state)
    try:
        for place, state in ahead:
            yield place, _fetch_state(place) if state is None else state
    finally:
        ahead.close()


def _fetch_state(place: FileLocation) -> FileState:
    """Return the present state of a file."""
    url, options = place
    store = find_store(url)
    try:
        if kind_of(url) in HEAD_KINDS:
            return store.read_head(url, options, HEAD_BYTES)
        return store.describe(url, options), None
    except (VirtualdsError, *PARSER_ERRORS) as error:
        return error


def _note_state(found: FileStates, file: SourceFile, state: FileState) -> bool:
    """Record the state of a file; return whether its version could be compared."""
    if isinstance(state, Exception):
        kind = "missing" if isinstance(state, FileNotFoundError) else "unreachable"
        text = getattr(state, "strerror", None) or str(state) or type(state).__name__
        found.problems.append(Problem(file.url, "", None, kind, text))
        return False
    now, head = state
    if now.size is not None:
        found.sizes[file] = now.size
    change = _find_change(file, now)
    if change is None:
        found.sound.add(file)
        if head is None or is_zip(head):
            found.archives.add(file)
    else:
        found.problems.append(Problem(file.url, "", None, *change))
    times, etags = (file.mtime, now.mtime), (normalise_etag(file.etag), normalise_etag(now.etag))
    return None not in times or "" not in etags


def _find_change(noted: SourceFile, now: SourceFile) -> tuple[str, str] | None:
    """Return the gravest difference between the file at the scan and the file now."""
    if None not in (noted.size, now.size) and noted.size != now.size:
        return "size", f"the file has {now.size} bytes, it had {noted.size} when scanned"
    was, etag = normalise_etag(noted.etag), normalise_etag(now.etag)
    if was and etag and was != etag:
        return "etag", f"its etag is {now.etag}, it was {noted.etag} when scanned"
    if noted.mtime is not None and now.mtime is not None and noted.mtime != now.mtime:
        return "modified", f"it was modified {_format_delay(now.mtime - noted.mtime)}"
    return None


def _format_delay(nanoseconds: int) -> str:
    side = "after" if nanoseconds > 0 else "before"
    return f"{abs(nanoseconds) / 1e9:,.3f} s {side} the time noted when it was scanned"
