"""Numbers in JSON as Zarr v3 spells them: fill values, and what codecs reckon with.

Zarr core specification version 3.0, "Fill value".
"""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np

NON_FINITE = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
"""How JSON spells what it has no number for; Zarr does the same."""


def int_bytes(value: Any, dtype: np.dtype[Any]) -> bytes:
    """Return the bytes of an integer of a type in the byte order of the machine.

    Raises
    ------
    ValueError, TypeError, OverflowError
        It is none of that type.
    """
    # writers without integers say 0.0
    if isinstance(value, str) or int(value) != value:
        raise ValueError("not an integer")
    # numpy itself refuses what lies beyond the limits of a type
    return np.asarray(int(value), dtype).tobytes()


def float_bytes(value: Any, dtype: np.dtype[Any]) -> bytes:
    """Return the bytes of a float of a type in the byte order of the machine.

    Raises
    ------
    ValueError, TypeError
        It is none of that type.
    """
    if not isinstance(value, str):
        with np.errstate(over="ignore"):
            return np.asarray(float(value)).astype(dtype).tobytes()
    if value in NON_FINITE:
        return np.asarray(NON_FINITE[value], dtype).tobytes()
    if not re.fullmatch(rf"0x[0-9a-fA-F]{{{2 * dtype.itemsize}}}", value):
        raise ValueError(f"neither {', '.join(NON_FINITE)}, nor 0x and {2 * dtype.itemsize} digits")
    raw = bytes.fromhex(value[2:])
    return raw[::-1] if sys.byteorder == "little" else raw


def number(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return an integer or float as a scalar of its type, in the byte order of the machine.

    Raises
    ------
    ValueError, TypeError, OverflowError
        It is none of that type.

    Examples
    --------
    >>> number("-Infinity", np.dtype(">f4")), number(7.0, np.dtype("i2"))
    (np.float32(-inf), np.int16(7))
    """
    # Python reads what JSON has no number for, and true for 1; neither can be written again
    if isinstance(value, bool) or (isinstance(value, float) and not np.isfinite(value)):
        raise ValueError(f"{value!r} is no number of JSON")
    native = dtype.newbyteorder("=")
    raw = (float_bytes if dtype.kind == "f" else int_bytes)(value, native)
    return np.frombuffer(raw, native)[0]
