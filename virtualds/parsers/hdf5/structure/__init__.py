"""The structure of HDF5 files, parsed from bytes; here, bytes of several files as rows.

HDF5 File Format Specification 3.0. Rows of equal length are parsed to columns of numbers.

Functions that take a file raise `FormatError` if it is damaged, and `DeclinedError` if it has an
unknown form. Parsers of messages, which do not know the file, raise `MessageError` and
`UnknownFormError` instead; functions of rows raise `RowsError` and `UnknownRowsError`, which name
the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from virtualds.chunks.columns import Ints
from virtualds.stores.store import Range

Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

CHECKSUM_BYTES = 4
"""Size in bytes of a checksum."""
MAX_GAP = 2**14
"""Maximum number of bytes between rows that are read together."""
BATCH_BYTES = 2**22
"""Size in bytes of the rows to read at a time."""


class RowsError(Exception):
    """Raised if rows of some files are damaged.

    Parameters
    ----------
    files : frozenset of int
        The indexes of these files.
    reason : str
    """

    def __init__(self, files: frozenset[int], reason: str) -> None:
        super().__init__(files, reason)
        self.files, self.reason = files, reason


class UnknownRowsError(RowsError):
    """Raised if rows of some files have an unknown form."""


class ByteRows(Protocol):
    """The bytes of several files, numbered from 0; addresses are relative to each file's base."""

    @property
    def offset_size(self) -> int:
        """The size in bytes of an address, in all of the files."""

    @property
    def length_size(self) -> int:
        """The size in bytes of a length, in all of the files."""

    @property
    def istore_k(self) -> int:
        """Half of the maximum number of children of a node of a version 1 B-tree of chunks."""

    @property
    def ends(self) -> Ints:
        """The number of bytes that can be addressed in each file."""

    def read_rows(self, file: Ints, address: Ints, length: int) -> Bytes:
        """Return rows of equal length, one for each address, of shape ``(n, length)``.

        Raises `RowsError` if rows are outside their files.
        """


def require(is_valid: Bools, file: Ints, reason: str, error: type[RowsError] = RowsError) -> None:
    """Raise an error that names the files of invalid rows."""
    if not is_valid.all():
        raise error(frozenset(file[~is_valid].tolist()), reason)


def have_checksums(rows: Bytes) -> Bools:
    """Return whether each row ends with the checksum of its other bytes (lookup3)."""
    stated = read_uints(rows[:, -CHECKSUM_BYTES:])
    return np.equal(compute_checksums(rows[:, :-CHECKSUM_BYTES]), stated)


def compute_checksums(rows: Bytes | list[Bytes]) -> Ints:
    """Return the checksum of each row (lookup3)."""
    # imported lazily, since it is slow and only some files have checksums
    from numcodecs.jenkins import jenkins_lookup3

    return np.fromiter(map(jenkins_lookup3, rows), np.int64, len(rows))


def read_uints(fields: Bytes) -> Ints:
    """Return the unsigned integers of fields of up to eight bytes; 2**63 and more are negative.

    Parameters
    ----------
    fields : uint8 array, shape (..., width)
        Contiguous along the last axis.

    Returns
    -------
    int64 array, shape (...)
    """
    width = fields.shape[-1]
    if width in (1, 2, 4, 8):
        native = fields.view("<i8" if width == 8 else f"<u{width}")
        return native[..., 0].astype(np.int64)
    numbers = np.zeros(fields.shape[:-1], np.int64)
    for index in range(width):
        numbers |= fields[..., index].astype(np.int64) << 8 * index
    return numbers


def is_defined(address: Ints, offset_size: int) -> Bools:
    """Return whether each address is defined; all bits of an undefined address are set (II.A)."""
    return np.not_equal(address, -1 if offset_size == 8 else (1 << 8 * offset_size) - 1)


