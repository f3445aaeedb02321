"""The header of an ``.npy`` file: what follows it, and where.

Written after NEP 1, "A Simple File Format for NumPy Arrays", and the documentation of
`numpy.lib.format` for versions 2 and 3.
"""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

import numpy as np

from virtualds.errors import FormatError

MAGIC = b"\x93NUMPY"
WIDTHS = {1: 2, 2: 4, 3: 4}
"""Bytes of the length of the header, by major version."""
LONGEST = 10_000
"""Characters of a header: Python's parser can be crashed by long ones. numpy's limit, too."""
USUAL = 256
"""Bytes that are enough for most headers."""
KEYS = {"descr", "fortran_order", "shape"}


class NumpyHeader(NamedTuple):
    """What an ``.npy`` file holds; ``offset`` is where its values begin."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: str
    offset: int


def header_size(head: bytes, where: str) -> int:
    """Return how many bytes come before the values, by the first 12 bytes of a file.

    Raises
    ------
    FormatError
        The file is no ``.npy`` file of a known version, or its header is too long.
    """
    if not head.startswith(MAGIC) or len(head) < 12 or head[6] not in WIDTHS:
        raise FormatError(
            f"{where}: begins with {head[:8]!r}, which is no .npy file of version 1 to 3"
        )
    width = WIDTHS[head[6]]
    length = int.from_bytes(head[8 : 8 + width], "little")
    if length > LONGEST:
        raise FormatError(
            f"{where}: its header has {length} characters, more than the {LONGEST} that are read; "
            f"it is damaged, or its dtype has too many fields"
        )
    return 8 + width + length


def parse_numpy_header(head: bytes, where: str) -> NumpyHeader:
    """Return the header of an ``.npy`` file, all of which is in ``head``.

    Raises
    ------
    FormatError
        It is damaged.
    """
    size = header_size(head, where)
    encoding = "utf-8" if head[6] == 3 else "latin-1"
    raw = head[8 + WIDTHS[head[6]] : size]
    try:
        if len(head) < size:
            raise ValueError(f"{len(head)} of {size} bytes")
        found = ast.literal_eval(raw.decode(encoding).strip(" \0\n"))
        if not isinstance(found, dict) or set(found) != KEYS:
            raise ValueError(f"its keys are not {sorted(KEYS)}")
        shape, order = found["shape"], found["fortran_order"]
        if not isinstance(shape, tuple) or not isinstance(order, bool):
            raise ValueError(f"shape {shape!r:.100}, fortran_order {order!r:.100}")
        dtype = np.lib.format.descr_to_dtype(found["descr"])
    except (
        ArithmeticError,
        AttributeError,
        IndexError,
        KeyError,
        MemoryError,
        RecursionError,
        SyntaxError,
        TypeError,
        ValueError,
    ) as error:
        raise FormatError(
            f"{where}: its header {raw[:100]!r} is none ({error}); the file is damaged, fetch it "
            f"again"
        ) from error
    return NumpyHeader(dtype, shape, "F" if order else "C", size)
