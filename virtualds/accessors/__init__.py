"""The accessors `ds.virtual` and `tree.virtual`, and how xarray loads virtual arrays.

xarray assumes that duck arrays are in memory, so its ``load`` would leave virtual arrays unchanged
without an error, and it has no hook for them; see decision 36. `xarray.Variable.load` is not
wrapped, since xarray calls it when it combines virtual arrays, which must not load them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.errors import VirtualdsError
from virtualds.importing import importing

ARRAYS = "virtualds.arrays.array"
"""The module of `ManifestArray`. Until it is imported, there are no virtual arrays."""

METHODS = ((xr.Dataset, "load"), (xr.Dataset, "load_async"), (xr.DataTree, "load"))
"""Methods to wrap; ``compute`` and the methods of `xarray.DataArray` call them."""


def load_virtual_arrays(obj: xr.Dataset | xr.DataTree) -> None:
    """Load virtual arrays in place. An error changes nothing.

    Raises
    ------
    UnsupportedError
        An array is larger than ``load_limit`` of `virtualds.set_options`.
    """
    if ARRAYS not in sys.modules:
        return
    with importing:
        from virtualds.datasets.lazy import get_virtual_array

    # read all arrays before the first is replaced
    loaded: list[tuple[xr.Variable, npt.NDArray[Any]]] = []
    for node in obj.subtree if isinstance(obj, xr.DataTree) else [obj]:
        for name, variable in node.variables.items():
            if (array := get_virtual_array(variable)) is None:
                continue
            try:
                loaded.append((variable, np.asarray(array)))
            except VirtualdsError as error:
                # `DataArray.load` uses a temporary dataset, whose variable name is not a string
                if isinstance(name, str):
                    error.locate(f"variable {name!r}")
                if isinstance(node, xr.DataTree) and node.path != "/":
                    error.locate(f"group {node.path}")
                raise
    for variable, values in loaded:
        variable.data = values


def wrap_load(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of xarray so that it loads virtual arrays first."""
    if iscoroutinefunction(method):

        @wraps(method)
        async def load_async(self: xr.Dataset | xr.DataTree, **kwargs: Any) -> Any:
            # read in a thread, so that the event loop is not blocked
            await asyncio.to_thread(load_virtual_arrays, self)
            return await method(self, **kwargs)

        return load_async

    @wraps(method)
    def load(self: xr.Dataset | xr.DataTree, **kwargs: Any) -> Any:
        load_virtual_arrays(self)
        return method(self, **kwargs)

    return load


for _class, _name in METHODS:
    _method = getattr(_class, _name, None)  # older versions of xarray have no load_async
    # if this module is reloaded, the methods are wrapped already
    _module = getattr(_method, "__globals__", {}).get("__name__")
    if _method is not None and _module != __name__:
        setattr(_class, _name, wrap_load(_method))
