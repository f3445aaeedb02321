"""Put files into the cells of a grid of files, clear cells, and drop empty positions.

The coordinates of a file along several dimensions determine its cell in the grid. A cell without a
file is missing. Nothing is written here: the writer of the format compares the result with the set.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from virtualds.arrays.array import ManifestArray, get_default_fill, has_missing_value
from virtualds.arrays.concatenate import (
    NO_CHUNK,
    OTHER_FILE,
    clear_boxes,
    count_references,
    cover_with_boxes,
    crop_box,
    find_boxes,
    map_files,
    write_region,
)
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.axes import find_runs
from virtualds.datasets.conversion import check_loading
from virtualds.datasets.lazy import (
    expand_variable,
    get_virtual_array,
    replace_variables,
    restore_references,
)
from virtualds.datasets.padding import NO_PADDING, Padding
from virtualds.datasets.source_positions import (
    OTHER_VALUES,
    CellPlaces,
    find_positions,
    find_ranges,
    find_used_at,
    find_values,
    has_chunks_in,
    is_stored_in_set,
    list_boxes,
    put_boxes,
    put_values,
    urls_of,
)
from virtualds.datasets.structure import check_crs_of_set, find_crs_by_variable
from virtualds.errors import CombineError, format_details, format_names
from virtualds.writing.append import (
    AppendOptions,
    append_along,
    drop_positions,
    list_problems,
    load_like,
    make_missing,
    open_set,
    pad_to_set,
    to_stored,
)

Mask = npt.NDArray[np.bool_]


class LostCells(NamedTuple):
    """A file that loses cells to other files, and the coordinate values of these cells."""

    url: str
    values: Mapping[str, pd.Index[Any]]


class ChosenCells(NamedTuple):
    """Masks of cells that new files get and of cells without chunks, and files that lose cells.

    The masks have the shape of the new data along the dimensions of the grid.
    """

    taken: Mask
    free: Mask
    lost: Sequence[LostCells]


@dataclass(frozen=True)
class CellGrid:
    """The grid of the files of a set: its dimensions, outermost first, and the url of the set.

    With ``sorts``, new coordinate values are inserted in order if those of the set are monotonic.
    ``unreadable`` are files that have changed or do not exist, from which nothing is read.
    ``misfit_remedy``, ``extra_variable_remedy`` and ``padding`` are as in `AppendOptions`.
    ``prefers`` says whether a cell that several files have is taken from the "first" or the "last"
    of them, by url; if empty, such a cell is an error. Files in ``last_choice`` lose their cells to
    all others.
    """

    dims: tuple[str, ...]
    root: str
    sorts: bool
    unreadable: frozenset[str] = frozenset()
    misfit_remedy: str = AppendOptions.misfit_remedy
    extra_variable_remedy: str = AppendOptions.extra_variable_remedy
    padding: Padding = NO_PADDING
    prefers: Literal["", "first", "last"] = ""
    last_choice: frozenset[str] = frozenset()

    # ------------------------------------------------------------------ writing cells

    def put(
        self,
        old: ManifestGroup,
        new: xr.Dataset,
        replaced: Collection[str] = (),
        lost_cells: list[LostCells] | None = None,
    ) -> ManifestGroup:
        """Return a group with the files of a dataset in their cells; the grid grows as needed.

        Only cells of the dataset are changed. Cells of files in ``replaced`` are overwritten. With
        ``prefers``, each cell is taken from the preferred file, and cells that files lose are added
        to ``lost_cells``. Raises `CombineError` for data that do not fit the set, for a dimension
        without a coordinate, and without ``prefers`` for a cell that the set has from another file.
        """
        new = restore_references(new)
        present = self._open(old, new)
        check_crs_of_set(find_crs_by_variable(present), new)
        group, new = self._expand_coordinates(old, present, new)
        present = present if group is old else self._open(group, new)
        padded, new = pad_to_set(present, new, self.padding, self.dims)
        if padded is not present:
            group = to_stored(group, padded)
            present = self._open(group, new)
        self._check_fit(present, new)
        for dim in self.dims:
            grown = self._grow(group, present, new, dim)
            if grown is not group:
                group, present = grown, self._open(grown, new)
        chosen = self._choose_cells(present, new, replaced) if self.prefers else None
        if chosen is not None and lost_cells is not None:
            lost_cells += chosen.lost
        return self._fill(group, present, new, replaced, chosen)

    def _expand_coordinates(
        self, group: ManifestGroup, present: xr.Dataset, new: xr.Dataset
    ) -> tuple[ManifestGroup, xr.Dataset]:
        """Return the group and the new data with coordinates expanded to equal dimensions.

        For example, ``valid_time`` of a single run has only the dimension of steps. A coordinate
        gets the dimensions of the other side, and those along which its values differ.
        """
        expanded_existing = dict[Hashable, xr.Variable]()
        expanded_new = dict[Hashable, xr.Variable]()
        names = new.coords.keys() & present.coords.keys()
        for name in names - new.indexes.keys() - present.indexes.keys():
            variable, existing = new.variables[name], present.variables[name]
            if get_virtual_array(variable) is not None or get_virtual_array(existing) is not None:
                continue
            all_dims = {*variable.dims, *existing.dims}
            others = {*self.dims} - all_dims
            if (
                others
                and all_dims == {*existing.dims}
                and self._has_other_values(present, new, name)
            ):
                all_dims |= {
                    dim for dim in others if not new.indexes[dim].isin(present.indexes[dim]).all()
                }
            if all_dims - {*variable.dims} <= {*self.dims}:
                first = [dim for dim in self.dims if dim in all_dims - {*existing.dims}]
                dims = [*dict.fromkeys([*first, *existing.dims])]
                for target, dataset in ((expanded_existing, present), (expanded_new, new)):
                    if list(dataset.variables[name].dims) != dims:
                        target[name] = expand_variable(dataset, name, dims)
        new = replace_variables(new, expanded_new) if expanded_new else new
        if expanded_existing:
            expanded = replace_variables(present, expanded_existing)
            group = to_stored(group, expanded, expanded_existing)
        return group, new

    def _has_other_values(self, present: xr.Dataset, new: xr.Dataset, name: Hashable) -> bool:
        """Return whether a coordinate differs between the set and new data in common cells."""
        existing, added = xr.align(present.coords[name], new.coords[name], join="inner")
        is_different = (existing != added) & existing.notnull() & added.notnull()
        return bool(is_different.any())

    def put_shared(
        self, old: ManifestGroup, new: xr.Dataset, names: Collection[str]
    ) -> ManifestGroup:
        """Return a group with new shared variables, which lack a dimension of the grid."""
        new = restore_references(new)[[*names]]
        present = self._open(old)
        _, new = pad_to_set(present, new, self.padding, self.dims)
        new = new.isel({dim: new.indexes[dim].isin(present.indexes[dim]) for dim in new.indexes})
        return self._fill(old, present, new, urls_of(present))

    def _fill(
        self,
        group: ManifestGroup,
        present: xr.Dataset,
        new: xr.Dataset,
        replaced: Collection[str],
        chosen: ChosenCells | None = None,
    ) -> ManifestGroup:
        """Return a group with data of files at their coordinates, which the group has already."""
        present = load_like(present, new, self.root, only_own=True)
        positions_by_dim = {
            dim: present.indexes[dim].get_indexer(new.indexes[dim])
            for dim in self.dims
            if dim in new.indexes
        }
        # shared variables are not compared with those of unreadable files
        replaceable = {*replaced, *self.unreadable}
        changed: dict[Hashable, xr.Variable] = {}
        for name, variable in new.variables.items():
            grid_dims = set(self.dims).intersection(map(str, variable.dims))
            if name in self.dims or not grid_dims:
                continue
            existing, is_shared = present.variables[name], len(grid_dims) < len(self.dims)
            if get_virtual_array(variable) is None:
                check_loading(str(name), variable)
                if get_virtual_array(existing) is not None:
                    raise CombineError(
                        f"{name}: its values are in memory, and the set refers to files for it; "
                        f"leave it virtual (loadable_variables=, and no change by preprocess=), or "
                        f"write the set again (delete it, and run again)"
                    )
            if not set(self.padding.dims).isdisjoint(variable.dims):
                # clear the previous chunks of a file, which may be shorter now
                existing = _clear_sources(existing, replaced, variable)
            data: Any
            try:
                if is_shared and get_virtual_array(existing) is not None:
                    data = _put_shared_variable(existing, variable, positions_by_dim, replaceable)
                elif chosen is not None and not is_shared:
                    data = _put_chosen_cells(existing, variable, positions_by_dim, chosen)
                else:
                    data = _put_cells(existing, variable, positions_by_dim, replaced)
            except CombineError as error:
                raise CombineError(f"{name}: {error}") from error
            if data is not None:
                changed[name] = existing.copy(data=data)
        if not changed:
            return group
        return to_stored(group, replace_variables(present, changed), changed)

    def _choose_cells(
        self, present: xr.Dataset, new: xr.Dataset, replaced: Collection[str]
    ) -> ChosenCells | None:
        """Return the cells that new files get, or None if all data are in memory.

        A file with any chunk of a cell gets the whole cell, so that its missing chunks are not
        taken from another file. A file without chunks in a cell loses it to all others. Cells of
        files in ``replaced`` are always overwritten.
        """
        positions = [present.indexes[dim].get_indexer(new.indexes[dim]) for dim in self.dims]
        box = {d: slice(a.min(), a.max() + 1) for d, a in zip(self.dims, positions, strict=True)}
        cells_in_box = np.ix_(*(a - a.min() for a in positions))
        existing, added = self._select_cells(present).isel(box), self._select_cells(new)
        copies = {url for url in urls_of(existing) if is_stored_in_set(url, self.root)}
        urls = sorted(urls_of(existing) - copies | urls_of(added))
        urls = urls if self.prefers == "last" else urls[::-1]
        urls = sorted(urls, key=lambda url: url not in self.last_choice)
        owners = self._find_owners(existing, urls)[cells_in_box]
        new_owners = self._find_owners(added, urls)
        is_replaced = np.isin(
            owners, [number for number, url in enumerate(urls) if url in replaced]
        )
        is_free = is_replaced | (owners == NO_CHUNK)
        taken = (
            (new_owners >= 0) & (new_owners >= owners)
            | is_replaced
            | is_free & (new_owners == OTHER_FILE)
        )
        has_unknown_owner = np.zeros([existing.sizes[dim] for dim in self.dims], bool)
        has_unknown_owner[cells_in_box] = taken & (owners == OTHER_FILE)
        if count := self._count_valid_values(existing, has_unknown_owner):
            raise CombineError(
                f"the set holds values of {count} cells itself that new files have, too, and does "
                f"not note from which file they are, so that overlap={self.prefers!r} cannot "
                f"choose; write the set again without inline_threshold=, and with fewer "
                f"loadable_variables="
            )
        losers = np.where(
            (owners == new_owners) | is_replaced, NO_CHUNK, np.where(taken, owners, new_owners)
        )
        numbers = np.unique(losers[losers >= 0]).tolist()
        lost_cells = [LostCells(urls[n], self._find_values(new, losers == n)) for n in numbers]
        is_virtual = any(get_virtual_array(v) is not None for v in added.variables.values())
        free = is_free & (new_owners == NO_CHUNK)
        return ChosenCells(taken, free, lost_cells) if is_virtual else None

    def _find_owners(self, cells: xr.Dataset, urls: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return, for each cell, the largest index of a file with a chunk of any variable there."""
        numbers = {url: number for number, url in enumerate(urls)}
        owners: npt.NDArray[np.int64] = np.full([cells.sizes[dim] for dim in self.dims], NO_CHUNK)
        for variable in cells.variables.values():
            if (array := get_virtual_array(variable)) is not None:
                axes = [variable.dims.index(dim) for dim in self.dims]
                owners = np.maximum(owners, map_files(array, axes, numbers))
        return owners

    def _count_valid_values(self, cells: xr.Dataset, mask: Mask) -> int:
        """Return the number of cells in a mask with valid values in memory or in the set."""
        count = 0
        for box in cover_with_boxes(np.argwhere(mask)):
            selection = {dim: slice(*ends) for dim, ends in zip(self.dims, box, strict=True)}
            has_value = np.zeros([stop - begin for begin, stop in box], bool)
            for variable in cells.isel(selection).variables.values():
                present = variable.notnull()
                others = [dim for dim in variable.dims if dim not in self.dims]
                has_value |= present.any(others).transpose(*self.dims).values
            count += int(has_value.sum())
        return count

    def _find_values(self, new: xr.Dataset, mask: Mask) -> dict[str, pd.Index[Any]]:
        """Return the coordinate values of the cells of a mask, along each dimension."""
        axes = range(len(self.dims))
        return {
            dim: new.indexes[dim][mask.any(axis=tuple(n for n in axes if n != axis))]
            for axis, dim in enumerate(self.dims)
        }

    def _open(self, group: ManifestGroup, new: xr.Dataset | None = None) -> xr.Dataset:
        """Return the set as a dataset; raise an error for dimensions without unique coordinates."""
        present = open_set(group, new, self.dims, self.unreadable)
        for owner, dataset in (("the set", present), ("the new files", new)):
            if dataset is None:
                continue
            for dim in self.dims:
                if dim not in dataset.indexes or not dataset.indexes[dim].is_unique:
                    problem = "repeats values" if dim in dataset.indexes else "is not there"
                    raise CombineError(
                        f"dimension {dim!r}: its coordinate {problem} in {owner}, so that it is "
                        f"unclear which cell of the grid a file has; give the files a coordinate "
                        f"(coordinates=, or {{{dim}}} in the pattern)"
                    )
        return present

    def _check_fit(self, present: xr.Dataset, new: xr.Dataset) -> None:
        """Raise an error if new variables do not fit those of the set."""
        problems = list_problems(present, new, self.dims, self.extra_variable_remedy)
        for name, variable in new.variables.items() if not problems else ():
            types = present.variables[name].dtype, variable.dtype
            is_virtual = get_virtual_array(present.variables[name]) is not None
            if is_virtual and np.result_type(*types) != types[0]:
                # chunks of other cells keep their dtype
                problems.append(
                    f"{name}: its dtype is {types[0]} in the set and {types[1]} in the new files; "
                    f"write the set again (delete it, and run again), which promotes it"
                )
        if problems:
            description = (
                f"the new files do not fit the grid of the set, and nothing has been written; "
                f"{self.misfit_remedy}"
            )
            raise CombineError(format_details(description, problems))

    def _grow(
        self, group: ManifestGroup, present: xr.Dataset, new: xr.Dataset, dim: str
    ) -> ManifestGroup:
        """Return a group with new coordinate values along a dimension, without data."""
        index = present.indexes[dim]
        absent = np.flatnonzero(~new.indexes[dim].isin(index))
        if not absent.size:
            return group
        part = new.isel({dim: absent})
        others = set(self.dims) - {dim}
        is_whole = all(new.indexes[d].equals(present.indexes[d]) for d in others)
        variables = {
            name: self._make_slab(name, variable, part, dim, is_whole=is_whole)
            for name, variable in present.variables.items()
            if dim in variable.dims
        }
        coords = [name for name in variables if name in present.coords]
        slab = xr.Dataset(variables).set_coords(coords)
        is_ordered = index.is_monotonic_increasing or index.is_monotonic_decreasing
        position = "coordinate" if self.sorts and is_ordered else "end"
        return append_along(group, slab, AppendOptions(dim, position, root=self.root))

    def _make_slab(
        self, name: Hashable, variable: xr.Variable, part: xr.Dataset, dim: str, *, is_whole: bool
    ) -> xr.Variable:
        """Return a variable at new positions, with missing values where the grid needs them."""
        new = part.variables[name]
        grid_dims = set(self.dims).intersection(variable.dims)
        array = get_virtual_array(new)
        # variables in memory, such as coordinates, are the same along all other dimensions
        if (array is None and grid_dims == {dim}) or (
            is_whole and not has_missing_value(new.dtype)
        ):
            return new
        if not has_missing_value(variable.dtype):
            raise CombineError(
                f"{name}: cells of the grid would be empty, and no value of {name!r} "
                f"({variable.dtype}) means that it is missing; leave it out (drop_variables=), or "
                f"leave new files out until they are complete along {sorted(grid_dims - {dim})}"
            )
        return make_missing(name, variable, dim, part.sizes[dim])

    # ------------------------------------------------------------------ clearing

    def list_moved(
        self, old: ManifestGroup, new: xr.Dataset, changed: Collection[str]
    ) -> list[str]:
        """Return the changed files whose coordinate values differ from those in the set."""
        present, moved = self._open(old), set[str]()
        for dim in self.dims:
            before, now = (find_values(dataset, dim, changed) for dataset in (present, new))
            moved |= {url for url in changed if not before[url].equals(now[url])}
        return sorted(moved)

    def clear(
        self, old: ManifestGroup, urls: Collection[str], shared: Collection[str]
    ) -> ManifestGroup:
        """Return a group in which the cells of some files are missing.

        Variables without all dimensions of the grid, which files share, are cleared for files in
        ``shared``. Raises `CombineError` for a variable without a missing value.
        """
        present = self._open(old)
        changed: dict[Hashable, xr.Variable] = {}
        for name in present.data_vars:
            variable = present.variables[name]
            array = get_virtual_array(variable)
            grid_dims = set(self.dims).intersection(variable.dims)
            if array is None or not grid_dims:
                continue
            is_whole = len(grid_dims) == len(self.dims)
            files = sorted(urls if is_whole else shared)
            boxes = [box for url in files for box in find_boxes(array, url)]
            if boxes and not has_missing_value(array.dtype):
                raise CombineError(
                    f"{files[0]}: no value of {name!r} ({array.dtype}) means that it is missing, "
                    f"so that its cell cannot be left empty; write the set again without this file"
                )
            if boxes:
                changed[name] = variable.copy(data=clear_boxes(array, boxes))  # type: ignore[arg-type]
        return to_stored(old, replace_variables(present, changed), changed) if changed else old

    def clear_values(self, old: ManifestGroup, urls: Collection[str]) -> ManifestGroup:
        """Return a group in which values stored in the set are missing in the cells of some files.

        The cells of the files are those of the other variables. Raises `CombineError` for a
        variable without a missing value.
        """
        present = self._open(old)
        arrays = {n: get_virtual_array(v) for n, v in self._select_cells(present).variables.items()}
        names = [
            name
            for name, array in arrays.items()
            if array is None
            or (
                count_references(array)
                and all(is_stored_in_set(file.url, self.root) for file in array.sources)
            )
        ]
        boxes = {
            tuple((dim, box[present.variables[name].dims.index(dim)]) for dim in self.dims): url
            for name, array in arrays.items()
            if array is not None and name not in names
            for url in sorted(urls)
            for box in find_boxes(array, url)
        }
        changed: dict[Hashable, xr.Variable] = {}
        for name in names if boxes else ():
            variable = present.variables[name].copy(data=np.array(present.variables[name].values))
            if not has_missing_value(variable.dtype):
                raise CombineError(
                    f"{min(boxes.values())}: the set holds the values of {name!r} "
                    f"({variable.dtype}), none of which means that it is missing, so that they "
                    f"cannot be replaced; write the set again (delete it, and run again), or leave "
                    f"the variable out (drop_variables=)"
                )
            fill = get_default_fill(variable.dtype)
            for box in boxes:
                variable[{dim: slice(*ends) for dim, ends in box}] = fill
            changed[name] = variable
        return to_stored(old, replace_variables(present, changed), changed) if changed else old

    def find_uncertain_files(
        self, group: ManifestGroup, touched: Mapping[str, pd.Index[Any]]
    ) -> tuple[str, ...]:
        """Return the files that may cover positions without chunks.

        If positions with values in ``touched`` are empty, these are the files at the other touched
        positions or at adjacent positions, which may have only missing values there.
        """
        uncertain, present = set[str](), self._open(group)
        cells = self._select_cells(present)
        for dim, values in touched.items():
            is_touched = np.asarray(present.indexes[dim].isin(values))
            is_empty = _find_empty(cells, dim)
            if (is_touched & is_empty).any():
                emptied = np.pad(is_touched & is_empty, 1)
                is_near = (is_touched | emptied[:-2] | emptied[2:]) & ~is_empty
                uncertain |= find_used_at(cells, dim, is_near)
        return tuple(sorted(uncertain - self.unreadable))

    def _select_cells(self, present: xr.Dataset) -> xr.Dataset:
        """Return a dataset of the variables with all dimensions of the grid."""
        dims = set(self.dims)
        return present.drop_vars([n for n, v in present.variables.items() if not dims <= {*v.dims}])

    def drop_empty(self, old: ManifestGroup, touched: Mapping[str, pd.Index[Any]]) -> ManifestGroup:
        """Return a group without positions that have no files.

        ``touched`` are the coordinate values of cleared cells, along each dimension; only these are
        dropped. Raises `CombineError` if no position would be left.
        """
        group = old
        for dim, values in touched.items():
            present = self._open(group)
            is_empty = _find_empty(self._select_cells(present), dim) & np.asarray(
                present.indexes[dim].isin(values)
            )
            if is_empty.all():
                raise CombineError(
                    f"{self.root}: nothing would be left of the set along {dim!r}; remove the set "
                    f"instead"
                )
            if is_empty.any():
                remaining = drop_positions(present, dim, is_empty, self.root)
                group = to_stored(group, remaining)
        return group

    def find_cell_values(self, group: ManifestGroup, urls: set[str]) -> dict[str, pd.Index[Any]]:
        """Return the coordinate values of the cells of some files, along each dimension."""
        if not urls:
            return {}
        present = self._open(group)
        return {dim: present.indexes[dim][find_positions(present, dim, urls)] for dim in self.dims}

    # ------------------------------------------------------------------ shared variables

    def find_unreadable_shared(self, group: ManifestGroup) -> tuple[list[str], list[str]]:
        """Return shared variables in unreadable files, and readable files that have them.

        For example, all members of an ensemble share the bounds of times, which the set refers to
        in one of them.
        """
        if not self.unreadable:
            return [], []
        present, unreadable = self._open(group), set(self.unreadable)
        readable = {
            url for url in urls_of(present) - unreadable if not is_stored_in_set(url, self.root)
        }
        names, files = list[str](), dict[str, None]()
        for name, variable in present.variables.items():
            array = get_virtual_array(variable)
            grid_dims = [dim for dim in self.dims if dim in variable.dims]
            if array is None or not 0 < len(grid_dims) < len(self.dims):
                continue
            if not has_chunks_in(array, unreadable):
                continue
            names.append(str(name))
            single_variable = present[[name]].drop_vars(
                set(present.coords) - {name}, errors="ignore"
            )
            for dim in grid_dims:
                is_lost = find_positions(single_variable, dim, unreadable)
                for url, runs in sorted(find_ranges(present, dim, readable).items()):
                    for run in runs:
                        if is_lost[slice(*run)].any():
                            files[url] = None
                            is_lost[slice(*run)] = False
        return names, list(files)


