"""Conventions of netCDF on HDF5: fill values, user attributes, and dimensions.

A netCDF4 file is an HDF5 file with conventions (netCDF-C documentation, "NetCDF-4 File Format";
HDF5 Dimension Scale Specification 1.0). Names are in creation order, as in netCDF-C.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from math import prod
from typing import Any, NamedTuple

import numpy as np

from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.parsers.eos_metadata import Structure
from virtualds.parsers.hdf5.data_types import (
    CHARSETS,
    encode_type,
    find_unsupported_reason,
    parse_stored_type,
)
from virtualds.parsers.hdf5.objects import (
    GroupMembers,
    HDF5Dataset,
    HDF5Location,
    describe_damage,
    read_members,
)
from virtualds.parsers.hdf5.structure.element_types import (
    check_elements,
    is_region,
    is_sequence,
    parse_type,
    parse_type_message,
    read_sequences,
)
from virtualds.parsers.hdf5.structure.file_bytes import FileBytes, mark_incomplete, note_same
from virtualds.parsers.hdf5.structure.messages import MESSAGE_ERRORS, TypeClass
from virtualds.parsers.hdf5.structure.object_header import (
    INLINE_CLASSES,
    Attribute,
    find_string_size,
)

# ---------------------------------------------------------------------- fill values


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
"""Default fill values of netCDF-C (``netcdf.h``)."""


def get_fill_past_end(chosen: bytes | None, dtype: np.dtype[Any]) -> Any:
    """Return the value that netCDF reads past the end of a dataset shorter than its dimension.

    Parameters
    ----------
    chosen : bytes or None
        The storage fill value, if it is user-defined.
    dtype : numpy dtype
        The dtype of the values.
    """
    if dtype.hasobject:
        return ""
    if chosen is None:
        return np.array(NETCDF_FILLS.get(dtype.str[1:], np.zeros((), dtype)), dtype)[()]
    return np.frombuffer(chosen, dtype)[0]


def list_attribute_names(owner: HDF5Location) -> list[str]:
    """Return the names of all attributes, in creation order if it is tracked."""
    return [name.decode("utf-8", "surrogateescape") for name in owner.attributes]


# ---------------------------------------------------------------------- attributes
# Attributes of HDF5 groups and datasets, as netCDF4-python returns them.


RESERVED_ATTRIBUTES = frozenset(
    {
        "CLASS",
        "NAME",
        "REFERENCE_LIST",
        "DIMENSION_LIST",
        "_Netcdf4Dimid",
        "_Netcdf4Coordinates",
        "_nc3_strict",
        "_NCProperties",
    }
)
"""Attributes of dimension scales and of netCDF-C, which are not user attributes."""

MAX_STRING_BYTES = 2**31 - 1
"""Maximum size in bytes of a string in numpy."""
NULL_TERMINATED, NULL_PADDED = 0, 1
"""Paddings of fixed-length strings."""


NUMBER_CLASSES = frozenset({TypeClass.INTEGER, TypeClass.FLOAT})
"""Type classes of numbers."""
STRING_TYPES = {
    struct.pack("<BBHIBBHIHH", 0x19, 1, charset, 16, 0x10, 0, 0, 1, 0, 8) for charset in CHARSETS
}
"""Encoded types of variable-length strings with 8-byte addresses (IV.A.2.d)."""


def read_attribute(owner: Any, name: str) -> Any:
    """Return the value of an attribute as netCDF4-python does.

    A string is a str, several are a list; a number is a scalar, several are an array. Object
    references are the paths of the objects.

    Raises
    ------
    UnsupportedError
        Its type is not supported.
    FormatError
        Its value is in a damaged heap.
    """
    raw = name.encode("utf-8", "surrogateescape")
    attribute = owner.attributes[raw]
    if (value := _decode_value(owner.file, attribute)) is not None:
        return value
    return _read_by_library(owner, name, raw, attribute)


def _read_by_library(owner: Any, name: str, raw: bytes, attribute: Attribute) -> Any:
    import h5py

    if is_region(attribute.kind):
        # HDF5 reads region references from the global heap, which has not been checked
        raise _make_unsupported_error("it refers to regions")
    if not attribute.kind or attribute.kind[0] & 0x0F not in INLINE_CLASSES:
        mark_incomplete(attribute.data)
    try:
        kind = h5py.h5a.open(owner.id, raw).get_type()
        has_parts = kind.get_class() in (TypeClass.COMPOUND, TypeClass.VLEN, TypeClass.ARRAY)
        if has_parts and (reason := find_unsupported_reason(parse_type_message(encode_type(kind)))):
            raise _make_unsupported_error(reason)
        _check_heap(owner.file, attribute)
        value = owner.attrs[name]
    except (FormatError, UnsupportedError):
        raise
    except KeyError as error:
        owner.file.raise_damaged(f"attribute {name!r}: {error.args[0]}")
    except TypeError as error:
        raise _make_unsupported_error(f"numpy has no such type: {error}") from error
    except (OSError, ValueError) as error:
        raise _make_unsupported_error(str(error)) from error
    if isinstance(value, h5py.Empty):
        return "" if value.dtype.kind in "SUO" else np.empty(0, value.dtype)
    if isinstance(value, str | bytes):
        return _to_text(value)
    if isinstance(value, h5py.Reference):
        return get_object_path(value, owner)
    if isinstance(value, np.ndarray) and value.dtype.kind in "SO":
        return _convert_items(name, value, owner)
    if isinstance(value, np.ndarray) and value.size == 1:
        return value.ravel()[0]
    return value.astype(value.dtype.newbyteorder("=")) if isinstance(value, np.ndarray) else value


def _check_heap(file: FileBytes, attribute: Attribute) -> None:
    """Raise an error for an attribute that refers to objects missing from the heap."""
    kind = parse_type(file, attribute.kind)
    if not kind.has_variable_length:
        return
    if attribute.elements * kind.size > len(attribute.data):
        file.raise_damaged(
            f"an attribute has {len(attribute.data)} bytes for {attribute.elements} elements"
        )
    data = np.frombuffer(attribute.data, np.uint8, attribute.elements * kind.size)
    check_elements(file, kind, data.reshape(-1, kind.size))


def _decode_value(file: FileBytes, attribute: Attribute) -> Any:
    """Return a value of a common type as h5py does, or None for other types."""
    if attribute.elements and attribute.kind in STRING_TYPES:
        return decode_strings(read_sequences(file, attribute, is_value=True))
    return decode_inline_value(attribute)


def decode_strings(raw: Sequence[bytes]) -> Any:
    """Return variable-length strings as h5py does: one as a str, several as a list."""
    texts = [_to_text(text.partition(b"\0")[0]) for text in raw]
    return texts[0] if len(texts) == 1 else texts


def decode_inline_value(attribute: Attribute) -> Any:
    """Return the value of an attribute that is not in the heap, or None for uncommon types."""
    count = attribute.elements
    dtype = _find_native_dtype(attribute.kind)
    if dtype is None or not 0 < count * dtype.itemsize <= len(attribute.data):
        return None
    if dtype.kind != "S":
        values = np.frombuffer(attribute.data, dtype, count).reshape(attribute.shape)
        return values.ravel()[0] if count == 1 else values.astype(dtype.newbyteorder("="))
    size = dtype.itemsize
    texts = [attribute.data[at : at + size].rstrip(b"\0") for at in range(0, count * size, size)]
    # let HDF5 handle bytes after the end of a string
    return None if any(b"\0" in text for text in texts) else decode_strings(texts)


@lru_cache(1024)
def _find_native_dtype(kind: bytes) -> np.dtype[Any] | None:
    """Return the dtype of numbers and strings that numpy reads as stored, or None."""
    if size := find_string_size(kind, (NULL_TERMINATED, NULL_PADDED)):
        return np.dtype(f"S{size}") if size <= MAX_STRING_BYTES else None
    if kind[0] & 0x0F not in NUMBER_CLASSES:
        return None
    try:
        stored = parse_stored_type(kind)
    except (UnsupportedError, *MESSAGE_ERRORS):
        return None
    return stored.dtype if stored.in_chunks else None


def _convert_items(name: str, values: np.ndarray[Any, Any], owner: Any) -> Any:
    """Return strings or paths as a list, and variable-length arrays as an object array."""
    import h5py

    items: list[Any] = values.ravel().tolist()
    items = [
        get_object_path(item, owner) if isinstance(item, h5py.Reference) else _to_text(item)
        for item in items
    ]
    if len(items) == 1:
        return items[0]
    return items if all(isinstance(item, str) for item in items) else values


def _make_unsupported_error(reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"its type cannot be read ({reason}); pass on_error='skip', which leaves it out, or leave "
        f"the whole variable out with drop_variables"
    )


def get_object_path(reference: Any, owner: Any) -> str:
    """Return the path of a referenced object, or "" for a null reference."""
    import h5py

    name = h5py.h5r.get_name(reference, owner.id) if reference else None
    return name.decode("utf-8", "replace") if name else ""


def _to_text(value: Any) -> Any:
    """Return a string in which invalid UTF-8 is replaced as by netCDF-C."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace").replace("\0", "")
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
        return raw.decode("utf-8", "replace").replace("\0", "")
    return value


