"""The conventions of netCDF on HDF5: dimension scales, fill values, order.

A netCDF4 file is an HDF5 file with conventions: dimensions are dimension scales (HDF5 Dimension
Scale Specification 1.0; netCDF-C documentation, "NetCDF-4 File Format"), and some attributes serve
only them. Names come in the order of creation, as the netCDF library gives them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from virtualds.errors import FormatError, VirtualdsError
from virtualds.parsers.hdf5.attribute_messages import DIMENSION_ONLY, Attributes, find_string_size, read_attributes
from virtualds.parsers.hdf5.data_types import TypeClass
from virtualds.parsers.hdf5.file import HDF5Files, describe_damage, find_referenced_file
from virtualds.parsers.hdf5.file_bytes import FileBytes
from virtualds.parsers.hdf5.global_heap import check_elements
from virtualds.parsers.hdf5.object_header import DATATYPE, Message, read_messages
from virtualds.parsers.hdf5.shared_messages import read_fill_values, read_unshared
from virtualds.parsers.hdf5.type_messages import HDF5Type, parse_type
from virtualds.source_file import SourceFile

SCALE = b"DIMENSION_SCALE"
"""The CLASS of a scale."""
LONGEST_TEXT = 2**16
"""Most bytes of a text attribute of a scale: HDF5 itself writes at most a name."""
PADDINGS = range(3)
"""Ways to fill up strings of fixed length (IV.A.2.d): HDF5 knows a scale by the first alone."""
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
"""Default fill values of the netCDF library (netCDF-C, ``netcdf.h``)."""


def has_fill(plist: Any) -> bool:
    """Say whether the writer of a dataset chose its storage fill value."""
    import h5py

    return bool(plist.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED)


def find_fill_beyond(plist: Any, dtype: np.dtype[Any]) -> Any:
    """Return what netCDF reads past the end of a dataset that is shorter than its dimension."""
    if dtype.hasobject:
        return ""
    if not has_fill(plist):
        return np.array(NETCDF_FILLS.get(dtype.str[1:], np.zeros((), dtype)), dtype)[()]
    return find_chosen_fill(plist, dtype)[0]


def find_chosen_fill(plist: Any, dtype: np.dtype[Any]) -> Any:
    """Return the storage fill value that the writer chose, as an array of one element."""
    # numpy's dates are opaque bytes to HDF5
    known = np.dtype(f"V{dtype.itemsize}") if dtype.kind in "mM" else dtype
    fill = np.zeros((1,), known)
    plist.get_fill_value(fill)
    return fill.view(dtype)


class HDF5Object:
    """A group or dataset, the file that it lies in, and the open files."""

    id: Any
    source: SourceFile
    files: HDF5Files
    linked: int | None = None
    """The address that a link gives for it."""

    @cached_property
    def attrs(self) -> Any:
        """Its attributes, as h5py reads them."""
        import h5py

        return h5py.AttributeManager(self)

    @cached_property
    def address(self) -> tuple[str, int]:
        """Its url and address, the same through every link."""
        import h5py

        known = self.linked
        return self.source.url, h5py.h5o.get_info(self.id).addr if known is None else known

    @cached_property
    def file(self) -> FileBytes:
        """The bytes of the file that it lies in."""
        return self.files.get_bytes(self.source)

    @cached_property
    def messages(self) -> list[Message]:
        """The messages of its object header."""
        return read_messages(self.file, self.address[1])

    @cached_property
    def attributes(self) -> Attributes:
        """Its attributes, in the order of creation where the file kept it."""
        return read_attributes(self.file, self.messages, self.address[1])


class Dataset(HDF5Object):
    """A dataset, with its type, shape and properties.

    Parameters
    ----------
    name : str
        Its name in its group.
    place : HDF5Location
        The target of a link.
    """

    def __init__(self, name: str, place: HDF5Location) -> None:
        import h5py

        self.name = name
        self.id = found = place.id
        self.source, self.files, self.linked = place.source, place.files, place.linked
        self.kind = found.get_type()
        # HDF5 follows the fill value into the heap as soon as it reads the properties
        self._check_fill()
        self.plist = found.get_create_plist()
        # a dataset without dataspace (H5S_NULL) has no shape; it holds nothing
        self._within = _find_inner_axes(self.kind)
        self.shape: tuple[int, ...] = (found.shape or ()) + self._within
        self.is_scale = _read_text(self, b"CLASS", (h5py.h5t.STR_NULLTERM,)) == SCALE

    @cached_property
    def referring(self) -> HDF5Type | None:
        """The type of its elements if they refer to the global heap, else None."""
        of_class = self.kind.get_class()
        is_text = of_class == TypeClass.STRING and self.kind.is_variable_str()
        if not is_text and of_class not in (TypeClass.COMPOUND, TypeClass.VLEN, TypeClass.ARRAY):
            return None
        found = [m for m in self.messages if m.kind == DATATYPE]
        if len(found) != 1:
            self.file.refuse(f"a dataset has {len(found)} types")
        kind = parse_type(self.file, read_unshared(self.file, found[0]))
        return kind if kind.refers else None

    def _check_fill(self) -> None:
        """Refuse a fill value that refers to objects missing from the heap."""
        if self.referring is None:
            return
        for raw in read_fill_values(self.file, self.messages):
            if len(raw) != self.referring.size:
                self.file.refuse(f"a fill value has {len(raw)} bytes of {self.referring.size}")
            check_elements(self.file, self.referring, np.frombuffer(raw, np.uint8)[None])

    @property
    def is_bare(self) -> bool:
        """Whether it is a scale that stands for a dimension without a variable."""
        return self.is_scale and _read_text(self, b"NAME", PADDINGS).startswith(DIMENSION_ONLY)

    @property
    def is_unlimited(self) -> bool:
        """Whether its first axis may grow."""
        return self.grows[:1] == (True,)

    @cached_property
    def grows(self) -> tuple[bool, ...]:
        """Whether each axis may grow."""
        return tuple(n is None for n in self.limits) + (False,) * len(self._within)

    @cached_property
    def limits(self) -> tuple[int | None, ...]:
        """The greatest length of each axis, None where there is no limit."""
        limits = self.id.get_space().get_simple_extent_dims(True)
        return tuple(None if n == UNLIMITED else n for n in limits)


def _read_text(owner: HDF5Object, name: bytes, paddings: Collection[int]) -> bytes:
    """Return an attribute that is one fixed-length string with such padding; else empty bytes.

    HDF5's own functions for scales (`H5DSis_scale`) end the process where the type is another.
    """
    found = owner.attributes.get(name)
    if found is None:
        return b""
    size = find_string_size(found.kind, paddings)
    if found.elements != 1 or not 0 < size <= min(LONGEST_TEXT, len(found.data)):
        return b""
    return found.data[:size].partition(b"\0")[0]


def _find_inner_axes(kind: Any) -> tuple[int, ...]:
    """Return the axes that every element of an array type has."""
    axes: tuple[int, ...] = ()
    while kind.get_class() == TypeClass.ARRAY:
        axes += kind.get_array_dims()
        kind = kind.get_super()
    return axes


@dataclass(frozen=True)
class HDF5Location(HDF5Object):
    """A group, or the target of a link."""

    id: Any
    source: SourceFile
    files: HDF5Files
    linked: int | None = None


@dataclass(frozen=True)
class GroupMembers:
    """The members of a group, in the order of creation.

    Parameters
    ----------
    datasets : dict of str to Dataset
    groups : dict of str to HDF5Location
    broken : dict of str to VirtualdsError
        Links that lead nowhere, and damaged members.
    """

    datasets: dict[str, Dataset] = field(default_factory=dict)
    groups: dict[str, HDF5Location] = field(default_factory=dict)
    broken: dict[str, VirtualdsError] = field(default_factory=dict)

    @property
    def scales(self) -> list[Dataset]:
        """Its scales, each once, by the first of several names."""
        distinct: dict[tuple[str, int], Dataset] = {}
        for dataset in self.datasets.values():
            if dataset.is_scale:
                distinct.setdefault(dataset.address, dataset)
        return list(distinct.values())


def list_members(place: HDF5Location, files: HDF5Files, skip: Collection[str] = ()) -> GroupMembers:
    """Return the members of a group, without soft and external links of the names to skip."""
    import h5py

    result = GroupMembers()
    # HDF5 refuses an order that the file did not keep
    tracked = bool(place.id.get_create_plist().get_link_creation_order())
    for raw, link, address in _list_in_order(partial(_list_links, place.id), tracked=tracked):
        name = raw.decode("utf-8", "surrogateescape")
        if link != h5py.h5l.TYPE_HARD and name in skip:
            continue
        try:
            with describe_damage(place.source):
                found = follow_link(place, raw, link, files)
                if link == h5py.h5l.TYPE_HARD:
                    found = replace(found, linked=address)
                if isinstance(found.id, h5py.h5d.DatasetID):
                    result.datasets[name] = Dataset(name, found)
                elif isinstance(found.id, h5py.h5g.GroupID):
                    result.groups[name] = found
        except VirtualdsError as error:
            result.broken[name] = error
    return result


def descend_to(root: HDF5Location, path: str, files: HDF5Files) -> list[HDF5Location]:
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
            places.append(follow_link(places[-1], raw, links.get_info(raw).type, files))
        if not there or not isinstance(places[-1].id, h5py.h5g.GroupID):
            raise FileNotFoundError(
                f"{root.source.url}: there is no group {path!r}; look at its groups with h5py or "
                f"ncdump -h"
            )
    return places


def follow_link(place: HDF5Location, raw: bytes, link: int, files: HDF5Files) -> HDF5Location:
    """Return the target of a link.

    Raises
    ------
    FormatError
        It leads nowhere.
    """
    import h5py

    base, path, source = place.id, raw, place.source
    if link == h5py.h5l.TYPE_EXTERNAL:
        name, path = base.links.get_val(raw)
        source = find_referenced_file(os.fsdecode(name), source)
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
    if link != h5py.h5l.TYPE_HARD:
        source = file_of(found, base, source)
    return HDF5Location(found, source, files)


def file_of(found: Any, base: Any, source: SourceFile) -> SourceFile:
    """Return the file that an object lies in: soft links may pass through external ones."""
    import h5py

    name = h5py.h5f.get_name(found)
    if name == h5py.h5f.get_name(base):
        return source
    return find_referenced_file(os.fsdecode(name), source)


def _list_links(group: Any, order: int, found: list[tuple[bytes, int, int]]) -> None:
    """List links by name, type and address; h5py reuses one object for all of them."""
    group.links.iterate(
        lambda raw, info: found.append((raw, info.type, info.u)), idx_type=order, info=True
    )


def _list_in_order(iterate: Callable[[int, list[Any]], None], *, tracked: bool = True) -> list[Any]:
    """Return what is listed in the order of creation where the file kept it, else by name."""
    import h5py

    orders = (h5py.h5.INDEX_CRT_ORDER, h5py.h5.INDEX_NAME)
    for order in orders if tracked else orders[1:]:
        found: list[Any] = []
        try:
            iterate(order, found)
        except (RuntimeError, UnicodeDecodeError):
            # error messages of HDF5 are not always text
            continue
        return found
    raise FormatError("HDF5 cannot list a group; the file is damaged")


def list_attribute_names(owner: HDF5Object) -> list[str]:
    """Return the names of all attributes, in the order of creation where the file kept it."""
    return [name.decode("utf-8", "surrogateescape") for name in owner.attributes]
