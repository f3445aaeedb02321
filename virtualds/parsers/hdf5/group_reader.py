"""Reads one HDF5 group, or a group and all its subgroups.

`netcdf_rules` applies the conventions of netCDF. The values of a dataset become references to its
chunks (`storage`) or to the sources of a virtual dataset (`virtual_datasets`). Values that are not
stored as byte ranges (in heaps, of converted types, of assembled datasets) are read on demand, or
immediately if they are small: strings by virtualds, all others by h5py.
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
from virtualds.parsers.hdf5.data_types import (
    CHARSETS,
    TEXT_DTYPE,
    StoredType,
    get_object_path,
    read_attribute,
)
from virtualds.parsers.hdf5.netcdf_rules import (
    MAX_GROUPS,
    METADATA,
    RESERVED_ATTRIBUTES,
    Dimensions,
    EosStructure,
    FileGroups,
    HDF5Group,
    NamedAxes,
    PathParts,
    get_fill_past_end,
    join_metadata,
    read_groups_below,
    read_structures,
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
from virtualds.parsers.hdf5.structure.file_bytes import DeclinedError, FetchStep, FileBytes
from virtualds.parsers.hdf5.structure.messages import FillState, LayoutClass, TypeClass
from virtualds.parsers.hdf5.structure.object_header import HARD, IGNORED_ATTRIBUTES, Attribute
from virtualds.parsers.hdf5.virtual_datasets import (
    build_mapped_array,
    iterate_mapped_sources,
    list_needed_files,
)
from virtualds.source_file import SourceFile, path_or_url
from virtualds.stores import find_store
from virtualds.stores.local import OTHER_TIME_REMEDY

# ---------------------------------------------------------------------- checks of the heap
# Check references into the global heap before HDF5 follows them.
#
# HDF5 stores variable-length strings and sequences as references (HDF5 File Format Specification
# 3.0, IV.B). On an invalid reference, HDF5 can crash, or never return.


CHECKED_BYTES = 2**26
"""Size in bytes of the references to check at a time."""


def check_heap(dataset: HDF5Dataset, files: HDF5Files, box: Sequence[slice] | None = None) -> None:
    """Raise an error for a dataset that refers to objects missing from the heap.

    Raises `FormatError` if the heap is damaged, or lacks an object, and `ReadError` if the
    references cannot be read.

    Parameters
    ----------
    dataset : HDF5Dataset
    files : HDF5Files
        Opens the sources of a virtual dataset, which are checked completely.
    box : sequence of slice, optional
        The region that will be read; the whole dataset by default.
    """
    kind = dataset.type
    if not kind.has_variable_length:
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
    """Yield regions of a box in a dataset, and the bytes of their elements as rows."""
    array = build_raw_array(dataset, size)
    for part in _split_box(array.shape, box, size):
        raw = np.ascontiguousarray(array.read(part))
        yield part, raw.view(np.uint8).reshape(-1, size)


def _split_box(
    shape: tuple[int, ...], box: Sequence[slice] | None, size: int
) -> list[tuple[slice, ...]]:
    """Return regions of the part of a box inside an array, which is split along the first axis."""
    full_box = box or tuple(slice(0, n) for n in shape)
    inside = [slice(min(k.start, n), min(k.stop, n)) for k, n in zip(full_box, shape, strict=True)]
    if not shape:
        return [()]
    first, *inner = inside
    row = size * prod(k.stop - k.start for k in inner)
    if not row:
        return []
    step = max(CHECKED_BYTES // row, 1)
    starts = range(first.start, first.stop, step)
    return [(slice(n, min(n + step, first.stop)), *inner) for n in starts]


# ---------------------------------------------------------------------- strings
# Datasets of variable-length strings, read without HDF5.
#
# The elements of such a dataset refer to the global heap (HDF5 File Format Specification 3.0,
# IV.B).


def can_read_strings(dataset: HDF5Dataset) -> bool:
    """Return whether the elements of a dataset are strings that `read_strings` reads."""
    fill = dataset.header.fill
    # a fill value read by h5py has no raw bytes
    is_known = bool(fill.raw) or not fill.is_user_defined
    # HDF5 cannot read a dataset that was never written and has no fill value
    layout = dataset.header.layout
    is_written = layout.address is not None or layout.kind == LayoutClass.COMPACT
    is_known = is_known and (is_written or fill.state != FillState.UNDEFINED)
    is_supported = get_options().hdf5 == "auto" and is_known and not dataset.is_virtual
    return is_supported and dataset.type.is_text


def read_strings(dataset: HDF5Dataset, box: Sequence[slice]) -> npt.NDArray[np.object_]:
    """Return the strings in a box as h5py does (`h5py.Dataset.asstr`).

    Strings past the end of the dataset are empty.

    Raises `FormatError` if the heap is damaged, or lacks an object, and `ReadError` if the
    references cannot be read.
    """
    kind, budget = dataset.type, element_types.ByteBudget(dataset.file)
    encoding = CHARSETS[kind.charset]
    texts = np.full([k.stop - k.start for k in box], "", TEXT_DTYPE)
    for part, elements in read_elements(dataset, kind.size, box):
        strings = element_types.read_strings(budget, kind, elements, encoding)
        pairs = zip(part, box, strict=True)
        position: Any = tuple(slice(p.start - k.start, p.stop - k.start) for p, k in pairs)
        # the ellipsis is needed for scalars
        texts[(*position, ...)] = strings.reshape([p.stop - p.start for p in part])
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
        The path of the dataset in the file.
    shape : tuple of int
        The shape as in netCDF, which is larger than the dataset if another variable is longer along
        an unlimited dimension.
    dtype : numpy dtype
    needs : tuple of SourceFile
        The other files with values, since HDF5 silently fills the values of missing files.
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
        """Return a selection: per axis an int, a slice, or a 1-D array of positions.

        Raises `ReadError` if the file no longer exists, has changed, or is damaged, and
        `UnsupportedError` if the bounding box of the selection is too large to load.
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
        # drop the axes of the dataset with integer indexes, but no axes of elements
        dropped = tuple(i for i, k in enumerate(key) if not isinstance(k, slice) and not np.ndim(k))
        return values.squeeze(dropped)

    def _read(self, files: HDF5Files, box: Sequence[slice]) -> Values:
        path = self.path.encode("utf-8", "surrogateescape")
        if self.dtype == TEXT_DTYPE:
            with suppress(DeclinedError):
                dataset = find_dataset(files, self.source, path)
                if dataset is not None and can_read_strings(dataset):
                    return read_strings(dataset, box)
        files.by_library = True
        files.roots.clear()
        h5py_dataset = files.open(self.source)[self.path]
        check_filters(h5py_dataset)
        if h5py_dataset.dtype.hasobject:
            dataset = find_dataset(files, self.source, path)
            if dataset is not None:
                check_heap(dataset, files, box)
        return read_box(h5py_dataset, box, self.dtype)


