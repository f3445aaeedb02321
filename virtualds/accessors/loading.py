"""``load`` and ``compute`` of xarray also load virtual arrays.

xarray takes a duck array for values in memory, so its own ``load`` would leave virtual arrays as
they are, without a word. It has no hook for others; see decision 36. `xarray.Variable.load` stays
as it is: xarray calls it while it combines, where virtual arrays compare by their references.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import xarray as xr

ARRAYS = "virtualds.arrays.array"
"""The module of virtual arrays: there are none until it is imported."""

METHODS = ((xr.Dataset, "load"), (xr.Dataset, "load_async"), (xr.DataTree, "load"))
"""What loads in place; ``compute``, and both of `xarray.DataArray`, call these."""


def load_virtual_arrays(loaded: xr.Dataset | xr.DataTree) -> None:
    """Load virtual arrays in place, each up to ``load_limit`` of `virtualds.set_options`.

    Raises
    ------
    UnsupportedError
        An array has more bytes; the message says what to call.
    ReadError
        Bytes cannot be read, have changed, or do not decode.
    """
    arrays = sys.modules.get(ARRAYS)
    if arrays is None:
        return
    for node in loaded.subtree if isinstance(loaded, xr.DataTree) else [loaded]:
        for variable in node.variables.values():
            if isinstance(variable._data, arrays.ManifestArray):
                variable.data = np.asarray(variable._data)


def load_first(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of xarray that loads virtual arrays, and then does what it always does."""

    @wraps(method)
    def load(self: xr.Dataset | xr.DataTree, **kwargs: Any) -> Any:
        load_virtual_arrays(self)
        return method(self, **kwargs)

    return load


for _kind, _name in METHODS:
    if hasattr(_kind, _name):  # older xarray loads in one way only
        setattr(_kind, _name, load_first(getattr(_kind, _name)))