# ---------------------------------------------------------------------- dimensions


SCALE_ATTRIBUTE = b"DIMENSION_LIST"
"""Attribute with references to the scales of each axis."""
DIMENSION_ID, COORDINATE_IDS = "_Netcdf4Dimid", "_Netcdf4Coordinates"
"""Attributes of netCDF-C: the id of a dimension, and the dimension ids of the axes of a scale."""
Names = list[tuple[HDF5Dataset, tuple[str | None, ...]]]


def read_scale_addresses(dataset: HDF5Dataset) -> tuple[int | None, ...]:
    """Return the address of the last scale of each axis, or None if it has none.

    If an axis has several scales, netCDF-C uses the one that was attached last
    (``dimscale_visitor``). `H5DSiterate_scales` of HDF5 reads the whole list for each axis, and
    crashes if the list is damaged.

    Raises
    ------
    FormatError
        The attribute does not list scales.
    """
    rank = dataset.rank
    none: tuple[int | None, ...] = (None,) * len(dataset.shape)
    attribute = dataset.attributes.get(SCALE_ATTRIBUTE)
    if not rank or attribute is None:
        return none
    if attribute.elements != rank or not _is_reference_list(attribute.kind):
        raise _make_scale_list_error(dataset)
    lists = read_sequences(dataset.file, attribute)
    return tuple(_find_last_reference(dataset, references) for references in lists) + none[rank:]


