"""Records of Parquet sets: files with rows of references, read when needed and kept.

In all Parquet sets a row lies in record ``row // size``, and the records used last are kept; the
contents of records differ.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.errors import FormatError

CACHED = 2**21
"""Rows of one set that are kept in memory."""

SETS = 8
"""Sets that a process keeps open for unpickled arrays."""

Record = TypeVar("Record")


class RecordCache(Generic[Record]):
    """The records that were used last, by name.

    Parameters
    ----------
    most : int
        Records that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = max(2, most)
        self._kept: OrderedDict[Hashable, Record] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, name: Hashable) -> Record | None:
        """Return a record, None if it is not kept."""
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
            return self._kept.get(name)

    def put(self, name: Hashable, record: Record) -> None:
        """Keep a record, and drop the least recently used ones."""
        with self._lock:
            self._kept[name] = record
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def get(self, name: Hashable, read: Callable[[], Record]) -> Record:
        """Return a record, reading it if it is not kept."""
        if (found := self.find(name)) is None:
            found = read()
            self.put(name, found)
        return found


_open_sets: RecordCache[Any] = RecordCache(SETS)


def name_opening() -> str:
    """Return a name for one opening of a set, which its pickles carry along."""
    return secrets.token_hex(8)


def share_opening(kind: type[Record], name: str, state: Mapping[str, Any]) -> Record:
    """Return the unpickled object of an opening, which all its pickles share in a process.

    So dask tasks share the records that they read. A new opening is another object, since the set
    may have changed.
    """

    def made() -> Record:
        found = kind.__new__(kind)
        found.__setstate__(state)  # type: ignore[attr-defined]
        return found

    shared: Record = _open_sets.get((kind, name), made)
    return shared


def read_rows(ids: Ints, size: int, rows: Callable[[int, Ints], ChunkManifest]) -> ChunkManifest:
    """Return the rows of these numbers, in their shape, asking every record once.

    Parameters
    ----------
    ids : int64 array
    size : int
        Rows in a record.
    rows : callable
        Takes the number of a record and rising row numbers inside it.
    """
    flat, where = np.unique(ids, return_inverse=True)
    if not flat.size:
        return ChunkManifest.missing(ids.shape)
    record, row = np.divmod(flat, size)
    cuts = np.flatnonzero(np.diff(record)) + 1
    parts = [
        rows(int(numbers[0]), inside)
        for numbers, inside in zip(np.split(record, cuts), np.split(row, cuts), strict=True)
    ]
    joined = ChunkManifest.concatenate(parts, 0)
    if flat.size == ids.size and (where.ravel()[1:] > where.ravel()[:-1]).all():
        return joined.reshape(ids.shape)
    return joined.at(where.reshape(ids.shape))


def read_parquet(
    data: bytes,
    url: str,
    dictionaries: Sequence[str] = (),
    columns: Sequence[str] | None = None,
) -> Any:
    """Return all or some columns of a Parquet file as an Arrow table, some as dictionaries.

    Only this thread touches the bytes. A thread of Arrow that releases them needs the interpreter;
    after the interpreter has ended, that would crash the process.

    Raises
    ------
    FormatError
        The file is not Parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(pa.BufferReader(data))
        there = set(dictionaries).intersection(metadata.schema.names)
        file = pq.ParquetFile(
            pa.BufferReader(data), metadata=metadata, read_dictionary=there, pre_buffer=False
        )
        return file.read(columns=columns, use_threads=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{url}: not a Parquet file ({error}); write it anew") from error
