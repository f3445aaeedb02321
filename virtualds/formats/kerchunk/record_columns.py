"""Columns of a record of kerchunk Parquet, as pandas, Arrow and other tools write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import MISSING
from virtualds.errors import FormatError


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
