"""Values that no byte range holds as they are: in heaps, of converted types, of assembled datasets.

Our own reader reads strings (`texts`), h5py all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.group import find_places
from virtualds.bounds import demand_selection
from virtualds.errors import FormatError, ReadError
from virtualds.options import get_options
from virtualds.parsers.hdf5.data_types import TEXT_DTYPE, StoredType
from virtualds.parsers.hdf5.heap_check import check_heap
from virtualds.parsers.hdf5.library import ask_chosen_fill, open_dataset
from virtualds.parsers.hdf5.netcdf_rules import find_fill_beyond, path_of
from virtualds.parsers.hdf5.objects import Dataset, HDF5Files, find_dataset
from virtualds.parsers.hdf5.plugins import demand_filters
from virtualds.parsers.hdf5.structure.file_bytes import DeclinedError
from virtualds.parsers.hdf5.structure.messages import FillState
from virtualds.parsers.hdf5.texts import holds_texts, read_texts
from virtualds.source_file import SourceFile
from virtualds.stores import find_store
from virtualds.stores.local import OTHER_TIME_REMEDY

Values = npt.NDArray[Any]


@dataclass(frozen=True)
class HDF5Array:
    """An array that is read on demand, by h5py unless it holds strings.

    Parameters
    ----------
    source : SourceFile
    path : str
        Of the dataset, within the file.
    shape : tuple of int
        As netCDF sees it: longer than the dataset where another variable is longer along an
        unlimited dimension.
    dtype : numpy dtype
    needs : tuple of SourceFile
        Other files that hold values; HDF5 silently fills values of missing files.
    """

    source: SourceFile
    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    needs: tuple[SourceFile, ...] = ()

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def read(self, key: Sequence[Any]) -> Values:
        """Read a selection: per axis an int, a slice, or a 1-D array of positions.

        Raises
        ------
        ReadError
            The file is gone, has changed, or is damaged.
        UnsupportedError
            The box around the selection has more elements than may be loaded.
        """
        box, within = zip(*map(_find_bounds, key, self.shape), strict=True) if key else ((), ())
        demand_selection(prod(k.stop - k.start for k in box) * self.dtype.itemsize)
        try:
            for file in (self.source, *self.needs):
                _check_source(file)
            with HDF5Files(self.source) as files:
                values = self._read(files, box)
        except (FormatError, OSError, KeyError) as error:
            if isinstance(error, ReadError):
                raise
            raise ReadError(f"{self.path}: {error}; restore the file, or scan it again") from error
        for axis, taken in enumerate(within):
            values = values[(slice(None),) * axis + (taken,)]
        # an element of an array of arrays stays an element
        dropped = tuple(i for i, k in enumerate(key) if not isinstance(k, slice) and not np.ndim(k))
        return values.squeeze(dropped)

    def _read(self, files: HDF5Files, box: Sequence[slice]) -> Values:
        if self.dtype == TEXT_DTYPE and (found := self._find_texts(files)) is not None:
            return read_texts(found, box)
        file = files.open(self.source)
        dataset = file[self.path]
        demand_filters(dataset)
        if dataset.dtype.hasobject:
            path = self.path.encode("utf-8", "surrogateescape")
            if (known := open_dataset(files, self.source, file, path)) is not None:
                check_heap(known, files, box)
        return read_box(dataset, box, self.dtype)

    def _find_texts(self, files: HDF5Files) -> Dataset | None:
        """Return the dataset if its elements are strings that are read without HDF5."""
        path = self.path.encode("utf-8", "surrogateescape")
        try:
            found = find_dataset(files, self.source, path)
        except DeclinedError:
            return None
        return found if found is not None and holds_texts(found) else None


def _find_bounds(key: Any, size: int) -> tuple[slice, slice | npt.NDArray[np.int64]]:
    """Return the slice of an axis that covers an index, and what the index takes of it."""
    if isinstance(key, slice):
        # an axis may have more elements than memory has bytes
        chosen = range(size)[key]
        first, last = sorted((chosen[0], chosen[-1])) if chosen else (0, -1)
        return slice(first, last + 1), slice(None, None, chosen.step)
    places = find_places(key, size)
    if not places.size:
        return slice(0, 0), places
    first = int(places.min())
    return slice(first, int(places.max()) + 1), places - first


def _check_source(source: SourceFile) -> None:
    """Refuse a file that is missing or has changed since the scan."""
    found = find_store(source.url).describe(source.url, source.options)
    if not get_options().check_sources:
        return
    for name in ("size", "mtime", "etag"):
        was, now = getattr(source, name), getattr(found, name)
        if was is not None and now is not None and was != now:
            if name == "mtime":
                raise ReadError(
                    f"{source.url}: it was modified after it was scanned, or copied without its "
                    f"time: same size, other time; {OTHER_TIME_REMEDY}"
                )
            raise ReadError(
                f"{source.url}: its {name} was {was} when it was scanned and is {now}; "
                f"scan it again"
            )


def read_box(dataset: Any, box: Sequence[slice], dtype: np.dtype[Any]) -> Values:
    """Read a box of a dataset; what lies past its end is its fill value."""
    rank = len(dataset.shape or ())
    inside = tuple(
        slice(min(k.start, n), min(k.stop, n))
        for k, n in zip(box[:rank], dataset.shape or (), strict=True)
    )
    found = _read_values(dataset, inside, dtype)
    within: Any = (*(slice(None),) * rank, *box[rank:], ...)
    found = np.asarray(found[within], dtype)
    shape = tuple(k.stop - k.start for k in box)
    if found.shape == shape:
        return found
    plist = dataset.id.get_create_plist()
    has_fill = plist.fill_value_defined() == FillState.CHOSEN and not dtype.hasobject
    chosen = ask_chosen_fill(plist, dtype).tobytes() if has_fill else None
    whole = np.full(shape, find_fill_beyond(chosen, dtype), dtype)
    whole[tuple(slice(0, n) for n in found.shape)] = found
    return whole


def _read_values(dataset: Any, box: tuple[slice, ...], dtype: np.dtype[Any]) -> Values:
    """Read a box that lies inside: strings as str, references as paths."""
    import h5py

    if h5py.check_string_dtype(dataset.dtype) is not None and dataset.dtype.hasobject:
        return np.asarray(dataset.asstr(errors="replace")[(*box, ...)], dtype)
    found = np.asarray(dataset[(*box, ...)])
    if dtype != TEXT_DTYPE or h5py.check_ref_dtype(dataset.dtype) is None:
        return found.astype(dtype.newbyteorder("="), copy=False)
    paths = np.empty(found.shape, dtype)
    for place in np.ndindex(found.shape):
        paths[place] = path_of(found[place], dataset)
    return paths


def load_or_defer(
    dataset: Dataset,
    stored: StoredType,
    shape: tuple[int, ...],
    needs: tuple[SourceFile, ...],
    files: HDF5Files,
) -> Values | HDF5Array:
    """Return the values of a small dataset, or an array that is read on demand.

    ``needs`` are the other files that hold values.

    Raises
    ------
    UnsupportedError
        HDF5 cannot undo a filter here.
    """
    if not (is_text := holds_texts(dataset)):
        demand_filters(dataset)
    path = dataset.path.decode("utf-8", "surrogateescape")
    dtype = stored.dtype.newbyteorder("=")
    if prod(shape) * dtype.itemsize > get_options().small_variable:
        return HDF5Array(dataset.source, path, shape, dtype, needs)
    box = tuple(slice(0, n) for n in shape)
    if is_text:
        return read_texts(dataset, box)
    import h5py

    check_heap(dataset, files, box)
    return read_box(h5py.Dataset(dataset.id), box, dtype)
