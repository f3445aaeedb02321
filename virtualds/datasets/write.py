"""Writes reference sets: creates, replaces and changes them.

Every caller takes the same steps. `WriteOptions` checks that the options agree. `Destination.of`
chooses the format and checks its choices. `Destination.create` and `Destination.change` refuse
groups that a set may not hold, write all or nothing, and settle conflicts with other writers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.reference_table import ReferenceTable
from virtualds.datasets.conflicts import name_missing_set, retry_on_conflict
from virtualds.datasets.location import Location, format_for, format_there
from virtualds.datasets.registry import FORMATS
from virtualds.datasets.rewrite.fit import RewriteTarget
from virtualds.datasets.write_options import WriteOptions
from virtualds.errors import ConflictError, UnsupportedError, exists_already
from virtualds.formats import Format, Parts, change_set
from virtualds.formats.admission import (
    IsKnown,
    demand_admissible,
    know_nothing,
    list_first_files,
    list_new_files,
    make_known_check,
    warn_of_unreadable,
)
from virtualds.formats.undecodable import ON_ERROR
from virtualds.log import INFO, tell, tells
from virtualds.progress import count_writing
from virtualds.stores.access_rules import AccessPolicy, is_own
from virtualds.stores.store import explain_write_errors

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
        if self.options.mode != "w-" or not self.options.creates_set:
            return self
        where, access = self.location.target, self.location.options
        if self.format.holds is None:
            there = format_there(self.location) is not None
        else:
            names = ("branch", "create_branch")
            branch = {k: v for k, v in self.options.of_format.items() if k in names}
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
        return self._tell_of(partial(self._create, whole))

    def change(self, change: Change, whole: Whole | None = None) -> Written:
        """Change a set; if there is none, create one that holds the group of ``whole``."""
        return self._tell_of(partial(self._change, change, whole))

    def _tell_of(self, write: Callable[[], Written]) -> Written:
        begun = time.perf_counter()
        written = retry_on_conflict(write, self.options.conflict)
        if tells(INFO):
            seconds = time.perf_counter() - begun
            tell(INFO, f"{self.location.url}: {self.format.name}, written, {seconds:.3f} s")
        return written

    def _create(self, whole: Whole) -> Written:
        if self.rewrite.is_needed or self.options.changes.inline_threshold:
            # chunks are read for a set that can be written alone
            self.demand_free()
        is_known = know_nothing if self.place is None else self._is_part
        group = self.options.changes.apply(whole(), is_known)
        group = self._fit(group, is_known)
        where, replaces = self.location.target, self.options.replaces_set
        # not around ``whole``: it reads sources, and their errors are no errors of the set
        with explain_write_errors(where):
            if self.place is not None:
                self.parts.commit(group, self.place, replace=replaces)
            else:
                write: Callable[..., None] = self.format.write
                chosen = self.options.of_format | self.rewrite.for_writer
                with self._count_writing(group):
                    write(group, where, self.location.options, replace=replaces, **chosen)
                self.rewrite.clear(group)
        return Written(None, group)

    def _change(self, change: Change, whole: Whole | None) -> Written:
        found: list[Written] = []
        counting = ExitStack()

        def prepared(before: ManifestGroup) -> ManifestGroup:
            found[:] = [Written(before, self._prepare_change(before, change))]
            if found[0].after is not before:
                # what there is to write is known only now
                counting.enter_context(self._count_writing(found[0].after))
            return found[0].after

        where, policy = self.location.target, AccessPolicy.of(self.options.allow)
        try:
            with explain_write_errors(where), name_missing_set(self.location), counting:
                chosen = self.options.of_format | self.rewrite.for_writer
                access = self.location.options
                change_set(self.format, where, prepared, access, policy, **chosen)
        except FileNotFoundError:
            if whole is None:
                raise
        else:
            self.rewrite.clear(found[0].after)
            return found[0]
        return self._create_first(whole)

    def _prepare_change(self, before: ManifestGroup, change: Change) -> ManifestGroup:
        """Return what a set shall hold, in a form that the format can write."""
        if problems := before.all_problems():
            # parts of the set that cannot be read would be lost
            ON_ERROR["raise"](before, problems)
        if (after := change(before)) is before:
            return before
        is_known = make_known_check(before)
        after = self.options.changes.apply(after, is_known)
        return self._fit(after, is_known)

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

    def _count_writing(self, group: ManifestGroup) -> AbstractContextManager[None]:
        total = sum(array.nchunks for array in _list_arrays(group))
        return count_writing(self.options.rewriting.progress, total)

    def _fit(self, group: ManifestGroup, is_known: IsKnown) -> ManifestGroup:
        """Return a group in a form that the format can write; refuse one that no set may hold."""
        target, keep = str(self.location.target), self.options.keep_query
        demand_admissible(group, target, keep_query=keep, is_known=is_known)
        group = self.rewrite.fit(group)
        # an object of Icechunk does not say where it lies
        if isinstance(self.location.target, str) and not is_own(target):
            new = list_new_files(group, is_known) if self.place is None else list_first_files(group)
            warn_of_unreadable(new, target, AccessPolicy.of(self.options.allow))
        return group

    def _is_part(self, table: ReferenceTable) -> bool:
        """Say whether a worker has written a table to the set: workers check what they write."""
        return self.parts.holds(table, self.place)


def _list_arrays(group: ManifestGroup) -> list[ManifestArray]:
    found = (variable.data for _, part in group.walk() for variable in part.variables.values())
    return [data for data in found if isinstance(data, ManifestArray)]


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
    names = {one.name for one in fields(WriteOptions)}
    choices = {name: value for name, value in given.items() if name not in names}
    options = WriteOptions.of_call(given | {"choices": choices})
    return Destination.of(Location.of(url, storage_options), options).demand_free()
