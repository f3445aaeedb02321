"""Writing files into the cells of a grid of files, clearing cells, and dropping empty positions.

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

from virtualds.arrays.array import ManifestArray, default_fill, has_missing_value
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
from virtualds.datasets.from_dataset import as_read, check_loading
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
    load_as_in,
    make_missing,
    open_set,
    pad_to_set,
    to_stored,
)

Mask = npt.NDArray[np.bool_]


class LostCells(NamedTuple):
    """A file that has lost cells to other files, and the coordinate values of these cells."""

    url: str
    values: Mapping[str, pd.Index[Any]]


class ChosenCells(NamedTuple):
    """Masks of the cells that new files get, and of cells without chunks; files that lose cells.

    The masks have the shape of the new data along the dimensions of the grid.
    """

    taken: Mask
    free: Mask
    lost: Sequence[LostCells]


@dataclass(frozen=True)
class CellGrid:
    """The grid of the files of a set: its dimensions, outermost first, and the url of the set.

    With ``sorts``, new coordinate values are inserted in order if those of the set are monotonic.
    ``unsound`` are files that have changed or are gone, from which nothing is read. ``if_misfit``,
    ``if_extra`` and ``padding`` are as in `AppendOptions`. ``prefers`` is whether a cell that
    several files have is taken from the "first" or the "last" of them, by url; if empty, that is an
    error. Files in ``yielding`` lose their cells to all others.
    """

    dims: tuple[str, ...]
    root: str
    sorts: bool
    unsound: frozenset[str] = frozenset()
    if_misfit: str = AppendOptions.if_misfit
    if_extra: str = AppendOptions.if_extra
    padding: Padding = NO_PADDING
    prefers: Literal["", "first", "last"] = ""
    yielding: frozenset[str] = frozenset()

    # ------------------------------------------------------------------ writing cells

    def put(
        self,
        old: ManifestGroup,
        new: xr.Dataset,
        replaced: Collection[str] = (),
        lost: list[LostCells] | None = None,
    ) -> ManifestGroup:
        """Write the files of a dataset into their cells; the grid grows as needed.

        Only cells of the dataset are changed. Cells of files in ``replaced`` are overwritten. With
        ``prefers``, each cell is taken from the preferred file, and cells that files lose are added
        to ``lost``. Raises `CombineError` for data that do not fit the set, for a dimension without
        a coordinate, and otherwise for a cell that the set has from another file.
        """
        new = restore_references(new)
        present = self._open(old, new)
        check_crs_of_set(find_crs_by_variable(present), new)
        group, new = self._expand_coordinates(old, present, new)
        present = present if group is old else self._open(group, new)
        padded, new = pad_to_set(present, new, self.padding, self.dims)
        if padded is not present:
            group = as_read(to_stored(group, padded))
            present = self._open(group, new)
        self._check_fit(present, new)
        for dim in self.dims:
            grown = self._grow(group, present, new, dim)
            if grown is not group:
                group, present = grown, self._open(grown, new)
        chosen = self._choose(present, new, replaced) if self.prefers else None
        if chosen is not None and lost is not None:
            lost += chosen.lost
        return self._fill(group, present, new, replaced, chosen)

    def _expand_coordinates(
        self, group: ManifestGroup, present: xr.Dataset, new: xr.Dataset
    ) -> tuple[ManifestGroup, xr.Dataset]:
        """Expand coordinates of the set and the new data to the same dimensions of the grid.

        For example, ``valid_time`` of a single run has only the dimension of steps. A coordinate
        gets the dimensions of the other side, and those along which its values differ.
        """
        ours, theirs = dict[Hashable, xr.Variable](), dict[Hashable, xr.Variable]()
        both = new.coords.keys() & present.coords.keys()
        for name in both - new.indexes.keys() - present.indexes.keys():
            variable, existing = new.variables[name], present.variables[name]
            if get_virtual_array(variable) is not None or get_virtual_array(existing) is not None:
                continue
            wanted = {*variable.dims, *existing.dims}
            others = {*self.dims} - wanted
            if others and wanted == {*existing.dims} and self._differs(present, new, name):
                wanted |= {
                    dim for dim in others if not new.indexes[dim].isin(present.indexes[dim]).all()
                }
            if wanted - {*variable.dims} <= {*self.dims}:
                first = [dim for dim in self.dims if dim in wanted - {*existing.dims}]
                dims = [*dict.fromkeys([*first, *existing.dims])]
                for target, dataset in ((ours, present), (theirs, new)):
                    if list(dataset.variables[name].dims) != dims:
                        target[name] = expand_variable(dataset, name, dims)
        new = replace_variables(new, theirs) if theirs else new
        if ours:
            group = as_read(to_stored(group, replace_variables(present, ours), ours))
        return group, new

    def _differs(self, present: xr.Dataset, new: xr.Dataset, name: Hashable) -> bool:
        """Return whether a coordinate differs between set and new data in cells that both have."""
        known, added = xr.align(present.coords[name], new.coords[name], join="inner")
        differs = (known != added) & known.notnull() & added.notnull()
        return bool(differs.any())

    def put_shared(
        self, old: ManifestGroup, new: xr.Dataset, names: Collection[str]
    ) -> ManifestGroup:
        """Replace variables without all dimensions of the grid by those of files."""
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
        """Write data of files at their coordinates, all of which the group has already."""
        present = load_as_in(present, new, self.root, only_own=True)
        places = {
            dim: present.indexes[dim].get_indexer(new.indexes[dim])
            for dim in self.dims
            if dim in new.indexes
        }
        # shared variables are not compared with those of files that cannot be read
        taken = {*replaced, *self.unsound}
        changed: dict[Hashable, xr.Variable] = {}
        for name, variable in new.variables.items():
            along = set(self.dims).intersection(map(str, variable.dims))
            if name in self.dims or not along:
                continue
            existing, shares = present.variables[name], len(along) < len(self.dims)
            if get_virtual_array(variable) is None:
                check_loading(str(name), variable)
                if get_virtual_array(existing) is not None:
                    raise CombineError(
                        f"{name}: its values are in memory, and the set refers to files for it; "
                        f"leave it virtual (loadable_variables=, and no change by preprocess=), or "
                        f"write the set anew (delete it, and run again)"
                    )
            if not set(self.padding.dims).isdisjoint(variable.dims):
                # clear earlier chunks of a file that may have become shorter
                existing = _clear_sources(existing, replaced, variable)
            data: Any
            try:
                if shares and get_virtual_array(existing) is not None:
                    data = _put_shared(existing, variable, places, taken)
                elif chosen is not None and not shares:
                    data = _put_chosen(existing, variable, places, chosen)
                else:
                    data = _put(existing, variable, places, replaced)
            except CombineError as error:
                raise CombineError(f"{name}: {error}") from error
            if data is not None:
                changed[name] = existing.copy(data=data)
        if not changed:
            return group
        return to_stored(group, replace_variables(present, changed), changed)

    def _choose(
        self, present: xr.Dataset, new: xr.Dataset, replaced: Collection[str]
    ) -> ChosenCells | None:
        """Choose the cells that new files get; None if all data are in memory.

        A file with any chunk of a cell has the whole cell, so that its missing chunks are not taken
        from another file. A file without chunks in a cell loses it to all others. Cells of files in
        ``replaced`` are always overwritten.
        """
        at = [present.indexes[dim].get_indexer(new.indexes[dim]) for dim in self.dims]
        box = {d: slice(a.min(), a.max() + 1) for d, a in zip(self.dims, at, strict=True)}
        inside = np.ix_(*(a - a.min() for a in at))
        existing, added = self._list_cells(present).isel(box), self._list_cells(new)
        stored = {url for url in urls_of(existing) if is_stored_in_set(url, self.root)}
        urls = sorted(urls_of(existing) - stored | urls_of(added))
        urls = urls if self.prefers == "last" else urls[::-1]
        urls = sorted(urls, key=lambda url: url not in self.yielding)
        before, now = self._find_owners(existing, urls)[inside], self._find_owners(added, urls)
        old = np.isin(before, [number for number, url in enumerate(urls) if url in replaced])
        nobody = old | (before == NO_CHUNK)
        taken = (now >= 0) & (now >= before) | old | nobody & (now == OTHER_FILE)
        unknown = np.zeros([existing.sizes[dim] for dim in self.dims], bool)
        unknown[inside] = taken & (before == OTHER_FILE)
        if count := self._count_valid_values(existing, unknown):
            raise CombineError(
                f"the set holds values of {count} cells itself that new files have, too, and does "
                f"not note from which file they are, so that overlap={self.prefers!r} cannot "
                f"choose; write the set anew without inline_threshold=, and with fewer "
                f"loadable_variables="
            )
        loser = np.where((before == now) | old, NO_CHUNK, np.where(taken, before, now))
        numbers = np.unique(loser[loser >= 0]).tolist()
        lost = [LostCells(urls[n], self._find_values(new, loser == n)) for n in numbers]
        is_virtual = any(get_virtual_array(v) is not None for v in added.variables.values())
        free = nobody & (now == NO_CHUNK)
        return ChosenCells(taken, free, lost) if is_virtual else None

    def _find_owners(self, cells: xr.Dataset, urls: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return for each cell the largest index of a file with a chunk in it, of any variable."""
        numbers = {url: number for number, url in enumerate(urls)}
        owners: npt.NDArray[np.int64] = np.full([cells.sizes[dim] for dim in self.dims], NO_CHUNK)
        for variable in cells.variables.values():
            if (array := get_virtual_array(variable)) is not None:
                axes = [variable.dims.index(dim) for dim in self.dims]
                owners = np.maximum(owners, map_files(array, axes, numbers))
        return owners

    def _count_valid_values(self, cells: xr.Dataset, where: Mask) -> int:
        """Return the number of cells in a mask with valid values in memory or in the set."""
        count = 0
        for box in cover_with_boxes(np.argwhere(where)):
            inside = {dim: slice(*ends) for dim, ends in zip(self.dims, box, strict=True)}
            has = np.zeros([stop - begin for begin, stop in box], bool)
            for variable in cells.isel(inside).variables.values():
                present = variable.notnull()
                others = [dim for dim in variable.dims if dim not in self.dims]
                has |= present.any(others).transpose(*self.dims).values
            count += int(has.sum())
        return count

    def _find_values(self, new: xr.Dataset, where: Mask) -> dict[str, pd.Index[Any]]:
        """Return the coordinate values of the cells of a mask, along each dimension."""
        axes = range(len(self.dims))
        return {
            dim: new.indexes[dim][where.any(axis=tuple(n for n in axes if n != axis))]
            for axis, dim in enumerate(self.dims)
        }

    def _open(self, group: ManifestGroup, new: xr.Dataset | None = None) -> xr.Dataset:
        """Open the set as a dataset; raise an error if a dimension has no coordinate."""
        present = open_set(group, new, self.dims, self.unsound)
        for what, dataset in (("the set", present), ("the new files", new)):
            if dataset is None:
                continue
            for dim in self.dims:
                if dim not in dataset.indexes or not dataset.indexes[dim].is_unique:
                    has = "repeats values" if dim in dataset.indexes else "is not there"
                    raise CombineError(
                        f"dimension {dim!r}: its coordinate {has} in {what}, so that nothing tells "
                        f"which cell of the grid a file has; give the files a coordinate "
                        f"(coordinates=, or {{{dim}}} in the pattern)"
                    )
        return present

    def _check_fit(self, present: xr.Dataset, new: xr.Dataset) -> None:
        """Raise an error if variables do not continue those of the set."""
        problems = list_problems(present, new, self.dims, self.if_extra)
        for name, variable in new.variables.items() if not problems else ():
            types = present.variables[name].dtype, variable.dtype
            is_virtual = get_virtual_array(present.variables[name]) is not None
            if is_virtual and np.result_type(*types) != types[0]:
                # chunks of other cells are kept
                problems.append(
                    f"{name}: its dtype is {types[0]} in the set and {types[1]} in the new files; "
                    f"write the set anew (delete it, and run again), which promotes it"
                )
        if problems:
            description = (
                f"the new files do not fit the grid of the set, and nothing has been written; "
                f"{self.if_misfit}"
            )
            raise CombineError(format_details(description, problems))

    def _grow(
        self, group: ManifestGroup, present: xr.Dataset, new: xr.Dataset, dim: str
    ) -> ManifestGroup:
        """Append new coordinate values along a dimension, without data."""
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
        return as_read(append_along(group, slab, AppendOptions(dim, position, root=self.root)))

    def _make_slab(
        self, name: Hashable, variable: xr.Variable, part: xr.Dataset, dim: str, *, is_whole: bool
    ) -> xr.Variable:
        """Return a variable at new positions, with missing values unless ``is_whole``."""
        new = part.variables[name]
        along = set(self.dims).intersection(variable.dims)
        array = get_virtual_array(new)
        # variables in memory, such as coordinates, are the same along all other dimensions
        if (array is None and along == {dim}) or (is_whole and not has_missing_value(new.dtype)):
            return new
        if not has_missing_value(variable.dtype):
            raise CombineError(
                f"{name}: cells of the grid would be empty, and no value of {name!r} "
                f"({variable.dtype}) means that it is missing; leave it out (drop_variables=), or "
                f"leave new files out until they are complete along {sorted(along - {dim})}"
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
        """Make the cells of some files missing.

        Variables without all dimensions of the grid, which files share, are cleared for ``shared``
        files. Raises `CombineError` for a variable without a missing value.
        """
        present = self._open(old)
        changed: dict[Hashable, xr.Variable] = {}
        for name in present.data_vars:
            variable = present.variables[name]
            array = get_virtual_array(variable)
            along = set(self.dims).intersection(variable.dims)
            if array is None or not along:
                continue
            is_whole = len(along) == len(self.dims)
            files = sorted(urls if is_whole else shared)
            boxes = [box for url in files for box in find_boxes(array, url)]
            if boxes and not has_missing_value(array.dtype):
                raise CombineError(
                    f"{files[0]}: no value of {name!r} ({array.dtype}) means that it is missing, "
                    f"so that its cell cannot be left empty; write the set anew without this file"
                )
            if boxes:
                changed[name] = variable.copy(data=clear_boxes(array, boxes))  # type: ignore[arg-type]
        return to_stored(old, replace_variables(present, changed), changed) if changed else old

    def clear_values(self, old: ManifestGroup, urls: Collection[str]) -> ManifestGroup:
        """Make values that the set itself stores missing in the cells of some files.

        The cells of the files are those of the other variables. Raises `CombineError` for a
        variable without a missing value.
        """
        present = self._open(old)
        arrays = {n: get_virtual_array(v) for n, v in self._list_cells(present).variables.items()}
        held = [
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
            if array is not None and name not in held
            for url in sorted(urls)
            for box in find_boxes(array, url)
        }
        changed: dict[Hashable, xr.Variable] = {}
        for name in held if boxes else ():
            variable = present.variables[name].copy(data=np.array(present.variables[name].values))
            if not has_missing_value(variable.dtype):
                raise CombineError(
                    f"{min(boxes.values())}: the set holds the values of {name!r} "
                    f"({variable.dtype}), none of which means that it is missing, so that they "
                    f"cannot be replaced; write the set anew (delete it, and run again), or leave "
                    f"the variable out (drop_variables=)"
                )
            for box in boxes:
                variable[{dim: slice(*ends) for dim, ends in box}] = default_fill(variable.dtype)
            changed[name] = variable
        return to_stored(old, replace_variables(present, changed), changed) if changed else old

    def find_doubtful(
        self, group: ManifestGroup, touched: Mapping[str, pd.Index[Any]]
    ) -> tuple[str, ...]:
        """Return the files that may cover positions without chunks.

        If positions with values in ``touched`` are empty, these are the files of their other
        positions, or of adjacent ones, which may have only missing values there.
        """
        doubtful, present = set[str](), self._open(group)
        cells = self._list_cells(present)
        for dim, values in touched.items():
            where, empty = np.asarray(present.indexes[dim].isin(values)), _find_empty(cells, dim)
            if (where & empty).any():
                lost = np.pad(where & empty, 1)
                near = (where | lost[:-2] | lost[2:]) & ~empty
                doubtful |= find_used_at(cells, dim, near)
        return tuple(sorted(doubtful - self.unsound))

    def _list_cells(self, present: xr.Dataset) -> xr.Dataset:
        """Return the variables with all dimensions of the grid."""
        dims = set(self.dims)
        return present.drop_vars([n for n, v in present.variables.items() if not dims <= {*v.dims}])

    def drop_empty(self, old: ManifestGroup, touched: Mapping[str, pd.Index[Any]]) -> ManifestGroup:
        """Drop positions without files.

        ``touched`` are the coordinate values of cleared cells, along each dimension; only these are
        dropped. Raises `CombineError` if no position would be left.
        """
        group = old
        for dim, values in touched.items():
            present = self._open(group)
            gone = _find_empty(self._list_cells(present), dim) & np.asarray(
                present.indexes[dim].isin(values)
            )
            if gone.all():
                raise CombineError(
                    f"{self.root}: nothing would be left of the set along {dim!r}; remove the set "
                    f"instead"
                )
            if gone.any():
                remaining = drop_positions(present, dim, gone, self.root)
                group = as_read(to_stored(group, remaining))
        return group

    def find_touched(self, group: ManifestGroup, urls: set[str]) -> dict[str, pd.Index[Any]]:
        """Return the coordinate values of the cells of some files, along each dimension."""
        if not urls:
            return {}
        present = self._open(group)
        return {dim: present.indexes[dim][find_positions(present, dim, urls)] for dim in self.dims}

    # ------------------------------------------------------------------ shared variables

    def find_lost(self, group: ManifestGroup) -> tuple[list[str], list[str]]:
        """Return shared variables that are in unsound files, and other files that have them.

        An example are the bounds of times, which all members share, and which the set has from one
        of them.
        """
        if not self.unsound:
            return [], []
        present, unsound = self._open(group), set(self.unsound)
        sound = {url for url in urls_of(present) - unsound if not is_stored_in_set(url, self.root)}
        names, files = list[str](), dict[str, None]()
        for name, variable in present.variables.items():
            array = get_virtual_array(variable)
            along = [dim for dim in self.dims if dim in variable.dims]
            if array is None or not 0 < len(along) < len(self.dims):
                continue
            if not has_chunks_in(array, unsound):
                continue
            names.append(str(name))
            only = present[[name]].drop_vars(set(present.coords) - {name}, errors="ignore")
            for dim in along:
                lost = find_positions(only, dim, unsound)
                for url, runs in sorted(find_ranges(present, dim, sound).items()):
                    for run in runs:
                        if lost[slice(*run)].any():
                            files[url] = None
                            lost[slice(*run)] = False
        return names, list(files)


def _find_empty(cells: xr.Dataset, dim: str) -> npt.NDArray[np.bool_]:
    """Return a mask of positions along a dimension at which no file has a chunk."""
    return ~find_positions(cells, dim, urls_of(cells))


# ---------------------------------------------------------------------- arrays


def _put(
    existing: xr.Variable, new: xr.Variable, places: CellPlaces, replaced: Collection[str]
) -> ManifestArray | npt.NDArray[Any] | None:
    """Return the data of a variable with new files in their cells, or None if unchanged."""
    array, added = get_virtual_array(existing), get_virtual_array(new)
    at = [places.get(str(dim), np.arange(n)) for dim, n in new.sizes.items()]
    if array is None or added is None:
        return put_values(existing, new, at)
    before = array
    for start, box in list_boxes(added, at):
        part = crop_box(added, box)
        known = crop_box(
            array, tuple((a, a + stop - begin) for a, (begin, stop) in zip(start, box, strict=True))
        )
        met = {file.url for file in known.sources} if count_references(known) else set()
        if known.has_same_references(part):
            continue
        files = sorted({file.url for file in part.sources})
        if others := sorted(met.difference(replaced, files)):
            raise CombineError(
                f"{format_names(files, 1)}: the set has this cell of the grid from {others[0]}; "
                f"leave one of the files out of the pattern, or choose by overlap='first' or "
                f"'last', or by newest=, where their paths differ in nothing else"
            )
        array = write_region(array, start, part, overwrite=True)
    return None if array is before else array


def _put_chosen(
    existing: xr.Variable, new: xr.Variable, places: CellPlaces, chosen: ChosenCells
) -> ManifestArray | npt.NDArray[Any] | None:
    """Return the data of a variable with the chosen cells of new files, or None if unchanged.

    Cells are replaced as a whole, including missing chunks. In cells without chunks, values in
    memory are written where the variable has missing values.
    """
    taken, free, orders = chosen.taken, chosen.free, {d: np.argsort(a) for d, a in places.items()}
    if any((np.diff(order) != 1).any() for order in orders.values()):
        new = new.isel(orders)
        taken, free = (mask[np.ix_(*orders.values())] for mask in (taken, free))
    array = before = get_virtual_array(existing)
    values = np.array(existing.values) if array is None else None
    whole = tuple((0, n) for n in taken.shape)
    for box in [whole] if taken.all() else cover_with_boxes(np.argwhere(taken)):
        sides = (
            _list_runs(np.sort(at), *side) for side, at in zip(box, places.values(), strict=True)
        )
        for runs in product(*sides):
            at = dict(zip(places, runs, strict=True))
            part = new.isel({dim: slice(begin, stop) for dim, (_, begin, stop) in at.items()})
            starts = [at[dim][0] if dim in at else 0 for dim in map(str, new.dims)]
            ends = [start + n for start, n in zip(starts, part.shape, strict=True)]
            added = get_virtual_array(part)
            if values is not None:
                values[tuple(map(slice, starts, ends))] = part.values
            elif array is not None and added is not None:
                known = crop_box(array, tuple(zip(starts, ends, strict=True)))
                if not known.has_same_references(added):
                    array = write_region(array, starts, added, overwrite=True, allow_cuts=True)
    if values is not None:
        inside = np.ix_(*(np.sort(places.get(str(d), np.arange(n))) for d, n in new.sizes.items()))
        lacks = xr.Variable(new.dims, values[inside]).isnull()
        wide = xr.Variable([*places], free).set_dims(new.sizes)  # type: ignore[no-untyped-call]
        adds = wide.transpose(*new.dims) & lacks
        values[inside] = np.where(adds.values, new.values, values[inside])
        same = xr.Variable(existing.dims, values).equals(existing)  # type: ignore[no-untyped-call]
        return None if same else values
    return None if array is before else array


def _list_runs(at: npt.NDArray[np.intp], begin: int, stop: int) -> list[tuple[int, int, int]]:
    """Return runs of adjacent positions: the first position, and the range of indexes.

    >>> _list_runs(np.array([4, 5, 9]), 1, 3)
    [(5, 1, 2), (9, 2, 3)]
    """
    runs = find_runs(at[begin:stop])
    ends = [*accumulate((b - a for a, b in runs), initial=begin)]
    return [(start, ends[n], ends[n + 1]) for n, (start, _) in enumerate(runs)]


def _clear_sources(existing: xr.Variable, urls: Collection[str], new: xr.Variable) -> xr.Variable:
    """Make the chunks of files missing in a variable that ``new`` replaces.

    They then read as the fill value of the new data.
    """
    array, added = get_virtual_array(existing), get_virtual_array(new)
    if array is None or added is None or not added.has_gaps:
        return existing
    boxes = [box for url in sorted(urls) for box in find_boxes(array, url)]
    return existing.copy(data=clear_boxes(array, boxes, added.fill_value)) if boxes else existing  # type: ignore[arg-type]


def _put_shared(
    existing: xr.Variable, new: xr.Variable, places: CellPlaces, replaced: Collection[str]
) -> ManifestArray | npt.NDArray[Any] | None:
    """Return the data of a shared variable, with new files at positions without files.

    At all other positions, new files must have the same values.
    """
    [dim, *others] = [dim for dim in places if dim in existing.dims]
    array = get_virtual_array(existing)
    if others:
        return put_boxes(existing, new, places, replaced)
    if array is None or not places[dim].size:
        return _put(existing, new, places, replaced)
    kept_urls = {file.url for file in array.sources} - set(replaced)
    is_kept = find_positions(xr.Dataset({"_": existing}), dim, kept_urls)[places[dim]]
    kept_cells = existing.isel({dim: places[dim][is_kept]})
    if is_kept.any() and not kept_cells.equals(new.isel({dim: is_kept})):  # type: ignore[no-untyped-call]
        raise CombineError(OTHER_VALUES)
    result: ManifestArray | npt.NDArray[Any] | None = None
    for run in find_runs(np.flatnonzero(~is_kept)):
        part = {dim: places[dim][slice(*run)]}
        # chunks that are not replaced are at other positions
        result = _put(existing, new.isel({dim: slice(*run)}), part, kept_urls | set(replaced))
        existing = existing if result is None else existing.copy(data=result)  # type: ignore[arg-type]
    return result
