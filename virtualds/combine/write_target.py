"""The set that workers write their references into, so that nobody ever holds all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.datasets.from_dataset import group_from_dataset
from virtualds.datasets.location import Location, format_for
from virtualds.datasets.registry import FORMATS
from virtualds.errors import UnsupportedError, VirtualdsError
from virtualds.formats import Parts
from virtualds.formats.admission import demand_admissible, demand_unsigned
from virtualds.stores.errors import explain_write_errors

Key = TypeVar("Key")

LEAST, ENOUGH = 4096, 100_000
"""What a `BuildTarget` begins with."""


@dataclass(frozen=True)
class BuildTarget:
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
        References of files from which on no more files are waited for.
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
    ) -> BuildTarget:
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
        with explain_write_errors(absolute):
            place = form.parts.begin(absolute, location.options, replace=replace)
        return cls(form.parts, place, LEAST, ENOUGH, replace, keep_query)

    @property
    def url(self) -> str:
        """The url of the set."""
        return str(self.place.root)

    def written(self, arrays: Mapping[Key, ManifestArray]) -> dict[Key, ManifestArray]:
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
        if not self.keep_query:
            demand_unsigned(many.values(), self.url)
        with explain_write_errors(self.url):
            return self.parts.write(many, self.place)

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
        with explain_write_errors(self.url):
            self.parts.commit(group, self.place, replace=self.replace)

    def abandon(self) -> None:
        """Remove what was written."""
        self.parts.abandon(self.place)


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