def _find_last_reference(dataset: HDF5Dataset, references: bytes) -> int | None:
    """Return the address in the last reference of a list of object references."""
    width = dataset.file.offset_size
    offset = len(references) - width
    if offset < 0:
        return None
    address = int.from_bytes(references[offset:], "little")
    note_same(references, offset, width, address)
    return address


def _is_reference_list(kind: bytes) -> bool:
    """Return whether a type is a sequence of references to objects (IV.A.2.d)."""
    base = kind[8:12]
    return is_sequence(kind) and base[0] & 0x0F == TypeClass.REFERENCE and base[1] & 0x0F == 0


def _find_remote_scale_name(dataset: HDF5Dataset, axis: int) -> str:
    """Return the name of the last scale of an axis, which is in another group."""
    import h5py

    dtype = h5py.vlen_dtype(h5py.ref_dtype)
    values = np.empty((dataset.rank,), dtype)
    try:
        # `read_scale_addresses` has checked the list that HDF5 follows here
        h5py.h5a.open(dataset.id, SCALE_ATTRIBUTE).read(values, h5py.h5t.py_create(dtype))
        reference = values[axis][-1]
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


def _make_scale_list_error(dataset: HDF5Dataset) -> FormatError:
    return FormatError(
        f"{dataset.source.url}: the attribute {SCALE_ATTRIBUTE.decode()} of {dataset.name!r} is "
        f"not a list of scales for each of {dataset.rank} axes; the file is damaged, fetch it "
        "again, or remove the attribute"
    )