def _find_empty(cells: xr.Dataset, dim: str) -> npt.NDArray[np.bool_]:
    """Return a mask of positions along a dimension at which no file has a chunk."""
    return ~find_positions(cells, dim, urls_of(cells))


# ---------------------------------------------------------------------- arrays


def _put_cells(
    existing: xr.Variable, new: xr.Variable, positions_by_dim: CellPlaces, replaced: Collection[str]
) -> ManifestArray | npt.NDArray[Any] | None:
    """Return the data of a variable with new files in their cells, or None if unchanged."""
    array, added = get_virtual_array(existing), get_virtual_array(new)
    positions = [positions_by_dim.get(str(dim), np.arange(n)) for dim, n in new.sizes.items()]
    if array is None or added is None:
        return put_values(existing, new, positions)
    original = array
    for start, box in list_boxes(added, positions):
        part = crop_box(added, box)
        existing_part = crop_box(
            array, tuple((a, a + stop - begin) for a, (begin, stop) in zip(start, box, strict=True))
        )
        urls = (
            {file.url for file in existing_part.sources}
            if count_references(existing_part)
            else set()
        )
        if existing_part.has_same_references(part):
            continue
        files = sorted({file.url for file in part.sources})
        if others := sorted(urls.difference(replaced, files)):
            raise CombineError(
                f"{format_names(files, 1)}: the set has this cell of the grid from {others[0]}; "
                f"leave one of the files out of the pattern, or choose by overlap='first' or "
                f"'last', or by newest=, if their paths do not differ otherwise"
            )
        array = write_region(array, start, part, overwrite=True)
    return None if array is original else array


