"""The chunk manifests of a Zarr v3 set: JSON, and Parquet for as many chunks as there may be.

The formats are those of ``docs/formats/zarr-v3.md``, after the "Manifest storage transformer"
proposal (zarr-specs issue 287). Opening a set reads none of them but those that stand in the
metadata; each comes back as a lazy manifest, whose references are read when somebody needs them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from virtualds.access import ANYWHERE, Allowed
from virtualds.checksum import PRESENT
from virtualds.errors import FormatError, ReadError, UnsupportedError, VirtualdsError
from virtualds.grid import Ints
from virtualds.lazy_manifest import LazyManifest
from virtualds.manifest import INLINE, MISSING, ChunkManifest, SourceFile, StorageOptions
from virtualds.records import RecordCache, parquet_table, rows_of_records
from virtualds.referenced_files import ReferencedFiles, unreachable
from virtualds.stores import store_for
from virtualds.strict_json import parsed

JSON_MANIFEST, PARQUET_MANIFEST = "chunk-manifest-json", "chunk-manifest-parquet"
"""Names of the storage transformers."""
RECORD_SIZE = 100_000
"""Rows in a record of a table."""
KEPT = 24
"""Records, of references and of sources, that one set keeps in memory."""
Fingerprint = tuple[int | None, int | None, str | None]
"""Size in bytes, modification time in nanoseconds since 1970, and etag of a file."""
UNKNOWN: Fingerprint = (None, None, None)


class Part(NamedTuple):
    """Chunks of a manifest: where they lie in the grid of a fragment."""

    fragment: int
    origin: tuple[int, ...]
    manifest: ChunkManifest


class Sources(NamedTuple):
    """The table of files that a manifest counts: its folder, and how many rows it has."""

    folder: str
    rows: int


# ---------------------------------------------------------------------- reading


class StoredManifests:
    """The manifests of one set, of which the records used last are kept.

    Parameters
    ----------
    root : str
        Url of the folder of the set.
    options : StorageOptions, optional
    allow : Allowed
        Where the files that the set refers to may lie.
    """

    def __init__(
        self, root: str, options: StorageOptions | None, allow: Allowed = ANYWHERE
    ) -> None:
        self.root = root
        self.options = options
        self.allow = allow
        self._open()

    def _open(self) -> None:
        # relative paths are seen from the folder of the set
        beginning = SourceFile(f"{self.root}/zarr.json", options=self.options)
        self._files = ReferencedFiles(beginning, {}, self.allow)
        self._kept: RecordCache[Any] = RecordCache(KEPT)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle where the manifests lie, not what is kept of them."""
        return {"root": self.root, "options": self.options, "allow": self.allow}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredManifests) and self.__getstate__() == other.__getstate__()

    def __hash__(self) -> int:
        return hash(self.root)

    def file(self, path: str, fingerprint: Fingerprint = UNKNOWN) -> SourceFile:
        """Return the file that a path of the set means."""
        size, mtime, etag = fingerprint
        return self._files.file(path)._replace(size=size, mtime=mtime, etag=etag)

    def size(self, file: SourceFile) -> int:
        """Return the length of a file that is a chunk as a whole."""
        return self._files.size(file) or 0

    def read(self, path: str) -> bytes:
        """Return a file of the set.

        Raises
        ------
        ReadError
            It cannot be had.
        """
        url = f"{self.root}/{path}"
        try:
            return store_for(url).read_all(url, self.options)
        except FileNotFoundError as error:
            raise ReadError(
                f"{url}: it is gone; its snapshot has expired, or the set is damaged: open it again"
            ) from error
        except OSError as error:
            raise unreachable(url, error) from error

    def record(self, path: str) -> dict[str, Any]:
        """Return the columns of a record: integers as arrays, the rest as Arrow has it."""
        found: dict[str, Any] = self._kept.get(
            path, lambda: _columns(self.read(path), f"{self.root}/{path}")
        )
        return found

    def kept(self, name: Hashable, read: Callable[[], Any]) -> Any:
        """Return what ``read`` makes, and keep it for a while."""
        return self._kept.get(name, read)

    def document(self, path: str) -> Any:
        """Return a JSON file of the set."""
        return self._kept.get(path, lambda: parsed(self.read(path), f"{self.root}/{path}"))

    def fingerprints(self, table: Sources, numbers: Ints) -> list[tuple[str, Fingerprint]]:
        """Return paths and fingerprints of files by their numbers."""
        found = []
        for number in numbers.tolist():
            if not 0 <= number < table.rows:
                raise FormatError(f"source {number} of {table.rows} in {table.folder}")
            columns = self.record(f"{table.folder}/{number // RECORD_SIZE}.parquet")
            path, *rest = (
                columns[name][number % RECORD_SIZE].as_py()
                for name in ("path", "size", "mtime", "etag")
            )
            found.append((path, (rest[0], rest[1], rest[2])))
        return found

    # ------------------------------------------------------------------ manifests

    def parts(
        self,
        folder: str,
        transformer: Mapping[str, Any],
        grids: list[tuple[int, ...]],
        numbered: bool,
        key: ChunkKeys,
    ) -> list[Part]:
        """Return what a storage transformer says of the chunks of an array.

        Parameters
        ----------
        folder : str
            Path of the array in the set.
        transformer : mapping
            An item of ``storage_transformers``.
        grids : list of tuple of int
            Chunks per axis of every fragment.
        numbered : bool
            Whether keys begin with the number of the fragment.
        key : callable
            Keys of chunks, for prefixes.

        Raises
        ------
        UnsupportedError
            It is none that is known.
        """
        name, said = transformer.get("name"), transformer.get("configuration", {})
        if name == PARQUET_MANIFEST:
            return [self._tabled(folder, part, grids) for part in said["parts"]]
        if name != JSON_MANIFEST:
            raise UnsupportedError(
                f"storage transformer {name!r}: {JSON_MANIFEST!r} and {PARQUET_MANIFEST!r} are "
                f"known; a newer virtualds may know it"
            )
        manifest = said["manifest"]
        if isinstance(manifest, str):
            manifest = inside(folder, manifest)
        known = said.get("sources")
        if isinstance(known, str):
            known = inside(folder, known)
        tables = (
            JsonTable(self, manifest, grid, f"{n}." if numbered else "", key, known, numbered)
            for n, grid in enumerate(grids)
        )
        return [Part(n, (0,) * len(t.grid), t.manifested()) for n, t in enumerate(tables)]

    def _tabled(self, folder: str, part: Mapping[str, Any], grids: list[tuple[int, ...]]) -> Part:
        fragment, shape = part.get("fragment", 0), tuple(part["shape"])
        origin = tuple(part["origin"])
        grid = grids[fragment]
        if len(origin) != len(grid) or any(
            o < 0 or o + n > g for o, n, g in zip(origin, shape, grid, strict=True)
        ):
            raise FormatError(f"{folder}: chunks {shape} at {origin} lie outside the grid {grid}")
        said = part["table"]
        table = ParquetTable(
            self,
            inside(folder, said["path"]),
            int(said["rows"]),
            sources_of(folder, said["sources"]),
            bool(said.get("pipelines", False)),
        )
        strides, first = tuple(part["strides"]), int(part["first"])
        ends = [s * max(n - 1, 0) for s, n in zip(strides, shape, strict=True)]
        low, high = (first + sum(f(e, 0) for e in ends) for f in (min, max))
        if prod(shape) and not 0 <= low <= high < table.rows:
            raise FormatError(f"{folder}: its chunks count rows {low} to {high} of {table.rows}")
        renumbered = part.get("pipelines")
        numbers = None if renumbered is None else tuple(map(int, renumbered))
        return Part(fragment, origin, LazyManifest(table, shape, strides, first, numbers))


