"""Reads one HDF5 group, or a group and all groups below it.

`netcdf_rules` applies the conventions of netCDF. The values of a dataset become references to its
chunks (`storage`) or to the sources of a virtual dataset (`virtual_datasets`). Values that are not
stored in byte ranges (in heaps, of converted types, of assembled datasets) are read on demand, or
at once if they are few: strings by our own reader, all others by h5py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.concatenate import convert_gaps_to_chunks
from virtualds.arrays.group import (
    SHARED_ATTRIBUTES,
    Data,
    ManifestGroup,
    ManifestVariable,
    describe_left_out,
    resolve_index,
)
from virtualds.bounds import check_selection, is_below_load_limit
from virtualds.chunks.axes import MAX_AXIS_LENGTH
from virtualds.codecs.codec import NO_FILTERS
from virtualds.errors import FormatError, ReadError, UnsupportedError, VirtualdsError
from virtualds.options import get_options
from virtualds.parsers.eos_metadata import METADATA, Structure, join_metadata, read_structures
from virtualds.parsers.hdf5.data_types import CHARSETS, TEXT_DTYPE, StoredType
from virtualds.parsers.hdf5.netcdf_rules import (
    MAX_GROUPS,
    RESERVED,
    Dimensions,
    FileGroups,
    HDF5Group,
    NamedAxes,
    PathParts,
    find_fill_beyond,
    list_attribute_names,
    path_of,
    read_attribute,
    read_groups_below,
)
from virtualds.parsers.hdf5.objects import (
    HDF5_ERRORS,
    GroupMembers,
    HDF5Dataset,
    HDF5Files,
    HDF5Location,
    descend_to,
    describe_damage,
    find_damage_error,
    find_dataset,
    follow_link,
    is_dataset,
    is_group,
    make_dataset,
    open_root,
    read_members,
    read_storage_fill,
)
from virtualds.parsers.hdf5.storage import (
    build_raw_array,
    build_stored_array,
    can_defer,
    check_filters,
    get_fill,
    read_chunks,
)
from virtualds.parsers.hdf5.structure import element_types
from virtualds.parsers.hdf5.structure.element_types import (
    Elements,
    check_elements,
    is_sequence,
    read_sequences,
)
from virtualds.parsers.hdf5.structure.file_bytes import DeclinedError, FileBytes, Work
from virtualds.parsers.hdf5.structure.messages import FillState, LayoutClass, TypeClass
from virtualds.parsers.hdf5.structure.object_header import HARD, UNREAD, Attribute
from virtualds.parsers.hdf5.virtual_datasets import (
    build_mapped_array,
    iterate_mapped_sources,
    list_needed_files,
)
from virtualds.source_file import SourceFile
from virtualds.stores import find_store
from virtualds.stores.local import OTHER_TIME_REMEDY
from virtualds.urls import path_or_url

# ---------------------------------------------------------------------- checks of the heap
# Check references into the global heap before HDF5 follows them.
#
# HDF5 stores variable-length strings and sequences as references (HDF5 File Format Specification
# 3.0, IV.B). An invalid reference can make HDF5 end the process, or read forever.


BYTES_AT_ONCE = 2**26
"""The size in bytes of references that are checked at a time."""


def check_heap(dataset: HDF5Dataset, files: HDF5Files, box: Sequence[slice] | None = None) -> None:
    """Raise an error for a dataset that refers to objects missing from the heap.

    Parameters
    ----------
    dataset : HDF5Dataset
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
        for _, source in iterate_mapped_sources(dataset, files):
            check_heap(source, files)
        return
    while kind.kind == TypeClass.ARRAY:
        _, kind = kind.parts[0]
    for _, elements in read_elements(dataset, kind.size, box):
        check_elements(dataset.file, kind, elements)


def read_elements(
    dataset: HDF5Dataset, size: int, box: Sequence[slice] | None = None
) -> Iterator[tuple[tuple[slice, ...], Elements]]:
    """Yield parts of a box inside a dataset, and the bytes of their elements as rows."""
    array = build_raw_array(dataset, size)
    for part in _split_box(array.shape, box, size):
        raw = np.ascontiguousarray(array.read(part))
        yield part, raw.view(np.uint8).reshape(-1, size)


