"""Writing reference sets: creating them, changing them, and what they keep of earlier states."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.datasets.append import append_along, remove_sources, replace_sources
from virtualds.datasets.conflicts import (
    check_choices,
    check_conflict,
    name_missing_set,
    retry_on_conflict,
)
from virtualds.datasets.from_dataset import group_from_dataset
from virtualds.datasets.keywords import format_suggestion, make_strict, names_of
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.location import Location, format_for, format_there
from virtualds.datasets.tree import group_from_tree
from virtualds.errors import ConflictError, UnsupportedError, exists_already
from virtualds.formats import Format, History
from virtualds.formats.admission import KEEP_QUERY, demand_admissible, make_known_check
from virtualds.formats.undecodable import ON_ERROR
from virtualds.source_file import StorageOptions
from virtualds.stores.access_rules import AccessPolicy, Allow
from virtualds.stores.errors import explain_write_errors
from virtualds.urls import normalise_url

Change = Callable[[ManifestGroup], ManifestGroup]
"""What becomes of a set."""


MODES = ("w-", "w", "a", "replace-source")


class Added(NamedTuple):
    """What was added to a set: positions along the dimension that grows, and references."""

    positions: int
    references: int

    @classmethod
    def all_of(cls, dataset: xr.Dataset, dim: str | None) -> Added:
        """Return all that a dataset has."""
        arrays = map(get_virtual_array, dataset.variables.values())
        references = sum(array.nchunks for array in arrays if array is not None)
        return cls(dataset.sizes.get(dim, 0), references)

    @classmethod
    def between(
        cls, old: ManifestGroup, after: ManifestGroup, dataset: xr.Dataset, dim: str
    ) -> Added:
        """Return what a set holds of a dataset that it did not hold before."""
        positions, references = 0, 0
        for name, variable in dataset.variables.items():
            if dim in variable.dims and old is not after:
                a, b = old.variables[str(name)].data, after.variables[str(name)].data
                axis = variable.dims.index(dim)
                positions = b.shape[axis] - a.shape[axis]
                if isinstance(a, ManifestArray) and isinstance(b, ManifestArray):
                    references += b.nchunks - a.nchunks
        return cls(positions, references)


def write_manifest(
    dataset: xr.Dataset,
    url: Any,
    *,
    format: str | None = None,
    mode: str | None = None,
    append_dim: str | None = None,
    position: str = "end",
    on_duplicate: str = "raise",
    conflict: str = "raise",
    allow: Allow = None,
    storage_options: Mapping[str, Any] | None = None,
    choices: Mapping[str, Any] | None = None,
) -> Added:
    """Write the references of a dataset, and return what was written: an append may add nothing.

    See ``ds.virtual.to_manifest``.
    """
    mode = _settle_mode(mode, append_dim)
    _check_placing(mode, position, on_duplicate)
    AccessPolicy.of(allow)
    location, target = destination_of(url, format, storage_options, choices or {})
    whole = partial(group_from_dataset, dataset)
    create = partial(create_set, target, whole, location, choices or {})
    if mode in ("w", "w-"):
        retry_on_conflict(partial(create, replace=mode == "w"), conflict)
        return Added.all_of(dataset, append_dim)
    change: Change
    added = Added.all_of(dataset, append_dim)
    if mode == "replace-source":
        change = partial(replace_sources, new=dataset, dim=append_dim)
    else:
        change = partial(
            append_along,
            new=dataset,
            dim=str(append_dim),
            position=position,
            on_duplicate=on_duplicate,
        )

    def counted(old: ManifestGroup) -> ManifestGroup:
        nonlocal added
        after = change(old)
        if mode == "a":
            added = Added.between(old, after, dataset, str(append_dim))
        return after

    def attempt() -> None:
        nonlocal added
        try:
            _update(target, location, counted, allow, choices or {})
        except FileNotFoundError:
            if mode != "a":
                raise
            if append_dim not in dataset.dims:
                raise ValueError(
                    f"append_dim {append_dim!r}: the dataset, which is to begin the set "
                    f"{location.target}, has {list(dataset.dims)}"
                    f"{format_suggestion(append_dim, dataset.dims)}"
                ) from None
            _create_first(create, target, location)
            added = Added.all_of(dataset, append_dim)

    retry_on_conflict(attempt, conflict)
    return added


def check_target(
    url: Any,
    *,
    format: str | None = None,
    mode: str | None = None,
    append_dim: str | None = None,
    position: str = "end",
    on_duplicate: str = "raise",
    conflict: str = "raise",
    allow: Allow = None,
    storage_options: Mapping[str, Any] | None = None,
    **choices: Any,
) -> str:
    """Check the arguments of ``ds.virtual.to_manifest`` without a dataset.

    The arguments are the same. A long scan should not end with a target that cannot be written.

    Returns
    -------
    str
        The name of the format.

    Raises
    ------
    TypeError
        The format has no such option.
    FileExistsError
        The target exists, and ``mode`` is ``"w-"``.
    ValueError
        No such format, mode or place to append at.

    Examples
    --------
    >>> check_target("refs.parquet")
    'kerchunk-parquet'
    """
    mode = _settle_mode(mode, append_dim)
    _check_placing(mode, position, on_duplicate)
    check_conflict(conflict)
    AccessPolicy.of(allow)
    location, target = destination_of(url, format, storage_options, choices)
    if mode == "w-":
        demand_no_set(target, location, choices)
    return target.name


def demand_no_set(target: Format, location: Location, choices: Mapping[str, Any]) -> None:
    """Refuse to create a set where there is one."""
    if target.holds is not None:
        branch = {name: value for name, value in choices.items() if name == "branch"}
        there = target.holds(location.target, location.options, **branch)
    else:
        there = format_there(location) is not None
    if there:
        raise exists_already(location.target)


def write_tree(
    tree: xr.DataTree,
    url: str | os.PathLike[str],
    *,
    format: str | None = None,
    mode: str | None = None,
    append_dim: str | None = None,
    inherited: bool = False,
    conflict: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
    choices: Mapping[str, Any] | None = None,
) -> None:
    """Write the references of a tree; see ``tree.virtual.to_manifest``."""
    location = Location.of(url, storage_options)
    mode = _settle_mode(mode, append_dim)
    if mode not in ("w", "w-"):
        raise UnsupportedError(
            f"{location.target}: mode {mode!r} with append_dim={append_dim!r}, but trees are "
            f"written as a whole; open the set with virtualds.open_virtual_datatree, join it with "
            f"the new tree (xr.concat) and write that, or append to the root alone with "
            f"ds.virtual.to_manifest"
        )
    target = format_for(location, format)
    check_choices(target, choices or {}, write_tree)
    whole = partial(group_from_tree, tree, inherited)
    create = partial(create_set, target, whole, location, choices or {})
    retry_on_conflict(partial(create, replace=mode == "w"), conflict)


def destination_of(
    url: Any,
    format: str | None,
    storage_options: Mapping[str, Any] | None,
    choices: Mapping[str, Any],
) -> tuple[Location, Format]:
    """Return what is written to, and its format, which knows the choices."""
    location = Location.of(url, storage_options)
    target = format_for(location, format)
    check_choices(target, choices, check_target)
    return location, target


def split_choices(
    choices: Mapping[str, Any], location: Location
) -> tuple[dict[str, Any], Callable[..., None]]:
    """Return the choices that are the format's, and what refuses groups that may not be written."""
    rest = dict(choices)
    keep = rest.pop(KEEP_QUERY, False)
    return rest, partial(demand_admissible, target=str(location.target), keep_query=keep)


