"""Chunk manifests in JSON: objects whose keys are chunks, or prefixes of the keys of chunks.

The form is that of ``docs/formats/zarr-v3.md``, after the "Manifest storage transformer" proposal
(zarr-specs issue 287). Nothing is measured, and no file is judged, before somebody asks for a chunk
of it, unless all references stand in the metadata.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import COLUMNS, INLINE, MISSING
from virtualds.chunks.lazy_manifest import LazyManifest
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.errors import FormatError, ReadError, VirtualdsError
from virtualds.reading.prefetch import gathered
from virtualds.referenced_files import MALFORMED, UNKNOWN
from virtualds.source_file import PRESENT, SourceFile
from virtualds.stores.access_rules import absolute
from virtualds.zarr_v3.chunk_keys import ChunkKeys

Fingerprint = tuple[int | None, int | None, str | None]
"""Size in bytes, modification time in nanoseconds since 1970, and etag of a file."""
SPARSE = 16
"""Chunks of a grid for each one that an object in the metadata lists, above which it stays one."""

NO_ROWS: tuple[tuple[int, ...], ...] = ((),) * (1 + len(COLUMNS))
"""The columns of entries, when there are none."""
HEXADECIMAL = frozenset("0123456789abcdefABCDEF")


class SetFiles(Protocol):
    """What a manifest needs to know of the set that it belongs to."""

    root: str

    def file(self, path: str, fingerprint: Any = UNKNOWN) -> SourceFile:
        """Return the file that a path of the set means."""

    def size(self, file: SourceFile) -> int:
        """Return the length of a file that is a chunk as a whole."""

    def document(self, path: str) -> Any:
        """Return a JSON file of the set."""

    def kept(self, name: Hashable, read: Callable[[], Any]) -> Any:
        """Return what ``read`` makes, and keep it for a while."""


class Told(NamedTuple):
    """What the entries of one fragment say.

    ``numbers`` are those of the chunks that have entries, rising; ``manifest`` has a row for each.
    ``measured`` are entries without a length, by the number of their chunk, ``prefixes`` pairs of
    the beginning of a key and the path that stands for it, and ``sources`` fingerprints by path.
    """

    numbers: Ints
    manifest: ChunkManifest
    measured: Mapping[int, Mapping[str, Any]]
    prefixes: list[tuple[str, str]]
    sources: Mapping[str, Any]

    def rows(self, ids: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return the rows of chunks of these numbers, and which of them have one."""
        row = np.searchsorted(self.numbers, ids)
        return row, np.append(self.numbers, -1)[row] == ids

    def chunks(self, row: Ints, known: npt.NDArray[np.bool_]) -> ChunkManifest:
        """Return the chunks of these rows; those without one are missing."""
        if known.all():
            whole = row.size == self.numbers.size and (row == np.arange(row.size)).all()
            return self.manifest if whole else self.manifest.at(row).pruned()
        found = self.manifest.at(row[known]).pruned()
        # what is missing has the first pipeline
        ended = ChunkManifest.concatenate([found, ChunkManifest.missing((1,))], 0)
        return ended.at(np.where(known, np.cumsum(known) - 1, found.size))