def _split_box(
    shape: tuple[int, ...], box: Sequence[slice] | None, size: int
) -> list[tuple[slice, ...]]:
    """Divide the part of a box inside an array into smaller parts, along the first axis."""
    full_box = box or tuple(slice(0, n) for n in shape)
    inside = [slice(min(k.start, n), min(k.stop, n)) for k, n in zip(full_box, shape, strict=True)]
    if not shape:
        return [()]
    first, *inner = inside
    row = size * prod(k.stop - k.start for k in inner)
    if not row:
        return []
    step = max(BYTES_AT_ONCE // row, 1)
    starts = range(first.start, first.stop, step)
    return [(slice(n, min(n + step, first.stop)), *inner) for n in starts]


# ---------------------------------------------------------------------- texts
# Datasets of variable-length strings, read without HDF5.
#
# The elements of such a dataset refer to the global heap (HDF5 File Format Specification 3.0,
# IV.B).


def contains_texts(dataset: HDF5Dataset) -> bool:
    """Return whether the elements of a dataset are strings that `read_texts` reads."""
    fill = dataset.facts.fill
    # a fill value that was read with h5py has no raw bytes
    is_known = bool(fill.raw) or not fill.is_chosen
    # without any fill value, HDF5 cannot read a dataset that was never written
    layout = dataset.facts.layout
    is_written = layout.address is not None or layout.kind == LayoutClass.COMPACT
    is_known = is_known and (is_written or fill.state != FillState.UNDEFINED)
    is_read_here = get_options().hdf5 == "auto" and is_known and not dataset.is_virtual
    return is_read_here and dataset.type.is_text


def read_texts(dataset: HDF5Dataset, box: Sequence[slice]) -> npt.NDArray[np.object_]:
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
    texts = np.full([k.stop - k.start for k in box], "", TEXT_DTYPE)
    for part, elements in read_elements(dataset, kind.size, box):
        elements_read = element_types.read_texts(budget, kind, elements, encoding)
        pairs = zip(part, box, strict=True)
        at: Any = tuple(slice(p.start - k.start, p.stop - k.start) for p, k in pairs)
        # with an ellipsis, a scalar is the string itself instead of an array with it
        texts[(*at, ...)] = elements_read.reshape([p.stop - p.start for p in part])
    return texts


# ---------------------------------------------------------------------- values


Values = npt.NDArray[Any]


@dataclass(frozen=True)
class HDF5Array:
    """An array that is read on demand, by h5py unless it contains strings.

    Parameters
    ----------
    source : SourceFile
    path : str
        Of the dataset, within the file.
    shape : tuple of int
        As in netCDF: longer than the dataset if another variable is longer along an unlimited
        dimension.
    dtype : numpy dtype
    needs : tuple of SourceFile
        Other files with values; HDF5 silently fills values of missing files.
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
            The file no longer exists, has changed, or is damaged.
        UnsupportedError
            The box around the selection has more elements than may be loaded.
        """
        box, within = zip(*map(_find_bounds, key, self.shape), strict=True) if key else ((), ())
        check_selection(prod(k.stop - k.start for k in box) * self.dtype.itemsize)
        try:
            for file in (self.source, *self.needs):
                _check_source(file)
            with HDF5Files(self.source) as files:
                values = self._read(files, box)
        except (FormatError, OSError, KeyError) as error:
            if isinstance(error, ReadError):
                raise
            raise ReadError(f"{self.path}: {error}; restore the file, or scan it again") from error
        for axis, index in enumerate(within):
            values = values[(slice(None),) * axis + (index,)]
        # drop the integer-indexed axes of the dataset, not those within elements
        dropped = tuple(i for i, k in enumerate(key) if not isinstance(k, slice) and not np.ndim(k))
        return values.squeeze(dropped)

    def _read(self, files: HDF5Files, box: Sequence[slice]) -> Values:
        path = self.path.encode("utf-8", "surrogateescape")
        if self.dtype == TEXT_DTYPE:
            with suppress(DeclinedError):
                found = find_dataset(files, self.source, path)
                if found is not None and contains_texts(found):
                    return read_texts(found, box)
        files.by_library = True
        files.roots.clear()
        dataset = files.open(self.source)[self.path]
        check_filters(dataset)
        if dataset.dtype.hasobject:
            found_dataset = find_dataset(files, self.source, path)
            if found_dataset is not None:
                check_heap(found_dataset, files, box)
        return read_box(dataset, box, self.dtype)


def _find_bounds(key: Any, size: int) -> tuple[slice, slice | npt.NDArray[np.int64]]:
    """Return the slice of an axis that covers a key, and the key relative to it."""
    if isinstance(key, slice):
        # a range needs no memory for the positions along a huge axis
        chosen = range(size)[key]
        first, last = sorted((chosen[0], chosen[-1])) if chosen else (0, -1)
        return slice(first, last + 1), slice(None, None, chosen.step)
    positions = resolve_index(key, size)
    if not positions.size:
        return slice(0, 0), positions
    first = int(positions.min())
    return slice(first, int(positions.max()) + 1), positions - first


def _check_source(source: SourceFile) -> None:
    """Raise an error for a file that is missing or has changed since the scan."""
    current = find_store(source.url).describe(source.url, source.options)
    if not get_options().check_sources:
        return
    for name in ("size", "mtime", "etag"):
        was, now = getattr(source, name), getattr(current, name)
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
    """Read a box of a dataset; past the end of the dataset, it contains the fill value."""
    rank = len(dataset.shape or ())
    inside = tuple(
        slice(min(k.start, n), min(k.stop, n))
        for k, n in zip(box[:rank], dataset.shape or (), strict=True)
    )
    values = _read_values(dataset, inside, dtype)
    within: Any = (*(slice(None),) * rank, *box[rank:], ...)
    values = np.asarray(values[within], dtype)
    shape = tuple(k.stop - k.start for k in box)
    if values.shape == shape:
        return values
    plist = dataset.id.get_create_plist()
    has_fill = plist.fill_value_defined() == FillState.CHOSEN and not dtype.hasobject
    chosen = read_storage_fill(plist, dtype).tobytes() if has_fill else None
    padded = np.full(shape, find_fill_beyond(chosen, dtype), dtype)
    padded[tuple(slice(0, n) for n in values.shape)] = values
    return padded


def _read_values(dataset: Any, box: tuple[slice, ...], dtype: np.dtype[Any]) -> Values:
    """Read a box inside a dataset: strings as str, references as paths."""
    import h5py

    if h5py.check_string_dtype(dataset.dtype) is not None and dataset.dtype.hasobject:
        return np.asarray(dataset.asstr(errors="replace")[(*box, ...)], dtype)
    values = np.asarray(dataset[(*box, ...)])
    if dtype != TEXT_DTYPE or h5py.check_ref_dtype(dataset.dtype) is None:
        return values.astype(dtype.newbyteorder("="), copy=False)
    paths = np.empty(values.shape, dtype)
    for index in np.ndindex(values.shape):
        paths[index] = path_of(values[index], dataset)
    return paths


def load_or_defer(
    dataset: HDF5Dataset,
    stored: StoredType,
    shape: tuple[int, ...],
    needs: tuple[SourceFile, ...],
    files: HDF5Files,
) -> Values | HDF5Array:
    """Return the values of a small dataset, or an array that is read on demand.

    ``needs`` are the other files with values.

    Raises
    ------
    UnsupportedError
        HDF5 cannot undo a filter here.
    """
    if not (is_text := contains_texts(dataset)):
        check_filters(dataset)
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


# ---------------------------------------------------------------------- reading ahead
# The metadata of a remote HDF5 file, fetched level by level before it is actually read.
#
# Each function is a `Work` (`virtualds.parsers.hdf5.structure.file_bytes`): it reads one object,
# and returns those to which it refers. Anything that is missing here costs further requests,
# nothing else.


def fetch_groups(
    above: Sequence[HDF5Location], location: HDF5Location, skip: Collection[str], *, below: bool
) -> None:
    """Fetch the metadata of a group, and of the groups above it or all groups below it.

    Parameters
    ----------
    above : sequence of HDF5Location
    location : HDF5Location
    skip : collection of str
        Names of variables that are left out.
    below : bool
        Whether groups below are read, too.
    """
    # HDF5 would read the same bytes, but without prefetching
    files = copy(location.files)
    files.by_library, files.roots = False, {}
    scales, all_of_it = _Visitor(None), _Visitor(skip, below)
    works: list[Work] = [partial(scales.visit_links, replace(g, files=files)) for g in above]
    location.file.read_ahead(
        [*works, partial(all_of_it.visit_links, replace(location, files=files))]
    )


@dataclass(frozen=True)
class _Visitor:
    """Reads the objects of groups, each once.

    Parameters
    ----------
    skip : collection of str or None
        Datasets whose chunks are not needed, or None for all of them.
    below : bool
        Whether groups below are read, too.
    """

    skip: Collection[str] | None
    below: bool = False
    seen: set[tuple[str, int]] = field(default_factory=set)

    def visit_links(self, location: HDF5Location) -> list[Work]:
        """Read the links of a group."""
        works: list[Work] = [partial(_visit_attributes, location)]
        for link in location.links:
            if link.kind != HARD:
                continue
            member = follow_link(location, link)
            if member.address not in self.seen:
                self.seen.add(member.address)
                works.append(partial(self.visit_member, link.name, member))
        return works

    def visit_member(self, name: bytes, location: HDF5Location) -> list[Work]:
        """Read the header of a member of a group."""
        if is_group(location):
            return [partial(self.visit_links, location)] if self.below else []
        works: list[Work] = [partial(_visit_attributes, location)]
        if self.skip is not None and name.decode("utf-8", "surrogateescape") not in self.skip:
            works.append(partial(_visit_chunks, location))
        return works if is_dataset(location) else []


def _visit_attributes(location: HDF5Location) -> list[Work]:
    """Read the attributes of an object."""
    return [
        partial(_visit_heap, location.file, attribute)
        for attribute in location.attributes.values()
        if is_sequence(attribute.kind) and attribute.name not in UNREAD
    ]


def _visit_heap(file: FileBytes, attribute: Attribute) -> list[Work]:
    """Read the objects of the global heap to which an attribute refers."""
    read_sequences(file, attribute)
    return []


def _visit_chunks(location: HDF5Location) -> list[Work]:
    """Read the positions of the chunks of a dataset."""
    dataset = make_dataset("", location)
    layout = dataset.facts.layout
    if location.files.defers and can_defer(dataset):
        return []
    # other kinds of indexes are read by HDF5
    if layout.kind == LayoutClass.CHUNKED and layout.index_kind is not None:
        read_chunks(dataset)
    return []


# ---------------------------------------------------------------------- groups


MAX_VOID = 2**31 - 1
"""The maximum size in bytes of an element in numpy."""
NOT_A_COORDINATE = "_nc4_non_coord_"
"""netCDF-C's prefix for a variable with the name of a dimension whose scale it is not."""


class GroupRead(NamedTuple):
    """A parsed group: its members, the names of their axes, and its location."""

    group: ManifestGroup
    members: GroupMembers
    axes: NamedAxes
    location: HDF5Location


class GroupsRead(NamedTuple):
    """Groups of a file by path, inner groups first; and all groups of the file."""

    groups: Mapping[PathParts, GroupRead]
    where: PathParts
    together: FileGroups

    @property
    def group(self) -> ManifestGroup:
        """The requested group, with the groups below it."""
        return self.groups[self.where].group


def read_groups(files: HDF5Files, skip: frozenset[str], path: str, *, below: bool) -> GroupsRead:
    """Read the group at a path, and all groups below it if they are requested.

    Raises
    ------
    FormatError
        There are too many.
    """
    root, location, group_path, scales = _find_group(files, skip, path, below=below)
    if below:
        groups = read_groups_below(location, group_path, scales, skip)
        first_groups = list(islice(groups, MAX_GROUPS + 1))
    else:
        first_groups = [HDF5Group(group_path, location, read_members(location, skip), scales)]
    if len(first_groups) > MAX_GROUPS:
        raise FormatError(
            f"{files.source.url}: it has more than {MAX_GROUPS:,} groups, with those that links "
            f"repeat; open one with group="
        )
    every = first_groups if below and not group_path else None
    together = FileGroups(root, every, partial(_read_eos_metadata, root))
    done: dict[PathParts, GroupRead] = {}
    for group in first_groups:
        children = {
            name: done[(*group.where, name)].group if below else ManifestGroup()
            for name in group.found.groups
        }
        reader = _GroupReader(files, skip, group.where)
        read = reader.read(group, together, children)
        done[group.where] = GroupRead(read, group.found, reader.axes, group.location)
    return GroupsRead(done, group_path, together)


EOS_INFORMATION = "HDFEOS INFORMATION"
"""The group of HDF-EOS5 with the structural metadata."""
MAX_METADATA = 2**24
"""The maximum size in bytes of a part of the structural metadata."""


def _read_eos_metadata(root: HDF5Location) -> list[Structure]:
    """Return the structures of an HDF-EOS5 file, or an empty list if they cannot be read."""
    parts = []
    with suppress(VirtualdsError, FileNotFoundError), describe_damage(root.source):
        for name, dataset in read_members(descend_to(root, EOS_INFORMATION)[-1]).datasets.items():
            if METADATA.fullmatch(name):
                parts.append((name, _read_text(dataset)))
    return read_structures(join_metadata(parts))


def _read_text(dataset: HDF5Dataset) -> str:
    """Return the text of a scalar dataset."""
    if contains_texts(dataset):
        return str(read_texts(dataset, ()).ravel()[0])
    if dataset.type.kind != TypeClass.STRING or not dataset.type.size <= MAX_METADATA:
        return ""
    [(_, elements), *_] = read_elements(dataset, dataset.type.size)
    return elements.tobytes().partition(b"\0")[0].decode("utf-8", "replace")


def _find_group(
    files: HDF5Files, skip: frozenset[str], path: str, *, below: bool
) -> tuple[HDF5Location, HDF5Location, PathParts, tuple[HDF5Dataset, ...]]:
    """Return the root, the group at a path, its path, and the scales of the groups above it."""
    root = open_root(files, files.source)
    *above, location = descend_to(root, path)
    fetch_groups(above, location, skip, below=below)
    scales = (d for g in above for d in read_members(g).scales)
    return root, location, tuple(filter(None, path.split("/"))), tuple(scales)


class _GroupReader:
    """Reads one group: its variables, attributes and problems."""

    axes: NamedAxes

    def __init__(self, files: HDF5Files, skip: frozenset[str], group_path: PathParts) -> None:
        self.files = files
        self.skip = skip
        self.where = group_path
        url = files.source.url
        self.source_name = path_or_url(url)
        self.problems: dict[str, VirtualdsError] = {}

    def read(
        self, group: HDF5Group, together: FileGroups, below: Mapping[str, ManifestGroup]
    ) -> ManifestGroup:
        """Read a group; ``below`` are its child groups."""
        members = group.found
        for name in members.broken.keys() - self.skip:
            self._note(name, members.broken[name])
        self.axes = together.name_axes(group)
        dims = self._read_dimensions(group, together)
        return ManifestGroup(
            self._read_variables(members.datasets, dims),
            self._read_attributes("", group.location),
            below,
            {"unlimited_dims": dims.unlimited_here},
            self.problems,
            left_out=self._describe_left_out(members.datasets, dims),
        )

    def _read_dimensions(self, group: HDF5Group, together: FileGroups) -> Dimensions:
        axes = self.axes
        names = together.name_by_file(group.where, axes)
        if not group.where and not group.found.groups:
            return Dimensions(axes, lambda: len(axes.scales), {}, names)
        lengths = together.find_lengths(group.where, axes) if axes.depend_on_unlimited else {}
        first = partial(together.count_earlier_dimensions, group.where)
        return Dimensions(axes, first, lengths, names)

    def _read_variables(
        self, datasets: Mapping[str, HDF5Dataset], dims: Dimensions
    ) -> dict[str, ManifestVariable]:
        variables = {}
        # the scale determines the length of a dimension
        scales = [d for d in datasets.values() if d.is_scale and d.shape]
        sizes = {d.name: dims.lengths.get(d.name, d.shape[0]) for d in scales}
        for name, names in dims.of.items():
            variable_name, dataset = name.removeprefix(NOT_A_COORDINATE), datasets[name]
            if variable_name in self.skip:
                continue
            lengths = zip(names, dataset.shape, strict=True)
            shape = tuple(dims.lengths.get(dim, n) for dim, n in lengths)
            axis_sizes = dict(zip(names, shape, strict=True))
            if odd := [dim for dim, n in axis_sizes.items() if sizes.get(dim, n) != n]:
                self._note(
                    variable_name,
                    _make_contradiction_error(odd[0], axis_sizes[odd[0]], sizes[odd[0]]),
                )
                continue
            if max(shape, default=0) >= MAX_AXIS_LENGTH:
                self._note(variable_name, _make_length_error(max(shape)))
                continue
            sizes |= axis_sizes
            variables[variable_name] = self._read_variable(variable_name, dataset, names, shape)
        return variables

    def _describe_left_out(
        self, datasets: Mapping[str, HDF5Dataset], dims: Dimensions
    ) -> dict[str, ManifestVariable]:
        """Describe the variables to skip, as far as they can be read."""
        left_out = {}
        for name, names in dims.of.items():
            variable_name, dataset = name.removeprefix(NOT_A_COORDINATE), datasets[name]
            if variable_name not in self.skip:
                continue
            dtype, lent = np.dtype("V1"), dict[str, Any]()
            with suppress(VirtualdsError), describe_damage(dataset.source):
                dtype = dataset.stored.dtype
                for attribute in {*SHARED_ATTRIBUTES}.intersection(list_attribute_names(dataset)):
                    lent[attribute] = read_attribute(dataset, attribute)
            left_out[variable_name] = describe_left_out(names, dtype, lent)
        return left_out

    def _note(
        self,
        name: str,
        error: Exception,
        kind: str = "variable",
        source: SourceFile | None = None,
    ) -> VirtualdsError:
        """Record the error of a variable or group; raise it again if it concerns no file."""
        if not isinstance(error, VirtualdsError):
            damage = find_damage_error(source or self.files.source, error)
            if damage is None:
                raise error
            error = damage
        path = "/".join((*self.where, name))
        error.locate(f"{kind} {path!r}", self.files.source.url)
        self.problems[name] = error
        return error

    def _read_attributes(self, variable: str, owner: Any) -> dict[str, Any]:
        """Return the user's attributes of a group or dataset."""
        attributes = {}
        for name in list_attribute_names(owner):
            if name in RESERVED:
                continue
            try:
                attributes[name] = read_attribute(owner, name)
            except (VirtualdsError, *HDF5_ERRORS) as error:
                # as in CDL: "variable:attribute", and ":attribute" of the group
                self._note(f"{variable}:{name}", error, "attribute")
        return attributes

    def _read_variable(
        self, name: str, dataset: HDF5Dataset, dims: tuple[str, ...], shape: tuple[int, ...]
    ) -> ManifestVariable:
        attributes = self._read_attributes(name, dataset)
        encoding: dict[str, Any] = {}
        try:
            data = self._read_data(dataset, dims, shape, encoding)
        except (VirtualdsError, *HDF5_ERRORS) as error:
            problem = self._note(name, error, source=dataset.source)
            data = ManifestArray.unreadable(
                shape, f"V{min(dataset.type.size, MAX_VOID)}", f"{problem}"
            )
            return ManifestVariable(dims, data, attributes)
        if data.dtype.kind == "S" and "_FillValue" in attributes:
            fill = attributes["_FillValue"]
            attributes["_FillValue"] = np.bytes_(fill.encode() if isinstance(fill, str) else fill)
        if "least_significant_digit" in attributes:
            encoding["least_significant_digit"] = attributes.pop("least_significant_digit")
        encoding |= {"source": self.source_name, "original_shape": shape}
        return ManifestVariable(dims, data, attributes, encoding)

    def _read_data(
        self,
        dataset: HDF5Dataset,
        dims: tuple[str, ...],
        shape: tuple[int, ...],
        encoding: dict[str, Any],
    ) -> Data:
        """Return the values of a dataset, as chunk references if possible."""
        if dataset.space.shape is None:
            raise UnsupportedError(
                "it has a null dataspace, so there are no values; leave the variable out with "
                "drop_variables or on_error='skip'"
            )
        stored = dataset.stored
        encoding["dtype"] = stored.declared
        if dataset.is_virtual:
            encoding |= NO_FILTERS | {"contiguous": True, "chunksizes": None}
            array = build_mapped_array(dataset, stored, self.files)
        else:
            array = build_stored_array(dataset, stored, dims, encoding, self.files.defers)
        if array is None:
            if stored.dtype.hasobject and not is_below_load_limit(8 * prod(shape)):
                # xarray reads strings declared as str on opening
                encoding["dtype"] = stored.dtype
            needs = list_needed_files(dataset, self.files)
            return load_or_defer(dataset, stored, shape, needs, self.files)
        if shape == array.shape:
            return array
        fill = find_fill_beyond(get_fill(dataset, stored.dtype), stored.dtype)
        # gaps and the part past the end have different fill values
        array = convert_gaps_to_chunks(array) if array.has_gaps else array
        return replace(array, shape=shape, fill_value=fill)


def _make_length_error(size: int) -> FormatError:
    return FormatError(
        f"an axis of {size} elements is longer than any; the file is damaged, fetch it again, or "
        f"leave the variable out with drop_variables"
    )


def _make_contradiction_error(dim: str, size: int, other_size: int) -> FormatError:
    return FormatError(
        f"it has {size} elements along {dim!r}, where other variables have {other_size}; the file "
        f"contradicts itself, leave one of them out with drop_variables"
    )
