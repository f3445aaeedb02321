"""What netCDF makes of the structure of an HDF5 file: dimensions, attributes, order.

A netCDF4 file is an HDF5 file with conventions: dimensions are dimension scales (HDF5 Dimension
Scale Specification 1.0; netCDF-C documentation, "NetCDF-4 File Format"), and some attributes serve
only them. Names come in the order of creation, as the netCDF library gives them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from virtualds.errors import FormatError, VirtualdsError
from virtualds.hdf5.data_types import Class
from virtualds.hdf5.file import HDF5Files, damage_of, find
from virtualds.manifest import SourceFile

DIMENSION_ONLY = b"This is a netCDF dimension but not a netCDF variable"
"""Start of the NAME of a scale that stands for a dimension without a variable."""
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
        self.attrs = h5py.AttributeManager(self)

    @cached_property
    def address(self) -> tuple[str, int]:
        """What tells it from any other dataset, however links lead to it."""
        import h5py

        return self.source.url, h5py.h5o.get_info(self.id).addr

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
    # without it, HDF5 would complain
    tracked = bool(place.id.get_create_plist().get_link_creation_order())
    for raw, link in _in_order(partial(_list_links, place.id), tracked=tracked):
        name = raw.decode("utf-8", "surrogateescape")
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


def _list_links(group: Any, order: int, found: list[tuple[bytes, int]]) -> None:
    """List links by name and type; h5py tells of all of them through one object."""
    group.links.iterate(lambda raw, info: found.append((raw, info.type)), idx_type=order, info=True)


def _list_attributes(owner: Any, order: int, found: list[bytes]) -> None:
    import h5py

    h5py.h5a.iterate(owner, lambda raw, *_: found.append(raw), index_type=order)


def _in_order(iterate: Callable[[int, list[Any]], None], *, tracked: bool = True) -> list[Any]:
    """Return what is listed in the order of creation where the file kept it, else by name."""
    import h5py

    orders = (h5py.h5.INDEX_CRT_ORDER, h5py.h5.INDEX_NAME)
    for order in orders if tracked else orders[1:]:
        found: list[Any] = []
        try:
            iterate(order, found)
        except (RuntimeError, UnicodeDecodeError):
            # what HDF5 complains of is not always text
            continue
        return found
    raise FormatError("HDF5 cannot list a group; the file is damaged")


def attribute_names(owner: Any) -> list[str]:
    """Return the names of all attributes, in the order of creation where the file kept it."""
    found = _in_order(partial(_list_attributes, owner.id))
    return [name.decode("utf-8", "surrogateescape") for name in found]
