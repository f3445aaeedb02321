"""Writes reference sets: creates, replaces and changes them.

Every caller takes the same steps. `WriteOptions` checks that the options agree. `Destination.of`
chooses the format and checks its choices. `Destination.create` and `Destination.change` refuse
groups that a set may not hold, write all or nothing, and settle conflicts with other writers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.reference_table import ReferenceTable
from virtualds.datasets.append import append_along, remove_sources, replace_sources
from virtualds.datasets.conflicts import name_missing_set, retry_on_conflict
from virtualds.datasets.from_dataset import group_from_dataset
from virtualds.datasets.keywords import format_suggestion, make_strict, names_of
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.location import Location, format_for, format_there
from virtualds.datasets.registry import FORMATS
from virtualds.datasets.rewrite.fit import RewriteTarget
from virtualds.datasets.tree import group_from_tree
from virtualds.datasets.write_options import CREATING, WriteOptions
from virtualds.errors import ConflictError, UnsupportedError, exists_already
from virtualds.formats import Format, History, Parts
from virtualds.formats.admission import (
    IsKnown,
    demand_admissible,
    know_nothing,
    make_known_check,
)
from virtualds.formats.undecodable import ON_ERROR
from virtualds.source_file import StorageOptions
from virtualds.stores.access_rules import AccessPolicy, Allow
from virtualds.stores.errors import explain_write_errors
from virtualds.urls import normalise_url

Whole = Callable[[], ManifestGroup]
"""Returns the group of a new set."""
Change = Callable[[ManifestGroup], ManifestGroup]
"""Takes the group that a set holds, and returns the group that it shall hold."""


class Written(NamedTuple):
    """The group that a set held before, None if it is new, and the group that it holds now."""

    before: ManifestGroup | None
    after: ManifestGroup


@dataclass(frozen=True)
class Destination:
    """Where to write a set, and the format that writes it with the options.

    Parameters
    ----------
    location : Location
    format : Format
    options : WriteOptions
    place : object, optional
        Where workers write parts of the set: what `virtualds.formats.Parts` began.
    """

    location: Location
    format: Format
    options: WriteOptions
    place: Any = None

    @classmethod
    def of(
        cls, location: Location, options: WriteOptions, call: Callable[..., Any] | None = None
    ) -> Destination:
        """Choose the format, and check its choices.

        Raises
        ------
        TypeError
            The format has no such choice.
        ValueError
            The format is unknown, or neither name nor location says which it is.
        """
        target = format_for(location, options.format)
        options.check_choices(target, call)
        return cls(location, target, options)

    def demand_free(self) -> Destination:
        """Refuse to create a set that exists, before the caller begins long work.

        Raises
        ------
        FileExistsError
            There is a set, and ``mode`` is ``"w-"``.
        """
        if self.options.mode != "w-":
            return self
        where, access = self.location.target, self.location.options
        if self.format.holds is None:
            there = format_there(self.location) is not None
        else:
            branch = {k: v for k, v in self.options.of_format.items() if k == "branch"}
            there = self.format.holds(where, access, **branch)
        if there:
            raise exists_already(where)
        return self

    @property
    def rewrite(self) -> RewriteTarget:
        """Where chunks go that the format cannot hold as they are."""
        options = self.options
        return RewriteTarget(self.location, self.format, options.rewriting, options.of_format)

    @property
    def parts(self) -> Parts:
        """The functions with which many processes write one set of this format.

        Raises
        ------
        UnsupportedError
            Only one process can write a set of this format.
        """
        if self.format.parts is None:
            able = ", ".join(other.name for other in FORMATS if other.parts is not None)
            raise UnsupportedError(
                f"{self.location.target}: to= has many processes write one set, which "
                f"{self.format.name} does not allow; {able} does, and virtualds.convert makes "
                f"{self.format.name} of it, or leave out to= and write the dataset with "
                f"ds.virtual.to_manifest"
            )
        return self.format.parts

    def begin_parts(self) -> Destination:
        """Check that many processes can write the set, and return where they write its parts.

        Raises
        ------
        UnsupportedError
            Only one process can write this format, or the store has no conditional writes.
        FileExistsError
            The name is taken: by something that is no set, or by a set that is to stay.
        """
        where, replaces = self.location.target, self.options.mode == "w"
        parts = self.parts
        with explain_write_errors(where):
            return replace(self, place=parts.begin(where, self.location.options, replace=replaces))

    def create(self, whole: Whole) -> Written:
        """Write a set that holds the group that ``whole`` returns, all of it or nothing."""
        return retry_on_conflict(partial(self._create, whole), self.options.conflict)

    def change(self, change: Change, whole: Whole | None = None) -> Written:
        """Change a set; if there is none, create one that holds the group of ``whole``."""
        return retry_on_conflict(partial(self._change, change, whole), self.options.conflict)

    def _create(self, whole: Whole) -> Written:
        group = whole()
        self._judge(group, know_nothing if self.place is None else self._is_part)
        if self.rewrite.is_needed:
            self.demand_free()
            group = self.rewrite.fit(group)
        where, replaces = self.location.target, self.options.mode == "w"
        # not around ``whole``: it reads sources, and their errors are no errors of the set
        with explain_write_errors(where):
            if self.place is not None:
                self.parts.commit(group, self.place, replace=replaces)
            else:
                write: Callable[..., None] = self.format.write
                chosen = self.options.of_format | self.rewrite.for_writer
                write(group, where, self.location.options, replace=replaces, **chosen)
                self.rewrite.clear(group)
        return Written(None, group)

    def _change(self, change: Change, whole: Whole | None) -> Written:
        found: list[Written] = []

        def judged(before: ManifestGroup) -> ManifestGroup:
            if problems := before.all_problems():
                # parts of the set that cannot be read would be lost
                ON_ERROR["raise"](before, problems)
            after = change(before)
            self._judge(after, make_known_check(before))
            after = self.rewrite.fit(after)
            found[:] = [Written(before, after)]
            return after

        where, policy = self.location.target, AccessPolicy.of(self.options.allow)
        update: Callable[..., None] = self.format.update
        try:
            with explain_write_errors(where), name_missing_set(self.location):
                chosen = self.options.of_format | self.rewrite.for_writer
                update(where, judged, self.location.options, policy, **chosen)
        except FileNotFoundError:
            if whole is None:
                raise
        else:
            self.rewrite.clear(found[0].after)
            return found[0]
        return self._create_first(whole)

    def _create_first(self, whole: Whole) -> Written:
        """Create a set that is to grow, unless another writer has just created it."""
        try:
            return self._create(whole)
        except FileExistsError as error:
            if format_there(self.location) is not self.format:
                raise
            raise ConflictError(
                f"{self.location.target}: another writer has just created it; append again, as "
                f"conflict='retry' does"
            ) from error

    def _judge(self, group: ManifestGroup, is_known: IsKnown) -> None:
        """Refuse a group that no set may hold."""
        target, keep = str(self.location.target), self.options.keep_query
        demand_admissible(group, target, keep_query=keep, is_known=is_known)

    def _is_part(self, table: ReferenceTable) -> bool:
        """Say whether a worker has written a table to the set: workers check what they write."""
        return self.parts.holds(table, self.place)


def prepare_write(
    url: Any, *, storage_options: Mapping[str, Any] | None = None, **given: Any
) -> Destination:
    """Check the arguments of ``ds.virtual.to_manifest`` before there is a dataset.

    So a scan that takes hours does not end with an error that could be raised before it began.

    Raises
    ------
    TypeError
        The format has no such choice.
    FileExistsError
        The name is taken, and ``mode`` is ``"w-"``.
    ValueError
        The format, the mode or the position to append at is unknown.

    Examples
    --------
    >>> prepare_write("refs.parquet").format.name
    'kerchunk-parquet'
    """
    names = given.keys() & {one.name for one in fields(WriteOptions)}
    choices = {name: value for name, value in given.items() if name not in names}
    options = WriteOptions(choices=choices, **{name: given[name] for name in names})
    return Destination.of(Location.of(url, storage_options), options).demand_free()


# ---------------------------------------------------------------------- datasets and trees


class Added(NamedTuple):
    """How much was added to a set: positions along the dimension that grows, and references."""

    positions: int
    references: int

    @classmethod
    def all_of(cls, dataset: xr.Dataset, dim: str | None) -> Added:
        """Count all positions and references of a dataset."""
        arrays = map(get_virtual_array, dataset.variables.values())
        references = sum(array.nchunks for array in arrays if array is not None)
        return cls(dataset.sizes.get(dim, 0), references)

    @classmethod
    def between(
        cls, old: ManifestGroup, after: ManifestGroup, dataset: xr.Dataset, dim: str
    ) -> Added:
        """Count the positions and references that a change added to a set."""
        positions, references = 0, 0
        for name, variable in dataset.variables.items():
            if dim in variable.dims and old is not after:
                a, b = old.variables[str(name)].data, after.variables[str(name)].data
                axis = variable.dims.index(dim)
                positions = b.shape[axis] - a.shape[axis]
                if isinstance(a, ManifestArray) and isinstance(b, ManifestArray):
                    references += b.nchunks - a.nchunks
        return cls(positions, references)


def write_dataset(dataset: xr.Dataset, destination: Destination) -> Added:
    """Write the references of a dataset; return how many were added: an append may add none.

    See ``ds.virtual.to_manifest``.
    """
    options = destination.options
    dim = options.append_dim
    if options.mode == "replace-source":
        destination.change(partial(replace_sources, new=dataset, dim=dim))
    elif options.mode in CREATING:
        destination.create(partial(group_from_dataset, dataset))
    else:
        append = partial(
            append_along,
            new=dataset,
            dim=str(dim),
            position=options.position,
            on_duplicate=options.on_duplicate,
        )
        first = partial(_begin_set, dataset, dim, destination.location)
        before, after = destination.change(append, first)
        if before is not None:
            return Added.between(before, after, dataset, str(dim))
    return Added.all_of(dataset, dim)


def _begin_set(dataset: xr.Dataset, dim: str | None, location: Location) -> ManifestGroup:
    """Return the first group of a set that is to grow along a dimension."""
    if dim not in dataset.dims:
        raise ValueError(
            f"append_dim {dim!r}: the dataset, which would be the first of the set "
            f"{location.target}, has {list(dataset.dims)}"
            f"{format_suggestion(dim, dataset.dims)}"
        )
    return group_from_dataset(dataset)


def write_tree(tree: xr.DataTree, inherited: bool, destination: Destination) -> None:
    """Write the references of a tree; see ``tree.virtual.to_manifest``."""
    options = destination.options
    if options.mode not in CREATING:
        raise UnsupportedError(
            f"{destination.location.target}: mode {options.mode!r} with "
            f"append_dim={options.append_dim!r}, but trees are written as a whole; open the set "
            f"with virtualds.open_virtual_datatree, join it with the new tree (xr.concat) and "
            f"write that, or append to the root alone with ds.virtual.to_manifest"
        )
    destination.create(partial(group_from_tree, tree, inherited))


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
    """Remove the data that come from some sources out of a reference set.

    Variables without the dimension stay. If they come from one of these sources, reading them
    still needs that file.

    Parameters
    ----------
    url : str or path
        The set.
    sources : str or iterable of str
        Paths or urls, as ``ds.virtual.sources`` lists them.
    dim : str, optional
        The dimension along which sources follow each other, by default the only such dimension.
    format : str, optional
        The name of the format, needed if neither the suffix nor the content of the set shows it.
    conflict : {"raise", "retry"}
        What to do if another writer is faster.
    allow : str, path, or iterable of them, optional
        Where the files that the set refers to may lie, as in `open_virtual_dataset`.
    storage_options : dict, optional
        Access options, for fsspec.

    Raises
    ------
    CombineError
        The set has no such source, or no other sources.
    ConflictError
        Another writer was faster; this call has changed nothing.
    UnsupportedError
        A set of this format cannot be changed, or the store has no conditional writes.
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
    options = WriteOptions(format, "replace-source", conflict=conflict, allow=allow)
    destination = Destination.of(Location.of(url, storage_options), options)
    urls = [normalise_url(source) for source in names_of("sources", sources)]
    destination.change(partial(remove_sources, urls=urls, dim=dim))


def snapshot_table(history: History, url: str, options: StorageOptions | None) -> pd.DataFrame:
    """Return a row for each snapshot of a set."""
    table = pd.DataFrame(history.listed(url, options), columns=["snapshot", "time"])
    return table.assign(time=pd.to_datetime(table["time"]).dt.tz_localize(None))
