"""The chunk manifests of one set, as lazy manifests over its tables.

``docs/reference/formats/zarr-v3.md`` specifies the forms, after the "Manifest storage transformer"
proposal (zarr-specs issue 287). Opening a set reads only manifests in the metadata; other
references are read on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.record_cache import RecordCache, name_opening, share_opening
from virtualds.errors import FormatError, ReadError, UnsupportedError
from virtualds.formats.referenced_files import UNKNOWN, ReferencedFiles, unreachable_error
from virtualds.formats.zarr.chunk_keys import ChunkKeys
from virtualds.formats.zarr.v3_arrays import ManifestPart, check_extras
from virtualds.formats.zarr_manifests.counts import read_counts
from virtualds.formats.zarr_manifests.json_rows import Fingerprint
from virtualds.formats.zarr_manifests.json_table import JsonTable
from virtualds.formats.zarr_manifests.layers import lay_parts
from virtualds.formats.zarr_manifests.manifest_files import to_written_path
from virtualds.formats.zarr_manifests.parquet_table import ParquetTable, read_column, read_columns
from virtualds.formats.zarr_manifests.source_table import SourceTable
from virtualds.json_values import parse_json
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.access_rules import ANYWHERE, AccessPolicy

JSON_MANIFEST, PARQUET_MANIFEST = "chunk-manifest-json", "chunk-manifest-parquet"
"""Names of the storage transformers."""
PART = ("fragment", "origin", "shape", "first", "strides", "pipelines", "table")
ENTRIES = ("fragment", "origin", "shape", "manifest", "sources")
"""Keys of a part whose references stand in the metadata."""
TABLE = ("path", "rows", "chunks", "begins", "sources", "pipelines", "counts")
"""Keys of a part of a manifest, and of its table: readers know all of them."""
KEPT_RECORDS = 24
"""Records, of references and of sources, that one set keeps in memory."""


# ---------------------------------------------------------------------- reading


class StoredManifests:
    """The manifests of one set; the records used last are kept.

    Parameters
    ----------
    root : str
        Url of the folder of the set.
    options : StorageOptions, optional
    allow : AccessPolicy
        Where the files that the set refers to may lie.
    ranges : mapping of str to lists
        The first and last paths of the records of tables of files, by folder, as the set notes.
    """

    _ranges: Mapping[str, Any] = {}

    def __init__(
        self,
        root: str,
        options: StorageOptions | None,
        allow: AccessPolicy = ANYWHERE,
        ranges: Mapping[str, Any] | None = None,
    ) -> None:
        self.root = root
        self.options = options
        self.allow = allow
        self._ranges = ranges or {}
        self._opening = name_opening()
        self._open()

    def _open(self) -> None:
        # relative paths start from the folder of the set
        beginning = SourceFile(f"{self.root}/zarr.json", options=self.options)
        self._files = ReferencedFiles(beginning, {}, self.allow)
        # files of the set itself need no permission, as long as they lie in its folder
        within = None if self.allow.prefixes is None else (self.root.split("::")[-1],)
        self._own = ReferencedFiles(beginning, {}, AccessPolicy(within))
        self._kept: RecordCache[Any] = RecordCache(KEPT_RECORDS)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle where the manifests lie, not the cache of records."""
        return {"root": self.root, "options": self.options, "allow": self.allow}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __reduce__(self) -> tuple[Any, ...]:
        state = self.__getstate__() | {"_opening": self._opening}
        return share_opening, (StoredManifests, self._opening, state)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        from dask.base import normalize_token

        return ("virtualds-set", *map(normalize_token, self.__getstate__().values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredManifests) and self.__getstate__() == other.__getstate__()

    def __hash__(self) -> int:
        return hash(self.root)

    def get_file(self, path: str, fingerprint: Fingerprint = UNKNOWN) -> SourceFile:
        """Return the file of a path in the set."""
        files = self._own if _is_inside(path) else self._files
        return files.make_file(path, fingerprint)

    def get_size(self, file: SourceFile) -> int:
        """Return the length of a file that is a whole chunk."""
        return self._files.get_size(file) or 0

    def read(self, path: str) -> bytes:
        """Return a file of the set.

        Raises
        ------
        ReadError
            It cannot be read.
        """
        url = f"{self.root}/{path}"
        try:
            return find_store(url).read_all(url, self.options)
        except FileNotFoundError as error:
            raise ReadError(
                f"{url}: it is gone; its snapshot has expired, or the set is damaged: open it again"
            ) from error
        except OSError as error:
            raise unreachable_error(url, error) from error

    def read_record(self, path: str) -> dict[str, Any]:
        """Return the columns of a record, as `read_columns` makes them."""
        found: dict[str, Any] = self._kept.get(
            path, lambda: read_columns(self.read(path), f"{self.root}/{path}")
        )
        return found

    def read_column(self, path: str, name: str) -> Any:
        """Return one column of a record as an array, and keep nothing."""
        return read_column(self.read(path), name, f"{self.root}/{path}")

    def spell_paths(self, url: str) -> set[str]:
        """Return the paths that a writer may have written for a url, also before the set moved."""
        return {url, to_written_path(self.root, url)}

    def get_cached(self, name: Hashable, read: Callable[[], Any]) -> Any:
        """Return what ``read`` makes, and keep it for a while."""
        return self._kept.get(name, read)

    def read_document(self, path: str) -> Any:
        """Return a JSON file of the set."""
        return self._kept.get(path, lambda: parse_json(self.read(path), f"{self.root}/{path}"))

    # ------------------------------------------------------------------ manifests

    def read_parts(
        self,
        folder: str,
        transformer: Mapping[str, Any],
        grids: list[tuple[int, ...]],
        numbered: int,
        key: ChunkKeys,
    ) -> list[ManifestPart]:
        """Return the chunks of an array from its storage transformer.

        Parameters
        ----------
        folder : str
            Path of the array in the set.
        transformer : mapping
            An item of ``storage_transformers``.
        grids : list of tuple of int
            Chunks per axis of every fragment.
        numbered : int
            Number of pipelines of an array of fragments, whose keys name the fragment; else 0.
        key : callable
            Keys of chunks, for prefixes.

        Raises
        ------
        UnsupportedError
            It is unknown.
        """
        name, said = transformer.get("name"), transformer.get("configuration", {})
        if name == PARQUET_MANIFEST:
            check_extras(said, {"parts"})
            found = [self._read_part(folder, part, grids, numbered, key) for part in said["parts"]]
            return lay_parts(found, grids, max(numbered, 1))
        if name != JSON_MANIFEST:
            raise UnsupportedError(
                f"storage transformer {name!r}: {JSON_MANIFEST!r} and {PARQUET_MANIFEST!r} are "
                f"known; a newer virtualds may know it"
            )
        check_extras(said, {"manifest", "sources"})
        manifest = said["manifest"]
        if isinstance(manifest, str):
            manifest = to_set_path(folder, manifest)
        known = said.get("sources")
        if isinstance(known, str):
            known = to_set_path(folder, known)
        tables = (
            JsonTable(
                self,
                manifest,
                grid,
                f"{n}." if numbered else "",
                key,
                known,
                bool(numbered),
                max(numbered, 1),
            )
            for n, grid in enumerate(grids)
        )
        return [ManifestPart(n, (0,) * len(t.grid), t.to_manifest()) for n, t in enumerate(tables)]

    def _read_part(
        self,
        folder: str,
        part: Mapping[str, Any],
        grids: list[tuple[int, ...]],
        numbered: int,
        key: ChunkKeys,
    ) -> ManifestPart:
        is_table = "table" in part
        check_extras(part, PART if is_table else ENTRIES)
        fragment = _demand_naturals([part.get("fragment", 0)])[0]
        shape, origin = _demand_naturals(part["shape"]), _demand_naturals(part["origin"])
        if fragment >= len(grids):
            raise FormatError(
                f"{folder}: chunks of fragment {fragment} of {len(grids)}; the set is damaged, "
                f"write it anew"
            )
        grid = grids[fragment]
        if len(origin) != len(grid) or any(
            o + n > g for o, n, g in zip(origin, shape, grid, strict=True)
        ):
            raise FormatError(f"{folder}: chunks {shape} at {origin} lie outside the grid {grid}")
        if not is_table:
            most, known = max(numbered, 1), part.get("sources")
            listed = JsonTable(self, part["manifest"], shape, "", key, known, bool(numbered), most)
            return ManifestPart(fragment, origin, ChunkManifest.of_table(listed, shape))
        said = part["table"]
        check_extras(said, TABLE)
        renumbered = part.get("pipelines")
        numbers = None if renumbered is None else _demand_naturals(renumbered)
        if (numbers and max(numbers) >= numbered) or (said.get("pipelines") and not numbered):
            raise FormatError(f"{folder}: pipelines {renumbered!r:.80} of {numbered}")
        is_placed = "begins" in said
        table = ParquetTable(
            self,
            to_set_path(folder, said["path"]),
            _demand_naturals([said["chunks" if is_placed else "rows"]])[0],
            read_source_table(folder, said["sources"], self._ranges),
            bool(said.get("pipelines", False)),
            max(numbered, 1) if numbers is None else len(numbers),
            read_counts(said.get("counts")),
            _demand_naturals(said["begins"]) if is_placed else None,
        )
        strides, first = _demand_integers(part["strides"]), _demand_naturals([part["first"]])[0]
        ends = [s * max(n - 1, 0) for s, n in zip(strides, shape, strict=True)]
        low, high = (first + sum(f(e, 0) for e in ends) for f in (min, max))
        if not is_placed and 0 not in shape and not 0 <= low <= high < table.rows:
            raise FormatError(f"{folder}: its chunks count rows {low} to {high} of {table.rows}")
        return ManifestPart(
            fragment, origin, ChunkManifest.of_table(table, shape, strides, first, numbers)
        )


def _is_inside(path: str) -> bool:
    """Say whether a path leads to a file in the folder of the set."""
    try:
        return path.startswith("./") and bool(to_set_path("", path))
    except FormatError:
        return False


def read_source_table(
    folder: str, said: Any, ranges: Mapping[str, Any] | None = None
) -> SourceTable:
    """Return the table of files that the metadata of an array name."""
    path, count = to_set_path(folder, said[0]), said[1]
    known = tuple((str(first), str(last)) for first, last in (ranges or {}).get(path, ()))
    return SourceTable(path, _demand_naturals([count])[0], known)


def _demand_integers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list | tuple) or any(type(n) is not int for n in values):
        raise FormatError(f"{values!r:.80} are not integers; the set is damaged")
    return tuple(values)


def _demand_naturals(values: Any) -> tuple[int, ...]:
    if any(n < 0 for n in _demand_integers(values)):
        raise FormatError(f"{values!r:.80} are below 0; the set is damaged")
    return tuple(values)


def to_set_path(folder: str, path: str) -> str:
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
        raise FormatError(f"{path!r} is not a path inside the set")
    return "/".join(parts)


def build_json_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the storage transformer of a manifest in the metadata."""
    return {"name": JSON_MANIFEST, "configuration": {"manifest": manifest}}
