"""Attributes and tables as strict JSON, with the numpy types that JSON forgets.

JSON has one kind of number and no infinities. A type is recorded where reading the JSON would
return another one; within objects and lists it is recorded under its JSON pointer (RFC 6901).
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from virtualds.errors import FormatError, UnsupportedError
from virtualds.importing import pause_garbage_collection

Types = str | Mapping[str, str]
"""The numpy type of a value; or, for an object or a list, the types in it by pointer."""

MAX_DEPTH = 100
"""Levels of nested objects and lists: an object that contains itself has no end."""

MAX_BITS = 2**13
"""Bits of an integer: Python converts at most 4300 digits from or to text."""

NON_FINITE = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
"""Spellings in JSON of values that are not JSON numbers; Zarr uses the same."""


def to_json(attributes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Types]]:
    """Return attributes as JSON values, and the numpy types that JSON forgets.

    Raises
    ------
    UnsupportedError
        An attribute has no form in JSON; the message names it.

    Examples
    --------
    >>> to_json({"scale": np.float32(2), "crs": {"radius": [1, np.int16(2)], "datum": None}})[1]
    {'scale': '<f4', 'crs': {'/radius/1': '<i2'}}
    """
    plain, types = {}, dict[str, Types]()
    for name, value in attributes.items():
        notes: dict[str, str] = {}
        try:
            plain[name] = _encode_attribute(value, notes)
        except _NotJsonError as error:
            raise UnsupportedError(
                f"attribute {name!r}: {_format_value(value)} has no form in JSON{error}; change "
                f"it with ds.attrs, or drop it"
            ) from None
        if notes:
            types[name] = notes.get("", notes)
    return plain, types


def from_json(value: Any, kind: Types | None) -> Any:
    """Return an attribute with the numpy types that were recorded for it.

    Raises
    ------
    FormatError
        Objects and lists are nested more deeply than `to_json` writes them.
    """
    if isinstance(kind, str):
        return _restore_type(value, np.dtype(kind))
    # a copy, so that changes of the attribute do not reach the document
    found = _copy_json(value)
    for pointer, dtype in (kind or {}).items():
        *parents, last = (_unescape(part) for part in pointer.split("/")[1:])
        holder = found
        for part in parents:
            holder = holder[_find_key(holder, part)]
        key = _find_key(holder, last)
        holder[key] = _restore_type(holder[key], np.dtype(dtype))
    return found


def _copy_json(value: Any, depth: int = 0) -> Any:
    """Return a deep copy of a JSON value."""
    if not isinstance(value, dict | list):
        return value
    if depth == MAX_DEPTH:
        raise FormatError(
            f"an attribute with more than {MAX_DEPTH} nested objects and lists; the metadata is "
            f"damaged"
        )
    if isinstance(value, dict):
        return {key: _copy_json(member, depth + 1) for key, member in value.items()}
    return [_copy_json(item, depth + 1) for item in value]


def _restore_type(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a JSON value other than an object as a numpy type."""
    if dtype.kind == "S":
        return np.bytes_(value.encode("latin-1"))
    if dtype.kind in "mM":
        # counts of the unit, including the number for "not a time"
        counts: Any = np.array(value, "i8").view(dtype)
        return counts if counts.ndim else counts[()]
    numbers = _to_numbers(value, dtype.kind == "c")
    return np.array(numbers, dtype) if isinstance(numbers, list) else dtype.type(numbers)


def _to_numbers(value: Any, is_complex: bool) -> Any:
    """Return Python numbers, in lists as deep as the array has axes."""
    if isinstance(value, str):
        return NON_FINITE.get(value, value)
    if not isinstance(value, list):
        return value
    if is_complex and value and not isinstance(value[0], list):
        return complex(*(_to_numbers(part, False) for part in value))
    return [_to_numbers(item, is_complex) for item in value]


# ---------------------------------------------------------------------- writing


class _NotJsonError(Exception):
    """A value has no JSON form; the text completes the error message."""


def _format_value(value: Any) -> str:
    try:
        return f"{value!r:.200}"
    except (RecursionError, ValueError):
        # nested too deeply for repr, or a number with too many digits
        return f"its {type(value).__name__}"


def _encode_attribute(value: Any, notes: dict[str, str]) -> Any:
    """Return an attribute as JSON; the type np.float64, a subclass of float, is recorded too."""
    is_number = isinstance(value, np.float64)
    return _encode_numpy(value, "", notes) if is_number else _encode_value(value, "", notes)


