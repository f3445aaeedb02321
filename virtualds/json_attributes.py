"""Attributes as strict JSON, with the numpy types that JSON forgets.

JSON has one kind of number and no infinities; a type is noted wherever reading would give another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from virtualds.errors import UnsupportedError
from virtualds.json_numbers import NON_FINITE


def to_json(attributes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return attributes as JSON values, and the numpy types that JSON forgets."""
    plain, types = {}, {}
    for name, value in attributes.items():
        plain[name], kind = _json_value(name, value)
        if kind is not None:
            types[name] = kind
    return plain, types


def from_json(value: Any, kind: str | None) -> Any:
    """Bring an attribute back to the numpy type that was noted for it."""
    if kind is None:
        return value
    dtype = np.dtype(kind)
    if dtype.kind == "S":
        return np.bytes_(value.encode("latin-1"))
    if dtype.kind in "mM":
        # as counts of their unit, as which there is a number for "not a time" too
        counts: Any = np.array(value, "i8").view(dtype)
        return counts if counts.ndim else counts[()]
    numbers = _numbers(value, dtype.kind == "c")
    return np.array(numbers, dtype) if isinstance(numbers, list) else dtype.type(numbers)


def _numbers(value: Any, is_complex: bool) -> Any:
    """Return numbers as Python has them, in lists as deep as the array has axes."""
    if isinstance(value, str):
        return NON_FINITE.get(value, value)
    if not isinstance(value, list):
        return value
    if is_complex and value and not isinstance(value[0], list):
        return complex(*(_numbers(part, False) for part in value))
    return [_numbers(item, is_complex) for item in value]


def _json_value(name: str, value: Any) -> tuple[Any, str | None]:
    if isinstance(value, np.bytes_ | bytes):
        return value.decode("latin-1"), "S"
    known = isinstance(value, np.ndarray | np.generic) and value.dtype.char not in "gG"
    if known and value.dtype.kind in "biufc":
        return _finite(value.tolist()), value.dtype.newbyteorder("=").str
    if known and value.dtype.kind in "mM":
        native = value.dtype.newbyteorder("=")
        return np.asarray(value, native).view("i8").tolist(), native.str
    if isinstance(value, str | bool | int) or value is None:
        return value, None
    if isinstance(value, float):
        return (value, None) if np.isfinite(value) else (_finite(value), "<f8")
    if isinstance(value, list | tuple | np.ndarray):
        items = np.asarray(value).tolist() if isinstance(value, np.ndarray) else list(value)
        if all(
            isinstance(v, str | bool | int) or (isinstance(v, float) and np.isfinite(v))
            for v in items
        ):
            return items, None
    raise UnsupportedError(
        f"attribute {name!r}: {value!r} has no form in JSON; change it with ds.attrs, or drop it"
    )


def _finite(value: Any) -> Any:
    """Return numbers in strict JSON, where there are no NaN and infinities."""
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, complex):
        return [_finite(value.real), _finite(value.imag)]
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value