class NamedAxes:
    """The datasets of a group, and the names of their axes from dimension scales.

    Parameters
    ----------
    datasets : collection of HDF5Dataset
        The datasets of the group.
    parent_scales : iterable of HDF5Dataset
        The scales of its parents, the outermost first.
    """

    def __init__(
        self, datasets: Collection[HDF5Dataset], parent_scales: Iterable[HDF5Dataset]
    ) -> None:
        parent_scales = tuple(parent_scales)
        linked = [d for d in datasets if d.is_scale]
        # of several links to a scale, use the innermost, and within a group the first
        self._by_address = {d.address: d for d in [*parent_scales, *reversed(linked)]}
        self.scales = [d for d in linked if self._find_dimension(d) is d]
        self.named: Names = [(d, self._name_axes(d)) for d in datasets]
        self.lengths = self._find_unlimited_lengths()

    @cached_property
    def _by_id(self) -> dict[int, str]:
        """The names of scales by dimension id."""
        return {
            int(read_attribute(d, DIMENSION_ID)): d.name
            for d in self._by_address.values()
            if DIMENSION_ID.encode() in d.attributes
        }

    def _find_unlimited_lengths(self) -> dict[str, int]:
        """Return the lengths of visible unlimited dimensions in the variables of the group."""
        # a dimension hides dimensions of the same name in parent groups
        seen = {d.name: d for d in [*self._by_address.values(), *self.scales]}
        lengths = {name: 0 for name, d in seen.items() if d.is_unlimited}
        for dataset, dims in self.named:
            for dim, n in zip(dims, dataset.shape, strict=True):
                if dim in lengths:
                    lengths[dim] = max(n, lengths[dim])
        return lengths

    @property
    def depend_on_unlimited(self) -> bool:
        """Whether the dimensions of any dataset depend on the lengths of unlimited dimensions."""
        names = {name for _, dims in self.named for name in dims}
        return bool(self.lengths) and (None in names or not names.isdisjoint(self.lengths))

    def _name_axes(self, dataset: HDF5Dataset) -> tuple[str | None, ...]:
        rank = len(dataset.shape)
        if dataset.is_scale:
            if rank > 1 and COORDINATE_IDS.encode() in dataset.attributes:
                numbers = np.atleast_1d(read_attribute(dataset, COORDINATE_IDS))
                return tuple(self._by_id.get(int(i)) for i in numbers)
            name = self._find_dimension(dataset).name
            return (name, *([None] * (rank - 1)))[:rank]
        return tuple(
            None if address is None else self._find_scale(dataset, axis, address)
            for axis, address in enumerate(read_scale_addresses(dataset))
        )

    def _find_dimension(self, scale: HDF5Dataset) -> HDF5Dataset:
        """Return the link to a scale that names the dimension.

        A scale with a dimension id is one dimension, even if there are several links to it. For
        other scales, each link is a dimension, as in netCDF-C.
        """
        first = self._by_address[scale.address]
        return first if first is not scale and DIMENSION_ID.encode() in first.attributes else scale

    def _find_scale(self, dataset: HDF5Dataset, axis: int, address: int) -> str:
        """Return the name of the scale at an address."""
        name = self._by_address.get((dataset.source.url, address))
        return _find_remote_scale_name(dataset, axis) if name is None else name.name


