"""One record of kerchunk Parquet as a file: written, and read as other tools write it, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.manifest import ChunkManifest
from virtualds.errors import FormatError

TOKEN = b"virtualds"
"""Key in the metadata of a record with the name of its set."""
WRITER = b"virtualds-writer"
"""Key in the metadata of a record with the name of its writer, so that no two records are equal."""

# ---------------------------------------------------------------------- writing


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


# ---------------------------------------------------------------------- reading
# Columns, as pandas, Arrow and other tools write them.


def read_urls(table: Any) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Return the number of every row's url, -1 where there is none, and the urls."""
    import pyarrow as pa

    count = table.num_rows
    if "path" not in table.column_names or not _is_filled(table["path"]):
        return np.full(count, MISSING, np.int32), []
    column = table["path"]
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column = column.unify_dictionaries().combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    codes = column.indices.fill_null(MISSING).to_numpy(zero_copy_only=False)
    urls = column.dictionary.cast(pa.string()).to_pylist()
    # Arrow does not check the indices of a dictionary
    if codes.size and not MISSING <= int(codes.min()) <= int(codes.max()) < len(urls):
        raise FormatError(f"its column path has {len(urls)} texts, and a row of another number")
    return codes.astype(np.int32), urls


def read_inline(table: Any) -> tuple[npt.NDArray[np.bool_], list[bytes]]:
    """Return which rows hold their chunk, and the chunks."""
    import pyarrow as pa

    count = table.num_rows
    if "raw" not in table.column_names or not _is_filled(table["raw"]):
        return np.zeros(count, bool), []
    column = table["raw"]
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    held = column.is_valid().to_numpy()
    return held, column.cast(pa.large_binary()).drop_null().to_pylist()


def _is_filled(column: Any) -> bool:
    """Say whether a column holds values: pandas gives empty columns any type."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    number = pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)
    return column.null_count < len(column) and not number


def read_integers(table: Any, name: str) -> npt.NDArray[np.int64]:
    """Return a column of integers, zeros where it has none: null, or NaN in columns of pandas."""
    if name not in table.column_names:
        return np.zeros(table.num_rows, np.int64)
    found = table[name].fill_null(0).to_numpy()
    if found.dtype.kind == "f":
        found = np.where(np.isnan(found), 0, found)
    return np.array(found, np.int64)
