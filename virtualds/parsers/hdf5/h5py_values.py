"""Values that no byte range holds as they are: in heaps, of converted types, of assembled datasets.

Our own reader reads strings, h5py all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.group import find_places
from virtualds.bounds import demand_selection
from virtualds.errors import FormatError, ReadError
from virtualds.options import get_options
from virtualds.parsers.hdf5.data_types import CHARSETS, TEXT_DTYPE, StoredType
from virtualds.parsers.hdf5.library import ask_chosen_fill, demand_filters, open_dataset
from virtualds.parsers.hdf5.netcdf_rules import find_fill_beyond, path_of
from virtualds.parsers.hdf5.objects import Dataset, HDF5Files, find_dataset
from virtualds.parsers.hdf5.storage import build_raw_array
from virtualds.parsers.hdf5.structure import element_types
from virtualds.parsers.hdf5.structure.element_types import Elements, check_elements
from virtualds.parsers.hdf5.structure.file_bytes import DeclinedError
from virtualds.parsers.hdf5.structure.messages import FillState, LayoutClass, TypeClass
from virtualds.parsers.hdf5.virtual_datasets import list_mapped_sources
from virtualds.source_file import SourceFile
from virtualds.stores import find_store
from virtualds.stores.local import OTHER_TIME_REMEDY

# ---------------------------------------------------------------------- checks of the heap
# Check references into the global heap before HDF5 follows them.
#
# HDF5 keeps strings and sequences of varying length as references (HDF5 File Format Specification
# 3.0, IV.B). A bad reference can make HDF5 end the process, or read for ever.


BYTES_AT_ONCE = 2**26
"""Bytes of references that are checked at a time."""


def check_heap(dataset: Dataset, files: HDF5Files, box: Sequence[slice] | None = None) -> None:
    """Refuse a dataset that refers to objects missing from the heap.

    Parameters
    ----------
    dataset : Dataset
    files : HDF5Files
        Opens the sources of a virtual dataset, which are checked as a whole.
    box : sequence of slice, optional
        The part that is about to be read; all of it by default.

    Raises
    ------
    FormatError
        The heap is damaged, or lacks an object.
    ReadError
        The references cannot be read.
    """
    kind = dataset.referring
    if kind is None:
        return
    if dataset.is_virtual:
        for _, source in list_mapped_sources(dataset, files):
            check_heap(source, files)
        return
    while kind.kind == TypeClass.ARRAY:
        _, kind = kind.parts[0]
    for _, elements in read_elements(dataset, kind.size, box):
        check_elements(dataset.file, kind, elements)


def read_elements(
    dataset: Dataset, size: int, box: Sequence[slice] | None = None
) -> Iterator[tuple[tuple[slice, ...], Elements]]:
    """Yield parts of a box inside a dataset, and their elements as stored, one a row."""
    array = build_raw_array(dataset, size)
    for part in _cut_box(array.shape, box, size):
        raw = np.ascontiguousarray(array.read(part))
        yield part, raw.view(np.uint8).reshape(-1, size)


def _cut_box(
    shape: tuple[int, ...], box: Sequence[slice] | None, size: int
) -> list[tuple[slice, ...]]:
    """Cut the part of a box inside an array into smaller parts, along the first axis."""
    whole = box or tuple(slice(0, n) for n in shape)
    inside = [slice(min(k.start, n), min(k.stop, n)) for k, n in zip(whole, shape, strict=True)]
    if not shape:
        return [()]
    first, *rest = inside
    row = size * prod(k.stop - k.start for k in rest)
    if not row:
        return []
    step = max(BYTES_AT_ONCE // row, 1)
    starts = range(first.start, first.stop, step)
    return [(slice(n, min(n + step, first.stop)), *rest) for n in starts]


# ---------------------------------------------------------------------- texts
# Datasets of strings of varying length, read without HDF5.
#
# The elements of such a dataset refer to the global heap (HDF5 File Format Specification 3.0,
# IV.B).


def holds_texts(dataset: Dataset) -> bool:
    """Say whether the elements of a dataset are strings that `read_texts` reads."""
    fill = dataset.facts.fill
    # a fill value that h5py found has no bytes here
    is_known = bool(fill.raw) or not fill.is_chosen
    # without any fill value HDF5 refuses a dataset that was never written
    layout = dataset.facts.layout
    is_written = layout.address is not None or layout.kind == LayoutClass.COMPACT
    is_known = is_known and (is_written or fill.state != FillState.UNDEFINED)
    is_read_here = get_options().hdf5 == "auto" and is_known and not dataset.is_virtual
    return is_read_here and dataset.type.is_text


def read_texts(dataset: Dataset, box: Sequence[slice]) -> npt.NDArray[np.object_]:
    """Return the strings of a box, as h5py reads them (`h5py.Dataset.asstr`).

    Strings past the end of the dataset are empty.

    Raises
    ------
    FormatError
        The heap is damaged, or lacks an object.
    ReadError
        The references cannot be read.
    """
    kind, budget = dataset.type, element_types.Budget(dataset.file)
    encoding = CHARSETS[kind.charset]
    whole = np.full([k.stop - k.start for k in box], "", TEXT_DTYPE)
    for part, elements in read_elements(dataset, kind.size, box):
        found = element_types.read_texts(budget, kind, elements, encoding)
        pairs = zip(part, box, strict=True)
        at: Any = tuple(slice(p.start - k.start, p.stop - k.start) for p, k in pairs)
        # with an ellipsis a scalar is the string, and not an array that holds it
        whole[(*at, ...)] = found.reshape([p.stop - p.start for p in part])
    return whole


# ---------------------------------------------------------------------- values


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