def _find_bounds(key: Any, size: int) -> tuple[slice, slice | npt.NDArray[np.int64]]:
    """Return the slice that covers a key along an axis, and the key relative to the slice."""
    if isinstance(key, slice):
        # a range needs no memory for the positions
        selected = range(size)[key]
        first, last = sorted((selected[0], selected[-1])) if selected else (0, -1)
        return slice(first, last + 1), slice(None, None, selected.step)
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
        old, new = getattr(source, name), getattr(current, name)
        if old is not None and new is not None and old != new:
            if name == "mtime":
                raise ReadError(
                    f"{source.url}: it was modified after it was scanned, or copied without its "
                    f"time: same size, other time; {OTHER_TIME_REMEDY}"
                )
            raise ReadError(
                f"{source.url}: its {name} was {old} when it was scanned and is {new}; "
                f"scan it again"
            )


def read_box(dataset: Any, box: Sequence[slice], dtype: np.dtype[Any]) -> Values:
    """Return a box of a dataset, with the fill value past the end of the dataset."""
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
    has_fill = plist.fill_value_defined() == FillState.USER_DEFINED and not dtype.hasobject
    chosen = read_storage_fill(plist, dtype).tobytes() if has_fill else None
    padded = np.full(shape, get_fill_past_end(chosen, dtype), dtype)
    padded[tuple(slice(0, n) for n in values.shape)] = values
    return padded


def _read_values(dataset: Any, box: tuple[slice, ...], dtype: np.dtype[Any]) -> Values:
    """Return a box inside a dataset: strings as str, references as paths."""
    import h5py

    if h5py.check_string_dtype(dataset.dtype) is not None and dataset.dtype.hasobject:
        return np.asarray(dataset.asstr(errors="replace")[(*box, ...)], dtype)
    values = np.asarray(dataset[(*box, ...)])
    if dtype != TEXT_DTYPE or h5py.check_ref_dtype(dataset.dtype) is None:
        return values.astype(dtype.newbyteorder("="), copy=False)
    paths = np.empty(values.shape, dtype)
    for index in np.ndindex(values.shape):
        paths[index] = get_object_path(values[index], dataset)
    return paths