@dataclass(frozen=True)
class ParquetTable:
    """References in records of Parquet.

    Parameters
    ----------
    store : StoredManifests
    folder : str
        Where in the set the records lie.
    rows : int
        How many there are.
    sources : Sources
    has_pipelines : bool
        Whether rows say how they decode.
    """

    store: StoredManifests
    folder: str
    rows: int
    sources: Sources
    has_pipelines: bool = False

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the rows of these numbers, in their shape, with the files that they lie in."""
        return rows_of_records(ids, RECORD_SIZE, self._record)

    def listed(self) -> tuple[SourceFile, ...]:
        """Return all files of the table of sources."""
        known = self.store.fingerprints(self.sources, np.arange(self.sources.rows))
        return tuple(self.store.file(*one) for one in known)

    def _record(self, number: int, rows: Ints) -> ChunkManifest:
        path = f"{self.folder}/{number}.parquet"
        try:
            columns = self.store.record(path)
            return self._manifest(columns, rows)
        except VirtualdsError as error:
            error.add_note(f"record {path} of {self.store.root}")
            raise
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"{self.store.root}/{path}: it is no record of references ({error}); the set is "
                f"damaged"
            ) from error

    def _manifest(self, columns: Mapping[str, Any], rows: Ints) -> ChunkManifest:
        source, offset, length = (columns[n][rows] for n in ("source", "offset", "length"))
        used = np.unique(source)
        used = used[used >= 0]
        file = np.where(source >= 0, np.searchsorted(used, source), source)
        held = np.flatnonzero(source == INLINE)
        inline = [columns["data"][int(rows[k])].as_py() for k in held.tolist()]
        known = self.store.fingerprints(self.sources, used)
        return ChunkManifest.build(
            rows.shape,
            files=[self.store.file(*one) for one in known],
            inline=inline,
            file=file,
            offset=np.where(source == INLINE, np.cumsum(source == INLINE) - 1, offset),
            length=length,
            pipeline=columns["pipeline"][rows] if "pipeline" in columns else 0,
            checksum=columns["checksum"][rows] if "checksum" in columns else 0,
        )


@dataclass(frozen=True)
class JsonTable:
    """References in a JSON object, by keys of chunks.

    Parameters
    ----------
    store : StoredManifests
    manifest : str or mapping
        Path of the file in the set, or the object itself.
    grid : tuple of int
        Chunks per axis.
    prefix : str
        What keys begin with.
    key : callable
        Keys of chunks below the folder of the array, for entries that map a prefix of them.
    sources : str or mapping, optional
        Fingerprints of files by their paths, or where in the set these stand.
    has_pipelines : bool
        Whether entries may say how their chunk decodes.
    """

    store: StoredManifests
    manifest: Any
    grid: tuple[int, ...]
    prefix: str
    key: ChunkKeys
    sources: Any = None
    has_pipelines: bool = False

    def __hash__(self) -> int:
        return hash((self.store, self.grid, self.prefix))

    @property
    def entries(self) -> Mapping[str, Any]:
        """The object that the manifest is."""
        found = self.manifest
        if isinstance(found, str):
            found = self.store.document(found)
        if not isinstance(found, Mapping):
            raise FormatError(f"{self.store.root}: a manifest is an object, found {found!r:.40}")
        return found

    @property
    def fingerprints(self) -> Mapping[str, Fingerprint]:
        """What is known of files by their paths."""
        found: Mapping[str, Fingerprint] = self.sources or {}
        if isinstance(self.sources, str):
            found = self.store.document(self.sources)
        return found

    def manifested(self) -> ChunkManifest:
        """Return the manifest: lazy unless all of it stands in the metadata."""
        if isinstance(self.manifest, str) or self.prefixes:
            return LazyManifest(self, self.grid)
        return self._told()

    @property
    def prefixes(self) -> list[str]:
        """The keys that stand for all keys beginning with them, the longest first."""
        return sorted((k for k in self.entries if k.endswith("/")), key=len, reverse=True)

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of these numbers, in their shape, with the files that they lie in."""
        name = (self.manifest, self.prefix)
        kept = isinstance(self.manifest, str)
        told = self.store.kept(name, self._told) if kept else self._told()
        found = told.at(ids.ravel())
        prefixes = self.prefixes
        if prefixes:
            found = self._with_prefixed(found, ids.ravel(), prefixes)
        return found.pruned().reshape(ids.shape)

    def listed(self) -> tuple[SourceFile, ...]:
        """Return all files that entries name."""
        return self._told().sources

    def _told(self) -> ChunkManifest:
        """Return all chunks that have an entry of their own; others are missing."""
        rows = [
            (place, entry)
            for key, entry in self.entries.items()
            if not key.endswith("/") and (place := self._place(key)) is not None
        ]
        return _from_entries(self.store, rows, self.grid, self.fingerprints)

    def _with_prefixed(self, told: ChunkManifest, ids: Ints, prefixes: list[str]) -> ChunkManifest:
        """Add the chunks that are files below a prefix; one that is not there is missing."""
        rows: list[tuple[tuple[int, ...], Any]] = []
        for row in np.flatnonzero(told.file == MISSING).tolist():
            place = tuple(int(i) for i in np.unravel_index(int(ids[row]), self.grid or (1,)))
            place = place[: len(self.grid)]
            key = self.key(place)
            prefix = next((p for p in prefixes if key.startswith(p.removeprefix("./"))), None)
            if prefix is None or self.prefix + (".".join(map(str, place)) or "0") in self.entries:
                continue
            path = self.entries[prefix]["path"] + key[len(prefix.removeprefix("./")) :]
            if (size := _size_if_there(self.store, path)) is not None:
                rows.append(((row,), {"path": path, "length": size}))
        found = _from_entries(self.store, rows, told.shape, {})
        both = ChunkManifest.concatenate([told, found], 0)
        return both.at(np.arange(ids.size) + np.where(found.file != MISSING, ids.size, 0))

    def _place(self, key: str) -> tuple[int, ...] | None:
        if not key.startswith(self.prefix):
            return None
        rest = key[len(self.prefix) :]
        try:
            place = tuple(map(int, rest.split("."))) if self.grid else ()
        except ValueError as error:
            raise FormatError(f"{self.store.root}: {key!r} is no key of a chunk") from error
        if len(place) != len(self.grid) or any(
            not 0 <= i < n for i, n in zip(place, self.grid, strict=True)
        ):
            raise FormatError(f"{self.store.root}: chunk {key!r} lies outside the grid {self.grid}")
        return place