class Dimensions:
    """The dimensions of a group, named as in netCDF-C.

    An axis with a scale has the name of the scale. Other axes have the first unused dimension of
    the group with the same length that is unlimited if the axis is, or else a new phony dimension:
    ``phony_dim_0``, ``phony_dim_1`` and so on (netCDF-C, ``nc4_rec_match_dimscales``). If other
    metadata of the file name such an axis, it has this name instead.

    Parameters
    ----------
    axes : NamedAxes
        The axes of the group.
    first : callable
        Returns the number of the first phony dimension.
    lengths : mapping of str to int
        Lengths of unlimited dimensions in variables of other groups.
    axis_names : mapping of str to tuple of str or None
        The names of axes in other metadata of the file, by dataset.
    """

    def __init__(
        self,
        axes: NamedAxes,
        first: Callable[[], int],
        lengths: Mapping[str, int],
        axis_names: Mapping[str, tuple[str | None, ...]] | None = None,
    ) -> None:
        self._first = first
        self.phony_count = 0
        self.lengths = {name: max(n, lengths.get(name, 0)) for name, n in axes.lengths.items()}
        self._dimensions = [
            (d.name, self.lengths.get(d.name, prod(d.shape[:1])), d.is_unlimited)
            for d in axes.scales
        ]
        scales = len(self._dimensions)
        self.by_dataset = {
            d.name: self._complete(d, dims) for d, dims in axes.named if not d.is_bare
        }
        self.unlimited_dims = {name for name, _, is_unlimited in self._dimensions if is_unlimited}
        phony = {name for name, _, _ in self._dimensions[scales:]}
        for name, names in (axis_names or {}).items():
            self._replace_phony(name, names, phony)

    def _replace_phony(
        self, dataset: str, names: Iterable[str | None], phony: Collection[str]
    ) -> None:
        """Replace phony dimensions of a dataset by names in other metadata of the file."""
        replaced = list(self.by_dataset.get(dataset, ()))
        for axis, (dim, name) in enumerate(zip(replaced, names, strict=False)):
            if name is not None and dim in phony and name not in replaced:
                replaced[axis] = name
                self.unlimited_dims |= {name} if dim in self.unlimited_dims else set()
        if dataset in self.by_dataset:
            self.by_dataset[dataset] = tuple(replaced)

    def _complete(self, dataset: HDF5Dataset, names: tuple[str | None, ...]) -> tuple[str, ...]:
        """Return the names of all axes, also of those without a scale."""
        used_names = [name for name in names if name is not None]
        if len(used_names) == len(names):
            return tuple(used_names)
        complete = []
        for name, size, is_unlimited in zip(
            names, dataset.shape, dataset.unlimited_axes, strict=True
        ):
            if name is None:
                name = self._find_or_invent(size, is_unlimited, used_names)
                used_names.append(name)
            complete.append(name)
        return tuple(complete)

    def _find_or_invent(self, size: int, is_unlimited: bool, used_names: list[str]) -> str:
        """Return a dimension for an axis without a scale, or add a phony dimension."""
        for name, length, unlimited in self._dimensions:
            if (length, unlimited) == (size, is_unlimited) and name not in used_names:
                return name
        name = f"{PHONY_PREFIX}{self._first() + self.phony_count}"
        self.phony_count += 1
        # netCDF-C treats dimensions of length 0 as unlimited
        self._dimensions.append((name, size, is_unlimited or not size))
        return name


# ---------------------------------------------------------------------- all groups of a file
# An unlimited dimension is as long as the longest variable along it, in any group. Phony dimensions
# are numbered throughout the file (netCDF-C, ``find_dim_len`` and ``nc4_rec_match_dimscales``).


MAX_GROUPS = 100_000
"""Maximum number of groups to read; with links, a small file can have more."""

PathParts = tuple[str, ...]
"""Path of a group, as the names of the groups below the root."""


AxisNames = Mapping[str, tuple[str | None, ...]]
"""Names of axes, by dataset."""
DimensionLengths = dict[str, set[int]]
"""Lengths of dimensions, by name; in an inconsistent file, a dimension has several."""
PHONY_PREFIX = "phony_dim_"
"""Prefix of the names of phony dimensions."""


class HDF5Group(NamedTuple):
    """A group, its members, and the scales of its parents, the outermost first."""

    path: PathParts
    location: HDF5Location
    members: GroupMembers
    parent_scales: tuple[HDF5Dataset, ...] = ()

    @property
    def axes(self) -> NamedAxes:
        """The datasets of the group, with the names of their axes."""
        return NamedAxes(self.members.datasets.values(), self.parent_scales)


def read_groups_below(
    location: HDF5Location,
    group_path: PathParts = (),
    parent_scales: tuple[HDF5Dataset, ...] = (),
    skip: Collection[str] = (),
    ancestors: Collection[tuple[str, int]] = (),
) -> Iterator[HDF5Group]:
    """Yield all subgroups of a group, inner groups first, and finally the group itself.

    A group that cannot be read, or that contains itself, is ``broken`` in its parent.
    """
    members = read_members(location, skip)
    scales = (*parent_scales, *members.scales)
    ancestors = {*ancestors, location.address}
    for name, child in list(members.groups.items()):
        try:
            with describe_damage(child.source):
                if child.address in ancestors:
                    raise _make_loop_error(location, name)
                yield from read_groups_below(child, (*group_path, name), scales, skip, ancestors)
        except VirtualdsError as error:
            members.broken[name] = error
            del members.groups[name]
    yield HDF5Group(group_path, location, members, parent_scales)


