"""Fill values: the values of space that no chunk covers."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from virtualds.codecs.cf_packing import ABSENT
from virtualds.codecs.codec import CodecError
from virtualds.codecs.pipeline import CodecPipeline


def has_missing_value(dtype: np.dtype[Any]) -> bool:
    """Say whether a value of a dtype means that it is missing."""
    return dtype.kind in ABSENT


def default_fill(dtype: np.dtype[Any]) -> Any:
    """Return the value of space that nothing covers: NaN or NaT where there is one, else zero."""
    # cached, but not for records, which are mutable
    return _compute_fill(dtype) if dtype.names else _known_fill(dtype)


def _compute_fill(dtype: np.dtype[Any]) -> Any:
    if has_missing_value(dtype):
        return np.array(ABSENT[dtype.kind]).astype(dtype)[()]
    return np.zeros((), dtype)[()]


_known_fill = lru_cache(1024)(_compute_fill)


def fills_with(pipeline: CodecPipeline, value: Any) -> bool:
    """Say whether a missing chunk of a pipeline has a value."""
    try:
        return is_same_scalar(pipeline.missing_value, value)
    except CodecError:
        return False  # netCDF's fill value need not be a date


def is_same_scalar(a: Any, b: Any) -> bool:
    """Say whether two scalars are the same value: NaN is NaN, and -0.0 is not 0.0."""
    one, two = np.asarray(a), np.asarray(b)
    if one.dtype.kind == two.dtype.kind == "c":
        return is_same_scalar(a.real, b.real) and is_same_scalar(a.imag, b.imag)
    if a != b:
        return bool(a != a and b != b)
    kind = np.result_type(one, two)
    return one.astype(kind).tobytes() == two.astype(kind).tobytes()
