"""Checks of the memory that reading a file would take, before it is allocated.

The limits of decoded streams are in `virtualds.streams`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from virtualds.errors import UnsupportedError
from virtualds.options import find_usable_memory, get_options

MAX_CHUNKS = 10**7
"""Chunks that every table may have."""

CHUNKS_PER_REFERENCE = 1000
"""Chunks that a larger table may have for each of its references."""

MAX_AXES = 32
"""Maximum number of axes of an array, as in HDF5 and in numpy's iterators."""

MAX_ELEMENT_SIZE = 2**24
"""Maximum size of an element in bytes."""

MAX_TYPE_DEPTH = 64
"""Maximum number of levels of nested compound types."""

MAX_EXPANSION = 1000
"""Decoded bytes that a large coordinate may have for each stored byte."""

ALWAYS_ALLOWED = 2**26
"""Bytes that a chunk or a coordinate may always have, even with a lower limit."""


def check_table(grid: tuple[int, ...], references: int, where: str) -> None:
    """Raise an error for a table whose chunk grid has far more chunks than references.

    A table without references takes no memory.

    Raises
    ------
    UnsupportedError
        The grid has too many chunks.
    """
    chunks = prod(grid)
    if references and chunks > max(MAX_CHUNKS, CHUNKS_PER_REFERENCE * references):
        raise UnsupportedError(
            f"{where}: a grid of {chunks} chunks {grid} with {references} references, whose table "
            f"would be almost empty and take {28 * chunks / 2**30:.1f} GiB; store the array in "
            f"larger chunks, or leave it out with drop_variables"
        )


def check_axes(count: int, where: str) -> None:
    """Raise an error for arrays with more axes than numpy's iterators support.

    Raises
    ------
    UnsupportedError
        There are more than `MAX_AXES`.
    """
    if count > MAX_AXES:
        raise UnsupportedError(
            f"{where} has {count} axes, where at most {MAX_AXES} are read; leave it out with "
            f"drop_variables or on_error='skip'"
        )


def check_element(itemsize: int, where: str) -> None:
    """Raise an error for elements so large that a single fill value would take much memory.

    Raises
    ------
    UnsupportedError
        They are larger than `MAX_ELEMENT_SIZE`.
    """
    if itemsize > MAX_ELEMENT_SIZE:
        raise UnsupportedError(
            f"{where}: elements of {itemsize} bytes, where at most {MAX_ELEMENT_SIZE} are read; "
            f"leave the variable out with drop_variables, or fetch the file again if its metadata "
            f"are damaged"
        )


def check_nesting(dtype: np.dtype[Any], where: str) -> None:
    """Raise an error for compound types so deep that Python cannot pickle or print them.

    Raises
    ------
    UnsupportedError
        They are deeper than `MAX_TYPE_DEPTH`.
    """
    depth, level = 0, [dtype]
    while level := [
        kind.base
        for outer in level
        for kind, *_ in (outer.fields or {}).values()
        if kind.base.names
    ]:
        depth += 1
        if depth > MAX_TYPE_DEPTH:
            raise UnsupportedError(
                f"{where}: more than {MAX_TYPE_DEPTH} levels of nested compound types; leave the "
                f"variable out with drop_variables, or fetch the file again if its metadata are "
                f"damaged"
            )


def check_chunk(nbytes: int, taken: int, where: str) -> None:
    """Raise an error for a chunk that takes far more memory than the selected part of it.

    Raises
    ------
    UnsupportedError
        It takes more than `set_options(load_limit=...)` and `ALWAYS_ALLOWED` allow, and more than
        the ``taken`` bytes of the selection.
    """
    if nbytes > max(_compute_limit(), taken):
        raise UnsupportedError(
            f"{where}: a chunk has {nbytes} bytes once decoded, of which {taken} are selected, "
            f"and the limit is {_compute_limit()}; load the whole variable with ds.virtual.load(), "
            f"raise the limit with virtualds.set_options(load_limit=...), or store it in smaller "
            f"chunks"
        )


def is_below_load_limit(nbytes: int) -> bool:
    """Return whether opening may load a coordinate of ``nbytes``."""
    return nbytes <= _compute_limit()


def _compute_limit() -> int:
    return max(get_options().load_limit, ALWAYS_ALLOWED)


def check_values(nbytes: int, where: str) -> None:
    """Raise an error for a coordinate, or other values, too large to load on opening.

    Raises
    ------
    UnsupportedError
        They have more bytes than `set_options(load_limit=...)` and `ALWAYS_ALLOWED` allow.
    """
    if not is_below_load_limit(nbytes):
        raise UnsupportedError(
            f"{where}: this coordinate has {nbytes} bytes, and opening loads at most "
            f"{_compute_limit()}; leave it out with drop_variables or on_error='skip', or raise "
            f"the limit with virtualds.set_options(load_limit=...)"
        )


def check_selection(nbytes: int) -> None:
    """Raise an error for a selection of values without byte ranges (strings) that is too large.

    Raises
    ------
    UnsupportedError
        It takes more than `set_options(load_limit=...)` and `ALWAYS_ALLOWED` allow.
    """
    if nbytes > _compute_limit():
        raise UnsupportedError(
            f"this would load {nbytes:,} bytes, more than the limit of {_compute_limit():,}; "
            f"select fewer values that lie next to each other, leave the variable out with "
            f"drop_variables, or raise the limit with virtualds.set_options(load_limit=...)"
        )


def check_joinable(nbytes: int, where: str) -> None:
    """Raise an error for a join along an axis so long that its indexes take too much memory.

    Parameters
    ----------
    nbytes : int
        Bytes of the masks or indexes of the whole axis.
    where : str
        Name of the axis for the message.

    Raises
    ------
    UnsupportedError
        They take more than `set_options(load_limit=...)`, `ALWAYS_ALLOWED` and a quarter of the
        available memory.
    """
    if nbytes > _compute_limit() and nbytes > (
        limit := max(_compute_limit(), find_usable_memory() // 4)
    ):
        raise UnsupportedError(
            f"{where}: joining variables along it takes {nbytes:,} bytes of memory for its length, "
            f"more than the limit of {limit:,}; leave out the variables with this dimension "
            f"(drop_variables=, or ds.drop_vars), or raise the limit with "
            f"virtualds.set_options(load_limit=...)"
        )


def check_size_in_files(nbytes: int, count_stored: Callable[[], int], where: str) -> None:
    """Raise an error for an index coordinate that is far larger than its stored bytes.

    Parameters
    ----------
    nbytes : int
        Bytes of its values.
    count_stored : callable
        Returns its bytes in files. Called only for large coordinates, since it takes time.
    where : str
        Name of the coordinate for the message.

    Raises
    ------
    UnsupportedError
        It is large, and far larger than its stored bytes.
    """
    if not is_below_load_limit(nbytes) and nbytes > MAX_EXPANSION * (stored := count_stored()):
        raise UnsupportedError(
            f"{where}: this coordinate has {nbytes} bytes, of which {stored} are in files; fetch "
            f"the file again if its metadata are damaged, or leave the coordinate out with "
            f"drop_variables or on_error='skip'"
        )