def _make_loop_error(location: HDF5Location, name: str) -> FormatError:
    return FormatError(
        f"{location.source.url}: the link {name!r} leads back to a group that it lies in, so that "
        f"there is no end; open one group with group=, or leave the link out with drop_variables"
    )


# ---------------------------------------------------------------------- names of other conventions
# HDF5 files of GPM have an attribute with the names of the axes of each dataset, such as
# "time,lon,lat" ("File Specification for GPM Products", NASA Precipitation Processing System, where
# TKIO writes it). HDF-EOS5 lists the dimensions of each field in its structural metadata, and has
# the fields below /HDFEOS/<kind>/<structure>/ (ESDS-RFC-008).


DIMENSION_NAMES = "DimensionNames"
EOS_STRUCTURE_KINDS = {"SWATHS": "SWATH", "GRIDS": "GRID", "ZAS": "ZA"}
"""Kinds of HDF-EOS5 structures, by the group that contains them."""


def _find_axis_names(group_path: PathParts, axes: NamedAxes, eos: Iterable[Structure]) -> AxisNames:
    """Return names for axes without scales from other metadata, if they match the shapes."""
    names_by_dataset = {}
    for dataset, dims in axes.named:
        if None in dims:
            names = _read_gpm_names(dataset) or _find_eos_names(group_path, dataset, eos)
            is_consistent = all(names) and len({*names}) == len(names) == len(dataset.shape)
            if is_consistent and not any(name.startswith(PHONY_PREFIX) for name in names):
                names_by_dataset[dataset.name] = names
    return names_by_dataset


def _read_gpm_names(dataset: HDF5Dataset) -> tuple[str, ...]:
    """Return the axis names in the attribute of GPM files."""
    if DIMENSION_NAMES.encode() not in dataset.attributes:
        return ()
    try:
        value = read_attribute(dataset, DIMENSION_NAMES)
    except VirtualdsError:
        return ()
    return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else ()


def _find_eos_names(
    group_path: PathParts, dataset: HDF5Dataset, eos: Iterable[Structure]
) -> tuple[str, ...]:
    """Return the dimensions of an HDF-EOS5 field if their lengths match its axes."""
    if len(group_path) < 3 or group_path[0] != "HDFEOS" or group_path[1] not in EOS_STRUCTURE_KINDS:
        return ()
    for structure in eos:
        if (structure.kind, structure.name) == (EOS_STRUCTURE_KINDS[group_path[1]], group_path[2]):
            lists = structure.fields.get(dataset.name, set())
            dims = next(iter(lists)) if len(lists) == 1 else ()
            # unlimited dimensions have no length in the metadata
            sizes = [
                structure.sizes.get(dim, 0) or n
                for dim, n in zip(dims, dataset.shape, strict=False)
            ]
            return dims if tuple(sizes) == dataset.shape else ()
    return ()


def _find_lengths(axes: NamedAxes, axis_names: AxisNames) -> DimensionLengths:
    """Return the lengths of the dimensions of a group by name."""
    lengths: DimensionLengths = {}
    for dataset, dims in axes.named:
        for dim, size in zip(axis_names.get(dataset.name, dims), dataset.shape, strict=False):
            if dim is not None:
                lengths.setdefault(dim, set()).add(size)
    return lengths


