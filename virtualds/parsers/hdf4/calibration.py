"""Scale and offset in HDF4, where they mean something else than in the CF conventions.

HDF4 (`SDsetcal`): value = scale_factor * (stored - add_offset). CF (section 8.1): value =
scale_factor * stored + add_offset. They agree where the offset is zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

SCALE, OFFSET = "scale_factor", "add_offset"
OF_LIBRARY = {SCALE, "scale_factor_err", OFFSET, "add_offset_err", "calibrated_nt"}
"""The attributes that the HDF4 library writes together, so that their meaning is its own."""
KEPT = "hdf4_"
"""Begins the names under which attributes are kept that CF would misread."""


def show_as_cf(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes that mean in CF what they mean in the file.

    Where nobody knows whether the writer followed HDF4 or CF, values stay as they are stored, and
    scale and offset are found under names that CF does not know.

    Examples
    --------
    >>> show_as_cf({"scale_factor": 0.5, "add_offset": -3.0})
    {'hdf4_scale_factor': 0.5, 'hdf4_add_offset': -3.0}
    >>> show_as_cf({"scale_factor": 0.5, "add_offset": 0.0})
    {'scale_factor': 0.5, 'add_offset': 0.0}
    """
    offset = attributes.get(OFFSET)
    if not isinstance(offset, np.number | int | float) or not offset:
        return dict(attributes)
    scale = attributes.get(SCALE)
    if attributes.keys() >= OF_LIBRARY and isinstance(scale, np.number | int | float):
        return {**attributes, OFFSET: -scale * offset, KEPT + OFFSET: offset}
    return {
        KEPT + name if name in (SCALE, OFFSET) else name: value
        for name, value in attributes.items()
    }
