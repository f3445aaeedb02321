"""Virtual arrays behind xarray's lazy indexing, and inside variables.

This is the only module that uses `xarray.core.indexing`, which xarray's guide "How to add a new
backend" documents: `LazilyIndexedArray` and the explicit indexers exist only there. It is also the
only module that uses ``Variable._data``: no public attribute shows what a variable holds without
loading it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import Data
from virtualds.errors import locating


class VirtualBackendArray(BackendArray):
    """An array that `xarray.open_dataset` indexes lazily.

    Parameters
    ----------
    data : ManifestArray, numpy.ndarray or Deferred
        The values.
    name : str
        Name of the variable, for errors.
    is_decoded : bool
        Whether the values are decoded; if not, xarray decodes them.
    """

    __slots__ = ("data", "dtype", "is_decoded", "name", "shape")

    def __init__(self, data: Data, name: str, is_decoded: bool = False) -> None:
        self.data = data
        self.name = name
        self.is_decoded = is_decoded
        self.shape = data.shape
        self.dtype = data.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> npt.NDArray[Any]:
        if isinstance(self.data, np.ndarray):
            adapter = indexing.NumpyIndexingAdapter(self.data)  # type: ignore[no-untyped-call]
            return np.asarray(indexing.apply_indexer(adapter, key))
        with locating(f"variable {self.name!r}"):
            if not isinstance(self.data, ManifestArray):
                outer = indexing.IndexingSupport.OUTER
                found = indexing.explicit_indexing_adapter(key, self.shape, outer, self.data.read)
                return np.asarray(found)
            if isinstance(key, indexing.VectorizedIndexer):
                return self.data.read_points(key.tuple)
            return self.data.read(key.tuple)

    def async_getitem(self, key: indexing.ExplicitIndexer) -> Coroutine[Any, Any, npt.NDArray[Any]]:
        """Read in a thread; the reader has its own threads."""
        return asyncio.to_thread(self.__getitem__, key)


def get_virtual_array(variable: xr.Variable) -> ManifestArray | None:
    """Return the virtual array of a variable, None if it holds anything else.

    ``Variable.data`` would load a lazy array.
    """
    data = variable._data
    return data if isinstance(data, ManifestArray) else None


def is_unread(variable: xr.Variable) -> bool:
    """Say whether a variable is read from a file on access."""
    data = variable._data
    return isinstance(data, indexing.ExplicitlyIndexed) and not variable._in_memory


def to_lazy(data: Data, name: str, is_decoded: bool = False) -> indexing.LazilyIndexedArray:
    """Return a lazy array that xarray reads on first access, and then keeps."""
    return indexing.LazilyIndexedArray(VirtualBackendArray(data, name, is_decoded))


SELECTING_TYPES = (indexing.LazilyIndexedArray, indexing.LazilyVectorizedIndexedArray)
"""Classes that xarray wraps around an array to select from it."""
WRAPPING_TYPES = (
    indexing.CopyOnWriteArray,
    indexing.MemoryCachedArray,
    indexing.ImplicitToExplicitIndexingAdapter,
)
"""Classes that xarray wraps around an array without selecting."""


class Layers(NamedTuple):
    """The array below xarray's lazy arrays, and what they do with it.

    ``keys`` are the selections, the innermost first: for each its entries, one per axis, and
    whether they broadcast together. ``is_computed`` says whether values are computed from the
    array.
    """

    array: ManifestArray
    keys: tuple[tuple[tuple[Any, ...], bool], ...]
    is_computed: bool


def layers_of(data: Any) -> Layers | None:
    """Return the layers of a lazy array of xarray, None if there is no virtual array below."""
    if isinstance(data, ManifestArray):
        return Layers(data, (), False)
    if isinstance(data, VirtualBackendArray):
        is_ours = data.is_decoded and isinstance(data.data, ManifestArray)
        return layers_of(data.data) if is_ours else None
    below = layers_of(getattr(data, "array", None)) if is_wrapper(data) else None
    if below is None or isinstance(data, WRAPPING_TYPES):
        return below
    if isinstance(data, SELECTING_TYPES):
        together = isinstance(data.key, indexing.VectorizedIndexer)
        return below._replace(keys=(*below.keys, (data.key.tuple, together)))
    return below._replace(is_computed=True)


def is_wrapper(data: Any) -> bool:
    """Say whether an object is a wrapper of xarray."""
    return isinstance(data, (indexing.ExplicitlyIndexed, *WRAPPING_TYPES))


def find_layers(variable: xr.Variable) -> Layers | None:
    """Return the virtual array of a variable, also below lazy arrays of xarray."""
    return layers_of(variable._data)
