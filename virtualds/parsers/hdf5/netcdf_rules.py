"""Conventions of netCDF on HDF5: fill values, user attributes, and dimensions.

A netCDF4 file is an HDF5 file with conventions (netCDF-C documentation, "NetCDF-4 File Format";
HDF5 Dimension Scale Specification 1.0). Names are in creation order, as in netCDF-C.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from virtualds.errors import FormatError, VirtualdsError
from virtualds.parsers.hdf5.data_types import read_attribute
from virtualds.parsers.hdf5.objects import (
    GroupMembers,
    HDF5Dataset,
    HDF5Location,
    describe_damage,
    read_members,
)
from virtualds.parsers.hdf5.structure.element_types import is_sequence, read_sequences
from virtualds.parsers.hdf5.structure.file_bytes import note_same
from virtualds.parsers.hdf5.structure.messages import TypeClass

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


# ---------------------------------------------------------------------- attributes

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


# ---------------------------------------------------------------------- metadata of HDF-EOS
# The grids and swaths of a file, with their dimensions.
#
# HDF-EOS stores them as text, ``StructMetadata.0``, continued in ``StructMetadata.1`` and so on: in
# HDF4 as attributes, in HDF5 as datasets of the group ``HDFEOS INFORMATION``. The text is in ODL,
# the Object Description Language ("HDF-EOS5 Data Model, File Format and Library", NASA
# ESDS-RFC-008).

METADATA = re.compile(r"StructMetadata\.(\d+)")
"""Matches the names of the parts of the text."""
STRUCTURE = re.compile(r"(GRID|SWATH|ZA)_\d+")
"""Matches the labels of structures; points are tables, without dimensions."""
MAX_ODL_DEPTH = 32
"""Maximum nesting of blocks; HDF-EOS needs four levels."""


@dataclass(frozen=True)
class OdlBlock:
    """A group or an object of ODL, with its values as text, without quotes."""

    label: str = ""
    values: dict[str, str] = field(default_factory=dict)
    parts: list[OdlBlock] = field(default_factory=list)

    def walk(
        self, *, is_leaf: Callable[[OdlBlock], bool] = lambda block: False
    ) -> Iterator[OdlBlock]:
        """Yield all nested blocks, without descending into those for which ``is_leaf`` is true."""
        queue = deque([self])
        while queue:
            for part in queue.popleft().parts:
                yield part
                if not is_leaf(part):
                    queue.append(part)


@dataclass(frozen=True)
class EosStructure:
    """An HDF-EOS grid, swath or zonal average.

    ``values`` belong to the structure itself, ``sizes`` are the lengths of its dimensions, and
    ``fields`` the dimensions of each field, outermost first. If a data field and a geolocation
    field have the same name, ``fields`` has the dimensions of both.
    """

    kind: str
    name: str
    values: dict[str, str]
    sizes: dict[str, int]
    fields: dict[str, set[tuple[str, ...]]]

    @classmethod
    def from_block(cls, block: OdlBlock) -> EosStructure:
        """Build the structure that a block describes."""
        kind = block.label.rpartition("_")[0]
        names = ("GridName", "SwathName", "ZaName")
        name = next((block.values[n] for n in names if n in block.values), "")
        # a grid always has these two dimensions, which the metadata do not list as objects
        dim_sizes = {dim: block.values.get(dim, "") for dim in ("XDim", "YDim")}
        fields: dict[str, set[tuple[str, ...]]] = {}
        for part in block.walk():
            if "DimensionName" in part.values:
                dim_sizes[part.values["DimensionName"]] = part.values.get("Size", "")
            field_names = [value for key, value in part.values.items() if key.endswith("FieldName")]
            if field_names and "DimList" in part.values:
                dims = tuple(re.findall(r'"([^"]*)"', part.values["DimList"]))
                fields.setdefault(field_names[0], set()).add(dims)
        sizes = {dim: int(size) for dim, size in dim_sizes.items() if size.isdecimal()}
        return cls(kind, name, block.values, sizes, fields)


def join_metadata(parts: Iterable[tuple[str, str]]) -> str:
    """Join the named parts of a text, in the order of the numbers in their names.

    >>> join_metadata([("StructMetadata.10", "c"), ("StructMetadata.9", "b"), ("Other", "a")])
    'bc'
    """
    matches = [(METADATA.fullmatch(name), text) for name, text in parts]
    return "".join(text for _, text in sorted((int(m[1]), text) for m, text in matches if m))


def read_structures(text: str) -> list[EosStructure]:
    """Return the structures in an ODL text, ignoring lines that are not ODL.

    >>> [grid] = read_structures('''
    ... GROUP=GridStructure
    ...     GROUP=GRID_1
    ...         GridName="ColumnAmountO3"
    ...         XDim=360
    ...         YDim=180
    ...         GROUP=DataField
    ...             OBJECT=DataField_1
    ...                 DataFieldName="O3"
    ...                 DimList=("YDim","XDim")
    ...             END_OBJECT=DataField_1
    ...         END_GROUP=DataField
    ...     END_GROUP=GRID_1
    ... END_GROUP=GridStructure
    ... END''')
    >>> grid.name, grid.sizes, grid.fields
    ('ColumnAmountO3', {'XDim': 360, 'YDim': 180}, {'O3': {('YDim', 'XDim')}})
    """
    blocks = _parse_odl(text).walk(is_leaf=_is_structure)
    return [EosStructure.from_block(block) for block in blocks if _is_structure(block)]


def _is_structure(block: OdlBlock) -> bool:
    return STRUCTURE.fullmatch(block.label) is not None


def _parse_odl(text: str) -> OdlBlock:
    """Parse a text, up to the first block that is nested too deeply; return the root block."""
    open_blocks = [OdlBlock()]
    lines = iter(text.splitlines())
    for line in lines:
        name, _, value = (part.strip() for part in line.partition("="))
        # a list may continue on the next lines
        while value.startswith("(") and ")" not in value and (more := next(lines, None)):
            value += more.strip()
        if len(open_blocks) > MAX_ODL_DEPTH:
            break
        if name in ("GROUP", "OBJECT"):
            block = OdlBlock(value)
            open_blocks[-1].parts.append(block)
            open_blocks.append(block)
        elif name in ("END_GROUP", "END_OBJECT"):
            labels = [block.label for block in open_blocks]
            if value in labels[1:]:
                del open_blocks[len(labels) - 1 - labels[::-1].index(value) :]
        elif name:
            open_blocks[-1].values[name] = value if value.startswith("(") else value.strip('"')
    return open_blocks[0]


# ---------------------------------------------------------------------- dimensions


SCALE_ATTRIBUTE = b"DIMENSION_LIST"
"""Attribute with references to the scales of each axis."""
OBJECT_REFERENCE = (TypeClass.REFERENCE, 0)
"""Class and kind of the type of references to objects."""
DIMENSION_ID, COORDINATE_IDS = "_Netcdf4Dimid", "_Netcdf4Coordinates"
"""Attributes of netCDF-C: the id of a dimension, and the dimension ids of the axes of a scale."""
Names = list[tuple[HDF5Dataset, tuple[str | None, ...]]]


def read_scale_addresses(dataset: HDF5Dataset) -> tuple[int | None, ...]:
    """Return the address of the last scale of each axis, or None if it has none.

    If an axis has several scales, netCDF-C uses the one that was attached last
    (``dimscale_visitor``). `H5DSiterate_scales` of HDF5 reads the whole list for each axis, and
    crashes if the list is damaged.

    Raises `FormatError` if the attribute does not list scales.
    """
    rank = dataset.rank
    none: tuple[int | None, ...] = (None,) * len(dataset.shape)
    attribute = dataset.attributes.get(SCALE_ATTRIBUTE)
    if not rank or attribute is None:
        return none
    # a sequence of references to objects (IV.A.2.d)
    base = attribute.kind[8:12]
    is_list = is_sequence(attribute.kind) and (base[0] & 0xF, base[1] & 0xF) == OBJECT_REFERENCE
    if attribute.elements != rank or not is_list:
        raise FormatError(
            f"{dataset.source.url}: the attribute {SCALE_ATTRIBUTE.decode()} of {dataset.name!r} "
            f"is not a list of scales for each of {rank} axes; the file is damaged, fetch it "
            "again, or remove the attribute"
        )
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


def _read_scale_name(dataset: HDF5Dataset, axis: int) -> str:
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
        self._dimension_of = {d: self._find_dimension(d) for d in linked}
        self.scales = [d for d in linked if self._dimension_of[d] is d]
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
        if dimension := self._dimension_of.get(dataset):
            if rank > 1 and COORDINATE_IDS.encode() in dataset.attributes:
                numbers = np.atleast_1d(read_attribute(dataset, COORDINATE_IDS))
                return tuple(self._by_id.get(int(i)) for i in numbers)
            return (dimension.name, *([None] * (rank - 1)))[:rank]
        names: list[str | None] = []
        for axis, address in enumerate(read_scale_addresses(dataset)):
            if address is None:
                names.append(None)
            elif scale := self._by_address.get((dataset.source.url, address)):
                names.append(scale.name)
            else:
                names.append(_read_scale_name(dataset, axis))
        return tuple(names)

    def _find_dimension(self, scale: HDF5Dataset) -> HDF5Dataset:
        """Return the link to a scale that names the dimension.

        A scale with a dimension id is one dimension, even if there are several links to it. For
        other scales, each link is a dimension, as in netCDF-C.
        """
        first = self._by_address[scale.address]
        return first if first is not scale and DIMENSION_ID.encode() in first.attributes else scale


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
            (d.name, self.lengths.get(d.name, prod(d.shape[:1])), d.name in self.lengths)
            for d in axes.scales
        ]
        scales = len(self._dimensions)
        self.by_dataset = {
            d.name: self._complete(d, dims) for d, dims in axes.named if not d.is_bare
        }
        self.unlimited_dims = {name for name, _, is_unlimited in self._dimensions if is_unlimited}
        phony = {name for name, _, _ in self._dimensions[scales:]}
        for dataset, names in (axis_names or {}).items():
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


@dataclass(frozen=True, eq=False)
class HDF5Group:
    """A group, its members, and the scales of its parents, the outermost first."""

    path: PathParts
    location: HDF5Location
    members: GroupMembers
    parent_scales: tuple[HDF5Dataset, ...] = ()

    @cached_property
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
                    raise FormatError(
                        f"{location.source.url}: the link {name!r} leads back to a group that it "
                        f"lies in, so that paths never end; open one group with group=, or leave "
                        f"the link out with drop_variables"
                    )
                yield from read_groups_below(child, (*group_path, name), scales, skip, ancestors)
        except VirtualdsError as error:
            members.broken[name] = error
            del members.groups[name]
    yield HDF5Group(group_path, location, members, parent_scales)


# ---------------------------------------------------------------------- names of other conventions
# HDF5 files of GPM have an attribute with the names of the axes of each dataset, such as
# "time,lon,lat" ("File Specification for GPM Products", NASA Precipitation Processing System, where
# TKIO writes it). HDF-EOS5 lists the dimensions of each field in its structural metadata, and has
# the fields below /HDFEOS/<kind>/<structure>/ (ESDS-RFC-008).


DIMENSION_NAMES = "DimensionNames"
EOS_STRUCTURE_KINDS = {"SWATHS": "SWATH", "GRIDS": "GRID", "ZAS": "ZA"}
"""Kinds of HDF-EOS5 structures, by the group that contains them."""


def _find_axis_names(
    group_path: PathParts, axes: NamedAxes, eos: Iterable[EosStructure]
) -> AxisNames:
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
    group_path: PathParts, dataset: HDF5Dataset, eos: Iterable[EosStructure]
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
        read_eos: Callable[[], Iterable[EosStructure]] = tuple,
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
        """The lengths of the dimensions of each group, also those named by other metadata."""
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
    def _eos(self) -> list[EosStructure]:
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