def _put_chosen_cells(
    existing: xr.Variable, new: xr.Variable, positions_by_dim: CellPlaces, chosen: ChosenCells
) -> ManifestArray | npt.NDArray[Any] | None:
    """Return the data of a variable with the chosen cells of new files, or None if unchanged.

    Cells are replaced as a whole, including missing chunks. In cells without chunks, values in
    memory are written where the variable has missing values.
    """
    taken = chosen.taken
    free = chosen.free
    orders = {d: np.argsort(a) for d, a in positions_by_dim.items()}
    if any((np.diff(order) != 1).any() for order in orders.values()):
        new = new.isel(orders)
        taken, free = (mask[np.ix_(*orders.values())] for mask in (taken, free))
    array = original = get_virtual_array(existing)
    values = np.array(existing.values) if array is None else None
    all_cells = tuple((0, n) for n in taken.shape)
    for box in [all_cells] if taken.all() else cover_with_boxes(np.argwhere(taken)):
        runs_by_dim = (
            _list_runs(np.sort(at), *side)
            for side, at in zip(box, positions_by_dim.values(), strict=True)
        )
        for runs in product(*runs_by_dim):
            at = dict(zip(positions_by_dim, runs, strict=True))
            part = new.isel({dim: slice(begin, stop) for dim, (_, begin, stop) in at.items()})
            starts = [at[dim][0] if dim in at else 0 for dim in map(str, new.dims)]
            ends = [start + n for start, n in zip(starts, part.shape, strict=True)]
            added = get_virtual_array(part)
            if values is not None:
                values[tuple(map(slice, starts, ends))] = part.values
            elif array is not None and added is not None:
                existing_part = crop_box(array, tuple(zip(starts, ends, strict=True)))
                if not existing_part.has_same_references(added):
                    array = write_region(array, starts, added, overwrite=True, allow_cuts=True)
    if values is not None:
        region = np.ix_(
            *(np.sort(positions_by_dim.get(str(d), np.arange(n))) for d, n in new.sizes.items())
        )
        is_missing = xr.Variable(new.dims, values[region]).isnull()
        is_free = xr.Variable([*positions_by_dim], free).set_dims(new.sizes)  # type: ignore[no-untyped-call]
        is_added = is_free.transpose(*new.dims) & is_missing
        values[region] = np.where(is_added.values, new.values, values[region])
        is_same = xr.Variable(existing.dims, values).equals(existing)  # type: ignore[no-untyped-call]
        return None if is_same else values
    return None if array is original else array