@dataclass(frozen=True)
class JsonTable:
    """References in a JSON object, by keys of chunks.

    Parameters
    ----------
    store : SetFiles
    manifest : str or mapping
        Path of the file in the set, or the object itself.
    grid : tuple of int
        Chunks per axis.
    prefix : str
        What keys begin with.
    key : ChunkKeys
        Keys of chunks below the folder of the array, for entries that map a prefix of them.
    sources : str or mapping, optional
        Fingerprints of files by their paths, or where in the set these stand.
    has_pipelines : bool
        Whether entries may say how their chunk decodes.
    pipelines : int
        How many there are.
    """

    store: SetFiles
    manifest: Any
    grid: tuple[int, ...]
    prefix: str
    key: ChunkKeys
    sources: Any = None
    has_pipelines: bool = False
    pipelines: int = 1

    def __hash__(self) -> int:
        return hash((self.store, self.grid, self.prefix))

    @property
    def entries(self) -> Mapping[str, Any]:
        """The object that the manifest is."""
        found = self.manifest
        if isinstance(found, str):
            found = self.store.document(found)
        if not isinstance(found, Mapping):
            raise FormatError(f"{self._where}: a manifest is an object, found {found!r:.40}")
        return found

    @property
    def fingerprints(self) -> Mapping[str, Any]:
        """What is known of files by their paths."""
        known = self.sources or {}
        if isinstance(known, str):
            known = self.store.document(known)
        if not isinstance(known, Mapping):
            raise FormatError(f"{self._where}: its sources are an object, found {known!r:.40}")
        return known

    @property
    def has_prefixes(self) -> bool:
        """Whether an entry stands for all keys that begin with its own."""
        return bool(self._told().prefixes)

    def manifested(self) -> ChunkManifest:
        """Return the manifest: lazy unless all of it stands in the metadata."""
        if not isinstance(self.manifest, str):
            told, count = self._told(), prod(self.grid)
            is_dense = count <= SPARSE * (told.numbers.size + 1)
            if is_dense and not told.measured and not told.prefixes:
                return told.chunks(*told.rows(np.arange(count))).reshape(self.grid)
        return LazyManifest(self, self.grid)

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of these numbers, in their shape, with the files that they lie in."""
        told, flat = self._told(), ids.ravel()
        row, known = told.rows(flat)
        found = told.chunks(row, known)
        if told.measured or told.prefixes:
            found = self._with_measured(found, flat, known, told)
        return found.reshape(ids.shape)

    def listed(self) -> tuple[SourceFile, ...]:
        """Return all files that entries name, but those below prefixes."""
        told = self._told()
        paths = dict.fromkeys(entry["path"] for entry in told.measured.values())
        measured = (self.store.file(path, told.sources.get(path, UNKNOWN)) for path in paths)
        return tuple(dict.fromkeys([*told.manifest.files, *measured]))

    def catalogue(self) -> None:
        """Return nothing: entries have to be looked through."""

    @property
    def _where(self) -> str:
        name = self.manifest if isinstance(self.manifest, str) else "zarr.json"
        return f"{self.store.root}/{name}"

    def _told(self) -> Told:
        if isinstance(self.manifest, str):
            found: Told = self.store.kept((self.manifest, self.prefix), self._read)
            return found
        return self._read()

    def _read(self) -> Told:
        """Return what the entries of the fragment say.

        Raises
        ------
        FormatError
            They are not of the form that is specified.
        """
        rows = RowBuilder(self.store, self.fingerprints, self.pipelines)
        for name, entry in self.entries.items():
            self._read_entry(name, entry, rows)
        try:
            return rows.told()
        except VirtualdsError as error:
            error.add_note(f"manifest {self._where}")
            raise

    def _read_entry(self, name: str, entry: Any, rows: RowBuilder) -> None:
        try:
            if name.endswith("/"):
                if self.prefix:
                    raise FormatError("an array of fragments has no keys that could begin so")
                rows.prefixes.append((name.removeprefix("./"), demand_text(entry["path"])))
            elif name.startswith(self.prefix):
                rows.add(self._number(name[len(self.prefix) :]), entry)
        except VirtualdsError as error:
            error.add_note(f"entry {name!r} of {self._where}")
            raise
        except MALFORMED as error:
            raise FormatError(
                f"{self._where}: entry {name!r} is {entry!r:.80}, which makes no sense ({error}); "
                f"the set is damaged"
            ) from error

    def _number(self, key: str) -> int:
        """Return the number of a chunk in its grid."""
        parts = key.split(".") if self.grid else []
        if not all(p.isascii() and p.isdecimal() for p in parts) or not (self.grid or key == "0"):
            raise FormatError(f"{key!r} is no key of a chunk")
        place = tuple(map(int, parts))
        if len(place) != len(self.grid) or any(
            i >= n for i, n in zip(place, self.grid, strict=True)
        ):
            raise FormatError(f"chunk {key!r} lies outside the grid {self.grid}")
        number = 0
        for i, n in zip(place, self.grid, strict=True):
            number = number * n + i
        return number

    # ------------------------------------------------------------------ what has to be measured

    def _with_measured(
        self, found: ChunkManifest, ids: Ints, known: Any, told: Told
    ) -> ChunkManifest:
        """Add the chunks that are the rest of a file, whose length the store knows."""
        rows = RowBuilder(self.store, told.sources, self.pipelines)
        entries: list[tuple[int, Mapping[str, Any]]] = []
        for row in np.flatnonzero(~known).tolist():
            number = int(ids[row])
            if entry := told.measured.get(number) or self._prefixed(number, told.prefixes):
                entries.append((row, entry))

        def measured(one: tuple[int, Mapping[str, Any]]) -> int | None:
            row, entry = one
            try:
                return rows.length(entry)
            except VirtualdsError as error:
                error.add_note(f"chunk {int(ids[row])} of {self._where}")
                raise

        lengths = gathered(
            entries, lambda one: absolute(one[1]["path"], f"{self.store.root}/"), measured
        )
        for (row, entry), length in zip(entries, lengths, strict=True):
            if length is not None:
                rows.add(row, {**entry, "length": length})
        added = rows.told()
        places = np.arange(ids.size)
        places[added.numbers] = ids.size + np.arange(added.numbers.size)
        return ChunkManifest.concatenate([found, added.manifest], 0).at(places)

    def _prefixed(self, number: int, prefixes: list[tuple[str, str]]) -> dict[str, Any] | None:
        """Return what stands for the longest prefix of a chunk's key, None if there is none."""
        place = tuple(int(i) for i in np.unravel_index(number, self.grid)) if self.grid else ()
        key = self.key(place)
        fitting = [pair for pair in prefixes if key.startswith(pair[0])]
        if not fitting:
            return None
        prefix, path = max(fitting, key=lambda pair: len(pair[0]))
        return {"path": path + key[len(prefix) :], "may_be_absent": True}