def load_or_defer(
    dataset: HDF5Dataset,
    stored: StoredType,
    shape: tuple[int, ...],
    needs: tuple[SourceFile, ...],
    files: HDF5Files,
) -> Values | HDF5Array:
    """Return the values of a small dataset, or an array that reads on demand.

    ``needs`` are the other files with values.

    Raises `UnsupportedError` if HDF5 cannot decode a filter on this machine.
    """
    if not (is_text := can_read_strings(dataset)):
        check_filters(dataset)
    path = dataset.path.decode("utf-8", "surrogateescape")
    dtype = stored.dtype.newbyteorder("=")
    if prod(shape) * dtype.itemsize > get_options().small_variable:
        return HDF5Array(dataset.source, path, shape, dtype, needs)
    box = tuple(slice(0, n) for n in shape)
    if is_text:
        return read_strings(dataset, box)
    import h5py

    check_heap(dataset, files, box)
    return read_box(h5py.Dataset(dataset.id), box, dtype)


# ---------------------------------------------------------------------- reading ahead
# The metadata of a remote HDF5 file is prefetched level by level before it is read.
#
# Each function is a `FetchStep` (`virtualds.parsers.hdf5.structure.file_bytes`): it reads one
# object, and returns the steps for the objects to which it refers. Metadata that is not prefetched
# only takes more requests.


def prefetch_groups(
    parents: Sequence[HDF5Location], location: HDF5Location, skip: Collection[str], *, below: bool
) -> None:
    """Prefetch the metadata of a group, of its parents, and of its subgroups if requested.

    Parameters
    ----------
    parents : sequence of HDF5Location
    location : HDF5Location
    skip : collection of str
        Names of variables that are left out.
    below : bool
        Whether to read subgroups.
    """
    # HDF5 would read the same bytes without prefetching
    files = copy(location.files)
    files.by_library, files.roots = False, {}
    scale_visitor, group_visitor = _Visitor(None), _Visitor(skip, below)
    steps: list[FetchStep] = [
        partial(scale_visitor.visit_links, replace(g, files=files)) for g in parents
    ]
    location.file.prefetch(
        [*steps, partial(group_visitor.visit_links, replace(location, files=files))]
    )


@dataclass(frozen=True)
class _Visitor:
    """Reads each object of groups once.

    Parameters
    ----------
    skip : collection of str or None
        Datasets whose chunks are not needed; None for all datasets.
    below : bool
        Whether to read subgroups.
    """

    skip: Collection[str] | None
    below: bool = False
    seen: set[tuple[str, int]] = field(default_factory=set)

    def visit_links(self, location: HDF5Location) -> list[FetchStep]:
        """Read the links of a group."""
        steps: list[FetchStep] = [partial(_visit_attributes, location)]
        for link in location.links:
            if link.kind != HARD:
                continue
            member = follow_link(location, link)
            if member.address not in self.seen:
                self.seen.add(member.address)
                steps.append(partial(self.visit_member, link.name, member))
        return steps

    def visit_member(self, name: bytes, location: HDF5Location) -> list[FetchStep]:
        """Read the header of a member of a group."""
        if is_group(location):
            return [partial(self.visit_links, location)] if self.below else []
        steps: list[FetchStep] = [partial(_visit_attributes, location)]
        if self.skip is not None and name.decode("utf-8", "surrogateescape") not in self.skip:
            steps.append(partial(_visit_chunks, location))
        return steps if is_dataset(location) else []


def _visit_attributes(location: HDF5Location) -> list[FetchStep]:
    """Read the attributes of an object."""
    return [
        partial(_visit_heap, location.file, attribute)
        for attribute in location.attributes.values()
        if is_sequence(attribute.kind) and attribute.name not in IGNORED_ATTRIBUTES
    ]


def _visit_heap(file: FileBytes, attribute: Attribute) -> list[FetchStep]:
    """Read the objects of the global heap to which an attribute refers."""
    read_sequences(file, attribute)
    return []


def _visit_chunks(location: HDF5Location) -> list[FetchStep]:
    """Read the locations of the chunks of a dataset."""
    dataset = make_dataset("", location)
    layout = dataset.header.layout
    if location.files.defers and can_defer(dataset):
        return []
    # other kinds of indexes are read by HDF5
    if layout.kind == LayoutClass.CHUNKED and layout.index_kind is not None:
        read_chunks(dataset)
    return []


# ---------------------------------------------------------------------- groups


