"""Gaps in an otherwise regular time axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

REGULAR_TOLERANCE = 0.12
"""Tolerance for steps, as a fraction of the usual step: months have 28 to 31 days."""
GAP_FACTOR = 1.5
"""Fewest usual steps in a gap."""
FEWEST = 2
"""Fewest usual steps that make an axis regular."""


def compute_steps(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the steps between times, in seconds.

    >>> compute_steps(np.array(["2001-01-01", "2001-01-03"], "M8[ns]"))
    array([172800.])
    """
    if values.dtype.kind == "M":
        return np.diff(values).astype("m8[ns]").astype(np.float64) / 1e9
    return np.array([step.total_seconds() for step in np.diff(values)], np.float64)


def find_gaps_among(steps: npt.NDArray[np.float64] | Sequence[float]) -> list[int]:
    """Return which steps are gaps; none if the other steps are irregular.

    >>> find_gaps_among([31, 28, 61, 31, 30])
    [2]
    >>> find_gaps_among([1, 2, 4, 8])
    []
    """
    steps = np.asarray(steps, np.float64)
    usual = float(np.median(steps)) if steps.size else 0.0
    if not usual > 0:
        return []
    wide = steps >= GAP_FACTOR * usual
    regular = np.abs(steps - usual) <= REGULAR_TOLERANCE * usual
    known = (wide | regular).all() and regular.sum() >= max(FEWEST, wide.sum())
    return np.flatnonzero(wide).tolist() if known else []


def find_gaps(index: pd.Index[Any]) -> list[tuple[Any, Any]]:
    """Return the times before and after each gap of a time index; other indexes have none.

    >>> find_gaps(pd.DatetimeIndex(["2001-01-01", "2001-01-02", "2001-01-03", "2001-01-07"]))
    [(Timestamp('2001-01-03 00:00:00'), Timestamp('2001-01-07 00:00:00'))]
    """
    is_time = isinstance(index, pd.DatetimeIndex) or hasattr(index, "calendar")
    if not is_time or index.size <= FEWEST or index.hasnans:
        return []
    ordered = index if index.is_monotonic_increasing else index[::-1]
    if not ordered.is_monotonic_increasing:
        return []
    return [
        (ordered[n], ordered[n + 1]) for n in find_gaps_among(compute_steps(ordered.to_numpy()))
    ]
