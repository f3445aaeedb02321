"""The set that workers write their references into, so that nobody ever holds all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.datasets.from_dataset import group_from_dataset
from virtualds.datasets.location import Location
from virtualds.datasets.write import Destination
from virtualds.datasets.write_options import WriteOptions
from virtualds.errors import VirtualdsError
from virtualds.formats.admission import KEEP_QUERY, demand_unsigned
from virtualds.stores.errors import explain_write_errors

Key = TypeVar("Key")

LEAST, ENOUGH = 4096, 100_000
"""What a `BuildTarget` begins with."""


@dataclass(frozen=True)
class BuildTarget:
    """A set that is being written by many processes.

    Parameters
    ----------
    destination : Destination
        The set, of which parts are begun.
    least : int
        References of an array from which on they are worth a table of their own.
    enough : int
        References of files from which on no more files are waited for.

    Raises
    ------
    ValueError
        Fewer are enough than are worth it.
    """

    destination: Destination
    least: int
    enough: int

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
    ) -> BuildTarget:
        """Look whether the set may be written, before anything is done for it.

        Raises
        ------
        UnsupportedError
            Sets of this format are written by one process.
        FileExistsError
            There is something of this name that is no set, or is not to be replaced.
        """
        choices = {KEEP_QUERY: keep_query}
        options = WriteOptions(mode="w" if replace else "w-", choices=choices)
        destination = Destination.of(Location.of(url, storage_options), options)
        return cls(destination.begin_parts(), LEAST, ENOUGH)

    @property
    def url(self) -> str:
        """The url of the set."""
        return str(self.destination.place.root)

    def write_arrays(self, arrays: Mapping[Key, ManifestArray]) -> dict[Key, ManifestArray]:
        """Write those of some arrays that have many references; return them as they lie in the set.

        Raises
        ------
        UnsupportedError
            Urls have a signature or a token in their query.
        """
        many = {
            key: array
            for key, array in arrays.items()
            if _count_loaded_references(array) >= self.least
        }
        if not many:
            return {}
        # before anything lies in the set that anybody may read
        if not self.destination.options.keep_query:
            demand_unsigned(many.values(), self.url)
        with explain_write_errors(self.url):
            return self.destination.parts.write(many, self.destination.place)

    def commit(self, dataset: xr.Dataset) -> None:
        """Make a dataset, of which parts are written, the set."""
        self.destination.create(partial(group_from_dataset, dataset))

    def abandon(self) -> None:
        """Remove what was written."""
        self.destination.parts.abandon(self.destination.place)


@contextmanager
def abandon_on_error(target: BuildTarget | None) -> Iterator[None]:
    """Remove what was written to a set if it does not come about."""
    try:
        yield
    except BaseException:
        if target is not None:
            # what cannot be removed now goes when snapshots are let go of
            with suppress(OSError, VirtualdsError):
                target.abandon()
        raise


def _count_loaded_references(array: ManifestArray) -> int:
    """Return how many references of an array lie in no set."""
    return sum(f.manifest.size for f in array.fragments if not f.manifest.is_in_set)
