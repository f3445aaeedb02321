"""Makes xarray's ``load`` and ``compute`` load virtual arrays, too.

xarray treats a duck array as values in memory, so its own ``load`` would silently leave virtual
arrays unchanged. It has no hook for others; see decision 36. `xarray.Variable.load` is not changed:
xarray calls it while combining, when virtual arrays are compared by their references.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.errors import VirtualdsError
from virtualds.importing import importing

ARRAYS = "virtualds.arrays.array"
"""The module of `ManifestArray`; no virtual array exists before it is imported."""

METHODS = ((xr.Dataset, "load"), (xr.Dataset, "load_async"), (xr.DataTree, "load"))
"""The methods that load in place, which ``compute`` and the methods of `xarray.DataArray` call."""


def load_virtual_arrays(loaded: xr.Dataset | xr.DataTree) -> None:
    """Load virtual arrays in place, each up to ``load_limit`` of `virtualds.set_options`.

    All are read before the first is replaced, so that an error changes nothing. A larger array
    raises an `UnsupportedError`.
    """
    if ARRAYS in sys.modules:
        for variable, values in list(_read_arrays(loaded)):
            variable.data = values


def _read_arrays(
    loaded: xr.Dataset | xr.DataTree,
) -> Iterator[tuple[xr.Variable, npt.NDArray[Any]]]:
    with importing:
        from virtualds.datasets.lazy import get_virtual_array

    for node in loaded.subtree if isinstance(loaded, xr.DataTree) else [loaded]:
        for name, variable in node.variables.items():
            if (array := get_virtual_array(variable)) is None:
                continue
            try:
                yield variable, np.asarray(array)
            except VirtualdsError as error:
                _add_location(error, name, node)
                raise


def _add_location(error: VirtualdsError, name: Any, node: xr.Dataset | xr.DataTree) -> None:
    """Prepend the names of the variable and its group to the message of an error."""
    # `DataArray.load` uses a temporary dataset, whose variable name is not a string
    if isinstance(name, str):
        error.locate(f"variable {name!r}")
    if isinstance(node, xr.DataTree) and node.path != "/":
        error.locate(f"group {node.path}")


def load_first(method: Callable[..., Any]) -> Callable[..., Any]:
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


for _kind, _name in METHODS:
    _method = getattr(_kind, _name, None)  # older versions of xarray only load synchronously
    # after a reload of this module, methods already load virtual arrays
    _home = getattr(_method, "__globals__", {}).get("__name__")
    if _method is not None and _home != __name__:
        setattr(_kind, _name, load_first(_method))
