"""The dimensions of a group: names from dimension scales, and invented names.

HDF5 Dimension Scale Specification 1.0; netCDF-C documentation, "NetCDF-4 File Format".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from math import prod

import numpy as np

from virtualds.errors import FormatError
from virtualds.parsers.hdf5.data_types import TypeClass
from virtualds.parsers.hdf5.objects import Dataset
from virtualds.parsers.hdf5.structure.file_bytes import parse_uint
from virtualds.parsers.hdf5.structure.global_heap import is_sequence, read_sequences
from virtualds.parsers.hdf5.structure.notes import note_same

SCALES = b"DIMENSION_LIST"
"""The attribute that refers to the scales of every axis."""
Names = list[tuple[Dataset, tuple[str | None, ...]]]


def read_scale_addresses(dataset: Dataset) -> tuple[int | None, ...]:
    """Return the address of the last scale of every axis, None where there is none.

    Of several scales of an axis the netCDF library takes the one that was attached last (netCDF-C,
    ``dimscale_visitor``). HDF5's own function for them (`H5DSiterate_scales`) reads the whole list
    for each axis, and ends the process where the list is damaged.

    Raises
    ------
    FormatError
        The attribute does not list scales.
    """
    rank = dataset.rank
    none: tuple[int | None, ...] = (None,) * len(dataset.shape)
    listed = dataset.attributes.get(SCALES)
    if not rank or listed is None:
        return none
    if listed.elements != rank or not _is_reference_list(listed.kind):
        raise _no_list_error(dataset)
    lists = read_sequences(dataset.file, listed)
    return tuple(_find_last_reference(dataset, one) for one in lists) + none[rank:]


def _find_last_reference(dataset: Dataset, references: bytes) -> int | None:
    """Return the address that the last of some references to objects holds."""
    width = dataset.file.offset_size
    place = len(references) - width
    if place < 0:
        return None
    address = parse_uint(references, place, width)
    note_same(references, place, width, address)
    return address


def _is_reference_list(kind: bytes) -> bool:
    """Say whether a type is that of sequences of references to objects (IV.A.2.d)."""
    base = kind[8:12]
    return is_sequence(kind) and base[0] & 0x0F == TypeClass.REFERENCE and base[1] & 0x0F == 0


def _find_name_elsewhere(dataset: Dataset, axis: int) -> str:
    """Return the name of the last scale of an axis, which lies in another group."""
    import h5py

    dtype = h5py.vlen_dtype(h5py.ref_dtype)
    found = np.empty((dataset.rank,), dtype)
    try:
        # `read_scale_addresses` has checked the list that HDF5 follows here
        h5py.h5a.open(dataset.id, SCALES).read(found, h5py.h5t.py_create(dtype))
        reference = found[axis][-1]
        h5py.h5r.dereference(reference, dataset.id)
        path = h5py.h5r.get_name(reference, dataset.id)
    except (KeyError, RuntimeError, ValueError):
        path = None
    if not path:
        raise FormatError(
            f"{dataset.source.url}: axis {axis} of {dataset.name!r} has a scale that is not there; "
            f"restore it, or leave the variable out with drop_variables"
        )
    return str(path.decode("utf-8", "surrogateescape").rpartition("/")[2])


def _no_list_error(dataset: Dataset) -> FormatError:
    return FormatError(
        f"{dataset.source.url}: the attribute {SCALES.decode()} of {dataset.name!r} is not a "
        f"list of "
        f"scales for each of {dataset.rank} axes; the file is damaged, fetch it again, or "
        f"remove the attribute"
    )


class NamedAxes:
    """The datasets of a group, with the names that dimension scales give their axes.

    Parameters
    ----------
    datasets : collection of Dataset
        Of the group.
    above : iterable of Dataset
        Scales of the groups above it, the outermost first.
    """

    def __init__(self, datasets: Collection[Dataset], above: Iterable[Dataset]) -> None:
        above = tuple(above)
        linked = [d for d in datasets if d.is_scale]
        # of several links to one scale the innermost counts, and in a group the first
        self._by_address = {d.address: d for d in [*above, *reversed(linked)]}
        self.scales = [d for d in linked if self._find_dimension(d) is d]
        self.named: Names = [(d, self._look_up(d)) for d in datasets]
        self.lengths = self._find_unlimited_lengths()

    @cached_property
    def _by_id(self) -> dict[int, str]:
        """Names of scales by the number that the netCDF library gave them."""
        return {
            int(d.attrs["_Netcdf4Dimid"]): d.name
            for d in self._by_address.values()
            if "_Netcdf4Dimid" in d.attrs
        }

    def _find_unlimited_lengths(self) -> dict[str, int]:
        """Return how long variables of the group make every unlimited dimension that they see."""
        # a dimension hides those of the same name further up
        seen = {d.name: d for d in [*self._by_address.values(), *self.scales]}
        lengths = {name: 0 for name, d in seen.items() if d.is_unlimited}
        for dataset, dims in self.named:
            for dim, n in zip(dims, dataset.shape, strict=True):
                if dim in lengths:
                    lengths[dim] = max(n, lengths[dim])
        return lengths

    @property
    def grow(self) -> bool:
        """Whether any of the datasets depends on the length of unlimited dimensions."""
        names = {name for _, dims in self.named for name in dims}
        return bool(self.lengths) and (None in names or not names.isdisjoint(self.lengths))

    def _look_up(self, dataset: Dataset) -> tuple[str | None, ...]:
        rank = len(dataset.shape)
        if dataset.is_scale:
            if rank > 1 and "_Netcdf4Coordinates" in dataset.attrs:
                return tuple(self._by_id.get(int(i)) for i in dataset.attrs["_Netcdf4Coordinates"])
            name = self._find_dimension(dataset).name
            return (name, *([None] * (rank - 1)))[:rank]
        return tuple(
            None if address is None else self._find_scale(dataset, axis, address)
            for axis, address in enumerate(read_scale_addresses(dataset))
        )

    def _find_dimension(self, scale: Dataset) -> Dataset:
        """Return the link to a scale that its dimension is named after.

        A scale that the netCDF library numbered is one dimension, whatever links there are to it.
        Of another scale each link is a dimension, as the library has it.
        """
        first = self._by_address[scale.address]
        return first if first is not scale and "_Netcdf4Dimid" in first.attrs else scale

    def _find_scale(self, dataset: Dataset, axis: int, address: int) -> str:
        """Return the name of the scale at an address, which an axis has."""
        known = self._by_address.get((dataset.source.url, address))
        return _find_name_elsewhere(dataset, axis) if known is None else known.name


class Dimensions:
    """The dimensions of a group, as the netCDF library names them.

    An axis with a scale has the name of the scale. Another axis has the first dimension of the
    group with its length, unlimited if the axis is, and none twice in one variable. If no dimension
    fits, a name is invented: ``phony_dim_0``, ``phony_dim_1`` and so on (netCDF-C,
    ``nc4_rec_match_dimscales``).

    Parameters
    ----------
    axes : NamedAxes
        Of the group.
    first : callable
        Returns the number of the first invented dimension.
    lengths : mapping of str to int
        Lengths of unlimited dimensions in variables of other groups.
    """

    def __init__(
        self, axes: NamedAxes, first: Callable[[], int], lengths: Mapping[str, int]
    ) -> None:
        self._first = first
        self.invented = 0
        self.lengths = {name: max(n, lengths.get(name, 0)) for name, n in axes.lengths.items()}
        self._here = [
            (d.name, self.lengths.get(d.name, prod(d.shape[:1])), d.is_unlimited)
            for d in axes.scales
        ]
        self.of = {d.name: self._complete(d, dims) for d, dims in axes.named if not d.is_bare}
        self.unlimited_here = {name for name, _, grows in self._here if grows}

    def _complete(self, dataset: Dataset, names: tuple[str | None, ...]) -> tuple[str, ...]:
        """Name the axes that have no scale."""
        taken = [name for name in names if name is not None]
        if len(taken) == len(names):
            return tuple(taken)
        complete = []
        for name, size, grows in zip(names, dataset.shape, dataset.grows, strict=True):
            if name is None:
                name = self._find_or_invent(size, grows, taken)
                taken.append(name)
            complete.append(name)
        return tuple(complete)

    def _find_or_invent(self, size: int, grows: bool, taken: list[str]) -> str:
        """Return a dimension for an axis without scale; invent one if none fits."""
        for name, length, may_grow in self._here:
            if (length, may_grow) == (size, grows) and name not in taken:
                return name
        name = f"phony_dim_{self._first() + self.invented}"
        self.invented += 1
        # to the netCDF library, length 0 means unlimited
        self._here.append((name, size, grows or not size))
        return name
