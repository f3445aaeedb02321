"""The normal form of a selection along one axis, and the way back from it.

Along every axis either a slice that rises, or rising positions without repeats, so that every chunk
fills one stretch of the result. What that loses (the order of positions, repeats, a falling slice,
a dropped axis) is restored on the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.chunks.projection import AxisKey, as_slice, counted_positions

Array = npt.NDArray[Any]
Step = Callable[[Array], Array]
"""What is done to the result of the normal form, to have what was asked for."""


class AxisPlan(NamedTuple):
    """The normal form of one axis's key, and the step that leads back from it."""

    key: AxisKey
    size: int
    step: Step | None


def normalise(key: Any, size: int, axis: int) -> AxisPlan:
    """Bring the key of one axis to its normal form.

    Raises
    ------
    IndexError
        A position lies outside the axis, or a mask has another length.
    """
    if isinstance(key, slice):
        return _normalise_slice(key, size, axis)
    positions = np.asarray(key)
    if positions.dtype == bool:
        if positions.size != size:
            raise IndexError(
                f"axis {axis}: a mask of {positions.size} for {size} elements; make it as long"
            )
        positions = np.flatnonzero(positions)
    positions = counted_positions(np.atleast_1d(positions), size, axis)
    if not positions.size:
        return AxisPlan(slice(0, 0, 1), 0, None)
    rising, inverse = np.unique(positions, return_inverse=True)
    in_order = rising.size == positions.size and bool((rising == positions).all())
    step: Step | None = None if in_order else lambda values: values.take(inverse, axis=axis)
    return AxisPlan(as_slice(rising), rising.size, step)


def _normalise_slice(key: slice, size: int, axis: int) -> AxisPlan:
    start, stop, step = key.indices(size)
    count = len(range(start, stop, step))
    if step > 0 or not count:
        return AxisPlan(slice(start, start + count * abs(step), abs(step)), count, None)
    low = start + (count - 1) * step
    flip = (slice(None),) * axis + (slice(None, None, -1),)
    return AxisPlan(slice(low, start + 1, -step), count, lambda values: values[flip])
