"""Encode attributes and tables as strict JSON, and record numpy types.

JSON has a single number type and no infinities. A type is recorded if reading the JSON would return
another one; within objects and lists, by JSON pointer (RFC 6901).
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

RecordedTypes = str | Mapping[str, str]
"""The numpy type of a value or, for an object or a list, types by pointer."""

MAX_DEPTH = 100
"""Maximum number of nested objects and lists, since an object may contain itself."""

MAX_BITS = 2**13
"""Maximum number of bits of an integer: Python converts at most 4300 digits to and from text."""

NON_FINITE = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
"""Floats that JSON has no numbers for, by the strings that Zarr uses for them."""


def to_json(attributes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, RecordedTypes]]:
    """Return attributes as JSON values, and the numpy types that JSON does not store.

    Raises
    ------
    UnsupportedError
        An attribute cannot be encoded as JSON.

    Examples
    --------
    >>> to_json({"scale": np.float32(2), "crs": {"radius": [1, np.int16(2)], "datum": None}})[1]
    {'scale': '<f4', 'crs': {'/radius/1': '<i2'}}
    """
    encoded, recorded = {}, dict[str, RecordedTypes]()
    for name, value in attributes.items():
        types: dict[str, str] = {}
        try:
            encoded[name] = _encode_attribute(value, types)
        except _NotJsonError as error:
            raise UnsupportedError(
                f"attribute {name!r}: {_format_value(value)} cannot be represented in "
                f"JSON{error}; change it with ds.attrs, or drop it"
            ) from None
        if types:
            recorded[name] = types.get("", types)
    return encoded, recorded


def from_json(value: Any, types: RecordedTypes | None) -> Any:
    """Return an attribute from a JSON value and the numpy types that `to_json` has recorded.

    Raises
    ------
    FormatError
        There are more than `MAX_DEPTH` nested objects and lists.
    """
    if isinstance(types, str):
        return _restore_type(value, np.dtype(types))
    # a copy, so that changes of the attribute do not change the document
    attribute = _copy_json(value)
    for pointer, dtype in (types or {}).items():
        *parents, last = (_unescape(part) for part in pointer.split("/")[1:])
        container = attribute
        for part in parents:
            container = container[_to_key(container, part)]
        key = _to_key(container, last)
        container[key] = _restore_type(container[key], np.dtype(dtype))
    return attribute


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
    """Convert a JSON value other than an object to a numpy type."""
    if dtype.kind == "S":
        return np.bytes_(value.encode("latin-1"))
    if dtype.kind in "mM":
        # integers in the unit of the type, as numpy stores them, also for NaT
        counts: Any = np.array(value, "i8").view(dtype)
        return counts if counts.ndim else counts[()]
    numbers = _to_numbers(value, dtype.kind == "c")
    return np.array(numbers, dtype) if isinstance(numbers, list) else dtype.type(numbers)


def _to_numbers(value: Any, is_complex: bool) -> Any:
    """Return a JSON value as Python numbers in nested lists."""
    if isinstance(value, str):
        return NON_FINITE.get(value, value)
    if not isinstance(value, list):
        return value
    if is_complex and value and not isinstance(value[0], list):
        return complex(*(_to_numbers(part, False) for part in value))
    return [_to_numbers(item, is_complex) for item in value]


# ---------------------------------------------------------------------- encoding


class _NotJsonError(Exception):
    """A value cannot be encoded as JSON; the text is the end of the message of `to_json`."""


def _format_value(value: Any) -> str:
    try:
        return f"{value!r:.200}"
    except (RecursionError, ValueError):
        # repr fails for deeply nested values and for numbers with too many digits
        return f"its {type(value).__name__}"


def _encode_attribute(value: Any, types: dict[str, str]) -> Any:
    # np.float64 is a subclass of float, whose type would not be recorded
    is_float64 = isinstance(value, np.float64)
    return _encode_numpy(value, "", types) if is_float64 else _encode_value(value, "", types)


def _encode_value(value: Any, pointer: str, types: dict[str, str], depth: int = 0) -> Any:
    """Return a JSON value, and add the types that JSON does not store to ``types``."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise _NotJsonError(f": an integer of {value.bit_length()} bits")
        return value
    if isinstance(value, float):
        if not np.isfinite(value):
            types[pointer] = "<f8"
        return _encode_numbers(value)
    if isinstance(value, bytes):
        types[pointer] = "S"
        return value.decode("latin-1")
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "OUT":
        return _encode_numpy(value, pointer, types)
    if depth == MAX_DEPTH:
        raise _NotJsonError(f": more than {MAX_DEPTH} nested objects and lists")
    if isinstance(value, Mapping):
        return _encode_members(value, pointer, types, depth)
    if isinstance(value, list | tuple):
        return [_encode_value(v, f"{pointer}/{i}", types, depth + 1) for i, v in enumerate(value)]
    if isinstance(value, np.ndarray):
        return _encode_value(value.tolist(), pointer, types, depth + 1)
    raise _NotJsonError(f": {type(value).__name__} is not a JSON type" if pointer else "")


