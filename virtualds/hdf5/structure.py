"""What netCDF makes of the structure of an HDF5 file: dimensions, attributes, order.

A netCDF4 file is an HDF5 file with conventions: dimensions are dimension scales (HDF5 Dimension
Scale Specification 1.0; netCDF-C documentation, "NetCDF-4 File Format"), and some attributes serve
only them. Names come in the order of creation, as the netCDF library gives them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from virtualds.errors import FormatError, VirtualdsError
from virtualds.hdf5.data_types import Class
from virtualds.hdf5.file import HDF5Files, damage_of, find
from virtualds.manifest import SourceFile

DIMENSION_ONLY = b"This is a netCDF dimension but not a netCDF variable"
"""Start of the NAME of a scale that stands for a dimension without a variable."""
SCALES = b"DIMENSION_LIST"
"""The attribute that refers to the scales of every axis."""
UNLIMITED = 2**64 - 1
"""The greatest length of an axis that may grow (H5S_UNLIMITED)."""


NETCDF_FILLS: dict[str, Any] = {
    "i1": -127,
    "u1": 255,
    "i2": -32767,
    "u2": 65535,
    "i4": -2147483647,
    "u4": 4294967295,
    "i8": -9223372036854775806,
    "u8": 18446744073709551614,
    "f4": np.float32(9.969209968386869e36),
    "f8": 9.969209968386869e36,
}
"""What the netCDF library fills with where nobody chose a fill value (netCDF-C, ``netcdf.h``)."""


def has_fill(plist: Any) -> bool:
    """Say whether somebody chose the storage fill value."""
    import h5py

    return bool(plist.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED)


def fill_beyond(plist: Any, dtype: np.dtype[Any]) -> Any:
    """Return what netCDF reads past the end of a dataset that is shorter than its dimension."""
    if dtype.hasobject:
        return ""
    if not has_fill(plist):
        return np.array(NETCDF_FILLS.get(dtype.str[1:], np.zeros((), dtype)), dtype)[()]
    return chosen_fill(plist, dtype)[0]


def chosen_fill(plist: Any, dtype: np.dtype[Any]) -> Any:
    """Return the storage fill value that somebody chose, as an array of one element."""
    # numpy's dates are opaque bytes to HDF5
    known = np.dtype(f"V{dtype.itemsize}") if dtype.kind in "mM" else dtype
    fill = np.zeros((1,), known)
    plist.get_fill_value(fill)
    return fill.view(dtype)


class Dataset:
    """A dataset with what the walk asks it more than once.

    Parameters
    ----------
    name : str
        What its group calls it.
    found : h5py.h5d.DatasetID
    source : SourceFile
        The file that it lies in: links lead to other files.
    """

    def __init__(self, name: str, found: Any, source: SourceFile) -> None:
        import h5py

        self.name = name
        self.id = found
        self.source = source
        self.kind = found.get_type()
        self.plist = found.get_create_plist()
        # a dataset without dataspace (H5S_NULL) has no shape; it holds nothing
        self._within = _axes_within(self.kind)
        self.shape: tuple[int, ...] = (found.shape or ()) + self._within
        self.is_scale: bool = h5py.h5ds.is_scale(found)
        self.address = (source.url, h5py.h5o.get_info(found).addr)
        self.attrs = h5py.AttributeManager(self)

    @property
    def is_bare(self) -> bool:
        """Whether it is a scale that stands for a dimension without a variable."""
        import h5py

        return self.is_scale and h5py.h5ds.get_scale_name(self.id).startswith(DIMENSION_ONLY)

    @property
    def is_unlimited(self) -> bool:
        """Whether its first axis may grow."""
        return self.grows[:1] == (True,)

    @cached_property
    def grows(self) -> tuple[bool, ...]:
        """Whether each axis may grow."""
        limits = self.id.get_space().get_simple_extent_dims(True)
        return tuple(n == UNLIMITED for n in limits) + (False,) * len(self._within)

    @cached_property
    def place(self) -> tuple[str, bytes | None]:
        """The url of its file, and a path there that leads to it."""
        import h5py

        return self.source.url, h5py.h5i.get_name(self.id)


def _axes_within(kind: Any) -> tuple[int, ...]:
    """Return the axes that every element of an array type has."""
    axes: tuple[int, ...] = ()
    while kind.get_class() == Class.ARRAY:
        axes += kind.get_array_dims()
        kind = kind.get_super()
    return axes


class Place(NamedTuple):
    """A group, and the file that it lies in."""

    id: Any
    source: SourceFile

    @property
    def attrs(self) -> Any:
        """Its attributes, as h5py reads them."""
        import h5py

        return h5py.AttributeManager(self)

    @property
    def address(self) -> tuple[str, int]:
        """What tells it from any other group, however links lead to it."""
        import h5py

        return self.source.url, h5py.h5o.get_info(self.id).addr


@dataclass(frozen=True)
class Members:
    """What a group holds, in the order of creation.

    Parameters
    ----------
    datasets : dict of str to Dataset
    groups : dict of str to Place
    broken : dict of str to VirtualdsError
        Links that lead nowhere, and what is damaged.
    """

    datasets: dict[str, Dataset] = field(default_factory=dict)
    groups: dict[str, Place] = field(default_factory=dict)
    broken: dict[str, VirtualdsError] = field(default_factory=dict)


def members(place: Place, files: HDF5Files, skip: Collection[str] = ()) -> Members:
    """Look at everything in a group, but for links of the names to skip."""
    import h5py

    result = Members()
    for raw in _in_order(lambda order, add: place.id.links.iterate(add, idx_type=order)):
        name = raw.decode("utf-8", "surrogateescape")
        link = place.id.links.get_info(raw).type
        if link != h5py.h5l.TYPE_HARD and name in skip:
            continue
        try:
            with damage_of(place.source):
                found, source = follow(place, raw, link, files)
                if isinstance(found, h5py.h5d.DatasetID):
                    result.datasets[name] = Dataset(name, found, source)
                elif isinstance(found, h5py.h5g.GroupID):
                    result.groups[name] = Place(found, source)
        except VirtualdsError as error:
            result.broken[name] = error
    return result


def descend(root: Place, path: str, files: HDF5Files) -> list[Place]:
    """Return the groups from the root to the one at a path.

    Raises
    ------
    FileNotFoundError
        There is no such group.
    """
    import h5py

    places = [root]
    for part in filter(None, path.split("/")):
        raw, links = part.encode("utf-8", "surrogateescape"), places[-1].id.links
        there = links.exists(raw)
        if there:
            places.append(follow(places[-1], raw, links.get_info(raw).type, files))
        if not there or not isinstance(places[-1].id, h5py.h5g.GroupID):
            raise FileNotFoundError(
                f"{root.source.url}: there is no group {path!r}; look at its groups with h5py or "
                f"ncdump -h"
            )
    return places


def follow(place: Place, raw: bytes, link: int, files: HDF5Files) -> Place:
    """Return what a link leads to, and the file that it lies in.

    Raises
    ------
    FormatError
        It leads nowhere.
    """
    import h5py

    base, path, source = place.id, raw, place.source
    if link == h5py.h5l.TYPE_EXTERNAL:
        name, path = base.links.get_val(raw)
        source = find(os.fsdecode(name), source)
        base = files.open(source).id
    try:
        found = h5py.h5o.open(base, path)
    except KeyError as error:
        path = base.links.get_val(raw) if link == h5py.h5l.TYPE_SOFT else path
        raise FormatError(
            f"{place.source.url}: the link {raw.decode('utf-8', 'replace')!r} leads to "
            f"{path.decode('utf-8', 'replace')!r} of {source.url}, where nothing is; leave it out "
            f"with drop_variables"
        ) from error
    return Place(found, source if link == h5py.h5l.TYPE_HARD else file_of(found, base, source))


def file_of(found: Any, base: Any, source: SourceFile) -> SourceFile:
    """Return the file that an object lies in: soft links may pass through external ones."""
    import h5py

    name = h5py.h5f.get_name(found)
    if name == h5py.h5f.get_name(base):
        return source
    return find(os.fsdecode(name), source)


def _append(names: list[bytes], name: bytes, *rest: Any) -> None:
    names.append(name)


def _in_order(iterate: Callable[[int, Callable[..., None]], None]) -> list[bytes]:
    """Return names in the order of creation where the file kept it, else in alphabetical order."""
    import h5py

    for order in (h5py.h5.INDEX_CRT_ORDER, h5py.h5.INDEX_NAME):
        names: list[bytes] = []
        try:
            iterate(order, partial(_append, names))
        except RuntimeError:
            continue
        return names
    raise FormatError("HDF5 cannot list a group; the file is damaged")


Names = list[tuple[Dataset, tuple[str | None, ...]]]


Path = bytes | None
UNKNOWN = b"?"
"""In place of the path of a scale: HDF5 is to be asked for the scale itself."""


def scale_paths(dataset: Dataset) -> tuple[Path, ...]:
    """Return a path of the first scale of every axis, None where there is none.

    The attribute that lists all scales is read once:
    to ask HDF5 for those of an axis (`H5DSiterate_scales`) reads it all for each.
    """
    import h5py

    rank = int(dataset.id.rank)
    within: tuple[Path, ...] = (None,) * (len(dataset.shape) - rank)
    if not rank or not h5py.h5a.exists(dataset.id, SCALES):
        return (None,) * rank + within
    listed = h5py.h5a.open(dataset.id, SCALES)
    in_file, in_memory = _sequences_of_references()
    if listed.shape != (rank,) or not listed.get_type().equal(in_file):
        return (UNKNOWN,) * rank + within
    found = np.empty((rank,), h5py.vlen_dtype(h5py.ref_dtype))
    listed.read(found, in_memory)
    return tuple(_path_of_first(refs, dataset) for refs in found) + within


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


def attribute_names(owner: Any) -> list[str]:
    """Return the names of all attributes, in the order of creation where the file kept it."""
    import h5py

    names = _in_order(lambda order, add: h5py.h5a.iterate(owner.id, add, index_type=order))
    return [name.decode("utf-8", "surrogateescape") for name in names]