def _encode_value(value: Any, pointer: str, notes: dict[str, str], depth: int = 0) -> Any:
    """Return a value as JSON, and record by pointer the types that JSON loses."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise _NotJsonError(f": an integer of {value.bit_length()} bits")
        return value
    if isinstance(value, float):
        if not np.isfinite(value):
            notes[pointer] = "<f8"
        return _encode_finite(value)
    if isinstance(value, bytes):
        notes[pointer] = "S"
        return value.decode("latin-1")
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "OUT":
        return _encode_numpy(value, pointer, notes)
    if depth == MAX_DEPTH:
        raise _NotJsonError(f": more than {MAX_DEPTH} nested objects and lists")
    if isinstance(value, Mapping):
        return _encode_members(value, pointer, notes, depth)
    if isinstance(value, list | tuple):
        return [_encode_value(v, f"{pointer}/{i}", notes, depth + 1) for i, v in enumerate(value)]
    if isinstance(value, np.ndarray):
        return _encode_value(value.tolist(), pointer, notes, depth + 1)
    raise _NotJsonError(f": {type(value).__name__} is not a JSON type" if pointer else "")


def _encode_members(
    value: Mapping[Any, Any], pointer: str, notes: dict[str, str], depth: int
) -> dict[str, Any]:
    if odd := [key for key in value if not isinstance(key, str)]:
        raise _NotJsonError(f", where keys are strings, and {odd[0]!r} is not")
    return {
        str(key): _encode_value(v, f"{pointer}/{_escape(key)}", notes, depth + 1)
        for key, v in value.items()
    }


def _encode_numpy(value: Any, pointer: str, notes: dict[str, str]) -> Any:
    """Return numbers, dates or byte strings of numpy as JSON, and record their type."""
    native = value.dtype.newbyteorder("=")
    if native.kind in "biufc" and native.char not in "gG":
        notes[pointer] = native.str
        return _encode_finite(value.tolist())
    if native.kind in "mM":
        notes[pointer] = native.str
        return np.asarray(value, native).view("i8").tolist()
    raise _NotJsonError(f": {value.dtype} is not a JSON type" if pointer else "")


def _encode_finite(value: Any) -> Any:
    """Return numbers in strict JSON, which has no NaN and no infinities."""
    if isinstance(value, list):
        return [_encode_finite(item) for item in value]
    if isinstance(value, complex):
        return [_encode_finite(value.real), _encode_finite(value.imag)]
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value


# ---------------------------------------------------------------------- pointers (RFC 6901)


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def _find_key(holder: Any, part: str) -> Any:
    """Return the key of an object, or the index of a list, for one part of a pointer."""
    return int(part) if isinstance(holder, list) else part


# ---------------------------------------------------------------------- numbers


def encode_int(value: Any, dtype: np.dtype[Any]) -> bytes:
    """Return the bytes of an integer of a type in the byte order of the machine.

    Raises
    ------
    ValueError, TypeError, OverflowError
        The value is not of that type.
    """
    # writers without integers write 0.0
    if isinstance(value, str) or int(value) != value:
        raise ValueError("not an integer")
    # numpy rejects values outside the range of the type
    return np.asarray(int(value), dtype).tobytes()


def encode_float(value: Any, dtype: np.dtype[Any]) -> bytes:
    """Return the bytes of a float of a type in the byte order of the machine.

    Raises
    ------
    ValueError, TypeError
        The value is not of that type.
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


def to_scalar(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return an integer or float as a scalar of a type, in the byte order of the machine.

    Raises
    ------
    ValueError, TypeError, OverflowError
        The value is not of that type.

    Examples
    --------
    >>> to_scalar("-Infinity", np.dtype(">f4")), to_scalar(7.0, np.dtype("i2"))
    (np.float32(-inf), np.int16(7))
    """
    # Python reads NaN, and treats true as 1; neither could be written again
    if isinstance(value, bool) or (isinstance(value, float) and not np.isfinite(value)):
        raise ValueError(f"{value!r} is not a JSON number")
    native = dtype.newbyteorder("=")
    raw = (encode_float if dtype.kind == "f" else encode_int)(value, native)
    return np.frombuffer(raw, native)[0]


def parse_json(text: str | bytes, where: str) -> Any:
    """Return the value of a JSON text.

    Parameters
    ----------
    text : str or bytes
    where : str
        The beginning of error messages.

    Raises
    ------
    FormatError
        The text is not JSON, is nested too deeply, or has a key twice in an object: readers differ
        in which one they take.
    """
    try:
        with pause_garbage_collection():
            return json.loads(text, object_pairs_hook=_check_distinct)
    except RecursionError as error:
        raise FormatError(f"{where}: the JSON is nested too deeply; write it anew") from error
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from error
    except ValueError as error:
        raise FormatError(
            f"{where}: not JSON ({error}); a reference set is JSON, write it anew"
        ) from error


def _check_distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        (key, count), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise FormatError(f"the key {key!r} stands {count} times in one object; write it anew")
    return found


def is_shape(value: Any) -> bool:
    """Return whether a value of JSON is a list of lengths."""
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def to_records(frame: Any) -> list[dict[str, Any]]:
    """Return the rows of a table for JSON; times are in ISO 8601."""
    rows: list[dict[str, Any]] = json.loads(frame.to_json(orient="records", date_format="iso"))
    return rows