class FileGroups:
    """All groups of a file, which are read when they are first needed.

    Parameters
    ----------
    root : HDF5Location
    all_groups : list of HDF5Group, optional
        All groups, if they have already been read.
    read_eos : callable, optional
        Returns the structural metadata of HDF-EOS.
    """

    def __init__(
        self,
        root: HDF5Location,
        all_groups: list[HDF5Group] | None = None,
        read_eos: Callable[[], Iterable[Structure]] = tuple,
    ) -> None:
        self._root, self._all_groups, self._read_eos = root, all_groups, read_eos

    @cached_property
    def _groups(self) -> list[HDF5Group]:
        """All groups, in the order in which netCDF numbers phony dimensions."""
        if self._all_groups is not None:
            return self._all_groups
        return list(islice(read_groups_below(self._root), MAX_GROUPS))

    @cached_property
    def axes(self) -> dict[PathParts, NamedAxes]:
        """The datasets of each group, with the names of their axes."""
        return {group.path: group.axes for group in self._groups}

    def name_axes(self, group: HDF5Group) -> NamedAxes:
        """Return the datasets of a group with the names of their axes."""
        axes = self.axes.get(group.path) if self._all_groups is not None else None
        return axes or group.axes

    @cached_property
    def _lengths(self) -> dict[tuple[PathParts, str], int]:
        """The length of each unlimited dimension, by the group that defines it."""
        longest: dict[tuple[PathParts, str], int] = {}
        for group_path, axes in self.axes.items():
            for name, n in axes.lengths.items():
                key = self.find_owner(group_path, name), name
                longest[key] = max(n, longest.get(key, 0))
        return longest

    def find_owner(self, group_path: PathParts, name: str) -> PathParts:
        """Return the group that defines a dimension of a group."""
        for depth in range(len(group_path), 0, -1):
            axes = self.axes.get(group_path[:depth])
            if axes is not None and any(d.name == name for d in axes.scales):
                return group_path[:depth]
        return ()

    def find_lengths(self, group_path: PathParts, axes: NamedAxes) -> dict[str, int]:
        """Return the lengths of the unlimited dimensions that are visible in a group."""
        keys = {name: (self.find_owner(group_path, name), name) for name in axes.lengths}
        return {name: self._lengths.get(key, 0) for name, key in keys.items()}

    def find_axis_names(self, group_path: PathParts, axes: NamedAxes) -> AxisNames:
        """Return names for axes without scales from other metadata of the file.

        A name is used only if it has a single length in the group, its parents and its subgroups,
        which share their dimensions. A variable with this name must be its coordinate.
        """
        names = _find_axis_names(group_path, axes, self._eos)
        if not names:
            return {}
        parts = [_find_lengths(axes, names), self._named_lengths_below.get(group_path, {})]
        parts += [
            self._named_lengths.get(group_path[:depth], {}) for depth in range(len(group_path))
        ]
        conflicting = {
            dataset.name
            for dataset, dims in axes.named
            if names.get(dataset.name, dims) != (dataset.name,)
        }

        def is_consistent(dim: str | None) -> bool:
            return len({n for part in parts for n in part.get(str(dim), ())}) == 1

        return {
            name: tuple(
                dim if dim not in conflicting and is_consistent(dim) else None for dim in dims
            )
            for name, dims in names.items()
        }

    @cached_property
    def _named_lengths(self) -> dict[PathParts, DimensionLengths]:
        """The lengths of the dimensions of each group that are named by other metadata."""
        return {
            path: _find_lengths(axes, _find_axis_names(path, axes, self._eos))
            for path, axes in self.axes.items()
        }

    @cached_property
    def _named_lengths_below(self) -> dict[PathParts, DimensionLengths]:
        """The same lengths of each group and all its subgroups."""
        lengths_below: dict[PathParts, DimensionLengths] = {}
        for group_path, lengths in self._named_lengths.items():
            for depth in range(len(group_path) + 1):
                merged = lengths_below.setdefault(group_path[:depth], {})
                for dim, sizes in lengths.items():
                    merged.setdefault(dim, set()).update(sizes)
        return lengths_below

    @cached_property
    def _eos(self) -> list[Structure]:
        return list(self._read_eos())

    @cached_property
    def _first(self) -> dict[PathParts, int]:
        count = sum(len(axes.scales) for axes in self.axes.values())
        first = {}
        for group_path, axes in self.axes.items():
            first[group_path] = count
            count += Dimensions(axes, lambda: 0, self.find_lengths(group_path, axes)).phony_count
        return first

    def count_earlier_dimensions(self, group_path: PathParts) -> int:
        """Return the number of dimensions before the phony dimensions of a group.

        netCDF numbers all dimensions of the file first, and then phony dimensions, child groups
        before their parent.
        """
        return self._first.get(group_path, sum(len(axes.scales) for axes in self.axes.values()))
