"""The set that workers write their references to, so that no process holds all references."""

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
from virtualds.stores.store import explain_write_errors

Key = TypeVar("Key")

LEAST, ENOUGH = 4096, 100_000
"""The numbers of references with which `BuildTarget.begin` makes a target."""


@dataclass(frozen=True)
class BuildTarget:
    """A set that many processes write.

    Parameters
    ----------
    destination : Destination
        The set; its parts have been begun.
    least : int
        An array with so many references gets a table of its own.
    enough : int
        A worker whose files have so many references writes them, and waits for no more files.

    Raises
    ------
    ValueError
        ``least`` is not positive, or ``enough`` is less.
    """

    destination: Destination
    least: int
    enough: int

    def __post_init__(self) -> None:
        if not 0 < self.least <= self.enough:
            raise ValueError(
                f"BuildTarget: least={self.least} and enough={self.enough}, but 0 < least <= enough"
            )

    @classmethod
    def begin(
        cls,
        url: Any,
        storage_options: Mapping[str, Any] | None,
        *,
        replace: bool = False,
        keep_query: bool = False,
    ) -> BuildTarget:
        """Check that the set can be written, before the workers begin.

        Raises
        ------
        UnsupportedError
            Only one process can write a set of this format.
        FileExistsError
            The name is taken: by something that is no set, or by a set that is to stay.
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
        """Write the arrays that have many references; return arrays that refer to what was written.

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
        # check before writing: other users may read what lies in the set
        if not self.destination.options.keep_query:
            demand_unsigned(many.values(), self.url)
        with explain_write_errors(self.url):
            return self.destination.parts.write(many, self.destination.place)

    def commit(self, dataset: xr.Dataset) -> None:
        """Write the dataset of the whole set, whose parts the workers have written."""
        self.destination.create(partial(group_from_dataset, dataset))

    def abandon(self) -> None:
        """Remove the parts that were written."""
        self.destination.parts.abandon(self.destination.place)


@contextmanager
def abandon_on_error(target: BuildTarget | None) -> Iterator[None]:
    """Remove the parts of a set if the block raises an error."""
    try:
        yield
    except BaseException:
        if target is not None:
            # parts that cannot be removed now are removed when snapshots expire
            with suppress(OSError, VirtualdsError):
                target.abandon()
        raise


def _count_loaded_references(array: ManifestArray) -> int:
    """Return how many references of an array were not yet written to a set."""
    return sum(f.manifest.size for f in array.fragments if not f.manifest.is_in_set)
