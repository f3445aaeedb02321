"""Write one record of kerchunk Parquet: references of an array as a Parquet file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.manifest import ChunkManifest
from virtualds.formats.kerchunk.records import TOKEN, WRITER


def encode_record(
    chunks: ChunkManifest,
    name: Callable[[str], str],
    size: int,
    token: str | None,
    writer: str | None = None,
) -> bytes:
    """Return a row of chunks as a Parquet file, padded to the size of a record.

    ``name`` takes the url of a file, and returns it as it is written.
    """
    import pyarrow as pa

    file = _pad_column(np.asarray(chunks.file), size, MISSING)
    offset, length = (
        np.where(file >= 0, _pad_column(np.asarray(column), size, 0), 0)
        for column in (chunks.offset, chunks.length)
    )
    path = _encode_paths(chunks, name, file)
    names = {TOKEN: token, WRITER: writer}
    schema = pa.schema(
        [
            pa.field("path", path.type),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("size", pa.int64(), nullable=False),
            pa.field("raw", pa.binary()),
        ],
        {key: name.encode() for key, name in names.items() if name is not None},
    )
    columns = [path, pa.array(offset), pa.array(length), _encode_inline(chunks, file)]
    return encode_table(pa.table(columns, schema=schema))


def encode_table(table: Any) -> bytes:
    """Return the columns of a record as a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    # fastparquet reads integers as floats, unless statistics say that none is null
    known = ["offset", "size"]
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=["path"],
        write_statistics=known,
    )
    return bytes(sink.getvalue())


def _encode_paths(chunks: ChunkManifest, name: Callable[[str], str], file: npt.NDArray[Any]) -> Any:
    """Return the url of every row."""
    import pyarrow as pa

    used, codes = np.unique(file[file >= 0], return_inverse=True)
    numbers = np.zeros(file.size, np.int32)
    numbers[file >= 0] = codes
    urls = pa.array([name(chunks.files[n].url) for n in used.tolist()], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(numbers, mask=file < 0), urls)


def _encode_inline(chunks: ChunkManifest, file: npt.NDArray[Any]) -> Any:
    """Return the chunk of every row that holds one itself."""
    import pyarrow as pa

    if not (held := np.flatnonzero(file == INLINE)).size:
        return pa.nulls(file.size, pa.binary())
    values: list[bytes | None] = [None] * file.size
    for row, number in zip(held.tolist(), chunks.offset[held].tolist(), strict=True):
        values[row] = chunks.inline[number]
    return pa.array(values, pa.binary())


def _pad_column(column: npt.NDArray[Any], size: int, rest: int) -> npt.NDArray[Any]:
    return np.concatenate([column, np.full(size - column.size, rest, column.dtype)])
