"""Append, replace and remove sources of a group of a set.

The result is a concatenation of lazy slices of the set and new virtual data. Nothing is written
here: the writer of the format compares the result with the set, and writes the differences.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.arrays.array import ManifestArray, get_default_fill, has_missing_value
from virtualds.arrays.concatenate import clear_boxes, count_references, find_boxes, reorder
from virtualds.arrays.group import ManifestGroup, ManifestVariable, find_dim_sizes
from virtualds.bounds import check_joinable
from virtualds.chunks.axes import find_runs
from virtualds.chunks.columns import INLINE
from virtualds.chunks.manifest import iterate_references
from virtualds.codecs.cf import PACKING_ATTRIBUTES
from virtualds.datasets.conversion import (
    check_loading,
    group_from_dataset,
    to_virtual_dataset,
    warn_of_copy,
)
from virtualds.datasets.decoding import are_date_units
from virtualds.datasets.lazy import get_virtual_array, replace_variables, restore_references
from virtualds.datasets.padding import NO_PADDING, Padding
from virtualds.datasets.source_positions import (
    DUPLICATES_REMEDY,
    EMPTY_PIECE,
    POSITIONS,
    Range,
    Replacements,
    check_unchanged,
    cut_along,
    find_copies,
    find_insertions,
    find_only_dimension,
    find_positions,
    find_present_positions,
    find_ranges,
    find_replaced_static,
    find_replacements,
    has_chunks_in,
    is_adjacent_to,
    is_stored_in_set,
    list_arrays_along,
    list_partly_covered_dims,
    make_duplicates_error,
    replace_ranges,
    urls_of,
)
from virtualds.datasets.structure import check_crs_of_set, find_crs_by_variable
from virtualds.errors import CombineError, VirtualdsError, format_details
from virtualds.formats import decode_group
from virtualds.options import check_choice, get_options


@dataclass(frozen=True)
class AppendOptions:
    """Options for appending a dataset to a group of a set along a dimension.

    ``position``, ``on_duplicate``, ``new_variables`` and ``missing_variables`` are as in
    ``ds.virtual.to_manifest``. ``root`` is the url of the set, in which values that were in memory
    are stored. The remedies are for errors: ``duplicate_remedy`` for positions that the set already
    has, ``misfit_remedy`` for a dataset that does not fit, and ``extra_variable_remedy`` for a
    variable that the set lacks.
    """

    dim: str
    position: str = "end"
    on_duplicate: str = "raise"
    new_variables: str = "error"
    missing_variables: str = "error"
    root: str = ""
    duplicate_remedy: str = DUPLICATES_REMEDY
    misfit_remedy: str = (
        "convert variables that differ, or pass new_variables='fill' or missing_variables='fill' "
        "if one side lacks them"
    )
    extra_variable_remedy: str = "ds.drop_vars leaves it out"
    padding: Padding = NO_PADDING

    def __post_init__(self) -> None:
        check_choice("position", self.position, POSITIONS)
        check_choice("on_duplicate", self.on_duplicate, ("raise", "skip"))

    def complete(self, present: xr.Dataset, new: xr.Dataset) -> tuple[xr.Dataset, xr.Dataset]:
        """Return the set and the new dataset with missing variables added as the options say.

        A later check reports variables that may not be added.
        """
        extra = [name for name in new.variables if name not in present.variables]
        if self.new_variables == "drop":
            new = new.drop_vars(extra)
        elif self.new_variables == "fill":
            present = _add_variables(present, new, extra, self.dim)
        if self.missing_variables == "fill":
            lacking = [
                name
                for name, variable in present.variables.items()
                if self.dim in variable.dims and name not in new.variables
            ]
            new = _add_variables(new, present, lacking, self.dim)
        return present, new


def _add_variables(
    dataset: xr.Dataset, model: xr.Dataset, names: list[Hashable], dim: str
) -> xr.Dataset:
    """Return a dataset with variables of ``model``, filled with missing values along ``dim``."""
    for name in names:
        variable = model.variables[name]
        if dim in variable.dims:
            variable = make_missing(name, variable, dim, dataset.sizes[dim])
        for other, size in variable.sizes.items():
            if size != (present := dataset.sizes.get(other, size)):
                raise CombineError(
                    f"{name}: it has {size} elements along {other!r}, and the other variables have "
                    f"{present}; select the same elements, or leave it out (ds.drop_vars)"
                )
        assign = dataset.assign_coords if name in model.coords else dataset.assign
        dataset = assign({name: variable})
    return dataset


def make_missing(name: Hashable, variable: xr.Variable, dim: str, count: int) -> xr.Variable:
    """Return a variable of missing values like another one, with length ``count`` along ``dim``."""
    dtype = variable.dtype
    if not has_missing_value(dtype) or variable.dims == (name,):
        raise CombineError(
            f"{name}: one side lacks this variable, and no value of it ({dtype}) means that it is "
            f"missing; add it to the files, leave it out (ds.drop_vars, or new_variables='drop'), "
            f"or write it to a set of its own"
        )
    shape = tuple(count if d == dim else n for d, n in variable.sizes.items())
    fill = get_default_fill(dtype)
    if get_virtual_array(variable) is None:
        return xr.Variable(variable.dims, np.full(shape, fill), variable.attrs, variable.encoding)
    # an array without fragments, for which formats store no references
    data = ManifestArray.full(shape, fill, dtype)
    return xr.Variable(variable.dims, data, variable.attrs, variable.encoding)


# ---------------------------------------------------------------------- append

TEXT_KINDS = "OUST"
"""Dtype kinds of strings, whose maximum length may be part of the dtype."""

JOINABLE_KINDS = (set(TEXT_KINDS), set("biufc"), {"m"}, {"M"})
"""Groups of dtype kinds that xarray promotes to a common dtype when it concatenates."""

MAX_TRIED = 64
"""Maximum number of positions that are searched for a date in a readable file."""

CODING_ATTRIBUTES = (
    "units",
    "calendar",
    "scale_factor",
    "add_offset",
    "_FillValue",
    "missing_value",
)
"""Attributes that determine how values are encoded as stored numbers."""


def append_along(old: ManifestGroup, new: xr.Dataset, options: AppendOptions) -> ManifestGroup:
    """Return a group with a dataset appended, or the same object if it has all data already.

    If neither has the dimension, the dataset must be equal to the group. Raises `CombineError` for
    data that do not fit the group, or that it already has.
    """
    dim, new = options.dim, restore_references(new)
    has_dim = dim in find_dim_sizes(old) or dim in new.dims
    present = open_set(old, new, (dim,)) if has_dim else open_set(old, None)
    padded, new = pad_to_set(present, new, options.padding, (dim,))
    is_longer, present = padded is not present, padded
    present, new = options.complete(present, new)
    new = _select_comparable(present, _load_index_like(present, new, dim), options)
    if not has_dim:
        is_changed = is_longer or len(present.variables) != len(old.variables)
        return to_stored(old, present) if is_changed else old
    is_present = find_present_positions(present, new, dim)
    if is_present.any() and options.on_duplicate == "raise":
        raise make_duplicates_error(present, new, dim, is_present, options.duplicate_remedy)
    if is_present.all():
        return old
    check_unchanged(present, new, dim)
    replacements = find_insertions(present, new, np.flatnonzero(~is_present), dim, options.position)
    return to_stored(old, _replace_ranges(present, new, replacements, dim, options.root))


def pad_to_set(
    present: xr.Dataset, new: xr.Dataset, padding: Padding, joined: Sequence[str]
) -> tuple[xr.Dataset, xr.Dataset]:
    """Return a set and a new dataset, padded to equal lengths along dimensions of ``padding``.

    A set that is long enough is the same object.
    """
    datasets = (present, new)
    padding.check_dims({dim for dataset in datasets for dim in dataset.dims}, joined)
    variables = [item for dataset in datasets for item in dataset.variables.items()]
    joined_names = {name for name, v in variables if not {*joined}.isdisjoint(v.dims)}
    shared = {name for name, _ in variables} - joined_names
    # drop the empty end of shared variables of the set, which a new file may fill
    shortened = {
        name: part
        for name in shared & present.variables.keys()
        if (part := _drop_empty_end(present.variables[name], padding.dims)) is not None
    }
    separate = [xr.Dataset({name: part}) for name, part in shortened.items()]
    names = ["the set", "the new dataset", *["the set"] * len(separate)]
    padded = padding.pad(names, [present.drop_vars(list(shortened)), new, *separate], shared)
    if not shortened and padded[0].sizes == present.sizes:
        return present, padded[1]
    padded_shared = {
        name: part.variables[name] for name, part in zip(shortened, padded[2:], strict=True)
    }
    grown = padded[0].assign(padded_shared)
    data = {name: grown.variables[name] for name in present.data_vars}
    coords = [name for name in padded_shared if name in present.coords]
    ordered = xr.Dataset(data, grown.set_coords(coords).coords, grown.attrs)
    ordered.encoding = grown.encoding
    return ordered, padded[1]


def _drop_empty_end(variable: xr.Variable, dims: Sequence[str]) -> xr.Variable | None:
    """Return a virtual variable without its end if no file has data there, else None."""
    array, stops = get_virtual_array(variable), dict[str, slice]()
    for dim in set(dims).intersection(map(str, variable.dims)) if array is not None else ():
        dataset = xr.Dataset({"_": variable})
        positions = np.flatnonzero(find_positions(dataset, dim, urls_of(dataset)))
        if positions.size and positions[-1] + 1 < variable.sizes[dim]:
            stops[dim] = slice(int(positions[-1]) + 1)
    return variable.isel(stops) if stops else None


def replace_sources(
    old: ManifestGroup,
    new: xr.Dataset,
    dim: str | None = None,
    root: str = "",
    padding: Padding = NO_PADDING,
) -> ManifestGroup:
    """Return a group with data replaced by a dataset from the same sources.

    The data to replace have the same source urls, or the same coordinate values. ``dim`` is by
    default the only dimension along which sources are joined; ``root`` is the url of the set.
    Raises `CombineError` for data that do not fit the set.
    """
    new = restore_references(new)
    dims = () if dim is None else (dim,)
    present = open_set(old, new, dims)
    check_crs_of_set(find_crs_by_variable(present), new)
    if dim is None:
        dim = find_only_dimension(present, urls_of(new))
    present, new = pad_to_set(present, new, padding, (dim,))
    # variables without the dimension may come from a changed source
    static = find_replaced_static(present, new, dim)
    new = _load_index_like(present, new.drop_vars(list(static)), dim)
    new = _select_comparable(present, new, AppendOptions(dim))
    replacements = find_replacements(present, new, dim)
    return to_stored(old, _replace_ranges(present, new, replacements, dim, root).assign(static))


def remove_sources(
    old: ManifestGroup, urls: Iterable[str], dim: str | None = None, root: str = ""
) -> ManifestGroup:
    """Return a group without the data of some sources, or the same object if nothing changes.

    Positions along the dimension are dropped if no other source has chunks there. At all other
    positions, as in a grid of files, the chunks become missing; coordinates, and variables without
    a dimension of the grid, are kept there. ``dim`` and ``root`` are as in `replace_sources`.
    Raises `CombineError` if the set has no such source or no other sources, or if a variable
    without a missing value would have a gap.
    """
    removed = set(urls)
    present = open_set(old, None, () if dim is None else (dim,), removed)
    listed = urls_of(present)
    if unknown := sorted(removed - listed):
        raise CombineError(
            f"{unknown[0]}: the set has no such source; ds.virtual.sources lists them"
        )
    if dim is None:
        dim = find_only_dimension(present, removed)
    has_removed = _find_removed(present, dim, removed)
    others = {url for url in listed - removed if not is_stored_in_set(url, root)}
    is_shared = has_removed & find_positions(present, dim, others, has_removed)
    dropped_runs = find_runs(np.flatnonzero(has_removed & ~is_shared))
    if dropped_runs == [(0, has_removed.size)]:
        raise CombineError(
            f"nothing would be left of the set along {dim!r}; remove the set instead"
        )
    remaining = drop_positions(present, dim, has_removed & ~is_shared, root)
    if is_shared.any():
        # the dimensions that other sources cover only in part
        grid = {dim}
        for run in find_runs(np.flatnonzero(is_shared)):
            part = cut_along(present, dim, run)
            for array, _ in list_arrays_along(part, dim):
                # one file is enough, since all files of an array are arranged in the same way
                if used := others.intersection(file.url for file in array.sources):
                    grid |= set(list_partly_covered_dims(part, {min(used)}))
        gapped = _leave_gaps(remaining, removed, grid, root)
        if gapped is remaining and not dropped_runs:
            return old
        remaining = gapped
    return to_stored(old, remaining)


def drop_positions(
    present: xr.Dataset, dim: str, mask: npt.NDArray[np.bool_], root: str
) -> xr.Dataset:
    """Return a dataset without the positions of a mask along a dimension."""
    runs = find_runs(np.flatnonzero(mask))
    return _replace_ranges(present, present, [(run, EMPTY_PIECE) for run in runs], dim, root)


def _find_removed(present: xr.Dataset, dim: str, urls: set[str]) -> npt.NDArray[np.bool_]:
    """Return a mask of the positions with data of the sources to remove."""
    mask = np.zeros(present.sizes[dim], bool)
    copies, ranges = find_copies(present, dim), find_ranges(present, dim, urls)
    for url in sorted(urls):
        if url not in ranges:
            raise CombineError(
                f"{url}: the set has no such source along {dim!r}; ds.virtual.sources lists them"
            )
        for run in ranges[url]:
            if is_adjacent_to(copies, run):
                raise CombineError(
                    f"{url}: positions {run[0]} to {run[1]} along {dim!r} of the set come from "
                    f"this source, and chunks beside them were rewritten or are held in the set, "
                    f"which does not know where those come from; write the set again without this "
                    f"source"
                )
            mask[slice(*run)] = True
    return mask


def _leave_gaps(dataset: xr.Dataset, urls: set[str], grid: set[str], root: str) -> xr.Dataset:
    """Return a dataset in which the chunks of some sources are missing.

    Variables without a dimension of the grid are kept, since they also belong to other sources.
    """
    changed: dict[Hashable, ManifestArray] = {}
    for url in sorted(urls):
        for name in dataset.data_vars:
            variable = dataset.variables[name]
            array = changed.get(name, get_virtual_array(variable))
            if array is None or not grid <= set(variable.dims):
                continue
            if boxes := find_boxes(array, url):
                _check_gap(url, name, array, root)
                changed[name] = clear_boxes(array, boxes)
    cleared = {name: dataset.variables[name].copy(data=a) for name, a in changed.items()}  # type: ignore[arg-type]
    return replace_variables(dataset, cleared) if cleared else dataset


def _check_gap(url: str, name: Hashable, array: ManifestArray, root: str) -> None:
    """Raise an error if a gap would read as valid values, or if copies would remain."""
    if not has_missing_value(array.dtype):
        raise CombineError(
            f"{url}: other sources have data at its positions, so that it would leave a gap in "
            f"{name!r}, and no value of {name!r} ({array.dtype}) means that it is missing; write "
            f"the set again without this source"
        )
    has_copies = any(is_stored_in_set(file.url, root) for file in array.sources)
    if has_copies or any(
        (part.file == INLINE).any()
        for fragment in array.fragments
        for _, part in iterate_references(fragment.manifest)
    ):
        raise CombineError(
            f"{url}: {name!r} has chunks that were rewritten or are held in the set, which does "
            f"not know whether they come from this source; write the set again without it"
        )


# ---------------------------------------------------------------------- comparison with the set


def open_set(
    old: ManifestGroup,
    new: xr.Dataset | None,
    dims: Sequence[str] = (),
    unreadable: Collection[str] = (),
) -> xr.Dataset:
    """Return the set as a dataset, after a check that both datasets have the dimensions.

    Nothing is read from the sources of ``new``, which may have changed, or from sources in
    ``unreadable``, which may no longer exist.
    """
    not_read = {*unreadable} if new is None else {*unreadable, *urls_of(new)}
    present = decode_group(
        old,
        "raise",
        lambda group: to_virtual_dataset(group, dates=_find_readable_dates(group, dims, not_read)),
    )
    datasets = [("the set", present)] + ([] if new is None else [("the new dataset", new)])
    for dim, (owner, dataset) in product(dims, datasets):
        if dim not in dataset.dims:
            raise ValueError(
                f"dimension {dim!r}: {owner} has {sorted(map(str, dataset.dims))}; name one of them"
            )
        size = dataset.sizes[dim]
        check_joinable(size, f"{owner}: dimension {dim!r} of {size:,} elements")
    return present


def _find_readable_dates(
    group: ManifestGroup, dims: Sequence[str], not_read: set[str]
) -> dict[str, ManifestArray]:
    """Return replacements of time variables whose first or last element must not be read.

    A replacement is a readable element, repeated to the shape of the variable. It is searched
    for along the last of ``dims``, or along the first dimension if there are none.
    """
    arrays = dict[str, ManifestArray]()
    time_variables = {
        n: v for n, v in group.variables.items() if are_date_units(v.attributes.get("units"))
    }
    for name in {*time_variables, *(v.attributes.get("bounds") for v in time_variables.values())}:
        variable = group.variables.get(str(name))
        dims_of_variable = () if variable is None else variable.dims
        shared_dims = [dim for dim in dims or dims_of_variable[:1] if dim in dims_of_variable]
        if variable is None or not shared_dims:
            continue
        array, axis = variable.data, variable.dims.index(shared_dims[-1])
        if not isinstance(array, ManifestArray) or not array.size:
            continue
        last = array.shape[axis] - 1
        tried = np.linspace(0, last, MAX_TRIED).round().astype(int).tolist()
        elements = [_take_element(array, axis, index) for index in (0, last)]
        if any(has_chunks_in(element, not_read) for element in elements):
            others = (_take_element(array, axis, index) for index in tried)
            readable = (element for element in others if not has_chunks_in(element, not_read))
            # without a readable element, the dtype follows from the reference date alone
            epoch = ManifestArray.full((1,) * array.ndim, 0, array.dtype)
            arrays[str(name)] = next(readable, epoch).broadcast_to(array.shape)
    return arrays


def _take_element(array: ManifestArray, axis: int, index: int) -> ManifestArray:
    """Return a slice of length 1 along all axes, at a position along one axis."""
    element: Any = array[(*(slice(None),) * axis, slice(index, index + 1))]
    return element  # type: ignore[no-any-return]


def _load_index_like(present: xr.Dataset, new: xr.Dataset, dim: str) -> xr.Dataset:
    """Return the new dataset with its coordinate loaded if that of the set is loaded."""
    if dim not in present.indexes or dim in new.indexes or dim not in new.variables:
        return new
    return new.assign_coords({dim: new.variables[dim].compute()})


def _select_comparable(present: xr.Dataset, new: xr.Dataset, options: AppendOptions) -> xr.Dataset:
    """Return the variables with the dimension, or raise an error if any variable does not fit."""
    dim = options.dim
    check_crs_of_set(find_crs_by_variable(present), new)
    if problems := list_problems(present, new, (dim,), options.extra_variable_remedy):
        message = (
            f"append along {dim!r}: the new dataset does not fit the set, and nothing has been "
            f"written; {options.misfit_remedy}"
        )
        raise CombineError(format_details(message, problems))
    return new.drop_vars([n for n, v in new.variables.items() if dim not in v.dims])


def list_problems(
    present: xr.Dataset, new: xr.Dataset, dims: Sequence[str], extra_variable_remedy: str
) -> list[str]:
    """Return messages about variables of new data that do not fit those of a set."""
    extra = sorted(str(name) for name in new.variables if name not in present.variables)
    lacking = sorted(
        str(name)
        for name, v in present.variables.items()
        if not set(dims).isdisjoint(v.dims) and name not in new.variables
    )
    problems = [f"{name}: the set has no such variable ({extra_variable_remedy})" for name in extra]
    problems += [f"{name}: the new dataset has no such variable" for name in lacking]
    for name, variable in new.variables.items():
        if name in present.variables:
            differences = _find_differences(str(name), present.variables[name], variable, dims)
            problems += [f"{name}: {reason}" for reason in differences]
    return problems


def list_mismatches(
    old: xr.Variable, new: xr.Variable, free: Collection[Hashable]
) -> Iterator[str]:
    """Yield differences from a variable of the set; lengths along ``free`` may differ."""
    if coded := sorted(name for name in PACKING_ATTRIBUTES if name in new.attrs.keys() - old.attrs):
        yield f"it is not decoded, since it has {', '.join(coded)}; open it with decode_cf=True"
    elif old.dims != new.dims:
        yield f"its dimensions are {old.dims} in the set and {new.dims} in the new dataset"
    else:
        for dim in old.dims:
            if dim not in free and old.sizes[dim] != new.sizes[dim]:
                yield (
                    f"it has {old.sizes[dim]} elements along {dim!r} in the set and "
                    f"{new.sizes[dim]} in the new dataset"
                )


def _find_differences(
    name: str, old: xr.Variable, new: xr.Variable, dims: Sequence[str]
) -> Iterator[str]:
    """Yield the reasons why a new variable does not fit that of the set."""
    if misfits := list(list_mismatches(old, new, dims)):
        short = [d for d in old.dims if d not in dims and old.sizes[d] != new.sizes.get(d)]
        remedy = f"; pad={short[0]!r} fills what the shorter one lacks" if short else ""
        yield from (f"{misfit}{remedy if old.dims == new.dims else ''}" for misfit in misfits)
        return
    if old.dtype != new.dtype and not any(
        {old.dtype.kind, new.dtype.kind} <= k for k in JOINABLE_KINDS
    ):
        yield f"its dtype is {old.dtype} in the set and {new.dtype} in the new dataset"
        return
    kinds = [_get_element_type(variable) for variable in (old, new)]
    if None not in kinds and kinds[0] != kinds[1]:
        yield f"its values are {kinds[0]} in the set and {kinds[1]} in the new dataset"
        return
    dims_text = " or ".join(map(repr, dims))
    if not set(dims).intersection(old.dims) and not _is_equal(name, old, new, dims_text):
        # without this check, the new data would get the values of the set
        remedy = (
            "write the dataset to a set of its own"
            if old.dims == (name,)
            else "to keep both, open all files together with coords='different' or "
            "data_vars='different', and write the set again"
        )
        yield f"it has no dimension {dims_text}, and other values than in the set; {remedy}"


def _get_element_type(variable: xr.Variable) -> str | None:
    """Return the name of the type of objects in a loaded variable, or None for other dtypes."""
    if variable.dtype.kind in "UT":
        return "str"
    if variable.dtype.kind != "O" or get_virtual_array(variable) is not None or not variable.size:
        return None
    first = variable.values.flat[0]
    # None and NaN are missing values for all types
    return None if first is None or isinstance(first, float) else type(first).__name__


def _is_equal(name: str, old: xr.Variable, new: xr.Variable, dims_text: str) -> bool:
    """Return whether variables without the dimension are equal; reads values if necessary."""
    try:
        return bool(old.equals(new))  # type: ignore[no-untyped-call]
    except VirtualdsError as error:
        error.add_note(
            f"variable {name!r} has no dimension {dims_text}, and was read to compare it with that "
            f"of the set; if you know that it is the same, leave it out (ds.drop_vars)"
        )
        raise


def load_like(
    present: xr.Dataset, new: xr.Dataset, root: str, *, only_own: bool = False
) -> xr.Dataset:
    """Return the set with the variables loaded that are loaded in the new dataset.

    A set stores either values or references of a variable. With ``only_own``, only small variables
    are loaded, if all their chunks are stored in the set.
    """
    loaded = dict[Hashable, xr.Variable]()
    for name, variable in new.variables.items():
        existing = present.variables.get(name)
        array = None if existing is None else get_virtual_array(existing)
        if existing is None or array is None or get_virtual_array(variable) is not None:
            continue
        is_own = all(is_stored_in_set(file.url, root) for file in array.sources)
        is_small = array.nbytes <= get_options().load_limit
        if only_own and not (is_own and is_small and count_references(array)):
            continue
        if not is_own:
            reason = "the set has it as references, and what is appended is not virtual"
            warn_of_copy(str(name), array.nbytes, reason)
        loaded[name] = existing.copy(data=np.asarray(array))
    return present.assign(loaded)


# ---------------------------------------------------------------------- concatenation


def _replace_ranges(
    present: xr.Dataset, new: xr.Dataset, replacements: Replacements, dim: str, root: str
) -> xr.Dataset:
    """Return the set with ranges replaced by pieces of new data.

    Variables without the dimension are those of the set.
    """
    loaded = dict[Hashable, xr.Variable]()
    for name, variable in new.variables.items():
        if get_virtual_array(variable) is None:
            # values in memory are stored in the set
            check_loading(str(name), variable)
            loaded[name] = variable.compute()
    new = replace_variables(new, loaded)
    present = load_like(present, new, root)
    pieces = replace_ranges(present.sizes[dim], replacements)
    static = present.drop_vars([n for n, v in present.variables.items() if dim in v.dims])
    dataset_by_kind = {False: present, True: new}
    kinds = [kind for kind in dataset_by_kind if any(piece.is_new == kind for piece in pieces)]
    joined = xr.concat(
        [
            dataset_by_kind[kind].drop_vars(list(static.variables), errors="ignore")
            for kind in kinds
        ],
        dim,
        data_vars="minimal",
        coords="minimal",
        compat="override",
        join="exact",
        combine_attrs="override",
    )
    offsets = {True: present.sizes[dim] if len(kinds) == 2 else 0, False: 0}
    ranges = [(offsets[p.is_new] + p.begin, offsets[p.is_new] + p.stop) for p in pieces]
    joined = _order_along(joined, dim, ranges)
    complete = joined.assign_coords(static.coords).assign(static.data_vars)
    ordered = xr.Dataset({name: complete[name] for name in present.data_vars}, complete.coords)
    for name, variable in present.variables.items():
        # xarray takes attributes and encoding from the first piece, which may not be of the set
        ordered[name].attrs = dict(variable.attrs)
        ordered[name].encoding = dict(variable.encoding)
        if ordered[name].dtype.kind in "biufc" and ordered[name].dtype != variable.dtype:
            # the stored dtype cannot represent promoted numbers
            ordered[name].encoding.pop("dtype", None)
    return ordered


def _order_along(dataset: xr.Dataset, dim: str, ranges: Sequence[Range]) -> xr.Dataset:
    """Return ranges of a dataset along a dimension, concatenated in the given order."""
    size = dataset.sizes[dim]
    edges = np.unique([0, size, *chain.from_iterable(ranges)])
    order = np.searchsorted(edges, [begin for begin, _ in ranges])
    lengths = np.diff(edges)
    if np.array_equal(order, np.arange(len(lengths))):
        return dataset
    items = ((n, v, get_virtual_array(v)) for n, v in dataset.variables.items())
    arrays = {n: (v, array) for n, v, array in items if array is not None}
    ids = np.concatenate([np.arange(*stretch) for stretch in ranges])
    ordered = dataset.drop_vars(list(arrays)).isel({dim: ids}, missing_dims="ignore")
    virtual = {}
    for name, (variable, array) in arrays.items():
        data: Any = reorder(array, variable.dims.index(dim), lengths, order)
        virtual[name] = xr.Variable(variable.dims, data, variable.attrs, variable.encoding)
    coords = [name for name in virtual if name in dataset.coords]
    return ordered.assign(virtual).set_coords(coords)


def to_stored(
    old: ManifestGroup, dataset: xr.Dataset, changed: Collection[Hashable] | None = None
) -> ManifestGroup:
    """Return a changed dataset as a group; unchanged variables keep their stored form.

    Raises `CombineError` if the encoding of the set cannot represent the values.
    """
    encoded = group_from_dataset(dataset)
    checked = old.variables if changed is None else map(str, changed)
    variables = encoded.variables
    for name in checked:
        _check_coding(name, old.variables[name], variables[name])
    if changed is not None:
        selected = {str(name): variables[str(name)] for name in changed}
        return replace(old, variables={**old.variables, **selected})
    attributes = join_coordinates(old.attributes, encoded.attributes)
    return replace(old, variables=variables, attributes=attributes)


def _check_coding(name: Hashable, old: ManifestVariable, new: ManifestVariable) -> None:
    """Raise an error if loaded values need another encoding than the set has."""
    if isinstance(new.data, ManifestArray) or new.data.dtype.kind in TEXT_KINDS:
        return
    before, after = dict(old.attributes), dict(new.attributes)
    differing = [key for key in CODING_ATTRIBUTES if str(before.get(key)) != str(after.get(key))]
    dtypes = [data.dtype.newbyteorder("=") for data in (old.data, new.data)]
    # concatenation may promote numbers, but times must keep the dtype of the set
    if dtypes[0] != dtypes[1] and (before.get("units") or dtypes[1] != np.result_type(*dtypes)):
        before["dtype"], after["dtype"] = old.data.dtype, new.data.dtype
        differing.append("dtype")
    # only units of times may differ, and bounds decode by the units of their times
    units = [str(attributes.get("units")) for attributes in (before, after)]
    may_differ = "bounds" not in before and {*differing} <= {"units", "dtype"}
    if differing and not (may_differ and all(map(are_date_units, units))):
        key = differing[0]
        raise CombineError(
            f"the set cannot store the new values of {name!r} exactly (it has {key} "
            f"{before.get(key)!r}, and they would need {after.get(key)!r}); write the set again, "
            f"with all its files (mode='w')"
        )


def join_coordinates(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, object]:
    """Return the attributes of a group, with ``coordinates`` merged from two groups.

    xarray stores the names of coordinates that belong to no variable in this attribute.
    """
    names = [str(attributes.get("coordinates", "")).split() for attributes in (old, new)]
    joined = " ".join(dict.fromkeys([*names[0], *names[1]]))
    return {**old, "coordinates": joined} if names[1] else dict(old)