def _encode_members(
    value: Mapping[Any, Any], pointer: str, types: dict[str, str], depth: int
) -> dict[str, Any]:
    if wrong := [key for key in value if not isinstance(key, str)]:
        raise _NotJsonError(f", where keys are strings, and {wrong[0]!r} is not")
    return {
        str(key): _encode_value(v, f"{pointer}/{_escape(key)}", types, depth + 1)
        for key, v in value.items()
    }


def _encode_numpy(value: Any, pointer: str, types: dict[str, str]) -> Any:
    """Return numbers, dates or durations of numpy as JSON, and record their type."""
    native = value.dtype.newbyteorder("=")
    if native.kind in "biufc" and native.char not in "gG":
        types[pointer] = native.str
        return _encode_numbers(value.tolist())
    if native.kind in "mM":
        types[pointer] = native.str
        return np.asarray(value, native).view("i8").tolist()
    raise _NotJsonError(f": {value.dtype} is not a JSON type" if pointer else "")


def _encode_numbers(value: Any) -> Any:
    """Return numbers as strict JSON: NaN and infinities as strings, complex ones as pairs."""
    if isinstance(value, list):
        return [_encode_numbers(item) for item in value]
    if isinstance(value, complex):
        return [_encode_numbers(value.real), _encode_numbers(value.imag)]
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value


# ---------------------------------------------------------------------- pointers (RFC 6901)


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def _to_key(container: Any, part: str) -> Any:
    """Return a part of a pointer as a key of an object or an index of a list."""
    return int(part) if isinstance(container, list) else part


# ---------------------------------------------------------------------- numbers


def encode_int(value: Any, dtype: np.dtype[Any]) -> bytes:
    """Return the bytes of an integer in the native byte order.

    Raises
    ------
    ValueError, TypeError, OverflowError
        The value does not have that type.
    """
    # JSON writers in some languages write 0 as 0.0
    if isinstance(value, str) or int(value) != value:
        raise ValueError("not an integer")
    # numpy rejects values outside the range of the type
    return np.asarray(int(value), dtype).tobytes()


def encode_float(value: Any, dtype: np.dtype[Any]) -> bytes:
    """Return the bytes of a float in the native byte order.

    Raises
    ------
    ValueError, TypeError
        The value does not have that type.
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
    """Return an integer or float as a numpy scalar in the native byte order.

    Raises
    ------
    ValueError, TypeError, OverflowError
        The value does not have that type.

    Examples
    --------
    >>> to_scalar("-Infinity", np.dtype(">f4")), to_scalar(7.0, np.dtype("i2"))
    (np.float32(-inf), np.int16(7))
    """
    # Python's parser accepts NaN, and True is an integer; neither could be written again
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
        The beginning of error messages, such as the url.

    Raises
    ------
    FormatError
        The text is not JSON, is nested too deeply, or has an object with duplicate keys, of which
        parsers take different ones.
    """
    try:
        with pause_garbage_collection():
            return json.loads(text, object_pairs_hook=_check_distinct)
    except RecursionError as error:
        raise FormatError(f"{where}: the JSON is nested too deeply; write it again") from error
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from error
    except ValueError as error:
        raise FormatError(
            f"{where}: not JSON ({error}); a reference set is JSON, write it again"
        ) from error


def _check_distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        (key, count), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise FormatError(f"the key {key!r} occurs {count} times in one object; write it again")
    return members


def is_shape(value: Any) -> bool:
    """Return whether a JSON value is a list of integers of at least 0."""
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def to_records(frame: Any) -> list[dict[str, Any]]:
    """Return the rows of a pandas table as JSON values, with times in ISO 8601."""
    rows: list[dict[str, Any]] = json.loads(frame.to_json(orient="records", date_format="iso"))
    return rows