def _settle_mode(mode: str | None, append_dim: str | None) -> str:
    """Return the mode that is meant."""
    if mode is None:
        mode = "w-" if append_dim is None else "a"
    if mode not in MODES:
        raise ValueError(
            f"mode {mode!r}: there are 'w-' (create), 'w' (create or replace), 'a' (append along "
            f"append_dim), and 'replace-source'"
        )
    if (mode == "a" and append_dim is None) or (mode in ("w", "w-") and append_dim is not None):
        raise ValueError(
            f"mode {mode!r} with append_dim={append_dim!r}: name the dimension to append along, "
            f"and nothing else to create a set"
        )
    return mode


def _check_placing(mode: str, position: str, on_duplicate: str) -> None:
    """Refuse to be told where to append by those who do not append."""
    if mode != "a" and (position, on_duplicate) != ("end", "raise"):
        raise ValueError(
            f"mode {mode!r} with position={position!r}, on_duplicate={on_duplicate!r}: these are "
            f"for appending; name the dimension with append_dim, or leave them out"
        )


def create_set(
    target: Format,
    whole: Callable[[], ManifestGroup],
    location: Location,
    choices: Mapping[str, Any],
    *,
    replace: bool,
) -> None:
    """Write a new set, and settle what happens if there is one."""
    write: Callable[..., None] = target.write
    group = whole()
    rest, judge = split_choices(choices, location)
    judge(group)
    # not around what reads values: another file would be told to be in the way
    with explain_write_errors(location.target):
        write(group, location.target, location.options, replace=replace, **rest)