def sources_of(folder: str, said: Any) -> Sources:
    """Return the table of files that the metadata of an array name."""
    path, count = said
    return Sources(inside(folder, path), int(count))


def inside(folder: str, path: str) -> str:
    """Return a path, relative to the folder of an array, as one relative to the set.

    Raises
    ------
    FormatError
        It leads out of the set.
    """
    parts: list[str] = [p for p in folder.split("/") if p]
    for part in path.split("/"):
        if part == "..":
            if not parts:
                raise FormatError(f"{path!r}, seen from {folder!r}, leads out of the set")
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    if "\\" in path or path.startswith("/"):
        raise FormatError(f"{path!r} is no path inside the set")
    return "/".join(parts)


def _columns(data: bytes, url: str) -> dict[str, Any]:
    """Return integers as arrays, and what may be absent as Arrow has it."""
    import pyarrow as pa

    table = parquet_table(data, url)
    found = {}
    for name in table.column_names:
        column = table[name]
        plain = pa.types.is_integer(column.type) and name not in ("size", "mtime")
        found[name] = column.to_numpy() if plain else column
    return found


def _from_entries(
    store: StoredManifests,
    rows: list[tuple[tuple[int, ...], Any]],
    grid: tuple[int, ...],
    fingerprints: Mapping[str, Fingerprint],
) -> ChunkManifest:
    """Return a manifest from entries of JSON; a chunk without one is missing."""
    files: dict[str, int] = {}
    inline: list[bytes] = []
    names = ("file", "offset", "length", "pipeline", "checksum")
    columns = {name: np.zeros(grid, np.int64) for name in names}
    columns["file"][...] = MISSING
    for place, entry in rows:
        for name, value in zip(names, _entry(store, entry, files, inline), strict=True):
            columns[name][place] = value
    found = [store.file(path, fingerprints.get(path, UNKNOWN)) for path in files]
    return ChunkManifest.build(grid, files=found, inline=inline, **columns)


