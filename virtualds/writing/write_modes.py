"""Apply write modes: how a dataset or tree changes a set; and make templates with regions to fill.

The functions for each mode only compute new groups. The writer of the format compares them with the
set, and writes the differences.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.arrays.array import ManifestArray, get_default_fill
from virtualds.arrays.concatenate import count_references, crop_box, write_region
from virtualds.arrays.group import ManifestGroup, find_dim_sizes
from virtualds.chunks.axes import make_regular_axes
from virtualds.chunks.fragment import Fragment, find_regular_chunks
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.datasets.conversion import (
    check_loading,
    group_from_dataset,
    group_from_tree,
    to_virtual_dataset,
)
from virtualds.datasets.lazy import get_virtual_array, replace_variables, restore_references
from virtualds.datasets.padding import Padding
from virtualds.datasets.structure import (
    CRSByVariable,
    check_crs_of_set,
    find_crs,
    find_crs_by_variable,
)
from virtualds.errors import CombineError, UnsupportedError, format_details, locating
from virtualds.formats import decode_group
from virtualds.options import check_arguments, format_suggestion, select_fields
from virtualds.writing import (
    CREATING,
    EMPTY,
    CommitResult,
    Destination,
    MakeGroup,
    WriteOptions,
    add_group,
    check_aligned,
    find_group,
    list_inherited,
    name_group_in_errors,
    normalise_path,
    put_group,
    put_variables,
)
from virtualds.writing.append import (
    AppendOptions,
    append_along,
    join_coordinates,
    list_mismatches,
    load_like,
    replace_sources,
    to_stored,
)


def write_variables(
    old: ManifestGroup, new: xr.Dataset, on_duplicate: str = "raise", *, adds: bool
) -> ManifestGroup:
    """Return a group with the variables of a dataset, or the same object if it has all of them.

    With ``adds``, they are new variables with the lengths and coordinates of the group, and
    ``on_duplicate`` says what to do about existing variables. Otherwise they replace variables of
    the same names and shapes. Equal coordinates are kept. Raises `CombineError` for variables that
    do not fit the group.
    """
    sizes = find_dim_sizes(old) if adds else {}
    for dim, size in new.sizes.items():
        if size != (existing_size := sizes.get(str(dim), size)):
            raise CombineError(
                f"dimension {dim!r}: it has {existing_size} elements in the set, and {size} in the "
                f"new dataset; select the same elements, or append along it (append_dim)"
            )
    replaced = new.data_vars if not adds or on_duplicate == "replace" else ()
    check_crs_of_set(_find_other_crs(old, replaced), new)
    names = [str(name) for name in new.coords if name is not None and name in old.variables]
    existing = _decode_variables(old, names).variables
    shared = {n for n in names if existing[n].equals(new.variables[n])}  # type: ignore[no-untyped-call]
    stored = group_from_dataset(new)
    attributes = old.attributes
    if adds:
        duplicates = sorted(old.variables.keys() & stored.variables.keys() - shared)
        if unequal := [name for name in duplicates if stored.variables[name].dims == (name,)]:
            raise _make_other_values_error(old, new, unequal[0])
        if duplicates and on_duplicate == "raise":
            raise CombineError(
                f"{', '.join(map(repr, duplicates))}: the set has variables of these names "
                f"already; on_duplicate='replace' replaces them, 'skip' keeps those of the set, or "
                f"leave them out (ds.drop_vars); nothing has been written"
            )
        shared = shared if on_duplicate == "replace" else shared.union(duplicates)
        attributes = join_coordinates(old.attributes, stored.attributes)
    else:
        problems = list[str]()
        for name, variable in stored.variables.items():
            present = old.variables.get(name)
            if present is None:
                problems.append(f"{name}: the set has no such variable")
            elif (present.dims, present.data.shape) != (variable.dims, variable.data.shape):
                problems.append(
                    f"{name}: its dimensions {present.dims} have lengths {present.data.shape} in "
                    f"the set, and {variable.dims} have {variable.data.shape} in the new dataset"
                )
        if problems:
            message = (
                "mode='r+' replaces variables by others of the same shape only, and nothing has "
                "been written; to add variables, pass mode='a'; to fill a part of them, pass "
                "region="
            )
            raise CombineError(format_details(message, problems))
    changed = {name: v for name, v in stored.variables.items() if name not in shared}
    if not changed:
        return old
    result = replace(old, variables={**old.variables, **changed}, attributes=attributes)
    # keep the grid mapping of other variables
    differing = [n for n, v in result.variables.items() if old.variables.get(n) is not v]
    known_crs, new_crs = (_find_other_crs(group, differing) for group in (old, result))
    check_crs_of_set(known_crs, new, new_crs)
    return result


def _find_other_crs(old: ManifestGroup, replaced: Container[Hashable]) -> CRSByVariable:
    """Return the CRSs of the variables of a group that are not replaced."""
    crs_by_variable = find_crs({name: v.attributes for name, v in old.variables.items()})
    return {key: system for key, system in crs_by_variable.items() if key[0] not in replaced}


# ---------------------------------------------------------------------- shared coordinates


def _decode_variables(group: ManifestGroup, names: Iterable[str]) -> xr.Dataset:
    """Return some variables of a group as a dataset."""
    selected = group.leave_out(group.variables.keys() - set(names))
    return decode_group(selected, "raise", to_virtual_dataset)


def _make_other_values_error(old: ManifestGroup, new: xr.Dataset, name: str) -> CombineError:
    """Return the error for a dimension whose coordinate differs from that in the set."""
    existing = _decode_variables(old, [name]).variables[name].values
    values = new.variables[name].values
    is_same = (existing == values) | ((existing != existing) & (values != values))
    index = int((~is_same).argmax()) if is_same.shape == existing.shape else 0
    return CombineError(
        f"dimension {name!r}: its coordinate is {existing[index]} in the set and {values[index]} "
        f"in the new dataset, at position {index}; variables of one group share coordinates: align "
        f"the dataset first (reindex_like), or write it to a group of its own (group=)"
    )


# ---------------------------------------------------------------------- groups of a set


class AddedCounts(NamedTuple):
    """The numbers of added positions along the appended dimension, and of added references.

    ``sizes`` are the dimension sizes of the set after the write.
    """

    positions: int
    references: int
    sizes: Mapping[str, int]


def write_dataset(dataset: xr.Dataset, destination: Destination) -> AddedCounts:
    """Write a dataset as ``ds.virtual.to_manifest`` does, and return how much was added."""
    path, dim = destination.options.path, str(destination.options.append_dim)
    make_group = partial(group_from_dataset, dataset)
    written = _ModeWriter(destination, {path: dataset}, make_group).write()
    before, after = (
        replace(find_group(root, path) or EMPTY, groups={})
        for root in (written.before or EMPTY, written.after)
    )
    counts_before, counts_after = (
        {
            name: v.data.nchunks
            for name, v in g.variables.items()
            if isinstance(v.data, ManifestArray)
        }
        for g in (before, after)
    )
    # changed coordinates that are stored in the set itself are values in memory
    references = sum(count - counts_before.get(name, 0) for name, count in counts_after.items())
    sizes = find_dim_sizes(after)
    return AddedCounts(sizes.get(dim, 0) - find_dim_sizes(before).get(dim, 0), references, sizes)


def write_tree(tree: xr.DataTree, inherited: bool, destination: Destination) -> None:
    """Write the references of a tree as ``tree.virtual.to_manifest`` does."""
    options = destination.options
    if options.mode == "replace-source":
        raise UnsupportedError(
            f"{destination.location.target}: mode 'replace-source' is for datasets; replace the "
            f"sources group by group, with ds.virtual.to_manifest(..., group=)"
        )
    # an append compares groups including inherited coordinates
    inherits = inherited or options.is_append
    nodes = {
        normalise_path(f"{options.path}/{'' if path == '.' else path}"): node.to_dataset(
            inherit=inherits or node is tree
        )
        for path, node in tree.subtree_with_keys
    }
    _ModeWriter(destination, nodes, partial(group_from_tree, tree, inherited), is_tree=True).write()


@dataclass(frozen=True)
class _ModeWriter:
    """Writes datasets to groups of a set, according to the mode.

    In a tree, groups inherit coordinates, which are included when a group is compared and changed.
    ``datasets`` are by the path of their group, with inherited coordinates. ``make_group`` returns
    the top group with its subgroups in stored form. A tree must have all groups that grow.
    """

    destination: Destination
    datasets: Mapping[str, xr.Dataset]
    make_group: MakeGroup
    is_tree: bool = False

    @property
    def options(self) -> WriteOptions:
        """The options of the destination."""
        return self.destination.options

    def write(self) -> CommitResult:
        """Create or change the set."""
        if self.options.creates_set:
            return self.destination.create(self._add_new_group)
        creates = self.options.mode in CREATING
        may_begin = creates or self.options.mode == "a"
        return self.destination.change(
            self._create_group if creates else self._change_groups,
            self._add_new_group if may_begin else None,
        )

    def _add_new_group(self, old: ManifestGroup = EMPTY) -> ManifestGroup:
        """Return a set with the new group added."""
        dim, dims = self.options.append_dim, {d for ds in self.datasets.values() for d in ds.dims}
        if dim is not None and dim not in dims:
            raise ValueError(
                f"append_dim {dim!r}: the dataset, which would be the first of "
                f"{self.destination.location.target}, has {sorted(map(str, dims))}"
                f"{format_suggestion(dim, dims)}"
            )
        return add_group(old, self.options.path, self.make_group())

    def _create_group(self, old: ManifestGroup) -> ManifestGroup:
        """Return a set with the new group added; mode ``"w"`` replaces an existing group."""
        path, new = self.options.path, self.make_group()
        if self.options.mode == "w":
            return check_aligned(old, put_group(old, path, new))
        for subpath, part in new.walk(path):
            existing = find_group(old, subpath)
            # a group with only attributes would replace the existing one as well
            if existing is not None and existing.variables and (part.variables or part.attributes):
                raise FileExistsError(
                    f"{self.destination.location.target}: group /{subpath} exists already; "
                    f"mode='w' replaces it, mode='a' adds variables to it, and append_dim= appends "
                    f"to it"
                )
        return check_aligned(old, add_group(old, path, new))

    # ------------------------------------------------------------------ changing groups

    def _change_groups(self, old: ManifestGroup) -> ManifestGroup:
        """Return a set with all datasets in their groups, or ``old`` itself if no group changes."""
        datasets, dim = dict(self.datasets), self.options.append_dim
        if self.options.is_append:
            existing = [find_group(old, path) for path in datasets]
            if not any(group.variables for group in existing if group is not None):
                return self._add_new_group(old)
            if self.is_tree:
                datasets |= self._complete_groups(old, str(dim))
            if not any(dim in dataset.dims for dataset in datasets.values()):
                dims = {str(dim) for dataset in datasets.values() for dim in dataset.dims}
                raise ValueError(
                    f"dimension {dim!r}: the new dataset has {sorted(dims)}; name one of them"
                )
        result = old
        for path, dataset in datasets.items():
            with name_group_in_errors(path):
                # inherited coordinates have already grown in ``result``
                reference = old if self.options.is_append else result
                result = self._change_group(reference, result, path, dataset)
        return result if result is old else check_aligned(old, result)

    def _change_group(
        self, old: ManifestGroup, current: ManifestGroup, path: str, new: xr.Dataset
    ) -> ManifestGroup:
        """Return the new root with a dataset in a group; ``old`` is the root before the change."""
        options, group = self.options, find_group(old, path)
        inherited = list_inherited(old, path, map(str, new.variables))
        own = [str(name) for name in new.variables if name not in inherited]
        # a group without variables only contains other groups
        is_new = group is None or not group.variables
        if is_new and not options.is_append:
            return put_variables(current, path, self._change(None, new))
        if is_new and (group is None or own):
            if options.new_variables == "error":
                raise CombineError(
                    "the set has no such group; new_variables='fill' adds it, with missing values "
                    "where the set has data already, and 'drop' leaves it out"
                )
            if options.new_variables == "drop":
                return current
            if options.append_dim not in inherited:
                return put_variables(current, path, group_from_dataset(new[own]))
        group = group or EMPTY
        full_group = replace(group, variables={**inherited, **group.variables})
        after = self._change(full_group, new)
        if after is full_group:
            return current
        changed = [name for name, v in inherited.items() if after.variables[name] is not v]
        if changed and not options.is_append:
            raise CombineError(
                f"{changed[0]}: group /{path} has this coordinate from a group above it; replace "
                f"it there, or leave it out (ds.drop_vars)"
            )
        own_variables = {name: v for name, v in after.variables.items() if name not in inherited}
        return put_variables(current, path, replace(after, variables=own_variables))

    def _change(self, old: ManifestGroup | None, new: xr.Dataset) -> ManifestGroup:
        """Return a group with a dataset written by the mode; ``old`` is None for a new group."""
        options, root = self.options, self.destination.location.url
        adds = options.mode == "a" and options.append_dim is None
        if adds and old is None:
            return group_from_dataset(new)
        if old is None and options.region is not None:
            raise CombineError("the set has no such group, so it has no region; mode='a' adds it")
        if old is None:
            raise CombineError("the set has no such group; mode='a' adds it")
        padding = Padding(options.pad)
        if options.is_append:
            arguments = vars(options) | {
                "dim": options.append_dim,
                "root": root,
                "padding": padding,
            }
            return append_along(old, new, select_fields(AppendOptions, arguments))
        if options.mode == "replace-source":
            return replace_sources(old, new, options.append_dim, root, padding)
        if options.region is None:
            return write_variables(old, new, options.on_duplicate, adds=adds)
        return fill_region(old, new, options.region, options.on_duplicate, root)

    def _complete_groups(self, old: ManifestGroup, dim: str) -> dict[str, xr.Dataset]:
        """Return datasets with only a coordinate for the groups of the set that the tree lacks."""
        completed = dict[str, xr.Dataset]()
        top = min(self.datasets, key=len)
        for path, group in (find_group(old, top) or EMPTY).walk(top):
            if path in self.datasets or dim not in find_dim_sizes(group):
                continue
            names = path.split("/")
            parent_paths = ["/".join(names[:depth]) for depth in reversed(range(len(names)))]
            candidates = [self.datasets[p] for p in parent_paths if p in self.datasets]
            coordinate = next((ds.variables[dim] for ds in candidates if dim in ds.coords), None)
            if self.options.missing_variables == "error" or coordinate is None:
                raise CombineError(
                    f"group /{path}: the new tree has no such group, which has the dimension "
                    f"{dim!r} in the set; missing_variables='fill' fills it with missing values "
                    f"if its coordinate lies in a group above it"
                )
            completed[path] = xr.Dataset(coords={dim: coordinate})
        return completed


# ---------------------------------------------------------------------- templates


CASTABLE = set("biufcmM")
"""Dtype kinds of coordinates that are cast to the dtype of the cell."""


@check_arguments()
def template(
    like: xr.Dataset,
    coords: Mapping[Any, Any] | None = None,
    *,
    sizes: Mapping[Any, int] | None = None,
) -> xr.Dataset:
    """Return a dataset of all coordinates of an archive, whose arrays have no references yet.

    Write it once with ``ds.virtual.to_manifest``, then fill it region by region, with
    ``to_manifest(url, region="auto")``. It only takes the memory of its coordinates, however large
    the archive is. Elements without references read as the fill value: NaN for floating-point
    numbers.

    Parameters
    ----------
    like : xarray.Dataset
        One cell of the archive, opened virtually: it has all variables and dimensions. Its arrays
        determine how all others are chunked and stored. Variables without a dimension of ``coords``
        and ``sizes`` stay as they are.
    coords : mapping, optional
        Whole coordinates, as for `xarray.Dataset.assign_coords`.
    sizes : mapping of dimension to int, optional
        Lengths of dimensions without a coordinate.

    Raises
    ------
    ValueError
        A dimension is unknown, or has two lengths.
    UnsupportedError
        The chunks of an array differ in length or encoding; or a variable in memory must be passed
        in ``coords``, because its dtype has no missing value.

    Examples
    --------
    >>> import numpy as np
    >>> import virtualds
    >>> day = virtualds.open_virtual_dataset("2001.nc").expand_dims(member=[0])
    >>> whole = template(day, {"member": np.arange(50)})
    >>> whole.sizes["member"], whole.virtual.nchunks, len(whole.virtual.sources)
    (50, 600, 0)
    """
    like = restore_references(like)
    coordinates = xr.Dataset(coords=coords or {})
    lengths = _find_lengths(like, coordinates, sizes or {})
    variables: dict[Hashable, xr.Variable] = {}
    for name, variable in like.variables.items():
        if name in coordinates.variables:
            variables[name] = _copy_attributes(coordinates.variables[name], variable)
        elif lengths.keys() & set(variable.dims):
            with locating(f"variable {name!r}"):
                variables[name] = _make_empty_variable(variable, lengths)
    variables |= {n: v for n, v in coordinates.variables.items() if n not in like.variables}
    other_variables = {n: v for n, v in like.variables.items() if n not in variables}
    dataset = xr.Dataset({**other_variables, **variables}, attrs=like.attrs).set_coords(
        [*like.coords, *coordinates.coords]
    )
    dataset.encoding = dict(like.encoding)
    return dataset[list(like.data_vars)]


def _find_lengths(
    like: xr.Dataset, coordinates: xr.Dataset, sizes: Mapping[Any, int]
) -> dict[Hashable, int]:
    """Return the lengths of the dimensions that are given by coordinates and sizes."""
    for dim, size in sizes.items():
        if coordinates.sizes.get(dim, size) != size:
            raise ValueError(
                f"template: {dim!r} has {coordinates.sizes[dim]} values in coords and {size} in "
                f"sizes"
            )
    lengths: dict[Hashable, int] = {**coordinates.sizes, **{d: int(n) for d, n in sizes.items()}}
    if unknown := [dim for dim in lengths if dim not in like.dims]:
        raise ValueError(
            f"template: dimension {unknown[0]!r} is not one of the dataset's {list(like.dims)}; "
            f"give the cell all dimensions first: ds.expand_dims({unknown[0]!r})"
            f"{format_suggestion(str(unknown[0]), map(str, like.dims))}"
        )
    return lengths


def _copy_attributes(variable: xr.Variable, like: xr.Variable) -> xr.Variable:
    """Return a coordinate with the attributes and encoding of ``like``."""
    copy = variable.to_base_variable()
    cast = copy.astype(like.dtype) if {copy.dtype.kind, like.dtype.kind} <= CASTABLE else copy
    # cast only if that is exact, so that regions are found by their coordinates
    copy = cast if bool((cast == copy).all()) else copy
    copy.attrs = dict(like.attrs) | copy.attrs
    copy.encoding = {k: v for k, v in like.encoding.items() if k in ("units", "calendar", "dtype")}
    return copy


def _make_empty_variable(variable: xr.Variable, lengths: Mapping[Hashable, int]) -> xr.Variable:
    """Return a variable with other lengths and no values."""
    shape = tuple(lengths.get(d, n) for d, n in zip(variable.dims, variable.shape, strict=True))
    if (array := get_virtual_array(variable)) is None:
        if variable.dtype.kind not in "fcmM":
            raise UnsupportedError(
                f"its values of dtype {variable.dtype} are in memory, and no value stands for one "
                f"that is not there yet; give all of them in coords, or leave it out (ds.drop_vars)"
            )
        values = np.full(shape, get_default_fill(variable.dtype))
        return xr.Variable(variable.dims, values, variable.attrs, variable.encoding)
    chunks = find_regular_chunks(array.shape, array.fragments)
    if chunks is None or len(array.pipelines) != 1 or not array.fragments:
        raise UnsupportedError(
            f"{array.label}: it has {len(array.fragments)} grids of chunks and "
            f"{len(array.pipelines)} encodings, and a template has one; give one cell of the "
            f"archive"
        )
    pipeline = _fill_with_missing(array.pipelines[0], array.dtype)
    axes = make_regular_axes(shape, chunks)
    fragment = Fragment.whole(axes, ChunkManifest.missing(tuple(axis.nchunks for axis in axes)))
    empty = replace(array, shape=shape, pipelines=(pipeline,), fragments=(fragment,))
    encoding = dict(variable.encoding)
    if empty.dtype.kind in "fc" and empty.pipelines[0].packing is None:
        # other readers take the fill value from this attribute
        encoding.setdefault("_FillValue", empty.pipelines[0].missing_value)
    return xr.Variable(variable.dims, empty, variable.attrs, encoding)


def _fill_with_missing(pipeline: CodecPipeline, dtype: np.dtype[Any]) -> CodecPipeline:
    """Return a pipeline whose missing chunks read as NaN or NaT, if it can represent them."""
    if pipeline.packing is None:
        if dtype.kind not in "fc" or pipeline.dtype.kind not in "fc":
            return pipeline
        fill_value: Any = np.nan
    else:
        attributes = pipeline.packing.attributes
        fill_value = attributes.get("_FillValue", attributes.get("missing_value"))
    if fill_value is None or np.ndim(fill_value) or np.asarray(fill_value).dtype.kind not in "iufc":
        return pipeline
    stored = np.asarray(fill_value).astype(pipeline.dtype).tobytes()
    return replace(pipeline, fill=stored)


# ---------------------------------------------------------------------- regions

AUTO = "auto"
Region = Mapping[Any, Any] | str
"""A slice or ``"auto"`` for each dimension; or ``"auto"`` for all dimensions of the dataset."""
Slices = dict[Hashable, slice]


def fill_region(
    old: ManifestGroup,
    new: xr.Dataset,
    region: Region,
    on_duplicate: str = "raise",
    root: str = "",
) -> ManifestGroup:
    """Return a group with a dataset in a region, or the same object if it has all data already.

    ``region`` and ``on_duplicate`` are as in ``ds.virtual.to_manifest``; ``root`` is the url of the
    set, in which values that were in memory are stored. Raises `CombineError` for data that do not
    fit the region, or that it already has.
    """
    new = restore_references(new)
    present = decode_group(old, "raise", to_virtual_dataset)
    present = load_like(present, new, root, only_own=True)
    check_crs_of_set(find_crs_by_variable(present), new)
    slices = _find_slices(present, new, region)
    # index coordinates of the region must be equal, and are not written
    indexed_dims = [dim for dim in new.dims if dim in new.indexes]
    for dim in indexed_dims:
        if dim in present.indexes:
            existing = present.indexes[dim][slices.get(dim, slice(None))]
            if not existing.equals(new.indexes[dim]):
                raise CombineError(
                    f"region {_format(slices)}: the coordinate {dim!r} of the set has other values "
                    f"there, from {existing[0]} on, than the new dataset, from "
                    f"{new.indexes[dim][0]} on; pass region={{{dim!r}: 'auto'}} to find them"
                )
    new = new.drop_vars([dim for dim in indexed_dims if dim in present.variables])
    if others := [str(n) for n, v in new.variables.items() if not slices.keys() & set(v.dims)]:
        raise ValueError(
            f"region {_format(slices)}: the variables {others} have none of its dimensions; leave "
            f"them out: ds.drop_vars({others})"
        )
    if problems := [p for n in new.variables for p in _find_problems(present, new, n, slices)]:
        message = (
            f"region {_format(slices)}: the new dataset does not fit the set, and nothing has been "
            f"written; leave variables out with ds.drop_vars, or convert them"
        )
        raise CombineError(format_details(message, problems))
    changed = {}
    for name, variable in new.variables.items():
        if get_virtual_array(variable) is None:
            check_loading(str(name), variable)
        old_variable = present.variables[name]
        key = tuple(slices.get(dim, slice(0, old_variable.sizes[dim])) for dim in old_variable.dims)
        array, added = get_virtual_array(old_variable), get_virtual_array(variable)
        data: Any
        try:
            if array is None or added is None:
                data = _fill_values(old_variable, variable, key, on_duplicate)
            else:
                data = _fill_array(array, added, key, on_duplicate)
        except CombineError as error:
            raise CombineError(f"region {_format(slices)}: {name!r}: {error}") from error
        if data is not None:
            changed[name] = old_variable.copy(data=data)
    filled = replace_variables(present, changed)
    return to_stored(old, filled, changed) if changed else old


# ---------------------------------------------------------------------- slices of a region


def _find_slices(present: xr.Dataset, new: xr.Dataset, region: Region) -> Slices:
    """Return the slice of the region along each dimension of the set."""
    if isinstance(region, str):
        _check_auto(region, region)
        region = dict.fromkeys(new.dims, AUTO)
    slices: Slices = {}
    for dim, selection in region.items():
        for owner, dataset in (("the set", present), ("the new dataset", new)):
            if dim not in dataset.dims:
                raise ValueError(
                    f"region: {owner} has no dimension {dim!r}; it has {list(dataset.dims)}"
                )
        size, count = present.sizes[dim], new.sizes[dim]
        if isinstance(selection, slice):
            slices[dim] = _check_slice(dim, selection, size, count)
        else:
            _check_auto(selection, {dim: selection})
            slices[dim] = _find_by_index(present, new, dim)
    return slices


def _check_auto(selection: Any, region: Any) -> None:
    """Raise an error unless a selection is ``"auto"``."""
    if selection != AUTO:
        raise ValueError(
            f"region={region!r}: it is 'auto', or a dict of dimensions to slices or 'auto'"
        )


def _check_slice(dim: Hashable, wanted: slice, size: int, count: int) -> slice:
    """Return a slice with non-negative start and stop, or raise an error if it does not fit."""
    if wanted.step not in (None, 1):
        raise ValueError(f"region: {wanted} along {dim!r} has a step; give a slice without one")
    if wanted.stop is not None and wanted.stop > size:
        raise ValueError(
            f"region: {wanted} along {dim!r} stops beyond the {size} elements of the set; append "
            f"what is new (append_dim={dim!r}), or make a longer template"
        )
    start, stop, _ = wanted.indices(size)
    if stop - start != count:
        raise ValueError(
            f"region: {wanted} along {dim!r} selects {max(stop - start, 0)} of the {size} elements "
            f"of the set, and the new dataset has {count}"
        )
    return slice(start, stop)


def _find_by_index(present: xr.Dataset, new: xr.Dataset, dim: Hashable) -> slice:
    """Return the slice of the set with the coordinate values of the new dataset.

    Without a coordinate, the slice is the whole dimension, as in xarray.
    """
    if dim not in present.variables and dim not in new.variables:
        return _check_slice(dim, slice(None), present.sizes[dim], new.sizes[dim])
    for what, dataset in (("the set", present), ("the new dataset", new)):
        if dim not in dataset.indexes:
            raise ValueError(
                f"region: {what} has no index coordinate {dim!r}, by which 'auto' finds the place; "
                f"give a slice, or load the coordinate (loadable_variables)"
            )
    index, values = present.indexes[dim], new.indexes[dim]
    if not index.is_unique:
        raise ValueError(f"region: the coordinate {dim!r} of the set repeats values; give a slice")
    positions = index.get_indexer(values)
    if (positions < 0).any():
        absent = values[int(np.flatnonzero(positions < 0)[0])]
        raise CombineError(
            f"region: the coordinate {dim!r} of the set has no {absent}; append it "
            f"(append_dim={dim!r}), or make a template that has it"
        )
    if not positions.size or (np.diff(positions) != 1).any():
        raise CombineError(
            f"region: the values of {dim!r} are at {positions[:4].tolist()} of the set, which is "
            f"not contiguous; write them one after the other"
        )
    return slice(int(positions[0]), int(positions[-1]) + 1)


def _format(slices: Slices) -> str:
    """Return slices as text for errors."""
    texts = (f"{dim!r}: {part.start}:{part.stop}" for dim, part in slices.items())
    return "{" + ", ".join(texts) + "}"


# ---------------------------------------------------------------------- data of a region


def _find_problems(
    present: xr.Dataset, new: xr.Dataset, name: Hashable, slices: Slices
) -> Iterator[str]:
    """Yield the reasons why a variable cannot be written to the region."""
    if name not in present.variables:
        yield f"{name}: the set has no such variable"
        return
    old, variable = present.variables[name], new.variables[name]
    yield from (f"{name}: {reason}" for reason in list_mismatches(old, variable, slices))
    if np.result_type(old.dtype, variable.dtype) != old.dtype:
        yield f"{name}: its dtype is {old.dtype} in the set and {variable.dtype} in the new dataset"
    if get_virtual_array(old) is not None and get_virtual_array(variable) is None:
        yield (
            f"{name}: it is in memory, and virtual in the set; leave it out, or open it virtually "
            f"(loadable_variables=[])"
        )


def _fill_array(
    array: ManifestArray, added: ManifestArray, key: tuple[slice, ...], on_duplicate: str
) -> ManifestArray | None:
    """Return an array with new references in a region, or None if nothing changes."""
    box = tuple((part.start, part.stop) for part in key)
    cropped = crop_box(array, box)
    existing_count = count_references(cropped)
    if existing_count and on_duplicate == "raise":
        sources = ", of " + ", ".join(s.url for s in cropped.sources[:2]) if cropped.sources else ""
        raise CombineError(
            f"{existing_count} chunks of the region have references already{sources}; pass "
            f"on_duplicate='skip' to leave them, or 'replace'"
        )
    if (
        existing_count
        and on_duplicate == "skip"
        and existing_count == cropped.nchunks
        and not cropped.has_gaps
    ):
        return None
    start = [part.start for part in key]
    return write_region(array, start, added, overwrite=on_duplicate == "replace")


def _fill_values(
    old: xr.Variable, new: xr.Variable, key: tuple[slice, ...], on_duplicate: str
) -> npt.NDArray[Any] | None:
    """Return values in memory with new values in a region, or None if nothing changes."""
    values, added = np.array(old.values), np.asarray(new.values).astype(old.dtype)
    has_value = ~np.asarray(xr.Variable(old.dims, values[key]).isnull())
    is_same = np.asarray((values[key] == added) | ~has_value)
    if not is_same.all() and on_duplicate == "raise":
        raise CombineError(
            f"the region has {np.count_nonzero(~is_same)} other values already; pass "
            f"on_duplicate='skip' to leave them, or 'replace'"
        )
    new_values = added if on_duplicate == "replace" else np.where(has_value, values[key], added)
    if xr.Variable(old.dims, new_values).equals(xr.Variable(old.dims, values[key])):  # type: ignore[no-untyped-call]
        return None
    values[key] = new_values
    return values