def _create_first(create: Callable[..., None], target: Format, location: Location) -> None:
    """Create a set that is to be appended to, unless somebody else has just done so."""
    try:
        create(replace=False)
    except FileExistsError as error:
        if format_there(location) is not target:
            raise
        raise ConflictError(
            f"{location.target}: another writer has just created it; append again, as "
            f"conflict='retry' does"
        ) from error


def _update(
    target: Format,
    location: Location,
    change: Change,
    allow: Allow,
    choices: Mapping[str, Any] | None = None,
) -> None:
    update: Callable[..., None] = target.update
    rest, judge = split_choices(choices or {}, location)

    def judged(before: ManifestGroup) -> ManifestGroup:
        if problems := before.all_problems():
            # what cannot be read would be lost
            ON_ERROR["raise"](before, problems)
        after = change(before)
        judge(after, is_known=make_known_check(before))
        return after

    with explain_write_errors(location.target), name_missing_set(location):
        update(location.target, judged, location.options, AccessPolicy.of(allow), **rest)


@make_strict()
def drop_sources(
    url: str | os.PathLike[str],
    sources: str | Iterable[str],
    *,
    dim: str | None = None,
    format: str | None = None,
    conflict: str = "raise",
    allow: Allow = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Remove source files from a reference set.

    Variables without the dimension stay. If one of them comes from a removed source, reading it
    still needs that file.

    Parameters
    ----------
    url : str or path
        Of the set.
    sources : str or iterable of str
        Paths or urls, as ``ds.virtual.sources`` lists them.
    dim : str, optional
        Dimension along which the sources are concatenated; by default the only such dimension.
    format : str, optional
        Name of the format, if neither suffix nor content show it.
    conflict : {"raise", "retry"}
        What to do if another writer is faster.
    allow : str, path, or iterable of them, optional
        Folders in which the files of the set must lie, as in `open_virtual_dataset`.
    storage_options : dict, optional
        Access options, for fsspec.

    Raises
    ------
    CombineError
        The set has no such source, or no other sources.
    ConflictError
        Another writer was faster; the set is unchanged.
    UnsupportedError
        The format cannot be changed in place, or the store has no conditional writes.
    FileNotFoundError
        There is no set.

    Examples
    --------
    >>> import virtualds
    >>> vds = virtualds.open_virtual_mfdataset("200[12].nc", combine="nested", concat_dim="time")
    >>> vds.virtual.to_manifest("refs.json")
    >>> drop_sources("refs.json", "2001.nc")
    >>> vds.sizes["time"], xr.open_dataset("refs.json", engine="virtual").sizes["time"]
    (24, 12)
    """
    location = Location.of(url, storage_options)
    target = format_for(location, format)
    given = names_of("sources", sources)
    change = partial(remove_sources, urls=[normalise_url(source) for source in given], dim=dim)
    attempt = partial(_update, target, location, change, allow)
    retry_on_conflict(attempt, conflict)


def snapshot_table(history: History, url: str, options: StorageOptions | None) -> pd.DataFrame:
    """Return a row for each snapshot of a set."""
    table = pd.DataFrame(history.listed(url, options), columns=["snapshot", "time"])
    return table.assign(time=pd.to_datetime(table["time"]).dt.tz_localize(None))
