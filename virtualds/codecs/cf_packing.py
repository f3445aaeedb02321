"""CF packing: scale, offset and fill values.

The attributes ``scale_factor``, ``add_offset``, ``_FillValue``, ``missing_value`` and ``_Unsigned``
(CF conventions 1.12, sections 2.5.1 and 8.1; NetCDF Users Guide, appendix A) say how the values of
a variable were packed. The result is bit for bit what `xarray.open_dataset` gives for that file,
in the dtype that xarray chose when the file was opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Number
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

PACKING_ATTRIBUTES = (
    "_FillValue",
    "missing_value",
    "_Unsigned",
    "scale_factor",
    "add_offset",
    "dtype",
)
"""Attributes that decoding removes; ``dtype`` is xarray's own, for booleans."""


class Decoding(Protocol):
    """The last step of a codec pipeline: from stored numbers to values."""

    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def attributes(self) -> Mapping[str, Any]: ...
    @property
    def is_identity(self) -> bool: ...
    def __str__(self) -> str: ...
    def decode(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]: ...
    def decode_into(self, out: npt.NDArray[Any], stored: npt.NDArray[Any]) -> None: ...


ABSENT = {"f": np.nan, "c": complex(np.nan, np.nan), "M": "NaT", "m": "NaT"}
"""By kind of dtype, the value that means that a value is missing."""
NO_TIME = np.iinfo(np.int64).min
"""NaT among integers that count units of time, which stay integers."""


@dataclass(frozen=True)
class Packing:
    """How stored numbers become values.

    Parameters
    ----------
    dtype : numpy dtype
        Dtype of the values.
    integer : numpy dtype or None
        Dtype that stored integers are converted to first (``_Unsigned``).
    fills : tuple of numpy scalar
        Stored numbers that mean "no value", of `integer` where that is given.
    scale_factor, add_offset : numpy scalar or None
        Factor and summand, applied in this order.
    attributes : dict
        The attributes of the packing, as in the file. They are not compared: packings that decode
        alike are equal.
    """

    dtype: np.dtype[Any]
    integer: np.dtype[Any] | None = None
    fills: tuple[Any, ...] = ()
    scale_factor: Any = None
    add_offset: Any = None
    attributes: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if self.fills and self.dtype.kind not in "fc" and self.dtype != np.int64:
            raise ValueError(f"Packing: {self.dtype} has no NaN to stand for the fill values")
        if self.dtype.kind in "iu":
            for name in ("scale_factor", "add_offset"):
                if not _is_in_range(getattr(self, name), self.dtype):
                    raise ValueError(f"Packing: {name} is outside the range of {self.dtype}")

    def __str__(self) -> str:
        """Return what is done to stored numbers in a few signs; fill values are not told.

        >>> str(Packing(np.dtype("f8"), scale_factor=0.01, add_offset=np.float32(-3)))
        '× 0.01 - 3'
        """
        words = [f"as {self.integer}"] if self.integer is not None else []
        if self.scale_factor is not None:
            words.append(f"× {_format_number(self.scale_factor)}")
        if self.add_offset is not None:
            offset = _format_number(self.add_offset)
            words.append(f"- {offset[1:]}" if offset.startswith("-") else f"+ {offset}")
        return " ".join(words)

    @classmethod
    def from_attributes(
        cls, stored: np.dtype[Any], attributes: Mapping[str, Any], dtype: np.dtype[Any]
    ) -> Packing | None:
        """Return the packing of a variable stored as ``stored`` and decoded to ``dtype``."""
        found = {name: attributes[name] for name in PACKING_ATTRIBUTES if name in attributes}
        if not found:
            return None
        integer = _find_unsigned_dtype(stored, found.get("_Unsigned"))
        return cls(
            dtype=dtype,
            integer=integer,
            fills=_find_fill_values(found, stored, integer),
            scale_factor=_to_scalar(found.get("scale_factor")),
            add_offset=_to_scalar(found.get("add_offset")),
            attributes=found,
        )

    @property
    def is_identity(self) -> bool:
        """Whether values are the stored numbers, but for their dtype."""
        return not self.fills and self.scale_factor is None and self.add_offset is None

    def decode_into(self, out: npt.NDArray[Any], stored: npt.NDArray[Any]) -> None:
        """Write the values of ``stored`` into ``out``, which has the same shape and `dtype`."""
        if self.integer is not None:
            stored = stored.astype(self.integer)
        out[...] = stored
        if self.fills:
            absent = out == self.fills[0]
            for fill in self.fills[1:]:
                absent |= out == fill
            out[absent] = ABSENT.get(self.dtype.kind, NO_TIME)
        if self.scale_factor is not None:
            out *= self.scale_factor
        if self.add_offset is not None:
            out += self.add_offset

    def decode(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values of ``stored``."""
        out = np.empty(stored.shape, self.dtype)
        self.decode_into(out, stored)
        return out


def _format_number(value: Any) -> str:
    """Return a number in at most six digits."""
    return f"{value:.6g}" if isinstance(value, Number) else str(value)


def _is_in_range(number: Any, dtype: np.dtype[Any]) -> bool:
    """Say whether an integer dtype holds a number; only Python integers are checked."""
    limits = np.iinfo(dtype)
    return not isinstance(number, int) or bool(limits.min <= number <= limits.max)


def _to_scalar(value: Any) -> Any:
    """Return an attribute as a scalar; files write arrays of one element."""
    return np.asarray(value).item() if np.ndim(value) > 0 else value


def _find_unsigned_dtype(stored: np.dtype[Any], unsigned: Any) -> np.dtype[Any] | None:
    """Return the integer dtype that ``_Unsigned`` asks for, or None."""
    wanted = {("i", "true"): "u", ("u", "false"): "i"}.get((stored.kind, str(unsigned)))
    return np.dtype(f"{wanted}{stored.itemsize}") if wanted else None


def _find_fill_values(
    found: Mapping[str, Any], stored: np.dtype[Any], integer: np.dtype[Any] | None
) -> tuple[Any, ...]:
    """Return the distinct stored numbers that mean "no value", sorted."""
    values: list[Any] = []
    raw = None if integer is None else _to_scalar(found.get("_FillValue"))
    for name in ("_FillValue", "missing_value"):
        if name in found and not np.size(found[name]):
            raise ValueError(f"{name} is an empty array")
        for value in np.ravel(found.get(name, ())):
            if integer is not None and value == raw:
                value = _to_integer(value, stored, integer)
            if value == value and value not in values:
                values.append(value)
    return tuple(sorted(values))


def _to_integer(value: Any, stored: np.dtype[Any], integer: np.dtype[Any]) -> Any:
    """Return the attribute ``_FillValue`` in the dtype that ``_Unsigned`` asks for.

    As in xarray: to unsigned by its bytes, in the byte order of the file, as a Python number, which
    is compared in the dtype of the values; to signed by its value.
    """
    if integer.kind == "u":
        return np.array(value).astype(stored).view(integer).item()
    return np.array(value).astype(integer)[()]