def read_row_batches(
    rows: ByteRows, file: Ints, address: Ints, length: int
) -> Iterator[tuple[slice, Bytes]]:
    """Yield slices of about `BATCH_BYTES` bytes, with their rows."""
    step = max(BATCH_BYTES // length, 1)
    for begin in range(0, len(address), step):
        part = slice(begin, begin + step)
        yield part, rows.read_rows(file[part], address[part], length)


def check_single_parents(
    rows: ByteRows, file: Ints, owner: Ints, address: Ints, length: int, reason: str
) -> None:
    """Require that each block has one parent, and that the blocks of an index fit into its file.

    ``owner`` is the index of each block; ``reason`` is the error for a block with two parents.
    """
    order = np.lexsort((address, owner))
    addresses, owners = address[order], owner[order]
    is_repeated = (addresses[1:] == addresses[:-1]) & (owners[1:] == owners[:-1])
    require(~is_repeated, file[order[1:]], reason)
    count = np.bincount(owner)
    require((count * length)[owner] <= rows.ends[file], file, "an index is longer than the file")


def gather_rows(
    address: Ints, length: int, end: int, read: Callable[[list[Range]], Iterator[bytes]]
) -> Bytes:
    """Return rows of equal length of one file; adjacent rows are read in one range.

    Raises `RowsError` if rows are past the end.
    """
    if not address.size:
        return np.empty((0, length), np.uint8)
    if int(address.min()) < 0 or int(address.max()) > end - length:
        raise RowsError(frozenset({0}), f"it names {length} bytes past the end, at {end}")
    if address.size == 1:
        (data,) = read([(int(address[0]), length)])
        return np.frombuffer(data, np.uint8).reshape(1, length)
    order = np.argsort(address, kind="stable")
    ordered = address[order]
    runs = _find_runs(ordered, length)
    ranges = [(int(ordered[i]), int(ordered[j - 1] - ordered[i]) + length) for i, j in runs]
    rows_read = np.empty((address.size, length), np.uint8)
    for (i, j), data in zip(runs, read(ranges), strict=True):
        windows = sliding_window_view(np.frombuffer(data, np.uint8), length)
        rows_read[order[i:j]] = windows[ordered[i:j] - ordered[i]]
    return rows_read


def _find_runs(address: Ints, length: int) -> list[tuple[int, int]]:
    """Return the runs of sorted rows to read in one range, which are close together and short."""
    is_far = np.diff(address) > length + MAX_GAP
    block = (address - address[0]) // BATCH_BYTES
    breaks = (np.flatnonzero(is_far | (np.diff(block) != 0)) + 1).tolist()
    return list(pairwise([0, *breaks, len(address)]))


# ---------------------------------------------------------------------- version 2 B-trees


NODE_PREFIX_BYTES = 6
"""Size in bytes of a node before its records: signature, version and type (III.A.2)."""
MAX_DEPTH = 32
"""Maximum depth of a tree; a deeper tree would have more records than there are addresses."""


class TreeLayout(NamedTuple):
    """The layout of the nodes of a version 2 B-tree (III.A.2).

    Parameters
    ----------
    size, record : int
        The size in bytes of a node, and of a record.
    depth : int
        The number of levels below the root.
    max_records, pointer, total : tuple of int
        By level, the leaves first: the maximum number of records of a node, the size in bytes of a
        pointer, and of the total number of records in it.
    """

    size: int
    record: int
    depth: int
    max_records: tuple[int, ...]
    pointer: tuple[int, ...]
    total: tuple[int, ...]

    @property
    def count_size(self) -> int:
        """The size in bytes of the number of records of a node."""
        return _compute_byte_width(self.max_records[0])

    @classmethod
    def from_header(cls, size: int, record: int, depth: int, offset_size: int) -> TreeLayout | None:
        """Return the layout of a tree from its header, or None if it is inconsistent."""
        room = size - NODE_PREFIX_BYTES - CHECKSUM_BYTES
        if depth > MAX_DEPTH or not 0 < record <= room:
            return None
        max_records, pointer, total = [room // record], [0], [0]
        below = max_records[0]
        for level in range(1, depth + 1):
            # pointers to inner nodes also have the total number of records below
            total.append(_compute_byte_width(below) if level > 1 else 0)
            pointer.append(offset_size + _compute_byte_width(max_records[0]) + total[level])
            max_records.append((room - pointer[level]) // (record + pointer[level]))
            if max_records[level] < 1:
                return None
            below = (max_records[level] + 1) * below + max_records[level]
        return cls(size, record, depth, tuple(max_records), tuple(pointer), tuple(total))


def _compute_byte_width(number: int) -> int:
    """Return the number of bytes that a number needs."""
    return -(-number.bit_length() // 8)
