"""Virtual arrays behind xarray's lazy indexing, and virtual arrays in variables.

This is the one file that uses `xarray.core.indexing`, which xarray's guide "How to add a new
backend" documents for backends: `LazilyIndexedArray` and the explicit indexers have no other home.
It is also the one that looks at ``Variable._data``: there is no public way to see what a variable
holds without loading it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from virtualds.array import ManifestArray
from virtualds.errors import VirtualdsError
from virtualds.group import Data


class VirtualBackendArray(BackendArray):
    """What `xarray.open_dataset` indexes lazily.

    Parameters
    ----------
    data : ManifestArray, numpy.ndarray or Deferred
        The values as stored.
    name : str
        Of the variable, for errors.
    """

    __slots__ = ("data", "dtype", "name", "shape")

    def __init__(self, data: Data, name: str) -> None:
        self.data = data
        self.name = name
        self.shape = data.shape
        self.dtype = data.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> npt.NDArray[Any]:
        if isinstance(self.data, np.ndarray):
            return _index_values(self.data, key)
        try:
            if not isinstance(self.data, ManifestArray):
                outer = indexing.IndexingSupport.OUTER
                found = indexing.explicit_indexing_adapter(key, self.shape, outer, self.data.read)
                return np.asarray(found)
            if isinstance(key, indexing.VectorizedIndexer):
                return self.data.read_points(key.tuple)
            return self.data.read(key.tuple)
        except VirtualdsError as error:
            error.add_note(f"while reading variable {self.name!r}")
            raise

    def async_getitem(self, key: indexing.ExplicitIndexer) -> Coroutine[Any, Any, npt.NDArray[Any]]:
        """Read in a thread: the reader's own threads do the work."""
        return asyncio.to_thread(self.__getitem__, key)


def _index_values(values: npt.NDArray[Any], key: indexing.ExplicitIndexer) -> npt.NDArray[Any]:
    """Index values in memory the way that lazy arrays are indexed."""
    adapter = indexing.NumpyIndexingAdapter(values)  # type: ignore[no-untyped-call]
    found = indexing.apply_indexer(adapter, key)
    return np.asarray(found)


def virtual_data(variable: xr.Variable) -> ManifestArray | None:
    """Return the virtual array that a variable holds, None if it holds anything else.

    ``Variable.data`` would load what is lazy only to tell what it is.
    """
    data = variable._data
    return data if isinstance(data, ManifestArray) else None


def is_unread(variable: xr.Variable) -> bool:
    """Say whether looking at a variable would read it from a file."""
    data = variable._data
    return isinstance(data, indexing.ExplicitlyIndexed) and not variable._in_memory


def lazily(data: Data, name: str) -> indexing.LazilyIndexedArray:
    """Return values that xarray reads when somebody looks at them, and then keeps."""
    return indexing.LazilyIndexedArray(VirtualBackendArray(data, name))
