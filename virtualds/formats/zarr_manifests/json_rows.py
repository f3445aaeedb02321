"""Entries of a JSON manifest, checked one by one and collected as columns."""

from __future__ import annotations

import base64
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from virtualds.chunks.columns import COLUMNS, INLINE, MISSING
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.tables import PlacedReferences
from virtualds.errors import FormatError, ReadError
from virtualds.formats.referenced_files import UNKNOWN
from virtualds.source_file import PRESENT, SourceFile

Fingerprint = tuple[int | None, int | None, str | None]
"""Size in bytes, modification time in nanoseconds since 1970, and etag of a file."""
NO_ROWS: tuple[tuple[int, ...], ...] = ((),) * (1 + len(COLUMNS))
"""The columns of entries, when there are none."""
HEXADECIMAL = frozenset("0123456789abcdefABCDEF")


class SetFiles(Protocol):
    """The set that a manifest belongs to."""

    root: str

    def get_file(self, path: str, fingerprint: Any = UNKNOWN) -> SourceFile:
        """Return the file of a path in the set."""

    def get_size(self, file: SourceFile) -> int:
        """Return the length of a file that is a whole chunk."""

    def read_document(self, path: str) -> Any:
        """Return a JSON file of the set."""

    def get_cached(self, name: Hashable, read: Callable[[], Any]) -> Any:
        """Return what ``read`` makes, and keep it for a while."""


class FragmentEntries(NamedTuple):
    """The entries of one fragment.

    ``rows`` are the chunks with entries. ``measured`` are entries without a length, by number of
    chunk; ``prefixes`` are pairs of the beginning of a key and the path that replaces it;
    ``sources`` are fingerprints by path.
    """

    rows: PlacedReferences
    measured: Mapping[int, Mapping[str, Any]]
    prefixes: list[tuple[str, str]]
    sources: Mapping[str, Any]


class RowBuilder:
    """Builds the rows of a manifest from entries.

    Parameters
    ----------
    store : SetFiles
    sources : mapping
        Fingerprints of files by their paths.
    pipelines : int
        Number of pipelines.
    """

    def __init__(self, store: SetFiles, sources: Mapping[str, Any], pipelines: int) -> None:
        self._pipelines = pipelines
        self._store = store
        self._sources = sources
        self._numbers: dict[str, int] = {}
        self._files: list[SourceFile] = []
        self._inline: list[bytes] = []
        self._rows: list[tuple[int, ...]] = []
        self._measured: dict[int, Mapping[str, Any]] = {}
        self.prefixes: list[tuple[str, str]] = []

    def add(self, number: int, entry: Any) -> None:
        """Add the entry of a chunk."""
        if not isinstance(entry, Mapping):
            raise TypeError("it is not an object")
        decoding = _demand_natural(entry.get("pipeline", 0)), _parse_checksum(entry.get("checksum"))
        if decoding[0] >= self._pipelines:
            raise ValueError(f"there are {self._pipelines} pipelines")
        if "data" in entry:
            self._inline.append(base64.b64decode(entry["data"], validate=True))
            place = (INLINE, len(self._inline) - 1, len(self._inline[-1]))
        elif "path" not in entry:
            place, decoding = (MISSING, 0, 0), (decoding[0], 0)
        elif entry.get("length") is None:
            demand_text(entry["path"]), _demand_natural(entry.get("offset", 0))
            self._measured[number] = entry
            return
        else:
            offset, length = (
                _demand_natural(entry.get("offset", 0)),
                _demand_natural(entry["length"]),
            )
            place = (self._number_file(entry["path"]), offset, length)
        self._rows.append((number, *place, *decoding))

    def get_size(self, entry: Mapping[str, Any]) -> int | None:
        """Return the length of the file of an entry, None if it may be missing and is."""
        file = self._store.get_file(entry["path"], self._sources.get(entry["path"], UNKNOWN))
        try:
            return self._store.get_size(file)
        except ReadError as error:
            if "may_be_absent" in entry and isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def get_length(self, entry: Mapping[str, Any]) -> int | None:
        """Return the length of the rest of a file, None if the file may be missing and is.

        Raises
        ------
        FormatError
            The entry begins past the end of the file.
        """
        if (size := self.get_size(entry)) is None:
            return None
        length: int = size - entry.get("offset", 0)
        if length <= 0:
            raise FormatError(
                f"{entry['path']}: it has {size} bytes, and a chunk is said to begin at "
                f"{size - length}; scan it anew"
            )
        return length

    def _number_file(self, path: Any) -> int:
        if demand_text(path) not in self._numbers:
            self._files.append(self._store.get_file(path, self._sources.get(path, UNKNOWN)))
            self._numbers[path] = len(self._files) - 1
        return self._numbers[path]

    def build(self) -> FragmentEntries:
        """Return the entries.

        Raises
        ------
        FormatError
            Two entries are of one chunk, or an entry is invalid.
        """
        self._rows.sort()
        numbers = np.array([row[0] for row in self._rows], np.int64)
        if (numbers[1:] == numbers[:-1]).any():
            raise FormatError("two entries are of one chunk; the set is damaged")
        rows = PlacedReferences(numbers, self._build_manifest())
        return FragmentEntries(rows, self._measured, self.prefixes, self._sources)

    def _build_manifest(self) -> ChunkManifest:
        shape = (len(self._rows),)
        _, file, offset, length, *decoding = zip(*self._rows, strict=True) if shape[0] else NO_ROWS
        if len(self._files) == 1 and not any(map(any, (file, *decoding))):
            return ChunkManifest.in_file(shape, self._files[0], offset, length)
        named = dict(zip(COLUMNS, (file, offset, length, *decoding), strict=True))
        columns = {name: np.array(column, np.int64) for name, column in named.items()}
        return ChunkManifest.build(shape, files=self._files, inline=self._inline, **columns)


def _demand_natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is not a number of bytes, or of a pipeline")
    return value


def demand_text(value: Any) -> str:
    """Return a path; raise an error if it is none."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not a path")
    return value


def _parse_checksum(text: Any) -> int:
    """Return a checksum as a number, 0 for algorithms that are not verified."""
    if text is None:
        return 0
    algorithm, _, digits = text.partition(":")
    if algorithm != "crc32":
        return 0
    if len(digits) != 8 or not set(digits) <= HEXADECIMAL:
        raise ValueError(f"{text!r} is not a checksum")
    return PRESENT + int(digits, 16)
