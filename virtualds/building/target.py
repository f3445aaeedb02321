"""The set that workers write their references into, so that nobody ever holds all of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import xarray as xr

from virtualds.admission import demand_admissible, demand_unsigned
from virtualds.array import ManifestArray
from virtualds.dataset import group_from_dataset
from virtualds.detection import Location, format_for
from virtualds.errors import UnsupportedError, VirtualdsError
from virtualds.formats import FORMATS, Parts
from virtualds.lazy import virtual_data
from virtualds.store_errors import storing

LEAST, ENOUGH, HELD = 4096, 100_000, 1_600_000
"""What a `Target` begins with: the last are some 50 MB."""


@dataclass(frozen=True)
class Target:
    """A set that is being written by many processes.

    Parameters
    ----------
    parts : Parts
        How its format does that.
    place : object
        What the format knows of this writing.
    least : int
        References of an array from which on they are worth a table of their own.
    enough : int
        References of an array that are written by whoever joins blocks; fewer wait to be joined.
    held : int
        References of all arrays of a dataset that may wait.
    replace : bool
        Whether a set that is there is replaced.
    keep_query : bool
        Whether urls are written that have a signature or a token in their query.

    Raises
    ------
    ValueError
        Fewer are enough than are worth it.
    """

    parts: Parts
    place: Any
    least: int
    enough: int
    held: int
    replace: bool = False
    keep_query: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.least <= self.enough:
            raise ValueError(f"Target: {self.enough} references are enough, {self.least} the least")

    @classmethod
    def begin(
        cls,
        url: Any,
        storage_options: Mapping[str, Any] | None,
        *,
        replace: bool = False,
        keep_query: bool = False,
    ) -> Target:
        """Look whether the set may be written, before anything is done for it.

        Raises
        ------
        UnsupportedError
            Sets of this format are written by one process.
        FileExistsError
            There is something of this name that is no set, or is not to be replaced.
        """
        location = Location.of(url, storage_options)
        form, absolute = format_for(location), location.target
        if form.parts is None:
            able = ", ".join(other.name for other in FORMATS if other.parts is not None)
            raise UnsupportedError(
                f"{absolute}: to= has many processes write one set, which {form.name} does not "
                f"allow; {able} does, and virtualds.convert makes {form.name} of it, or leave out "
                f"to= and write the dataset with ds.virtual.to_manifest"
            )
        with storing(absolute):
            place = form.parts.begin(absolute, location.options, replace=replace)
        return cls(form.parts, place, LEAST, ENOUGH, HELD, replace, keep_query)

    @property
    def url(self) -> str:
        """The url of the set."""
        return str(self.place.root)

    def relieved(self, dataset: xr.Dataset, dim: Hashable, *, joins: bool = True) -> xr.Dataset:
        """Return a dataset whose references lie in the set where they are many.

        Parameters
        ----------
        dataset : Dataset
        dim : str
            The dimension that grows. What does not have it is the same in all blocks: one is kept.
        joins : bool
            Whether a worker will join the dataset with others, so that a few may wait for that.
        """
        counts = {
            name: _loaded(array)
            for name, variable in dataset.variables.items()
            if dim in variable.dims and (array := virtual_data(variable)) is not None
        }
        waits = joins and sum(counts.values()) < self.held
        least = self.enough if waits else self.least
        many = {
            name: array
            for name, count in counts.items()
            if count >= least and (array := virtual_data(dataset.variables[name])) is not None
        }
        if not many:
            return dataset
        found = dataset.copy()
        # before anything lies in the set that anybody may read
        if not self.keep_query:
            demand_unsigned(many.values(), self.url)
        with storing(self.url):
            written = self.parts.write(many, self.place)
        for name, array in written.items():
            found.variables[name].data = array
        return found

    def commit(self, dataset: xr.Dataset) -> None:
        """Make a dataset, of which parts are written, the set."""
        group = group_from_dataset(dataset)
        # what lies in the set was judged when it was written
        demand_admissible(
            group,
            self.url,
            keep_query=self.keep_query,
            is_known=lambda table: self.parts.holds(table, self.place),
        )
        with storing(self.url):
            self.parts.commit(group, self.place, replace=self.replace)

    def abandon(self) -> None:
        """Remove what was written."""
        self.parts.abandon(self.place)


@contextmanager
def abandoning(target: Target | None) -> Iterator[None]:
    """Remove what was written to a set if it does not come about."""
    try:
        yield
    except BaseException:
        if target is not None:
            # what cannot be removed now goes when snapshots are let go of
            with suppress(OSError, VirtualdsError):
                target.abandon()
        raise


def _loaded(array: ManifestArray) -> int:
    """Return how many references of an array lie in no set."""
    return sum(f.manifest.size for f in array.fragments if not f.manifest.is_in_set)
