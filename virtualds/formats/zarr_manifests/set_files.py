"""Read the files of a zarr-v3 set: metadata, records of tables, and referenced files."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from virtualds.chunks.tables import RecordCache, make_opening_id, read_parquet, unpickle_shared
from virtualds.errors import FormatError, ReadError
from virtualds.formats import make_unreachable_error
from virtualds.formats.referenced_files import NO_FINGERPRINT, Fingerprint, ReferencedFiles
from virtualds.formats.zarr import FOLDER
from virtualds.json_values import parse_json
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.access_rules import DEFAULT_POLICY, AccessPolicy

MAX_CACHED_FILES = 2**22
"""Maximum number of `SourceFile` objects in cached tuples, about 800 MB.

A set of a million files needs two million: those of its tables, and those of the records in use.
"""
CACHED_RECORDS = 24
"""The number of records, of references and of sources, that one set caches."""


class SetFiles:
    """The files of the set in a folder, and the files to which it refers.

    Recently used records are cached. ``allow`` says to which files the set may refer.
    ``ranges`` are the recorded first and last paths of the records of tables of files, by folder.
    """

    ranges: Mapping[str, Any] = {}

    def __init__(
        self,
        root: str,
        options: StorageOptions | None,
        allow: AccessPolicy = DEFAULT_POLICY,
        ranges: Mapping[str, Any] | None = None,
    ) -> None:
        self.root = root
        self.options = options
        self.allow = allow
        self.ranges = ranges or {}
        self._opening = make_opening_id()
        self._open()

    def _open(self) -> None:
        """Create the caches, which are not pickled."""
        # relative paths are resolved against the folder of the set
        base_file = SourceFile(f"{self.root}/zarr.json", options=self.options)
        self._files = ReferencedFiles(base_file, {}, self.allow)
        # files in the folder of the set are always allowed
        prefixes = None if self.allow.prefixes is None else (self.root.split("::")[-1],)
        self._own_files = ReferencedFiles(base_file, {}, AccessPolicy(prefixes))
        self._cache: RecordCache[Any] = RecordCache(CACHED_RECORDS)
        self._cached_files = _FilesCache(MAX_CACHED_FILES)

    def __getstate__(self) -> dict[str, Any]:
        """Return the location of the set, without caches."""
        return {"root": self.root, "options": self.options, "allow": self.allow}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __reduce__(self) -> tuple[Any, ...]:
        state = self.__getstate__() | {"_opening": self._opening}
        return unpickle_shared, (SetFiles, self._opening, state)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        from dask.base import normalize_token

        return ("virtualds-set", *map(normalize_token, self.__getstate__().values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SetFiles) and self.__getstate__() == other.__getstate__()

    def __hash__(self) -> int:
        return hash(self.root)

    def get_file(self, path: str, fingerprint: Fingerprint = NO_FINGERPRINT) -> SourceFile:
        """Return the file for a path in the metadata of the set."""
        files = self._own_files if _is_inside(path) else self._files
        return files.make_file(path, fingerprint)

    def get_size(self, file: SourceFile) -> int:
        """Return the size of a file, for a chunk that is a whole file."""
        return self._files.get_size(file) or 0

    def read(self, path: str) -> bytes:
        """Return the content of a file of the set."""
        url = f"{self.root}/{path}"
        try:
            return find_store(url).read_all(url, self.options)
        except FileNotFoundError as error:
            raise ReadError(
                f"{url}: it is gone; its snapshot has expired, or the set is damaged: open it again"
            ) from error
        except OSError as error:
            raise make_unreachable_error(url, error) from error

    def read_record(self, path: str) -> dict[str, Any]:
        """Return the columns of a record, as `read_columns` does."""
        columns: dict[str, Any] = self._cache.get(
            path, lambda: read_columns(self.read(path), f"{self.root}/{path}")
        )
        return columns

    def read_column(self, path: str, name: str) -> Any:
        """Return one column of a record as an array, without caching it."""
        url = f"{self.root}/{path}"
        return read_parquet(self.read(path), url, columns=[name])[name].to_numpy()

    def find_written_paths(self, url: str) -> set[str]:
        """Return the paths that a set may have for a url, even if it was moved."""
        return {url, to_written_path(self.root, url)}

    def get_cached(self, name: Hashable, read: Callable[[], Any]) -> Any:
        """Return the result of ``read``, from the cache if possible."""
        return self._cache.get(name, read)

    def get_cached_files(
        self, name: Hashable, read: Callable[[], tuple[SourceFile, ...]]
    ) -> tuple[SourceFile, ...]:
        """Return the result of ``read``, from a cache if possible, so that arrays share tuples."""
        return self._cached_files.get(name, read)

    def read_document(self, path: str) -> Any:
        """Return the content of a JSON file of the set."""
        return self._cache.get(path, lambda: parse_json(self.read(path), f"{self.root}/{path}"))


class _FilesCache(RecordCache[tuple[SourceFile, ...]]):
    """A cache of tuples of files with a limited number of files."""

    def weigh(self, record: tuple[SourceFile, ...]) -> int:
        """Return the number of files."""
        return len(record)

    def get_max_weight(self) -> int:
        """Return the maximum number of files, which is at least that of the newest tuple."""
        newest = next(reversed(self._records.values()), ())
        return max(super().get_max_weight(), len(newest))


def read_columns(data: bytes, url: str) -> dict[str, Any]:
    """Return the columns of a record: non-null integers as numpy arrays, others as Arrow."""
    import pyarrow as pa

    table = read_parquet(data, url)
    columns = {}
    for name in table.column_names:
        column = table[name]
        is_integer = pa.types.is_integer(column.type) and name not in ("size", "mtime")
        columns[name] = column.to_numpy() if is_integer else column
    return columns


# ---------------------------------------------------------------------- paths


def to_written_path(root: str, url: str, *, relative: bool = False) -> str:
    """Return the path to write for a url: a path inside the set at ``root``, or the url.

    With ``relative``, it is relative to the set where possible.
    """
    if url.startswith(f"{root}/"):
        return f".{url[len(root) :]}"
    if not relative or url.split("/")[:3] != root.split("/")[:3]:
        return url
    return os.path.relpath(url, root).replace(os.sep, "/")


def to_set_path(folder: str, path: str) -> str:
    """Return the path in the set of a path relative to the folder of an array."""
    parts: list[str] = [p for p in folder.split("/") if p]
    for part in path.split("/"):
        if part == "..":
            if not parts:
                raise FormatError(f"{path!r}, relative to {folder!r}, leads out of the set")
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    if "\\" in path or path.startswith("/"):
        raise FormatError(f"{path!r} is not a path inside the set")
    return "/".join(parts)


def _is_inside(path: str) -> bool:
    """Return whether a path is that of a file in the folder of the set."""
    try:
        return path.startswith("./") and bool(to_set_path("", path))
    except FormatError:
        return False


def get_parts_folder(snapshot: str) -> str:
    """Return the path of the folder with the parts of a snapshot."""
    return f"{FOLDER}/{snapshot}/parts"