class RowBuilder:
    """Entries on their way to be a manifest.

    Parameters
    ----------
    store : SetFiles
    sources : mapping
        Fingerprints of files by their paths.
    pipelines : int
        How many there are.
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
            raise TypeError("it is no object")
        decoding = _natural(entry.get("pipeline", 0)), _checksum(entry.get("checksum"))
        if decoding[0] >= self._pipelines:
            raise ValueError(f"there are {self._pipelines} pipelines")
        if "data" in entry:
            self._inline.append(base64.b64decode(entry["data"], validate=True))
            place = (INLINE, len(self._inline) - 1, len(self._inline[-1]))
        elif "path" not in entry:
            place, decoding = (MISSING, 0, 0), (decoding[0], 0)
        elif entry.get("length") is None:
            demand_text(entry["path"]), _natural(entry.get("offset", 0))
            self._measured[number] = entry
            return
        else:
            offset, length = _natural(entry.get("offset", 0)), _natural(entry["length"])
            place = (self._file(entry["path"]), offset, length)
        self._rows.append((number, *place, *decoding))

    def size(self, entry: Mapping[str, Any]) -> int | None:
        """Return the length of the file of an entry, None if it is not there and need not be."""
        file = self._store.file(entry["path"], self._sources.get(entry["path"], UNKNOWN))
        try:
            return self._store.size(file)
        except ReadError as error:
            if "may_be_absent" in entry and isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def length(self, entry: Mapping[str, Any]) -> int | None:
        """Return the length of the rest of a file, None if it is not there and need not be.

        Raises
        ------
        FormatError
            Nothing is left of it.
        """
        if (size := self.size(entry)) is None:
            return None
        length: int = size - entry.get("offset", 0)
        if length <= 0:
            raise FormatError(
                f"{entry['path']}: it has {size} bytes, and a chunk is said to begin at "
                f"{size - length}; scan it anew"
            )
        return length

    def _file(self, path: Any) -> int:
        if demand_text(path) not in self._numbers:
            self._files.append(self._store.file(path, self._sources.get(path, UNKNOWN)))
            self._numbers[path] = len(self._files) - 1
        return self._numbers[path]

    def told(self) -> Told:
        """Return what the entries say.

        Raises
        ------
        FormatError
            Two of them are of one chunk, or one cannot be right.
        """
        self._rows.sort()
        numbers = np.array([row[0] for row in self._rows], np.int64)
        if (numbers[1:] == numbers[:-1]).any():
            raise FormatError("two entries are of one chunk; the set is damaged")
        return Told(numbers, self._manifest(), self._measured, self.prefixes, self._sources)

    def _manifest(self) -> ChunkManifest:
        shape = (len(self._rows),)
        _, file, offset, length, *decoding = zip(*self._rows, strict=True) if shape[0] else NO_ROWS
        if len(self._files) == 1 and not any(map(any, (file, *decoding))):
            return ChunkManifest.in_file(shape, self._files[0], offset, length)
        named = dict(zip(COLUMNS, (file, offset, length, *decoding), strict=True))
        columns = {name: np.array(column, np.int64) for name, column in named.items()}
        return ChunkManifest.build(shape, files=self._files, inline=self._inline, **columns)


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is no number of bytes, or of a pipeline")
    return value


def demand_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is no path")
    return value


def _checksum(text: Any) -> int:
    """Return a checksum as a number; those of other algorithms are nothing that is verified."""
    if text is None:
        return 0
    algorithm, _, digits = text.partition(":")
    if algorithm != "crc32":
        return 0
    if len(digits) != 8 or not set(digits) <= HEXADECIMAL:
        raise ValueError(f"{text!r} is no checksum")
    return PRESENT + int(digits, 16)