MAX_ITEMSIZE = 2**31 - 1
"""Maximum size in bytes of an element in numpy."""
NON_COORDINATE_PREFIX = "_nc4_non_coord_"
"""Prefix in netCDF-C of a variable with the name of a dimension that is not its scale."""


class ReadGroup(NamedTuple):
    """A parsed group: its members, the names of their axes, and its location."""

    group: ManifestGroup
    members: GroupMembers
    axes: NamedAxes
    location: HDF5Location


class ReadGroups(NamedTuple):
    """The groups that were read, by path, and all groups of the file."""

    groups: Mapping[PathParts, ReadGroup]
    path: PathParts
    file_groups: FileGroups

    @property
    def group(self) -> ManifestGroup:
        """The requested group with its subgroups."""
        return self.groups[self.path].group


def read_groups(files: HDF5Files, skip: frozenset[str], path: str, *, below: bool) -> ReadGroups:
    """Read the group at a path, and all its subgroups if requested.

    Raises `FormatError` if there are too many groups.
    """
    root = open_root(files, files.source)
    *parents, location = descend_to(root, path)
    prefetch_groups(parents, location, skip, below=below)
    scales = tuple(scale for parent in parents for scale in read_members(parent).scales)
    group_path = tuple(filter(None, path.split("/")))
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
    all_groups = first_groups if below and not group_path else None
    file_groups = FileGroups(root, all_groups, partial(_read_eos_metadata, root))
    read_so_far: dict[PathParts, ReadGroup] = {}
    for group in first_groups:
        children = {
            name: read_so_far[(*group.path, name)].group if below else ManifestGroup()
            for name in group.members.groups
        }
        reader = _GroupReader(files, skip, group.path)
        read = reader.read(group, file_groups, children)
        read_so_far[group.path] = ReadGroup(read, group.members, reader.axes, group.location)
    return ReadGroups(read_so_far, group_path, file_groups)


EOS_GROUP = "HDFEOS INFORMATION"
"""Group of HDF-EOS5 with the structural metadata."""
MAX_METADATA_BYTES = 2**24
"""Maximum size in bytes of a part of the structural metadata."""


def _read_eos_metadata(root: HDF5Location) -> list[EosStructure]:
    """Return the structures of an HDF-EOS5 file, or an empty list if they cannot be read."""
    parts = []
    with suppress(VirtualdsError, FileNotFoundError), describe_damage(root.source):
        for name, dataset in read_members(descend_to(root, EOS_GROUP)[-1]).datasets.items():
            if METADATA.fullmatch(name):
                parts.append((name, _read_text(dataset)))
    return read_structures(join_metadata(parts))


def _read_text(dataset: HDF5Dataset) -> str:
    """Return the text of a scalar dataset."""
    if can_read_strings(dataset):
        return str(read_strings(dataset, ()).ravel()[0])
    if dataset.type.kind != TypeClass.STRING or not dataset.type.size <= MAX_METADATA_BYTES:
        return ""
    [(_, elements), *_] = read_elements(dataset, dataset.type.size)
    return elements.tobytes().partition(b"\0")[0].decode("utf-8", "replace")


