"""Options of a build, and the set to which its workers write, so that none holds all references."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.datasets.from_dataset import group_from_dataset
from virtualds.datasets.keywords import check_choice
from virtualds.datasets.location import Location
from virtualds.datasets.write import Destination, WriteOptions
from virtualds.errors import VirtualdsError
from virtualds.formats.admission import KEEP_QUERY, demand_unsigned
from virtualds.options import FILE_RETRIES
from virtualds.progress import ProgressOption
from virtualds.stores.store import explain_write_errors

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import distributed


Parallel: TypeAlias = "int | Executor | Literal['dask'] | distributed.Client | None"

ON_ERROR = {"raise": "raise", "skip": "raise", "collect": "raise", "keep": "keep"}
"""How failing variables of a file are treated, by how the build treats failing files.

If a variable of a file cannot be read, the build leaves out the whole file. Otherwise the gap in
the joined variable would look like missing values.
"""


@dataclass(frozen=True)
class BuildOptions:
    """How many files are opened, as in `virtualds.open_virtual_mfdataset`.

    A `ValueError` is raised if ``on_error`` is none that there is, or ``retries`` is negative.
    """

    parallel: Parallel = None
    on_error: str = "raise"
    retries: int = FILE_RETRIES
    progress: ProgressOption = None
    cache: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, ON_ERROR)
        if not isinstance(self.retries, int) or self.retries < 0:
            raise ValueError(f"retries={self.retries!r}: give a number, at least 0")

    @property
    def on_variable_error(self) -> str:
        """What is done about variables of a file that cannot be read."""
        return ON_ERROR[self.on_error]

    @property
    def stops(self) -> bool:
        """Whether the first file that cannot be opened ends the build."""
        return self.on_error in ("raise", "keep")


Key = TypeVar("Key")

LEAST, ENOUGH = 4096, 100_000
"""The numbers of references with which `BuildTarget.begin` makes a target."""


@dataclass(frozen=True)
class BuildTarget:
    """A set that many processes write, whose parts have been begun.

    An array with ``least`` references gets a table of its own. A worker whose files have ``enough``
    writes them, and waits for no more files.
    """

    destination: Destination
    least: int
    enough: int

    @classmethod
    def begin(
        cls,
        url: Any,
        storage_options: Mapping[str, Any] | None,
        *,
        replace: bool = False,
        keep_query: bool = False,
    ) -> BuildTarget:
        """Check that the set can be written, by many processes, before the workers begin."""
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

        Urls with a signature or a token in their query are refused.
        """
        many = dict[Key, ManifestArray]()
        for key, array in arrays.items():
            # those that were written before lie in a set
            count = sum(f.manifest.size for f in array.fragments if not f.manifest.is_in_set)
            if count >= self.least:
                many[key] = array
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


@contextmanager
def abandon_on_error(target: BuildTarget | None) -> Iterator[None]:
    """Remove the parts of a set if the block raises an error."""
    try:
        yield
    except BaseException:
        if target is not None:
            # parts that cannot be removed now are removed when snapshots expire
            with suppress(OSError, VirtualdsError):
                target.destination.parts.abandon(target.destination.place)
        raise
