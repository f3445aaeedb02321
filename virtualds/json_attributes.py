"""Attributes as strict JSON, with the numpy types that JSON forgets.

JSON has one kind of number and no infinities; a type is noted wherever reading would give another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from virtualds.errors import UnsupportedError

NON_FINITE = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
"""How JSON spells what it has no number for; Zarr does the same ("Fill value encoding")."""


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
    if isinstance(value, list):
        if dtype.kind == "c":
            return np.array([complex(*pair) for pair in value], dtype)
        return np.array([NON_FINITE.get(v, v) if isinstance(v, str) else v for v in value], dtype)
    return dtype.type(NON_FINITE.get(value, value) if isinstance(value, str) else value)


def _json_value(name: str, value: Any) -> tuple[Any, str | None]:
    if isinstance(value, np.bytes_ | bytes):
        return value.decode("latin-1"), "S"
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        if np.ndim(value) > 1:
            raise UnsupportedError(
                f"attribute {name!r}: an array of {np.ndim(value)} axes is read by nobody; "
                f"make it a variable, or drop it"
            )
        flat = [_finite(v) for v in np.ravel(value).tolist()]
        return (flat if np.ndim(value) else flat[0]), value.dtype.newbyteorder("=").str
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
    """Return a number in strict JSON, where there are no NaN and infinities."""
    if isinstance(value, complex):
        return [_finite(value.real), _finite(value.imag)]
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value