def _entry(
    store: StoredManifests, entry: Any, files: dict[str, int], inline: list[bytes]
) -> tuple[int, int, int, int, int]:
    """Return the columns of one chunk."""
    if not isinstance(entry, Mapping):
        raise FormatError(f"{store.root}: {entry!r:.60} is no entry of a manifest")
    checksum, pipeline = _checksum(entry.get("checksum")), entry.get("pipeline", 0)
    if "data" in entry:
        inline.append(base64.b64decode(entry["data"], validate=True))
        return INLINE, len(inline) - 1, len(inline[-1]), pipeline, checksum
    if "path" not in entry:
        return MISSING, 0, 0, pipeline, 0
    path, offset = entry["path"], entry.get("offset", 0)
    length = entry.get("length")
    if length is None:
        length = store.size(store.file(path)) - offset
    return files.setdefault(path, len(files)), offset, length, pipeline, checksum


def _checksum(text: str | None) -> int:
    """Return a checksum as a number; those of other algorithms are nothing that is verified."""
    algorithm, _, digits = (text or "").partition(":")
    return PRESENT + int(digits, 16) if algorithm == "crc32" else 0


def _size_if_there(store: StoredManifests, path: str) -> int | None:
    try:
        return store.size(store.file(path))
    except ReadError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def chunk_key(metadata: Mapping[str, Any]) -> ChunkKeys:
    """Return how chunks of an array are called (core specification, "Chunk key encoding").

    Raises
    ------
    UnsupportedError
        The encoding is not known.
    """
    encoding = metadata.get("chunk_key_encoding", {"name": "default"})
    said = encoding if isinstance(encoding, Mapping) else {"name": encoding}
    name, how = said.get("name"), said.get("configuration", {})
    if name not in ("default", "v2"):
        raise UnsupportedError(f"chunk key encoding {name!r}; 'default' and 'v2' are known")
    return ChunkKeys(name, how.get("separator", "/" if name == "default" else "."))


@dataclass(frozen=True)
class ChunkKeys:
    """Keys of chunks below the folder of their array, in an encoding and with a separator."""

    name: str
    separator: str

    def __call__(self, place: tuple[int, ...]) -> str:
        """Return the key of a chunk."""
        indices = self.separator.join(map(str, place))
        if self.name == "v2":
            return indices or "0"
        return f"c{self.separator}{indices}" if place else "c"

    def place(self, key: str, ndim: int) -> tuple[int, ...] | None:
        """Return which chunk has a key, None if it is no key of a chunk."""
        if not ndim:
            return () if key == self(()) else None
        indices = key
        if self.name != "v2":
            indices = key.removeprefix(f"c{self.separator}")
            if indices == key:
                return None
        parts = indices.split(self.separator)
        if len(parts) != ndim or not all(p.isdecimal() and p.isascii() for p in parts):
            return None
        place = tuple(map(int, parts))
        return place if self(place) == key else None

    def to_json(self) -> dict[str, Any]:
        """Return the ``chunk_key_encoding``."""
        return {"name": self.name, "configuration": {"separator": self.separator}}


def json_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the storage transformer of a manifest that stands in the metadata."""
    return {"name": JSON_MANIFEST, "configuration": {"manifest": manifest}}