class _GroupReader:
    """Reads one group: its variables, attributes and problems."""

    axes: NamedAxes

    def __init__(self, files: HDF5Files, skip: frozenset[str], group_path: PathParts) -> None:
        self.files = files
        self.skip = skip
        self.path = group_path
        self.source_name = path_or_url(files.source.url)
        self.problems: dict[str, VirtualdsError] = {}

    def read(
        self, group: HDF5Group, file_groups: FileGroups, below: Mapping[str, ManifestGroup]
    ) -> ManifestGroup:
        """Return a group; ``below`` are its child groups."""
        members = group.members
        for name, problem in members.broken.items():
            if name not in self.skip:
                self._record_problem(name, problem)
        self.axes = group.axes
        dims = self._read_dimensions(group, file_groups)
        return ManifestGroup(
            self._read_variables(members.datasets, dims),
            self._read_attributes("", group.location),
            below,
            {"unlimited_dims": dims.unlimited_dims},
            self.problems,
            left_out=self._describe_left_out(members.datasets, dims),
        )

    def _read_dimensions(self, group: HDF5Group, file_groups: FileGroups) -> Dimensions:
        axes = self.axes
        names = file_groups.find_axis_names(group.path, axes)
        if not group.path and not group.members.groups:
            return Dimensions(axes, lambda: len(axes.scales), {}, names)
        lengths = file_groups.find_lengths(group.path, axes) if axes.depend_on_unlimited else {}
        first = partial(file_groups.count_earlier_dimensions, group.path)
        return Dimensions(axes, first, lengths, names)

    def _read_variables(
        self, datasets: Mapping[str, HDF5Dataset], dims: Dimensions
    ) -> dict[str, ManifestVariable]:
        variables = {}
        # the scale determines the length of a dimension
        scales = [d for d in datasets.values() if d.is_scale and d.shape]
        sizes = {d.name: dims.lengths.get(d.name, d.shape[0]) for d in scales}
        for name, names in dims.by_dataset.items():
            variable_name, dataset = name.removeprefix(NON_COORDINATE_PREFIX), datasets[name]
            if variable_name in self.skip:
                continue
            lengths = zip(names, dataset.shape, strict=True)
            shape = tuple(dims.lengths.get(dim, n) for dim, n in lengths)
            axis_sizes = dict(zip(names, shape, strict=True))
            if conflicts := [dim for dim, n in axis_sizes.items() if sizes.get(dim, n) != n]:
                dim = conflicts[0]
                problem = FormatError(
                    f"it has {axis_sizes[dim]} elements along {dim!r}, where other variables have "
                    f"{sizes[dim]}; the file contradicts itself, leave one of them out with "
                    f"drop_variables"
                )
                self._record_problem(variable_name, problem)
                continue
            if max(shape, default=0) >= MAX_AXIS_LENGTH:
                problem = FormatError(
                    f"an axis of {max(shape)} elements is too long; the file is damaged, "
                    f"fetch it again, or leave the variable out with drop_variables"
                )
                self._record_problem(variable_name, problem)
                continue
            sizes |= axis_sizes
            variables[variable_name] = self._read_variable(variable_name, dataset, names, shape)
        return variables

    def _describe_left_out(
        self, datasets: Mapping[str, HDF5Dataset], dims: Dimensions
    ) -> dict[str, ManifestVariable]:
        """Return descriptions of the skipped variables."""
        left_out = {}
        for name, names in dims.by_dataset.items():
            variable_name, dataset = name.removeprefix(NON_COORDINATE_PREFIX), datasets[name]
            if variable_name not in self.skip:
                continue
            dtype, attributes = np.dtype("V1"), dict[str, Any]()
            with suppress(VirtualdsError), describe_damage(dataset.source):
                dtype = dataset.stored.dtype
                for attribute in {*SHARED_ATTRIBUTES}.intersection(dataset.attribute_names):
                    attributes[attribute] = read_attribute(dataset, attribute)
            left_out[variable_name] = describe_left_out(names, dtype, attributes)
        return left_out

    def _record_problem(
        self,
        name: str,
        error: Exception,
        kind: str = "variable",
        source: SourceFile | None = None,
    ) -> VirtualdsError:
        """Record the error of a variable or group; raise it if it is not an error of the file."""
        if not isinstance(error, VirtualdsError):
            damage = find_damage_error(source or self.files.source, error)
            if damage is None:
                raise error
            error = damage
        path = "/".join((*self.path, name))
        error.locate(f"{kind} {path!r}", self.files.source.url)
        self.problems[name] = error
        return error

    def _read_attributes(self, variable: str, owner: Any) -> dict[str, Any]:
        """Return the user attributes of a group or dataset."""
        attributes = {}
        for name in owner.attribute_names:
            if name in RESERVED_ATTRIBUTES:
                continue
            try:
                attributes[name] = read_attribute(owner, name)
            except (VirtualdsError, *HDF5_ERRORS) as error:
                # as in CDL: "variable:attribute", and ":attribute" of the group
                self._record_problem(f"{variable}:{name}", error, "attribute")
        return attributes

    def _read_variable(
        self, name: str, dataset: HDF5Dataset, dims: tuple[str, ...], shape: tuple[int, ...]
    ) -> ManifestVariable:
        attributes = self._read_attributes(name, dataset)
        encoding: dict[str, Any] = {}
        try:
            data = self._read_data(dataset, dims, shape, encoding)
        except (VirtualdsError, *HDF5_ERRORS) as error:
            problem = self._record_problem(name, error, source=dataset.source)
            data = ManifestArray.unreadable(
                shape, f"V{min(dataset.type.size, MAX_ITEMSIZE)}", f"{problem}"
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
        fill = get_fill_past_end(get_fill(dataset, stored.dtype), stored.dtype)
        # missing chunks and the region past the end have different fill values
        array = convert_gaps_to_chunks(array) if array.has_gaps else array
        return replace(array, shape=shape, fill_value=fill)
