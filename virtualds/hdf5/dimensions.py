"""The dimensions of a group: names that scales give to axes, and names that are invented.

HDF5 Dimension Scale Specification 1.0; netCDF-C documentation, "NetCDF-4 File Format".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, cached_property
from math import prod
from typing import Any

import numpy as np

from virtualds.errors import FormatError
from virtualds.hdf5.data_types import Class
from virtualds.hdf5.structure import Dataset

SCALES = b"DIMENSION_LIST"
"""The attribute that refers to the scales of every axis."""
Names = list[tuple[Dataset, tuple[str | None, ...]]]


Path = bytes | None
UNKNOWN = b"?"
"""In place of the path of a scale: HDF5 is to be asked for the scale itself."""


def scale_paths(dataset: Dataset) -> tuple[Path, ...]:
    """Return a path of the first scale of every axis, None where there is none.

    The attribute that lists all scales is read once:
    to ask HDF5 for those of an axis (`H5DSiterate_scales`) reads it all for each.

    Raises
    ------
    FormatError
        The attribute is none that lists scales.
    """
    import h5py

    rank = int(dataset.id.rank)
    within: tuple[Path, ...] = (None,) * (len(dataset.shape) - rank)
    if not rank or not h5py.h5a.exists(dataset.id, SCALES):
        return (None,) * rank + within
    listed = h5py.h5a.open(dataset.id, SCALES)
    in_file, in_memory = _sequences_of_references()
    kind = listed.get_type()
    usual = kind.equal(in_file)
    if listed.shape != (rank,) or not (usual or _lists_references(kind)):
        # HDF5 would take whatever it is for addresses, and crash
        raise FormatError(
            f"{dataset.source.url}: the attribute {SCALES.decode()} of {dataset.name!r} is no list "
            f"of scales for each of {rank} axes; the file is damaged, fetch it again, or remove "
            f"the attribute"
        )
    if not usual:
        return (UNKNOWN,) * rank + within
    found = np.empty((rank,), h5py.vlen_dtype(h5py.ref_dtype))
    listed.read(found, in_memory)
    return tuple(_path_of_first(refs, dataset) for refs in found) + within


def _lists_references(kind: Any) -> bool:
    is_list = kind.get_class() == Class.VLEN
    return bool(is_list and kind.get_super().get_class() == Class.REFERENCE)


def _path_of_first(references: Sequence[Any], dataset: Dataset) -> Path:
    import h5py

    if not len(references):
        return None
    try:
        return h5py.h5r.get_name(references[0], dataset.id) or UNKNOWN
    except (RuntimeError, ValueError):
        # of no object, or of none that is there
        return UNKNOWN


@cache
def _sequences_of_references() -> tuple[Any, Any]:
    """Return the type of the list of scales of an axis: in a file, and as numpy's objects."""
    import h5py

    dtype = h5py.vlen_dtype(h5py.ref_dtype)
    return h5py.h5t.py_create(dtype, logical=True), h5py.h5t.py_create(dtype)


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
        self.scales = [d for d in datasets if d.is_scale]
        self._by_address = {d.address: d for d in [*above, *self.scales]}
        self._by_path = {d.place: self._by_address[d.address].name for d in [*above, *self.scales]}
        self.named: Names = [(d, self._look_up(d)) for d in datasets]
        self.lengths = self._unlimited_lengths()

    @cached_property
    def _by_id(self) -> dict[int, str]:
        """Names of scales by the number that the netCDF library gave them."""
        return {
            int(d.attrs["_Netcdf4Dimid"]): d.name
            for d in self._by_address.values()
            if "_Netcdf4Dimid" in d.attrs
        }

    def _unlimited_lengths(self) -> dict[str, int]:
        """Return how long variables of the group make every unlimited dimension that they see."""
        # the name of a dimension hides that of another one further up
        seen = {d.name: d for d in self._by_address.values()}
        lengths = {name: 0 for name, d in seen.items() if d.is_unlimited}
        for dataset, dims in self.named:
            for dim, n in zip(dims, dataset.shape, strict=True):
                if dim in lengths:
                    lengths[dim] = max(n, lengths[dim])
        return lengths

    @property
    def grow(self) -> bool:
        """Whether it matters to any of the datasets how long unlimited dimensions are."""
        names = {name for _, dims in self.named for name in dims}
        return bool(self.lengths) and (None in names or not names.isdisjoint(self.lengths))

    def _look_up(self, dataset: Dataset) -> tuple[str | None, ...]:
        rank = len(dataset.shape)
        if dataset.is_scale:
            if rank > 1 and "_Netcdf4Coordinates" in dataset.attrs:
                return tuple(self._by_id.get(int(i)) for i in dataset.attrs["_Netcdf4Coordinates"])
            return (dataset.name, *([None] * (rank - 1)))[:rank]
        return tuple(
            None if path is None else self._scale_at(dataset, axis, path)
            for axis, path in enumerate(scale_paths(dataset))
        )

    def _scale_at(self, dataset: Dataset, axis: int, path: bytes) -> str | None:
        """Return the name of the first scale of an axis, which has some path in the file."""
        known = self._by_path.get((dataset.source.url, path))
        return self._attached(dataset, axis) if known is None else known

    def _attached(self, dataset: Dataset, axis: int) -> str | None:
        """Return the name of the first scale of an axis."""
        import h5py

        found: list[Any] = []
        if axis < dataset.id.rank and h5py.h5ds.get_num_scales(dataset.id, axis):
            h5py.h5ds.iterate(dataset.id, axis, found.append)
        if not found:
            return None
        address = (dataset.source.url, h5py.h5o.get_info(found[0]).addr)
        if address in self._by_address:
            return self._by_address[address].name
        return str(h5py.Dataset(found[0]).name).rpartition("/")[2]


class Dimensions:
    """The dimensions of a group, as the netCDF library names them.

    Axes with a scale have its name. The others are the first dimension of the group that has their
    length, and may grow or not as they may, but never one twice in one variable; where there is
    none, it is invented: ``phony_dim_0``, ``phony_dim_1`` and so on (netCDF-C,
    ``nc4_rec_match_dimscales``).

    Parameters
    ----------
    axes : NamedAxes
        Of the group.
    first : callable
        Returns the number of the first dimension that is invented.
    lengths : mapping of str to int
        How long unlimited dimensions are by variables of other groups.
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
                name = self._fitting(size, grows, taken)
                taken.append(name)
            complete.append(name)
        return tuple(complete)

    def _fitting(self, size: int, grows: bool, taken: list[str]) -> str:
        """Return a dimension for an axis without scale, inventing one if none fits."""
        for name, length, may_grow in self._here:
            if (length, may_grow) == (size, grows) and name not in taken:
                return name
        name = f"phony_dim_{self._first() + self.invented}"
        self.invented += 1
        # to the netCDF library, length 0 means unlimited
        self._here.append((name, size, grows or not size))
        return name