def _list_runs(
    positions: npt.NDArray[np.intp], begin: int, stop: int
) -> list[tuple[int, int, int]]:
    """Return runs of adjacent positions: the first position, and the range of indices.

    >>> _list_runs(np.array([4, 5, 9]), 1, 3)
    [(5, 1, 2), (9, 2, 3)]
    """
    runs = find_runs(positions[begin:stop])
    ends = [*accumulate((b - a for a, b in runs), initial=begin)]
    return [(start, ends[n], ends[n + 1]) for n, (start, _) in enumerate(runs)]


def _clear_sources(existing: xr.Variable, urls: Collection[str], new: xr.Variable) -> xr.Variable:
    """Return a variable without the chunks of files that ``new`` replaces.

    The missing chunks read as the fill value of the new data.
    """
    array, added = get_virtual_array(existing), get_virtual_array(new)
    if array is None or added is None or not added.has_gaps:
        return existing
    boxes = [box for url in sorted(urls) for box in find_boxes(array, url)]
    return existing.copy(data=clear_boxes(array, boxes, added.fill_value)) if boxes else existing  # type: ignore[arg-type]


def _put_shared_variable(
    existing: xr.Variable, new: xr.Variable, positions_by_dim: CellPlaces, replaced: Collection[str]
) -> ManifestArray | npt.NDArray[Any] | None:
    """Return the data of a shared variable with new files at free positions, or None if unchanged.

    At all other positions, new files must have the same values.
    """
    [dim, *others] = [dim for dim in positions_by_dim if dim in existing.dims]
    array = get_virtual_array(existing)
    if others:
        return put_boxes(existing, new, positions_by_dim, replaced)
    if array is None or not positions_by_dim[dim].size:
        return _put_cells(existing, new, positions_by_dim, replaced)
    kept_urls = {file.url for file in array.sources} - set(replaced)
    is_kept = find_positions(xr.Dataset({"_": existing}), dim, kept_urls)[positions_by_dim[dim]]
    kept_cells = existing.isel({dim: positions_by_dim[dim][is_kept]})
    if is_kept.any() and not kept_cells.equals(new.isel({dim: is_kept})):  # type: ignore[no-untyped-call]
        raise CombineError(OTHER_VALUES)
    result: ManifestArray | npt.NDArray[Any] | None = None
    for run in find_runs(np.flatnonzero(~is_kept)):
        part = {dim: positions_by_dim[dim][slice(*run)]}
        # kept chunks are at other positions, so all files may be replaced here
        result = _put_cells(existing, new.isel({dim: slice(*run)}), part, kept_urls | set(replaced))
        existing = existing if result is None else existing.copy(data=result)  # type: ignore[arg-type]
    return result
